"""tfm runs: run folders → a list of their states, and a page with their curves."""

from typing import TYPE_CHECKING

from tfm.commands.declaration import NewFile, command
from tfm.commands.models import Folders, Listing, folders_or_default, say_none
from tfm.disk.paths import RUNS_ROOT

if TYPE_CHECKING:
    from tfm.training.run_summaries import RunSummary


@command()
def runs(
    folders: Folders = (),
    *,
    out: NewFile = None,
) -> "list[RunSummary]":
    """List runs with state, step, best validation, speed and age, the newest first.

    Runs that differ only by --seed have a line of their mean and its deviation, too. Run folders
    that are named are also drawn: their curves and different settings in one page.

    A run is running if a process on this machine holds its lock. A run on another machine counts as
    running if its newest metrics are at most --stall-minutes old, or three times the interval
    between the last two lines.

    Examples::

        tfm runs
        tfm runs runs/multi30k-en-de-tiny runs/multi30k-en-de-small

    Args:
        folders: Run folders, or folders that have runs below them (default: runs/).
        out: Page of curves to write (default: runs.html for named runs, none with --json).

    Raises:
        UsageError: A folder does not exist, or a page cannot show as many runs.
    """
    from tfm.training.run_summaries import draw_runs, find_runs, seed_groups, summarize_run

    named = folders_or_default(folders, RUNS_ROOT)
    found = [summarize_run(run) for run in find_runs(named)]
    if out is not None:
        draw_runs(found, out)
    if not found:
        say_none("run", named)
    return Listing("runs", sorted(found, key=lambda run: run.age_seconds), seed_groups(found))
