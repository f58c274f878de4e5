"""Updates of rows refuse what would write out of bounds, and change nothing then."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from support.mistakes import each_of

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")

N, WIDTH = 6, 3
NUMBERS = {"lr": 0.5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "step": 1}


def tables(count: int = 3) -> list[torch.Tensor]:
    return [torch.full((N, WIDTH), 1.0 + place) for place in range(count)]


def adam(**change) -> list[torch.Tensor]:
    given = {"tables": tables(), "ids": torch.tensor([4, 1]), "gradients": torch.ones(2, WIDTH)}
    given |= NUMBERS | change
    ops.row_adam(**given)
    return given["tables"]


IDS = torch.tensor([4, 1])
ROWS = torch.ones(2, WIDTH)
BAD = {
    TypeError: {
        "ids must be int64; got .*int32": {"ids": IDS.int()},
        "ids must be int64; got .*float64": {"ids": IDS.double()},
        "ids must be int64; got .*bool": {"ids": IDS.bool()},
        "ids must be a tensor; got list": {"ids": [4, 1]},
        "gradients must be float32; got torch.float16": {"gradients": ROWS.half()},
        "gradients must be dense": {"gradients": ROWS.to_sparse()},
        r"tables\[0\] must be a ten": {"tables": [it.numpy() for it in tables()]},
    },
    ValueError: {
        r"ids must have shape \[\*\]": {"ids": IDS[:, None]},
        "ids must be on cpu, as the tables are; got meta": {"ids": IDS.to("meta")},
        r"ids\[1\] must be in 0 .. 5; got -1": {"ids": torch.tensor([4, -1])},
        r"ids\[0\] must be in 0 .. 5; got 6": {"ids": torch.tensor([6, 1])},
        r"ids\[2\] must not repeat an earlier id; got 4 again": {
            "ids": torch.tensor([4, 1, 4]),
            "gradients": torch.ones(3, WIDTH),
        },
        "gradients must be on cpu": {"gradients": ROWS.to("meta")},
        r"gradients must have shape \[2, 3\]; got \[1, 3\]": {"gradients": ROWS[:1]},
        "tables must be 3, the table, first moments": {"tables": tables(2)},
        "tables must be 3, .* got 4": {"tables": tables(4)},
        "tables must be 3, .* got 0": {"tables": []},
        r"tables\[2\] must be contiguous float32, .* got torch.float32 \[1, 3\]": {
            "tables": [*tables(2), torch.zeros(1, WIDTH)]
        },
        r"tables\[0\] .* got torch.float64": {"tables": [it.double() for it in tables()]},
        r"tables\[0\] must be contiguous .* strides \[1, 6\]": {
            "tables": [torch.zeros(WIDTH, N).t() for _ in range(3)]
        },
        r"tables\[0\] .* on meta": {"tables": [it.to("meta") for it in tables()]},
        "step must be at least 1; got 0": {"step": 0},
        "^step must be at least 1; got 0": {"step": torch.zeros(())},
        "lr must be finite and at least 0; got nan": {"lr": float("nan")},
        r"betas\[1\] must be in \[0, 1\); got 1.0": {"betas": (0.9, 1.0)},
    },
}


@each_of(BAD)
def test_what_does_not_fit_is_named_and_changes_nothing(error, message, call):
    before = [it.clone() if isinstance(it, torch.Tensor) else it for it in call.get("tables", [])]
    with pytest.raises(error, match=message):
        adam(**call)
    for was, now in zip(before, call.get("tables", []), strict=True):
        if isinstance(was, torch.Tensor) and was.device.type == "cpu":
            assert torch.equal(was, now)


def test_adagrad_refuses_what_adam_refuses():
    """Tables, ids and gradients are checked by one function; its names differ."""
    given = {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.0}
    pair, rows = tables(2), torch.ones(2, WIDTH)
    for ids, gradients, message in (
        (torch.tensor([6, 1]), rows, r"ids\[0\] must be in 0 .. 5; got 6"),
        (torch.tensor([1, 1]), rows, r"ids\[1\] must not repeat"),
        (None, rows, r"gradients must have shape \[6, 3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.row_adagrad(pair, ids, gradients, **given)
    with pytest.raises(ValueError, match="tables must be 2, the table, sums of squares; got 3"):
        ops.row_adagrad(tables(), None, torch.ones(N, WIDTH), **given)
    with pytest.raises(ValueError, match="lr must be finite"):
        ops.row_adagrad(pair, None, torch.ones(N, WIDTH), **given | {"lr": -1.0})
    assert all(torch.equal(*it) for it in zip(pair, tables(2), strict=True))


def test_a_step_may_be_a_tensor():
    for one, other in zip(adam(step=3), adam(step=torch.tensor(3.0)), strict=True):
        assert torch.equal(one, other)


def test_only_the_named_rows_change():
    rows = torch.tensor([4, 1])
    for before, after in zip(tables(), adam(), strict=True):
        changed = (before != after).any(1).nonzero().flatten()
        assert changed.tolist() == rows.sort().values.tolist()


@pytest.mark.parametrize("ids", [torch.tensor([1, 4]), torch.tensor([5, 9, 0, 9, 2, 9])[::2]])
def test_any_order_and_stride_of_ids_and_gradients(ids):
    ids = ids.clamp(max=5)
    gradients = torch.arange(2.0 * len(ids) * WIDTH).view(WIDTH, -1).t()[::2]
    got = adam(ids=ids, gradients=gradients)
    plain = adam(ids=ids.contiguous(), gradients=gradients.contiguous())
    assert all(torch.equal(one, other) for one, other in zip(got, plain, strict=True))


def test_nothing_to_do_is_fine():
    nothing = {"ids": torch.empty(0, dtype=torch.int64), "gradients": torch.empty(0, WIDTH)}
    for before, after in zip(tables(), adam(**nothing), strict=True):
        assert torch.equal(before, after)
    empty = [torch.empty(0, WIDTH) for _ in range(3)]
    adam(tables=empty, **nothing)
