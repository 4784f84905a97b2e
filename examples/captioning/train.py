"""Train captioners of made-up pictures with and without attention, and compare them.

    python examples/captioning/train.py

Results are in results.json beside this script; these are not computed again, so that the same
command continues after an interruption. The table is printed, the picture is attention.svg.
"""

import argparse
import json
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dataset import Examples, make_examples
from evaluate import score
from figure import draw_attention
from models import CAPTIONERS, CaptionerName, new_captioner
from torch import Tensor, nn

from tfm.config import OptimizerConfig, RunConfig, TrainingConfig
from tfm.disk.files import write_json
from tfm.model.build import Model, evaluation_copy
from tfm.model.recurrent import Recurrent
from tfm.model.source_attention import reinforce_loss
from tfm.reporting import Progress, say
from tfm.training.loss import label_smoothed_cross_entropy
from tfm.training.optimizer import Adam, learning_rate
from tfm.vocabulary.subword import PAD

HERE = Path(__file__).parent
NUM_TRAINING, NUM_TEST = 20_000, 500
TESTS = ("seen", "unseen")  # combinations of size, color and kind
FIGURES = ("bleu", "exact", "shapes", "attention")  # of each test
_BATCH_SIZE = 32
_OPTIMIZER = OptimizerConfig(
    learning_rate=3e-3, warmup_steps=100, lr_schedule="linear", clip_norm=1.0
)
_DATA_SEED = 0  # the same pictures for all captioners and seeds


def main() -> None:
    """Train what has no results yet, then draw and print all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--captioners", nargs="+", choices=CAPTIONERS, default=CAPTIONERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_200)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results and picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # operations are small
    results_path = arguments.out / "results.json"
    results = json.loads(results_path.read_text()) if results_path.exists() else {}
    random = np.random.default_rng(_DATA_SEED)
    valid = make_examples(NUM_TEST, random, held_out=False)
    tests = {test: make_examples(NUM_TEST, random, held_out=test == "unseen") for test in TESTS}
    training = make_examples(NUM_TRAINING, random, held_out=False)
    drawn: dict[CaptionerName, Model] = {}
    for seed, name in product(arguments.seeds, arguments.captioners):
        if (key := f"{name} {seed}") not in results:
            model, seconds = train(name, training, valid, seed=seed, num_steps=arguments.steps)
            results[key] = {
                "steps": arguments.steps,
                "cpu_seconds": round(seconds),
                "parameters": sum(each.numel() for each in model.parameters()),
            } | {test: score(model, examples) for test, examples in tests.items()}
            write_json(results_path, results)
            if seed == arguments.seeds[0] and name != "without-attention":
                drawn[name] = model
                draw_attention(drawn, tests["seen"], arguments.out / "attention.svg")
    print("\n".join(table_lines(results)))


def train(
    name: CaptionerName, training: Examples, valid: Examples, *, seed: int, num_steps: int
) -> tuple[Model, float]:
    """Return a trained captioner, and the CPU seconds that it took."""
    torch.manual_seed(seed)
    model = new_captioner(name)
    run = RunConfig(optimizer=_OPTIMIZER, training=TrainingConfig(max_steps=num_steps))
    optimizer = Adam(model.parameters(), run.optimizer)
    start = time.process_time()
    with Progress(f"{name} seed {seed}", total=num_steps, unit="steps") as bar:
        for step in range(1, num_steps + 1):
            rows = torch.randint(len(training.scenes), (_BATCH_SIZE,))
            loss = caption_loss(model, training, rows, torch.randint(2, (_BATCH_SIZE,)))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), run.optimizer.clip_norm)
            optimizer.step(optimizer.gradients(), learning_rate(step, run, num_steps))
            bar.update(1, [f"loss {loss.item():.3f}"])
            if step % 500 == 0 or step == num_steps:
                valid_loss = mean_loss(model, valid)
                say(f"{name} seed {seed} step {step}: validation loss {valid_loss:.3f}")
    return model.eval(), time.process_time() - start


def caption_loss(model: Model, examples: Examples, rows: Tensor, which: Tensor) -> Tensor:
    """Return the loss of one caption of each of [B] pictures, in nats per token."""
    target_input, target = examples.target(rows, which)
    is_token = target != PAD
    inputs = (*examples.source(rows), target_input)
    samples = None
    if isinstance(model, Recurrent):
        hidden, _, samples = (each[is_token] for each in model.decode(*inputs))
    else:
        hidden = model(*inputs)[is_token]
    nll = torch.empty(len(hidden))
    loss, _ = label_smoothed_cross_entropy(
        hidden,
        model.output_weight,
        target[is_token],
        label_smoothing=0.0,
        num_tokens=len(hidden),
        token_nll=nll,
    )
    if samples is not None and samples.numel():  # hard attention is trained
        loss = loss + reinforce_loss(samples, nll)
    return loss / len(hidden)


@torch.no_grad()
def mean_loss(model: Model, examples: Examples) -> float:
    """Return the mean loss of the first captions, in nats per token."""
    rows = torch.arange(len(examples.scenes))
    return float(caption_loss(evaluation_copy(model), examples, rows, torch.zeros_like(rows)))


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table in percent: the mean over seeds, and of the exact captions all."""
    titles = ("test", "captioner", "BLEU", "exact", "but for where", "on shapes", "CPU seconds")
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for test in TESTS:
        for name in CAPTIONERS:
            runs = [run for key, run in results.items() if key.startswith(f"{name} ")]
            if runs:
                figures = [[run[test][each] for run in runs] for each in FIGURES]
                cells = [f"{statistics.mean(each):.1f}" for each in figures]
                cells[1] += f" ({', '.join(map(str, figures[1]))})"
                seconds = statistics.mean(run["cpu_seconds"] for run in runs)
                lines.append(f"| {test} | `{name}` | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


if __name__ == "__main__":
    main()
