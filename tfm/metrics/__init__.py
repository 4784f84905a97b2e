"""Scores of what search wrote, each with all that decides it."""
