"""tfm attend: attention weights as an HTML page or as image files."""
