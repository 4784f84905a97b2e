"""tfm prepare --protect: copies of test text leave the training text, or are named by no claim."""

from dataclasses import replace

import pytest
from helpers import binarize, write_lines, write_pairs

from tfm.commands.prepare import append_text
from tfm.commands.prepare import prepare_recipe as prepare
from tfm.config import BinarizeConfig
from tfm.dataset.manifest import Manifest
from tfm.dataset.shards import Share
from tfm.errors import DataError, UsageError
from tfm.text.corpus.loading import recipe_from_files
from tfm.text.corpus.texts import MonoText
from tfm.text.seen import FILE, SeenText

KEPT = [(f"Line {number} of the book is good.", f"Zeile {number} ist gut.") for number in range(20)]
PROTECTED = ("Two dogs play in the deep snow today.", "Zwei Hunde spielen heute im tiefen Schnee.")
COPIES = [
    PROTECTED,
    (PROTECTED[0].upper(), "Nur eine Seite."),
    ("Only one side.", "zwei hunde spielen heute im tiefen Schnee"),
    ("Two dogs play in the deep snow.", "Fast dasselbe."),
    ("Two, dogs play in the deep snow - today?", "Dasselbe."),
]
OTHERS = [("Two dogs play in the water today.", "Zwei Hunde spielen im Wasser."), ("Two", "Zwei")]


@pytest.fixture
def files(tmp_path):
    """The protected lines of each side, and a recipe with copies of them."""
    pairs = [*KEPT, *COPIES, *OTHERS]
    train = write_pairs(tmp_path, "raw", pairs)
    valid = write_pairs(tmp_path, "dev", KEPT[:1])
    paths = [
        write_lines(tmp_path / name, [line]) for name, line in zip("st", PROTECTED, strict=True)
    ]
    return paths, recipe_from_files(name="x", train=[train], valid=[valid])


def prepared(recipe, folder, protect, **options):
    overrides = {"cleaning": {"protect": [str(path) for path in protect]}}
    return prepare(recipe, folder, overrides, text_only=True, **options)


def train_pairs(folder):
    sides = (
        (folder / f"train.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")
    )
    return list(zip(*sides, strict=True))


def dropped(folder):
    return Manifest.load(folder).result("clean")["train"]["dropped"].get("protected")


@pytest.mark.parametrize("way", ["sides", "table", "share"])
def test_pairs_with_a_copy_on_any_side_are_dropped_and_counted(files, tmp_path, way):
    protect, recipe = files
    folder = tmp_path / "data"
    if way == "table":
        protect = [write_lines(tmp_path / "test.tsv", ["\t".join(PROTECTED)])]
    if way == "share":
        prepared(recipe, folder, protect, share=Share(1, 1))
    prepared(recipe, folder, protect)
    assert train_pairs(folder) == [*KEPT, *OTHERS]
    assert dropped(folder) == len(COPIES)
    assert f"protected: {len(COPIES)} of" in (folder / "dropped.txt").read_text(encoding="utf-8")
    assert (folder / "valid.en").read_text(encoding="utf-8") == f"{KEPT[0][0]}\n"


def test_each_cell_of_a_table_is_protected(files, tmp_path):
    table = write_lines(tmp_path / "test.csv", ["en;de;note", 'Two;"Er sagte; ""ja""";7'])
    prepared(files[1], tmp_path / "data", [table])
    assert train_pairs(tmp_path / "data") == [*KEPT, *COPIES, *OTHERS[:1]]


def test_protected_text_is_not_warned_of_as_held_out_and_in_training(tmp_path, capsys):
    train = write_pairs(tmp_path, "raw", [*KEPT, PROTECTED])
    test = write_pairs(tmp_path, "test", [PROTECTED])
    recipe = recipe_from_files(name="x", train=[train], test=[test])
    prepared(recipe, tmp_path / "one", [])
    assert "1 of the 1 pairs of the test text are in the training" in capsys.readouterr().err
    prepared(recipe, tmp_path / "other", test)
    assert "are in the training text" not in capsys.readouterr().err


def test_nothing_is_protected_by_default_and_no_count_is_written(files, tmp_path):
    _, recipe = files
    prepare(recipe, tmp_path / "data", text_only=True)
    assert len(train_pairs(tmp_path / "data")) == len([*KEPT, *COPIES, *OTHERS])
    assert dropped(tmp_path / "data") is None
    inputs = Manifest.load(tmp_path / "data").inputs("clean")
    assert "protect" not in inputs["cleaning"]
    assert "protected" not in inputs


def test_text_is_cleaned_again_if_the_protected_lines_change(files, tmp_path):
    protect, recipe = files
    folder = tmp_path / "data"
    assert prepared(recipe, folder, protect).is_new
    assert not prepared(recipe, folder, protect).is_new
    write_lines(protect[1], ["Other text."])
    assert prepared(recipe, folder, protect).is_new
    assert dropped(folder) == 4
    assert prepared(recipe, folder, []).is_new
    assert dropped(folder) is None


def test_monolingual_and_appended_text_is_protected_too(files, tmp_path):
    protect, recipe = files
    folder = tmp_path / "data"
    lines = write_lines(tmp_path / "mono", [PROTECTED[1].lower(), "Ein anderer Satz."])
    mono = (MonoText(language="de", text=str(lines)),)
    prepared(replace(recipe, mono=mono), folder, protect)
    assert (folder / "mono.de").read_text(encoding="utf-8") == "Ein anderer Satz.\n"
    more = write_pairs(tmp_path, "more", [(PROTECTED[0], "Neu."), ("A new one.", "Eine neue.")])
    append_text(recipe_from_files(name="y", train=[more]), folder, text_only=True)
    assert (folder / "train.2.en").read_text(encoding="utf-8") == "A new one.\n"


def test_text_that_is_all_protected_is_named(files, tmp_path):
    _, recipe = files
    with pytest.raises(DataError, match=r"no pairs are left of the train text: .* 27 protected"):
        prepared(recipe, tmp_path / "data", [recipe.train[0].source])


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b""])
def test_a_file_that_is_missing_or_no_text_is_named(files, tmp_path, content):
    _, recipe = files
    path = tmp_path / "protected.txt"
    if content is None:
        with pytest.raises(UsageError, match=r"protected\.txt does not exist"):
            prepared(recipe, tmp_path / "data", [path])
        return
    path.write_bytes(content)
    if content:
        with pytest.raises(DataError, match=r"protected\.txt is UTF-16"):
            prepared(recipe, tmp_path / "data", [path])
    else:
        prepared(recipe, tmp_path / "data", [path])
        assert dropped(tmp_path / "data") is None


def test_models_that_wrote_text_are_opened_before_it_is_cleaned(files, tmp_path):
    _, recipe = files
    with pytest.raises(UsageError, match="runs/none does not exist"):
        prepare(recipe, tmp_path / "data", {"binarize": {"written_by": ["runs/none"]}})
    assert not (tmp_path / "data" / "train.en").exists()


def test_appended_text_may_be_written_by_further_models(trained_run, make_dataset, tmp_path):
    folder = make_dataset(tmp_path / "x", {"train": KEPT * 5, "valid": KEPT}, vocab_size=290)
    train = write_pairs(tmp_path, "raw", [*KEPT] * 5)
    valid = write_pairs(tmp_path, "dev", KEPT)
    subwords = {"subword": {"subwords": [str(folder)]}}
    whole = recipe_from_files(name="y", train=[train], valid=[valid])
    prepare(whole, tmp_path / "y", subwords)
    more = recipe_from_files(name="z", train=[write_pairs(tmp_path, "more", OTHERS)])
    overrides = {"binarize": {"written_by": [str(trained_run)]}}
    append_text(more, tmp_path / "y", overrides)
    assert Manifest.load(tmp_path / "y").settings("binarize")["written_by"] == [str(trained_run)]
    [origin] = SeenText.load(tmp_path / "y" / FILE).origins
    assert origin["seen"]
    with pytest.raises(UsageError, match="leave out max_length"):
        append_text(more, tmp_path / "y", {"binarize": {"max_length": 99}})


def test_the_record_follows_text_and_settings(make_dataset, tmp_path):
    folder = make_dataset(tmp_path / "x", {"train": KEPT * 5, "valid": KEPT}, vocab_size=290)
    config = BinarizeConfig(threads=1)
    before = (folder / FILE).read_bytes()
    assert Manifest.load(folder).result("seen")["sha256"]
    binarize(folder, config)
    assert (folder / FILE).read_bytes() == before
    (folder / FILE).unlink()
    binarize(folder, config)
    assert (folder / FILE).read_bytes() == before
    write_pairs(folder, "train", [*KEPT, *OTHERS])
    binarize(folder, config)
    assert (folder / FILE).read_bytes() != before
    binarize(folder, BinarizeConfig(threads=1, seen_megabytes=0))
    assert not (folder / FILE).exists()
    assert Manifest.load(folder).result("seen") == {"sha256": None}
