"""The extension on emulated processors that lack instructions of this machine."""

import json
import os
import platform
import shutil
import subprocess
import sys
from functools import cache

import pytest

from kgfast.kernels import cpu
from support.paths import TESTS

QEMU = "qemu-x86_64-static"
PROCESSORS = {"Nehalem": "baseline", "Haswell-noTSX": "avx2", "max": "avx2"}
EACH = pytest.mark.parametrize("processor", PROCESSORS)
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86 programs"),
    pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"{QEMU} is not installed"),
    pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built"),
]


def printed(*arguments, emulator=(), **settings):
    """Run support/emulated.py with a Python of its own."""
    command = [*emulator, sys.executable, str(TESTS / "support" / "emulated.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", **settings}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, f"{command} ended with {ended.returncode}: {ended.stderr[-2000:]}"
    return json.loads(ended.stdout)


printed_here = cache(printed)


def compare(found, expected, *, bits=False):
    """Compare integers, and numbers within 1e-5 of the largest; ``bits``: to the last bit.

    Reciprocal square roots of AVX2 have other errors on each processor.
    """
    assert found.keys() == expected.keys()
    for name, values in found.items():
        if bits or isinstance(values[0], int):
            assert values == expected[name], name
        else:
            largest = max(map(abs, expected[name]))
            assert values == pytest.approx(expected[name], rel=0, abs=1e-5 * largest), name


@EACH
def test_the_extension(processor):
    """The extension links no torch, which takes a minute to load."""
    here = printed_here(cpu.extension.__file__)
    there = printed(cpu.extension.__file__, emulator=(QEMU, "-cpu", processor))
    best = PROCESSORS[processor]
    assert there["best"] == best
    assert there["results"].keys() == {best, "baseline"}
    for isa, results in there["results"].items():
        assert there["tiers"][isa] == here["tiers"][isa]
        compare(results, here["results"][isa], bits=isa == "baseline")


def test_instruction_sets_agree():
    """Ranks and the best are equal integers; scores, losses, gradients and updates are close."""
    for results in printed_here(cpu.extension.__file__)["results"].values():
        compare(results, printed_here(cpu.extension.__file__)["results"]["baseline"])
