"""OpenNMT-py's Transformer, which is pre-norm, over made-up pieces. Runs in its environment."""

import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

# Of OpenNMT-py's transforms of text, which it imports with the rest: token ids need none.
sys.modules.update(dict.fromkeys(("ahocorasick", "fasttext", "rapidfuzz", "spacy"), MagicMock()))

import onmt.opts  # noqa: E402
import pyonmttok  # noqa: E402
from onmt.constants import DefaultTokens  # noqa: E402
from onmt.utils.parse import ArgumentParser  # noqa: E402

# None: a switch.
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
    """OpenNMT-py's options: what its Transformer recipe sets, what is given, else its defaults."""
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    words = ["-data", "none", "-src_vocab", "none"]  # which it insists on
    for name, value in {**_TRANSFORMER, **given}.items():
        words += [f"-{name}"] if value is None else [f"-{name}", str(value)]
    options = parser.parse_args(words)
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    return options


def made_up_vocabulary(size: int) -> pyonmttok.Vocab:
    """A vocabulary whose special tokens are numbered as tfm's."""
    specials = [DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS, DefaultTokens.UNK]
    pieces = [f"piece{number}" for number in range(len(specials), size)]
    return pyonmttok.build_vocab_from_tokens(pieces, special_tokens=specials)
