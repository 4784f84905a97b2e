"""Recipes: where a corpus comes from, and how it is prepared."""
