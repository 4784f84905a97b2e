"""Train with tfm's Trainer, as `tfm train` does."""

import torch
from timing import DROPOUT, LABEL_SMOOTHING, Loss, Pairs, measure, read_settings

from tfm import __version__
from tfm.config import run_config
from tfm.dataset.parallel import ParallelDataset
from tfm.machine.compute import choose_compute
from tfm.model.build import new_model
from tfm.model.cost import model_cost
from tfm.training.trainer import Trainer
from tfm.vocabulary.subword import Vocabulary


def main() -> None:
    """Train and write the results."""
    settings = read_settings(__doc__)
    shape = settings.shape
    run = run_config(
        "base",
        {
            "model": {
                "num_encoder_layers": shape.num_layers,
                "num_decoder_layers": shape.num_layers,
                "d_model": shape.d_model,
                "d_ff": shape.d_ff,
                "num_heads": shape.num_heads,
                "dropout": DROPOUT,
                "embedding_dropout": DROPOUT,
                "attention_dropout": DROPOUT,
            },
            "optimizer": {
                "learning_rate": settings.learning_rate,
                "warmup_steps": settings.warmup_steps,
                "label_smoothing": LABEL_SMOOTHING,
            },
            # A GPU has the memory for one microbatch per step.
            "batching": {"max_tokens": 65_536} if settings.device == "cuda" else {},
            "training": {
                "device": settings.device,
                "kernels": "auto",
                "precision": settings.precision,
                "seed": settings.seed,
            },
        },
    )
    vocabulary = Vocabulary.load(settings.data)
    sizes = len(vocabulary.source), len(vocabulary.target)
    dataset = ParallelDataset(settings.data / "bin", "train", vocab_sizes=sizes)
    torch.manual_seed(settings.seed)
    compute = choose_compute(run.training.device, run.training.precision, trains=True)
    model = new_model(run.model, sizes).to(compute.device)
    trainer = Trainer(
        model,
        dataset,
        run,
        compute,
        cost=model_cost(run.model, sizes),
    )

    def step(pairs: Pairs, _rate: float) -> Loss:
        pending, _ = trainer.step(trainer.build(pairs.rows))  # it computes the same learning rate
        if pending is None:
            raise RuntimeError("the trainer was stopped")
        report = pending.report()
        if report.num_tokens != pairs.num_tokens:
            raise RuntimeError("the batches belong to another dataset")
        return Loss(report.loss, report.nll)

    measure(settings, step, version=f"tfm {__version__}", parameters=model.parameters())


if __name__ == "__main__":
    main()
