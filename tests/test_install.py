"""The sdist: it holds what an install needs, and without a compiler it works."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from support.examples import PATH_STAR
from support.paths import ROOT

# Files beside the tree, or made in it.
NOT_COPIED = (".*", "build", "dist", "runs", "results", "*.egg-info", "*.so", "__pycache__")
IN_A_CLONE = shutil.ignore_patterns("*.so", "__pycache__", "csrc")
SCRIPT = """
import sys
sys.meta_path[:] = [it for it in sys.meta_path if "editable" not in repr(it)]  # not this checkout
import kgfast, torch, warnings
from kgfast.kernels import cpu
assert kgfast.__file__.startswith({site!r}), kgfast.__file__
assert not cpu.is_available()
from kgfast.training import Config
assert Config.from_yaml("wn18rr/rotate_fast").model.base_dim == 128
model = kgfast.RotatE.init(20, 2, 4, seed=0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ranks = kgfast.rank(model, [(0, 1, 2)])
print(ranks.realistic.tolist(), [str(it.message) for it in caught])
"""


@pytest.fixture
def clone(tmp_path):
    """Return a clone in which nothing was built, and the Python of a new environment."""
    for name in ("kgfast", "kernels", "configs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / "clone" / name, ignore=IN_A_CLONE)
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    # All that is installed here, but for the mapping of this checkout.
    (site / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return tmp_path / "clone", home / "bin" / "python", site


@pytest.mark.slow
def test_in_a_clone_the_installed_package_is_used(clone):
    """`python -m` looks in the working directory first, where kgfast/ is a folder of sources."""
    folder, python, site = clone
    shutil.copytree(ROOT / "kgfast", site / "kgfast")
    for name in ("kernels", "configs"):
        shutil.copytree(ROOT / name, site / "kgfast" / name)
    script = "import kgfast; print(kgfast.__file__, kgfast.info().backend, kgfast.info)"
    for words in (
        ["-c", script],
        ["-m", "kgfast", "info"],
        [
            "-m",
            "examples.path_star.train",
            *(f"--set={it}" for it in (*PATH_STAR, "max_batches=2")),
        ],
    ):
        done = subprocess.run([python, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = f"{folder / 'kgfast'} is the source of kgfast, without kernels: {site / 'kgfast'} is"
        assert done.stderr.count(said) == 1
        if words[0] == "-c":
            assert done.stdout.startswith(f"{site / 'kgfast' / '__init__.py'} ")
    done = subprocess.run([python, "-c", script], cwd=site, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_in_a_clone_without_an_install_the_error_says_so(clone):
    folder, python, _ = clone
    done = subprocess.run([python, "-m", "kgfast"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    said = f"kgfast is not installed: {folder / 'kgfast'} is its source, without kernels; run"
    assert said in done.stderr
    assert "make install" in done.stderr


def _build(what, folder):
    """Run the build that pip runs, without pip's environments."""
    return f"from setuptools import build_meta; build_meta.build_{what}({str(folder)!r})"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Return the sdist of a copy of the tree."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_COPIED))
    subprocess.run(
        [sys.executable, "-c", _build("sdist", folder)], cwd=source, check=True, capture_output=True
    )
    (path,) = folder.glob("kgfast-*.tar.gz")
    return path


def test_the_sdist_holds_what_an_install_needs_and_no_more(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if "." in Path(name).name}
    made = {name for name in names if ".egg-info" in name} | {"PKG-INFO", "setup.cfg"}
    patterns = ["kgfast/**/*.py", "kgfast/py.typed", "kernels/**/*.py", "kernels/_cpu.pyi"]
    patterns += ["kernels/cpu/csrc/**/*.cpp", "kernels/cpu/csrc/**/*.h", "configs/**/*.py"]
    patterns += ["kgfast/extras/report/page.*"]
    patterns += ["kgfast/extras/serve/page/*", "kgfast/datasets/sources.toml"]
    patterns += ["configs/**/*.yaml", "setup.py", "pyproject.toml", "MANIFEST.in"]
    patterns += ["README.md", "CHANGELOG.md"]
    needed = {path.relative_to(ROOT).as_posix() for it in patterns for path in ROOT.glob(it)}
    assert names - made - {""} == needed
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/LICENSE") for name in archive.getnames())


@pytest.fixture
def pure(tmp_path, sdist):
    """Return the wheel of a machine without a compiler, and all that its build printed."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("kgfast-*")
    folder = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}/kgfast/kernels"
    (source / folder).mkdir(parents=True)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    earlier = source / folder / f"_cpu{suffix}"  # a compiler built this one, of older sources
    earlier.touch()
    os.utime(earlier, (0, 0))
    (source / "kernels/cpu/csrc/host/rank.cpp").touch()
    done = subprocess.run(
        [sys.executable, "-c", _build("wheel", tmp_path)],
        cwd=source,
        env={**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"},
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = tmp_path.glob("kgfast-*.whl")
    return wheel, done.stdout + done.stderr


def test_a_build_without_a_compiler_makes_a_pure_wheel_and_says_so_at_its_end(pure):
    wheel, said = pure
    assert wheel.name.endswith("-py3-none-any.whl")
    last = said.strip().splitlines()[-1]
    assert last.startswith("kgfast: no C++ compiler built the kernels, so this package is pure")
    with zipfile.ZipFile(wheel) as archive:
        assert not [it for it in archive.namelist() if it.endswith(".so")]
        (about,) = (it for it in archive.namelist() if it.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: true\nTag: py3-none-any\n" in archive.read(about)


@pytest.mark.slow
def test_without_a_compiler(tmp_path, pure):
    site, (wheel, _) = tmp_path / "site", pure
    zipfile.ZipFile(wheel).extractall(site)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(site=str(site))],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    ranks, messages = run.stdout.strip().split("] [", 1)
    assert ranks.startswith("[[")
    assert "the C++ extension is not built" in messages
    assert messages.count("RuntimeWarning") == 0
    assert messages.count("kgfast:") == 1
