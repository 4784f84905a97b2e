"""The command that checks this machine."""

import typer

from tfm.cli.app import JSON, app
from tfm.cli.help import Command
from tfm.reporting import say


@app.command(cls=Command)
def doctor(json: bool = JSON) -> None:
    """Check this machine: Python, torch, arithmetic, cores, memory, disk, files and processes.

    The exit code is 1 if there is a problem.

    Example: tfm doctor
    """
    from tfm.cli.output import print_findings
    from tfm.stages.doctor import diagnose

    findings = print_findings(diagnose(), as_json=json)
    levels = [finding.level for finding in findings]
    num_problems, num_warnings = levels.count("problem"), levels.count("warning")
    say(f"doctor: problems: {num_problems}, warnings: {num_warnings}")
    if num_problems:
        raise typer.Exit(1)
