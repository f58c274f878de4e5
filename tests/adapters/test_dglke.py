"""Tables as DGL-KE saves them, scored by its equations."""

import errno
import json
import math

import numpy as np
import pytest
import torch

import kgfast
from kgfast.adapters.dglke import load_dglke
from support import official_scores
from support.forked import printed_by

ENTITIES, RELATIONS, DIM, GAMMA = 30, 3, 4, 7.0
WIDTHS = {
    "RotatE": (2 * DIM, DIM),
    "TransE": (DIM, DIM),
    "TransE_l1": (DIM, DIM),
    "TransE_l2": (DIM, DIM),
    "DistMult": (DIM, DIM),
    "ComplEx": (2 * DIM, 2 * DIM),
    "RESCAL": (DIM, DIM * DIM),
}


def configured(name, **changed):
    entity, relation = WIDTHS[name]
    return {
        "dataset": "graph",
        "model_name": name,
        "hidden_dim": DIM,
        "gamma": GAMMA,
        "double_ent": entity == 2 * DIM,
        "double_rel": relation == 2 * DIM,
    } | changed


def tables(name):
    generator = np.random.default_rng(0)
    limit = (GAMMA + 2) / DIM
    sizes = zip((ENTITIES, RELATIONS), WIDTHS[name], strict=True)
    return [generator.uniform(-limit, limit, size).astype(np.float32) for size in sizes]


def write(folder, name, config=None):
    config = configured(name) if config is None else config
    (folder / "config.json").write_text(json.dumps(config))
    for what, table in zip(("entity", "relation"), tables(name), strict=True):
        np.save(folder / f"graph_{name}_{what}.npy", table)
    return folder


def score(name, head, relation, tail):
    """Compute DGL-KE's ``edge_func`` in float64."""
    if name == "RESCAL":
        return (head * (relation.view(-1, DIM, DIM) @ tail[..., None])[..., 0]).sum(-1)
    name = "TransE_l2" if name == "TransE" else name
    return official_scores.score(name, head, relation, tail, GAMMA, (GAMMA + 2) / DIM)


@pytest.mark.parametrize("name", WIDTHS)
def test_ranks_are_those_of_its_scores_also_in_blocks(tmp_path, name):
    model = load_dglke(write(tmp_path, name))
    entity, relation = (torch.from_numpy(table).double() for table in tables(name))
    triples = [(h, h % RELATIONS, (7 * h + 1) % ENTITIES) for h in range(ENTITIES)]
    ranks = kgfast.rank(model, triples)
    in_blocks = kgfast.rank(load_dglke(tmp_path, as_table=True), triples, max_memory="4 KiB")
    assert torch.equal(in_blocks.greater, ranks.greater)
    official_scores.assert_ranked(
        ranks,
        lambda heads, relations, tails: score(
            name, entity[heads], relation[relations], entity[tails]
        ),
        ENTITIES,
    )


def test_writing_to_a_mapped_table_leaves_the_file(tmp_path):
    """Write in a process of its own: to memory that only reads, this ends it."""
    write(tmp_path, "TransE")
    script = f"""
        import torch
        from kgfast.adapters.dglke import load_dglke

        model = load_dglke({str(tmp_path)!r})
        for table in (model.entity.detach(), model.relation.detach()):
            before = table.clone()
            assert torch.equal(table.add_(1.0), before + 1.0)
        print("written")
    """
    assert printed_by(script) == "written\n"
    model = load_dglke(tmp_path)
    for loaded, table in zip((model.entity, model.relation), tables("TransE"), strict=True):
        assert torch.equal(loaded.detach(), torch.from_numpy(table))


def test_a_file_larger_than_memory_may_be_read_in_blocks(tmp_path, monkeypatch):
    def load(path, **options):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    write(tmp_path, "TransE")
    monkeypatch.setattr(np, "load", load)
    with pytest.raises(MemoryError, match=r"entity.npy: larger than memory; as_table=True"):
        load_dglke(tmp_path)


ROTATE = configured("RotatE")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[", "not a JSON object"),
        ([], "not a JSON object"),
        ({k: v for k, v in ROTATE.items() if k != "gamma"}, "gamma: Field required"),
        (ROTATE | {"gamma": math.nan}, "gamma: Input should be a finite number; got nan"),
        ({k: v for k, v in ROTATE.items() if k != "dataset"}, "dataset: Field required"),
        (ROTATE | {"hidden_dim": "4"}, "hidden_dim: Input should be a valid integer"),
        (ROTATE | {"hidden_dim": 5}, r"must have 10 columns \(hidden_dim 5, doubled\); got shape"),
        (ROTATE | {"double_ent": False}, r"must have 4 columns \(hidden_dim 4\); got shape .30, 8"),
        (ROTATE | {"model_name": "TransR"}, "model 'TransR' is not available; known: RotatE, "),
        (ROTATE | {"model_name": 3}, "model_name: Input should be a valid string"),
        (ROTATE | {"dataset": "../graph"}, "dataset must be a name"),
        (ROTATE | {"dataset": "a\n\x1b[2J"}, r"dataset must be a name; got 'a\\n"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, config, message):
    write(tmp_path, "RotatE")
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_dglke(tmp_path)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file"):
        load_dglke(tmp_path)
    write(tmp_path, "RotatE")
    (tmp_path / "graph_RotatE_entity.npy").write_bytes(b"not an array")
    with pytest.raises(ValueError, match=r"graph_RotatE_entity.npy: not a NumPy table"):
        load_dglke(tmp_path)
    (tmp_path / "graph_RotatE_relation.npy").unlink()
    write(tmp_path, "TransE", configured("RotatE"))
    (tmp_path / "graph_RotatE_entity.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"graph_RotatE_entity.npy: no such file"):
        load_dglke(tmp_path)
