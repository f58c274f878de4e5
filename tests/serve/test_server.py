"""The server on a socket: clients that stop in the middle, large bodies, the page's examples."""

import json
import re
import shlex
import shutil
import socket
import subprocess
from itertools import pairwise

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from kgfast.serve.limits import Limits
from kgfast.serve.running import bound
from support.paths import ROOT
from support.serving import answer, ask, connect, head, serving, wait_for
from support.snippets import snippets

PAGE = ROOT / "docs" / "serve.md"
QUERY = {"heads": 3, "relations": 2, "k": 2}
BODY = json.dumps(QUERY).encode()


@pytest.fixture(scope="module")
def port(engine):
    with serving(engine, Limits(requests=2, head_seconds=0.2, body_seconds=0.2)) as found:
        yield found


def test_one_connection_serves_many_requests(port):
    with connect(port) as connection:
        for _ in range(3):
            connection.sendall(head("/topk", len(BODY)) + BODY)
            status, found = answer(connection)
            assert (status, len(found["answers"][0])) == (200, 2)


def test_answers_do_not_wait_for_the_client_to_confirm():
    """asyncio turns Nagle's algorithm off where a socket names TCP."""
    with bound("127.0.0.1", 0, 1) as listener, connect(listener.getsockname()[1]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_100_megabytes_are_refused_unread(port):
    with connect(port) as connection:
        connection.sendall(head("/topk", 100 << 20))
        assert answer(connection)[0] == 413


def test_endless_bodies_are_refused(port):
    with connect(port) as connection:
        lines = head("/topk", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        connection.sendall(lines + b"100001\r\n" + b" " * 0x100001 + b"\r\n")
        assert answer(connection)[0] == 413


class TestClientsThatHang:
    """More of them than are answered at the same time; they block nobody."""

    COUNT = 8

    def held(self, port, start):
        connections = [connect(port) for _ in range(self.COUNT)]
        for connection in connections:
            connection.sendall(start)
        return connections

    def ended(self, connections):
        """What the server says until it closes."""
        for connection in connections:
            with connection, connection.makefile("rb") as file:
                yield file.read()

    def test_before_a_request(self, port):
        connections = self.held(port, b"")
        assert ask(port, "/topk", **QUERY)[0] == 200
        assert set(self.ended(connections)) == {b""}

    def test_within_a_head(self, port):
        connections = self.held(port, head("/topk", 10)[:-9])
        assert ask(port, "/topk", **QUERY)[0] == 200
        assert set(self.ended(connections)) == {b""}

    def test_within_a_head_after_an_answer(self, port):
        with connect(port) as connection:
            connection.sendall(head("/topk", len(BODY)) + BODY)
            assert answer(connection)[0] == 200
            connection.sendall(b"POST /topk")
            assert connection.recv(1) == b""

    def test_within_a_body(self, port):
        connections = self.held(port, head("/topk", 10) + b"{")
        assert ask(port, "/topk", **QUERY)[0] == 200
        for said in self.ended(connections):
            assert said.startswith(b"HTTP/1.1 408 ")
            assert b"did not come within 0.2 s" in said

    def test_gone_before_the_answer(self, port):
        for connection in self.held(port, head("/topk", len(BODY)) + BODY):
            connection.close()
        wait_for(lambda: ask(port, "/topk", **QUERY)[0] == 200)

    def ask_without_end(self, connection, request):
        while True:
            connection.sendall(request)

    def test_who_does_not_read(self, engine):
        with serving(engine, Limits(stall_seconds=0.2)) as port, connect(port) as connection:
            body = json.dumps({"heads": [0] * 60, "relations": 2, "k": 300}).encode()
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                self.ask_without_end(connection, head("/topk", len(body)) + body)
            assert ask(port, "/topk", **QUERY)[0] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_of_the_page(port):
    """Each line of curl gets the answer that stands below it."""
    blocks = [it for it in snippets(PAGE.read_text()) if it.language in ("sh", "json")]
    pairs = [
        (command.code, answered.code)
        for command, answered in pairwise(blocks)
        if command.code.startswith("curl") and answered.language == "json"
    ]
    assert len(pairs) >= 4
    for command, answered in pairs:
        words = shlex.split(command.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert rounded(said) == rounded(answered), command


def rounded(text):
    """JSON, its numbers to five places."""
    return json.loads(text, parse_float=lambda number: f"{float(number):.5f}")


def test_the_page_says_what_protects_a_server():
    text = re.sub(r"\s+", " ", PAGE.read_text())
    assert "authentication" in text
    assert "127.0.0.1" in text
