"""Text in files: what it is unpacked from, and its lines."""
