"""``kgfast serve``: what it loads, what it refuses, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
import torch

import kgfast
from kgfast.datasets import load as load_data
from support.commands import run
from support.serving import answer, ask, connect
from support.small_runs import write_ring

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from kgfast.extras.serve import app


@pytest.fixture
def served(monkeypatch):
    """Record the engine that the command would serve, and serve nothing."""
    found = []

    def keep(engine, host, port, ready, hosts, **limits):
        found.append((engine, host, port, limits, hosts))
        ready("http://there")

    monkeypatch.setattr(app, "serve", keep)

    def call(*words):
        result = run("serve", *words)
        assert result.exit_code == 0, result.output
        return *found.pop(), result

    return call


def test_a_run(served, trained):
    engine, host, port, limits, hosts, result = served(trained, "--max-k", 5, "--max-body", 99)
    loaded = kgfast.load_run(trained)
    assert (host, port, hosts) == ("127.0.0.1", 8000, ())
    assert limits == {"max_k": 5, "max_body": 99, "max_queries": 1000}
    assert torch.equal(engine.model.entity, loaded.model.entity)
    assert engine.names == tuple(loaded.vocabulary)
    assert len(engine.known) == len(loaded.dataset.known())
    assert result.stdout == f"serving {engine.model!r} on http://there\n"
    assert result.stderr == ""
    assert engine.index.is_current
    heads = {"heads": [3, 4], "relations": 0, "k": 5}
    found = kgfast.topk(engine.model, **heads, index=engine.index)
    assert torch.equal(found.ids, kgfast.topk(loaded.model, **heads).ids)
    assert served(trained, "--no-index")[0].index is None
    words = "--allowed-host", "kg.example", "--allowed-host", "*"
    assert served(trained, *words)[4] == ["kg.example", "*"]


def test_tables(served, trained, root, tmp_path):
    tables = tmp_path / "tables"
    assert run("export", trained, "--to", "safetensors", "--out", tables).exit_code == 0
    alone, *_, result = served(tables)
    assert "known triples are among the answers" in result.stderr
    assert alone.known is None
    names = load_data(root / "ring")
    assert alone.names == (names.entities, names.relations)
    beside, host, *_ = served(tables, "--data", root / "ring", "--host", "0.0.0.0")
    assert (len(beside.known), host) == (24, "0.0.0.0")
    for path in ("entities.json", "relations.json"):
        (tables / path).unlink()
    assert served(tables)[0].names == (None, None)


def error_of(*words):
    result = run("serve", *words)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_what_cannot_be_served_is_named(trained, tmp_path, monkeypatch):
    assert "dim" in error_of(trained, "--dim", 99)
    said = error_of(trained, "--allowed-host", "http://kg.example")
    assert "an allowed host is a name, an address, or *; got 'http://kg.example'" in said
    assert "config.yaml is missing" in error_of(tmp_path)
    other = write_ring(tmp_path / "other", entities=[f"x{i}" for i in range(12)], splits={})
    (other / "train.txt").write_text("x0\tnext\tx1\n")
    assert str(other) in error_of(trained, "--data", other)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = error_of(trained, "--port", port)
        assert f"127.0.0.1 port {port}: Address already in use" in said
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert 'pip install "kgfast[serve]"' in error_of(trained)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_what_runs(trained, number):
    """A request whose body is still under way when the signal comes is answered."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kgfast", "serve", str(trained), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        port = int(re.search(r"127\.0\.0\.1:(\d+)$", process.stdout.readline())[1])
        query = {"heads": "e3", "relations": "next", "k": 1}
        assert ask(port, "/topk", **query)[0] == 200
        body = json.dumps(query).encode()
        connection, idle = connect(port), connect(port)
        idle.connect()
        connection.putrequest("POST", "/topk")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body[:5])
        threading.Event().wait(0.5)
        process.send_signal(number)
        threading.Event().wait(0.5)
        assert process.poll() is None
        connection.send(body[5:])
        assert answer(connection)[0] == 200
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        with pytest.raises(ConnectionRefusedError):
            connect(port).connect()
    finally:
        process.kill()
        process.communicate()
