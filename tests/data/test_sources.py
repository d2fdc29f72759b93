"""Finding and fetching files: the order of search, checked hashes, and errors that say what to do."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
from pathlib import Path
from urllib.error import URLError

import pytest

from tacit.data import DATASETS, load
from tacit.data import sources as module
from tacit.data.sources import SourceFile, find_files
from tacit.errors import DataError

HOME = "https://example.org"
CONTENT = b"the records"
PLAIN = SourceFile("records.txt", hashlib.sha256(CONTENT).hexdigest(), f"{HOME}/records.txt")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no data directory, and no network unless a test provides one."""
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setattr(module, "cache_dir", lambda: tmp_path / "cache")
    serve(monkeypatch, {})
    return tmp_path / "cache"


def serve(monkeypatch: pytest.MonkeyPatch, pages: dict[str, bytes], final: str | None = None) -> list[str]:
    """Answer requests from `pages`; the list of addresses that were asked for."""
    asked = []

    class Response(io.BytesIO):
        url = ""

        def geturl(self) -> str:
            return final or self.url

    def urlopen(request: object, timeout: float) -> Response:
        url = request.full_url  # type: ignore[attr-defined]
        asked.append(url)
        if url not in pages:
            raise URLError("no route to host")
        response = Response(pages[url])
        response.url = url
        return response

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked


def put(root: Path, content: bytes = CONTENT) -> Path:
    (root / "wards").mkdir(parents=True)
    (root / "wards" / "records.txt").write_bytes(content)
    return root / "wards" / "records.txt"


def test_order_of_search(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_cache = put(cache)
    assert find_files("wards", [PLAIN], None, HOME) == {"records.txt": in_cache}
    in_environment = put(tmp_path / "environment")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "environment"))
    assert find_files("wards", [PLAIN], None, HOME) == {"records.txt": in_environment}
    in_argument = put(tmp_path / "argument")
    assert find_files("wards", [PLAIN], tmp_path / "argument", HOME) == {"records.txt": in_argument}
    (tmp_path / "empty").mkdir()
    assert find_files("wards", [PLAIN], tmp_path / "empty", HOME) == {"records.txt": in_environment}


def test_download_is_kept_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, {f"{HOME}/records.txt": CONTENT})
    for _ in range(2):
        path = find_files("wards", [PLAIN], None, HOME)["records.txt"]
        assert path == cache / "wards" / "records.txt"
        assert path.read_bytes() == CONTENT
    assert asked == [f"{HOME}/records.txt"]


def test_gzip_is_checked_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    file = SourceFile("records.gz", PLAIN.sha256, f"{HOME}/records.gz")
    serve(monkeypatch, {f"{HOME}/records.gz": gzip.compress(CONTENT, mtime=12345)})
    assert gzip.decompress(find_files("wards", [file], None, HOME)["records.gz"].read_bytes()) == CONTENT


def test_member_of_a_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("records.txt", CONTENT)
    file = SourceFile("records.txt", PLAIN.sha256, f"{HOME}/all.zip")
    serve(monkeypatch, {f"{HOME}/all.zip": buffer.getvalue()})
    assert find_files("wards", [file], None, HOME)["records.txt"].read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("file", "pages", "final", "message"),
    [
        (PLAIN, {PLAIN.url: b"other"}, None, "has changed: its SHA-256 is"),
        (PLAIN, {PLAIN.url: CONTENT}, "http://example.org", "not an https address"),
        (SourceFile("x", PLAIN.sha256, "http://example.org/x"), {}, None, "not an https address"),
        (SourceFile("x.gz", PLAIN.sha256, f"{HOME}/x.gz"), {f"{HOME}/x.gz": b"html"}, None, "gzip"),
        (SourceFile("x", PLAIN.sha256, f"{HOME}/x.zip"), {f"{HOME}/x.zip": b"html"}, None, "zip"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(
    file: SourceFile,
    pages: dict[str, bytes],
    final: str | None,
    message: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve(monkeypatch, pages, final)
    with pytest.raises(DataError, match=message):
        find_files("wards", [file], None, HOME)
    assert not list(cache.rglob("*.*"))


def test_a_failed_rename_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {f"{HOME}/records.txt": CONTENT})

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(DataError, match="disk full"):
        find_files("wards", [PLAIN], None, HOME)
    assert list((cache / "wards").iterdir()) == []


def test_too_large_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_DOWNLOAD_BYTES", 4)
    serve(monkeypatch, {f"{HOME}/records.txt": CONTENT})
    with pytest.raises(DataError, match="larger than 4 bytes"):
        find_files("wards", [PLAIN], None, HOME)


def test_missing_files_say_where_to_put_what(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist", data_dir=tmp_path)
    text = str(caught.value)
    assert "the data set 'mnist' was not found" in text
    assert f"Looked in {tmp_path / 'mnist'}, {cache / 'mnist'}" in text
    assert "no route to host" in text
    for file in DATASETS["mnist"].files:
        assert file.name in text
    assert "into DIR/mnist/, where DIR is the value of data_dir or of the environment variable" in text


def test_insurance_cannot_be_fetched() -> None:
    with pytest.raises(DataError, match=r"requires an account.*Get insurance\.csv from https://www\.kaggle"):
        load("insurance")


def test_data_dir_must_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a directory"):
        load("mnist", data_dir=tmp_path / "nowhere")


def test_every_url_is_https() -> None:
    for entry in DATASETS.values():
        assert entry.homepage.startswith("https://")
        for file in entry.files:
            assert file.url is None or file.url.startswith("https://")
            assert len(file.sha256) == 64
