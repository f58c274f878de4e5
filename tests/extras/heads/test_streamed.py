"""StreamedHead against dense scores of torch: losses, gradients, best outputs, sparse rows."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from kgfast.extras.heads import StreamedHead
from support.memory import PeakMemory

V, D = 50, 6
IDS = torch.randperm(V, generator=torch.Generator().manual_seed(3))[:20]


def make_head(dtype=torch.float32, *, sparse=False, bias=True):
    head = StreamedHead(V, D, bias=bias, sparse=sparse, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return head


def inputs(dtype=torch.float32, ids=None):
    """Hidden states ``[3, 4, D]`` and targets, two of which do not count."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(3, 4, D, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(V, (3, 4), generator=generator)
    if ids is not None:
        targets = ids[targets % len(ids)]
    targets[0, 1] = targets[2, 3] = -100
    return hidden, targets


def dense_scores(head, hidden, ids=None):
    """Scores of candidates; -inf elsewhere."""
    scores = functional.linear(hidden, head.weight, head.bias)
    if ids is None:
        return scores
    left_out = torch.ones(V, dtype=torch.bool)
    left_out[ids] = False
    return scores.masked_fill(left_out, -torch.inf)


def gradients(head, hidden, loss):
    names = [hidden, *head.parameters()]
    found = torch.autograd.grad(loss, names)
    return [it.to_dense() for it in found]


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "candidates"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_and_its_gradients_are_torchs(reduction, sparse, ids):
    head = make_head(torch.float64, sparse=sparse)
    hidden, targets = inputs(torch.float64, ids)
    loss = head.loss(hidden, targets, reduction=reduction, candidate_ids=ids)
    flat = dense_scores(head, hidden, ids).flatten(0, 1)
    expected = functional.cross_entropy(flat, targets.flatten(), reduction=reduction)
    torch.testing.assert_close(loss, expected.view(loss.shape))
    ours, theirs = (gradients(head, hidden, it.sum()) for it in (loss, expected))
    torch.testing.assert_close(ours, theirs)


def test_smoothing_and_another_index_that_is_ignored():
    head = make_head(torch.float64, bias=False)
    hidden, targets = inputs(torch.float64)
    targets[targets == -100] = 7  # an output, which does not count
    options = {"label_smoothing": 0.2, "ignore_index": 7}
    flat = dense_scores(head, hidden).flatten(0, 1)
    expected = functional.cross_entropy(flat, targets.flatten(), **options)
    torch.testing.assert_close(head(hidden, targets, **options), expected)
    apart = dense_scores(head, hidden)[..., IDS].flatten(0, 1)
    places = (IDS[targets % 20][..., None] == IDS).long().argmax(-1)
    torch.testing.assert_close(
        head.loss(hidden, IDS[targets % 20], label_smoothing=0.2, candidate_ids=IDS),
        functional.cross_entropy(apart, places.flatten(), label_smoothing=0.2),
    )


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "candidates"])
def test_the_best_outputs_and_their_probabilities(ids):
    head = make_head()
    hidden, targets = inputs(ids=ids)
    targets = targets.where(targets >= 0, IDS[0])
    dense = dense_scores(head, hidden.detach(), ids).detach().double()
    scores, best = head.topk(hidden, 5, candidate_ids=ids)
    expected = dense.topk(5)
    assert torch.equal(best, expected.indices)
    torch.testing.assert_close(scores.double(), expected.values, rtol=1e-5, atol=1e-5)
    assert torch.equal(head.greedy(hidden, candidate_ids=ids), best[..., 0])
    found = -head.loss(hidden, targets, candidate_ids=ids, reduction="none")
    exact = dense.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(found.detach().double(), exact, rtol=1e-5, atol=1e-5)
    (slope,) = torch.autograd.grad(found.sum(), hidden)
    assert slope.abs().sum() > 0


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "candidates"])
def test_ranks_and_probabilities_of_targets(ids):
    head, (hidden, targets) = make_head(), inputs(ids=ids)
    ranks, log_prob = head.rank(hidden, targets, candidate_ids=ids)
    dense, counted = dense_scores(head, hidden, ids).detach(), targets >= 0
    own = dense.gather(-1, targets.clamp(min=0)[..., None])
    assert torch.equal(ranks.optimistic[:, 0], 1 + (dense > own).sum(-1)[counted])
    assert torch.equal(ranks.targets, targets[counted])
    assert ranks.num_candidates.unique().tolist() == [V if ids is None else len(ids)]
    exact = torch.where(counted, own[..., 0] - dense.logsumexp(-1), 0.0)
    torch.testing.assert_close(log_prob, exact, rtol=1e-5, atol=1e-5)


def test_a_hidden_state_that_is_not_finite_is_named():
    head, (hidden, targets) = make_head(), inputs()
    place = (targets >= 0).nonzero()[-1]
    hidden = hidden.detach().clone()
    hidden[tuple((targets < 0).nonzero()[0])] = torch.nan  # of a target that does not count
    head.rank(hidden, targets)
    hidden[(*place, 1)] = torch.nan
    with pytest.raises(ValueError, match=rf"hidden\[{place[0]}, {place[1]}\] holds a NaN"):
        head.rank(hidden, targets)


def test_a_tied_weight_collects_both_gradients():
    embedding = nn.Embedding(V, D, sparse=True)
    head = StreamedHead(V, D, weight=embedding.weight, sparse=True)
    assert head.weight is embedding.weight
    tokens, targets = torch.tensor([3, 3, 8]), torch.tensor([1, 8, 3])
    twin = nn.Parameter(embedding.weight.detach().clone())
    for candidate_ids, pool in ((None, torch.arange(V)), (torch.tensor([1, 3, 8]),) * 2):
        head.zero_grad()
        twin.grad = None
        loss = head.loss(head.embed(tokens), targets, candidate_ids=candidate_ids)
        loss.backward()
        scores = functional.embedding(tokens, twin) @ twin[pool].T
        places = torch.searchsorted(pool, targets)
        functional.cross_entropy(scores, places).backward()
        assert head.weight.grad.is_sparse == (candidate_ids is not None)
        torch.testing.assert_close(head.weight.grad.to_dense(), twin.grad)
    assert torch.equal(head.embed(tokens), embedding(tokens))


def test_sampled_loss_of_all_outputs_is_the_loss():
    head = make_head(sparse=True)
    hidden, targets = inputs()
    sampled = head.sampled_loss(hidden, targets, V, seed=0)
    assert torch.equal(sampled, head.loss(hidden, targets))


def test_sampled_sums_of_exponentials_are_unbiased():
    head = make_head(torch.float64)
    hidden, targets = inputs(torch.float64)
    hidden, targets = hidden[:1, :1], targets[:1, :1]
    scores = dense_scores(head, hidden).detach()
    picked = scores[0, 0, targets.item()]
    with torch.no_grad():
        losses = [head.sampled_loss(hidden, targets, 12, seed=seed) for seed in range(250)]
    sums = (torch.stack(losses) + picked).exp()
    exact = scores.exp().sum()
    error = sums.std() / len(sums) ** 0.5
    assert error < exact / 4, "the test says something"
    assert abs(sums.mean() - exact) < 4 * error
    assert sums.std() > 0


def test_sampled_gradients_hold_only_the_rows_that_were_drawn():
    head = StreamedHead(10_000, D, sparse=True)
    hidden, targets = inputs()
    head.sampled_loss(hidden, targets, 30, seed=5).backward()
    first = head.weight.grad.coalesce()
    assert 30 < len(first.values()) <= 30 + 10
    assert set(targets[targets >= 0].tolist()) <= set(first.indices()[0].tolist())
    head.zero_grad()
    head.sampled_loss(hidden, targets, 30, seed=5).backward()
    assert torch.equal(first.to_dense(), head.weight.grad.to_dense())
    head.zero_grad()
    head.sampled_loss(hidden, targets, 30, seed=6).backward()
    assert not torch.equal(first.indices(), head.weight.grad.coalesce().indices())


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_no_hidden_states(shape):
    head = make_head(sparse=True)
    hidden = torch.empty(*shape, D, requires_grad=True)
    targets = torch.empty(shape, dtype=torch.int64)
    for loss in (head.loss(hidden, targets), head.sampled_loss(hidden, targets, 4, seed=0)):
        assert loss.item() == 0
        (slope,) = torch.autograd.grad(loss, hidden)
        assert slope.shape == hidden.shape
    assert head.loss(hidden, targets, reduction="none").shape == shape
    assert head.greedy(hidden).shape == head.sample(hidden, seed=0).shape == shape
    assert head.sample(hidden, top_k=3, seed=0).shape == shape
    assert head.topk(hidden, 3)[1].shape == (*shape, 3)


def test_half_precision_and_autocast():
    head, (hidden, targets) = make_head(dtype=torch.bfloat16), inputs()
    whole = copy.deepcopy(head).float()
    half = hidden.detach().bfloat16()
    expected = whole.loss(half.float(), targets)
    torch.testing.assert_close(head.loss(half, targets), expected)
    assert torch.equal(head.greedy(half), whole.greedy(half.float()))
    with torch.autocast("cpu"):
        torch.testing.assert_close(whole.loss(half.float(), targets), expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_beyond_weight_gradient_and_hidden_states():
    """40,000 hidden states: the best, draws, the loss and its gradients; dense would be 8 GB."""
    limit, rows, outputs, dim = 64 << 20, 40_000, 50_000, 64
    head = StreamedHead(outputs, dim, sparse=True)
    hidden = torch.randn(rows, dim, requires_grad=True)
    targets = torch.randint(outputs, (rows,))
    some = hidden.detach()[:4]
    head.loss(some, targets[:4]), head.greedy(some), head.sample(some, seed=0)
    for name, work in {
        "greedy": lambda: head.greedy(hidden),
        "topk": lambda: head.topk(hidden, 10),
    }.items():
        with PeakMemory("cpu") as peak:
            work()
        assert peak.bytes <= limit, f"{name}: {peak.bytes >> 20} MiB"
    with PeakMemory("cpu") as peak:
        head.sample(hidden[:4000], seed=0)
    assert peak.bytes <= limit, f"sample: {peak.bytes >> 20} MiB"
    head.weight.grad = None
    with PeakMemory("cpu") as peak:
        head.loss(hidden, targets, label_smoothing=0.1).backward()
    of_step = peak.bytes - head.weight.nbytes - hidden.nbytes
    assert of_step <= limit, f"step: {of_step >> 20} MiB"


@pytest.mark.slow
def test_a_tied_weight_has_one_gradient():
    """In two passes rows of the embedding are added to the gradient of the head, in place."""
    head = StreamedHead(1_000_000, 64, sparse=True)
    tokens = torch.randint(len(head.weight), (64,))
    with PeakMemory("cpu") as peak:
        hidden = head.embed(tokens)
        leaf = hidden.detach().requires_grad_()
        head.loss(leaf, tokens.roll(1)).backward()
        hidden.backward(leaf.grad)
    assert peak.bytes - head.weight.nbytes <= 64 << 20
