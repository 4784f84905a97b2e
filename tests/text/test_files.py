"""Opening text: compressed, in other encodings, with other line ends, or not text at all."""

import gzip
import io
import os
import random
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
from text_readers import EVERY_READER, PACK, READERS, read_sources, write

from tfm.errors import DataError, UsageError
from tfm.metrics import texts
from tfm.text import files as text_files
from tfm.text.files import TextFile
from tfm.text.lines import STANDARD_INPUT, read_lines

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
LINES = TEXTS["vi"].splitlines()


# --- compressed


@EVERY_READER
@pytest.mark.parametrize("kind", PACK)
def test_compressed_text_is_read_whatever_its_name(tmp_path, kind, reader):
    packed = (PACK[kind](f"{line}\n".encode()) for line in LINES)
    assert READERS[reader](write(tmp_path, b"".join(packed))) == LINES  # as cat joins files


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


@EVERY_READER
def test_zstd_is_read(tmp_path, reader):
    pytest.importorskip(text_files._ZSTD, reason="needs Python 3.14 or the extra zstd")
    path = write(tmp_path, TEXTS["vi"], "plain")
    subprocess.run(["zstd", "-q", path, "-o", tmp_path / "text"], check=True)
    assert READERS[reader](tmp_path / "text") == LINES


@EVERY_READER
def test_zstd_of_any_window_is_read(tmp_path, reader):
    pytest.importorskip(text_files._ZSTD, reason="needs Python 3.14 or the extra zstd")
    packing = ["zstd", "-q", "--long=31", "-o", tmp_path / "text"]  # of a pipe, whose size it lacks
    subprocess.run(packing, input=TEXTS["vi"].encode(), check=True)
    assert READERS[reader](tmp_path / "text") == LINES


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
    ("content", "message"),
    [
        (b"PK\3\4" + bytes(30), "is a zip archive.*not text"),
        (tar(), "is a tar archive.*not text"),
        (gzip.compress(tar(), mtime=0), "is a tar archive.*not text"),
        (b"\x89PNG\r\n\x1a\n", "is a picture.*not text"),
        (b"%PDF-1.7\n", "is a PDF.*not text"),
        (b"PAR1\x15\x04", "is a table in Parquet.*not text"),
        (bytes(1000), "has 1,000 NUL bytes, as in line 1, .*no text"),
        (TEXTS["de"].encode() + bytes(4096) + b"\n", "has 4,096 NUL bytes, as in line 3, "),
        (TEXTS["ru"].encode("UTF-16LE"), "is UTF-16LE, not UTF-8: .*iconv -f UTF-16LE -t UTF-8"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, content, message, reader):
    with pytest.raises(DataError, match=message):
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
        READERS["prepare"](path)
    assert f"is {encoding}, not UTF-8" in str(caught.value)
    assert convert(caught.value, path).decode() == text


@pytest.mark.parametrize("language", TEXTS)
def test_a_few_nuls_in_good_text_are_read(tmp_path, language):
    generator = random.Random(language)
    for number in range(100):
        content = bytearray((TEXTS[language] * generator.randint(1, 50)).encode())
        for _ in range(number % 7):
            content.insert(generator.randrange(len(content)), 0)
        lines = read_lines(write(tmp_path, bytes(content)), strict=False)
        assert [*lines] == bytes(content).splitlines()


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
    if "stdin" not in reader:
        assert convert(caught.value, path) == content.replace(b"\r", b"\n")


@EVERY_READER
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\r\r\n", ["a", "b"]),
        (b"one\rline\ntwo\n", ["one\rline", "two"]),
        (b"a\n" * 99 + b"b\r" * 50 + b"\n", ["a"] * 99 + ["b\r" * 49 + "b"]),
        (b"a\r", ["a"]),
    ],
    ids=len,
)
def test_a_carriage_return_within_a_line_is_text(tmp_path, content, lines, reader):
    assert READERS[reader](write(tmp_path, content)) == lines


def test_line_ends_that_blocks_cut_are_no_carriage_returns(tmp_path):
    for size in range(1, 5):
        file = TextFile(io.BytesIO(b"ab\r\n" * 9), Path("x"))
        assert b"".join(iter(lambda file=file, size=size: file.read(size), b"")) == b"ab\r\n" * 9


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize(
    "read", [lambda: texts.read(None)[STANDARD_INPUT], lambda: read_sources(None)],
    ids=["score", "generate"],
)  # fmt: skip
def test_what_a_text_is_does_not_depend_on_how_slowly_it_arrives(monkeypatch, read, blocks):
    def arriving(content):
        reading, writing = os.pipe()
        os.set_blocking(reading, blocks)

        def write_slowly():
            for part in (content[:2], content[2:4], content[4:]):
                time.sleep(0.02)
                os.write(writing, part)
            os.close(writing)

        thread = threading.Thread(target=write_slowly)
        thread.start()
        with os.fdopen(reading) as file:
            monkeypatch.setattr(sys, "stdin", file)
            try:
                return read()
            finally:
                thread.join()

    text = "".join(f"{line}\n" for line in LINES).encode()
    for pack in (bytes, *PACK.values()):
        assert arriving(pack(text)) == LINES
    for start, kind in ((b"<html><body>", "HTML"), (b"%PDF-1.7 ", "a PDF")):
        with pytest.raises(DataError, match=f"^standard input is {kind}, not "):
            arriving(start + text)
