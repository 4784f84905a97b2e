"""Environments of the other libraries: each its own packages, all the torch that tfm runs."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import torch


class Library(NamedTuple):
    """What a library needs to train or translate.

    Attributes:
        package: It, installed without what it asks for: some ask for a torch of years ago. None if
            tfm's own environment has it.
        needs: What it does need, besides torch and what comes with it in tfm's environment.
        from_source: Whether its source is laid beside the packages as it is, without a build.
    """

    package: str | None
    needs: tuple[str, ...] = ()
    from_source: bool = False


LIBRARIES = {
    # The source archive of the last release lacks files of its extensions in C++, which serve
    # generation alone.
    "fairseq": Library(
        "fairseq==0.12.2",
        ("bitarray", "cffi", "hydra-core<1.1", "omegaconf<2.1", "regex", "sacrebleu", "tqdm"),
        from_source=True,
    ),
    "opennmt": Library(
        "OpenNMT-py==3.5.1",
        ("configargparse", "pyonmttok==1.37.1", "pyyaml", "regex", "sacrebleu", "six", "tqdm"),
    ),
    "joeynmt": Library(
        "joeynmt==2.3.0",
        (
            "importlib_metadata",
            "packaging",
            "pyyaml",
            "sacrebleu",
            "sentencepiece",
            "subword-nmt",
            "tensorboard",
            "tqdm",
        ),
    ),
    "marian": Library("transformers==5.23.0", ("huggingface-hub", "regex", "tokenizers")),
    "torch": Library(None),
    "ctranslate2": Library(None),  # which tfm export writes with
}


def environment(name: str, envs_dir: Path) -> Path:
    """Make a library's environment, if there is none yet.

    Args:
        name: The library.
        envs_dir: The folder of all environments.

    Returns:
        Its Python.
    """
    library = LIBRARIES[name]
    if library.package is None:
        return Path(sys.executable)
    folder = envs_dir / name
    python = folder / "bin" / "python"
    ready = folder / "ready"
    wanted = " ".join((library.package, *library.needs))
    if not (ready.is_file() and ready.read_text() == wanted):
        print(f"{name}: making its environment, {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        envs_dir.mkdir(parents=True, exist_ok=True)
        try:
            _make(folder, python, library)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{name}: no environment: {error}: leave it out with --only") from None
        ready.write_text(wanted)
    return python


def _make(folder: Path, python: Path, library: Library) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    # Comes after the environment's own packages, so that those it needs in other versions win.
    (site_packages / "torch-of-tfm.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if library.from_source:
        # Later ones refuse what the packages of its time say of themselves.
        subprocess.run([*pip, "install", "pip<24.1"], check=True)
    subprocess.run([*pip, "install", *library.needs], check=True)
    assert library.package is not None
    if not library.from_source:
        subprocess.run([*pip, "install", "--no-deps", library.package], check=True)
        return
    name = library.package.partition("==")[0]
    download = ["download", "--no-deps", "--no-binary", name, "--dest", folder, library.package]
    subprocess.run([*pip, *download], check=True)
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz") / name
    shutil.copytree(source, site_packages / name)
