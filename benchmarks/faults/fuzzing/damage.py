"""Ways to damage a file, or to make it hostile: each takes sound bytes and gives others."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Damage = Callable[[random.Random, bytes], bytes]

_SNIPPETS = (
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",  # half a surrogate pair
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",  # U+2028
    b"\r",
    b"\n" * 2_000,
    b" " * 100_000,
    b"x" * 100_000,
    b"\t(" * 50_000,
    b")" * 100_000,
    b"(S " * 30_000,
    b"(S (NP (NN a" * 20_000,
    b"<seg>",
    b"<seg " * 50_000,
    b"</seg" + b" " * 100_000,
    b"&#x110000;&#99999999;&#xD800;&amp",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"a." * 20_000 + b"a = 1\n",
    b"9" * 5_000,
    b"0x" + b"f" * 5_000,
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b'"',
    b"../../../outside",
    b"/etc/passwd",
    b"\x1b[2J",
)


def flip_a_bit(chance: random.Random, content: bytes) -> bytes:
    """One bit is another."""
    changed = bytearray(content or b"\0")
    changed[_place(chance, changed)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def change_bytes(chance: random.Random, content: bytes) -> bytes:
    """Some bytes are others."""
    changed = bytearray(content or b"\0")
    for _ in range(chance.randrange(1, 20)):
        changed[_place(chance, changed)] = chance.randrange(256)
    return bytes(changed)


def zero_bytes(chance: random.Random, content: bytes) -> bytes:
    """A stretch is zeros, as after a power cut."""
    start = _place(chance, content)
    end = min(len(content), start + chance.choice((8, 64, 512, 4096)))
    return content[:start] + bytes(end - start) + content[end:]


def truncate(chance: random.Random, content: bytes) -> bytes:
    """The end is missing, or all."""
    return content[: chance.choice((0, _place(chance, content)))]


def cut_out(chance: random.Random, content: bytes) -> bytes:
    """A stretch is missing."""
    start = _place(chance, content)
    return content[:start] + content[start + chance.randrange(1, 600) :]


def repeat(chance: random.Random, content: bytes) -> bytes:
    """A stretch, or all, is there twice."""
    start, end = sorted((0, len(content)) if chance.random() < 0.3 else _places(chance, content))
    return content[:end] + content[start:]


def append_noise(chance: random.Random, content: bytes) -> bytes:
    """Something follows."""
    return content + chance.randbytes(chance.choice((1, 40, 3_000)))


def replace_by_noise(chance: random.Random, content: bytes) -> bytes:
    """It is another file."""
    return chance.randbytes(chance.choice((1, 100, 5_000)))


def insert_snippet(chance: random.Random, content: bytes) -> bytes:
    """Something hostile stands somewhere, or in a place of its own."""
    snippet = chance.choice(_SNIPPETS)
    places = [match.start() for match in re.finditer(rb"[\s\"=(<]", content)] or [0]
    place = chance.choice((_place(chance, content), chance.choice(places)))
    return content[:place] + snippet + content[place + chance.choice((0, 0, 1, 10)) :]


BYTES: Sequence[Damage] = (
    flip_a_bit,
    flip_a_bit,
    change_bytes,
    zero_bytes,
    truncate,
    cut_out,
    repeat,
    append_noise,
    replace_by_noise,
)


def change_json(chance: random.Random, content: bytes) -> bytes:
    """One value of a JSON object is of another kind, missing, or new."""
    document = json.loads(content)
    holders = list(_holders(document))
    holder = chance.choice(holders)
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = chance.choice(keys) if keys else "new"
    match chance.randrange(6):
        case 0 if keys:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder["new"] = _json_value(chance)
        case _ if keys:
            holder[key] = _json_value(chance)
    text = json.dumps(document)
    if chance.random() < 0.1:
        text = text.replace("{", '{"format": 1, "format": 7, ', 1)
    return text.replace('"DEEP"', "[" * 100_000 + "]" * 100_000).encode()


def change_toml(chance: random.Random, content: bytes) -> bytes:
    """One value or name of a TOML file is another."""
    lines = content.decode().split("\n")
    numbers = [number for number, line in enumerate(lines) if "=" in line]
    number = chance.choice(numbers)
    name = lines[number].partition("=")[0]
    value = chance.choice(
        (
            *("true", "-1", "0", "1", "3.5", "nan", "inf", "-inf", "9" * 19, "9" * 400, "1e300"),
            *('""', '"x"', '"\\u0000"', "[]", "[[1]]", "{}", '{a = {b = "c"}}', "1979-05-27"),
            *("[" * 5_000 + "]" * 5_000, '"' + "x" * 100_000 + '"', "0x" + "f" * 5_000),
            *('"../../outside"', '"http://["', '"http://h/%00"', '"http://h/.."', "[1, 'a']"),
        )
    )
    lines[number] = chance.choice(
        (f"{name}= {value}", f"{name}= {value}", f"new = {value}", f"a.{name.strip()} = {value}")
    )
    return "\n".join(lines).encode()


def change_tar(chance: random.Random, content: bytes) -> bytes:
    """A header of a tar archive says something else, with the right checksum."""
    archive = bytearray(content)
    headers = [p for p in range(0, len(archive), 512) if archive[p + 257 : p + 262] == b"ustar"]
    start = chance.choice(headers)
    field = chance.choice(_TAR_FIELDS)
    value = chance.choice(_TAR_VALUES[field])
    archive[start + field : start + field + len(value)] = value
    _sign(archive, start)
    if chance.random() < 0.2:  # many headers about headers
        header = archive[start : start + 512]
        archive[start:start] = header * chance.choice((3, 2_000))
    return bytes(archive)


def add_bomb(chance: random.Random, content: bytes) -> bytes:
    """A tar archive has a member that is large, or says so."""
    size = chance.choice((1 << 20, 80 << 20))
    kind = chance.choice((tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, b"S"))
    info = tarfile.TarInfo(chance.choice(("bomb", "t/train.en")))
    info.type, info.size = kind, size
    member = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if chance.random() < 0.5:  # a size that is only said
        member[124:136] = b"\x80" + b"\0" * 3 + b"\xff" * 8
        _sign(member, 0)
        size = 0
    return bytes(member) + bytes(size) + content


_TAR_FIELDS = (0, 124, 156, 345, 482)
_TAR_VALUES = {
    0: (b"../../../outside\0", b"/outside\0", b"\0" * 100, b"\xff" * 100, b"t/train.en/\0"),
    124: (b"77777777777\0", b"-0000000001\0", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"1_0\0", b"9"),
    156: tuple(bytes([kind]) for kind in b"0123456789LKSxXgVMNDA\0\xff"),
    345: (b"prefix" * 20, b"\xff" * 100),
    482: (b"\1",),
}
PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (gzip.compress, gzip.decompress),
    ".tgz": (gzip.compress, gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".xz": (lambda content: lzma.compress(content, preset=0), lzma.decompress),
}


def replace_the_file(chance: random.Random, path: Path, *, pipes: bool) -> str:
    """Something that is no file takes the place of one; what, in a word."""
    path.unlink()
    kinds = ["missing", "folder", "loop", "dangling link", "endless"] + ["pipe"] * pipes
    match kind := chance.choice(kinds):
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "dangling link":
            path.symlink_to("nowhere")
        case "endless":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
    return kind


def make_tar(members: dict[str, bytes]) -> bytes:
    """A tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _json_value(chance: random.Random) -> Any:
    return chance.choice(
        (
            *(None, True, False, 0, 1, -1, 7, 2**63, 10**400, 0.5, float("nan"), float("inf")),
            *("", "x", "\0", "\ud800", "../../outside", "/etc/passwd", "x" * 100_000, "\u2028"),
            *([], [1], [[]], {}, {"a": 1}, {"a": {"b": []}}, "DEEP"),
        )
    )


def _holders(value: Any) -> "list[Any]":
    """All objects and lists in a JSON value."""
    found: list[Any] = []
    ahead = [value]
    while ahead:
        node = ahead.pop()
        if isinstance(node, dict | list):
            found.append(node)
            ahead.extend(node.values() if isinstance(node, dict) else node)
    return found


def _sign(archive: bytearray, start: int) -> None:
    """Give a tar header the right checksum."""
    archive[start + 148 : start + 156] = b" " * 8
    checksum = sum(archive[start : start + 512])
    archive[start + 148 : start + 156] = b"%06o\0 " % checksum


def _place(chance: random.Random, content: bytes | bytearray) -> int:
    """A place in a file; starts and ends are the most interesting."""
    last = max(0, len(content) - 1)
    return chance.choice(
        (
            chance.randint(0, last),
            chance.randint(0, min(last, 200)),
            last - chance.randint(0, min(last, 200)),
        )
    )


def _places(chance: random.Random, content: bytes) -> tuple[int, int]:
    return _place(chance, content), _place(chance, content)
