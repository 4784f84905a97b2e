"""Encodings of text that is not UTF-8: guessed, and converted by the command that is shown."""

import shutil
import subprocess

import pytest

from tfm.data.encoding import iconv_command, likely_encoding


@pytest.mark.parametrize(
    ("text", "encoding", "language", "expected"),
    [
        ("Über Öl", "latin-1", "de", "WINDOWS-1252"),
        ("Příliš žluťoučký kůň", "cp1250", "cs", "WINDOWS-1250"),
        ("你好", "gb18030", "zh-CN", "GB18030"),
        ("Über", "utf-16", "de", "UTF-16"),
        ("Über " * 9, "utf-16-be", "de", "UTF-16BE"),
        ("over " * 9, "utf-16-le", "en", "UTF-16LE"),
        ("Über", "utf-32", "de", "UTF-32"),
    ],
)
@pytest.mark.skipif(shutil.which("iconv") is None, reason="there is no iconv")
def test_the_command_that_is_shown_converts_the_text(tmp_path, text, encoding, language, expected):
    path = tmp_path / f"a user's text.{language}"
    path.write_bytes(f"plain\n{text}\n".encode(encoding))
    guess = likely_encoding(path, language)
    assert guess == expected
    subprocess.run(iconv_command(path, guess), shell=True, check=True)
    converted = tmp_path / f"a user's text.utf8.{language}"
    assert converted.read_text(encoding="utf-8").removeprefix("\ufeff") == f"plain\n{text}\n"


def test_utf8_needs_no_other_encoding(tmp_path):
    path = tmp_path / "text.de"
    path.write_text("Über\n你好\n", encoding="utf-8")
    assert likely_encoding(path, "de") is None
