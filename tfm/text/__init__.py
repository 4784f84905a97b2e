"""Reading text files: decompression, formats and lines."""
