"""The wheel, built from the files in the Docker image, in an environment with nothing else."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="the build backend, in the extra dev, is not installed")

ROOT = Path(__file__).parent.parent
_MODEL = "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --d-ff 32 --num-heads 2"
COMMANDS = [
    "prepare --out data/a --vocab-size 290 --train a.en a.de --valid a.en a.de --test a.en a.de",
    f"train --arch tiny {_MODEL} --max-steps 2 --checkpoint-steps 1 --validation-beam 1",
    "generate --split test --output out.de",
    "score --hypotheses out.de --reference a.de",
    "attend One.",
    "quickstart --examples examples",
]
# Runs all commands in one process, which loads torch once.
RUN = """
import runpy, sys
for command in sys.argv[1:]:
    sys.argv = ["tfm", *command.split()]
    try:
        runpy.run_module("tfm", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"tfm {command} has ended with {ended.code}")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for names, _ in re.findall(r"^COPY (.+) (\S+)$", dockerfile, re.MULTILINE):
        for name in names.split():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = out.glob("tfm_mt-*.whl")
    return path


def test_the_wheel_has_all_files_of_the_package_and_no_others(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.check_output(["git", "ls-files", "tfm", "examples"], cwd=ROOT, text=True)
    assert inside == {
        name.replace("examples/", "tfm/examples/", 1) if name.startswith("examples/") else name
        for name in tracked.split()
        if name.startswith("tfm/") or name.endswith((".py", ".sh", ".toml"))
    }


def test_links_and_the_picture_of_the_description_lead_to_the_tag(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("/METADATA")]
        description = archive.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"(!?)\[[^]]*\]\(([^)#]*)", description)
    assert len(links) > 10
    for mark, link in links:
        if "arxiv.org" not in link:
            kind = "raw" if mark else "blob"
            [name] = re.findall(rf"^https://[^ ]+/{kind}/v[\d.]+/([^ ]+)$", link)
            assert (ROOT / name).exists()


def test_commands_run_in_an_environment_with_the_wheel_and_its_dependencies(wheel, elsewhere):
    folder = elsewhere / "environment"
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    [packages] = folder.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = "import tfm; print(tfm.__file__)"
    out = subprocess.check_output([python, "-c", where], env=environment, text=True)
    assert Path(out.strip()).is_relative_to(folder)
    for language, words in ("en", "one two three"), ("de", "eins zwei drei"):
        (elsewhere / f"a.{language}").write_text("".join(f"{words} {n}\n" for n in range(40)))
    for command in ([folder / "bin" / "tfm", "--version"], [python, "-c", RUN, *COMMANDS]):
        done = subprocess.run(
            command,
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert len((elsewhere / "out.de").read_text().splitlines()) == 40
