"""What the steps of a GPU session share: their settings, trainings, engines and results."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
from same_search import Engine

from tfm.config import InferencePrecision, Kernels, Precision, RunConfig, run_config
from tfm.data.manifest import Manifest
from tfm.device.compute import choose_compute
from tfm.distributed.group import Group
from tfm.stages.train import train
from tfm.stages.training_data import open_data
from tfm.stages.training_run import TrainingRun
from tfm.storage.checkpoint.run_folder import find_model

Device = Literal["cpu", "cuda"]

NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
# One microbatch per step of 25,000 tokens per side.
WHOLE_BATCH = {"max_tokens": 65_536}
_TINY: dict[str, dict[str, Any]] = {
    "model": {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
    },
    "batching": {"batch_tokens": 600, "bucket_tokens": 100, "max_tokens": 600},
}
_NUM_TINY_LINES = 40
# Only losses are of interest: no score, one validation, no averaged model.
_QUIET = {"best_metric": "loss", "validation_beam": 0, "average": False, "log_steps": 1}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The folders of a session, and whether it is a dry run with tiny sizes on a CPU."""

    prepared: Path
    scratch: Path
    dry_run: bool

    @property
    def device(self) -> Device:
        """The device to check."""
        return "cpu" if self.dry_run else "cuda"

    @property
    def data(self) -> Path:
        """The dataset with text."""
        return self.prepared / "data"

    @property
    def tokens(self) -> Path:
        """The dataset of random tokens with the sentence lengths of WMT16."""
        return self.prepared / "tokens"

    def run_config(self, arch: str, **changes: Mapping[str, Any]) -> RunConfig:
        """Return the settings of a run on the device, with some sections changed."""
        changed = {name: dict(section) for name, section in changes.items()}
        changed["training"] = {"device": self.device, **changed.get("training", {})}
        if self.dry_run:
            for name, section in _TINY.items():
                changed[name] = {**changed.get(name, {}), **section}
        return run_config(arch, changed)

    def lines(self) -> list[str]:
        """Return the source side of the test set; a dry run takes its first lines."""
        manifest = Manifest.load(self.data)
        text = manifest.text_path("test", manifest.source).read_text(encoding="utf-8")
        lines = [line for line in text.split("\n") if line.strip()]
        return lines[:_NUM_TINY_LINES] if self.dry_run else lines


class Check(NamedTuple):
    """A value with its limit."""

    name: str
    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the value is a number within the limit."""
        return self.value <= self.limit

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2g} ({'≤' if self.passed else 'ABOVE'} {self.limit:g})"


def result_of(checks: Sequence[Check], **figures: Any) -> dict[str, Any]:
    """Return the result of a step as JSON values."""
    return {
        "summary": "; ".join(map(str, checks)),
        "passed": all(check.passed for check in checks),
        "checks": [check._asdict() for check in checks],
        **figures,
    }


def run_step(*functions: Callable[[Setup], dict[str, Any]]) -> None:
    """Run the function that the command line names; the exit status is 1 if a check fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=[function.__name__ for function in functions])
    parser.add_argument("--prepared", type=Path, required=True, help="folder of gpu_prepare.sh")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for runs")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU")
    options = vars(parser.parse_args())
    chosen = options.pop("step")
    [function] = (each for each in functions if each.__name__ == chosen)
    result = function(Setup(**options))
    print(json.dumps(result))
    if not result["passed"]:
        raise SystemExit(1)


def train_losses(
    setup: Setup,
    name: str,
    *,
    steps: int,
    device: Device | None = None,
    kernels: Kernels = "fast",
    precision: Precision = "auto",
    dropout: bool = False,
    cuda_graphs: bool = False,
    batching: Mapping[str, Any] | None = None,
) -> list[float]:
    """Train `small`, or resume it, in a folder of this name; return the loss of each step."""
    training = {
        "kernels": kernels,
        "cuda_graphs": cuda_graphs and not setup.dry_run,  # a CPU has none
        "precision": precision,
        "device": device or setup.device,
    }
    limits = {"max_steps": steps, "checkpoint_steps": steps}
    model = {} if dropout else NO_DROPOUT
    run = setup.run_config(
        "small",
        model=model,
        batching=batching or {},
        training={**_QUIET, **training, **limits},
    )
    run_dir = setup.scratch / name
    with without_reports():
        train(setup.data, run_dir, run)
    return logged_losses(run_dir)


def logged_losses(run_dir: Path) -> list[float]:
    """Return the losses in metrics.jsonl."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["loss"] for record in map(json.loads, lines) if record["kind"] == "train"]


def reference_losses(setup: Setup, *, steps: int) -> dict[str, list[float]]:
    """Return the losses of plain torch in fp32 on a CPU, without dropout."""
    found = train_losses(
        setup, "reference", steps=steps, device="cpu", kernels="plain", precision="fp32"
    )
    return {"losses": found}


def new_training(
    setup: Setup,
    run: RunConfig,
    name: str,
    *,
    data: Path | None = None,
    group: Group | None = None,
) -> TrainingRun:
    """Start a training without validation in a folder of this name, by default on random tokens."""
    compute = choose_compute(setup.device, run.training.precision, trains=True)
    opened = replace(open_data(data or setup.tokens, run), valid=None)
    run_dir = setup.scratch / name
    run_dir.mkdir(parents=True, exist_ok=True)
    return TrainingRun(run_dir, opened, compute, group=group or Group())


def slot_engine(setup: Setup, run_dir: Path, precision: InferencePrecision) -> Engine:
    """Load the newest model of a run for the search in slots."""
    in_slots = setup.device == "cpu"
    folder = find_model(run_dir)
    return Engine(folder, device=setup.device, in_slots=in_slots, precision=precision)


def without_reports() -> AbstractContextManager[Any]:
    """Return a context in which trainings draw no report, which takes longer than some steps."""
    return mock.patch.object(TrainingRun, "_write_report")


def without_graphs() -> AbstractContextManager[Any]:
    """Return a context in which new slots launch each operation by itself."""
    return mock.patch("tfm.search.slot_search.recorded", lambda function, _device: function)
