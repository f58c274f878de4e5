"""Fixtures that several files share."""

from pathlib import Path

import pytest
from hypothesis import settings

from kgfast.kernels import cpu

settings.register_profile("kgfast", deadline=None, print_blob=True)
settings.load_profile("kgfast")

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(params=cpu.ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this machine has, forced."""
    name: str = request.param
    if name not in cpu.available_isas():
        pytest.skip(f"this machine or build has no {name} kernels")
    monkeypatch.setenv("KGFAST_CPU_ISA", name)
    return name
