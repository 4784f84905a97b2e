"""Check free disk space before a dataset is written."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from tfm.errors import DataError
from tfm.reporting import say


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """The disk space that one kind of output will take.

    Attributes:
        folder: The output folder, which need not exist yet.
        content: Name of the output in messages.
        num_bytes: Approximate size, or a lower bound if `is_lower_bound`.
        remedy: What the user can do to write the output to another disk.
    """

    folder: Path
    content: str
    num_bytes: int
    is_lower_bound: bool = False
    remedy: str


def check_disks(needs: Sequence[DiskNeed]) -> None:
    """Report what will be written to each disk and how much is free there.

    Raises:
        DataError: A disk is too small.
    """
    needs_per_disk: dict[int, list[DiskNeed]] = {}
    for need in needs:
        if need.num_bytes or need.is_lower_bound:
            needs_per_disk.setdefault(_disk(need.folder), []).append(need)
    problems = []
    for disk_needs in needs_per_disk.values():
        total = sum(need.num_bytes for need in disk_needs)
        free = shutil.disk_usage(existing_parent(disk_needs[0].folder)).free
        folders = dict.fromkeys(need.folder for need in disk_needs)
        outermost = [str(path) for path in folders if folders.keys().isdisjoint(path.parents)]
        summary = f"{' and '.join(outermost)} will take {_format_needs(disk_needs)}"
        if total > free:
            remedy = _remedy(disk_needs, total - free)
            problems.append(f"{summary}, but only {decimal(free)} are free there: {remedy}")
        else:
            say(f"disk: {summary}; {decimal(free)} are free there")
    if problems:
        raise DataError("; ".join(problems))


def _remedy(needs: Sequence[DiskNeed], num_bytes: int) -> str:
    """Return the remedies that free enough bytes alone, or else all together."""
    freed: dict[str, int] = {}
    for need in needs:
        freed[need.remedy] = freed.get(need.remedy, 0) + need.num_bytes
    sufficient = [remedy for remedy, size in freed.items() if size >= num_bytes]
    return ", or ".join(sufficient) or ", and ".join(freed)


def _format_needs(needs: Sequence[DiskNeed]) -> str:
    total = sum(need.num_bytes for need in needs)
    prefix = "at least" if any(need.is_lower_bound for need in needs) else "about"
    contents = ", ".join(
        f"{need.content} {'at least ' * need.is_lower_bound}{decimal(need.num_bytes)}"
        if need.num_bytes
        else f"{need.content} of unknown size"
        for need in needs
    )
    return f"{f'{prefix} {decimal(total)}' if total else 'an unknown amount'} ({contents})"


def _disk(folder: Path) -> int:
    return existing_parent(folder).stat().st_dev


def existing_parent(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
