"""The server on a socket: clients that hang up, and the examples of the page."""

import json
import shlex
import shutil
import subprocess
from itertools import pairwise

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from support.paths import ROOT
from support.serving import ask, connect, send, serving
from support.snippets import snippets

PAGE = ROOT / "docs/reference/http.md"
QUERY = {"heads": 3, "relations": 2, "k": 2}


def test_answers_of_many_clients_are_their_own(engine):
    with serving(engine) as port:
        alone = [ask(port, "/topk", **{**QUERY, "heads": [it]}) for it in range(20)]
        connections = [connect(port) for _ in range(20)]
        for number, connection in enumerate(connections):
            send(connection, "/topk", **{**QUERY, "heads": [number]})
        together = [json.load(connection.getresponse()) for connection in connections]
        for connection in connections:
            connection.close()
    assert [(200, it) for it in together] == alone


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_of_the_page(engine):
    """Each line of curl gets the answer that stands below it."""
    blocks = [it for it in snippets(PAGE.read_text()) if it.language in ("sh", "json")]
    pairs = [
        (command.code, answered.code)
        for command, answered in pairwise(blocks)
        if command.code.startswith("curl") and answered.language == "json"
    ]
    assert len(pairs) >= 4
    with serving(engine) as port:
        for command, answered in pairs:
            words = shlex.split(command.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            assert rounded(said) == rounded(answered), command


def rounded(text):
    """JSON, its numbers to five places."""
    return json.loads(text, parse_float=lambda number: f"{float(number):.5f}")
