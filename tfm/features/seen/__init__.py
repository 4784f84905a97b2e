"""Test text that the training text of models has."""
