"""tfm: train, run and score the Transformer of "Attention Is All You Need"."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfm.inference.translator import Translator

__all__ = ["Translator", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load `Translator` on first use, so that `import tfm` does not import torch."""
    if name == "Translator":
        from tfm.inference.translator import Translator

        return Translator
    raise AttributeError(f"module 'tfm' has no attribute {name!r}")
