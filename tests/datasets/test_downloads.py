"""Downloads from a local server: checked, cached, resumed from nothing, refused with reasons."""

import hashlib
import io
import os
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kgfast.datasets import download, downloads
from kgfast.datasets.downloads import SOURCES, Source
from kgfast.graph import Vocabulary

pytest.importorskip("pooch")

FILES = {
    "train.txt": b"ann\tknows\tbob\nbob\tknows\teve\n" * 500,
    "valid.txt": b"eve\tknows\tann\n",
    "test.txt": b"",
}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Server:
    """Server of files that counts its requests, and fails as it is told to."""

    def __init__(self):
        self.files: dict[str, bytes] = {f"/codex-s/{name}": it for name, it in FILES.items()}
        self.asked: list[str] = []
        self.breaks = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                body = outer.files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if outer.breaks else body)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server(monkeypatch):
    for variable in (downloads.FOLDER_VARIABLE, downloads.MIRROR_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    for variable in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(variable)
    server = Server()
    sums = {name: sha256(data) for name, data in FILES.items()}
    sums["valid.txt"] = git_id(FILES["valid.txt"])
    monkeypatch.setitem(SOURCES, "codex-s", Source(f"{server.base}/codex-s", sums))
    yield server
    server.http.shutdown()
    server.http.server_close()


def left(root):
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def test_a_data_set_is_downloaded_once(server, tmp_path, capsys):
    graph = download("CoDEx-S", root=tmp_path, progress=True)
    assert graph.name == "codex-s"
    assert [len(graph.train), len(graph.valid), len(graph.test)] == [1000, 1, 0]
    assert graph.entities == Vocabulary(["ann", "bob", "eve"])
    assert len(server.asked) == 3
    assert "downloading train.txt" in capsys.readouterr().out
    assert left(tmp_path) == ["codex-s"]
    server.http.shutdown()  # no network is needed any more
    assert len(download("codex_s", root=tmp_path).train) == 1000
    assert len(server.asked) == 3


@pytest.mark.parametrize(("file", "kind"), [("train.txt", "SHA-256"), ("valid.txt", "Git object")])
def test_a_checksum_that_differs_keeps_nothing(server, tmp_path, file, kind):
    server.files[f"/codex-s/{file}"] += b"x\ty\tz\n"
    with pytest.raises(ValueError, match=rf"codex-s/{file}: its {kind}.* is \w+, but \w+ was"):
        download("codex-s", root=tmp_path)
    assert left(tmp_path) == []


def test_a_file_that_breaks_off_or_is_not_there_keeps_nothing(server, tmp_path):
    server.breaks = True
    with pytest.raises(ConnectionError, match=r"train.txt could not.*broke before .* was whole"):
        download("codex-s", root=tmp_path)
    assert left(tmp_path) == []
    server.breaks, test = False, server.files.pop("/codex-s/test.txt")
    with pytest.raises(ConnectionError, match=r"test.txt could not be downloaded: .* status 404"):
        download("codex-s", root=tmp_path)
    assert left(tmp_path) == []
    server.files["/codex-s/test.txt"] = test
    assert len(download("codex-s", root=tmp_path).train) == 1000


def test_no_network_says_what_to_do(server, tmp_path, monkeypatch):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(ConnectionError, match=r"is there a network.*Without a network.*codex-s/"):
        download("codex-s", root=tmp_path)
    assert left(tmp_path) == []
    (tmp_path / "by hand" / "codex-s").mkdir(parents=True)
    mirror = tmp_path / "by-hand"
    (tmp_path / "by hand").rename(mirror)
    for name, data in FILES.items():
        (mirror / "codex-s" / name).write_bytes(data)
    monkeypatch.setenv("KGFAST_MIRROR", str(mirror))
    assert len(download("codex-s", root=tmp_path / "cache").train) == 1000


def test_mirrors_are_asked_first_and_the_source_last(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KGFAST_MIRROR", f"{server.base}/none {server.base}/mine/")
    server.files |= {f"/mine/codex-s/{name}": it for name, it in FILES.items()}
    del server.files["/mine/codex-s/valid.txt"]
    monkeypatch.setenv("KGFAST_DATA", str(tmp_path / "here"))
    download("codex-s")
    assert left(tmp_path / "here") == ["codex-s"]
    expected = []
    for name in FILES:
        expected += [f"/none/codex-s/{name}", f"/mine/codex-s/{name}"]
        expected += [f"/codex-s/{name}"] if name == "valid.txt" else []
    assert server.asked == expected


def test_a_changed_cache_is_refused(server, tmp_path):
    download("codex-s", root=tmp_path)
    (tmp_path / "codex-s" / "valid.txt").write_text("a\tb\tc\n")
    with pytest.raises(ValueError, match=r"valid.txt has changed since the download; delete"):
        download("codex-s", root=tmp_path)
    (tmp_path / "codex-s" / "SHA256SUMS").unlink()
    with pytest.raises(ValueError, match=r"was not written by kgfast\.datasets\.download"):
        download("codex-s", root=tmp_path)


def packed(files):
    """Return an archive of files; of folders where there are no data."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            entry.size = len(data or b"")
            tar.addfile(entry, io.BytesIO(data or b""))
    return target.getvalue()


def test_archives_are_unpacked(server, tmp_path, monkeypatch):
    wikidata = SOURCES["wikidata5m"]
    archive = packed(
        {member: FILES[name] for member, name in wikidata.members.items()} | {"../outside": b"x"}
    )
    (name,) = wikidata.files
    server.files[f"/wikidata5m/{name}"] = archive
    source = replace(wikidata, base=f"{server.base}/wikidata5m", files={name: sha256(archive)})
    monkeypatch.setitem(SOURCES, "wikidata5m", source)
    assert len(download("wikidata5m", root=tmp_path).train) == 1000
    assert left(tmp_path / "wikidata5m") == ["SHA256SUMS", "test.txt", "train.txt", "valid.txt"]
    assert left(tmp_path) == ["wikidata5m"]
    folders = packed(dict.fromkeys(wikidata.members))
    for content in (packed({"other": b""}), folders, b"no archive"):
        server.files[f"/wikidata5m/{name}"] = content
        monkeypatch.setitem(SOURCES, "wikidata5m", replace(source, files={name: sha256(content)}))
        with pytest.raises(ValueError, match="not the archive that was expected"):
            download("wikidata5m", root=tmp_path / "again")
        assert left(tmp_path / "again") == []


def test_names_that_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no data set 'wn18r' to download; did you mean"):
        download("wn18r", root=tmp_path)
    with pytest.raises(TypeError, match="name must be a string; got int"):
        download(18, root=tmp_path)
    assert left(tmp_path) == []


def test_without_pooch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    monkeypatch.delenv("KGFAST_DATA", raising=False)
    with pytest.raises(ImportError, match=r'needs pooch: pip install "kgfast\[data\]"'):
        download("wn18rr")


def test_every_source_is_pinned():
    assert {"wn18rr", "fb15k237", "wn18", "fb15k", "yago3-10", "wikidata5m"} <= set(SOURCES)
    assert {"codex-s", "codex-m", "codex-l"} <= set(SOURCES)
    for name, source in SOURCES.items():
        assert any(len(part) == 40 for part in source.base.split("/")), f"{name}: no commit"
        assert {"train.txt", "valid.txt", "test.txt"} <= {*source.files, *source.members.values()}
        for checksum in source.files.values():
            assert len(checksum) in (40, 64)
            assert set(checksum) <= set("0123456789abcdef")
