"""All commands of tfm; the help lists them in the order of these imports."""

from tfm.cli.app import app

# isort: split
from tfm.cli import text

# isort: split
from tfm.cli import models

# isort: split
from tfm.cli import translations

__all__ = ["app", "models", "text", "translations"]
