"""Check free disk space before a dataset is written."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfm.errors import DataError
from tfm.reporting import say

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """The disk space that one kind of output will take.

    Attributes:
        folder: The output folder; it need not exist yet.
        content: What is written, in a word or two.
        num_bytes: Approximate size.
        is_least: Whether the size is a lower bound.
        remedy: What the user can do to write it to another disk.
    """

    folder: Path
    content: str
    num_bytes: int
    is_least: bool = False
    remedy: str


def check_disks(needs: Sequence[DiskNeed]) -> None:
    """Report what will be written to each disk and how much is free there.

    Raises:
        DataError: A disk is too small.
    """
    needs_per_disk: dict[int, list[DiskNeed]] = {}
    for need in needs:
        if need.num_bytes or need.is_least:
            needs_per_disk.setdefault(_disk(need.folder), []).append(need)
    problems = []
    for disk_needs in needs_per_disk.values():
        total = sum(need.num_bytes for need in disk_needs)
        free = shutil.disk_usage(_existing(disk_needs[0].folder)).free
        summary = f"{_outermost(disk_needs)} will take {_format_needs(disk_needs)}"
        if total > free:
            remedy = _remedy(disk_needs, total - free)
            problems.append(f"{summary}, but only {_format_size(free)} are free there: {remedy}")
        else:
            say(f"disk: {summary}; {_format_size(free)} are free there")
    if problems:
        raise DataError("; ".join(problems))


def _remedy(needs: Sequence[DiskNeed], num_bytes: int) -> str:
    """Return the remedies that free enough bytes alone, or else all together."""
    freed: dict[str, int] = {}
    for need in needs:
        freed[need.remedy] = freed.get(need.remedy, 0) + need.num_bytes
    sufficient = [remedy for remedy, size in freed.items() if size >= num_bytes]
    return ", or ".join(sufficient) or ", and ".join(freed)


def _format_size(num_bytes: int) -> str:
    for size, unit in _UNITS:
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


def _format_needs(needs: Sequence[DiskNeed]) -> str:
    total = sum(need.num_bytes for need in needs)
    prefix = "at least" if any(need.is_least for need in needs) else "about"
    contents = ", ".join(map(_format_need, needs))
    return f"{f'{prefix} {_format_size(total)}' if total else 'an unknown amount'} ({contents})"


def _format_need(need: DiskNeed) -> str:
    if not need.num_bytes:
        return f"{need.content} of unknown size"
    prefix = "at least " if need.is_least else ""
    return f"{need.content} {prefix}{_format_size(need.num_bytes)}"


def _outermost(needs: Sequence[DiskNeed]) -> str:
    """Name the folders, except those inside another."""
    folders = list(dict.fromkeys(need.folder for need in needs))
    outer = [f for f in folders if not any(parent in f.parents for parent in folders)]
    return " and ".join(map(str, outer))


def _disk(folder: Path) -> int:
    return _existing(folder).stat().st_dev


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
