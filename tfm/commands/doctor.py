"""tfm doctor: what could go wrong on this machine, before it does."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfm.commands.declaration import command

if TYPE_CHECKING:
    from tfm.applications.doctor.checks import Finding


@command()
def doctor() -> "Iterator[Finding]":
    """Check this machine: Python, torch, arithmetic, cores, memory, disk, files and processes.

    The exit code is 1 if there is a problem.

    Example: tfm doctor

    Yields:
        The findings, as soon as they are there.
    """
    from tfm.applications.doctor.checks import diagnose

    return diagnose()
