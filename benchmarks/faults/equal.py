"""Check that several processes train the same model as one: the same losses, the same BLEU.

    python benchmarks/faults/equal.py data/multi30k-en-de
    python benchmarks/faults/equal.py data/multi30k-en-de --processes 4 -- --shard

Gradients are summed in another order, so losses are equal up to rounding.
"""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parent))
from runs import Data, Options, Out, Training, fail, finish, largest_difference


def main(
    data: Data,
    options: Options = None,
    processes: Annotated[int, typer.Option(help="Number of processes.", min=2)] = 2,
    steps: Annotated[int, typer.Option(help="Steps to train.", min=1)] = 50,
    tolerance: Annotated[float, typer.Option(help="Largest relative difference of a loss.")] = 1e-4,
    out: Out = Path("runs/faults/equal"),
) -> None:
    """Train with one process and with several."""
    shutil.rmtree(out, ignore_errors=True)
    shared = (
        *("--max-steps", str(steps), "--checkpoint-steps", str(steps)),
        # Both draw dropout for the same microbatches.
        *("--num-dropout-shards", str(processes)),
        *("--validation-beam", "1", "--best-metric", "score", *(options or ())),
    )
    one = Training(data=data, run_dir=out / "one", options=(*shared, "--processes", "1"))
    several = Training(
        data=data, run_dir=out / "several", options=(*shared, "--processes", str(processes))
    )
    finish(one)
    finish(several)
    difference = largest_difference(one, several)
    bleu, several_bleu = _bleu(one), _bleu(several)
    print(
        f"{steps} steps with 1 and {processes} processes: losses differ by at most "
        f"{difference:.1e}, BLEU {bleu:.4f} and {several_bleu:.4f}"
    )
    if difference > tolerance or bleu != several_bleu:
        fail("the runs are not equal")


def _bleu(training: Training) -> float:
    return float(training.records()[-1]["bleu"])


if __name__ == "__main__":
    typer.run(main)
