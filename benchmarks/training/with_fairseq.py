"""Train with fairseq: its model, criterion and optimizer in the order of its Trainer's step."""

from types import SimpleNamespace

import torch
from fairseq_features import restore_removed_features
from timing import (
    ADAM_BETAS,
    ADAM_EPSILON,
    DROPOUT,
    LABEL_SMOOTHING,
    Loss,
    Pairs,
    Settings,
    measure,
    read_settings,
)

restore_removed_features()

import fairseq  # noqa: E402
from fairseq.criterions.label_smoothed_cross_entropy import (  # noqa: E402
    LabelSmoothedCrossEntropyCriterion,
)
from fairseq.data import Dictionary  # noqa: E402
from fairseq.models.transformer import TransformerConfig, TransformerModelBase  # noqa: E402
from fairseq.optim.adam import FairseqAdam  # noqa: E402


def main() -> None:
    """Train and write the results."""
    settings = read_settings(__doc__)
    torch.manual_seed(settings.seed)
    dictionary = _dictionary(settings.vocab_size)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = TransformerModelBase.build_model(_model_settings(settings), task)
    criterion = LabelSmoothedCrossEntropyCriterion(
        task, sentence_avg=False, label_smoothing=LABEL_SMOOTHING
    )
    optimizer = FairseqAdam(
        SimpleNamespace(
            lr=[1.0],
            adam_betas=str(ADAM_BETAS),
            adam_eps=ADAM_EPSILON,
            weight_decay=0.0,
            fp16_adam_stats=False,
        ),
        list(model.parameters()),
    )

    def step(pairs: Pairs, rate: float) -> Loss:
        target = _convert_ids(pairs.target)
        previous = target[:, :-1].clone()
        previous[:, 0] = dictionary.eos()  # fairseq starts sentences with EOS
        sample = {
            "net_input": {
                "src_tokens": _convert_ids(pairs.source),
                "src_lengths": pairs.source_lengths,
                "prev_output_tokens": previous,
            },
            "target": target[:, 1:].contiguous(),
            "ntokens": pairs.num_tokens,
        }
        model.train()
        optimizer.zero_grad()
        with settings.autocast():
            loss, num_tokens, metrics = criterion(model, sample)
        optimizer.backward(loss)
        optimizer.multiply_grads(1 / num_tokens)
        optimizer.clip_grad_norm(0.0)  # its Trainer always computes the norm
        optimizer.set_lr(rate)
        optimizer.step()
        return Loss(metrics["loss"].item() / num_tokens, metrics["nll_loss"].item() / num_tokens)

    # Leave out the encoder's copies for inference, such as fc1_weight beside fc1.weight.
    trained = (p for name, p in model.named_parameters() if name.endswith((".weight", ".bias")))
    measure(settings, step, version=f"fairseq {fairseq.__version__}", parameters=trained)


def _model_settings(settings: Settings) -> TransformerConfig:
    shape = settings.shape
    config = TransformerConfig()
    for side in (config.encoder, config.decoder):
        side.layers = shape.num_layers
        side.embed_dim = shape.d_model
        side.ffn_embed_dim = shape.d_ff
        side.attention_heads = shape.num_heads
    config.decoder.input_dim = config.decoder.output_dim = shape.d_model
    config.dropout = config.attention_dropout = DROPOUT
    config.share_all_embeddings = True
    return config


def _dictionary(size: int) -> Dictionary:
    dictionary = Dictionary()
    for number in range(len(dictionary), size):
        dictionary.add_symbol(f"piece{number}")
    return dictionary


def _convert_ids(ids: torch.Tensor) -> torch.Tensor:
    """Return fairseq's token ids, in which BOS and PAD are exchanged."""
    return torch.where(ids < 2, 1 - ids, ids)


if __name__ == "__main__":
    main()
