"""Train with OpenNMT-py: its Trainer's step on its Transformer, which is pre-norm."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch
from timing import (
    ADAM_BETAS,
    DROPOUT,
    LABEL_SMOOTHING,
    Loss,
    Pairs,
    Settings,
    measure,
    read_settings,
)

# Of OpenNMT-py's transforms of text, which it imports with the rest: token ids need none.
sys.modules.update(dict.fromkeys(("ahocorasick", "fasttext", "rapidfuzz", "spacy"), MagicMock()))

import onmt.opts  # noqa: E402
import pyonmttok  # noqa: E402
from onmt.constants import DefaultTokens  # noqa: E402
from onmt.model_builder import build_model  # noqa: E402
from onmt.trainer import Trainer  # noqa: E402
from onmt.utils import Optimizer, Statistics  # noqa: E402
from onmt.utils.loss import LossCompute  # noqa: E402
from onmt.utils.parse import ArgumentParser  # noqa: E402


def main() -> None:
    """Run it."""
    settings = read_settings(__doc__)
    torch.manual_seed(settings.seed)
    options = _options(settings)
    vocabulary = _vocabulary(settings.vocab_size)
    vocabularies = {"src": vocabulary, "tgt": vocabulary}
    model = build_model(options, options, vocabularies, None, -1)
    optimizer = Optimizer.from_opt(model, options)
    trainer = Trainer(
        model,
        LossCompute.from_opts(options, model, vocabulary),
        None,
        None,
        {},
        optimizer,
        norm_method=options.normalization,
        n_gpu=0,
        gpu_rank=-1,
        dropout=options.dropout,
        attention_dropout=options.attention_dropout,
        dropout_steps=options.dropout_steps,
    )

    def step(pairs: Pairs, rate: float) -> Loss:
        batch = {
            "src": pairs.source[:, :, None],
            "srclen": pairs.source_lengths,
            "tgt": pairs.target[:, :, None],
        }
        optimizer._learning_rate = rate  # its own schedule is left out  # noqa: SLF001
        statistics = Statistics()
        with settings.autocast():
            trainer._gradient_accumulation(  # noqa: SLF001
                [batch], pairs.num_tokens, statistics, Statistics()
            )
        return Loss(statistics.xent())

    measure(
        settings,
        step,
        version=f"OpenNMT-py {version('OpenNMT-py')}",
        parameters=model.parameters(),
    )


def _options(settings: Settings) -> object:
    """OpenNMT-py's options: what its Transformer recipe sets, else its defaults."""
    shape = settings.shape
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    given = {  # None: a switch
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "position_encoding": None,
        "max_relative_positions": 0,
        "layers": shape.num_layers,
        "hidden_size": shape.d_model,
        "word_vec_size": shape.d_model,
        "transformer_ff": shape.d_ff,
        "heads": shape.num_heads,
        "dropout": DROPOUT,
        "attention_dropout": DROPOUT,
        "label_smoothing": LABEL_SMOOTHING,
        "param_init": 0,
        "param_init_glorot": None,
        "share_embeddings": None,
        "share_decoder_embeddings": None,
        "share_vocab": None,
        "optim": "adam",
        "adam_beta1": ADAM_BETAS[0],
        "adam_beta2": ADAM_BETAS[1],
        "learning_rate": 1.0,
        "decay_method": "none",
        "max_grad_norm": 0,
        "normalization": "tokens",
    }
    words = ["-data", "none", "-src_vocab", "none"]  # which it insists on
    for name, value in given.items():
        words += [f"-{name}"] if value is None else [f"-{name}", str(value)]
    options = parser.parse_args(words)
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    return options


def _vocabulary(size: int) -> pyonmttok.Vocab:
    specials = [DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS, DefaultTokens.UNK]
    pieces = [f"piece{number}" for number in range(len(specials), size)]
    return pyonmttok.build_vocab_from_tokens(pieces, special_tokens=specials)


if __name__ == "__main__":
    main()
