"""An output layer on a real GPU: the answers of the CPU."""

import copy

import torch

from kgfast import RowAdam
from kgfast.extras.heads import StreamedHead


def test_it_answers_as_on_the_cpu():
    generator = torch.Generator().manual_seed(0)
    head = StreamedHead(3000, 32, bias=True, sparse=True)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(200, 32, generator=generator)
    targets = torch.randint(3000, (200,), generator=generator)
    targets[7] = -100
    there = copy.deepcopy(head).cuda()
    for ids in (None, torch.cat([targets[targets >= 0], torch.arange(900)]).unique()):
        given = {"candidate_ids": ids}
        given_there = {"candidate_ids": None if ids is None else ids.cuda()}
        best = head.topk(hidden, 9, **given)[1]
        assert torch.equal(best, there.topk(hidden.cuda(), 9, **given_there)[1].cpu())
        drawn = head.sample(hidden, 0.7, seed=3, **given)
        same = drawn == there.sample(hidden.cuda(), 0.7, seed=3, **given_there).cpu()
        assert same.float().mean() > 0.99  # scores differ by their rounding
        losses = []
        for each, where in ((head, hidden), (there, hidden.cuda())):
            options = given if each is head else given_there
            each.zero_grad()
            loss = each.loss(where, targets.to(where.device), label_smoothing=0.1, **options)
            loss.backward()
            losses.append((loss.detach().cpu(), each.weight.grad.to_dense().cpu()))
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)


def test_rows_are_updated():
    head = StreamedHead(500, 8, sparse=True, device="cuda")
    before = head.weight.detach().clone()
    optimizer = RowAdam(head.parameters(), lr=0.1)
    hidden, targets = torch.randn(6, 8, device="cuda"), torch.arange(6, device="cuda")
    head.sampled_loss(hidden, targets, 20, seed=0).backward()
    optimizer.step()
    moved = (head.weight != before).any(1)
    assert moved[:6].all()
    assert 6 < int(moved.sum()) <= 26
