"""Checkpoints, metrics and other files on disk."""
