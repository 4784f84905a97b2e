"""Matplotlib apart from the user's settings for it."""

import os
import subprocess
import sys

import matplotlib as mpl
import pytest

from tfm.errors import TfmError
from tfm.plotting import Figure, drawing

_DRAW = """
from tfm.plotting import Figure, drawing, mpl
import os, sys
with drawing({}):
    Figure().savefig("x.png", format="png")
print(mpl.rcParams._get_backend_or_none(), os.environ["MPLBACKEND"])
print("matplotlib.pyplot" in sys.modules)
"""


def draw_in_process(folder, **variables):
    return subprocess.run(
        [sys.executable, "-c", _DRAW],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("backend", "set_to"),
    [("module://matplotlib_inline.backend_inline", ""), ("no-such", "None"), ("svg", "svg")],
)
def test_pictures_need_no_backend_and_leave_the_one_that_is_set(tmp_path, backend, set_to):
    (tmp_path / "file").touch()  # no folder for caches
    done = draw_in_process(tmp_path, MPLBACKEND=backend, MPLCONFIGDIR=str(tmp_path / "file" / "x"))
    assert done.stderr == ""
    # Whether there is Jupyter's backend depends on what is installed.
    is_set, variable, has_pyplot = done.stdout.split()
    assert (variable, has_pyplot) == (backend, "False")
    assert set_to in is_set
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_settings_that_matplotlib_cannot_read_are_one_error(tmp_path):
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")
    done = draw_in_process(tmp_path, MPLBACKEND="svg")
    assert "TfmError: matplotlib cannot be imported (UnicodeDecodeError" in done.stderr


def test_pictures_do_not_depend_on_the_users_style_and_leave_it(monkeypatch):
    monkeypatch.setitem(mpl.rcParams, "text.usetex", True)
    before = dict(mpl.rcParams)
    with drawing({"font.size": 5}):
        assert (mpl.rcParams["text.usetex"], mpl.rcParams["font.size"]) == (False, 5)
    assert dict(mpl.rcParams) == before


def test_a_failure_of_matplotlib_is_one_error():
    with pytest.raises(TfmError, match="matplotlib cannot draw"), drawing({}):
        Figure().savefig("x", format="no such")
