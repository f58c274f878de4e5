"""Several GPUs: every launch is made while the device of its tensors is the current one."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kgfast.kernels.scores import get_score
from support.flat import triton

pytest.importorskip("triton")
from kgfast.kernels.triton.host import launch as launcher


@pytest.fixture
def launches(monkeypatch) -> list[tuple[str, torch.device]]:
    """Record the kernels that would be launched, each with the device that was current."""
    made: list[tuple[str, Any]] = []
    current: list[torch.device] = []

    @contextmanager
    def serving(device: torch.device):
        current.append(device)
        yield 90
        current.pop()

    def launch(kernel, grid, args, **options) -> None:
        assert current, f"{kernel.__name__} goes to whichever device is the current one"
        made.append((kernel.__name__, current[-1]))
        for leaf in tree_leaves(args):
            assert not isinstance(leaf, Tensor) or leaf.device == current[-1]

    monkeypatch.setattr(launcher, "serving", serving)
    monkeypatch.setattr(launcher, "launch", launch)
    return made


@pytest.mark.parametrize("score", ["rotate", "l2", "rscf_rotate"])
def test_every_launch_is_on_the_device_of_its_tensors(launches, score) -> None:
    facts, has_factor = get_score(score), score.startswith("rscf")
    q = torch.empty(5, 4 * facts.query_planes(has_factor))
    c = torch.empty(9, 4 * facts.planes)
    factor = torch.empty(9, 4) if has_factor else None
    index = torch.zeros(5, 3, dtype=torch.int64)
    grad = triton.pairwise_scores(q, c, score, None, factor)
    triton.pairwise_backward(grad, q, c, score, factor)
    grad = triton.indexed_scores(q, c, index, score, None, factor)
    triton.indexed_backward(grad, q, c, index, score, factor)
    names = {name for name, _ in launches}
    assert names >= {"pack", "score_tiles", "pull", "add_stripes", "gather_scores"}
    assert "backward_lists" in names
