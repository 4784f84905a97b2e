"""From archives and text to batches of token ids."""
