"""Features: steps around a search, and what several applications use, a folder each."""
