"""Downloads against a server on this machine that cuts, lies and redirects."""

import hashlib
from collections import deque
from http.server import BaseHTTPRequestHandler

import pytest

from tfm.data import download
from tfm.data.corpus.texts import Archive
from tfm.data.download import fetch
from tfm.errors import DownloadError
from tfm.storage.files import write_json

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Site:
    """What the server serves, how it misbehaves, and what it was asked."""

    def __init__(self):
        self.content = CONTENT
        self.headers = {"ETag": '"v1"'}
        self.takes_ranges = True
        self.says_length = True
        self.cuts = deque()  # bytes after which to cut the connection, one for each request
        self.statuses = deque()  # errors to answer first
        self.redirects = {}
        self.offset_lie = 0
        self.requests = []


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *args):
        pass

    def do_GET(self):
        site = self.site
        site.requests.append(dict(self.headers))
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
        if site.takes_ranges and "Range" in self.headers and self.headers["If-Range"] in validators:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.end_headers()
                return
            self.send_response(206)
            shown = start + site.offset_lie
            self.send_header("Content-Range", f"bytes {shown}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = site.content[start:]
        if site.says_length:
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
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_and_verified_and_nothing_else_is_left(archive, tmp_path):
    fetched = fetch(archive, tmp_path)
    assert fetched.path.read_bytes() == CONTENT
    assert (fetched.sha256, fetched.size, fetched.verified) == (SHA256, len(CONTENT), True)
    assert files_in(tmp_path) == ["file.tgz"]


def test_a_file_that_is_there_is_checked_but_not_fetched_again(archive, site, tmp_path):
    fetch(archive, tmp_path)
    fetch(archive, tmp_path)
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    "headers",
    [{"ETag": '"v1"'}, {"Last-Modified": "Mon, 06 Jan 2014 00:00:00 GMT"}],
)
def test_a_cut_download_goes_on_where_it_stopped(archive, site, tmp_path, headers):
    site.headers = headers
    site.cuts.extend([100_000, 50_000])
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    asked = [request.get("Range") for request in site.requests]
    assert asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(archive, site, tmp_path):
    site.cuts.extend([1000, 0, 0, 0])
    with pytest.raises(DownloadError, match="connection closed"):
        fetch(archive, tmp_path)
    site.requests.clear()
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert [request["Range"] for request in site.requests] == ["bytes=1000-"]


def test_a_file_that_changed_on_the_server_is_fetched_from_its_start(archive, site, tmp_path):
    site.content = b"old" * 90_000
    site.cuts.extend([100_000, 0, 0, 0])
    with pytest.raises(DownloadError):
        fetch(archive, tmp_path)
    site.content, site.headers = CONTENT, {"ETag": '"v2"'}
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize("validators", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_strong_validator_a_cut_download_starts_again(
    archive, site, tmp_path, validators
):
    site.headers = validators
    site.cuts.append(100_000)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in site.requests[1]


def test_a_server_without_ranges_starts_again_cleanly(archive, site, tmp_path):
    site.takes_ranges = False
    site.cuts.append(100_000)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT


def test_another_part_than_asked_for_is_not_appended(archive, site, tmp_path):
    site.offset_lie = 1
    site.cuts.append(100_000)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in site.requests[2]


def test_a_part_that_is_whole_already_is_only_renamed(archive, site, tmp_path):
    site.cuts.append(1000)
    part = tmp_path / "file.tgz.part"
    with pytest.raises(ConnectionError):
        download._transfer(archive.url, part)
    part.write_bytes(CONTENT)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert site.requests[-1]["Range"] == f"bytes={len(CONTENT)}-"


def test_a_part_that_is_longer_than_the_file_is_thrown_away(archive, site, tmp_path):
    site.cuts.append(1000)
    part = tmp_path / "file.tgz.part"
    with pytest.raises(ConnectionError):
        download._transfer(archive.url, part)
    part.write_bytes(CONTENT + b"more")
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT


def test_a_busy_server_is_asked_again_but_not_for_ever(archive, site, tmp_path):
    site.statuses.extend([503, 429, 500])
    assert fetch(archive, tmp_path).verified
    (tmp_path / "file.tgz").unlink()
    site.statuses.extend([503] * 10)
    with pytest.raises(DownloadError, match=r"503.*--mirror"):
        fetch(archive, tmp_path)
    assert len(site.statuses) == 10 - 4


def test_a_file_that_is_not_there_is_asked_for_once(archive, site, tmp_path):
    site.statuses.extend([404] * 4)
    with pytest.raises(DownloadError, match=r"file\.tgz.*404"):
        fetch(archive, tmp_path)
    assert len(site.requests) == 1


def test_large_gains_between_cuts_do_not_count_as_failures(archive, site, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_PROGRESS_BYTES", 1000)
    site.cuts.extend([1000] * 20)
    assert fetch(archive, tmp_path).verified


@pytest.mark.parametrize(
    "known", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"size": 7}, {"sha256": SHA256, "size": 7}]
)
def test_a_wrong_file_is_set_aside_and_the_next_try_is_clean(site, tmp_path, known):
    url = f"{site.url}/file.tgz"
    with pytest.raises(DownloadError) as caught:
        fetch(Archive(url=url, **known), tmp_path)
    message = str(caught.value)
    wrong = "size" if "size" in known else next(iter(known))
    assert str(known[wrong]) in message
    assert str({"sha256": SHA256, "md5": MD5, "size": len(CONTENT)}[wrong]) in message
    assert "--no-verify" in message
    assert "file.tgz" not in files_in(tmp_path)
    assert "file.tgz.bad" in files_in(tmp_path)
    assert fetch(Archive(url=url, sha256=SHA256), tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in site.requests[-1]


def test_a_damaged_file_from_an_earlier_run_is_set_aside(archive, tmp_path):
    (tmp_path / "file.tgz").write_bytes(b"damaged")
    with pytest.raises(DownloadError, match=r"file\.tgz"):
        fetch(archive, tmp_path)
    assert fetch(archive, tmp_path).verified


def test_without_verification_a_wrong_file_is_used_with_a_warning(site, tmp_path, capsys):
    fetched = fetch(Archive(url=f"{site.url}/f", sha256="0" * 64), tmp_path, verify=False)
    assert not fetched.verified
    assert capsys.readouterr().err.count("warning: f") == 1


def test_the_checksum_of_a_file_of_unknown_content_is_said(site, tmp_path, capsys):
    fetched = fetch(Archive(url=f"{site.url}/f"), tmp_path)
    assert not fetched.verified
    assert SHA256 in capsys.readouterr().err


def test_a_redirect_to_another_address_is_followed(site, tmp_path):
    site.redirects["/old"] = "/new"
    assert fetch(Archive(url=f"{site.url}/old", sha256=SHA256), tmp_path).verified


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
def test_a_redirect_away_from_the_web_is_refused(site, tmp_path, target):
    site.redirects["/old"] = target
    with pytest.raises(DownloadError, match=r"file:|ftp:|data:"):
        fetch(Archive(url=f"{site.url}/old"), tmp_path)
    assert len(site.requests) == 1
    assert "old" not in files_in(tmp_path)


def test_an_unreachable_server_is_one_clear_error(site, tmp_path):
    with pytest.raises(DownloadError, match=r"could not fetch http://127\.0\.0\.1:1/x"):
        fetch(Archive(url="http://127.0.0.1:1/x"), tmp_path)


def test_a_folder_is_a_mirror_whose_files_are_used_in_place(archive, site, tmp_path):
    mirror, downloads = tmp_path / "mirror", tmp_path / "downloads"
    mirror.mkdir()
    (mirror / "file.tgz").write_bytes(CONTENT)
    fetched = fetch(archive, downloads, mirror=str(mirror))
    assert fetched.path == mirror / "file.tgz"
    assert fetched.verified
    assert not site.requests
    assert not downloads.exists()


def test_a_wrong_file_of_a_mirror_folder_is_left_alone(archive, tmp_path):
    (tmp_path / "file.tgz").write_bytes(b"other")
    with pytest.raises(DownloadError, match=r"size is 5, not 512000"):
        fetch(archive, tmp_path / "downloads", mirror=str(tmp_path))
    assert files_in(tmp_path) == ["file.tgz"]


def test_a_mirror_folder_that_lacks_the_file_is_named(archive, tmp_path):
    with pytest.raises(DownloadError, match=r"file\.tgz"):
        fetch(archive, tmp_path / "downloads", mirror=str(tmp_path))


def test_a_url_is_a_mirror_too(site, tmp_path):
    archive = Archive(url="http://unreachable.invalid/deep/file.tgz", sha256=SHA256)
    assert fetch(archive, tmp_path, mirror=f"{site.url}/mirror/").verified


def test_a_body_of_unknown_length_is_taken_as_it_comes(archive, site, tmp_path):
    site.says_length = False
    assert fetch(archive, tmp_path).verified


@pytest.mark.parametrize("length", ["", "x", "-1", "1e9", "\u0663", "9" * 5000])
def test_a_length_that_is_no_number_is_taken_for_unknown(archive, site, tmp_path, length):
    site.says_length = False
    site.headers = {"Content-Length": length.encode().decode("latin-1")}
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "target", ["http://[", "http://127.0.0.1:x/", "http://:80/", f"http://{'a' * 70}.b/"]
)
def test_a_redirect_to_what_is_no_address_is_one_error(site, tmp_path, target):
    site.redirects["/old"] = target
    with pytest.raises(DownloadError) as caught:
        fetch(Archive(url=f"{site.url}/old"), tmp_path)
    assert "\n" not in str(caught.value)


def test_redirects_in_a_circle_are_given_up(site, tmp_path):
    site.redirects |= {"/a": "/b", "/b": "/a"}
    with pytest.raises(DownloadError, match="infinite loop"):
        fetch(Archive(url=f"{site.url}/a"), tmp_path)


@pytest.mark.parametrize("state", [b"", b"[]", b'{"url": 3}', b"\xff"])
def test_with_a_damaged_note_of_an_earlier_try_a_download_starts_again(
    archive, site, tmp_path, state
):
    site.cuts.append(1000)
    part = tmp_path / "file.tgz.part"
    with pytest.raises(ConnectionError):
        download._transfer(archive.url, part)
    (tmp_path / "file.tgz.part.json").write_bytes(state)
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in site.requests[-1]


def test_a_validator_that_cannot_be_sent_is_not(archive, site, tmp_path):
    site.cuts.append(1000)
    part = tmp_path / "file.tgz.part"
    with pytest.raises(ConnectionError):
        download._transfer(archive.url, part)
    write_json(tmp_path / "file.tgz.part.json", {"url": archive.url, "validator": "x\r\nY: z"})
    assert fetch(archive, tmp_path).path.read_bytes() == CONTENT


def test_a_full_disk_is_no_trouble_with_the_network(archive, site, tmp_path):
    (tmp_path / "file.tgz.part").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match=r"cannot write .*\.part: No space left on device"):
        fetch(archive, tmp_path)
    assert len(site.requests) == 1


def test_the_name_of_a_file_is_an_address_again_on_a_mirror(site, tmp_path):
    archive = Archive(url="http://unreachable.invalid/a%20b%23.tgz", sha256=SHA256)
    assert fetch(archive, tmp_path, mirror=site.url).path.name == "a b#.tgz"
