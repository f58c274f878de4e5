"""Runs on quads: read, trained, resumed, saved and loaded with their times."""

import itertools

import pytest
import torch

import kgfast
from kgfast.datasets import load
from kgfast.extras.influence import tracin
from kgfast.training import Config, Trainer, load_run
from support.commands import error_of

NAMES, DAYS = [f"Person {id}" for id in range(12)], [f"2014-01-{day}" for day in range(10, 16)]
# A file of github.com/mniepert/mmkb, TemporalKGs/icews14, has such lines: names and a date.
LINE = "{}\tMake a visit\t{}\t{}\n"


def write(folder, lines=None):
    """Write quads whose tail depends on the time; valid and test are every tenth."""
    folder.mkdir(exist_ok=True)
    pairs = itertools.product(range(12), range(6))
    lines = lines or [
        LINE.format(NAMES[head], NAMES[(head + time + 1) % 12], DAYS[time]) for head, time in pairs
    ]
    for name, some in {
        "train": [line for row, line in enumerate(lines) if row % 10 < 8 or row < 10],
        "valid": lines[18::10],
        "test": lines[19::10],
    }.items():
        (folder / f"{name}.txt").write_text("".join(some), encoding="utf-8")
    return folder


def config_of(folder, **values):
    return Config.from_dict(
        {
            "dataset": {"name": folder.name, "root": str(folder.parent)},
            "model": {"name": "tntcomplex", "base_dim": 16, "reciprocal": True},
            "train": {"steps": 60, "mode": "1vsall", "eval_every": 20, **values},
            "data": {"train_bs": 32},
            "loss": {"name": "cross_entropy"},
            "regularizer": {"name": "n3", "weight": 1e-3, "time_weight": 1e-3},
            "optim": {"name": "adagrad", "lr": 0.1},
        }
    )


def test_a_folder_of_quads(tmp_path):
    dataset = load(write(tmp_path / "visits"))
    assert repr(dataset).startswith("Dataset visits: 12 entities, 1 relations, 6 times\n")
    quad = dataset.train.quads[0].tolist()
    relations, times = dataset.relations.columns
    assert (dataset.entities.name(quad[0]), times.name(quad[3])) == (NAMES[0], DAYS[0])
    assert relations.names == ("Make a visit",)
    assert dataset.known().num_times == 6


def test_times_that_are_numbers_are_sorted_as_numbers(tmp_path):
    lines = [LINE.format(NAMES[row % 12], NAMES[0], row - 3) for row in range(30)]
    with pytest.warns(UserWarning, match="has a time that train lacks") as notes:
        dataset = load(write(tmp_path / "visits", lines))
    assert dataset.relations.columns[1].names == tuple(map(str, range(-3, 27)))
    assert "valid.txt:1: ('Person 6', 'Make a visit @ 15', 'Person 0')" in str(notes[0].message)
    (tmp_path / "visits" / "test.txt").write_text("a\tb\tc\n")
    with pytest.raises(ValueError, match=r"test.txt:1: expected 4 tab-separated fields, found 3"):
        load(tmp_path / "visits")


def test_a_run_keeps_its_times(tmp_path):
    folder = write(tmp_path / "visits")
    config, run = config_of(folder), tmp_path / "run"
    result = Trainer(config, run, progress=False).fit()
    assert result.valid["mrr"] > 0.5
    loaded = load_run(run)
    assert loaded.ranks("test").metrics() == result.test
    assert set(loaded.ranks("train").by("time")) == set(DAYS)
    found = tracin(run, test=loaded.dataset.test, k=2)
    assert len(found.ids) == len(loaded.dataset.test)
    kgfast.save(
        loaded.model,
        tmp_path / "saved",
        entities=loaded.vocabulary.entities,
        relations=loaded.vocabulary.relations,
        known=loaded.known(),
    )
    saved = load_run(tmp_path / "saved", folder)
    assert saved.vocabulary == loaded.vocabulary
    assert saved.saved_known.num_times == 6
    assert torch.equal(saved.ranks("test").greater, loaded.ranks("test").greater)
    head, tail = NAMES[:2]
    assert "relation" in error_of(
        "predict", run, "--head", head, "--tail", tail
    )  # has none to rank


def test_a_resumed_run_has_the_same_bits(tmp_path):
    folder = write(tmp_path / "visits")
    whole = Trainer(config_of(folder), tmp_path / "whole", progress=False)
    whole.fit()
    half = config_of(folder).updated({"train.steps": 20})
    Trainer(half, tmp_path / "half", progress=False).fit()
    resumed = Trainer(config_of(folder), tmp_path / "half", progress=False)
    resumed.fit(resume=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


def test_models_and_data_that_do_not_fit(tmp_path):
    folder = write(tmp_path / "visits")
    static = config_of(folder).updated({"model.name": "complex", "regularizer.time_weight": 0.0})
    with pytest.raises(ValueError, match=r"complex does not fit a dataset of quads \(h, r, t, t"):
        Trainer(static, progress=False)
    triples = kgfast.datasets.synthetic(60, 4, 200, 20, 20)
    with pytest.raises(ValueError, match=r"tntcomplex does not fit a dataset of triples"):
        Trainer(config_of(folder), dataset=triples, progress=False)
    with pytest.raises(ValueError, match=r"regularizer.time_weight: goes with model.name tntcom"):
        config_of(folder).updated({"model.name": "complex"})


@pytest.mark.slow  # about half a minute
def test_planted_quads_of_the_size_of_icews14_are_found():
    """7,128 entities, 230 relations, 365 times and 90,730 quads, as ICEWS14 has.

    A tail follows from the group of the head, the kind of the relation and the season of the time.
    """
    sizes, count = (7128, 230, 365), 90730
    generator = torch.Generator().manual_seed(0)
    heads, relations, times = (torch.randint(size, (count,), generator=generator) for size in sizes)
    group = torch.randint(20, (sizes[0],), generator=generator)
    tails = relations % 3 * 100 + group[heads] * 5 + times // 73
    vocabularies = [kgfast.Vocabulary(map(str, range(size))) for size in sizes]
    pairs = kgfast.graph.TimedRelations(*vocabularies[1:])
    names = {"entities": vocabularies[0], "relations": pairs}
    quads = torch.stack([heads, relations, tails, times], 1)
    parts = [kgfast.Triples(some, **names) for some in quads.split([72826, 8941, 8963])]
    dataset = kgfast.datasets.Dataset("planted", *parts, **names)
    changes = ["dataset.name=planted", "model.base_dim=32", "train.epochs=3"]
    trainer = Trainer(
        Config.from_yaml("default/tntcomplex", changes), dataset=dataset, progress=False
    )
    trainer.fit()
    options = {"known": dataset.known(), "sides": ("tail",)}
    assert kgfast.rank(trainer.model, parts[2], **options).mrr > 0.9
    moved = parts[2].quads
    moved[:, 3] = moved[torch.randperm(len(moved), generator=generator), 3]
    assert kgfast.rank(trainer.model, moved, **options).mrr < 0.6  # the time is what is learned
