"""OpenNMT-py's pre-norm Transformer with a synthetic vocabulary. Runs in its environment."""

import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

# OpenNMT-py always imports the packages of its text transforms, which token ids do not need.
sys.modules.update(dict.fromkeys(("ahocorasick", "fasttext", "rapidfuzz", "spacy"), MagicMock()))

import onmt.opts  # noqa: E402
import pyonmttok  # noqa: E402
from onmt.constants import DefaultTokens  # noqa: E402
from onmt.utils.parse import ArgumentParser  # noqa: E402

# None stands for a flag without value.
_TRANSFORMER = {
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "position_encoding": None,
    "max_relative_positions": 0,
    "share_embeddings": None,
    "share_decoder_embeddings": None,
    "share_vocab": None,
}


def model_options(given: Mapping[str, object]) -> Any:
    """Return OpenNMT-py's options: given ones, its Transformer recipe, its defaults."""
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    arguments = ["-data", "none", "-src_vocab", "none"]  # required
    for name, value in {**_TRANSFORMER, **given}.items():
        arguments += [f"-{name}"] if value is None else [f"-{name}", str(value)]
    options = parser.parse_args(arguments)
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    return options


def synthetic_vocabulary(size: int) -> pyonmttok.Vocab:
    """Return a vocabulary with tfm's ids of special tokens."""
    specials = [DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS, DefaultTokens.UNK]
    pieces = [f"piece{number}" for number in range(len(specials), size)]
    return pyonmttok.build_vocab_from_tokens(pieces, special_tokens=specials)
