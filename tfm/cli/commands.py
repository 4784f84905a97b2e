"""All commands of tfm; the help lists them in the order of these imports."""

from tfm.cli.app import app

# isort: split
from tfm.cli import text

# isort: split
from tfm.cli import models

# isort: split
from tfm.cli import translations

# isort: split
from tfm.cli import bench

__all__ = ["app", "bench", "models", "text", "translations"]
