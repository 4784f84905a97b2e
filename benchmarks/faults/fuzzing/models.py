"""Readers of models: for translation, averaging and resumed training."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from fuzzing.damage import change_json, change_model, change_state, change_toml, insert_snippet
from fuzzing.datasets import make_dataset
from fuzzing.reader import Reader, as_text, file_hashes, tfm

# A run of three steps, and later a fourth.
_TRAINING = (
    *("train", "data", "--run", "run", "--arch", "tiny", "--device", "cpu", "--precision", "fp32"),
    *("--num-encoder-layers", "1", "--num-decoder-layers", "1", "--d-model", "16", "--d-ff", "16"),
    *("--num-heads", "2", "--batch-tokens", "500", "--bucket-tokens", "100", "--seed", "3"),
    *("--checkpoint-steps", "1", "--best-metric", "loss", "--validation-beam", "0"),
    *("--log-steps", "1", "--average-last", "2"),
)


def make_run(folder: Path) -> None:
    """Make a small dataset, a finished run and a text to translate."""
    make_dataset(folder)
    tfm(*_with_paths(folder, (*_TRAINING, "--max-steps", "3")))
    (folder / "in.en").write_bytes(b"".join(as_text(0).splitlines(keepends=True)[:3]))
    (folder / "start.de").write_bytes(b"\n\n\n")


def _with_paths(folder: Path, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the full paths of the folders "data" and "run"."""
    return [str(folder / word) if word in ("data", "run") else word for word in arguments]


def _read_to_translate(folder: Path) -> str:
    limits = ("--beam", "1", "--max-extra-length", "1", "--max-source-length", "20")
    model = "run/checkpoints/step-00000003"
    tfm("generate", model, "--input", "in.en", "--prefix", "start.de", *limits)
    return (folder.parent / "log.out").read_text(errors="surrogateescape")


def _read_to_average(folder: Path) -> str:
    tfm("average", "run", "--last", "2", "--out", "averaged")
    return file_hashes(folder / "averaged", "model.safetensors")


def _read_to_train(folder: Path) -> str:
    tfm(*_TRAINING, "--max-steps", "4")
    weights = folder / "run" / "checkpoints" / "step-00000004" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def _seal(folder: Path) -> None:
    """Give the checkpoints of a run the checksums of their files, as an attacker would."""
    for path in folder.glob("run/checkpoints/*/config.json"):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            record = json.loads(path.read_bytes())
            record.pop("checksum", None)
            for file in path.parent.iterdir():
                if file.name in record["sha256"]:
                    record["sha256"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
            path.write_text(json.dumps(record))


def _read_hostile_to_translate(folder: Path) -> str:
    _seal(folder)
    return _read_to_translate(folder)


def _read_hostile_to_average(folder: Path) -> str:
    _seal(folder)
    return _read_to_average(folder)


def _read_hostile_to_train(folder: Path) -> str:
    _seal(folder)
    return _read_to_train(folder)


_MODEL = ("model.safetensors", "bpe.model", "config.json")


def _checkpoint(step: int, names: Sequence[str]) -> dict[str, tuple]:
    files = (f"run/checkpoints/step-{step:08d}/{name}" for name in names)
    return {file: (change_json,) if file.endswith(".json") else () for file in files}


def _hostile_checkpoint(step: int, *, has_state: bool = False) -> dict[str, tuple]:
    folder = f"run/checkpoints/step-{step:08d}"
    files = {f"{folder}/config.json": (change_json, change_model)}
    return files | ({f"{folder}/training.safetensors": (change_state,)} if has_state else {})


MODEL_READERS: Sequence[Reader] = (
    Reader(
        name="a model to translate with",
        files=_checkpoint(3, _MODEL),
        make=make_run,
        read=_read_to_translate,
        is_checked=True,
    ),
    Reader(
        name="text to translate",
        files=dict.fromkeys(("in.en", "start.de"), (insert_snippet,)),
        make=make_run,
        read=_read_to_translate,
        may_be_pipe=False,
    ),
    Reader(
        name="checkpoints to average",
        files=_checkpoint(2, _MODEL) | _checkpoint(3, _MODEL),
        make=make_run,
        read=_read_to_average,
        is_checked=True,
    ),
    Reader(
        name="a run to resume",
        files=_checkpoint(3, (*_MODEL, "training.safetensors"))
        | {"run/config.toml": (change_toml,), "run/metrics.jsonl": (insert_snippet,)},
        make=make_run,
        read=_read_to_train,
        is_checked=True,
    ),
    Reader(
        name="a hostile model to translate with",
        files=_hostile_checkpoint(3),
        make=make_run,
        read=_read_hostile_to_translate,
        has_bytes=False,
        may_be_no_file=False,
    ),
    Reader(
        name="hostile checkpoints to average",
        files=_hostile_checkpoint(2) | _hostile_checkpoint(3),
        make=make_run,
        read=_read_hostile_to_average,
        has_bytes=False,
        may_be_no_file=False,
    ),
    Reader(
        name="a hostile run to resume",
        files=_hostile_checkpoint(3, has_state=True),
        make=make_run,
        read=_read_hostile_to_train,
        has_bytes=False,
        may_be_no_file=False,
    ),
)
