"""tfm doctor: what could go wrong on this machine, before it does."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tfm.commands.declaration import command
from tfm.reporting import Result
from tfm.table import Table

if TYPE_CHECKING:
    from tfm.applications.doctor.checks import Finding


@dataclass(frozen=True)
class Diagnosis(Result):
    """Findings, which are printed as soon as they are there."""

    findings: "Iterable[Finding]"

    def lines(self, columns: int | None) -> Iterator[str | Table]:
        """Yield what was found, and what to do."""
        for each in self.findings:
            yield Table([(f"{each.level:<8} {each.check:<9}", each.message)])
            if each.remedy:
                yield f"{'':<19} → {each.remedy}"

    def record(self) -> Any:
        """Return all findings."""
        return {"findings": [*map(asdict, self.findings)]}


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
