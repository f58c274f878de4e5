"""Draws of a head: their distribution, and what they do not depend on."""

import pytest
import torch

from kgfast.extras.heads import StreamedHead, sampling
from kgfast.extras.heads.sampling import gumbel


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Blocks of 8 candidates, so that small heads have many."""
    monkeypatch.setattr(sampling, "WIDTH", 8)


def make_head(outputs=50, dim=4, *, bias=True):
    head = StreamedHead(outputs, dim, bias=bias)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


def hidden_states(rows, dim=4):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(1))


def chi_square(head, hidden, scores, draws):
    """Chi-square of draws of one hidden state against the softmax of scores, per freedom."""
    share = scores.double().softmax(-1)
    count = torch.bincount(draws, minlength=len(share))
    assert not count[share == 0].any()
    common = share * len(draws) > 5
    assert int(common.sum()) > 3
    expected = share[common] * len(draws)
    terms = (count[common] - expected).square() / expected
    return terms.sum() / len(terms)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 12},
        {"top_k": 12, "temperature": 2.0},
        {"candidate_ids": torch.arange(49, 0, -3)},
        {"candidate_ids": torch.arange(49, 0, -3), "top_k": 9},
    ],
    ids=str,
)
def test_draws_follow_the_softmax(options):
    head, rows = make_head(), 4000
    hidden = hidden_states(1)
    scores = (hidden @ head.weight.T + head.bias)[0].detach()
    left_out = torch.zeros(50, dtype=torch.bool)
    if "candidate_ids" in options:
        left_out[:] = True
        left_out[options["candidate_ids"]] = False
    scores = scores.masked_fill(left_out, -torch.inf)
    if "top_k" in options:
        scores = scores.masked_fill(scores < scores.topk(options["top_k"]).values[-1], -torch.inf)
    scores = scores / options.get("temperature", 1.0)
    draws = head.sample(hidden.expand(rows, -1), seed=4, **options)
    assert chi_square(head, hidden, scores, draws) < 2


def test_one_block_is_gumbel_max(monkeypatch):
    """A draw is that of the definition, with the same noise."""
    monkeypatch.setattr(sampling, "WIDTH", 64)
    head, hidden = make_head(bias=False), hidden_states(200)
    noise = gumbel(
        sampling.mix(7, sampling.DrawStream.WITHIN), torch.arange(200)[:, None], torch.arange(50)
    )
    scores = (hidden.double() @ head.weight.detach().double().T) / 0.8
    expected = (scores + noise).argmax(1)
    assert torch.equal(head.sample(hidden, temperature=0.8, seed=7), expected)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("top_k", [None, 7])
def test_a_draw_is_a_function_of_seed_row_and_scores(top_k, monkeypatch):
    head, hidden = make_head(outputs=20), hidden_states(24)
    whole = head.sample(hidden, 1.5, top_k, seed=2)
    assert torch.equal(whole, head.sample(hidden, 1.5, top_k, seed=2))
    assert torch.equal(whole[:11], head.sample(hidden[:11], 1.5, top_k, seed=2))
    assert not torch.equal(whole, head.sample(hidden, 1.5, top_k, seed=3))
    every = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(whole, head.sample(hidden, 1.5, top_k, seed=2, candidate_ids=every))
    assert torch.equal(whole.view(4, 6), head.sample(hidden.view(4, 6, 4), 1.5, top_k, seed=2))
    monkeypatch.setattr(sampling, "_SCRATCH", 96)  # 12 rows at once
    monkeypatch.setattr("kgfast.extras.heads.streamed._TOP", 70)
    assert torch.equal(whole, head.sample(hidden, 1.5, top_k, seed=2))


def test_noise_is_gumbels_and_finite():
    noise = gumbel(0, torch.arange(300)[:, None], torch.arange(300)).flatten()
    assert noise.isfinite().all()
    assert abs(noise.mean() - 0.5772157) < 4 * 1.2825 / 300
    assert abs(noise.var() - torch.pi**2 / 6) < 0.05
    uniform = (-(-noise).exp()).exp()
    counts = torch.histc(uniform.float(), 20, 0, 1)
    assert ((counts - 4500) ** 2 / 4500).sum() < 45
    assert len(noise.unique()) == len(noise)
    apart = gumbel(1, torch.arange(300)[:, None], torch.arange(300)).flatten()
    assert torch.corrcoef(torch.stack([noise, apart]))[0, 1].abs() < 0.02
