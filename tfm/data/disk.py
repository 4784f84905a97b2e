"""What a dataset will take of the disk, said before the work that takes it."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfm.errors import DataError
from tfm.reporting import say

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """What one part of the work will write.

    Attributes:
        folder: Where; it need not exist yet.
        content: What, in a word or two.
        num_bytes: Approximate size.
        is_least: Whether the size is a lower bound.
        remedy: How to have it written elsewhere.
    """

    folder: Path
    content: str
    num_bytes: int
    is_least: bool = False
    remedy: str


def check_disks(needs: Sequence[DiskNeed]) -> None:
    """Say what will be written to each disk and what is free there.

    Raises:
        DataError: A disk is too small.
    """
    by_disk: dict[int, list[DiskNeed]] = {}
    for need in needs:
        if need.num_bytes or need.is_least:
            by_disk.setdefault(_disk(need.folder), []).append(need)
    too_small = []
    for parts in by_disk.values():
        total = sum(part.num_bytes for part in parts)
        free = shutil.disk_usage(_existing(parts[0].folder)).free
        contents = ", ".join(map(_shown_part, parts))
        stated = f"{_outermost(parts)} will take {_shown_total(parts)} ({contents})"
        if total > free:
            remedy = _remedy(parts, total - free)
            too_small.append(f"{stated}, but only {_shown_size(free)} are free there: {remedy}")
        else:
            say(f"disk: {stated}; {_shown_size(free)} are free there")
    if too_small:
        raise DataError("; ".join(too_small))


def _remedy(parts: Sequence[DiskNeed], num_bytes: int) -> str:
    """What takes away at least so many bytes: one thing, if there is one that does, or all."""
    removed: dict[str, int] = {}
    for part in parts:
        removed[part.remedy] = removed.get(part.remedy, 0) + part.num_bytes
    enough = [remedy for remedy, size in removed.items() if size >= num_bytes]
    return ", or ".join(enough) or ", and ".join(removed)


def _shown_size(num_bytes: int) -> str:
    for size, unit in _UNITS:
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


def _shown_total(parts: Sequence[DiskNeed]) -> str:
    total = sum(part.num_bytes for part in parts)
    if not any(part.is_least for part in parts):
        return f"about {_shown_size(total)}"
    return f"at least {_shown_size(total)}" if total else "an unknown amount"


def _shown_part(part: DiskNeed) -> str:
    if part.is_least and not part.num_bytes:
        return f"{part.content} of unknown size"
    least = "at least " if part.is_least else ""
    return f"{part.content} {least}{_shown_size(part.num_bytes)}"


def _outermost(parts: Sequence[DiskNeed]) -> str:
    """The folders, without those that lie in one of the others."""
    folders = list(dict.fromkeys(part.folder for part in parts))
    outer = [f for f in folders if not any(other in f.parents for other in folders)]
    return " and ".join(map(str, outer))


def _disk(folder: Path) -> int:
    return _existing(folder).stat().st_dev


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
