"""Tables as spreadsheets write them, JSON lines and TMX: what is read, and where damage is."""

import csv
import gzip
import io
import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tfm.errors import DataError
from tfm.text import tmx
from tfm.text.lines import UnusableLine
from tfm.text.records import Records
from tfm.text.tmx import read_tmx

LANGUAGES = ("en", "de")
PAIRS = [('He said "yes", and left; 🙂', "Er sagte „ja“,\nund ging"), ("Two", "Zwei\tDrei")]


def lines_of(pairs):
    return [tuple(" ".join(side.split("\n")) for side in pair) for pair in pairs]


def read(path, columns=None, languages=LANGUAGES, *, strict=True, **options):
    if ".tmx" in path.name.lower():
        pairs = read_tmx(path, languages, **options)
    else:
        pairs = Records.of(path, columns, languages).pairs(strict=strict, **options)
    return [(source.decode(), target.decode()) for source, target in pairs]


def table(rows, dialect="excel", encoding="utf-8", **options):
    text = io.StringIO(newline="")
    csv.writer(text, dialect, **options).writerows(rows)
    return text.getvalue().encode(encoding)


def write(folder, name, content):
    content = content if isinstance(content, bytes) else content.encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder / name


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.csv", {}),
        ("a.CSV.gz", {"delimiter": ";"}),
        ("a.csv", {"delimiter": "\t", "lineterminator": "\n"}),
        ("a.csv", {"quoting": csv.QUOTE_ALL}),
        ("a.tsv", {"dialect": "excel-tab"}),
        ("a.tsv.gz", {"dialect": "excel-tab", "quoting": csv.QUOTE_ALL}),
    ],
    ids=str,
)
def test_tables_are_read_as_spreadsheets_write_them(tmp_path, name, options, encoding):
    """Excel writes commas or semicolons by the country, and tabs in UTF-16."""
    content = table(PAIRS * 3, encoding=encoding, **options)
    path = write(tmp_path, name, content)
    assert read(path) == lines_of(PAIRS * 3)
    assert Records.of(path, None, LANGUAGES).description.startswith(encoding[:5].upper())
    titled = table([("id", "German", "English"), *((1, t, s) for s, t in PAIRS)], **options)
    for columns in (None, (3, 2), ("English", "german")):
        assert read(write(tmp_path, name, titled), columns) == lines_of(PAIRS)
    with pytest.raises(DataError, match=r"no column 'Deutsch' .* only id, German, English: "):
        read(path, ("English", "Deutsch"))


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"'])
def test_the_separator_that_excel_writes_first_is_no_pair(tmp_path, line):
    pairs = [("One, two,", "Eins, zwei,"), ("3,5", "3,5")]
    for rows in (pairs, [("en", "de"), *pairs]):
        content = f"{line}\r\n".encode() + table(rows, delimiter=";")
        assert read(write(tmp_path, "a.csv", content)) == pairs


@pytest.mark.parametrize("titles", [("source", "target"), ("en-GB", "Deutsch"), ("SRC", "ref")])
def test_titles_are_no_pair(tmp_path, titles):
    assert read(write(tmp_path, "a.csv", table([titles, *PAIRS]))) == lines_of(PAIRS)
    assert read(write(tmp_path, "a.tsv", "\t".join(titles) + "\na\tb\n"), (1, 2)) == [("a", "b")]


def test_quotes_in_plain_text_with_tabs_stay(tmp_path):
    pairs = [('"I went home.', "„Ich ging."), ('He said "yes".', 'Er sagte "ja".'), ('"A," b', '"')]
    text = "".join("\t".join(pair) + "\n" for pair in pairs)
    assert read(write(tmp_path, "a.tsv", text)) == pairs


RECORDS = [
    {"id": n, "translation": dict(zip(LANGUAGES, p, strict=True))} for n, p in enumerate(PAIRS)
]


@pytest.mark.parametrize("ascii_", [True, False])
@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz"])
def test_json_lines_are_read_by_keys(tmp_path, name, ascii_):
    content = "\n\n".join(json.dumps(each, ensure_ascii=ascii_) for each in RECORDS)
    path = write(tmp_path, name, content)
    for columns in (None, ("translation.en", "translation.de")):
        assert read(path, columns) == lines_of(PAIRS)
    flat = "".join(json.dumps({"de-AT": [t], "en.x": s}) + "\r\n" for s, t in PAIRS)
    path = write(tmp_path, name, flat.encode("utf-16"))
    assert read(path, ("en.x", "de-AT.0")) == lines_of(PAIRS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'a,b\n"c,d\ne,f\n', "line 2 has a quote that does not end"),
        ("a.csv", 'a,b\n"c"d,e\n', "line 2 has a quote"),
        ("a.csv", 'a,b\n"c\nd",e\nf\n', "line 4 has no comma, but needs two: .* --columns 2,3"),
        ("a.csv", "a;b\nc;d\ne;f;g\n", "line 3 has 3 columns separated by semicolons"),
        ("a.csv", b"a,b\n\xff,c\n", "line 2 is not UTF-8"),
        ("a.csv", "a,b\n".encode("utf-16") + b"\0\xd8", "UTF-16, but damaged at byte 11"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"\n', "line 2 is no JSON .* column 11"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"}\n', "line 2 has no text at de: "),
        ("a.jsonl", '{"en": "a", "de": 3}\n', "line 1 has no text at de: "),
        ("a.jsonl", '{"en": "a", "de": "\\ud800"}\n', "line 1 has half a character at de"),
        ("a.jsonl", '{"en": "a", "de": "\\udc80"}\n', "line 1 has half a character at de"),
        ("a.jsonl", "\n", "is empty"),
        ("a.csv", "", "is empty"),
        ("a.jsonl", '{"src": "a", "mt": "b"}\n', "line 1 has the keys src, mt: .* --columns"),
        ("a.jsonl", "[1]\n", "line 1 is no object"),
        ("a.jsonl", "[" * 100_000, "line 1 is no JSON .*recursion"),
        ("a.tmx", "<tmx>\n<tu></tmx>", "line 2, column 7: mismatched tag"),
        ("a.tmx", "<tmx><tu>", "line 1, column 10: no element found"),
        ("a.tmx", "<html/>", "is no TMX: its first tag is <html>"),
        ("a.tmx", '<tmx><tuv xml:lang="fr-CA"/></tmx>', "no units in en and de, only in fr-CA"),
        ("a.tmx", "<?xml version='1.0' encoding='big5'?><tmx/>", "column 31: its encoding"),
        ("a.tmx", "<!DOCTYPE tmx [<!ENTITY a 'aaa'>]><tmx/>", "it declares the entity a"),
    ],
)
def test_damage_is_one_line_with_its_place(tmp_path, name, content, message):
    with pytest.raises(DataError, match=rf"^[^\n]*{name}[^\n]*{message}[^\n]*$"):
        read(write(tmp_path, name, content))


def test_damaged_records_of_training_text_do_not_take_the_next_ones(tmp_path):
    rows = table(PAIRS * 3).decode()
    path = write(tmp_path, "a.csv", f'5" wide,b\n{rows}"never,ends\n' + rows)
    pairs = [*Records.of(path, None, LANGUAGES).pairs(strict=False)]
    good = [tuple(map(bytes.decode, p)) for p in pairs if not isinstance(p[0], UnusableLine)]
    assert good == [('5" wide', "b"), *lines_of(PAIRS * 6)]
    assert len(pairs) == len(good) + 1
    with pytest.raises(DataError, match="has 14 lines, but should have 9"):
        [*Records.of(path, None, LANGUAGES).pairs(strict=False, num_lines=9)]


CELLS = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs", "Cc"]))
CELLS = st.lists(CELLS.map(str.strip), min_size=1, max_size=3).map("\n".join)
QUOTINGS = st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])


def joined(cell):
    return " ".join(filter(None, cell.split("\n")))


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1), QUOTINGS, st.sampled_from(",;\t"))
def test_both_formats_come_back_as_other_programs_write_them(
    tmp_path_factory, pairs, quoting, delimiter
):
    rows = [("english", "german"), *pairs]
    path = write(
        tmp_path_factory.getbasetemp(),
        "back.csv",
        table(rows, delimiter=delimiter, quoting=quoting),
    )
    expected = [(joined(source), joined(target)) for source, target in pairs]
    assert read(path, ("english", "german")) == expected
    root = etree.Element("tmx", version="1.4")
    for pair in pairs:
        unit = etree.SubElement(root, "tu")
        for language, text in zip(LANGUAGES, pair, strict=True):
            lang = {"{http://www.w3.org/XML/1998/namespace}lang": language}
            etree.SubElement(etree.SubElement(unit, "tuv", lang), "seg").text = text
    path = tmp_path_factory.getbasetemp() / "back.tmx"
    etree.ElementTree(root).write(path, encoding="utf-16", xml_declaration=True)
    assert read(path) == expected


# --- TMX

OPUS = """<?xml version="1.0" encoding="UTF-8" ?>
<tmx version="1.4">
<header creationdate="Mon Jan 28 13:46:46 2013"
          srclang="de"
          adminlang="de"
          o-tmf="unknown"
          segtype="sentence"
          creationtool="Uplug"
          creationtoolversion="unknown"
          datatype="PlainText" />
  <body>
    <tu>
      <tuv xml:lang="de"><seg>Hallo &amp; tschüs!</seg></tuv>
      <tuv xml:lang="en"><seg>Hello &amp; bye!</seg></tuv>
    </tu>
  </body>
</tmx>"""
TRADOS = """<?xml version="1.0" encoding="%s"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
<header creationtool="TRADOS Translator's Workbench for Windows" segtype="sentence" o-tmf="TW4Win"
 adminlang="EN-US" srclang="EN-US" datatype="rtf"><prop type="RTFFontTable">
{\\fonttbl {\\f1 \\fcharset0 Arial;}}</prop></header>
<body>
<tu creationdate="20010101T000000Z"><prop type="Txt::Client">x</prop>
<tuv xml:lang="EN-US"><seg>Press {\\ut}<ut>{\\cs6\\b </ut>OK<ut>}</ut>&nbsp;&#233;.</seg></tuv>
<tuv xml:lang="DE-DE"><seg>Drücken Sie <bpt i="1" x="1">{\\b <sub>fn</sub></bpt>OK<ept i="1">}</ept>
   <ph x="2"/>oder <hi>é</hi>.</seg></tuv>
<tuv lang="de-AT"><seg>Drück <bpt i="4">a</bpt>OK<ept i="4">b</ept><it>c</it></seg></tuv>
</tu>
<tu><tuv xml:lang="EN-US"><seg>Alone</seg></tuv><tuv xml:lang="fr"><seg>Seul</seg></tuv></tu>
<tu><tuv xml:lang="en_GB"><seg>Lift</seg></tuv><tuv xml:lang="EN-US"><seg>Elevator</seg></tuv>
<tuv xml:lang="de"><seg>Aufzug</seg></tuv></tu>
</body></tmx>"""
PRESS = "Press {\\ut}OK\xa0é."


@pytest.mark.parametrize("name", ["a.tmx", "a.TMX.gz"])
def test_units_are_chosen_by_the_codes_of_their_languages(tmp_path, name):
    assert read(write(tmp_path, name, OPUS)) == [("Hello & bye!", "Hallo & tschüs!")]
    for encoding in ("UTF-8", "utf-16", "utf-16-le", "windows-1252", "ISO-8859-1"):
        path = write(
            tmp_path,
            name,
            (TRADOS % encoding[: 6 if "utf-16" in encoding else None]).encode(encoding),
        )
        assert read(path) == [
            (PRESS, "Drücken Sie OK oder é."),
            (PRESS, "Drück OK"),
            ("Lift", "Aufzug"),
            ("Elevator", "Aufzug"),
        ]
    assert read(path, languages=("en-US", "de-AT")) == [(PRESS, "Drück OK"), ("Elevator", "Aufzug")]
    assert read(path, languages=("en-US", "en-GB")) == [("Elevator", "Lift")]
    assert read(path, languages=("fra", "eng"), num_units=1) == [("Seul", "Alone")]
    assert read(path, languages=("en+de", "fr")) == [("Alone", "Seul")]
    with pytest.raises(DataError, match="has 1 pairs, but should have 2"):
        read(path, languages=("fr", "en"), num_units=2)


def test_inline_tags_can_be_placeholders(tmp_path):
    path = write(tmp_path, "a.tmx", TRADOS % "UTF-8")
    pairs = read(path, keep_tags=True)
    assert pairs[0] == ("Press {\\ut}{1}OK{2}\xa0é.", "Drücken Sie {1>OK<1} {2}oder é.")
    assert pairs[1][1] == "Drück {4>OK<4}{3}"


def test_memory_does_not_grow_with_a_translation_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tmx, "_BLOCK_BYTES", 1 << 12)
    head, unit, tail = (
        OPUS.partition("<body>")[0] + "<body>",
        OPUS[OPUS.index("<tu>") : OPUS.index("</body>")],
        "</body></tmx>",
    )
    path = write(tmp_path, "a.tmx", head + unit * 3_000 + tail)
    tracemalloc.start()
    assert sum(1 for _ in read_tmx(path, LANGUAGES)) == 3_000
    assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 4
    tracemalloc.stop()
    for content in (head + "<tu " + "a" * 100, head + "<tu><tuv><seg>" + "a" * 100):
        monkeypatch.setattr(tmx, "_MAX_UNIT", 50)
        with pytest.raises(DataError, match=r"a tag does not end|more than 50 characters"):
            read(write(tmp_path, "a.tmx", content))


SEEDS = {
    "a.csv": table(PAIRS * 9, encoding="utf-16", delimiter=";"),
    "a.tsv": table(PAIRS * 9, "excel-tab"),
    "a.jsonl": "\n".join(map(json.dumps, RECORDS * 9)).encode(),
    "a.tmx": (TRADOS % "UTF-8").encode(),
}
TOKENS = [*'",;\t\n\r\0<>&[{}', '""', "<tu>", "</seg>", "&nbsp;", "&#0;", "\\ud800", "9" * 5_000]


@given(
    st.sampled_from([*SEEDS]),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(TOKENS), st.integers(0, 20)), max_size=9),
)
def test_no_damage_ends_in_anything_but_one_line(tmp_path_factory, name, changes):
    content = SEEDS[name]
    for place, token, cut in changes:
        start = int(place * len(content))
        content = content[:start] + token.encode() + content[start + cut :]
    path = write(tmp_path_factory.getbasetemp(), name, content)
    with suppress(DataError):
        pairs = read(path)
        assert not any("\n" in side for pair in pairs for side in pair)
    with suppress(
        DataError, UnicodeDecodeError
    ):  # a rule of cleaning drops lines that are not UTF-8
        read(path, strict=False)
