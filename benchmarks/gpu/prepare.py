"""Prepare what the stages of a GPU session read, on a machine with a network.

    benchmarks/gpu_prepare.sh build/gpu-prepared

The folder holds wheels of packages that the GPU machine may lack (all but torch, numpy and Triton,
for Linux on x86-64), a dataset, token ids with the sentence lengths of WMT16, and the losses of
`small` on a CPU. It takes less than 60 MiB.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from common import Setup, reference_losses
from session import requirements

from tfm.config import BinarizeConfig, SubwordConfig
from tfm.data.manifest import Manifest
from tfm.data.synthetic.corpus import Split, generate_pairs
from tfm.data.synthetic.token_dataset import write_token_dataset
from tfm.stages.binarize import binarize
from tfm.stages.learn_bpe import learn_bpe
from tfm.storage.files import write_json

# Only the GPU machine can choose these; its other packages may be missing.
_WITHOUT = ("torch", "numpy")
_FOR_TESTS = ("pytest", "pytest-xdist", "hypothesis")
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
_NUM_TOKEN_PAIRS = 70_000
_MAX_MIB = 60


def main(
    folder: Annotated[Path, typer.Argument(help="Folder to write; an older one is replaced.")],
    data: Annotated[
        Path | None, typer.Option(help="Dataset of tfm prepare to use instead of Multi30k.")
    ] = None,
    python: Annotated[str, typer.Option(help="Version of Python on the GPU machine.")] = "3.12",
) -> None:
    """Prepare a GPU session."""
    shutil.rmtree(folder, ignore_errors=True)
    _download_wheels(folder / "wheels", python)
    if data is None:
        command = [sys.executable, "-m", "tfm", "prepare", "multi30k-en-de", "--out"]
        subprocess.run([*command, folder / "data"], check=True)
    else:
        shutil.copytree(data, folder / "data", ignore=shutil.ignore_patterns("raw", "downloads"))
    write_token_dataset(folder / "tokens", num_pairs=_NUM_TOKEN_PAIRS)
    setup = Setup(prepared=folder, scratch=folder / "scratch", dry_run=False)
    write_json(folder / "losses.json", reference_losses(setup, steps=50))
    shutil.rmtree(setup.scratch)
    mebibytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    print(f"{folder} takes {mebibytes:.0f} MiB", file=sys.stderr)
    if mebibytes > _MAX_MIB:
        raise SystemExit(f"more than {_MAX_MIB} MiB: give a smaller dataset with --data")


def write_tiny(folder: Path) -> None:
    """Write the datasets of a dry run."""
    manifest = Manifest.create(folder / "data", name="tiny", source="en", target="de", settings={})
    sizes: dict[Split, int] = {"train": 300, "valid": 8, "test": 40}
    for split, size in sizes.items():
        pairs = list(generate_pairs(split, num_pairs=size, seed=1))
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            manifest.text_path(split, language).write_text(text, encoding="utf-8")
    learn_bpe(folder / "data", SubwordConfig(threads=1, vocab_size=400))
    binarize(folder / "data", BinarizeConfig(threads=1))
    write_token_dataset(folder / "tokens", num_pairs=500, vocab_size=400)


def _download_wheels(folder: Path, python: str) -> None:
    """Download the dependencies of tfm and of its tests, with their own dependencies."""
    wanted = [str(each) for each in requirements() if each.name not in _WITHOUT]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    platforms = [flag for name in _PLATFORMS for flag in ("--platform", name)]
    target = ["--only-binary", ":all:", "--python-version", python, *platforms]
    subprocess.run([*pip, *target, "--dest", folder, *wanted, *_FOR_TESTS], check=True)
    for name in _WITHOUT:
        for wheel in folder.glob(f"{name}-*.whl"):
            wheel.unlink()


if __name__ == "__main__":
    typer.run(main)
