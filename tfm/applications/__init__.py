"""Applications of the core, a folder each; no application imports another."""
