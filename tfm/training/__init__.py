"""The training loop, the optimiser and the loss."""
