"""Memory that one step leaves to the next: freed blocks, and constants."""

import os
import sys

import pytest
import torch

from kgfast.kernels.spares import Constants, constant, numbers
from support.processes import finish, run_script

ENV = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
FAULTS = """
import resource, torch
from kgfast.kernels import spares

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(9 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

faults()
with spares.freed_memory_kept():
    for _ in range(5):
        faults()
    kept, before = faults(), resident()
print(kept, before - resident(), faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
@pytest.mark.parametrize("own", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}])
def test_freed_memory_is_kept_within(own):
    """Blocks of 36 MiB; without huge pages, one has 9,216 pages."""
    kept, given_back, faults = map(int, finish(run_script(FAULTS, env={**ENV, **own})).split())
    assert (kept < 1_000 < faults) is not bool(own)
    assert own or given_back > 32 << 20


def test_a_constant_is_made_once_within_and_anew_outside():
    constants, given = Constants(), (torch.float32, torch.device("cpu"))
    with constants.in_use():
        first, again = constant(2.0, (1,), *given), constant(2.0, (1,), *given)
        others = constant(3.0, (1,), *given), constant(2.0, (2,), *given)
    assert first is again
    assert first.tolist() == constant(2.0, (1,), *given).tolist() == [2.0]
    assert [it.tolist() for it in others] == [[3.0], [2.0, 2.0]]
    assert constant(2.0, (1,), *given) is not first
    with constants.in_use():
        first.add_(1)  # somebody's own
        assert constant(2.0, (1,), *given).tolist() == [2.0]


def test_numbers_are_kept_on_a_device_alone():
    there, here = torch.device("meta"), torch.device("cpu")
    with Constants().in_use():
        assert numbers(3, there) is numbers(3, there)
        assert len(numbers(2, there)) == 2
        assert numbers(3, here) is not numbers(3, here)
