"""The example of third-order paths: what it streams is what it would hold, and its loss falls."""

import importlib
import sys

import pytest
import torch

from kgfast.extras.paths import Paths
from support.paths import ROOT


@pytest.fixture
def modules(monkeypatch):
    """Import the modules of the example, which are found beside its script."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "sgmp"))
    names = ("graphs", "sgmp", "pretrain")
    yield [importlib.import_module(name) for name in names]
    for name in names:
        sys.modules.pop(name, None)


def test_streamed_is_held(modules):
    graphs, sgmp, _ = modules
    graph = graphs.grow(9, 16, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = sgmp.SGMP(2, hidden=4, num_interactions=1, num_centres=3, cutoff=4.0, chunk=7).double()
    interaction, positions = model.interactions[0], graph.positions.double()
    states = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    sources = [states, *interaction.parameters()]
    found = []
    for total in (model.streamed, model.held):
        value = total(interaction, states, positions, graph.edge_index)
        found.append([value, *torch.autograd.grad(value.square().sum(), sources)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_states_do_not_see_rotations_and_children(modules):
    graphs, sgmp, _ = modules
    graph = graphs.grow(10, 20, torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = sgmp.SGMP(2, hidden=4, num_interactions=2, num_centres=3).double()
    features, positions = graph.features.double(), graph.positions.double()
    states = model(features, positions, graph.edge_index)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    turn = turn * torch.linalg.det(turn)
    torch.testing.assert_close(model(features, positions @ turn + 2, graph.edge_index), states)
    positions[-1] += 1.0  # the youngest node: no other knows of it
    moved = model(features, positions, graph.edge_index)
    torch.testing.assert_close(moved[:-1], states[:-1])
    assert not torch.equal(moved[-1], states[-1])


def test_graphs(modules):
    graphs, _, _ = modules
    graph = graphs.grow(100, 2000, torch.Generator().manual_seed(2))
    assert graph.edge_index.shape == (2, 2000)
    assert bool((graph.edge_index[0] > graph.edge_index[1]).all())
    assert len(set(map(tuple, graph.edge_index.T.tolist()))) == 2000
    small = graphs.grow(5, 6, torch.Generator().manual_seed(3))
    both = graphs.batch_of([small, small])
    assert both.parent[5] == -1
    assert torch.equal(both.edge_index[:, 6:], small.edge_index + 5)
    assert len(Paths(both.edge_index, 10)) == 2 * len(Paths(small.edge_index, 5))
    with pytest.raises(ValueError, match="5 nodes have 4 to 10 edges; got 11"):
        graphs.grow(5, 11, torch.Generator())


def test_the_loss_falls(modules, capsys):
    losses = modules[2].train(modules[2].parsed(["--quick"]))
    assert losses[-1] < 0.8 * losses[0]
    assert "step 12: loss" in capsys.readouterr().out


@pytest.mark.slow
def test_the_settings_of_the_report(modules):
    """Batch 16, hidden 64, 3 interactions, 20 radial functions: the defaults."""
    pretrain = modules[2]
    options = pretrain.parsed(["--steps", "3"])
    assert (options.batch, options.hidden, options.interactions, options.centres) == (16, 64, 3, 20)
    losses = pretrain.train(options)
    assert losses[-1] < losses[0]
