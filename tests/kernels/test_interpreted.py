"""The Triton cases of the files beside this one, where there is no GPU: interpreted.

To see them one by one: ``TRITON_INTERPRET=1 pytest -k triton tests/kernels/test_ranks.py``.
"""

import pytest

from support.engines import CAN_RUN
from support.interpreted import run_interpreted
from support.paths import TESTS

# Files that run together in one process, which takes seconds to start.
FAST = (
    "../ops/test_bf16.py",
    *(f"test_{it}.py" for it in ("losses", "gradients", "topk", "above", "ranks", "lists")),
    "test_bounds.py",
    *(f"triton/test_{it}.py" for it in ("best", "compose", "in_place", "med")),
    *(f"triton/test_{it}.py" for it in ("negatives", "scores", "split", "updates")),
)
SLOW = (
    ("test_bounds.py", "../eval/test_fronts.py", "../ops/test_bf16.py"),
    ("test_float_modes.py",),
    ("test_gradients.py",),
    ("test_lists.py",),
    ("test_losses.py",),
    ("test_ranks.py",),
    ("test_topk.py",),
    ("triton/test_in_place.py", "triton/test_med.py", "triton/test_negatives.py"),
    ("triton/test_rscf.py", "triton/test_scores.py"),
    ("triton/test_scratch.py",),
)


@pytest.mark.skipif(CAN_RUN, reason="Triton runs in this process")
@pytest.mark.timeout(900)
def test_in_the_interpreter() -> None:
    run_interpreted("not slow", *(TESTS / "kernels" / name for name in FAST))


@pytest.mark.slow
@pytest.mark.skipif(CAN_RUN, reason="Triton runs in this process")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("names", SLOW, ids=", ".join)
def test_slow_ones_in_the_interpreter(names: tuple[str, ...]) -> None:
    run_interpreted("slow", *(TESTS / "kernels" / name for name in names))
