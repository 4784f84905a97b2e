"""Formats of text: every command reads the same lines, and refuses by name what has none."""

import pytest
from text_readers import EVERY_READER, READERS, read_sources, write

from tfm.errors import DataError, UsageError
from tfm.metrics import texts
from tfm.text.corpus.loading import recipe_from_files
from tfm.text.formats import FORMATS, columns_in
from tfm.text.looks import look
from tfm.text.sources import Downloads, TextSources
from tfm.translation.reader import LineReader

SEGMENTS = ["Ein <b>Hund</b> & eine Katze.", "", "Zwei \"'Wörter'\".", "&amp; &nbsp; &#0; &#xD800;"]
SGML = """<refset setid="x" srclang="any" trglang="de">
<DOC docid="a" sysid="ref"><hl><SEG
 id="1"
> Ein &lt;b&gt;Hund&lt;/b&gt; &amp; eine
  Katze. </SEG></hl><seg id="2"/><seg id="3">Zwei &quot;&apos;W&#246;rt&#x65;r&apos;&quot;.</seg>
<seg id="4">&amp;amp; &nbsp; &#0; &#xD800;</seg></doc></refset>"""
WMT = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="wmt">
 <doc id="one" origlang="en">
  <src lang="en"><p><seg id="1">A &lt; B</seg><seg id="2">Two.</seg></p><seg id="3">No.</seg></src>
  <ref lang="de" translator="B"><p><seg id="1">A und B</seg></p></ref>
  <ref lang="de" translator="A"><p><seg id="1">A &lt; B!</seg><seg id="2">Zwei.</seg></p></ref>
  <ref lang="de" translator="C"><p><seg id="2">Zweie.</seg><seg id="1">AB</seg></p></ref>
  <hyp system="Online"><seg id="2">Zwo.</seg><seg id="1">B.</seg><seg id="3">X</seg></hyp>
 </doc>
 <doc id="two" origlang="en" testsuite="t"><src lang="en"><seg id="1">Test.</seg></src></doc>
</dataset>"""


def by_second_column(path):
    with LineReader(path, path, parts=("src", "ref")) as reader:
        return [line.given for chunk in reader for line in chunk]


def by_prepare(path, column=0):
    texts = [(path, path)] if column is None else [(path, path.with_name("other.de"))]
    recipe = recipe_from_files(name="x", train=texts, languages=("en", "de"))
    sources = TextSources(recipe, data_dir=path.parent / "data", downloads=Downloads())
    return [[side.decode() for side in pair] for pair in sources.pairs(recipe.train[0], "valid")]


@EVERY_READER
@pytest.mark.parametrize(
    "name", ["x.sgm", "x.SGM", "x.de.sgml", "x.sgm.gz", "x.Sgm.GZ", "x.sgm.bz2", "x.txt", "x"]
)
def test_every_reader_reads_segments(tmp_path, reader, name):
    assert READERS[reader](write(tmp_path, "\ufeff" + SGML, name)) == SEGMENTS


@EVERY_READER
@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.html", "x", "HTML.*--format html"),
        ("A.HTM.GZ", "x", "HTML.*--format html"),
        ("a.txt", "\n<!doctype html>\n<p>x", "HTML.*--format html"),
        ("a.en", '<?xml version="1.0"?>\n<!-- x -->\n<html xmlns="x">', "HTML.*--format html"),
        ("a.xml", "<p>x</p>", "XML.*--format xml"),
        ("a", "<?xml version='1.0'?><resources/>", "XML.*--format xml"),
        ("a.xml", "<?xml version='1.0'?><tmx><tuv><seg>x</seg></tuv></tmx>", "TMX.*per line"),
        ("a.tmx", "x", "TMX.*per line"),
        ("a.xlf", "x", "XLIFF"),
        ("a.txt", "<xliff version='1.2'>", "XLIFF"),
        ("a.srt", "x", "SubRip.*--format srt"),
        ("a.txt", "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\nx\r\n", "SubRip.*--format srt"),
        ("a.txt", "1\n00:00:00.000 --> 00:00:01.000\nx\n", "SubRip.*--format srt"),
        ("a.sbv", "0:00:01.000,0:00:02.000\nx\n", "SubViewer"),
        ("a.LRC", "x", "LRC"),
        ("a.sub", "{1}{50}x\n", "MicroDVD"),
        ("a.strings", "x", "a resource file"),
        ("a.ftl.gz", "x", "a resource file"),
        ("a.vtt", "x", "WebVTT.*--format srt"),
        ("a.txt", "WEBVTT\n\n", "WebVTT.*--format srt"),
        ("a.TSV", "x\ty", "TSV.*cut -f"),
        ("a.csv.xz", "x,y", "CSV"),
        ("a.json", "x", "JSON"),
        ("a.txt", '{\n  "text": "x"\n}', "JSON"),
        ("a.txt", '[{"text": "x"}]', "JSON"),
        ("a.txt", '[\n  "x",\n  "y"\n]', "JSON"),
        ("a.po", "x", "PO"),
        ("a.txt", '# Copyright\n\nmsgid ""\nmsgstr ""\n', "PO"),
        ("README.md", "# x", "Markdown"),
        ("a.yaml", "x", "YAML"),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path, reader, name, content, kind):
    path = write(tmp_path, content, name)
    if "stdin" in reader and path.suffix not in (".txt", ""):
        return  # such a format is recognized by its suffix only
    with pytest.raises(DataError, match=rf"^[^\n]+ is [^\n]*{kind}[^\n]*$"):
        READERS[reader](path)


ORDINARY = [
    *("<T> x", "{ x", "{", "[", "<?", "[ 1 ]", "# 1", "1", "msg", '"a": 1', "---", "WEB", "[["),
    *("\\begin", "List<T> x = new List<T>();", "if (a < b && c > d) { return {}; }", "{ x }"),
    *("rose ( x _ 1 ##", "[Music] la", "@@ROWCOUNT", "a@b.de", "▁▂▃▅▇", "## Heading", "<T> a"),
    *("[1] x", "__init__ x", "__NAME__ x", "<unk> x", "2de x", "I_AM x", "R&D", "1 < 2 > 0"),
    *("{0} x", "[a] x", "I love my dog ##blessed", "a ##b", "Sparkline: ▁ ▂", "max@@ bitte"),
    *('"Yes."', "Ġorġ u Ġanni", "a_ b"),
]


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_text_has_no_format_and_shows_nothing(tmp_path, line):
    assert not [*look([line])]
    for name in ("a.en", "a.zh_Hans", "a.txt", "a.v2", "a.tok"):
        path = write(tmp_path, f"{line}\n{line}\n", name)
        for reader in READERS.values():
            assert reader(path) == [line] * 2


def test_parts_of_wmt_are_the_lines_that_a_reference_translates(tmp_path, capsys):
    path = write(tmp_path, WMT, "wmt.xml")
    assert read_sources(path) == ["A < B", "Two."]
    assert by_second_column(path) == ["A < B!", "Zwei."]  # B lacks one
    assert by_prepare(path, None) == [["A < B", "A < B!"], ["Two.", "Zwei."]]
    assert texts.read_lines(path) == ["B.", "Zwo."]
    assert list(texts.read_references([path], "").values()) == [
        ["A < B!", "Zwei."],
        ["AB", "Zweie."],
    ]
    assert "(ref:B 1, ref:A 2, ref:C 2 of 2 lines): those are left out" in capsys.readouterr().err
    neither = write(
        tmp_path, WMT.replace('<seg id="2">Zwei.</seg>', "").replace(">AB<", "><"), "two.xml"
    )
    assert texts.read_references([neither], "") == {f"{neither} (ref)": ["A und B", "Zweie."]}
    complete = [name for name, lines in columns_in(path).items() if all(lines)]
    assert complete == ["src", "ref:A", "ref:C", "hyp:Online"]
    lines = [line for line in WMT.splitlines() if "<ref" not in line and "<hyp" not in line]
    without = write(tmp_path, "\n".join(lines), "src.xml")
    assert read_sources(without) == ["A < B", "Two.", "No.", "Test."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WMT.replace("<src", "<x").replace("</src", "</x"), "no <src>.*ref:B"),
        (WMT.replace('id="2"', 'id="1"'), "two segments 1"),
    ],
)
def test_a_part_that_is_missing_or_damaged_is_named(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_sources(write(tmp_path, content, "wmt.xml"))


def test_several_systems_and_one_sided_pairs_are_refused(tmp_path):
    second = WMT.replace("</hyp>", '</hyp><hyp system="B"><seg id="1">x</seg></hyp>')
    with pytest.raises(DataError, match=r"several.*hyp:Online, hyp:B"):
        texts.read_lines(write(tmp_path, second, "wmt.xml"))
    with pytest.raises(DataError, match="no <src>"):
        by_prepare(write(tmp_path, SGML, "x.sgm"), None)
    with pytest.raises(UsageError, match="two files"):
        by_prepare(write(tmp_path, "a", "x.txt"), None)


def test_references_in_sets_are_told_apart_by_their_names(tmp_path):
    one = SGML.replace('sysid="ref"', 'sysid="one"')
    two = (
        one.replace("one", "two")
        .replace("Zwei", "2")
        .replace('<seg id="2"/>', '<seg id="2">b</seg>')
    )
    path = write(tmp_path, one + two, "x.sgm")
    assert texts.read_lines(path, part="ref") == [
        SEGMENTS[0],
        "b",
        SEGMENTS[2].replace("Zwei", "2"),
        SEGMENTS[3],
    ]


def test_formats_have_distinct_suffixes():
    suffixes = [suffix for each in FORMATS for suffix in each.suffixes]
    assert sorted({each.lower() for each in suffixes}) == sorted(suffixes)
