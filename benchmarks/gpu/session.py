"""Run a stage of a GPU session: a (right?), b (training) or c (decoding).

    benchmarks/gpu_session.sh b --prepared build/gpu-prepared --out build/gpu-session

Steps run by value, each with its own limit of the time that is left. After each of them, OUT/b.json
holds all results, and OUT/b.log the output. A table comes last; the exit status is 1 unless all
steps have passed. A dry run runs each step with tiny sizes on a CPU.
"""

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run the stage."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tfm-gpu-") as name:
        scratch = Path(name)
        site = scratch / "site"
        if options.prepared is not None:
            _install_missing(sorted((options.prepared / "wheels").glob("*.whl")), site)
            sys.path.insert(0, str(site))
        all_passed = _run(options, scratch, site)
    raise SystemExit(0 if all_passed else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=["a", "b", "c"])
    parser.add_argument("--prepared", type=Path, help="folder of gpu_prepare.sh")
    parser.add_argument(
        "--out", type=Path, default=Path("build/gpu-session"), help="folder of results"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of the stage")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU")
    options = parser.parse_args()
    if options.prepared is None and not options.dry_run:
        parser.error("--prepared is missing: write the folder with gpu_prepare.sh")
    if options.prepared is not None and not (options.prepared / "tokens").is_dir():
        parser.error(f"{options.prepared} is no folder of gpu_prepare.sh")
    return options


def requirements() -> list[Any]:
    """Return tfm's dependencies, as `packaging.requirements.Requirement`."""
    from packaging.requirements import Requirement

    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parsed = map(Requirement, project["dependencies"])
    return [each for each in parsed if each.marker is None or each.marker.evaluate()]


def unmet_requirements() -> list[str]:
    """Return the names of tfm's dependencies that are missing or have a version that is too old."""
    return [
        each.name
        for each in requirements()
        if (found := _version(each.name)) is None or not each.specifier.contains(found)
    ]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _install_missing(wheels: Sequence[Path], site: Path) -> None:
    """Install the wheels of packages that are missing or too old into a folder."""
    unmet = {name.replace("-", "_") for name in unmet_requirements()}
    names = {wheel: wheel.name.split("-")[0].lower() for wheel in wheels}
    needed = [wheel for wheel, name in names.items() if name in unmet or _version(name) is None]
    if needed:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        flags = ["--no-index", "--no-deps", "--no-compile", "--target", str(site)]
        subprocess.run([*pip, *flags, *needed], check=True)


def _run(options: argparse.Namespace, scratch: Path, site: Path) -> bool:
    """Run the steps, print the table, and return whether all have passed."""
    sys.path.insert(0, str(_ROOT / "benchmarks"))
    import runner
    import stages
    from common import Setup
    from runs import markdown

    if not options.dry_run and not stages.has_gpu():
        raise SystemExit("torch sees no GPU: run this on a machine with one, or with --dry-run")
    prepared = options.prepared or scratch / "prepared"
    if options.prepared is None:
        from prepare import write_tiny

        write_tiny(prepared)
    setup = Setup(prepared=prepared.resolve(), scratch=scratch / "work", dry_run=options.dry_run)
    setup.scratch.mkdir()
    paths = [str(site), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    outcomes = runner.run_stage(
        stages.STAGES[options.stage](setup),
        options.out / options.stage,
        seconds=60 * options.minutes,
        environment={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        dry_run=options.dry_run,
    )
    for each in outcomes:
        for text in filter(None, (each.stdout, each.log_tail)):
            print(f"{each.name}, {each.status}:\n{text}\n")
    rows = [[each.name, each.status, f"{each.seconds:.0f}", each.summary] for each in outcomes]
    print(markdown(["step", "outcome", "seconds", "result"], rows))
    return runner.succeeded(outcomes)


if __name__ == "__main__":
    main()
