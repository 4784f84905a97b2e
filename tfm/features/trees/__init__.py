"""Trees of parsers."""
