"""The modules of benchmarks/, for tests that call them in their own process."""

import importlib
import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from support.forked import PROCESSES
from support.paths import BENCHMARKS

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch):
    """Import a module of benchmarks/: of a script, or of ``lib``.

    Places that other packages add to the path stay: KeOps imports what it compiles from one.
    """
    sys.path.insert(0, str(BENCHMARKS))
    monkeypatch.setattr("lib.measure._child_context", lambda: PROCESSES)
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def call(load, monkeypatch, capsys):
    """Run a script in this process: its exit code and what it says."""

    def call_with(script, *arguments):
        module = load(script.removesuffix(".py"))
        main = module.BENCHMARK.main if hasattr(module, "BENCHMARK") else module.main
        monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / script), *map(str, arguments)])
        capsys.readouterr()
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return call_with


@pytest.fixture
def measured(call, tmp_path):
    """Run the smoke test of a script and return its rows, which say where they come from."""

    def rows_of(script, *arguments, file="found.json"):
        done = call(script, "--quick", *arguments, "--json", tmp_path / file)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = json.loads((tmp_path / file).read_text())["rows"]
        for row in rows:
            assert {"command", "machine", "versions", "date", "load_average"} <= row.keys()
            seconds = row.get("seconds")
            if isinstance(seconds, dict) and "median" in seconds:
                assert 0 <= seconds["min"] <= seconds["median"] <= seconds["max"]
        return rows

    return rows_of
