"""Train with JoeyNMT: its model, loss and optimizer in the order of its training loop."""

import math
from importlib.metadata import version
from types import SimpleNamespace

import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_optimizer
from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary
from timing import (
    ADAM_BETAS,
    DROPOUT,
    LABEL_SMOOTHING,
    Loss,
    Pairs,
    Shape,
    measure,
    read_settings,
    set_rate,
)

_SPECIALS = ("unk", "pad", "bos", "eos")  # in JoeyNMT's order


def main() -> None:
    """Train and write the results."""
    settings = read_settings(__doc__)
    torch.manual_seed(settings.seed)
    vocabulary = _vocabulary(settings.vocab_size)
    model = build_model(_model_settings(settings.shape), vocabulary, vocabulary)
    model.loss_function = ("crossentropy", LABEL_SMOOTHING)
    optimizer = build_optimizer(
        {"optimizer": "adam", "adam_betas": ADAM_BETAS, "learning_rate": 1.0}, model.parameters()
    )
    device = torch.device("cpu")
    # JoeyNMT's loss is the KL divergence: the cross-entropy minus the entropy of the labels.
    wrong_class = LABEL_SMOOTHING / (settings.vocab_size - 2)
    entropy = -(
        (1 - LABEL_SMOOTHING) * math.log(1 - LABEL_SMOOTHING)
        + LABEL_SMOOTHING * math.log(wrong_class)
    )

    def step(pairs: Pairs, rate: float) -> Loss:
        model.train()
        batch = Batch(
            src=_convert_ids(pairs.source),
            src_length=pairs.source_lengths,
            src_prompt_mask=None,
            trg=_convert_ids(pairs.target),
            trg_prompt_mask=None,
            indices=torch.from_numpy(pairs.rows),
            device=device,
            pad_index=vocabulary.pad_index,
            eos_index=vocabulary.eos_index,
        )
        batch.sort_by_src_length()
        with settings.autocast():
            total, _, _, num_correct = model(return_type="loss", **vars(batch))
        loss = batch.normalize(total, normalization="tokens")
        loss.backward()
        mean = loss.item()
        num_correct.item()  # JoeyNMT reads it after each batch, too
        set_rate(optimizer, rate)
        optimizer.step()
        model.zero_grad()
        return Loss(mean + entropy)

    measure(settings, step, version=f"JoeyNMT {version('joeynmt')}", parameters=model.parameters())


def _model_settings(shape: Shape) -> dict[str, object]:
    """Return the "model" section of a JoeyNMT configuration, as in its Transformer recipes."""
    side = {
        "type": "transformer",
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "embeddings": {"embedding_dim": shape.d_model, "scale": True, "dropout": DROPOUT},
        "hidden_size": shape.d_model,
        "ff_size": shape.d_ff,
        "dropout": DROPOUT,
        "layer_norm": "post",
    }
    return {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "bias_initializer": "zeros",
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": side,
        "decoder": side,
    }


def _vocabulary(size: int) -> Vocabulary:
    specials = SimpleNamespace(
        **{f"{name}_id": index for index, name in enumerate(_SPECIALS)},
        **{f"{name}_token": f"<{name}>" for name in _SPECIALS},
        sep_token=None,
        sep_id=None,
        lang_tags=[],
    )
    pieces = [f"piece{number}" for number in range(len(_SPECIALS), size)]
    return Vocabulary(pieces, specials)


def _convert_ids(ids: torch.Tensor) -> torch.Tensor:
    """Return JoeyNMT's token ids, in which UNK comes first instead of fourth."""
    return torch.where(ids < len(_SPECIALS), (ids + 1) % len(_SPECIALS), ids)


if __name__ == "__main__":
    main()
