"""tfm: train, run and score the Transformer of "Attention Is All You Need"."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfm.api import score, train
    from tfm.commands.average import average
    from tfm.commands.prepare import prepare
    from tfm.inference.translator import Translator

__all__ = ["Translator", "__version__", "average", "prepare", "score", "train"]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # to a type checker, it would mean that tfm has attributes of any name

    def __getattr__(name: str) -> object:
        """Import a name on first use, so that `import tfm` is fast and does not import torch."""
        if name == "Translator":
            from tfm.inference.translator import Translator

            return Translator
        if name in ("average", "prepare"):
            return getattr(importlib.import_module(f"tfm.commands.{name}"), name)
        if name in __all__:
            from tfm import api

            return getattr(api, name)
        raise AttributeError(f"module 'tfm' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return all names, so that those not yet imported are completed, too."""
        return sorted({*globals(), *__all__})
