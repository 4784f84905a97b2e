"""Search for the best output of any model that can encode and step."""
