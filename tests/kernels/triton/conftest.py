"""Calls of the Triton backend without a GPU: what would be launched, on tensors without values."""

from collections import Counter

import pytest


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The kernels that would be launched on an sm_90, by name; Triton serves every call."""
    from kgfast.kernels.triton.host import launch, status

    names: Counter[str] = Counter()
    monkeypatch.setenv("KGFAST_BACKEND", "triton")
    monkeypatch.setattr(launch, "launch", lambda kernel, *_, **__: names.update([kernel.__name__]))
    monkeypatch.setattr(launch, "num_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "architecture", lambda device: 90)
    monkeypatch.setattr(status.Report, "raise_if_bad", lambda report: None)
    return names
