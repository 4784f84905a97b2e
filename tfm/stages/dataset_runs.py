"""The runs of a dataset, which do not resume once its token ids have changed."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tfm.dataset.parallel import DatasetIndex
from tfm.disk.files import is_same_file
from tfm.disk.paths import RUNS_ROOT
from tfm.errors import DETAIL, CheckpointError, DataError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints, recorded_runs, trained_on
from tfm.reporting import say
from tfm.vocabulary.subword import Vocabulary


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
    """Return the runs that could be resumed on a dataset, from runs/ and from its own record."""
    recorded = recorded_runs(data_dir)
    found = [run for run in sorted(RUNS_ROOT.glob("*")) if _is_run_on(data_dir, run)]
    known = {str(run.absolute()): run for run in found}
    try:
        index = DatasetIndex.load(data_dir / "bin")
        if index.fingerprint != Vocabulary.load(data_dir).fingerprint:
            return []
        content = (index.fingerprint, index.checksum("train"))
        return [
            known.get(path, Path(path))
            for path in {**known, **recorded}
            if checkpoints(Path(path)) and (recorded.get(path) or _vocabulary_of(path)) in content
        ]
    except DataError:
        return []


def _vocabulary_of(run: str) -> str | None:
    """Return the fingerprint of a run's vocabulary; None if all its checkpoints are damaged."""
    for path in reversed(checkpoints(Path(run))):
        with suppress(CheckpointError):
            return ModelFolder(path).info.fingerprint
    return None


def _is_run_on(data_dir: Path, run: Path) -> bool:
    try:
        folder = trained_on(run)
        return folder is not None and is_same_file(folder, data_dir)
    except (DataError, OSError) as error:
        say(f"warning: it is unknown whether {run} needs {data_dir}: {error}")
        return False
