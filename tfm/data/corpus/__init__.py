"""Recipes: where a corpus comes from, and how to prepare it."""
