"""Searches for the outputs of any model that can encode and step."""
