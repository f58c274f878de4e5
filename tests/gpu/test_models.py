"""Ranking, answering and training on a device: what the CPU finds."""

import copy

import numpy as np
import pytest
import torch

import kgfast
from kgfast import MED, RSCF, RotatE, TransE, losses, tables
from kgfast.datasets import synthetic
from kgfast.extras.heads import StreamedHead
from kgfast.models.filters import filters_of
from kgfast.training import Config, Trainer
from support.small_runs import assert_same_tensors, sections_of_table, trainer_of
from support.streamed import KNOWN, SMALL, TRIPLES, rotate, same
from support.waits import count_waits

N, R, DIM, DIMS = 300, 5, 24, [6, 12, 24]


def test_ranks_of_a_whole_graph(device):
    data = synthetic(2_000, 11, 5_000, 200, 400)
    entity, phase = data.planted(96)
    model = RotatE(entity, phase, relation_format="phase")
    with kgfast.use_backend("reference"):
        expected = kgfast.rank(model, data.test[:50], known=data.known())
    same(kgfast.rank(model.to(device), data.test[:50], known=data.known()), expected)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("known_on", [None, "cpu", "cuda"])
@pytest.mark.parametrize("has_subset", [False, True])
def test_rank_waits_once_a_batch(known_on, has_subset):
    triples = torch.randint(50, (4_000, 3), generator=torch.Generator().manual_seed(0))
    known = None if known_on is None else kgfast.KnownTriples(triples).to(known_on)
    model = TransE(torch.randn(50, 8, device="cuda"), torch.randn(50, 8, device="cuda"))
    subset = torch.arange(30) if has_subset else None

    def waits(batch_size: int) -> int:
        options = {"known": known, "candidate_ids": subset, "batch_size": batch_size}
        return count_waits(lambda: kgfast.rank(model, triples, **options))

    waits(500)  # compiles
    assert waits(250) - waits(500) == 2 * (16 - 8)  # both sides


def test_blocks_that_are_copied_rank_as_on_the_cpu(device, tmp_path):
    model, _ = rotate(tmp_path)
    table = tables.open(tmp_path / "e.npy", device=device)
    stored = RotatE(table, model.relation.detach().to(device))
    for ids in (None, [3, 50, 7], torch.arange(5).repeat(len(TRIPLES), 1)):
        options = {"known": KNOWN, "candidate_ids": ids}
        found = kgfast.rank(stored, TRIPLES, max_memory=SMALL, **options)
        same(found, kgfast.rank(model, TRIPLES, **options))
        asked = {"heads": TRIPLES[:, 0], "relations": TRIPLES[:, 1], "k": 3, "pad": True}
        top = kgfast.topk(stored, max_memory=SMALL, **asked, **options)
        assert torch.equal(top.ids.cpu(), kgfast.topk(model, **asked, **options).ids)


def test_many_blocks_of_many_bytes(device, tmp_path):
    generator = torch.Generator().manual_seed(0)
    count = 200_000 if device == "cuda" else 20_000
    rows = torch.randn(count, 128, generator=generator).half()
    np.save(tmp_path / "e.npy", rows.numpy())
    relation = torch.randn(3, 64, generator=generator)
    triples = torch.randint(count, (30, 3), generator=generator) % torch.tensor([count, 3, count])
    table = tables.open(tmp_path / "e.npy", device=device)
    limit = "16MiB" if device == "cuda" else "2MiB"
    found = kgfast.rank(RotatE(table, relation.to(device)), triples, max_memory=limit)
    same(found, kgfast.rank(RotatE(rows, relation), triples))


def med_of(name, crop):
    rotate = RotatE.init(N, R, DIM, gamma=6.0, seed=0)
    model = {
        "rotate": lambda: rotate,
        "rotate + rscf": lambda: RSCF(rotate, seed=1),
        "transe + rscf": lambda: RSCF(TransE.init(N, R, DIM, gamma=6.0, seed=0), seed=1),
    }[name]()
    return MED(model, DIMS, crop=crop)


def loss_and_gradients(med, triples, negatives, side):
    loss = losses.med(med, triples, negatives.to(med.entity.device), side=side)
    names, leaves = zip(*med.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = {name: it for name, it in zip(names, gradients, strict=True) if it is not None}
    return found | {"loss": loss.detach()}


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("crop", ["prefix", "split"])
@pytest.mark.parametrize("name", ["rotate", "rotate + rscf", "transe + rscf"])
def test_losses_and_gradients_of_croppable_and_filtered_models(device, name, crop, shared, side):
    generator = torch.Generator().manual_seed(2)
    triples = torch.stack(
        [torch.randint(limit, (40,), generator=generator) for limit in (N, R, N)], 1
    )
    negatives = torch.randint(N, (48,) if shared else (40, 10), generator=generator)
    med = med_of(name, crop)
    expected = loss_and_gradients(copy.deepcopy(med).double(), triples, negatives, side)
    med = med.to(device)
    found, again = (loss_and_gradients(med, triples, negatives, side) for _ in range(2))
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        error = (found[key].double().cpu() - wanted).abs().max()
        # The derivatives by w1 and w2 are small differences of means of scores.
        allowed = 1e-4 * wanted.abs().max() + (1e-5 if wanted.ndim == 0 else 1e-7)
        assert error <= allowed, key
        assert torch.equal(found[key], again[key]), key


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
@pytest.mark.parametrize("optimizer", ["adam", "row_adam"])
def test_a_run(device, negatives, optimizer):
    config = Config.from_dict(
        {
            "device": device,
            "dataset": {"name": "synthetic"},
            "model": {"name": "rotate", "base_dim": 16, "use_rscf": True},
            "med": {"dims": [4, 8, 16], "submodels_per_step": 3},
            "optim": {"name": optimizer, "lr": 1e-2},
            "train": {"steps": 12, "eval_every": 6},
            "data": {"train_bs": 64, "neg_size": 16, "negatives": negatives},
        }
    )
    result = Trainer(config, dataset=synthetic(200, 6, 500, 50, 50), progress=False).fit()
    assert list(result.test_of_submodels) == ["4", "8", "16"]
    assert all(0 < metrics["mrr"] <= 1 for metrics in result.test_of_submodels.values())


CAPTURED = sections_of_table("""
pool
    optim.name=row_adam  data.filter_negatives=true  data.subsampling=true
lists, clipped
    data.negatives=per_row  optim.name=row_adagrad  optim.grad_clip=0.5
all entities, penalised, relations
    model.name=complex  model.gamma=12  train.mode=1vsall  loss.name=cross_entropy
    regularizer.name=dura  regularizer.weight=0.1  loss.relation_weight=0.2  optim.name=adagrad
dropout
    model.name=conve  model.base_dim=64  model.embedding_height=8  model.gamma=12
    train.mode=1vsall  loss.name=bce  optim.name=adam
med, sgd
    model.use_rscf=true  med.dims=[4,8,16]  med.submodels_per_step=2  optim.name=sgd
""")


@pytest.mark.parametrize("sections", CAPTURED.values(), ids=CAPTURED)
def test_steps_in_graphs_have_the_bits_of_others(cuda, tmp_path, monkeypatch, sections):
    """Resume a run with graphs without them, and the other way round."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    found = []
    for name, hows in enumerate((("never", "never"), ("always", "never"), ("never", "always"))):
        for steps, how in zip((40, 80), hows, strict=True):
            train = {"steps": steps, "eval_every": 25, "capture": how}
            more = {"device": cuda, "train": sections.get("train", {}) | train}
            trainer = trainer_of(tmp_path / str(name), **sections | more)
            trainer.fit(resume=True)
        found.append(trainer.model.state_dict())
    assert_same_tensors(found[1], found[0])
    assert_same_tensors(found[2], found[0])


def test_an_output_layer_answers_as_on_the_cpu(device):
    generator = torch.Generator().manual_seed(0)
    head = StreamedHead(3000, 32, bias=True, sparse=True)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(200, 32, generator=generator)
    targets = torch.randint(3000, (200,), generator=generator)
    targets[7] = -100
    there = copy.deepcopy(head).to(device)
    for ids in (None, torch.cat([targets[targets >= 0], torch.arange(900)]).unique()):
        given = {"candidate_ids": ids}
        given_there = {"candidate_ids": None if ids is None else ids.to(device)}
        best = head.topk(hidden, 9, **given)[1]
        assert torch.equal(best, there.topk(hidden.to(device), 9, **given_there)[1].cpu())
        drawn = head.sample(hidden, 0.7, seed=3, **given)
        own = drawn == there.sample(hidden.to(device), 0.7, seed=3, **given_there).cpu()
        assert own.float().mean() > 0.99  # scores differ by their rounding
        found = []
        for each, where in ((head, hidden), (there, hidden.to(device))):
            options = given if each is head else given_there
            each.zero_grad()
            loss = each.loss(where, targets.to(where.device), label_smoothing=0.1, **options)
            loss.backward()
            found.append((loss.detach().cpu(), each.weight.grad.to_dense().cpu()))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_rows_of_an_output_layer_are_updated(device):
    head = StreamedHead(500, 8, sparse=True, device=device)
    before = head.weight.detach().clone()
    optimizer = kgfast.RowAdam(head.parameters(), lr=0.1)
    hidden, targets = torch.randn(6, 8, device=device), torch.arange(6, device=device)
    head.sampled_loss(hidden, targets, 20, seed=0).backward()
    optimizer.step()
    moved = (head.weight != before).any(1)
    assert moved[:6].all()
    assert 6 < int(moved.sum()) <= 26


@pytest.mark.usefixtures("cuda")
def test_filters_of_a_large_step_take_little_room():
    """40,943 rows of 1,024 take less than 64 MiB beyond the results and gradients."""
    rows = torch.randn(40_943, 1024, device="cuda", requires_grad=True)
    matrix = torch.randn(1024, 512, device="cuda", requires_grad=True)
    widths = [128, 256, 512]
    for _ in range(2):  # the first loads what matrix products need
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = filters_of(rows, matrix, widths, 512)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak <= sum(it.nbytes for it in found) + (64 << 20)
        weights = [torch.ones_like(it) for it in found]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients = torch.autograd.grad(found, (rows, matrix), weights)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak <= sum(it.nbytes for it in gradients) + (64 << 20)
        del found, gradients, weights
