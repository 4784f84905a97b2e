"""Damage of files, drawn by a generator of random numbers."""

import json
import os
import re
from pathlib import Path


def change_bytes(generator, content):
    changed = bytearray(content or b"\0")
    for _ in range(generator.choice((1, 1, 20))):
        changed[position(generator, changed)] ^= 1 << generator.randrange(8)
    return bytes(changed)


def zero_bytes(generator, content):
    """As after a power failure."""
    start = position(generator, content)
    num_bytes = min(len(content) - start, generator.choice((8, 512, 4096)))
    return content[:start] + bytes(num_bytes) + content[start + num_bytes :]


def truncate(generator, content):
    return content[: generator.choice((0, position(generator, content)))]


def cut_out(generator, content):
    start = position(generator, content)
    return content[:start] + content[start + generator.randrange(1, 600) :]


def append_noise(generator, content):
    return content + generator.randbytes(generator.choice((1, 40, 3_000)))


def replace_by_noise(generator, content):
    return generator.randbytes(generator.choice((1, 100, 5_000)))


SNIPPETS = (
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\r", b"\n" * 2_000, b'"', b"null"),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"a." * 20_000 + b"a = 1\n", b"9" * 5_000, b"NaN"),
    *(b"1e999", b"-1", b"../../../outside", b"/etc/passwd", b"\x1b[2J", b"x" * 100_000),
)


def insert_snippet(generator, content):
    places = [match.start() for match in re.finditer(rb"[\s\"=]", content)] or [0]
    start = generator.choice((position(generator, content), generator.choice(places)))
    return (
        content[:start] + generator.choice(SNIPPETS) + content[start + generator.choice((0, 5)) :]
    )


def change_json(generator, content):
    """Replace, remove or add a value."""
    document = json.loads(content)
    containers, stack = [], [document]
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            containers.append(node)
            stack += node.values() if isinstance(node, dict) else node
    container = generator.choice(containers)
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    if keys and generator.random() < 0.2:
        del container[generator.choice(keys)]
    elif keys or isinstance(container, dict):
        container[generator.choice([*keys, *["new"] * isinstance(container, dict)])] = (
            generator.choice(JSON_VALUES)
        )
    return json.dumps(document).replace('"DEEP"', "[" * 100_000 + "]" * 100_000).encode()


JSON_VALUES = (
    *(None, True, False, 0, 1, -1, 7, 10**7, 2**62, 2**63, 10**400, 0.5, -1e300, float("nan")),
    *("", "x", "\0", "\ud800", "../../outside", "/etc/passwd", "x" * 100_000, "DEEP"),
    *([], [1], [[]], {}, {"a": 1}, {"a": {"b": []}}),
)
DAMAGE = (change_bytes, zero_bytes, truncate, cut_out, append_noise, replace_by_noise)


def position(generator, content):
    """Return a position in a file, often near its start or its end."""
    last = max(0, len(content) - 1)
    near = generator.randint(0, min(last, 200))
    return generator.choice((generator.randint(0, last), near, last - near))


REPLACEMENTS = {
    "missing": lambda path: None,
    "a folder": Path.mkdir,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
}


def damage(generator, path):
    """Damage or replace a file; return a description."""
    if generator.random() < 0.05:
        path.unlink()
        kind = generator.choice([*REPLACEMENTS])
        REPLACEMENTS[kind](path)
        return f"{path} is {kind}"
    kinds = [*DAMAGE, insert_snippet] + 7 * [change_json] * (path.suffix == ".json")
    kind = generator.choice(kinds)
    path.write_bytes(kind(generator, path.read_bytes()))
    return f"{path}: {kind.__name__}"
