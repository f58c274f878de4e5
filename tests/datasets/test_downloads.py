"""Downloads from a local server: checked, cached, refused with reasons."""

import hashlib
import io
import os
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kgfast.datasets import download
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


class Server:
    """Server of files that counts its requests."""

    def __init__(self):
        self.files: dict[str, bytes] = {f"/codex-s/{name}": data for name, data in FILES.items()}
        self.requests = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests += 1
                body = outer.files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("KGFAST_DATA", raising=False)
    for variable in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(variable)
    server = Server()
    sums = {name: sha256(data) for name, data in FILES.items()}
    valid = FILES["valid.txt"]
    sums["valid.txt"] = hashlib.sha1(b"blob %d\0" % len(valid) + valid).hexdigest()  # Git's
    monkeypatch.setitem(SOURCES, "codex-s", Source(f"{server.base}/codex-s", sums))
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_a_data_set_is_downloaded_once(server, tmp_path, monkeypatch):
    graph = download("CoDEx-S", root=tmp_path)
    assert graph.name == "codex-s"
    assert [len(graph.train), len(graph.valid), len(graph.test)] == [1000, 1, 0]
    assert graph.entities == Vocabulary(["ann", "bob", "eve"])
    assert server.requests == 3
    server.http.shutdown()  # no network is needed any more
    monkeypatch.setenv("KGFAST_DATA", str(tmp_path))
    assert len(download("codex_s").train) == 1000
    assert server.requests == 3


@pytest.mark.parametrize("file", ["train.txt", "valid.txt"])
def test_a_checksum_that_differs_keeps_no_file(server, tmp_path, file):
    server.files[f"/codex-s/{file}"] += b"x\ty\tz\n"
    with pytest.raises(ValueError, match=rf"{file}.*(does not match|is not)"):
        download("codex-s", root=tmp_path)
    assert not (tmp_path / "codex-s" / file).exists()


def test_a_file_that_is_not_there_says_what_to_do(server, tmp_path):
    test = server.files.pop("/codex-s/test.txt")
    with pytest.raises(ConnectionError, match=r"test.txt could not.* 404 .*Without a network"):
        download("codex-s", root=tmp_path)
    server.files["/codex-s/test.txt"] = test
    assert len(download("codex-s", root=tmp_path).train) == 1000


def test_archives_are_unpacked(server, tmp_path, monkeypatch):
    wikidata = SOURCES["wikidata5m"]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for member, data in [*((it, FILES[to]) for it, to in wikidata.members.items()), ("x", b"")]:
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    (name,) = wikidata.files
    server.files[f"/wikidata5m/{name}"] = content.getvalue()
    files = {name: sha256(content.getvalue())}
    source = replace(wikidata, base=f"{server.base}/wikidata5m", files=files)
    monkeypatch.setitem(SOURCES, "wikidata5m", source)
    for _ in range(2):
        assert len(download("wikidata5m", root=tmp_path).train) == 1000
    assert server.requests == 1
    assert not (tmp_path / "wikidata5m" / "x").exists()


def test_names_that_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no data set 'wn18r' to download; did you mean"):
        download("wn18r", root=tmp_path)
    with pytest.raises(TypeError, match="name must be a string; got int"):
        download(18, root=tmp_path)


def test_without_pooch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r'needs pooch: pip install "kgfast\[data\]"'):
        download("wn18rr")


def test_every_source_is_pinned():
    assert {"wn18rr", "fb15k237", "wn18", "fb15k", "yago3-10", "wikidata5m"} <= set(SOURCES)
    assert {"codex-s", "codex-m", "codex-l"} <= set(SOURCES)
    for name, source in SOURCES.items():
        assert any(len(step) == 40 for step in source.base.split("/")), f"{name}: no commit"
        assert {"train.txt", "valid.txt", "test.txt"} <= {*source.files, *source.members.values()}
        for checksum in source.files.values():
            assert len(checksum) in (40, 64)
            assert set(checksum) <= set("0123456789abcdef")
