"""Checkpoints, and everything else that is written to disk."""
