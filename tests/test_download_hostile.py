"""Downloads from a hostile server end with an error and keep nothing."""

import contextlib
import hashlib
import itertools
import time
from http.server import BaseHTTPRequestHandler

import pytest

from tfm.data import download
from tfm.data.corpus.recipe import Archive
from tfm.data.download import fetch
from tfm.errors import DownloadError

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Site:
    """The raw response of the server, and the requests that it received."""

    def __init__(self):
        self.raw = None  # gives one part after another
        self.requests = []


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.site.requests.append(dict(self.headers))
        with contextlib.suppress(OSError):  # the client has had enough
            for part in self.site.raw():
                self.wfile.write(part)
        self.close_connection = True


@pytest.fixture
def site(serve, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "_RETRY_DELAYS_SECONDS", (0.0, 0.0, 0.0))
    site = Site()
    site.url = serve(type("SiteHandler", (Handler,), {"site": site}))
    return site


@pytest.fixture
def archive(site):
    return Archive(url=f"{site.url}/data/file.tgz", sha256=SHA256, md5=MD5, size=len(CONTENT))


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def trickle(block, seconds=0.02):
    """Yield a block again and again, with pauses."""
    while True:
        yield block
        time.sleep(seconds)


@pytest.fixture
def short_timeouts(monkeypatch):
    for name in ("_READ_TIMEOUT_SECONDS", "_RESPONSE_TIMEOUT_SECONDS"):
        monkeypatch.setattr(download, name, 0.2)
    monkeypatch.setattr(download, "_RETRY_DELAYS_SECONDS", (0.0,))


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"],
    ids=["status", "headers", "patience"],
)
def test_a_server_that_never_sends_a_body_times_out(archive, site, tmp_path, short_timeouts, head):
    site.raw = lambda: itertools.chain([head], trickle(head or b"H"))
    with pytest.raises(DownloadError, match=r"TimeoutError|LineTooLong|HTTPException|BadStatus"):
        fetch(archive, tmp_path)


def test_a_very_slow_body_times_out(archive, site, tmp_path, short_timeouts):
    site.raw = lambda: itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], trickle(b"x"))
    with pytest.raises(DownloadError, match=r"TimeoutError: only [0-9]+ bytes in 0.2 s"):
        fetch(archive, tmp_path)


@pytest.mark.parametrize("head", [b"", b"Content-Length: 99999999\r\n"])
def test_an_endless_body_is_discarded(archive, site, tmp_path, monkeypatch, head):
    monkeypatch.setattr(download, "_SIZE_MARGIN_BYTES", 1000)
    site.raw = lambda: itertools.chain(
        [b"HTTP/1.1 200 OK\r\n" + head + b"\r\n"], trickle(CONTENT, 0.0)
    )
    limit = f"{2 * len(CONTENT) + 1000:,}"
    with pytest.raises(DownloadError, match=f"sends more than {limit} bytes"):
        fetch(archive, tmp_path)
    assert files_in(tmp_path) == []
    assert len(site.requests) == 1


def test_control_characters_of_a_server_do_not_reach_the_terminal(archive, site, tmp_path):
    site.raw = lambda: [b"HTTP/1.1 404 \x1b[2J gone\r\nContent-Length: 0\r\n\r\n"]
    with pytest.raises(DownloadError) as caught:
        fetch(archive, tmp_path)
    assert str(caught.value).isprintable()


def test_a_range_error_without_a_range_request_is_a_failure(archive, site, tmp_path):
    site.raw = lambda: [b"HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\n\r\n"]
    with pytest.raises(DownloadError, match="could not fetch"):
        fetch(archive, tmp_path)
