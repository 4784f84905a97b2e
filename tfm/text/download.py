"""Download the files of a recipe: resume, retry and verify."""

import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tfm.disk.files import output_target, read_json, size_of, sync_directory, write_json
from tfm.disk.lock import lock_folder
from tfm.errors import DownloadError
from tfm.reporting import Progress, printable, say
from tfm.text.corpus.texts import Archive, is_url

CHECKSUMS = "checksums.json"  # {URL: SHA-256} of the first downloads of a dataset

_MAX_WAIT_SECONDS = 600.0  # for another process that downloads
_TIMEOUT_SECONDS = 60.0  # without a byte from the server
_RETRY_DELAYS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_BLOCK_BYTES = 1 << 18
# An attempt that adds this much is no failure: a long download may be interrupted many times.
_PROGRESS_BYTES = 1 << 20
_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
# Errors of the network, and of a URL that a redirect leads to. Failures to write to the disk raise
# DownloadError, which is not retried.
_ERRORS = (OSError, http.client.HTTPException, ValueError)


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
    """
    path = located(archive, downloads_dir, mirror)
    if not path.is_file():
        if mirror is not None and not is_url(mirror):
            raise DownloadError(f"the mirror {mirror} has no file {archive.name}: put it there")
        url = archive.url
        if mirror is not None:
            url = f"{mirror.rstrip('/')}/{urllib.parse.quote(archive.name)}"
        target = output_target(path)
        with lock_folder(target.parent, max_wait_seconds=_MAX_WAIT_SECONDS):
            if not target.is_file():  # another process may have been here first
                _download(url, target, name=archive.name)
    return _check(path, archive, recorded, verify=verify)


def located(archive: Archive, downloads_dir: Path, mirror: str | None) -> Path:
    """Return where a download is, or will be."""
    folder = downloads_dir if mirror is None or is_url(mirror) else Path(mirror)
    return folder / archive.name


def _check(path: Path, archive: Archive, recorded: str | None, *, verify: bool) -> FetchedFile:
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
        standard, acceptance = archive.checksums_of
        if is_recorded and kind == "sha256":
            standard = f"its first download, which {CHECKSUMS} of the dataset records"
            acceptance = f"accept it by removing its entry from {CHECKSUMS}"
        raise DownloadError(
            f"{path} does not match {standard} (its {kind} is {actual[kind]}, not "
            f"{expected[kind]}): remove it to have it downloaded again, replace it, or {acceptance}"
        )
    elif not (archive.has_checksum or is_recorded):
        say(f"{archive.name}: no checksum of it is known; its sha256 is {actual['sha256']}")
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


def _download(url: str, target: Path, *, name: str) -> None:
    """Download a URL to a file, aside until it is complete; resume an earlier attempt."""
    partial = target.with_name(f"{target.name}.part")
    _receive_all(url, partial, name=name)
    os.replace(partial, target)
    _state_path(partial).unlink(missing_ok=True)
    sync_directory(target.parent)


def _receive_all(url: str, partial: Path, *, name: str) -> None:
    """Download a URL to a file; resume after interruptions and retry failures that may pass."""
    num_failures = 0
    max_size = size_of(partial)
    while True:
        try:
            _transfer(url, partial)
        except _ERRORS as error:
            if isinstance(getattr(error, "reason", error), socket.gaierror):
                host = urllib.parse.urlsplit(url).hostname
                raise DownloadError(
                    f"could not fetch {url}: there is no address for {host}: check the connection "
                    f"to the network, or give a folder that has {name} with --mirror"
                ) from error
            reason = printable(f"{type(error).__name__}: {error}")
            code = error.code if isinstance(error, urllib.error.HTTPError) else None
            is_permanent = code not in (None, *_RETRIED_STATUSES) or isinstance(error, ValueError)
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


def _transfer(url: str, partial: Path) -> None:
    """Download the missing end of a file, or all of it if it cannot be resumed, in one request."""
    offset, validator = _resume_point(url, partial)
    request = urllib.request.Request(url, headers={"User-Agent": "tfm"})  # noqa: S310
    if offset:
        # If the file has changed on the server, If-Range makes it send all of the new one.
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", validator)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310
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
        _receive(response, url, partial, offset)


def _receive(response: http.client.HTTPResponse, url: str, partial: Path, offset: int) -> None:
    """Write the body of a response to the file, after its first `offset` bytes."""
    total = None if response.length is None else offset + response.length
    with (
        partial.open("ab" if offset else "wb") as file,
        Progress(f"fetch {partial.stem}", total=total, unit="B", initial=offset) as bar,
    ):
        if not offset:
            write_json(_state_path(partial), {"url": url, "validator": _validator(response)})
        while block := response.read1(_BLOCK_BYTES):
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


def _validator(response: http.client.HTTPResponse) -> str | None:
    """Return the header that identifies this version of the file, as If-Range requires."""
    etag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified") if etag.startswith("W/") else etag


def _resume_point(url: str, partial: Path) -> tuple[int, str]:
    """Return how many bytes of an earlier attempt to keep, and the validator of its file."""
    state = read_json(_state_path(partial)) if _state_path(partial).exists() else {}
    if state.get("url") != url or not state.get("validator"):
        return 0, ""
    return size_of(partial), state["validator"]


def _state_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _discard(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _state_path(partial).unlink(missing_ok=True)
