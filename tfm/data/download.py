"""Download the files of a recipe: resume, retry and verify."""

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
from pathlib import Path, PurePosixPath
from typing import Any

from tfm.data.background import run_in_thread
from tfm.data.corpus.recipe import Archive, is_url
from tfm.errors import DataError, DownloadError
from tfm.reporting import Progress, say
from tfm.storage.files import read_json, size_of, sync_directory, write_json

CHECKSUMS = "checksums.json"  # {URL: SHA-256} of the first downloads of a dataset

_READ_TIMEOUT_SECONDS = 60.0
_RESPONSE_TIMEOUT_SECONDS = 240.0  # until the body starts, redirects included
_MIN_BYTES_PER_READ_TIMEOUT = 1 << 16
_RETRY_DELAYS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_BLOCK_BYTES = 1 << 18
# An attempt that adds this much is no failure: a long download may be interrupted many times.
_PROGRESS_BYTES = 1 << 20
# A body may have at most twice the size that the recipe states plus this margin, because stated
# sizes may be approximate. Without a stated size, the second limit applies.
_SIZE_MARGIN_BYTES = 1 << 30
_MAX_UNKNOWN_SIZE_BYTES = 1 << 36
_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
# Errors of the network. Failures to write to the disk raise DownloadError, which is not retried.
_RETRIED_ERRORS = (OSError, http.client.HTTPException)


@dataclass(frozen=True, kw_only=True)
class FetchedFile:
    """A file on this machine; `verified` if it has the checksum that the recipe states."""

    path: Path
    sha256: str
    size: int
    verified: bool


def fetch(
    archive: Archive,
    downloads_dir: Path,
    *,
    mirror: str | None = None,
    verify: bool = True,
    recorded: str | None = None,
) -> FetchedFile:
    """Download a file of a recipe to a folder, unless it exists there, and check it.

    A `mirror` is a folder or URL that holds the file by its name; a folder's file is used in place.
    `verify` compares size and checksums with those in the recipe. If it has no checksum, `recorded`
    is compared, the SHA-256 of the first download.

    Raises:
        DownloadError: The file cannot be downloaded, or does not match the recipe.
    """
    if mirror is not None and not is_url(mirror):
        path = Path(mirror) / archive.name
        if not path.is_file():
            raise DownloadError(f"the mirror {mirror} has no file {archive.name}: put it there")
        return _check(path, archive, recorded, verify=verify, is_download=False)
    path = downloads_dir / archive.name
    partial = partial_path(path)
    if path.is_file():
        _discard(partial)
        return _check(path, archive, recorded, verify=verify, is_download=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    url = archive.url
    if mirror is not None:
        url = f"{mirror.rstrip('/')}/{urllib.parse.quote(archive.name)}"
    size = archive.size or archive.approximate_size
    max_bytes = _MAX_UNKNOWN_SIZE_BYTES if size is None else 2 * size + _SIZE_MARGIN_BYTES
    _download(url, partial, name=archive.name, max_bytes=max_bytes)
    fetched = _check(partial, archive, recorded, verify=verify, is_download=True)
    os.replace(partial, path)
    _state_path(partial).unlink(missing_ok=True)
    sync_directory(path.parent)
    return replace(fetched, path=path)


def partial_path(path: Path) -> Path:
    """Return where a download is written until it is complete and renamed."""
    return path.with_name(f"{path.name}.part")


def _check(
    path: Path, archive: Archive, recorded: str | None, *, verify: bool, is_download: bool
) -> FetchedFile:
    """Compare the checksums of a file with those in the recipe, or else of its first download."""
    actual = _measure(path, archive)
    is_recorded = not archive.has_checksum and recorded is not None
    expected = {kind: getattr(archive, kind) for kind in actual}
    if is_recorded:
        expected["sha256"] = recorded
    different = [kind for kind in actual if expected[kind] not in (None, actual[kind])]
    if not verify:
        say(f"warning: {archive.name}: its checksum was not verified")
    elif different:
        kind = different[0]
        standard, acceptance = "the recipe", "accept it with --no-verify"
        if is_recorded and kind == "sha256":
            standard = f"its first download, which {CHECKSUMS} of the dataset records"
            acceptance = f"accept it by removing its entry from {CHECKSUMS}"
        problem = f"does not match {standard} (its {kind} is {actual[kind]}, not {expected[kind]})"
        if not is_download:
            raise DownloadError(f"{path} {problem}: replace it, or {acceptance}")
        name = PurePosixPath(archive.name).name
        renamed = path.with_name(f"{name}.bad")
        os.replace(path, renamed)
        raise DownloadError(
            f"the download {problem} and was renamed to {renamed}: try again, use a --mirror, or "
            f"rename it to {name} and {acceptance}"
        )
    elif not (archive.has_checksum or is_recorded):
        say(f"{archive.name}: the recipe has no checksum; its sha256 is {actual['sha256']}")
    return FetchedFile(
        path=path,
        size=path.stat().st_size,
        sha256=str(actual["sha256"]),
        verified=verify and archive.has_checksum,
    )


def _measure(path: Path, archive: Archive) -> dict[str, int | str]:
    """Return the size and the checksums of a file, by their names in a recipe."""
    digests = {"sha256": hashlib.sha256()}
    if archive.md5 is not None:
        digests["md5"] = hashlib.md5(usedforsecurity=False)
    size = path.stat().st_size
    with path.open("rb") as file, Progress(f"check {archive.name}", total=size, unit="B") as bar:
        while block := file.read(_BLOCK_BYTES):
            for digest in digests.values():
                digest.update(block)
            bar.update(len(block))
    return {"size": size} | {kind: digest.hexdigest() for kind, digest in digests.items()}


def _download(url: str, partial: Path, *, name: str, max_bytes: int) -> None:
    """Download a URL to a file; resume after interruptions and retry failures that may pass."""
    num_failures = 0
    max_size = size_of(partial)
    while True:
        try:
            _transfer(url, partial, max_bytes=max_bytes)
        except _RETRIED_ERRORS as error:
            if isinstance(getattr(error, "reason", error), socket.gaierror):
                host = urllib.parse.urlsplit(url).hostname
                raise DownloadError(
                    f"could not fetch {url}: there is no address for {host}: check the connection "
                    f"to the network, or give a folder that has {name} with --mirror"
                ) from error
            reason = _printable(f"{type(error).__name__}: {error}")
            is_permanent = (
                isinstance(error, urllib.error.HTTPError) and error.code not in _RETRIED_STATUSES
            )
        else:
            return
        num_failures = 0 if size_of(partial) >= max_size + _PROGRESS_BYTES else num_failures + 1
        max_size = max(max_size, size_of(partial))
        if is_permanent or num_failures > len(_RETRY_DELAYS_SECONDS):
            raise DownloadError(
                f"could not fetch {url} ({reason}): run the same command later to resume, or pass "
                f"a folder that holds {name} with --mirror"
            )
        delay = _RETRY_DELAYS_SECONDS[max(0, num_failures - 1)]
        say(f"{name}: {reason}; trying again in {delay:g} s")
        time.sleep(delay)


def _transfer(url: str, partial: Path, *, max_bytes: int = _MAX_UNKNOWN_SIZE_BYTES) -> None:
    """Download the missing end of a file, or all of it if it cannot be resumed, in one request."""
    offset, validator = _resume_point(url, partial)
    request = urllib.request.Request(url, headers={"User-Agent": "tfm"})  # noqa: S310
    if offset:
        # If the file has changed on the server, If-Range makes it send all of the new one.
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", validator)
    try:
        response = _open(request)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if offset and error.headers.get("Content-Range") == f"bytes */{offset}":
            return  # the partial file was complete
        _discard(partial)
        raise ConnectionError("the file on the server has changed") from error
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            offset = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            _discard(partial)
            raise ConnectionError("the server sent another byte range than the one requested")
        _receive(response, url, partial, offset, max_bytes)


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    """Send a request, follow redirects and return the response when its body starts.

    A timeout applies to all of this, because a server may keep sending headers.
    """
    opener = urllib.request.build_opener(_WebRedirectHandler)
    response: Future[http.client.HTTPResponse] = run_in_thread(
        lambda: opener.open(request, timeout=_READ_TIMEOUT_SECONDS)
    )
    try:
        done, _ = concurrent.futures.wait([response], timeout=_RESPONSE_TIMEOUT_SECONDS)
        if not done:
            response.add_done_callback(_close)
            raise TimeoutError(f"the server sent no data within {_RESPONSE_TIMEOUT_SECONDS:g} s")
        return response.result()
    except ValueError as error:
        raise DownloadError(
            f"{request.full_url} is an invalid URL or redirects to one ({_printable(str(error))}): "
            "correct `url` in the recipe"
        ) from error


def _close(response: Future[http.client.HTTPResponse]) -> None:
    """Close a response that arrives after its timeout."""
    if response.exception() is None:
        response.result().close()


class _WebRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follow redirects to http and https only."""

    def http_error_302(self, *args: Any) -> Any:
        try:
            return super().http_error_302(*args)
        except ValueError:
            _, response, *_ = args
            response.close()  # urllib leaves it open if it cannot parse the URL
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_302  # type: ignore[assignment]
    http_error_308 = http_error_302  # type: ignore[assignment]

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        *_, url = args
        if not is_url(url):
            raise ValueError(f"{url!r} is not http or https")
        return super().redirect_request(*args)


def _receive(
    response: http.client.HTTPResponse, url: str, partial: Path, offset: int, max_bytes: int
) -> None:
    """Write the body of a response to the file, after its first `offset` bytes."""
    total = None if response.length is None else offset + response.length
    num_bytes = offset
    with (
        partial.open("ab" if offset else "wb") as file,
        Progress(f"fetch {partial.stem}", total=total, unit="B", initial=offset) as bar,
    ):
        if not offset:
            write_json(_state_path(partial), {"url": url, "validator": _validator(response)})
        for block in _read_blocks(response):
            num_bytes += len(block)
            if max(num_bytes, total or 0) > max_bytes:
                _discard(partial)
                raise DownloadError(
                    f"{url} sends more than {max_bytes:,} bytes, too many for this file: correct "
                    "`url` or `size` in the recipe"
                )
            try:
                file.write(block)
                file.flush()
            except OSError as error:  # would be retried as an error of the network
                raise DownloadError(
                    f"cannot write {file.name}: {error.strerror}: free disk space and run the same "
                    "command again to resume"
                ) from error
            bar.update(len(block))
        os.fsync(file.fileno())
    if total is not None and size_of(partial) != total:
        raise ConnectionError(f"connection closed after {size_of(partial):,} of {total:,} bytes")


def _read_blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Read the body of a response, or raise TimeoutError if it arrives too slowly."""
    start, num_bytes = time.monotonic(), 0
    while block := response.read1(_BLOCK_BYTES):
        yield block
        num_bytes += len(block)
        if time.monotonic() - start >= _READ_TIMEOUT_SECONDS:
            if num_bytes < _MIN_BYTES_PER_READ_TIMEOUT:
                raise TimeoutError(f"only {num_bytes:,} bytes in {_READ_TIMEOUT_SECONDS:g} s")
            start, num_bytes = time.monotonic(), 0


def _validator(response: http.client.HTTPResponse) -> str | None:
    """Return the header that identifies this version of the file, as If-Range requires."""
    etag = response.headers.get("ETag")
    if etag is not None and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified")


def _resume_point(url: str, partial: Path) -> tuple[int, str]:
    """Return how many bytes of an earlier attempt to keep, and the validator of its file."""
    try:
        state = read_json(_state_path(partial))
    except (DataError, FileNotFoundError):
        return 0, ""  # without a readable state, the download just starts again
    validator = state.get("validator")
    # A damaged validator could not be sent in a header.
    if isinstance(validator, str) and validator.isascii() and validator.isprintable():
        return (size_of(partial), validator) if state.get("url") == url else (0, "")
    return 0, ""


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _state_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _discard(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _state_path(partial).unlink(missing_ok=True)
