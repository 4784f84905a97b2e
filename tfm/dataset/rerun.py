"""Whether a step of a dataset runs again, and the runs that could not be resumed if it did."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfm.config import Values
from tfm.config.values import differences
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import DatasetIndex
from tfm.disk.files import is_same_file, read_record, write_record
from tfm.disk.lock import LockedFolderError, lock_folder
from tfm.errors import DETAIL, DataError, UsageError
from tfm.reporting import say
from tfm.vocabulary.subword import Vocabulary

RUNS, RUNS_FORMAT = "runs.json", 1

_MAX_WAIT_SECONDS = 60.0  # for other runs that start
_CHECKSUM = re.compile(r"([0-9a-f]{8})[0-9a-f]{56}")
_TABLES = ("settings", "cleaning", "normalization")  # inputs that are settings by name
_WORDS = {
    "train": "the training text",
    "text": "the training text",
    "subwords": "the subword model",
    "protected": "the protected text",
    "held_out": "the text that is held out",
    "score_models": "a model that scores pairs",
    "scores": "the scores of pairs",
}


@dataclass(frozen=True)
class _DatasetRuns:
    """The record of the runs of a dataset: which content of it each needs to be resumed."""

    data_dir: str
    runs: Mapping[str, str]


def is_due(
    manifest: Manifest,
    step: str,
    inputs: Values,
    *,
    output: Path | None = None,
    command: str | None = None,
    needed: Sequence[str] = (),
    force: bool = False,
) -> bool:
    """Return whether a step has to run: its `inputs`, JSON values, determine what it writes.

    Prints that its `output` is unchanged, or why the `command` writes it again. Refuses to change
    inputs that are `needed` as they were to resume runs, if there are any; `force` only warns.
    """
    what, is_current = f"{command or step}: {output}", manifest.is_current(step, inputs)
    if is_current and not force:
        if output is not None:
            say(f"{what} unchanged")
        return False
    if found := changes(manifest, step, inputs, needed):
        check_runs(manifest.data_dir, found, force=force)
    elif manifest.inputs(step) == inputs and not is_current:
        found = ["its files are gone, or have other sizes"]
    if found and output is not None:
        say(f"{what} again: {'; '.join(found)}")
    return True


def changes(manifest: Manifest, step: str, inputs: Values, names: Sequence[str]) -> list[str]:
    """Describe how some inputs of a step differ from those when it was done, if it was."""
    before, found = manifest.inputs(step), []
    if before is None or all(before.get(name) == inputs.get(name) for name in names):
        return []
    for name in names:
        one, other = before.get(name), inputs.get(name)
        if name in _TABLES and one and other:
            found += differences(*map(_shortened, (one, other)))
        elif one != other and None not in (one, other):
            found.append(f"{_WORDS.get(name, name)} has changed")
    return found or ["it would be made in another way"]


def _shortened(table: Values) -> Values:
    """Return a table with the beginnings of checksums, for messages."""
    return {name: _CHECKSUM.sub(r"\1", str(value)) for name, value in table.items()}


def check_runs(data_dir: Path, changes: Sequence[str], *, force: bool) -> None:
    """Refuse to change the token ids of a dataset that runs need; `force` only warns."""
    runs = ", ".join(map(str, runs_on(data_dir)))
    if runs and not force:
        summary = (
            f"{runs} could not be resumed if {data_dir} changed: keep both with another folder "
            "(tfm prepare --out), or replace the dataset with --force"
        )
        raise UsageError(DETAIL.join([summary, *changes]))
    if runs:
        say(f"warning: {runs} can be resumed only on {data_dir} as it was")


def runs_on(data_dir: Path) -> list[Path]:
    """Return the runs that a dataset records and that could be resumed on it."""
    recorded = recorded_runs(data_dir)
    try:
        index = DatasetIndex.load(data_dir / "bin")
        if index.fingerprint != Vocabulary.load(data_dir).fingerprint:
            return []
        content = (index.fingerprint, index.checksum("train"))
    except DataError:
        return []
    paths = [Path(run) for run, needed in recorded.items() if needed in content]
    here = Path.cwd()
    return [
        path.relative_to(here) if path.is_relative_to(here) else path
        for path in paths
        if any(path.glob("checkpoints/step-*"))  # otherwise, the run starts again
    ]


def record_run(data_dir: Path, run_dir: Path, needed: str) -> None:
    """Write to a dataset, if that is possible, which content of it a run needs to be resumed."""
    # The folder's own lock may be held for hours; that of the token ids only by other runs.
    lock = lock_folder(data_dir / "bin", max_wait_seconds=_MAX_WAIT_SECONDS)
    with suppress(OSError, UsageError, LockedFolderError), lock:
        runs = {**recorded_runs(data_dir), str(run_dir.absolute()): needed}
        record = _DatasetRuns(str(data_dir.absolute()), runs)
        write_record(data_dir / RUNS, record, format_=RUNS_FORMAT)


def recorded_runs(data_dir: Path) -> dict[str, str]:
    """Return the paths of the runs that a dataset records, and what each of them needs.

    There are none if the record is of a dataset that this one is a copy of, or, with a warning, if
    it is damaged.
    """
    try:
        record = read_record(data_dir / RUNS, _DatasetRuns, format_=RUNS_FORMAT, advice="remove it")
    except FileNotFoundError:
        return {}
    except (DataError, OSError) as error:
        say(f"warning: it is unknown which runs need {data_dir}: {error}")
        return {}
    original = Path(record.data_dir)
    is_copy = original.exists() and not is_same_file(original, data_dir)
    return {} if is_copy else dict(record.runs)
