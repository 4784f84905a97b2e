"""Translations that repeat themselves: reported, or replaced by others of the beam."""
