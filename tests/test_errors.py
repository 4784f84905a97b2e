"""The command that installs what an optional part of tfm needs."""

from importlib import metadata
from types import SimpleNamespace

import pytest

from tfm.errors import install_command

REQUIRED = [
    "numpy>=1",
    'uvicorn>=0.34; extra == "serve"',
    'absent-one>=2; extra == "serve"',
    'old-one>=2; extra == "serve"',
    'sacrebleu[ja]>=2.4; extra == "ja"',
    'other; extra == "ja" and python_version < "3"',
]


@pytest.mark.parametrize(
    ("required", "extra", "command"),
    [
        (REQUIRED, "serve", "pip install uvicorn absent-one 'old-one>=2'"),
        (REQUIRED, "ja", "pip install 'sacrebleu[ja]'"),
        (None, "serve", 'pip install ".[serve]"'),
    ],
)
def test_packages_are_installed_by_their_own_names(monkeypatch, tmp_path, required, extra, command):
    versions = {"uvicorn": "0.35", "old-one": "1.9", "sacrebleu": "2.5"}
    found = {name: [SimpleNamespace(version=version)] for name, version in versions.items()}

    def requires(name):
        if required is None:
            raise metadata.PackageNotFoundError(name)
        return required

    monkeypatch.setattr(metadata, "requires", requires)
    monkeypatch.setattr(metadata, "distributions", lambda name: found.get(name, []))
    assert install_command(extra) == command
