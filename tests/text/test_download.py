"""Downloads from a local server that fails, redirects, lies or never ends."""

import contextlib
import hashlib
import socket
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler

import pytest

from tfm.errors import DownloadError
from tfm.text import download
from tfm.text.corpus.texts import Archive
from tfm.text.download import fetch

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Site:
    """The content and faults of the server, and the requests that it received."""

    def __init__(self):
        self.content = CONTENT
        self.headers = {"ETag": '"v1"'}
        self.sends_length = True
        self.cuts = deque()  # for each request, the bytes after which to close the connection
        self.statuses = deque()  # HTTP errors for the first requests
        self.redirects = {}
        self.offset_error = 0
        self.raw = None  # gives the parts of the whole response, one after another
        self.requests = []


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *args):
        pass

    def do_GET(self):
        site = self.site
        site.requests.append(dict(self.headers))
        if site.raw is not None:
            with contextlib.suppress(OSError):  # the client has had enough
                for part in site.raw():
                    self.wfile.write(part)
            self.close_connection = True
            return
        if site.statuses:
            self.send_error(site.statuses.popleft())
            return
        if self.path in site.redirects:
            self.send_response(302)
            self.send_header("Location", site.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_content()

    def send_content(self):
        site, start, total = self.site, 0, len(self.site.content)
        validators = site.headers.values()
        if "Range" in self.headers and self.headers["If-Range"] in validators:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.end_headers()
                return
            self.send_response(206)
            shown = start + site.offset_error
            self.send_header("Content-Range", f"bytes {shown}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = site.content[start:]
        if site.sends_length:
            self.send_header("Content-Length", str(len(body)))
        for name, value in site.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: site.cuts.popleft()] if site.cuts else body)


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
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_file_is_fetched_once_and_verified_and_no_other_file_remains(archive, site, tmp_path):
    fetched = fetch(archive, tmp_path)
    assert fetched.path.read_bytes() == CONTENT
    assert (fetched.sha256, fetched.size, fetched.verified) == (SHA256, len(CONTENT), True)
    assert files_in(tmp_path) == ["file.tgz"]
    fetch(archive, tmp_path)
    assert len(site.requests) == 1


def test_processes_that_share_a_folder_fetch_a_file_once(archive, site, tmp_path):
    site.cuts.append(1_000)
    with ThreadPoolExecutor() as threads:
        assert len({*threads.map(fetch, [archive] * 4, [tmp_path] * 4)}) == 1
    assert [request.get("Range") for request in site.requests] == [None, "bytes=1000-"]


@pytest.mark.parametrize(
    "headers", [{"ETag": '"v1"'}, {"Last-Modified": "Mon, 06 Jan 2014 00:00:00 GMT"}]
)
def test_an_interrupted_download_resumes(archive, site, tmp_path, headers):
    site.headers = headers
    site.cuts.extend([100_000, 50_000])
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    ranges = [request.get("Range") for request in site.requests]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_file_that_changed_on_the_server_is_fetched_from_its_start(archive, site, tmp_path):
    site.content = b"old" * 90_000
    site.cuts.extend([100_000, 0, 0, 0])
    with pytest.raises(DownloadError):
        fetch(archive, tmp_path)
    site.content, site.headers = CONTENT, {"ETag": '"v2"'}
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize("validators", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_strong_validator_an_interrupted_download_restarts(
    archive, site, tmp_path, validators
):
    site.headers = validators
    site.cuts.append(100_000)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in site.requests[1]


def test_a_range_that_was_not_requested_is_not_appended(archive, site, tmp_path):
    site.offset_error = 1
    site.cuts.append(100_000)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in site.requests[2]


@pytest.mark.parametrize("more", [b"", b"more"])
def test_a_complete_partial_file_is_only_renamed_and_a_longer_one_discarded(
    archive, site, tmp_path, more
):
    site.cuts.append(1000)
    part = tmp_path / "file.tgz.part"
    with pytest.raises(ConnectionError):
        download._transfer(archive.url, part)
    part.write_bytes(CONTENT + more)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert more or site.requests[-1]["Range"] == f"bytes={len(CONTENT)}-"


def test_a_busy_server_is_retried_a_limited_number_of_times(archive, site, tmp_path):
    site.statuses.extend([503, 429, 500])
    assert fetch(archive, tmp_path).verified
    (tmp_path / "file.tgz").unlink()
    site.statuses.extend([503] * 10)
    with pytest.raises(DownloadError, match=r"503.*--mirror"):
        fetch(archive, tmp_path)
    assert len(site.statuses) == 10 - 4


def test_a_missing_file_is_requested_once(archive, site, tmp_path):
    site.statuses.extend([404] * 4)
    with pytest.raises(DownloadError, match=r"file\.tgz.*404"):
        fetch(archive, tmp_path)
    assert len(site.requests) == 1


def test_interruptions_after_progress_do_not_count_as_failures(
    archive, site, tmp_path, monkeypatch
):
    monkeypatch.setattr(download, "_PROGRESS_BYTES", 1000)
    site.cuts.extend([1000] * 20)
    assert fetch(archive, tmp_path).verified


@pytest.mark.parametrize("known", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"size": 7}])
def test_a_wrong_file_is_named_and_fetched_anew_once_it_is_removed(site, tmp_path, known):
    url = f"{site.url}/file.tgz"
    with pytest.raises(DownloadError) as caught:
        fetch(Archive(url=url, **known), tmp_path)
    message = str(caught.value)
    wrong = "size" if "size" in known else next(iter(known))
    assert str(known[wrong]) in message
    assert str({"sha256": SHA256, "md5": MD5, "size": len(CONTENT)}[wrong]) in message
    assert "--no-verify" in message
    assert f"{tmp_path / 'file.tgz'} does not match the recipe" in message
    (tmp_path / "file.tgz").unlink()
    assert fetch(Archive(url=url, sha256=SHA256), tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in site.requests[-1]


def test_without_verification_a_file_is_used_and_its_checksum_is_reported(site, tmp_path, capsys):
    site.redirects["/old"] = "/f"
    for name, known, verify in (("f", {"sha256": "0" * 64}, False), ("old", {}, True)):
        assert not fetch(
            Archive(url=f"{site.url}/{name}", **known), tmp_path, verify=verify
        ).verified
    reported = capsys.readouterr().err
    assert reported.count("warning: f") == 1
    assert SHA256 in reported


def test_an_unreachable_server_is_one_clear_error(site, tmp_path):
    with pytest.raises(DownloadError, match=r"could not fetch http://127\.0\.0\.1:1/x"):
        fetch(Archive(url="http://127.0.0.1:1/x"), tmp_path)


def test_a_name_without_an_address_is_said_at_once_in_plain_words(tmp_path, monkeypatch):
    def getaddrinfo(*_arguments, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(download, "_RETRY_DELAYS_SECONDS", (60.0,))
    with pytest.raises(DownloadError, match=r"no address for example\.org: check .*--mirror"):
        fetch(Archive(url="https://example.org/file.tgz"), tmp_path)


def test_a_folder_is_a_mirror_whose_files_are_used_in_place(archive, site, tmp_path):
    mirror, downloads = tmp_path / "mirror", tmp_path / "downloads"
    mirror.mkdir()
    (mirror / "file.tgz").write_bytes(CONTENT)
    fetched = fetch(archive, downloads, mirror=str(mirror))
    assert fetched.path == mirror / "file.tgz"
    assert fetched.verified
    assert not site.requests
    assert not downloads.exists()
    (mirror / "file.tgz").write_bytes(b"other")
    with pytest.raises(DownloadError, match=r"size is 5, not 512000"):
        fetch(archive, downloads, mirror=str(mirror))
    assert files_in(mirror) == ["file.tgz"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://[", "could not fetch"),
        ("http://127.0.0.1:x/", "could not fetch"),
        (f"http://{'a' * 70}.b/", "could not fetch"),
        ("file:///etc/passwd", "could not fetch"),
        ("/old", "infinite loop"),
    ],
)
def test_a_redirect_that_cannot_be_followed_is_one_error(site, tmp_path, target, message):
    site.redirects["/old"] = target
    with pytest.raises(DownloadError, match=message) as caught:
        fetch(Archive(url=f"{site.url}/old"), tmp_path)
    assert "\n" not in str(caught.value)
    assert "old" not in files_in(tmp_path)


def test_a_full_disk_is_not_retried(archive, site, tmp_path):
    (tmp_path / "file.tgz.part").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match=r"cannot write .*\.part: No space left on device"):
        fetch(archive, tmp_path)
    assert len(site.requests) == 1


def test_the_file_name_is_quoted_in_the_url_of_a_mirror(site, tmp_path):
    archive = Archive(url="http://unreachable.invalid/a%20b%23.tgz", sha256=SHA256)
    assert fetch(archive, tmp_path, mirror=site.url).path.name == "a b#.tgz"


def test_control_characters_of_a_server_do_not_reach_the_terminal(archive, site, tmp_path):
    site.raw = lambda: [b"HTTP/1.1 404 \x1b[2J gone\r\nContent-Length: 0\r\n\r\n"]
    with pytest.raises(DownloadError) as caught:
        fetch(archive, tmp_path)
    assert str(caught.value).isprintable()


def test_a_range_error_without_a_range_request_is_a_failure(archive, site, tmp_path):
    site.raw = lambda: [b"HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\n\r\n"]
    with pytest.raises(DownloadError, match="could not fetch"):
        fetch(archive, tmp_path)


def test_a_silent_server_times_out(archive, site, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(download, "_RETRY_DELAYS_SECONDS", (0.0,))
    site.raw = lambda: [time.sleep(0.3) or b"HTTP/1.1 200 OK\r\n"]
    with pytest.raises(DownloadError, match="timed out"):
        fetch(archive, tmp_path)
