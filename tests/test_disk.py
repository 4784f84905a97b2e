"""The check of free disk space, separately for each disk."""

import dataclasses
import re
from collections import namedtuple

import pytest

from tfm.data import disk
from tfm.data.corpus.loading import load_recipe
from tfm.data.disk import DiskNeed, check_disks
from tfm.data.sources import TextSources
from tfm.errors import DataError
from tfm.stages.prepare import prepare

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def disks(monkeypatch, tmp_path):
    """Two disks: folders named "small", and all others; tests can change the free bytes."""
    free = {"small": 10_000, "large": 5_000_000}

    def name(folder):
        return "small" if "small" in folder.parts else "large"

    monkeypatch.setattr(disk, "_disk", lambda folder: hash(name(folder)))
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(0, 0, free[name(path)]))
    (tmp_path / "small").mkdir()
    return free


def need(folder, content, num_bytes, **options):
    return DiskNeed(
        folder=folder, content=content, num_bytes=num_bytes, remedy=f"move the {content}", **options
    )


def test_one_line_reports_the_needed_and_free_space_of_a_disk(disks, tmp_path, capsys):
    out = tmp_path / "data" / "new"
    check_disks([need(out, "text", 2_000_000), need(out / "raw", "unpacked text", 1_500_000)])
    [line] = capsys.readouterr().err.splitlines()
    assert f"{out} will take about 3.5 MB" in line
    assert "(text 2.0 MB, unpacked text 1.5 MB); 5.0 MB are free" in line
    assert not out.exists()


def test_needs_are_added_up_and_only_sufficient_remedies_are_proposed(disks, tmp_path):
    needs = [need(tmp_path / name, name, size) for name, size in (("text", 8), ("ids", 3))]
    disks["large"] = 11
    check_disks(needs)
    for free, advice in ((3, r"move the text$"), (8, r"move the text, or move the ids$")):
        disks["large"] = free
        with pytest.raises(DataError, match=advice):
            check_disks(needs)
    disks["large"] = 2
    with pytest.raises(DataError, match=r"move the text, and move the ids$"):
        check_disks(needs)


def test_each_disk_is_checked_separately(disks, tmp_path, capsys):
    needs = [need(tmp_path / "a", "text", 4_999_999), need(tmp_path / "small", "downloads", 9_999)]
    check_disks(needs)
    assert len(capsys.readouterr().err.splitlines()) == 2
    disks["small"] = 9_998
    with pytest.raises(DataError, match="move the downloads") as caught:
        check_disks(needs)
    assert "move the text" not in str(caught.value)


def test_an_unknown_size_is_reported_but_not_that_of_nothing(disks, tmp_path, capsys):
    unknown = need(tmp_path, "downloads", 0, is_lower_bound=True)
    check_disks([unknown, need(tmp_path, "text", 7_000)])
    check_disks([unknown])
    check_disks([need(tmp_path, "downloads", 0)])
    first, second = capsys.readouterr().err.splitlines()
    assert "at least 7.0 kB (downloads of unknown size, text 7.0 kB)" in first
    assert "an unknown amount" in second


def test_prepare_checks_the_disk_before_it_downloads(disks, tmp_path, monkeypatch):
    monkeypatch.setattr(TextSources, "fetch", lambda self: pytest.fail("it was fetched"))
    with pytest.raises(DataError) as caught:
        prepare(load_recipe("wmt14-en-fr"), tmp_path / "data")
    message = str(caught.value)
    for part in (
        f"{tmp_path / 'data'} will take about 45.0 GB",
        "downloads 6.7 GB, unpacked text 14.8 GB, text 14.8 GB, token ids 8.8 GB",
        "only 5.0 MB are free",
        "choose an --out on another disk",
    ):
        assert part in message
    assert [path.name for path in (tmp_path / "data").rglob("*")] == [".lock"]


def test_downloads_on_another_disk_are_checked_separately(disks, tmp_path):
    recipe, downloads = load_recipe("wmt14-en-de"), tmp_path / "small"
    disks["large"] = 4 * 10**9
    with pytest.raises(DataError, match=r"small.*downloads 1\.7 GB.*10\.0 kB") as caught:
        prepare(recipe, tmp_path / "data", downloads_dir=downloads)
    assert "--out" not in str(caught.value)
    with pytest.raises(DataError, match=r"5\.2 GB .*only 4\.0 GB"):
        prepare(recipe, tmp_path / "data")


def test_prepare_reports_a_good_estimate_once(tmp_path, capsys):
    recipe = load_recipe("numbers-en-de")
    train = (dataclasses.replace(recipe.train[0], num_pairs=800),)
    for _ in range(2):
        prepare(dataclasses.replace(recipe, train=train), tmp_path, text_only=True)
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("disk: ")]
    assert "token ids" not in line
    [stated] = re.findall(r"about ([0-9.]+) kB", line)
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0.7 * written < 1000 * float(stated) < 1.3 * written
