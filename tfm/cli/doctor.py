"""The command that checks this machine."""

import typer

from tfm.cli.flags import Call, add_command
from tfm.commands.doctor import doctor
from tfm.reporting import say


def _doctor(call: Call, /, *, json: bool = False) -> None:
    """Print findings, and how many are problems.

    Args:
        call: Checks this machine.
        json: Print the result as one JSON object.
    """
    from tfm.cli.output import print_findings

    findings = print_findings(call(), as_json=json)
    levels = [finding.level for finding in findings]
    num_problems, num_warnings = levels.count("problem"), levels.count("warning")
    say(f"doctor: problems: {num_problems}, warnings: {num_warnings}")
    if num_problems:
        raise typer.Exit(1)


add_command(doctor, _doctor)
