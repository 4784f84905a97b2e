"""Files on disk: atomic writes, locks, checks of paths, tensors."""
