"""tfm prepare: from archives or files to the text of a dataset, with counts of all lines."""

import dataclasses
import gzip
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers import contents, write_pairs, write_tar

from tfm.commands.prepare import prepare_recipe as prepare
from tfm.config import Normalization, SubwordConfig
from tfm.dataset.draft import Draft
from tfm.dataset.manifest import Manifest
from tfm.dataset.shards import Share
from tfm.disk.files import sha256_of, write_text
from tfm.errors import DataError, DownloadError, TfmError, UsageError
from tfm.text import hashes
from tfm.text import lines as lines_module
from tfm.text.corpus.loading import load_recipe, recipe_from_files
from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import Archive, MonoText, TextFiles
from tfm.text.sources import Downloads, TextSources
from tfm.training.data import open_data
from tfm.vocabulary.learning import learn_subword_model

Usage = namedtuple("Usage", "total used free")
NFD = "Mu\u0308ller"

TRAIN = [(f"Source line {i}.", f"Zielzeile {i}.") for i in range(30)]
NOISE = [
    ("", "Leer."),
    ("Same.", "Same."),
    ("Source line 3.", "Zielzeile 3."),
    ("x" * 1001, "y" * 900),
    ("Short.", "Viel " * 40),
    ("A\u2028line\xa0break.", "Ein  Umbruch.\r"),
]
TEST = [("", "Leer bleibt."), (" kept ", "behalten"), ("same", "same"), ("same", "same")]


def as_text(pairs, side):
    return "".join(f"{pair[side]}\n" for pair in pairs).encode()


def as_sgml(pairs, side):
    segments = (f'<seg id="{i}">{p[side]}</seg>\n' for i, p in enumerate(pairs, 1))
    return f"<srcset>\n{''.join(segments)}</srcset>\n".encode()


@pytest.fixture
def mirror(tmp_path):
    """A folder with two archives like those of WMT 2014: plain, gzip and SGML members."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    write_tar(
        folder / "train.tgz",
        {
            "t/clean.en": as_text(TRAIN, 0),
            "t/clean.de": as_text(TRAIN, 1),
            "t/README": b"not text",
            "noise.en.gz": gzip.compress(as_text(NOISE, 0)),
            "noise.de.gz": gzip.compress(as_text(NOISE, 1)),
        },
    )
    write_tar(folder / "dev.tgz", {"dev.en": as_text(TEST, 0), "dev.de": as_text(TEST, 1)})
    members = {"x-src.en.sgm": as_sgml(TEST, 0), "x-ref.de.sgm": as_sgml(TEST, 1)}
    write_tar(folder / "test.tgz", members)
    return folder


@pytest.fixture
def recipe(mirror):
    archives = tuple(
        Archive(url=f"http://unreachable.invalid/{path.name}", sha256=sha256_of(path))
        for path in sorted(mirror.iterdir())
    )
    return Recipe(
        name="tiny",
        source="en",
        target="de",
        archives=archives,
        train=(
            TextFiles(archive="train.tgz", source="t/clean.en", target="t/clean.de"),
            TextFiles(archive="train.tgz", source="noise.en.gz", target="noise.de.gz"),
        ),
        valid=(TextFiles(archive="dev.tgz", source="dev.en", target="dev.de"),),
        test=(TextFiles(archive="test.tgz", source="x-src.en.sgm", target="x-ref.de.sgm"),),
    )


@pytest.fixture
def prepare_text(recipe, mirror, tmp_path):
    def run(recipe=recipe, out=tmp_path / "data", mirror=mirror, verify=True, **options):
        downloads = Downloads(mirror=mirror and str(mirror), verify=verify)
        return prepare(recipe, out, downloads=downloads, text_only=True, **options)

    return run


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


def counts(data_dir):
    return Manifest.load(data_dir).result("clean")


def lines(path):
    return path.read_bytes().decode().split("\n")[:-1]


def write_files(folder, **texts):
    """Write files from arguments such as train_en="…"; return {split: [(source, target)]}."""
    for name, text in texts.items():
        content = text if isinstance(text, bytes) else text.encode()
        (folder / name.replace("_", ".")).write_bytes(content)
    splits = dict.fromkeys(name.split("_")[0] for name in texts)
    return {split: [(folder / f"{split}.en", folder / f"{split}.de")] for split in splits}


def test_training_text_is_cleaned_and_each_line_is_accounted_for(data_dir, prepare_text):
    prepare_text()
    kept = [*TRAIN, ("A line break.", "Ein Umbruch.")]
    assert lines(data_dir / "train.en") == [source for source, _ in kept]
    assert lines(data_dir / "train.de") == [target for _, target in kept]
    report = counts(data_dir)["train"]
    texts = [*map(dataclasses.asdict, Manifest.load(data_dir).texts("train"))]
    assert [text["read"] for text in texts] == [len(TRAIN), len(NOISE)]
    for each in (report, *texts):
        assert each["read"] == each["kept"] + sum(each["dropped"].values())
    for rule in ("empty", "copy", "duplicate", "too_long", "length_ratio"):
        assert report["dropped"][rule] == texts[1]["dropped"][rule] == 1
    assert report["kept"] == len(kept)


def test_examples_of_dropped_pairs_name_text_and_rule(data_dir, prepare_text, capsys):
    prepare_text()
    report = (data_dir / "dropped.txt").read_text(encoding="utf-8")
    rules = ("empty", "copy", "duplicate", "too_long", "length_ratio")
    for rule in rules:
        assert f"# 2 noise.en.gz, {rule}: 1 of 6 pairs" in report
    assert report.count("# ") == len(rules)
    assert "\nSource line 3.\tZielzeile 3.\n" in report
    assert "\nx" + "x" * 299 + "\ty" in report
    printed = capsys.readouterr().err
    assert "train 1 clean.en: 30 of 30 pairs\n" in printed
    assert "train 2 noise.en.gz: 1 of 6 pairs; dropped 1 empty" in printed
    assert str(data_dir / "dropped.txt") in printed


def test_rules_of_a_recipe_and_of_one_of_its_texts_are_applied(data_dir, recipe, prepare_text):
    pairs = (("Source line 3.", "Zielzeile 4."), ("Ð¼Ð¸Ñ€", "Welt"))
    first, second = recipe.train
    texts = {"train_en": as_text(pairs, 0), "train_de": as_text(pairs, 1)}
    [(source, target)] = write_files(data_dir.parent, **texts)["train"]
    text = TextFiles(
        source=str(source), target=str(target), cleaning={"drop_unequal_numbers": True}
    )
    changed = dataclasses.replace(
        recipe, train=(first, second, text, first), cleaning={"drop_mojibake": True}
    )
    with pytest.raises(
        DataError, match=r"no pairs are left of .*3 train\.en.*1 mojibake, 1 unequal"
    ):
        prepare_text(changed)


@pytest.mark.parametrize("num_copies", [12, 13])
def test_a_rule_that_drops_much_of_a_text_is_warned_of(data_dir, tmp_path, capsys, num_copies):
    pairs = [(f"雪舟は{i}年", f"Sesshu in the year {i}") for i in range(388)]
    pairs += [(f"{i}", f"{i}") for i in range(num_copies)]
    recipe = recipe_from_files(name="x", train=[write_pairs(tmp_path, "train", pairs)])
    prepare(recipe, data_dir, text_only=True)
    warning = f"the rule copy drops 3.2% of 1 train.en, {num_copies} of {len(pairs)} pairs: "
    assert (warning in capsys.readouterr().err) == (num_copies == 13)
    assert Manifest.load(data_dir).texts("train")[0].length_ratio == pytest.approx(1.7, abs=0.1)


BAD_SETTINGS = [
    ({"subword": {"symbols": "<a> <b> <a>"}}, "symbols .* <a> twice"),
    ({"subword": {"symbols": "<a> <x>", "vocab_size": 262}}, "vocab_size is 262, .* more than 262"),
    ({"subword": {"byte_fallback": False, "symbols": "<a> <b> <c>", "vocab_size": 8}}, "than 8"),
    ({"subword": {"symbols": "<a\N{LOWER ONE EIGHTH BLOCK}>"}}, "symbols .* in angle brackets"),
    ({"subword": {"symbols": "<0x41>"}}, "symbols .* piece that every vocabulary has"),
    ({"subword": {"subwords": ("unigram.model",), "symbols": "<y>"}}, "no piece for the tag <y>"),
    ({"cleaning": {"drop_other_script": True}}, "the script of the language 'xx' is not known"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD_SETTINGS)
def test_settings_that_later_steps_would_refuse_are_refused_before_anything_is_written(
    data_dir, recipe, prepare_text, monkeypatch, overrides, message
):
    monkeypatch.chdir(data_dir.parent)
    if "subwords" in overrides.get("subword", {}):
        Path("text").write_text("the cat\na dog\n" * 9)
        config = SubwordConfig(model_type="unigram", symbols="<x>")
        model = learn_subword_model([Path("text")], config, vocab_size=271)
        Path("unigram.model").write_bytes(model.content)
    tagged = dataclasses.replace(recipe.valid[0], tag="<x>")
    changed = dataclasses.replace(recipe, target="xx", valid=(tagged,))
    with pytest.raises(TfmError, match=message):
        prepare_text(changed, overrides=overrides)
    assert not data_dir.exists()


def test_a_symbol_may_also_be_the_tag_of_a_text(data_dir, recipe, prepare_text):
    changed = dataclasses.replace(recipe, valid=(dataclasses.replace(recipe.valid[0], tag="<x>"),))
    prepare_text(changed, overrides={"subword": {"symbols": "<x> <y>"}})
    assert Manifest.load(data_dir).symbols == ["<x>", "<y>"]


def test_validation_and_test_text_keep_every_line_unchanged(data_dir, prepare_text):
    prepare_text()
    assert lines(data_dir / "valid.en") == [source for source, _ in TEST]
    # White space around a segment belongs to SGML, not to the text.
    assert lines(data_dir / "test.en") == [source.strip() for source, _ in TEST]
    assert lines(data_dir / "test.de") == [target for _, target in TEST]


def test_steps_are_repeated_only_as_far_as_needed(data_dir, prepare_text, mirror, capsys):
    prepare_text()
    for path in mirror.iterdir():
        path.unlink()
    overrides = {"cleaning": {"drop_copies": False}}
    assert prepare_text(overrides=overrides).is_new
    assert counts(data_dir)["train"]["dropped"]["copy"] == 0
    assert "extract" in capsys.readouterr().err
    (data_dir / "test.de").write_text("cut")
    assert prepare_text(overrides=overrides).is_new
    assert len(lines(data_dir / "test.de")) == len(TEST)
    for path in (data_dir / "raw").iterdir():
        path.unlink()
    assert not prepare_text(overrides=overrides).is_new
    assert not prepare_text(overrides=overrides, mirror=None).is_new


def test_a_wrong_archive_stops_unless_verification_is_off(data_dir, prepare_text, mirror, capsys):
    path = mirror / "dev.tgz"
    write_tar(path, {"dev.en": b"one\n", "dev.de": b"eins\n"})
    with pytest.raises(DownloadError, match=r"dev\.tgz.*sha256"):
        prepare_text()
    prepare_text(verify=False)
    assert counts(data_dir)["valid"]["kept"] == 1
    assert "warning: dev.tgz" in capsys.readouterr().err
    with pytest.raises(DownloadError):
        prepare_text()


def test_settings_for_later_steps_are_recorded(data_dir, prepare_text, recipe):
    recipe = dataclasses.replace(recipe, subword={"vocab_size": 990, "separate": True})
    overrides = {"subword": {"vocab_size": 500}, "binarize": {"max_length": 9}}
    prepare_text(recipe, overrides=overrides)
    assert Manifest.load(data_dir).settings("subword") == {"vocab_size": 500, "separate": True}
    assert Manifest.load(data_dir).settings("binarize") == {"max_length": 9}


@pytest.mark.parametrize("change", [{"name": "other"}, {"source": "fr"}])
def test_another_dataset_is_not_overwritten_without_force(data_dir, prepare_text, recipe, change):
    prepare_text()
    other = dataclasses.replace(recipe, test=(), **change)
    with pytest.raises(UsageError, match=r"holds tiny \(en-de\).*--force"):
        prepare_text(other)
    assert len(lines(data_dir / "test.en")) == len(TEST)
    prepare_text(other, force=True)
    assert Manifest.load(data_dir).splits() == ["train", "valid"]


NOT_WRITTEN = ["train.en", "valid.de", "train.2.en", "mono.txt", "bpe.target.model", "bpe.vocab"]
NOT_WRITTEN += ["dropped.txt", "runs.json", "seen.safetensors", "bin/dataset.json"]


@pytest.mark.parametrize("name", NOT_WRITTEN)
@pytest.mark.parametrize("force", [False, True])
def test_files_that_prepare_did_not_write_are_not_overwritten(data_dir, recipe, name, force):
    write_text(data_dir / name, "mine")
    pattern = f"{name} was not written by tfm prepare: move it" if force else f"{name}.*--force"
    with pytest.raises(UsageError, match=pattern):
        prepare(recipe, data_dir, force=force)
    assert contents(data_dir)[name] == b"mine"


def test_other_files_in_the_folder_stay(data_dir, tmp_path):
    files = write_files(tmp_path, train_en="a b\nc\nc\n", train_de="d e\nf\nf\n")
    for name in ("ready/thesis.tex", "ready/manifest.json", "draft/notes", "mono.d/x", "test.gold"):
        write_text(data_dir / name, "mine")
    (data_dir / "mono.link").symlink_to("draft")
    before, recipe = contents(data_dir), recipe_from_files(name="x", **files)
    for force in (False, True):
        prepare(recipe, data_dir, text_only=True, force=force)
        assert before.items() <= contents(data_dir).items()
        assert (data_dir / "mono.link").is_symlink()
    mono = (MonoText(language="d", text=str(tmp_path / "train.en")),)
    with pytest.raises(UsageError, match=r"mono\.d: it is a folder"):
        prepare(dataclasses.replace(recipe, mono=mono), data_dir, text_only=True)
    assert not prepare(recipe, data_dir, text_only=True).is_new
    assert before.items() <= contents(data_dir).items()


def test_examples_of_a_call_that_was_stopped_are_replaced(data_dir, tmp_path, monkeypatch):
    files = write_files(tmp_path, train_en="a b\nc\nc\n", train_de="d e\nf\nf\n")
    recipe = recipe_from_files(name="x", **files)
    with monkeypatch.context() as patch:
        patch.setattr(Draft, "publish", Mock(side_effect=InterruptedError))
        with pytest.raises(InterruptedError):
            prepare(recipe, data_dir, text_only=True)
    assert (data_dir / "dropped.txt").exists()
    assert prepare(recipe, data_dir, text_only=True).is_new


def test_a_text_is_never_read_and_overwritten_at_once(tmp_path):
    recipe = recipe_from_files(name="x", **write_files(tmp_path, train_en="a\n", train_de="b\n"))
    with pytest.raises(UsageError, match="read and overwritten"):
        prepare(recipe, tmp_path, text_only=True, force=True)


def test_missing_validation_text_is_warned_of(data_dir, tmp_path, capsys):
    files = write_files(tmp_path, train_en="a\nb\n", train_de="c\nd\n")
    prepare(recipe_from_files(name="x", **files), data_dir, text_only=True)
    assert Manifest.load(data_dir).splits() == ["train"]
    assert list(counts(data_dir)) == ["train"]
    assert "no validation text" in capsys.readouterr().err
    assert not (data_dir / "raw").exists()


LATIN = "".join(f"Zeile {i} über\n" for i in range(50))
BAD_TEXTS = [
    ({"train_en": "a\nb\nc\n", "train_de": "d\n"}, r"train\.en has 3 lines.*train\.de has 1"),
    ({"test_en": "a\nb\nc\n", "test_de": "d\n"}, r"test\.en has 3 lines.*test\.de has 1"),
    ({"train_en": "", "train_de": ""}, r"train text is empty: .*train\.en, .*train\.de"),
    ({"train_en": "same\n", "train_de": "same\n"}, "1 copy"),
    (
        {"train_en": LATIN, "train_de": LATIN.encode("latin-1")},
        r"50 of 50 pairs .*train\.de are not UTF-8: .*iconv",
    ),
    ({"test_en": b"good\nb\xffd\n", "test_de": "x\ny\n"}, r"test\.en, line 2"),
]


@pytest.mark.parametrize(("texts", "message"), BAD_TEXTS)
def test_text_that_is_not_usable_is_named_and_nothing_is_written(tmp_path, texts, message):
    files = write_files(tmp_path, **{"train_en": "a\n", "train_de": "b\n"} | texts)
    recipe = recipe_from_files(name="x", **files)
    with pytest.raises(DataError, match=message):
        prepare(recipe, tmp_path / "data", text_only=True)
    assert {path.name for path in (tmp_path / "data").iterdir()} <= {".lock", ".draft"}


def test_records_that_are_not_utf8_are_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes('{"en": "over", "de": "über"}\n'.encode("latin-1") * 9)
    recipe = recipe_from_files(name="x", train=[(path, path)], languages=("en", "de"))
    with pytest.raises(DataError, match=r"x\.jsonl are not UTF-8: .*x\.jsonl, line 1 .*iconv"):
        prepare(recipe, tmp_path / "data", text_only=True)


def test_other_text_that_is_not_usable_is_named(tmp_path, prepare_text, recipe):
    (tmp_path / "mono").write_bytes("Привет\nмир\n".encode("KOI8-R"))
    mono = (MonoText(language="de", text=str(tmp_path / "mono")),)
    with pytest.raises(DataError, match=r"2 of 2 lines of .*mono are not UTF-8: .*iconv"):
        prepare_text(dataclasses.replace(recipe, mono=mono))
    (tmp_path / "m.csv").write_text('"a, b",1\n')
    table = (MonoText(language="de", text=str(tmp_path / "m.csv")),)
    with pytest.raises(DataError, match=r"m\.csv is a table \(CSV\), not one sentence per line: "):
        prepare_text(dataclasses.replace(recipe, mono=table))
    prepare_text()
    valid = (dataclasses.replace(recipe.valid[0], lines=3000),)
    with pytest.raises(DataError, match="4 lines, but should have 3,000"):
        prepare_text(dataclasses.replace(recipe, name="other", valid=valid), force=True)
    # The older dataset needs its manifest until all text of the new one is complete.
    assert not prepare_text().is_new


def test_hashes_of_all_texts_are_on_the_disk_of_the_dataset(prepare_text, recipe, monkeypatch):
    monkeypatch.setattr(lines_module, "_CHUNK_BYTES", 0)
    monkeypatch.setattr(hashes, "_MAX_HASHES_IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    mono = (MonoText(language="de", text=__file__),)
    assert prepare_text(dataclasses.replace(recipe, mono=mono)).is_new


@pytest.mark.parametrize("force", [False, True])
def test_a_failure_leaves_the_older_dataset_unchanged(data_dir, tmp_path, force):
    texts = {"train": "a b c\n" * 3, "valid": "d\n", "test": "e\n"}
    sides = {f"{name}_{lang}": text for name, text in texts.items() for lang in ("en", "de")}
    files = write_files(tmp_path, **(sides | {"train_de": "f g h\n" * 3}))
    settings = {"cleaning": {"drop_duplicates": False}, "binarize": {"threads": 1}}
    prepare(
        recipe_from_files(name="x", **files),
        data_dir,
        overrides=settings | {"subword": {"vocab_size": 268}},
    )
    before = contents(data_dir)
    write_files(tmp_path, train_de="too\nfew\n", valid_en="new\n", valid_de="neu\n")
    if force:  # the other direction, and a split less, too
        del files["test"]
        files = {split: [pair[::-1] for pair in pairs] for split, pairs in files.items()}
    with pytest.raises(DataError, match="line N of one must be"):
        prepare(
            recipe_from_files(name="x", **files),
            data_dir,
            overrides=settings | {"subword": {"vocab_size": 270}},
            force=force,
        )
    after = contents(data_dir)
    assert {name: after[name] for name in after if not name.startswith(".draft/")} == before


def test_too_few_training_pairs_are_warned_of(data_dir, tmp_path, capsys):
    for count, is_warned in [(3, True), (999, True), (1_000, False)]:
        texts = {"train_en": "".join(f"line {i}\n" for i in range(count))}
        texts["train_de"] = texts["train_en"].replace("line", "Zeile")
        files = write_files(tmp_path, **texts)
        prepare(recipe_from_files(name="x", **files), data_dir, text_only=True)
        warning = f"warning: a model cannot learn from {count:,} training pairs: "
        assert (warning in capsys.readouterr().err) == is_warned


def test_text_alone_leaves_a_subword_model_of_another_program_for_binarizing(data_dir, tmp_path):
    files = write_files(tmp_path, train_en="a b c\n" * 3, train_de="d e f\n" * 3)
    data_dir.mkdir()
    (data_dir / "bpe.model").write_text("a model's own")
    prepare(recipe_from_files(name="x", **files), data_dir, text_only=True)
    assert (data_dir / "bpe.model").read_text() == "a model's own"


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_held_out_pairs_that_are_in_the_training_text_are_counted_and_warned_of(
    data_dir, tmp_path, capsys, drop_duplicates
):
    files = write_files(
        tmp_path,
        train_en="a\nb  x\nMüller\nd\n",
        train_de="A\nB x\nC\nD\n",
        valid_en=f"b   x\nnew\nd\n{NFD}\n",
        valid_de="B x\nNeu\nother\nC\n",
        test_en="new\n",
        test_de="Neu\n",
    )
    overrides = {"cleaning": {"drop_duplicates": drop_duplicates}}
    recipe = recipe_from_files(name="x", **files)
    prepare(recipe, data_dir, text_only=True, overrides=overrides)
    entries = counts(data_dir)
    assert (entries["valid"]["in_training"], entries["test"]["in_training"]) == (2, 0)
    [warning] = [
        line for line in capsys.readouterr().err.splitlines() if "training text, too" in line
    ]
    assert "2 of the 4 pairs of the valid text" in warning


@pytest.mark.parametrize("is_composed", [True, False])
def test_unicode_is_composed_in_all_splits_unless_it_is_off(data_dir, tmp_path, is_composed):
    files = write_files(
        tmp_path, train_en=f"a {NFD}\nb\n", train_de="A\nB\n", valid_en="c\n", valid_de=f" {NFD}\n"
    )
    recipe = recipe_from_files(name="x", **files)
    cleaning = {"normalize_unicode": is_composed}
    prepare(recipe, data_dir, text_only=True, overrides={"cleaning": cleaning})
    expected = "Müller" if is_composed else NFD
    assert lines(data_dir / "train.en") == [f"a {expected}", "b"]
    assert lines(data_dir / "valid.de") == [f" {expected}"]
    assert counts(data_dir)["train"]["normalized"] == is_composed


def test_characters_of_windows_1252_are_decoded_and_counted(data_dir, tmp_path, capsys):
    source, target = "l\x92homme\nf\xc3\xbcr\nno\n", "der \x84Mann\x93\x85\nnein\nnein\u200b\n"
    files = write_files(tmp_path, train_en=source, train_de=target)
    recipe = recipe_from_files(name="x", **files)
    prepare(recipe, data_dir, text_only=True, overrides={"cleaning": {"drop_mojibake": True}})
    assert lines(data_dir / "train.en") == ["l’homme", "no"]
    assert lines(data_dir / "train.de") == ["der „Mann“…", "nein"]
    report = counts(data_dir)["train"]
    numbers = (report["windows_1252"], report["normalized"], report["dropped"]["mojibake"])
    assert numbers == (1, 2, 1)
    assert "as Windows-1252 in 1" in capsys.readouterr().err


def with_tags(folder, train, **options):
    files = write_files(
        folder, train_en=train, train_de="A\nB\nC\nD\n", valid_en="<bt> a\nb\n", valid_de="A\nB\n"
    )
    recipe = recipe_from_files(name="x", **files)
    tagged = [
        (dataclasses.replace(text, tag="<bt>", **changes),)
        for [text], changes in ((recipe.train, options), (recipe.valid, {}))
    ]
    return dataclasses.replace(recipe, train=tagged[0], valid=tagged[1])


def test_sources_that_have_their_tag_get_no_second_one(data_dir, tmp_path):
    prepare(with_tags(tmp_path, "<bt> a\nb\n<bt>\tc\n<bt>\n"), data_dir, text_only=True)
    assert lines(data_dir / "train.en") == ["<bt> a", "<bt> b", "<bt> c"]
    assert lines(data_dir / "valid.en") == ["<bt> a", "<bt> b"]
    report = counts(data_dir)
    assert report["train"]["dropped"]["empty"] == 1
    assert report["valid"]["in_training"] == 2


@pytest.mark.parametrize("options", [{}, {"every": 3}, {"except_every": 2}], ids=str)
def test_a_source_with_another_tag_is_named(data_dir, tmp_path, options):
    recipe = with_tags(tmp_path, "a\nb\n<2de> c\nd\n", **options)
    overrides = {"subword": {"symbols": "<2de>"}}
    with pytest.raises(DataError, match=r"train\.en, line 3 begins with the tag <2de>, .* <bt>"):
        prepare(recipe, data_dir, text_only=True, overrides=overrides)


@pytest.mark.parametrize("columns", [None, (1, 2), (3, 2)])
@pytest.mark.parametrize("num_shares", [0, 2])
def test_rows_of_a_table_that_cannot_be_used_are_dropped_and_counted(
    data_dir, tmp_path, monkeypatch, columns, num_shares
):
    monkeypatch.setattr("tfm.text.lines._MAX_LINE_BYTES", 1 << 20)
    more = "" if columns is None else "\tline {0} again\tnote"
    rows = [f"line {i}\tZeile {i}{more.format(i)}".encode() for i in range(200)]
    bad = [b"no tab", b"x" * (3 << 20), b"\xff\t\xff\t\xff", b"y\t" + b"z" * (1 << 20), b""]
    path = tmp_path / "c.tsv.gz"
    path.write_bytes(gzip.compress(b"\n".join([*rows[:100], *bad, *rows[100:], b"", b""])))
    recipe = recipe_from_files(
        name="x", train=[(path, path)], languages=("en", "de"), columns=columns
    )
    overrides = {"cleaning": {"shard_pairs": 103 if num_shares else 1000}}
    prepare(recipe, data_dir, overrides, fetch_only=True)
    for number in range(1, num_shares + 1):
        prepare(recipe, data_dir, overrides, share=Share(number, num_shares))
    assert prepare(recipe, data_dir, overrides, text_only=True).is_new
    assert not prepare(recipe, data_dir, overrides, text_only=True).is_new
    assert not (data_dir / "raw").exists()
    again = " again" if columns == (3, 2) else ""
    files = Manifest.load(data_dir).shard_files(["train"])
    sources, targets = ([line for each in files for line in lines(each[side])] for side in (0, 1))
    assert sources == [f"line {i}{again}" for i in range(200)]
    assert targets == [f"Zeile {i}" for i in range(200)]
    dropped = counts(data_dir)["train"]["dropped"]
    assert {rule: number for rule, number in dropped.items() if number} == {
        "columns": 3 + (columns is None),
        "huge_line": 2,
        **({} if columns is None else {"not_utf8": 1}),
    }
    assert "\nno tab\t\n" in (data_dir / "dropped.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("split", "row", "columns", "message"),
    [
        ("test", "no tab", None, "line 2 has no tab, but needs two: .* --columns 2,3"),
        ("valid", "a\tb\tc", None, "line 2 has 3 columns .* --columns"),
        ("valid", "a\tb", (2, 3), "line 1 has 2 columns .* needs 3: .* --columns"),
        ("test", "", None, "line 2 has no tab"),
        ("test", "x" * (1 << 24) + "\ty", None, "line 2 has 16 MiB or more"),
        ("train", "a\tb\tc\na\tb\tc", None, "line 2 has 3 columns .* --columns 2,3"),
    ],
)
def test_a_bad_row_of_other_text_or_most_of_them_are_named(tmp_path, split, row, columns, message):
    files = {"train": [write_pairs(tmp_path, "train", TRAIN)]}
    path = tmp_path / "c.tsv"
    path.write_text(f"a\tb\n{row}\n")
    recipe = recipe_from_files(name="x", **files | {split: [(path, path)]}, columns=columns)
    with pytest.raises(DataError, match=rf"c\.tsv, {message}"):
        prepare(recipe, tmp_path / "data", text_only=True)


@pytest.mark.parametrize("held_out", ["by hand", "of the text"])
def test_a_table_none_of_whose_rows_can_be_used_is_not_said_to_be_swapped(tmp_path, held_out):
    path = tmp_path / "c.csv"
    pairs = [
        (f"the red house {n}", f"Das Haus Nummer {n} ist so rot wie ein Herbstblatt.")
        for n in range(300)
    ]
    path.write_text("Englisch;Deutsch;Status\n" + "".join(f"{s};{t};ok\n" for s, t in pairs))
    valid = {"valid": [write_pairs(tmp_path, "valid", pairs)]} if held_out == "by hand" else {}
    recipe = recipe_from_files(name="x", train=[(path, path)], languages=("en", "de"), **valid)
    options = {} if valid else {"cleaning": {"hold_out": 5}}
    with pytest.raises(DataError, match=r"c\.csv, line 1 has 3 columns .* --columns 2,3"):
        prepare(recipe, tmp_path / "data", options, text_only=True)


def small(recipe):
    """A recipe with 400 of its 20,000 pairs, and 20 of 500 in the other splits."""
    splits = {
        split: tuple(dataclasses.replace(text, every=every) for text in recipe.texts(split))
        for split, every in {"train": 50, "valid": 25, "test": 25}.items()
    }
    return dataclasses.replace(recipe, **splits)


def test_a_recipe_becomes_a_binarized_dataset_and_is_not_prepared_again(tmp_path, capsys):
    recipe = small(load_recipe("numbers-en-de"))
    overrides = {"subword": {"vocab_size": 150}, "binarize": {"threads": 1}}
    assert prepare(recipe, tmp_path / "data", overrides=overrides).is_new
    manifest = Manifest.load(tmp_path / "data")
    assert manifest.result("learn-bpe")["vocab_sizes"] == [150]
    assert manifest.result("binarize")["test"]["kept"] == 20
    capsys.readouterr()
    assert not prepare(recipe, tmp_path / "data", overrides=overrides).is_new
    assert capsys.readouterr().err.count("unchanged") == 3


def test_a_link_to_itself_is_one_error(tmp_path):
    train = write_files(tmp_path, train_en="a\n", train_de="b\n")["train"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.en").symlink_to("train.en")
    recipe = recipe_from_files(name="x", train=train)
    with pytest.raises(UsageError, match=r"train\.en: .*symbolic links"):
        prepare(recipe, tmp_path / "data", text_only=True)


@pytest.mark.parametrize(("space", "unicode"), [(True, False), (False, True)])
def test_a_model_knows_how_its_training_text_was_normalized(tmp_path, tiny_run, space, unicode):
    recipe = recipe_from_files(name="x", train=[write_pairs(tmp_path, "train", TRAIN)])
    cleaning = {"normalize_space": space, "normalize_unicode": unicode}
    prepare(
        recipe, tmp_path / "x", overrides={"cleaning": cleaning, "subword": {"vocab_size": 300}}
    )
    rules = open_data(tmp_path / "x", tiny_run()).info.normalization
    assert rules == Normalization(space=space, unicode=unicode)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(TextSources, "fetch", lambda self: pytest.fail("it was fetched"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 29 * 10**9))
    with pytest.raises(DataError, match=r"data will take about 29\.5 GB, but only 29\.0 GB are"):
        prepare(load_recipe("wmt14-en-fr"), tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").rglob("*")] == [".lock"]
