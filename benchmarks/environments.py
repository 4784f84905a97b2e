"""Virtual environments of the other libraries: separate packages, but tfm's torch."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import torch


class Library(NamedTuple):
    """How to install a library.

    Attributes:
        package: The package, installed without its dependencies, because some require an old
            torch; None if tfm's environment contains it.
        needs: The dependencies that tfm's environment does not provide.
        from_source: Whether the source is copied to the packages without a build.
    """

    package: str | None
    needs: tuple[str, ...] = ()
    from_source: bool = False


LIBRARIES = {
    # The source archive lacks files of the C++ extensions, which only generation needs.
    "fairseq": Library(
        "fairseq==0.12.2",
        ("bitarray", "cffi", "hydra-core<1.1", "omegaconf<2.1", "regex", "sacrebleu", "tqdm"),
        from_source=True,
    ),
    "opennmt": Library(
        "OpenNMT-py==3.5.1",
        ("configargparse", "pyonmttok==1.37.1", "pyyaml", "regex", "sacrebleu", "six", "tqdm"),
    ),
    "marian": Library("transformers==5.23.0", ("huggingface-hub", "regex", "tokenizers")),
    "torch": Library(None),
    "torch_compiled": Library(None),
    "ctranslate2": Library(None),  # installed for tfm export
}


def environment(name: str, envs_dir: Path | None) -> Path:
    """Create a library's environment unless it exists, and return its Python.

    Without a folder for environments, that is the Python of tfm.
    """
    library = LIBRARIES[name]
    if library.package is None or envs_dir is None:
        return Path(sys.executable)
    folder = envs_dir / name
    python = folder / "bin" / "python"
    ready = folder / "ready"
    requirements = " ".join((library.package, *library.needs))
    if not (ready.is_file() and ready.read_text() == requirements):
        print(f"{name}: creating its environment in {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        envs_dir.mkdir(parents=True, exist_ok=True)
        try:
            _create(folder, python, library)
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                f"{name}: could not create its environment: {error}: leave it out with --only"
            ) from None
        ready.write_text(requirements)
    return python


def _create(folder: Path, python: Path, library: Library) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    # A .pth path is searched last, so the environment's own packages take precedence.
    (site_packages / "torch-of-tfm.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if library.from_source:
        # Newer versions of pip reject the metadata of old packages.
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
