"""Protected text: placeholders, addresses and the like come back as they are written."""
