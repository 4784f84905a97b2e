"""Subword vocabularies: learned, imported, and how they segment text."""
