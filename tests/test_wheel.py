"""The wheel of this checkout, in a fresh environment; the cross compilers of those of others."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from unittest.mock import Mock

import pytest
import setuptools
import torch
import yaml
from pybind11.setup_helpers import ParallelCompile
from setuptools.errors import CompileError

from support.paths import ROOT


def build(tmp_path, **environment):
    """Make a wheel of a copy of the tree by what pip runs."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "runs", "results", "*.so", "tests")
    shutil.copytree(ROOT, source, ignore=ignored)
    script = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=source,
        env={**os.environ, "KGFAST_REQUIRE_EXTENSION": "1", **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_in_a_fresh_environment(tmp_path):
    made = build(tmp_path)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("kgfast-*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (site,) = home.glob("lib/python*/site-packages")
    # Dependencies are this environment's; a path of a .pth file adds no editable installs.
    (site / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    shutil.unpack_archive(wheel, site, "zip")
    checked = subprocess.run(
        [python, "-P", ROOT / "tools/check_wheel.py", wheel],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert found["isa"]
    assert found["versions"]["torch"] == torch.__version__
    assert found["command"] == f"python -P tools/check_wheel.py {wheel.name}"
    assert found["wheel_mb"] <= 2.2
    assert found["import_beyond_torch_cpu_s"] <= 0.15


@pytest.mark.slow
def test_a_wheel_without_a_compiler_is_refused(tmp_path):
    made = build(tmp_path, CC="no-such-compiler", CXX="no-such-compiler")
    assert made.returncode != 0
    assert "no-such-compiler" in made.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_the_workflow_builds_what_is_promised():
    workflow = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())
    jobs = workflow["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    assert {it["archs"] for it in jobs} == {"x86_64", "aarch64", "arm64", "AMD64"}
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert options["manylinux-x86_64-image"] == options["manylinux-aarch64-image"]
    assert options["manylinux-x86_64-image"] == "manylinux_2_28"
    for own in (options, options["linux"], options["macos"]):
        assert own["environment"]["KGFAST_REQUIRE_EXTENSION"] == "1"
    assert (ROOT / options["test-command"].split("{project}/")[1].split()[0]).is_file()


def test_windows_compiles_each_source_with_its_flags_by_clang_cl(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", Mock())
    monkeypatch.setattr(ParallelCompile, "install", Mock())
    build_per_file = runpy.run_path("setup.py")["BuildPerFile"]
    command = build_per_file.__new__(build_per_file)
    monkeypatch.setattr(sys, "platform", "win32")
    command.plat_name, command.compiler = "win-amd64", Mock(initialized=False, cc="cl.exe")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompileError, match="needs clang-cl"):
        command._use_clang_cl()
    monkeypatch.setattr(shutil, "which", {"clang-cl": "C:/clang-cl.exe"}.get)
    command._use_clang_cl()
    command.compiler.initialize.assert_called_once_with("win-amd64")
    assert command.compiler.cc == "C:/clang-cl.exe"
    words = ["clang-cl", "/c", "/Tpcsrc/engine/isa_avx2.cpp", "/x"]
    own = ["/clang:-mavx2", "/clang:-mfma", "/clang:-mf16c"]
    assert command._with_flags(words) == [*words, *own]
    others = ["clang-cl", "/c", "/Tpcsrc/host/rank.cpp"]
    assert command._with_flags(others) == others
    command.plat_name = "linux-aarch64"
    assert command._with_flags(words) == words
