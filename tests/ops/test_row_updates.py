"""Updates of rows refuse what would write out of bounds, and change nothing then."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.backend import AdagradStep, AdamStep
from support.mistakes import each_of

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")

N, WIDTH = 6, 3
STEP = AdamStep(lr=0.5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, number=1)
IDS, ROWS = torch.tensor([4, 1]), torch.ones(2, WIDTH)


def tables(count: int = 3) -> list[torch.Tensor]:
    return [torch.full((N, WIDTH), 1.0 + place) for place in range(count)]


def adam(**change) -> list[torch.Tensor]:
    given = {"tables": tables(), "ids": IDS, "gradients": ROWS, "step": STEP} | change
    ops.update_rows(**given)
    return given["tables"]


BAD = {
    TypeError: {
        "ids must be int64; got .*int32": {"ids": IDS.int()},
        "gradients must be float32; got torch.float16": {"gradients": ROWS.half()},
        "gradients must be dense": {"gradients": ROWS.to_sparse()},
    },
    ValueError: {
        r"ids must have shape \[\*\]": {"ids": IDS[:, None]},
        "ids must be on cpu, as the tables are; got meta": {"ids": IDS.to("meta")},
        r"ids\[1\] must be in 0 .. 5; got -1": {"ids": torch.tensor([4, -1])},
        r"ids\[0\] must be in 0 .. 5; got 6": {"ids": torch.tensor([6, 1])},
        r"ids\[1\] must not repeat an earlier id; got 4 again": {"ids": torch.tensor([4, 4])},
        r"gradients must have shape \[2, 3\]; got \[1, 3\]": {"gradients": ROWS[:1]},
        "gradients must be on cpu, as the tables are; got meta": {"gradients": ROWS.to("meta")},
        r"tables\[2\] must be contiguous float32, .* got torch.float32 \[1, 3\]": {
            "tables": [*tables(2), torch.zeros(1, WIDTH)]
        },
        r"tables\[0\] .* got torch.float64": {"tables": [it.double() for it in tables()]},
        r"tables\[0\] must be contiguous .* strides \[1, 6\]": {
            "tables": [torch.zeros(WIDTH, N).t() for _ in range(3)]
        },
        r"tables\[0\] .* on meta": {"tables": [it.to("meta") for it in tables()]},
    },
}


@each_of(BAD)
def test_what_does_not_fit_is_named_and_changes_nothing(error, message, call):
    own = call.get("tables", tables())
    before = [it.clone() for it in own]
    with pytest.raises(error, match=message):
        adam(**call | {"tables": own})
    if own[0].device.type == "cpu":
        assert all(map(torch.equal, before, own))


def test_adam_of_all_rows():
    rows = torch.arange(float(N * WIDTH)).reshape(N, WIDTH)
    all_rows, named = (adam(ids=it, gradients=rows) for it in (None, torch.arange(N)))
    assert all(map(torch.equal, all_rows, named))


def test_adagrad_refuses_what_adam_refuses():
    pair, step = tables(2), AdagradStep(lr=0.1, eps=1e-10, weight_decay=0.0)
    with pytest.raises(ValueError, match=r"ids\[0\] must be in 0 .. 5; got 6"):
        ops.update_rows(pair, torch.tensor([6, 1]), ROWS, step)
    with pytest.raises(ValueError, match=r"gradients must have shape \[6, 3\]"):
        ops.update_rows(pair, None, ROWS, step)
    assert all(map(torch.equal, pair, tables(2)))


def test_a_step_may_be_a_tensor():
    both = (adam(step=STEP._replace(number=it)) for it in (3, torch.tensor(3.0)))
    assert all(map(torch.equal, *both))


def test_only_the_named_rows_change():
    for before, after in zip(tables(), adam(), strict=True):
        changed = (before != after).any(1).nonzero().flatten()
        assert changed.tolist() == [1, 4]


@pytest.mark.parametrize("ids", [torch.tensor([1, 4]), torch.tensor([5, 9, 0, 9, 2, 9])[::2]])
def test_any_order_and_stride_of_ids_and_gradients(ids):
    gradients = torch.arange(2.0 * len(ids) * WIDTH).view(WIDTH, -1).t()[::2]
    plain = adam(ids=ids.contiguous(), gradients=gradients.contiguous())
    assert all(map(torch.equal, adam(ids=ids, gradients=gradients), plain))


def test_nothing_to_do_is_fine():
    nothing = {"ids": torch.empty(0, dtype=torch.int64), "gradients": torch.empty(0, WIDTH)}
    assert all(map(torch.equal, tables(), adam(**nothing)))
    adam(tables=[torch.empty(0, WIDTH) for _ in range(3)], **nothing)
