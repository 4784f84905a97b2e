"""Train the MarianMTModel of Hugging Face transformers, with its Trainer's loss and optimizer."""

import torch
import transformers
from timing import (
    ADAM_BETAS,
    ADAM_EPSILON,
    BOS,
    DROPOUT,
    EOS,
    LABEL_SMOOTHING,
    PAD,
    Loss,
    Pairs,
    measure,
    read_settings,
    set_rate,
)
from transformers import MarianConfig, MarianMTModel
from transformers.trainer_pt_utils import LabelSmoother

_IGNORED = -100  # the label of padding


def main() -> None:
    """Train and write the results."""
    settings = read_settings(__doc__)
    shape = settings.shape
    torch.manual_seed(settings.seed)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=settings.vocab_size,
            d_model=shape.d_model,
            encoder_layers=shape.num_layers,
            decoder_layers=shape.num_layers,
            encoder_attention_heads=shape.num_heads,
            decoder_attention_heads=shape.num_heads,
            encoder_ffn_dim=shape.d_ff,
            decoder_ffn_dim=shape.d_ff,
            activation_function="relu",
            dropout=DROPOUT,
            attention_dropout=DROPOUT,
            activation_dropout=0.0,
            init_std=shape.d_model**-0.5,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            use_cache=False,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    ).train()
    model.to(settings.device)
    smoother = LabelSmoother(epsilon=LABEL_SMOOTHING)
    # The Trainer's default optimizer; without decay it is Adam.
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=0.0,
        betas=ADAM_BETAS,
        eps=ADAM_EPSILON,
        weight_decay=0.0,
        fused=True,
    )

    def step(pairs: Pairs, rate: float) -> Loss:
        labels = pairs.target[:, 1:].masked_fill(pairs.target[:, 1:] == PAD, _IGNORED)
        # With label smoothing, the Trainer computes the loss outside of the model.
        with settings.autocast():
            outputs = model(
                input_ids=pairs.source,
                attention_mask=(pairs.source != PAD).long(),
                decoder_input_ids=pairs.target[:, :-1],
            )
            loss = smoother(outputs, labels)
        loss.backward()
        set_rate(optimizer, rate)
        optimizer.step()
        model.zero_grad()
        return Loss(loss.item())

    measure(
        settings,
        step,
        version=f"transformers {transformers.__version__}",
        parameters=model.parameters(),
    )


if __name__ == "__main__":
    main()
