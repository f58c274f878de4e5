"""The Triton cases of the files beside this one, where there is no GPU: interpreted.

To see them one by one: ``TRITON_INTERPRET=1 pytest -k triton tests/kernels/test_ranks.py``.
"""

import pytest

from support.engines import CAN_RUN
from support.interpreted import run_interpreted
from support.paths import TESTS

slow = pytest.mark.slow
FILES = {  # and which of their cases, fast and slow ones, are there
    "test_adversarial.py": ("not slow",),
    "test_bounds.py": ("not slow", "slow"),
    "test_gradients.py": ("not slow", "slow"),
    "test_float_modes.py": ("slow",),
    "test_lists.py": ("not slow", "slow"),
    "test_losses.py": ("not slow", "slow"),
    "test_ranks.py": ("not slow", "slow"),
    "test_topk.py": ("not slow", "slow"),
    "../eval/test_fronts.py": ("slow",),
    "../ops/test_bf16.py": ("not slow", "slow"),
    "triton/test_compose.py": ("not slow",),
    "triton/test_in_place.py": ("not slow", "slow"),
    "triton/test_negatives.py": ("not slow", "slow"),
    "triton/test_rscf.py": ("slow",),
    "triton/test_scores.py": ("not slow", "slow"),
    "triton/test_scratch.py": ("slow",),
    "triton/test_split.py": ("not slow",),
    "triton/test_updates.py": ("not slow",),
}


@pytest.mark.skipif(CAN_RUN, reason="Triton runs in this process")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "marks"),
    [
        pytest.param(name, marks, marks=[slow] if marks == "slow" else [])
        for name, of_file in FILES.items()
        for marks in of_file
    ],
)
def test_in_the_interpreter(name: str, marks: str) -> None:
    run_interpreted(str(TESTS / "kernels" / name), "triton", marks)
