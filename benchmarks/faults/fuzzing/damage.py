"""Ways to damage a file or make it hostile: each takes valid bytes and returns others."""

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
    b"\xed\xa0\x80",  # an unpaired surrogate
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


def flip_bit(generator: random.Random, content: bytes) -> bytes:
    """Flip one bit."""
    changed = bytearray(content or b"\0")
    changed[_position(generator, changed)] ^= 1 << generator.randrange(8)
    return bytes(changed)


def change_bytes(generator: random.Random, content: bytes) -> bytes:
    """Change some bytes."""
    changed = bytearray(content or b"\0")
    for _ in range(generator.randrange(1, 20)):
        changed[_position(generator, changed)] = generator.randrange(256)
    return bytes(changed)


def zero_bytes(generator: random.Random, content: bytes) -> bytes:
    """Set a range to zeros, as after a power failure."""
    start = _position(generator, content)
    end = min(len(content), start + generator.choice((8, 64, 512, 4096)))
    return content[:start] + bytes(end - start) + content[end:]


def truncate(generator: random.Random, content: bytes) -> bytes:
    """Remove the end, or everything."""
    return content[: generator.choice((0, _position(generator, content)))]


def cut_out(generator: random.Random, content: bytes) -> bytes:
    """Remove a range."""
    start = _position(generator, content)
    return content[:start] + content[start + generator.randrange(1, 600) :]


def repeat(generator: random.Random, content: bytes) -> bytes:
    """Repeat a range, or everything."""
    start, end = sorted(
        (0, len(content)) if generator.random() < 0.3 else _positions(generator, content)
    )
    return content[:end] + content[start:]


def append_noise(generator: random.Random, content: bytes) -> bytes:
    """Append random bytes."""
    return content + generator.randbytes(generator.choice((1, 40, 3_000)))


def replace_by_noise(generator: random.Random, content: bytes) -> bytes:
    """Replace everything by random bytes."""
    return generator.randbytes(generator.choice((1, 100, 5_000)))


def insert_snippet(generator: random.Random, content: bytes) -> bytes:
    """Insert something hostile anywhere, or before a delimiter."""
    snippet = generator.choice(_SNIPPETS)
    positions = [match.start() for match in re.finditer(rb"[\s\"=(<]", content)] or [0]
    position = generator.choice((_position(generator, content), generator.choice(positions)))
    return content[:position] + snippet + content[position + generator.choice((0, 0, 1, 10)) :]


BYTES: Sequence[Damage] = (
    flip_bit,
    flip_bit,
    change_bytes,
    zero_bytes,
    truncate,
    cut_out,
    repeat,
    append_noise,
    replace_by_noise,
)


def change_json(generator: random.Random, content: bytes) -> bytes:
    """Replace, remove or add one value of a JSON object."""
    document = json.loads(content)
    containers = list(_containers(document))
    container = generator.choice(containers)
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    key = generator.choice(keys) if keys else "new"
    match generator.randrange(6):
        case 0 if keys:
            del container[key]
        case 1 if isinstance(container, dict):
            container["new"] = _json_value(generator)
        case _ if keys:
            container[key] = _json_value(generator)
    text = json.dumps(document)
    if generator.random() < 0.1:
        text = text.replace("{", '{"format": 1, "format": 7, ', 1)
    return text.replace('"DEEP"', "[" * 100_000 + "]" * 100_000).encode()


def change_model(generator: random.Random, content: bytes) -> bytes:
    """Make the model that a config.json describes larger than any memory."""
    record = json.loads(content)
    sizes = (10**7, 2**31, 2**40, 2**62, 1_000, 65_536, 100_000)
    names = ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads", "d_k")
    for name in generator.sample((*names, "learned_positions", "vocab_sizes"), k=2):
        size = generator.choice(sizes)
        if name == "vocab_sizes":
            record[name] = [size, size]
        else:
            record["run"]["model"][name] = size
    return json.dumps(record).encode()


def change_state(generator: random.Random, content: bytes) -> bytes:
    """Change a value of a training state, whose outline is in the header of its tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    outline = header["__metadata__"]["state"].encode()
    header["__metadata__"]["state"] = change_json(generator, outline).decode()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def change_toml(generator: random.Random, content: bytes) -> bytes:
    """Change one value or name of a TOML file."""
    lines = content.decode().split("\n")
    numbers = [number for number, line in enumerate(lines) if "=" in line]
    number = generator.choice(numbers)
    name = lines[number].partition("=")[0]
    value = generator.choice(
        (
            *("true", "-1", "0", "1", "3.5", "nan", "inf", "-inf", "9" * 19, "9" * 400, "1e300"),
            *('""', '"x"', '"\\u0000"', "[]", "[[1]]", "{}", '{a = {b = "c"}}', "1979-05-27"),
            *("[" * 5_000 + "]" * 5_000, '"' + "x" * 100_000 + '"', "0x" + "f" * 5_000),
            *('"../../outside"', '"http://["', '"http://h/%00"', '"http://h/.."', "[1, 'a']"),
        )
    )
    lines[number] = generator.choice(
        (f"{name}= {value}", f"{name}= {value}", f"new = {value}", f"a.{name.strip()} = {value}")
    )
    return "\n".join(lines).encode()


def change_tar(generator: random.Random, content: bytes) -> bytes:
    """Change a header of a tar archive, with a correct checksum."""
    archive = bytearray(content)
    headers = [p for p in range(0, len(archive), 512) if archive[p + 257 : p + 262] == b"ustar"]
    start = generator.choice(headers)
    field = generator.choice(_TAR_FIELDS)
    value = generator.choice(_TAR_VALUES[field])
    archive[start + field : start + field + len(value)] = value
    _sign(archive, start)
    if generator.random() < 0.2:  # many headers about headers
        header = archive[start : start + 512]
        archive[start:start] = header * generator.choice((3, 2_000))
    return bytes(archive)


def add_bomb(generator: random.Random, content: bytes) -> bytes:
    """Add a member to a tar archive that is large, or claims to be."""
    size = generator.choice((1 << 20, 80 << 20))
    kind = generator.choice((tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, b"S"))
    info = tarfile.TarInfo(generator.choice(("bomb", "t/train.en")))
    info.type, info.size = kind, size
    member = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if generator.random() < 0.5:  # the header claims another size
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


def replace_file(generator: random.Random, path: Path, *, pipes: bool) -> str:
    """Replace a file by something else, or delete it; return a description."""
    path.unlink()
    kinds = ["missing", "folder", "loop", "dangling link", "endless"] + ["pipe"] * pipes
    match kind := generator.choice(kinds):
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
    """Build a tar archive of {name: content}."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _json_value(generator: random.Random) -> Any:
    return generator.choice(
        (
            *(None, True, False, 0, 1, -1, 7, 2**62, 2**63, 10**400, 10**7),
            *(0.5, -1e300, float("nan"), float("inf")),
            *("", "x", "\0", "\ud800", "../../outside", "/etc/passwd", "x" * 100_000, "\u2028"),
            *([], [1], [[]], {}, {"a": 1}, {"a": {"b": []}}, "DEEP"),
        )
    )


def _containers(value: Any) -> "list[Any]":
    """Return all objects and lists in a JSON value."""
    containers: list[Any] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            containers.append(node)
            stack.extend(node.values() if isinstance(node, dict) else node)
    return containers


def _sign(archive: bytearray, start: int) -> None:
    """Write the correct checksum into a tar header."""
    archive[start + 148 : start + 156] = b" " * 8
    checksum = sum(archive[start : start + 512])
    archive[start + 148 : start + 156] = b"%06o\0 " % checksum


def _position(generator: random.Random, content: bytes | bytearray) -> int:
    """Choose a position in a file, often near its start or end."""
    last = max(0, len(content) - 1)
    return generator.choice(
        (
            generator.randint(0, last),
            generator.randint(0, min(last, 200)),
            last - generator.randint(0, min(last, 200)),
        )
    )


def _positions(generator: random.Random, content: bytes) -> tuple[int, int]:
    return _position(generator, content), _position(generator, content)
