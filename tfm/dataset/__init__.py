"""Datasets: cleaned text as token ids on disk, and batches of it."""
