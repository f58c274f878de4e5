"""Fixtures that several files share."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from kgfast import use_backend
from kgfast.kernels import cpu
from support.engines import ISAS, NAMES, Engine, at_work, marks_of
from support.tiers import in_a_line

settings.register_profile("kgfast", deadline=None, print_blob=True)
settings.load_profile("kgfast")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Interrupts raise, though a suite that runs in the background inherits that they do not."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Force no files to the disk, as no test cuts the power.

    A process that is killed keeps all it wrote. Scripts in their own processes do force files.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def pytest_collection() -> None:
    """Look for no garbage while thousands of tests are made, all of which stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the tests, and the libraries that they loaded, out of later searches for garbage."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say before pytest's last line what this machine lacks, so that its tests were skipped."""
    terminalreporter.write_line(in_a_line())


@pytest.fixture(params=[*ISAS, pytest.param("baseline", marks=pytest.mark.slow)])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this machine has, forced."""
    name: str = request.param
    if name not in cpu.available_isas():
        pytest.skip(f"this machine has no {name} kernels")
    monkeypatch.setenv("KGFAST_CPU_ISA", name)
    return name


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend that serves tensors of the CPU here, forced."""
    name: str = request.param
    if name == "cpu" and not cpu.is_available():
        pytest.skip("the extension is not built")
    with use_backend(name):
        yield name


@pytest.fixture(params=[pytest.param(name, marks=marks_of(name)) for name in NAMES])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each backend on each device, with each instruction set and tier, that is here."""
    with at_work(request.param) as found:
        yield found
