"""tfm models: the models on the disk, with what their folders say about them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import Flag, command
from tfm.disk.paths import MODELS_ROOT, RUNS_ROOT, existing_folder, where_instead
from tfm.errors import UsageError
from tfm.reporting import Result, printable, say
from tfm.table import Table

if TYPE_CHECKING:
    from tfm.training.model_summaries import ModelSummary


class Listing(list[Any], Result):
    """Runs or models, and how they are printed: as a table, in a pipe one a line."""

    def __init__(self, name: str, items: Iterable[Any], groups: Sequence[Any] = ()) -> None:
        super().__init__(items)
        self._name, self._groups = name, groups

    def summary(self) -> list[str]:
        """Return a warning for each that is damaged."""
        return [f"warning: {each.problem}" for each in self if each.problem is not None]

    def lines(self, columns: int | None) -> "Iterator[Table]":
        """Yield a table, which ends with the groups, unless there are none."""
        cells = (each.cells() for each in (*self, *self._groups))
        rows = [{name: printable(cell) for name, cell in row.items()} for row in cells]
        if rows:
            yield Table.of(rows)

    def record(self) -> dict[str, Any]:
        """Return all as JSON objects, with their groups if there are some."""
        record = {self._name: [asdict(each) for each in self]}
        return record | ({"groups": [*map(asdict, self._groups)]} if self._groups else {})


Folders = Annotated[tuple[Path, ...], existing_folder, Flag("DIR")]


@command()
def models(folders: Folders = ()) -> "list[ModelSummary]":
    """List the models on the disk: the best checkpoints of runs, averaged and exported models.

    BLEU, or bracket F1 of parsers, is on the validation text. "~" marks an average of checkpoints:
    the score is the best of its checkpoints.

    Examples::

        tfm models
        tfm models /data/models --json

    Args:
        folders: Folders to search (default: runs/ and models/).

    Raises:
        UsageError: A folder does not exist.
    """
    from tfm.training.model_summaries import find_models, summarize_model

    named = folders_or_default(folders, RUNS_ROOT, MODELS_ROOT)
    found = Listing("models", (summarize_model(model) for model in find_models(named)))
    if not found:
        say_none("model", named)
    return found


def folders_or_default(folders: Sequence[Path], *roots: Path) -> Sequence[Path]:
    """Return the named folders, or the roots that exist; raise UsageError if none does."""
    present = folders or [root for root in roots if root.is_dir()]
    if not present:
        raise UsageError(f"there is no {_listed(roots)} here: name the folders to search")
    return present


def say_none(kind: str, folders: Sequence[Path]) -> None:
    """Print that there is no run or model in some folders, and what to do."""
    advice = where_instead(folders[0], kind) or "start with tfm train"
    say(f"{kind}s: none in {_listed(folders)}: {advice}")


def _listed(folders: Sequence[Path]) -> str:
    return " or ".join(f"{folder}/" for folder in folders)
