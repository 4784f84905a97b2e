"""Fetching of the files of a recipe: resumed, retried, and compared with what the recipe knows."""

import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from tfm.data.corpus import Archive, is_url
from tfm.errors import DownloadError
from tfm.runtime.files import read_json, sync_directory, write_json
from tfm.runtime.reporting import Progress, say

_TIMEOUT_SECONDS = 60.0
_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_BLOCK_BYTES = 1 << 18
# A try that gains this much does not count as failed: a long file may be cut many times.
_GAIN_BYTES = 1 << 20
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A file that is on this machine.

    Attributes:
        path: Where it lies.
        sha256: Checksum of its bytes.
        size: Size in bytes.
        verified: Whether a checksum that the recipe knows was found to be right.
    """

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
    _download(archive.url if mirror is None else f"{mirror.rstrip('/')}/{archive.name}", part)
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
    """Say what is wrong with a file; one that was downloaded is moved out of the next try's way."""
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


def _download(url: str, part: Path) -> None:
    """Fetch a URL into a file, going on after a cut, until it is whole or there is no hope."""
    num_failures = 0
    most_bytes = _size(part)
    while True:
        try:
            _transfer(url, part)
        except _PASSING_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
            lasting = (
                isinstance(error, urllib.error.HTTPError) and error.code not in _PASSING_STATUSES
            )
        else:
            return
        num_failures = 0 if _size(part) >= most_bytes + _GAIN_BYTES else num_failures + 1
        most_bytes = max(most_bytes, _size(part))
        if lasting or num_failures > len(_PAUSES_SECONDS):
            raise DownloadError(
                f"could not fetch {url} ({reason}): try again later, which goes on from here, or "
                f"give a folder that has {part.stem} with --mirror"
            )
        pause = _PAUSES_SECONDS[max(0, num_failures - 1)]
        say(f"{part.stem}: {reason}; trying again in {pause:g} s")
        time.sleep(pause)


def _transfer(url: str, part: Path) -> None:
    """One connection: fetch what is missing of the file, or all of it if that cannot be told."""
    offset, validator = _resume_point(url, part)
    request = urllib.request.Request(url, headers={"User-Agent": "tfm"})  # noqa: S310
    if offset:
        # If the file has changed on the server, If-Range makes it send all of the new one.
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", validator)
    try:
        response = _opener().open(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{offset}":
            return  # it was whole already
        _discard(part)
        raise ConnectionError("the server has another file by now") from error
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            offset = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            _discard(part)
            raise ConnectionError("the server sent another part of the file than asked for")
        _receive(response, url, part, offset)


def _receive(response: http.client.HTTPResponse, url: str, part: Path, offset: int) -> None:
    """Write the body of a response behind the first `offset` bytes of the file."""
    length = response.headers.get("Content-Length")
    total = None if length is None else offset + int(length)
    with (
        part.open("ab" if offset else "wb") as file,
        Progress(f"fetch {part.stem}", total=total, unit="B", initial=offset) as bar,
    ):
        if not offset:
            write_json(_state_path(part), {"url": url, "validator": _validator(response)})
        while block := response.read(_BLOCK_BYTES):
            file.write(block)
            bar.update(len(block))
        file.flush()
        os.fsync(file.fileno())
    if total is not None and _size(part) != total:
        raise ConnectionError(f"connection cut after {_size(part):,} of {total:,} bytes")


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What tells whether the server's file is still the same, by the rules of If-Range."""
    etag = response.headers.get("ETag")
    if etag is not None and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified")


def _resume_point(url: str, part: Path) -> tuple[int, str]:
    """How many bytes to keep of an earlier try, and what identifies the file they are of."""
    if not _size(part) or not _state_path(part).exists():
        return 0, ""
    state = read_json(_state_path(part))
    validator = state.get("validator")
    if state.get("url") != url or not isinstance(validator, str):
        return 0, ""
    return _size(part), validator


def _state_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_path(part).unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _opener() -> urllib.request.OpenerDirector:
    """Speaks http and https and nothing else, wherever a redirect leads."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _RedirectToWeb(),
    ):
        opener.add_handler(handler)
    return opener


class _RedirectToWeb(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not is_url(newurl):
            raise DownloadError(f"{req.full_url} leads to {newurl}, which is no http or https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
