"""Test sets by name: read as sacreBLEU reads them, from archives of its names and checksums."""

import gzip
import hashlib
import io
import json
import shlex
import shutil
import sys
import tarfile
import zipfile

import pytest
from helpers import edit_model, write_pairs
from sacrebleu import dataset as sacre
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset
from sacrebleu.dataset.plain_text import PlainTextDataset
from sacrebleu.dataset.tsv import TSVDataset
from sacrebleu.dataset.wmt_xml import WMTXMLDataset

import tfm
from tfm.dataset.manifest import Manifest
from tfm.dataset.test_sets import NamedSet
from tfm.errors import DataError, DownloadError, UsageError
from tfm.folders.run_folder import checkpoints
from tfm.text.sources import Downloads

SOURCE = ["Two dogs &amp; a cat.", "It's  5 o'clock, isn't it?", "Türkçe, 中文, العربية 😀"]
TARGET = ["Zwei Hunde &amp; eine Katze.", "Es ist fünf, oder?", "Türkisch, 中文, العربية 😀"]
SECOND = ["Zwei Hunde und eine Katze.", "Es ist 5 Uhr, nicht wahr?", "Türkisch usw. 😀"]


def write(path, content):
    path.write_bytes(content)
    return path


def sgm(lines):
    segments = "\n".join(f'<seg id="{n}">{line}</seg>' for n, line in enumerate(lines, 1))
    return f'<srcset setid="x">\n<doc docid="d" origlang="en">\n<p>\n{segments}\n</p>\n</doc>\n'


def xml(source, references):
    def segments(lines):
        return "".join(f'<seg id="{n}">{line}</seg>' for n, line in enumerate(lines, 1))

    ref = "".join(
        f'<ref lang="de" translator="{name}"><p>{segments(lines)}</p></ref>'
        for name, lines in references.items()
    )
    return (
        '<dataset id="x"><collection id="general"><doc origlang="en" id="d">'
        f'<src lang="en"><p>{segments(source)}</p></src>{ref}</doc></collection></dataset>'
    )


def tgz(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


def zipped(members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return packed.getvalue()


def lines(texts):
    return "".join(f"{text}\n" for text in texts)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Return a mirror of test sets of every format, which sacreBLEU then knows."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path / "sacrebleu"))

    def add(kind, name, files, langpairs, **others):
        for file, content in files.items():
            write(folder / f"{name.replace('/', '_')}.{file}", content)
        entry = kind(
            name,
            data=[f"https://test.invalid/{file}" for file in files],
            md5=[hashlib.md5(content).hexdigest() for content in files.values()],
            langpairs=langpairs,
            **others,
        )
        monkeypatch.setitem(sacre.DATASETS, name, entry)

    sides = {"sgm/a.en.sgm": sgm(SOURCE), "sgm/b.de.sgm": sgm(TARGET), "sgm/c.de.sgm": sgm(SECOND)}
    one = ["sgm/a.en.sgm", "sgm/b.de.sgm"]
    add(
        FakeSGMLDataset,
        "sgm14",
        {"test.tgz": tgz(sides)},
        {"en-de": one, "de-en": one[::-1], "cs-en": one},
    )
    add(FakeSGMLDataset, "sgm14/two", {"test.tgz": tgz(sides)}, {"en-de": [*sides]})
    add(
        WMTXMLDataset,
        "xml24",
        {"v1.tar.gz": tgz({"xml/en-de.xml": xml(SOURCE, {"A": TARGET, "B": SECOND})})},
        {"en-de": {"path": "xml/en-de.xml", "refs": ["B", "A"]}},
    )
    columns = lines("\t".join(["1", "x", *pair]) for pair in zip(SOURCE, TARGET, strict=True))
    tsv = ["2:M/en-de.tsv", "3:M/en-de.tsv"]
    add(TSVDataset, "tsv19", {"M.zip": zipped({"M/en-de.tsv": columns})}, {"en-de": tsv})
    add(
        PlainTextDataset,
        "plain/18",
        {
            "t.tar.gz": tgz({"t.en": lines(SOURCE)}),
            "t.de.gz": gzip.compress(lines(TARGET).encode()),
        },
        {"en-de": ["t.en", "plain_18.t.de.gz"]},
    )
    return folder


def texts_of(name, mirror):
    named = NamedSet.parse(name).between("en", "de")
    return [text.splitlines() for text in named.read(named.fetch(Downloads(mirror=str(mirror))))]


@pytest.mark.parametrize(
    ("name", "references"),
    [
        ("sgm14", [TARGET]),
        ("sgm14/two", [TARGET, SECOND]),
        ("xml24", [[t.replace("&amp;", "&") for t in TARGET], SECOND]),
        ("tsv19", [TARGET]),
        ("plain/18", [TARGET]),
    ],
)
def test_every_format_is_read_as_sacrebleu_reads_it(mirror, name, references):
    source, *found = texts_of(name, mirror)
    expected = [" ".join(line.split()) if name[:3] in ("sgm", "xml") else line for line in SOURCE]
    assert source == [s.replace("&amp;", "&") if name == "xml24" else s for s in expected]
    assert sorted(found) == sorted(references)


def test_a_direction_is_chosen_by_any_codes_of_its_languages(mirror):
    assert NamedSet.parse("sgm14").between("eng", "deu_Latn").pair == "en-de"
    assert NamedSet.parse("sgm14").between("de", "en+fr").pair == "de-en"
    assert NamedSet.parse("sgm14:cs-en").pair == "cs-en"


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("smg14", "en-de", r"no test set 'smg14': did you mean sgm14"),
        ("wmt2014", "en-de", "did you mean wmt14"),
        ("newstest2013", "en-de", "did you mean wmt13"),
        ("日本", "en-de", "no test set '日本': choose among wmt24, "),
        ("sgm14", "en-ja", "sgm14 has no en-ja: it has cs-en, de-en, en-de"),
        ("sgm14:en-ja", "en-de", "sgm14 has no en-ja: it has cs-en"),
        ("sgm14:ende", "en-de", "sgm14 has no ende-: it has cs-en"),
        ("sgm14:de-en", "en-de", "sgm14:de-en is not from en to de"),
        ("sgm14", "de+cs-en", "has cs-en and de-en: name one, as in sgm14:cs-en"),
    ],
)
def test_a_mistake_in_a_name_is_one_line_with_what_to_do(mirror, name, languages, message):
    with pytest.raises(UsageError, match=message):
        NamedSet.parse(name).between(*languages.split("-"))


def test_an_archive_with_another_checksum_is_refused(mirror):
    write(mirror / "tsv19.M.zip", zipped({"M/en-de.tsv": "x\n"}))
    with pytest.raises(
        DownloadError, match=r"tsv19\.M\.zip does not match sacreBLEU's table \(its md5"
    ):
        texts_of("tsv19", mirror)
    (mirror / "tsv19.M.zip").unlink()
    with pytest.raises(DownloadError, match=r"has no file tsv19\.M\.zip: put it there"):
        texts_of("tsv19", mirror)


def test_files_of_the_sacrebleu_command_are_used_in_place(mirror, tmp_path):
    raw = tmp_path / "sacrebleu" / "tsv19" / "raw"
    raw.mkdir(parents=True)
    (mirror / "tsv19.M.zip").rename(raw / "tsv19.M.zip")
    named = NamedSet.parse("tsv19:en-de")
    assert named.fetch(Downloads()) == {"tsv19.M.zip": raw / "tsv19.M.zip"}


@pytest.mark.parametrize("name", ["sgm14", "sgm14:cs-en"])
def test_copies_of_a_set_are_dropped_from_training_text(mirror, tmp_path, name):
    pairs = [(f"Line {number} is new.", f"Neue Zeile {number}.") for number in range(9)]
    copies = [(SOURCE[1], "Etwas anderes."), ("Something else.", TARGET[1].upper())]
    train = write_pairs(tmp_path, "raw", [*pairs, *copies])
    options = {"protect": [name], "mirror": str(mirror), "text_only": True}
    tfm.prepare(train=train, out=tmp_path / "data", **options)
    left = (tmp_path / "data" / "train.en").read_text(encoding="utf-8").splitlines()
    assert left == [source for source, _ in pairs]


def test_a_dataset_is_validated_on_sets_by_their_names(mirror, tmp_path):
    pairs = [(f"Line {number} is new.", f"Neue Zeile {number}.") for number in range(9)]
    options = {"train": write_pairs(tmp_path, "raw", pairs), "mirror": str(mirror)}
    own = write_pairs(tmp_path, "own", pairs[:1])
    tfm.prepare(
        valid=own, valid_set=["sgm14/two"], out=tmp_path / "data", text_only=True, **options
    )
    for side, first, expected in (("en", pairs[0][0], SOURCE), ("de", pairs[0][1], TARGET)):
        text = (tmp_path / "data" / f"valid.{side}").read_text(encoding="utf-8")
        assert text.splitlines() == [first, *(" ".join(line.split()) for line in expected)]
    again = tfm.prepare(
        valid=own, valid_set="sgm14/two", out=tmp_path / "data", text_only=True, **options
    )
    assert not again.is_new
    with pytest.raises(UsageError, match="--valid-set and --append exclude each other"):
        tfm.prepare(valid_set="sgm14", append=True, out=tmp_path / "data", **options)


def test_translations_are_scored_against_a_set_by_its_name(mirror, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "out.de", lines(SECOND).encode())
    result = tfm.score("out.de", test_set="sgm14/two:en-de", mirror=str(mirror))
    assert result.scores == tfm.score("out.de", [TARGET, SECOND], language="de").scores
    assert result.references == ["sgm14/two:en-de reference 1", "sgm14/two:en-de reference 2"]
    with pytest.raises(UsageError, match=r"name them, as in --test-set sgm14:en-de"):
        tfm.score("out.de", test_set="sgm14", mirror=str(mirror))
    with pytest.raises(UsageError, match="--reference exclude each other"):
        tfm.score("out.de", "out.de", test_set="sgm14")
    with pytest.raises(UsageError, match="no effect without --test-set"):
        tfm.score("out.de", "out.de", mirror=str(mirror))
    with pytest.raises(DataError, match="have 1 and 3 lines"):
        tfm.score(["a"], test_set="sgm14:en-de", mirror=str(mirror))


@pytest.fixture
def dataset(mirror, tmp_path, data_dir):
    texts = [(data_dir / f"train.{side}", tmp_path / f"t.{side}") for side in ("en", "de")]
    for text, copied in texts:
        write(copied, text.read_bytes())

    def prepare(*names, **others):
        return tfm.prepare(
            train=[copied for _, copied in texts],
            test_set=names,
            mirror=str(mirror),
            out=tmp_path / "data",
            vocab_size=400,
            **others,
        )

    return prepare


def test_a_dataset_holds_sets_by_name_beside_its_own_text(dataset, tmp_path, capsys):
    assert dataset("sgm14", "sgm14/two").is_new
    folder, manifest = tmp_path / "data", Manifest.load(tmp_path / "data")
    assert manifest.sets() == ["sgm14", "sgm14_two"]
    names = ["sgm14.de", "sgm14.en", "sgm14_two.2.de", "sgm14_two.de", "sgm14_two.en"]
    assert sorted(path.name for path in (folder / "sets").iterdir()) == names
    assert (folder / "sets" / "sgm14_two.2.de").read_text("utf-8") == lines(SECOND)
    before = manifest.result("sets/sgm14")
    assert before == {"pairs": 3, "references": 1}

    capsys.readouterr()
    assert not dataset("xml24", "sgm14").is_new  # the text is unchanged, and a set is added
    assert Manifest.load(folder).sets() == ["sgm14", "sgm14_two", "xml24"]
    assert "test set xml24 (en-de): 3 pairs" in (said := capsys.readouterr().err)
    assert "sgm14" not in said
    with pytest.raises(UsageError, match="sgm14:de-en is not from en to de"):
        dataset("sgm14:de-en")
    with pytest.raises(UsageError, match="--test-set and --append exclude each other"):
        dataset("sgm14", append=True)


def test_a_user_without_a_home_folder_names_another_for_downloads(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user of a number only
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME"):
        NamedSet.parse("wmt14:en-de").fetch(Downloads())


@pytest.mark.parametrize("name", ["sgm14.en", "sgm14.de"])
def test_files_of_others_are_not_replaced(dataset, tmp_path, name):
    (tmp_path / "data" / "sets").mkdir(parents=True)
    write(tmp_path / "data" / "sets" / name, b"mine\n")
    with pytest.raises(UsageError, match=rf"{name} was not written by tfm prepare"):
        dataset("sgm14", text_only=True)
    assert [path.name for path in (tmp_path / "data" / "sets").iterdir()] == [name]


def test_generate_translates_a_set_and_score_knows_all_its_references(
    dataset, mirror, trained_run, tmp_path, monkeypatch
):
    dataset("sgm14/two")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    model = shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "model")
    edit_model(model, data_dir="data")
    tfm.generate(model, split="sgm14/two", output="out.de", device="cpu")
    record = json.loads((tmp_path / "runs" / "last-generation.json").read_text())
    assert record["references"] == ["data/sets/sgm14_two.de", "data/sets/sgm14_two.2.de"]
    scores = tfm.score("out.de").scores
    assert "nrefs:2" in scores[0].signature
    # The languages are those of the last generation.
    assert tfm.score("out.de", test_set="sgm14/two", mirror=str(mirror)).scores == scores
    with pytest.raises(DataError, match="no wmt24 split; it has sgm14_two: give text"):
        tfm.generate(model, split="wmt24", device="cpu")
    with pytest.raises(UsageError, match="belongs to a dataset"):
        tfm.generate(model, split="sgm14/two", output="data/sets/sgm14_two.de")


def test_a_program_that_scores_gets_the_source_of_the_set(mirror, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "length.py", b"import sys\nfor l in sys.stdin: print(len(l.split('\\t')[0]))\n"
    )
    command = f"{shlex.quote(sys.executable)} -X utf8 length.py"
    *_, score = tfm.score(
        TARGET, test_set="tsv19:en-de", mirror=str(mirror), metric_command=command
    ).scores
    assert score.value == pytest.approx(sum(map(len, SOURCE)) / len(SOURCE))
