"""Readers of text, archives and downloads."""

import contextlib
import gzip
import hashlib
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzzing.damage import PACKERS, add_bomb, change_tar, insert_snippet, make_tar
from fuzzing.reader import Reader, as_sgml, as_text, file_hashes, tfm

from tfm.data import download
from tfm.data.corpus.recipe import Archive

# Text files of the user


def _text_reader(name: str, suffix: str, content: Callable[[int], bytes]) -> Reader:
    names = [f"{split}.{language}{suffix}" for split in ("a", "b") for language in ("en", "de")]
    pack, _ = PACKERS.get(suffix, (bytes, bytes))

    def make(folder: Path) -> None:
        for index, file in enumerate(names):
            (folder / file).write_bytes(pack(content(index % 2)))

    def read(folder: Path) -> str:
        splits = ("--train", *names[:2], "--test", *names[2:], "--languages", "en", "de")
        tfm("prepare", *splits, "--text-only", "--out", "data")
        return file_hashes(folder / "data", "t*.*")

    return Reader(
        name=name,
        files=dict.fromkeys(names, (insert_snippet,)),
        make=make,
        read=read,
        is_checked=suffix.endswith(".gz"),
    )


# Archives

_MEMBERS = {
    "t/README": b"x" * 3_000,
    "t/train.en": as_text(0),
    "t/train.de": as_text(1),
    "t/dev.en.gz": gzip.compress(as_text(0)),
    "t/dev.de.sgm": as_sgml(1),
}
_TEXTS = """
[[train]]
archive = "{archive}"
source = "t/train.en"
target = "t/train.de"

[[valid]]
archive = "{archive}"
source = "t/dev.en.gz"
target = "t/dev.de.sgm"
"""


def _archive_reader(suffix: str, *, has_checksum: bool = False) -> Reader:
    file = f"mirror/text.tar{suffix}" if suffix != ".tgz" else "mirror/text.tgz"
    pack, _ = PACKERS.get(suffix, (bytes, bytes))

    def make(folder: Path) -> None:
        (folder / "mirror").mkdir()
        content = pack(make_tar(_MEMBERS))
        (folder / file).write_bytes(content)
        archive = Path(file).name
        known = f'sha256 = "{hashlib.sha256(content).hexdigest()}"\n' if has_checksum else ""
        (folder / "recipe.toml").write_text(
            'name = "x"\nsource = "en"\ntarget = "de"\n\n[[archives]]\n'
            f'url = "http://unreachable.invalid/{archive}"\n{known}{_TEXTS.format(archive=archive)}'
        )

    def read(folder: Path) -> str:
        tfm("prepare", "recipe.toml", "--mirror", "mirror", "--text-only", "--out", "data")
        return file_hashes(folder / "data", "t*.*") + file_hashes(folder / "data", "v*.*")

    description = "of known checksum" if has_checksum else f"({suffix or '.tar'})"
    return Reader(
        name=f"a tar archive {description}",
        files={file: (change_tar, change_tar, add_bomb, insert_snippet)},
        make=make,
        read=read,
        is_checked=suffix in (".tgz", ".xz", ".bz2"),
        is_sealed=has_checksum,
    )


# Downloads

_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 2000\r\nETag: "x"\r\n\r\n' + b"text" * 500
_ANSWERS = (
    *(
        b"HTTP/1.1 302 Found\r\nLocation: " + target + b"\r\nContent-Length: 0\r\n\r\n"
        for target in (
            *(b"file:///etc/passwd", b"FILE:/etc/passwd", b"ftp://127.0.0.1/x", b"data:,x", b""),
            *(b"/file", b"//", b"http://", b"http://[", b"http://127.0.0.1:x/", b"http://\xff/"),
            *(
                b"http://a" + b"b" * 300 + b"/",
                b"/\x00\x1b[2J",
                b"gopher://x",
                b"/" + b"y" * 70_000,
            ),
        )
    ),
    b"HTTP/1.1 100 Continue\r\n\r\nENDLESS",
    b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 70_000 + b"\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 200 + b"\r\nx",
    b"HTTP/1.1 200 OK\r\nENDLESS",
    b"HTTP/1.1 200 OK\r\n\r\nxENDLESS",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\nx",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\nENDLESS",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-4\r\ntext\r\n0\r\n\r\n",
    *(
        b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n" + b"text" * 500
        for length in (b"x", b"-1", b"0", b"1e9", b"9" * 30, b"9" * 5_000, b"1999", b"2001", b"")
    ),
    b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\n\r\n" + b"text" * 500,
    b"HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\n\r\n",
    b"HTTP/1.1 500 \x1b[2J\r\n\r\n",
    b"HTTP/9.9 banana\r\n\r\n",
    b"\r\n\r\n",
)


# Shorter timeouts and a smaller size limit.
_DOWNLOAD_LIMITS = {
    "_RETRY_DELAYS_SECONDS": (0.0, 0.0),
    "_READ_TIMEOUT_SECONDS": 0.4,
    "_RESPONSE_TIMEOUT_SECONDS": 0.4,
    "_SIZE_MARGIN_BYTES": 1 << 18,
}


def change_answer(generator: random.Random, content: bytes) -> bytes:
    """Replace the server's answer, maybe by an endless or a very slow one."""
    answer = generator.choice((*_ANSWERS, content))
    endless, trickle = (generator.choice((b"", b"", word)) for word in (b"ENDLESS", b"TRICKLE"))
    return answer + endless + trickle


def _serve(server: socket.socket, answer: bytes) -> None:
    """Answer every request with the same bytes."""
    step = 1 if answer.endswith(b"TRICKLE") else 1 << 20
    answer = answer.removesuffix(b"TRICKLE")
    is_endless = answer.endswith(b"ENDLESS")
    answer = answer.removesuffix(b"ENDLESS")
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(1)
            connection.recv(1 << 16)
            while answer:
                for start in range(0, len(answer), step):
                    connection.sendall(answer[start : start + step])
                    time.sleep(0.01 if step == 1 else 0)
                if not is_endless:
                    break


def _make_answer(folder: Path) -> None:
    (folder / "answer").write_bytes(_ANSWER)


def _read_answer(folder: Path) -> str:
    for name, value in _DOWNLOAD_LIMITS.items():
        setattr(download, name, value)
    server = socket.create_server(("127.0.0.1", 0))
    answer = (folder / "answer").read_bytes()
    threading.Thread(target=_serve, args=(server, answer), daemon=True).start()
    archive = Archive(
        url=f"http://127.0.0.1:{server.getsockname()[1]}/file",
        size=2_000,
        sha256=hashlib.sha256(b"text" * 500).hexdigest(),
    )
    return download.fetch(archive, folder / "downloads").sha256


TEXT_READERS: Sequence[Reader] = (
    _text_reader("plain text", "", as_text),
    _text_reader("gzip text", ".gz", as_text),
    _text_reader("SGML text", ".sgm", as_sgml),
    *(_archive_reader(suffix) for suffix in ("", ".tgz", ".bz2", ".xz")),
    _archive_reader(".tgz", has_checksum=True),
    Reader(
        name="a download",
        files={"answer": (change_answer,)},
        make=_make_answer,
        read=_read_answer,
        is_checked=True,
        is_sealed=True,
        may_be_no_file=False,
    ),
)
