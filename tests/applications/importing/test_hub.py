"""A model is imported by its name, from a mirror on this machine that speaks the Hub's protocol."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from foreign_models import new_marian

import tfm
from tfm.folders.model_folder import ModelFolder

pytest.importorskip("transformers")
pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "me/opus-mt-en-de"


class Mirror(BaseHTTPRequestHandler):
    """The requests of huggingface_hub about one model, with two names for its commit."""

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def log_message(self, *_):
        pass

    def _answer(self):
        path = unquote(urlsplit(self.path).path)
        self.server.paths.append(path)
        files = {each.name: each for each in self.server.folder.iterdir()}
        parts = path.removeprefix("/api/models").removeprefix(f"/{NAME}/").split("/")
        if len(parts) < 2 or parts[0] not in ("revision", "tree", "resolve"):
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif parts[1] not in ("main", "v1", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif parts[0] == "revision":
            siblings = [{"rfilename": name} for name in files]
            self._send_json({"id": NAME, "sha": COMMIT, "siblings": siblings})
        elif parts[0] == "tree":
            self._send_json(
                [
                    {"type": "file", "path": name, "size": each.stat().st_size, "oid": name}
                    for name, each in files.items()
                ]
            )
        else:
            content = files[parts[2]].read_bytes()
            etag = hashlib.sha1(content).hexdigest()
            self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _send_json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A mirror with a model, and other files that nobody needs."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    new_marian(folder)
    (folder / "tf_model.h5").write_bytes(b"not needed")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        server.folder, server.paths = folder, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def run(hub, tmp_path):
    """Run tfm import in an empty folder, with an empty cache."""

    def run_import(*arguments, **changes):
        environment = {
            **os.environ,
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "HF_HOME": str(tmp_path / "cache"),
            "PYTHONPATH": str(Path(tfm.__file__).parent.parent),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_OFFLINE": "0",
            **changes,
        }
        return subprocess.run(
            [sys.executable, "-m", "tfm", "import", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run_import


def test_a_model_is_imported_by_name_and_its_commit_recorded(hub, run, tmp_path):
    result = run(NAME)
    assert (result.returncode, result.stdout) == (0, "models/opus-mt-en-de\n"), result.stderr
    info = ModelFolder(tmp_path / "models" / "opus-mt-en-de").info
    assert info.ancestors[0].path == f"{NAME}@{COMMIT}"
    names = {path.rpartition("/")[2] for path in hub.paths if "/resolve/" in path}
    assert {"config.json", "model.safetensors", "source.spm"} <= names
    assert not {"tf_model.h5", "pytorch_model.bin"} & names

    hub.paths.clear()  # from now on, the cache has it
    again = run(NAME, "--out", "again", HF_HUB_OFFLINE="1")
    assert (again.returncode, hub.paths) == (0, []), again.stderr
    pinned = run(f"https://huggingface.co/{NAME}/tree/{COMMIT}", "--out", "pinned")
    assert pinned.returncode == 0, pinned.stderr
    files = [tmp_path / name / "config.json" for name in ("again", "pinned")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "message"),
    [
        (["me/other"], {}, 2, "me/other is neither a path here nor a model of the Hugging Face"),
        ([NAME, "--revision", "v2"], {}, 2, f"{NAME} has no revision v2: check its name"),
        (
            [NAME],
            {"HF_HUB_OFFLINE": "1"},
            1,
            "the Hugging Face Hub cannot be reached: .* hf down.*, and run tfm import me",
        ),
        ([NAME], {"HF_ENDPOINT": "http://127.0.0.1:9"}, 1, "the Hugging Face Hub cannot be reach"),
        (["x/y--z"], {}, 2, "x/y--z is neither a path here nor a model"),
        (["cache/model"], {}, 2, "cache/model does not exist: name a folder"),
        ([".", "--revision", "v1"], {}, 2, "--revision is for models of the Hugging Face Hub"),
    ],
)
def test_failures_are_one_line(run, tmp_path, arguments, changes, code, message):
    (tmp_path / "cache").mkdir()
    result = run(*arguments, **changes)
    assert (result.returncode, result.stdout) == (code, "")
    [line] = [line for line in result.stderr.splitlines() if line.startswith("tfm: ")]
    assert re.search(message, line)
    assert "Traceback" not in result.stderr


def test_without_the_package_the_line_says_what_to_install_and_what_to_run(run, tmp_path):
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError")  # "python -m" finds it first
    result = run(NAME, "--revision", "v1")
    assert result.returncode == 2
    assert result.stderr == (
        f"tfm: {NAME} does not exist here, and huggingface_hub, which downloads it, is not "
        "installed: run pip install huggingface-hub, or by hand pip install huggingface_hub && hf "
        f"download {NAME} --revision v1 --local-dir {NAME}, then tfm import {NAME}\n"
    )


def test_older_files_of_weights_are_fetched_only_if_there_are_no_others(hub, run, tmp_path):
    folder = hub.folder
    hub.folder = folder.with_name("older")
    hub.folder.mkdir()
    try:
        for path in folder.iterdir():
            if path.name != "model.safetensors":
                (hub.folder / path.name).write_bytes(path.read_bytes())
        result = run(NAME)
    finally:
        hub.folder = folder
    assert "pytorch_model.bin is damaged" in result.stderr
    assert result.returncode == 1
