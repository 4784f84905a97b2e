"""Features: steps around a search, a folder each."""
