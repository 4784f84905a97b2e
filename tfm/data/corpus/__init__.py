"""Recipes: where a corpus comes from, and how to prepare it."""

from tfm.data.corpus.loading import builtin_recipes, load_recipe
from tfm.data.corpus.own import PathPair, recipe_from_files, recipe_from_trees
from tfm.data.corpus.recipe import Recipe
from tfm.data.corpus.texts import (
    GENERATORS,
    Archive,
    GeneratedText,
    Task,
    Text,
    TextFiles,
    TreeFile,
    is_url,
)

__all__ = [
    "GENERATORS",
    "Archive",
    "GeneratedText",
    "PathPair",
    "Recipe",
    "Task",
    "Text",
    "TextFiles",
    "TreeFile",
    "builtin_recipes",
    "is_url",
    "load_recipe",
    "recipe_from_files",
    "recipe_from_trees",
]
