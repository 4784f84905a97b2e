"""Metrics, locks and other files on disk."""
