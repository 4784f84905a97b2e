"""Fetching of the files of a recipe: resumed, retried, and compared with what the recipe knows."""

import concurrent.futures
import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeGuard

from tfm.data.background import in_thread
from tfm.data.corpus.texts import Archive, is_url
from tfm.errors import DataError, DownloadError
from tfm.reporting import Progress, say
from tfm.storage.files import read_json, size_of, sync_directory, write_json

_TIMEOUT_SECONDS = 60.0
_ANSWER_SECONDS = 240.0  # until the body starts, redirects included
_MIN_BYTES = 1 << 16  # in each _TIMEOUT_SECONDS
_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_BLOCK_BYTES = 1 << 18
# A try that gains this much does not count as failed: a long file may be cut many times.
_GAIN_BYTES = 1 << 20
# What a body may have beyond twice the size that is known, and one of which nothing is known.
_ALLOWANCE_BYTES = 1 << 30
_UNKNOWN_SIZE_BYTES = 1 << 36
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
# Of the network: what goes wrong on this machine's disk is a DownloadError.
_PASSING_ERRORS = (OSError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A file that is on this machine; `verified` if it has the checksum that the recipe knows."""

    path: Path
    sha256: str
    size: int
    verified: bool


def fetch(
    archive: Archive, downloads_dir: Path, *, mirror: str | None = None, verify: bool = True
) -> Fetched:
    """Have a file of a recipe on this machine, whole and checked.

    Args:
        archive: The file.
        downloads_dir: Where downloads are kept; one that is there already is checked and used.
        mirror: A folder or URL that has the file by its name; a folder's file is used in place.
        verify: Compare size and checksums with those that the recipe knows.

    Raises:
        DownloadError: It cannot be fetched, or is not the file that the recipe means.
    """
    if mirror is not None and not is_url(mirror):
        path = Path(mirror) / archive.name
        if not path.is_file():
            raise DownloadError(f"the mirror {mirror} has no file {archive.name}: put it there")
        return _checked(path, archive, verify=verify, is_ours=False)
    path = downloads_dir / archive.name
    part = part_path(path)
    if path.is_file():
        _discard(part)
        return _checked(path, archive, verify=verify, is_ours=True)
    downloads_dir.mkdir(parents=True, exist_ok=True)
    url = archive.url
    if mirror is not None:
        url = f"{mirror.rstrip('/')}/{urllib.parse.quote(archive.name)}"
    _download(url, part, max_bytes=_max_bytes(archive))
    fetched = _checked(part, archive, verify=verify, is_ours=True)
    os.replace(part, path)
    _state_path(part).unlink(missing_ok=True)
    sync_directory(downloads_dir)
    return replace(fetched, path=path)


def part_path(path: Path) -> Path:
    """Where a download gathers until it is whole and takes its own name."""
    return path.with_name(f"{path.name}.part")


def _checked(path: Path, archive: Archive, *, verify: bool, is_ours: bool) -> Fetched:
    """Compute the checksums of a file, and stop if they are not those of the recipe."""
    digests = {"sha256": hashlib.sha256()}
    if archive.md5 is not None:
        digests["md5"] = hashlib.md5(usedforsecurity=False)
    size = path.stat().st_size
    with path.open("rb") as file, Progress(f"check {archive.name}", total=size, unit="B") as bar:
        while block := file.read(_BLOCK_BYTES):
            for digest in digests.values():
                digest.update(block)
            bar.update(len(block))
    found = {"size": size} | {kind: digest.hexdigest() for kind, digest in digests.items()}
    if not verify:
        say(f"warning: {archive.name} is used as it is: its checksum was not compared")
    else:
        for kind, value in found.items():
            expected = getattr(archive, kind)
            if expected is not None and expected != value:
                raise _mismatch(path, archive, f"its {kind} is {value}, not {expected}", is_ours)
        if not archive.has_checksum:
            say(f"{archive.name}: no checksum is known; its sha256 is {found['sha256']}")
    return Fetched(
        path=path, size=size, sha256=str(found["sha256"]), verified=verify and archive.has_checksum
    )


def _mismatch(path: Path, archive: Archive, difference: str, is_ours: bool) -> DownloadError:
    """Say what is wrong with a file, and set it aside if it was downloaded."""
    if not is_ours:
        return DownloadError(
            f"{path} is not the file that the recipe means ({difference}): replace it, or use it "
            "all the same with --no-verify"
        )
    aside = path.with_name(f"{archive.name}.bad")
    os.replace(path, aside)
    return DownloadError(
        f"{aside} is not the file that the recipe means ({difference}), so it was set aside: try "
        f"again, or try a --mirror, or name it {archive.name} and use it all the same with "
        "--no-verify"
    )


def _max_bytes(archive: Archive) -> int:
    """The size beyond which what a server sends cannot be the file."""
    size = archive.size or archive.approximate_size
    return _UNKNOWN_SIZE_BYTES if size is None else 2 * size + _ALLOWANCE_BYTES


def _download(url: str, part: Path, *, max_bytes: int) -> None:
    """Fetch a URL into a file, going on after a cut, until it is whole or there is no hope."""
    num_failures = 0
    furthest = size_of(part)
    while True:
        try:
            _transfer(url, part, max_bytes=max_bytes)
        except _PASSING_ERRORS as error:
            if isinstance(getattr(error, "reason", error), socket.gaierror):
                host = urllib.parse.urlsplit(url).hostname
                raise DownloadError(
                    f"could not fetch {url}: there is no address for {host}: check the connection "
                    f"to the network, or give a folder that has {part.stem} with --mirror"
                ) from error
            reason = _printable(f"{type(error).__name__}: {error}")
            lasting = (
                isinstance(error, urllib.error.HTTPError) and error.code not in _PASSING_STATUSES
            )
        else:
            return
        num_failures = 0 if size_of(part) >= furthest + _GAIN_BYTES else num_failures + 1
        furthest = max(furthest, size_of(part))
        if lasting or num_failures > len(_PAUSES_SECONDS):
            raise DownloadError(
                f"could not fetch {url} ({reason}): try again later, which goes on from here, or "
                f"give a folder that has {part.stem} with --mirror"
            )
        pause = _PAUSES_SECONDS[max(0, num_failures - 1)]
        say(f"{part.stem}: {reason}; trying again in {pause:g} s")
        time.sleep(pause)


def _transfer(url: str, part: Path, *, max_bytes: int = _UNKNOWN_SIZE_BYTES) -> None:
    """One connection: fetch what is missing of the file, or all of it if that cannot be told."""
    offset, validator = _resume_point(url, part)
    request = urllib.request.Request(url, headers={"User-Agent": "tfm"})  # noqa: S310
    if offset:
        # If the file has changed on the server, If-Range makes it send all of the new one.
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", validator)
    try:
        response = _answer(request)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if offset and error.headers.get("Content-Range") == f"bytes */{offset}":
            return  # it was whole already
        _discard(part)
        raise ConnectionError("the server has another file by now") from error
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            offset = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            _discard(part)
            raise ConnectionError("the server sent another part of the file than asked for")
        _receive(response, url, part, offset, max_bytes)


def _answer(request: urllib.request.Request) -> http.client.HTTPResponse:
    """Send a request and follow redirects, to the body of an answer.

    Raises:
        DownloadError: The URL or a redirect is invalid.
        TimeoutError: The body does not start in time, whatever else the server sends meanwhile.
    """
    opener = urllib.request.build_opener(_WebRedirects)
    answer: Future[http.client.HTTPResponse] = in_thread(
        lambda: opener.open(request, timeout=_TIMEOUT_SECONDS)
    )
    try:
        done, _ = concurrent.futures.wait([answer], timeout=_ANSWER_SECONDS)
        if not done:
            answer.add_done_callback(_close)
            raise TimeoutError(f"the server sent no data within {_ANSWER_SECONDS:g} s")
        return answer.result()
    except ValueError as error:
        raise DownloadError(
            f"{request.full_url} is or leads to an invalid URL ({_printable(str(error))}): correct "
            "the recipe"
        ) from error


def _close(answer: Future[http.client.HTTPResponse]) -> None:
    """Close an answer that comes too late."""
    if answer.exception() is None:
        answer.result().close()


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https and nowhere else."""

    def http_error_302(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
    ) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:
            fp.close()  # urllib leaves it open where it cannot parse an address
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        *_, url = args
        if not is_url(url):
            raise ValueError(f"{url!r} is not http or https")
        return super().redirect_request(*args)


def _receive(
    response: http.client.HTTPResponse, url: str, part: Path, offset: int, max_bytes: int
) -> None:
    """Write the body of a response behind the first `offset` bytes of the file."""
    total = None if response.length is None else offset + response.length
    num_bytes = offset
    with (
        part.open("ab" if offset else "wb") as file,
        Progress(f"fetch {part.stem}", total=total, unit="B", initial=offset) as bar,
    ):
        if not offset:
            write_json(_state_path(part), {"url": url, "validator": _validator(response)})
        for block in _blocks(response):
            num_bytes += len(block)
            if max(num_bytes, total or 0) > max_bytes:
                _discard(part)
                raise DownloadError(
                    f"{url} sends more than {max_bytes:,} bytes, which cannot be what the recipe "
                    "means: correct its address or size"
                )
            _write(file, block)
            bar.update(len(block))
        os.fsync(file.fileno())
    if total is not None and size_of(part) != total:
        raise ConnectionError(f"connection cut after {size_of(part):,} of {total:,} bytes")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The bytes of a body as they come.

    Raises:
        TimeoutError: They come too slowly.
    """
    started, num_bytes = time.monotonic(), 0
    while block := response.read1(_BLOCK_BYTES):
        yield block
        num_bytes += len(block)
        if time.monotonic() - started >= _TIMEOUT_SECONDS:
            if num_bytes < _MIN_BYTES:
                raise TimeoutError(f"only {num_bytes:,} bytes in {_TIMEOUT_SECONDS:g} s")
            started, num_bytes = time.monotonic(), 0


def _write(file: IO[bytes], block: bytes) -> None:
    """Write to a part, so that a full disk is not taken for trouble with the network."""
    try:
        file.write(block)
        file.flush()
    except OSError as error:
        raise DownloadError(
            f"cannot write {file.name}: {error.strerror}; make room, and the same command goes on"
        ) from error


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What tells whether the server's file is still the same, by the rules of If-Range."""
    etag = response.headers.get("ETag")
    if etag is not None and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified")


def _resume_point(url: str, part: Path) -> tuple[int, str]:
    """How many bytes to keep of an earlier try, and what identifies the file they are of."""
    if not size_of(part) or not _state_path(part).exists():
        return 0, ""
    try:
        state = read_json(_state_path(part))
    except DataError:
        return 0, ""  # all that it is good for is to save some time
    validator = state.get("validator")
    if state.get("url") != url or not _is_header(validator):
        return 0, ""
    return size_of(part), validator


def _is_header(value: object) -> TypeGuard[str]:
    """Whether it can stand in a request, as what a server said can."""
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _state_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_path(part).unlink(missing_ok=True)
