"""Training reports and attention pictures, as self-contained files."""
