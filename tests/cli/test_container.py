"""The container of a server: what it holds, its command, and an image where one can be built."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from support.commands import run
from support.paths import ROOT

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from kgfast.extras.serve import app
from support.serving import client_of

# Lines of one instruction each, without comments.
LINES = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
LINES = LINES.replace("\\\n", " ").splitlines()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def said(instruction):
    """Return what follows an instruction, wherever it stands."""
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{instruction} ")]


def copied():
    """Return the paths that are copied of the tree."""
    words = [line.split()[:-1] for line in said("COPY") if not line.startswith("--from")]
    return [path for line in words for path in line]


def test_what_is_copied_exists_and_is_not_ignored():
    assert copied()
    for path in copied():
        assert (ROOT / path).exists(), path
    assert "*" in IGNORED
    assert {it[1:] for it in IGNORED if it.startswith("!")} == set(copied())


def test_what_is_copied_is_enough_for_a_build(tmp_path):
    """The package of what is copied, without the extension, has the files of the tree's."""
    files = {}
    source, ignore = tmp_path / "source", shutil.ignore_patterns("*.so", "__pycache__")
    source.mkdir()
    for path in copied():
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, source / path, ignore=ignore)
        else:
            shutil.copy(ROOT / path, source / path)
    for place in (source, ROOT):
        out = tmp_path / f"out-{place.name}"
        command = [sys.executable, "setup.py", "--quiet", "egg_info", "-e", str(tmp_path)]
        command += ["build_py", "--build-lib", str(out)]
        subprocess.run(command, cwd=place, check=True, capture_output=True)
        files[place] = {
            it.relative_to(out) for it in out.rglob("*") if "__pycache__" not in it.parts
        }
    assert files[source] == files[ROOT]


def test_its_command_serves_the_mounted_model(monkeypatch, trained):
    """By the names of the published port, which are not the container's; others get 400."""
    (entrypoint,) = map(json.loads, said("ENTRYPOINT"))
    assert entrypoint[:3] == ["/venv/bin/kgfast", "serve", "/model"]
    found = []

    def keep(engine, host, port, ready, hosts, **limits):
        found.append((client_of(engine, hosts=(host, *hosts), **limits), host, port))

    monkeypatch.setattr(app, "serve", keep)
    result = run("serve", trained, *entrypoint[3:], "--allowed-host", "kg.example.org")
    assert result.exit_code == 0, result.output
    ((client, host, port),) = found
    assert (host, [str(port)]) == ("0.0.0.0", said("EXPOSE"))
    names = ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "kg.example.org", "evil.example")
    answers = [client.get("/health", headers={"host": it}).status_code for it in names]
    assert answers == [200, 200, 200, 200, 400]


def test_its_check_asks_the_server():
    (check,) = said("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    compile(command[2], "HEALTHCHECK", "exec")
    assert f"http://localhost:{said('EXPOSE')[0]}/health" in command[2]
