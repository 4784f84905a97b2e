"""tfm: train, run and score the Transformer of "Attention Is All You Need"."""

import importlib

__version__ = "0.1.0"

_COMMANDS = (
    *("prepare", "learn_bpe", "binarize", "train", "average", "export", "import_model"),
    *("runs", "models", "generate", "score", "evaluate", "check", "attend", "serve"),
    *("quickstart", "doctor"),
)
__all__ = ["Translator", "__version__", *_COMMANDS]


def __getattr__(name: str) -> object:
    """Import a name on first use, so that `import tfm` is fast and does not import torch."""
    if name == "Translator":
        return importlib.import_module("tfm.commands.translator").Translator
    if name in _COMMANDS:
        return getattr(importlib.import_module(f"tfm.commands.{name}"), name)
    raise AttributeError(f"module 'tfm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, so that those not yet imported are completed, too."""
    return sorted(__all__)
