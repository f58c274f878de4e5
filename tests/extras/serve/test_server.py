"""The server on a socket: clients that stop in the middle, large bodies, the page's examples."""

import json
import re
import select
import shlex
import shutil
import socket
import subprocess
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import pytest

pytest.importorskip("h11", reason="the extra serve is not installed")

from kgfast.extras.serve.limits import Limits
from kgfast.extras.serve.running import bound
from support.paths import ROOT
from support.serving import Slow, answer, ask, connect, head, serving, wait_for
from support.snippets import snippets

PAGE = ROOT / "docs/reference/http.md"
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
    """``asyncio`` turns Nagle's algorithm off where a socket names TCP."""
    with bound("127.0.0.1", 0) as listener, connect(listener.getsockname()[1]):
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
        """Return the bytes that the server sends until it closes."""
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


def requests_now(port):
    with connect(port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return answer(connection)[1]["requests_now"]


def test_who_hangs_up_is_not_answered(engine):
    """While requests wait, at once; while they run, after a batch."""
    slow = Slow(engine)
    with serving(slow, Limits(batch=8)) as port:
        body = json.dumps({**QUERY, "heads": list(range(200))}).encode()
        unknown = json.dumps({**QUERY, "heads": "entity_3"}).encode()
        connections = [connect(port) for _ in range(40)]
        for connection in connections:
            connection.sendall(head("/topk", len(body)) + body)
        for _ in range(20):
            connections.append(connect(port))
            connections[-1].sendall(head("/topk", len(unknown)) + unknown)
        wait_for(lambda: slow.calls and requests_now(port) >= 40)
        for connection in connections[1:]:
            connection.close()
        wait_for(lambda: requests_now(port) <= 1)
        slow.through.release()
        wait_for(lambda: len(slow.calls) == 2)
        connections[0].close()  # while its second part runs
        wait_for(lambda: requests_now(port) == 0)
        slow.through.release(9)
        assert ask(port, "/topk", **QUERY)[0] == 200
        assert slow.calls == [8, 8, 1]


def test_who_asks_ahead_and_hangs_up_is_not_answered(engine):
    slow = Slow(engine)
    with serving(slow, Limits(batch=8)) as port:
        body = json.dumps({**QUERY, "heads": list(range(200))}).encode()
        with connect(port) as connection:
            connection.sendall(3 * (head("/topk", len(body)) + body))
            wait_for(lambda: slow.calls)
        wait_for(lambda: requests_now(port) == 0)
        slow.through.release(9)
        assert ask(port, "/topk", **QUERY)[0] == 200
    assert slow.calls == [8, 1]


def test_connections_over_the_limit_are_told_so(engine):
    with serving(engine, Limits(connections=4)) as port:
        request = head("/topk", len(BODY)) + BODY
        first = [connect(port) for _ in range(4)]
        for _ in range(3):
            with connect(port) as further:
                further.sendall(request)
                status, content = answer(further)
                assert (status, content) == (503, {"error": "too many connections: try again"})
                assert further.recv(1) == b""
        for connection in first:  # idle ones, asked after others were refused
            connection.sendall(request)
            assert answer(connection)[0] == 200
        first.pop().close()
        wait_for(lambda: ask(port, "/topk", **QUERY)[0] == 200)
        for connection in first:
            connection.sendall(request)
            assert answer(connection)[0] == 200
            connection.close()


def test_more_connections_than_may_part_are_refused_too(engine):
    with serving(engine, Limits(connections=1)) as port, connect(port) as first:
        further = [connect(port) for _ in range(200)]
        first.sendall(head("/topk", len(BODY)) + BODY)
        assert answer(first)[0] == 200
        for connection in further:
            connection.close()


def test_requests_sent_ahead_wait_in_the_network(engine):
    """A client asks and reads without end, and asks faster than it is answered."""
    request = head("/topk", len(BODY)) + BODY
    ahead = memoryview(request * (1 + (1 << 17) // len(request)))
    with serving(engine, Limits()) as port, connect(port) as connection:
        connection.setblocking(False)
        tracemalloc.start()
        try:
            answered = sent = 0
            while answered < 120:
                readable, writable, _ = select.select([connection], [connection], [], 60)
                if readable:
                    answered += connection.recv(1 << 16).count(b"HTTP/1.1 200 OK")
                if writable:
                    sent += connection.send(ahead[sent % len(ahead) :])
            assert sent > 1 << 20
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        assert ask(port, "/topk", **QUERY)[0] == 200


def test_answers_to_requests_sent_ahead_come_in_their_order(port):
    bodies = [json.dumps({**QUERY, "heads": [it]}).encode() for it in range(20)]
    alone = [ask(port, "/topk", **{**QUERY, "heads": [it]}) for it in range(20)]
    with connect(port) as connection, connection.makefile("rb") as file:
        connection.sendall(b"".join(head("/topk", len(body)) + body for body in bodies))
        assert [answer(connection, file) for _ in bodies] == alone


class TestHttp:
    """Further rules of HTTP/1.1."""

    def said(self, port, request):
        """All that the server says until it closes, having been told that no more comes."""
        with connect(port) as connection, connection.makefile("rb") as file:
            connection.sendall(request)
            return file.read().decode()

    def test_the_address_of_ipv6(self, engine):
        try:
            listener = bound("::1", 0)
        except OSError:
            pytest.skip("this machine has no IPv6")
        listener.close()
        with serving(engine, Limits(), "::1") as port:
            connection = socket.create_connection(("::1", port), timeout=60)
            for host, status in (("[::1]:80", 200), ("LocalHost", 200), ("127.0.0.1", 421)):
                connection.sendall(f"GET /health HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                assert answer(connection)[0] == status
            connection.close()

    def test_other_hosts(self, port):
        close = b"connection: close\r\n\r\n"
        found = self.said(port, b"GET /health HTTP/1.1\r\nhost: evil.example\r\n" + close)
        assert found.startswith("HTTP/1.1 421 ")
        found = self.said(port, b"GET /health HTTP/1.1\r\nhost: LOCALHOST:1\r\n" + close)
        assert found.startswith("HTTP/1.1 200 ")
        assert self.said(port, b"GET /health HTTP/1.0\r\n\r\n").startswith("HTTP/1.1 421 ")
        assert self.said(port, b"GET /health HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 400 ")

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"nonsense\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 99_999, 431),
            (head("/topk", 0).replace(b"content-length: 0", b"content-length: x"), 400),
            (
                head("/topk", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
                + b"nonsense\r\n",
                400,
            ),
        ],
    )
    def test_what_is_no_http(self, port, request_, status):
        found = self.said(port, request_)
        assert found.startswith(f"HTTP/1.1 {status} ")
        assert json.loads(found.split("\r\n\r\n")[1])["error"]

    def test_an_answer_without_its_body(self, port):
        found = self.said(
            port, b"HEAD /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        assert found.startswith("HTTP/1.1 200 ")
        assert found.endswith("\r\n\r\n")
        assert "content-length: " in found

    def test_a_body_that_is_sent_when_asked_for(self, port):
        with connect(port) as connection:
            connection.sendall(head("/topk", len(BODY), "expect: 100-continue"))
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
            connection.sendall(BODY)
            assert answer(connection)[0] == 200

    def test_bodies_in_parts(self, port):
        lines = head("/topk", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        with connect(port) as connection:
            for _ in range(2):
                connection.sendall(lines)
                for place in range(0, len(BODY), 10):
                    part = BODY[place : place + 10]
                    connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                connection.sendall(b"0\r\n\r\n")
                assert answer(connection)[0] == 200

    def test_a_body_that_nobody_reads(self, port):
        """Received bytes are skipped; where more would come, the connection is closed."""
        with connect(port) as connection:
            for _ in range(2):
                connection.sendall(head("/none", len(BODY)) + BODY)
                assert answer(connection)[0] == 404
            connection.sendall(head("/none", 10_000))
            assert answer(connection)[0] == 404
            with suppress(ConnectionError):
                connection.sendall(b" " * 10_000)
                assert connection.recv(1) == b""

    def test_an_upgrade_is_declined(self, port):
        with connect(port) as connection:
            for _ in range(2):
                lines = "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: a"
                connection.sendall(head("/topk", len(BODY), *lines) + BODY)
                assert answer(connection)[0] == 200


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
    text = re.sub(r"\s+", " ", (ROOT / "docs/how-to/serve.md").read_text())
    assert "authentication" in text
    assert "127.0.0.1" in text
