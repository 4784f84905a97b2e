"""tfm doctor: what could go wrong on this machine, before it does."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfm.commands.declaration import command
from tfm.reporting import Result
from tfm.table import Table

if TYPE_CHECKING:
    from tfm.applications.doctor.checks import Finding


class Diagnosis(Result):
    """Findings, which are printed as soon as they are there."""

    def __init__(self, findings: "Iterable[Finding]") -> None:
        self._findings, self._levels = findings, Counter[str]()

    def _counted(self) -> "Iterator[Finding]":
        for each in self._findings:
            self._levels[each.level] += 1
            self.passed = not self._levels["problem"]
            yield each

    def lines(self, columns: int | None) -> Iterator[str | Table]:
        """Yield what was found, and what to do."""
        for each in self._counted():
            yield Table([(f"{each.level:<8} {each.check:<9}", each.message)])
            if each.remedy:
                yield f"{'':<19} → {each.remedy}"

    def record(self) -> Any:
        """Return all findings."""
        return {"findings": [*map(asdict, self._counted())]}

    def notes(self) -> list[str]:
        """Return the numbers of problems and warnings."""
        return [f"doctor: problems: {self._levels['problem']}, warnings: {self._levels['warning']}"]


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
