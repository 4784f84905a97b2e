"""The training loop, the optimizer and the loss."""
