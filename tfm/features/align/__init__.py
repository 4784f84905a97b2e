"""Word alignments of translations."""
