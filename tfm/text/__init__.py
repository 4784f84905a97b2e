"""Text before it is token ids: files, downloads, recipes, cleaning, languages."""
