"""The figures that tfm prepare ends with."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import edit_json, write_pairs

from tfm.dataset.figures import scripts_of

PAIRS = [
    ("Ein Hund läuft.", "犬が走る。"),
    ("Zwei", "二"),
    *((f"{n} Wörter " * 5, f"{n}語") for n in range(1_500)),
]


def test_prepare_ends_with_the_figures_of_the_dataset(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    write_pairs(Path(), "my", [*PAIRS, PAIRS[0], ("gleich", "gleich")], ("de", "ja"))
    call = ["prepare", "--train", "my.de", "my.ja", "--hold-out", "40", "--out", "data"]
    call += ["--vocab-size", "400", "--max-length-ratio", "0"]
    text, messages = run.ok(*call)
    assert messages.endswith("\nnext: tfm train data\n")
    found = json.loads(run.ok(*call, "--json")[0])
    assert (found["data_dir"], found["is_new"]) == ("data", False)
    sides = {each["name"]: each for each in found["figures"]["sides"]}
    assert list(sides) == [
        f"{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "ja")
    ]
    for name, figures in sides.items():
        split, side = name.split(".")
        offsets = np.load(f"data/bin/{split}.{side}.offsets.npy")
        lengths = np.diff(offsets.astype(int))
        assert figures["pairs"] == len(Path("data", name).read_text().splitlines()) == len(lengths)
        assert figures["tokens"] == lengths.sum()
        assert figures["mean_length"] == pytest.approx(lengths.mean())
        assert figures["long_length"] == int(np.percentile(lengths, 99))
        assert {"de": "Latin", "ja": "Han"}[side] == next(iter(figures["scripts"]))
        row = next(line for line in text.splitlines() if line.startswith(name))
        assert f"{figures['tokens']:,}" in row
    dropped = found["figures"]["dropped"]
    assert dropped == {"copy": 1, "duplicate": 1, "protected": dropped["protected"]}
    assert sum(dropped.values()) == found["figures"]["read"] - sides["train.de"]["pairs"]
    assert "duplicate" in text
    steps = json.loads(Path("data/manifest.json").read_text())["steps"]
    del steps["binarize"]["result"]["test"]  # an edit by hand
    edit_json(Path("data/manifest.json"), steps=steps)
    assert json.loads(run.ok(*call, "--json")[0])["figures"] == found["figures"]
    without = json.loads(run.ok(*call, "--json", "--text-only")[0])
    assert not any("tokens" in each for each in without["figures"]["sides"])


def test_scripts_are_shares_of_letters():
    lines = ["Abc 123 дом", "雪 ё", "한국"]
    shares = {"Cyrillic": 4 / 10, "Latin": 3 / 10, "Hangul": 2 / 10, "Han": 1 / 10}
    assert scripts_of(line.encode() for line in lines) == pytest.approx(shares)
    assert scripts_of([]) == {}
