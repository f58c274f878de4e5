"""Views of tables: rows of length 1."""

import pytest
import torch

from kgfast.tables.protocol import TensorTable
from kgfast.tables.views import UnitRows
from support import oracles


@pytest.mark.parametrize("width", [1, 2, 3, 7, 130])
@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200])
def test_unit_rows_are_unit_rows(width, scale):
    """Not even where squares overflow or vanish; and alone as among others, to the last bit."""
    rows = torch.randn(40, width, dtype=torch.float64) * scale
    view = UnitRows(TensorTable(rows))
    lengths = view.block(0, 40).square().sum(1)
    assert torch.equal(view.block(0, 40), torch.from_numpy(oracles.unit_rows(rows)))
    torch.testing.assert_close(lengths, torch.ones(40, dtype=torch.float64), atol=1e-12, rtol=0)
    ids = torch.tensor([3, 39, 3])
    assert torch.equal(view.rows(ids), view.block(0, 40)[ids])
    assert torch.equal(view.block(5, 6), view.block(0, 40)[5:6])
    wide = UnitRows(torch.randn(3, 70_000))
    assert torch.equal(wide.block(1, 2), wide.block(0, 3)[1:2])
