"""Opening text: compressed, in other encodings, with other line ends, or not text at all."""

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tfm.errors import DataError, UsageError
from tfm.inference.reader import LineReader, count_lines
from tfm.stages import score
from tfm.text import files as text_files
from tfm.text.files import TextFile
from tfm.text.lines import read_lines

TEXTS = {
    "de": "Zwei Hunde spielen im Schnee.\nEin Mann mit blauem Hemd, schön — ja.\n",
    "vi": "Hai con chó đang chơi trong tuyết.\nMột người đàn ông mặc áo xanh.\n",
    "ru": "Две собаки играют на снегу.\nМужчина в синей рубашке.\n",
    "zh": "两只狗在雪地里玩耍。\n一个穿蓝色衬衫的男人站在梯子上。\n",
    "ja": "二匹の犬が雪の中で遊んでいます。\n青いシャツを着た男の人です。\n",
    "ko": "두 마리의 개가 눈 속에서 놀고 있다.\n파란 셔츠를 입은 남자가 있다.\n",
    "hi": "दो कुत्ते बर्फ में खेल रहे हैं।\nनीली शर्ट में एक आदमी है।\n",
    "pa": "ਦੋ ਕੁੱਤੇ ਬਰਫ਼ ਵਿੱਚ ਖੇਡ ਰਹੇ ਹਨ।\nਨੀਲੀ ਕਮੀਜ਼ ਵਾਲਾ ਆਦਮੀ ਹੈ।\n",
    "ar": "كلبان يلعبان في الثلج.\nرجل يرتدي قميصا أزرق.\n",
}
LINES = [line.encode() for line in TEXTS["vi"].splitlines()]
PACK = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


def write(tmp_path, content, name="text.vi"):
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


def read_by_line_reader(path):
    with LineReader(path, None) as reader:
        return [line.source.encode() for chunk in reader for line in chunk]


def read_standard_input(path):
    with path.open() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        return [line.encode() for line in score.read_hypotheses(None)]


READERS = {
    "read_lines": lambda path: list(read_lines(path, strict=False)),
    "generate": read_by_line_reader,
    "score": lambda path: [line.encode() for line in score.read_lines(path)],
    "standard input": read_standard_input,
}
EVERY_READER = pytest.mark.parametrize("reader", READERS)


# --- compressed


@EVERY_READER
@pytest.mark.parametrize("kind", PACK)
def test_compressed_text_is_read_whatever_its_name(tmp_path, kind, reader):
    first, second = (line + b"\n" for line in LINES)
    path = write(tmp_path, PACK[kind](first) + PACK[kind](second))  # as cat joins files
    assert READERS[reader](path) == LINES
    assert count_lines(path) == 2


@pytest.mark.parametrize("kind", PACK)
def test_a_byte_order_mark_and_markup_are_read_in_compressed_text(tmp_path, kind):
    marked = write(tmp_path, PACK[kind]("\ufeffa\n".encode()))
    assert list(read_lines(marked, strict=True)) == [b"a"]
    segments = write(tmp_path, PACK[kind](b"<seg>a &amp; b</seg>"), "x.SGM.BZ2")
    assert list(read_lines(segments, strict=True, part="src")) == [b"a & b"]


@EVERY_READER
@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("size", [0.5, 0.95])
def test_truncated_text_is_one_line(tmp_path, kind, size, reader):
    packed = PACK[kind](random.Random(1).randbytes(3000).hex().encode())
    path = write(tmp_path, packed[: int(size * len(packed))])
    with pytest.raises(DataError, match=r"^(standard input|\S+) is truncated or damaged \([^\n]+$"):
        READERS[reader](path)


def test_text_that_expands_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tfm.text.files.ALWAYS_ALLOWED_BYTES", 1 << 16)
    path = write(tmp_path, gzip.compress(b"a\n" * 1_000_000))
    with pytest.raises(DataError, match="expands to more than 100 times"):
        list(read_lines(path, strict=True))


def zstd_text(tmp_path):
    path = write(tmp_path, b"\n".join(LINES) + b"\n", "plain")
    subprocess.run(["zstd", "-q", path, "-o", tmp_path / "text.vi"], check=True)
    return tmp_path / "text.vi"


@EVERY_READER
def test_zstd_is_read(tmp_path, reader):
    pytest.importorskip(text_files._ZSTD, reason="needs Python 3.14 or the extra zstd")
    assert READERS[reader](zstd_text(tmp_path)) == LINES


@EVERY_READER
def test_zstd_without_its_module_names_the_extra(tmp_path, reader, monkeypatch):
    monkeypatch.setitem(sys.modules, text_files._ZSTD, None)
    path = write(tmp_path, b"\x28\xb5\x2f\xfd" + bytes(9))
    with pytest.raises(UsageError, match=r"zstd.*pip install backports-zstd, or"):
        READERS[reader](path)


# --- not text


def tar():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return packed.getvalue()


@EVERY_READER
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\3\4" + bytes(30), "zip archive"),
        (tar(), "tar archive"),
        (gzip.compress(tar(), mtime=0), "tar archive"),
        (b"\x89PNG\r\n\x1a\n", "picture"),
        (b"%PDF-1.7\n", "PDF"),
        (b"PAR1\x15\x04", "Parquet"),
        (bytes(1000), "1,000 NUL bytes"),
    ],
)
def test_other_files_are_named(tmp_path, content, kind, reader):
    with pytest.raises(DataError, match=f"{kind}.*not text|{kind}.*no text"):
        READERS[reader](write(tmp_path, content))


# --- encodings


def convert(error, path):
    """Return the output of the command that an error advises."""
    command = str(error).partition("convert it with ")[2].partition(" > NEW_FILE")[0]
    return subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
@pytest.mark.parametrize("times", [1, 3000])
def test_wide_characters_are_told_from_text_and_converted(tmp_path, language, encoding, times):
    text = TEXTS[language] * times
    path = write(tmp_path, text.encode(encoding), "a file")
    with pytest.raises(DataError) as caught:
        READERS["read_lines"](path)
    assert f"is {encoding}, not UTF-8" in str(caught.value)
    assert convert(caught.value, path).decode() == text


@EVERY_READER
def test_every_reader_refuses_wide_characters(tmp_path, reader):
    with pytest.raises(DataError, match=r"is UTF-16LE, not UTF-8: .*iconv -f UTF-16LE -t UTF-8"):
        READERS[reader](write(tmp_path, TEXTS["ru"].encode("UTF-16LE")))


@pytest.mark.parametrize("language", TEXTS)
def test_a_few_nuls_in_good_text_are_read(tmp_path, language):
    generator = random.Random(language)
    for number in range(100):
        content = bytearray((TEXTS[language] * generator.randint(1, 50)).encode())
        for _ in range(number % 7):
            content.insert(generator.randrange(len(content)), 0)
        lines = READERS["read_lines"](write(tmp_path, content))
        assert lines == bytes(content).splitlines()


def test_a_hole_in_good_text_is_named_with_its_line(tmp_path):
    with pytest.raises(DataError, match="has 4,096 NUL bytes, as in line 3"):
        READERS["read_lines"](write(tmp_path, TEXTS["de"].encode() + bytes(4096) + b"\n"))


@pytest.mark.parametrize(("language", "encoding"), [("de", "WINDOWS-1252"), ("ja", "SHIFT-JIS")])
def test_text_in_another_encoding_is_converted_once_its_name_is_known(tmp_path, language, encoding):
    path = write(tmp_path, TEXTS[language].encode(encoding), "it's")
    line = "1" if language != "de" else "2"
    with pytest.raises(DataError, match=f"line {line} is not UTF-8 .*iconv -f ENCODING ") as caught:
        list(read_lines(path, strict=True))
    advice = str(caught.value)
    assert "\n" not in advice
    assert convert(advice.replace("ENCODING", encoding), path).decode() == TEXTS[language]


def test_damage_in_utf8_is_no_other_encoding(tmp_path):
    path = write(tmp_path, TEXTS["ru"].encode() + "ёж\xff\n".encode().replace(b"\xc3", b""))
    with pytest.raises(DataError, match=r"is not UTF-8 .* is damaged: correct or remove it"):
        list(read_lines(path, strict=True))


# --- line ends


@EVERY_READER
@pytest.mark.parametrize(
    "content",
    [b"a\rb\rc\r", b"a\rb\rc", b"a\rb\rc\n", b"a\n" * 9 + b"b\r" * 20, b"a\r" * 300_000],
    ids=len,
)
def test_carriage_returns_that_end_lines_are_converted(tmp_path, content, reader):
    path = write(tmp_path, content)
    with pytest.raises(DataError, match="end with CR") as caught:
        READERS[reader](path)
    if reader != "standard input":
        assert convert(caught.value, path) == content.replace(b"\r", b"\n")


@EVERY_READER
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\r\r\nb\r\r\n", [b"a", b"b"]),
        (b"one\rline\ntwo\n", [b"one\rline", b"two"]),
        (b"a\n" * 99 + b"b\r" * 50 + b"\n", [b"a"] * 99 + [b"b\r" * 49 + b"b"]),
        (b"a\r", [b"a"]),
    ],
    ids=len,
)
def test_a_carriage_return_within_a_line_is_text(tmp_path, content, lines, reader):
    assert READERS[reader](write(tmp_path, content)) == lines


def test_line_ends_that_blocks_cut_are_no_carriage_returns(tmp_path):
    for size in range(1, 5):
        file = TextFile(io.BytesIO(b"ab\r\n" * 9), Path("x"))
        assert b"".join(iter(lambda file=file, size=size: file.read(size), b"")) == b"ab\r\n" * 9


def test_compressed_lines_are_read_from_a_pipe(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb") as file:
        file.write(gzip.compress(b"a\nb\n"))
        file.close()
        assert read_by_line_reader(Path(f"/dev/fd/{reading}")) == [b"a", b"b"]
