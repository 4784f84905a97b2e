"""Train with OpenNMT-py: its Trainer's step on its Transformer, which is pre-norm."""

import sys
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import opennmt_model  # must be first: it makes the next imports work
from onmt.model_builder import build_model
from onmt.trainer import Trainer
from onmt.utils import Optimizer, Statistics
from onmt.utils.loss import LossCompute
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


def main() -> None:
    """Train and write the results."""
    settings = read_settings(__doc__)
    torch.manual_seed(settings.seed)
    options = _options(settings)
    vocabulary = opennmt_model.synthetic_vocabulary(settings.vocab_size)
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
        optimizer._learning_rate = rate  # instead of its own schedule  # noqa: SLF001
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
    shape = settings.shape
    return opennmt_model.model_options(
        {
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
            "optim": "adam",
            "adam_beta1": ADAM_BETAS[0],
            "adam_beta2": ADAM_BETAS[1],
            "learning_rate": 1.0,
            "decay_method": "none",
            "max_grad_norm": 0,
            "normalization": "tokens",
        }
    )


if __name__ == "__main__":
    main()
