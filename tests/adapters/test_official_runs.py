"""Runs of the official RotatE code: files as its save_model writes them, scores as its formulas."""

import json

import numpy as np
import pytest
import torch

import kgfast
from kgfast.adapters.official import load_official
from support import official_scores
from support.libkge_files import Bomb

ENTITIES, RELATIONS, DIM, GAMMA = 7, 3, 4, 6.0
WIDTHS = {"RotatE": (2, 1), "TransE": (1, 1), "DistMult": (1, 1), "ComplEx": (2, 2)}
DTYPE = torch.float64


def arguments(model, **changed):
    entity, relation = WIDTHS[model]
    return {
        "model": model,
        "hidden_dim": DIM,
        "gamma": GAMMA,
        "double_entity_embedding": entity == 2,
        "double_relation_embedding": relation == 2,
        "nentity": ENTITIES,
        "nrelation": RELATIONS,
        "data_path": "data/wn18rr",
        **changed,
    }


def state_of(model):
    generator = torch.Generator().manual_seed(0)
    limit = (GAMMA + 2) / DIM
    entity, relation = (
        torch.empty(rows, width * DIM).uniform_(-limit, limit, generator=generator)
        for rows, width in zip((ENTITIES, RELATIONS), WIDTHS[model], strict=True)
    )
    return {
        "gamma": torch.tensor([GAMMA]),
        "embedding_range": torch.tensor([limit]),
        "entity_embedding": entity,
        "relation_embedding": relation,
    }


def write_run(folder, model, state=None, config=None, checkpoint=True, arrays=True):
    state = state_of(model) if state is None else state
    (folder / "config.json").write_text(json.dumps(arguments(model) if config is None else config))
    if checkpoint:
        parameters = [torch.nn.Parameter(state["entity_embedding"].clone())]
        optimizer = torch.optim.Adam(parameters)
        parameters[0].sum().backward()
        optimizer.step()
        content = {
            "step": 9,
            "current_learning_rate": 1e-4,
            "warm_up_steps": 5,
            "model_state_dict": state,
            "optimizer_state_dict": optimizer.state_dict(),
        }
        torch.save(content, folder / "checkpoint")
    if arrays:
        for name in ("entity_embedding", "relation_embedding"):
            np.save(folder / name, state[name].numpy())


def scores(model, state, h, r, t):
    """Compute the scores of triples in float64."""
    rows = (("entity_embedding", h), ("relation_embedding", r), ("entity_embedding", t))
    name = "TransE_l1" if model == "TransE" else model
    limit = state["embedding_range"].to(DTYPE)
    return official_scores.score(name, *(state[k][i].to(DTYPE) for k, i in rows), GAMMA, limit)


@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("files", ["checkpoint", "arrays", "both"])
def test_ranks_are_those_of_its_scores(tmp_path, model, files):
    write_run(tmp_path, model, checkpoint=files != "arrays", arrays=files != "checkpoint")
    loaded = load_official(tmp_path)
    assert type(loaded).__name__ == model
    assert (loaded.num_entities, loaded.num_relations, loaded.dim) == (ENTITIES, RELATIONS, DIM)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    triples = [(h, r, (h + r + 1) % ENTITIES) for h in range(ENTITIES) for r in range(RELATIONS)]
    ranks, state = kgfast.rank(loaded, triples), state_of(model)
    official_scores.assert_ranked(ranks, lambda *ids: scores(model, state, *ids), ENTITIES)


@pytest.mark.parametrize("files", ["checkpoint", "arrays"])
def test_a_model_does_not_share_memory_with_its_files(tmp_path, files):
    write_run(tmp_path, "TransE", checkpoint=files != "arrays", arrays=files != "checkpoint")
    loaded, state = load_official(tmp_path), state_of("TransE")
    for path in [*tmp_path.glob("*.npy"), *tmp_path.glob("checkpoint")]:
        with path.open("r+b") as file:  # a mapping sees what is written into its file
            file.write(bytes(path.stat().st_size))
    for own, table in (
        (loaded.entity.detach(), state["entity_embedding"]),
        (loaded.relation.detach(), state["relation_embedding"]),
    ):
        assert torch.equal(own, table)
        assert torch.equal(own.add_(1.0), table + 1.0)


def test_a_checkpoint_runs_nothing(tmp_path):
    write_run(tmp_path, "RotatE")
    torch.save({"model_state_dict": Bomb(tmp_path / "ran")}, tmp_path / "checkpoint")
    said = r"checkpoint: holds something else than tensors.*: Unsupported global: GLOBAL \S+$"
    with pytest.raises(ValueError, match=said):
        load_official(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_an_array_runs_nothing(tmp_path):
    write_run(tmp_path, "TransE", checkpoint=False)
    objects = np.array([Bomb(tmp_path / "ran")], dtype=object)
    np.save(tmp_path / "entity_embedding.npy", objects, allow_pickle=True)
    with pytest.raises(ValueError, match=r"entity_embedding\.npy: not a NumPy table"):
        load_official(tmp_path)
    assert not (tmp_path / "ran").exists()


def without(values, key):
    return {name: value for name, value in values.items() if name != key}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, r"config\.json: not a JSON object: .* recursion limit exceeded"),
        (
            '{"model": ' + "9" * 5000 + "}",
            r"config\.json: not a JSON object: .* number out of range",
        ),
        (
            '{"model": ["a"], "hidden_dim": 1, "gamma": 1}',
            r"model: Input should be a valid string; got \['a'\]",
        ),
        ('{"model": "' + "x" * 10**6 + '", "hidden_dim": 1, "gamma": 1}', "is not available"),
    ],
    ids=["depth", "digits", "list", "long"],
)
def test_a_config_that_lies_is_answered_in_a_line(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_official(tmp_path)
    assert len(str(error.value)) < 400 + len(str(tmp_path))
    assert "\n" not in str(error.value)


ROTATE = arguments("RotatE")
STATE = state_of("RotatE")


@pytest.mark.parametrize(
    ("config", "state", "message"),
    [
        (without(ROTATE, "model"), STATE, r"config\.json: model: Field required"),
        (
            ROTATE | {"hidden_dim": 4.7},
            STATE,
            r"hidden_dim: Input should be a valid integer; got 4\.7",
        ),
        (ROTATE | {"hidden_dim": True}, STATE, "hidden_dim: Input should be a valid integer"),
        (
            ROTATE | {"gamma": "12"},
            without(STATE, "gamma"),
            "gamma: Input should be a valid number; got '12'",
        ),
        ([], STATE, r"config\.json: not a JSON object"),
        (ROTATE | {"model": "HAKE"}, STATE, r"model 'HAKE' is not available; known: RotatE, "),
        (
            ROTATE | {"hidden_dim": 5},
            STATE,
            r"entity_embedding must have 10 columns \(hidden_dim 5, ",
        ),
        (ROTATE | {"nentity": 8}, STATE, r"must have 8 rows, as config.json says; got 7"),
        (ROTATE | {"nrelation": 8}, STATE, r"must have 8 rows, as config.json says; got 3"),
        (
            ROTATE,
            STATE | {"relation_embedding": torch.ones(3, 8)},
            r"relation_embedding must have 4 columns \(hidden_dim 4\); got shape \[3, 8\]",
        ),
        (
            ROTATE,
            STATE | {"entity_embedding": torch.ones(8)},
            r"entity_embedding must have 8 columns .*; got shape \[8\]",
        ),
        (
            ROTATE,
            STATE | {"embedding_range": torch.tensor([0.5])},
            r"embedding_range must be \(gamma \+ 2\) / hidden_dim = 2; got 0\.5",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, config, state, message):
    write_run(tmp_path, "RotatE", state, config)
    with pytest.raises(ValueError, match=message):
        load_official(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file"):
        load_official(tmp_path)
    write_run(tmp_path, "RotatE", checkpoint=False, arrays=False)
    with pytest.raises(FileNotFoundError, match=r"neither checkpoint nor entity_embedding\.npy"):
        load_official(tmp_path)


OF_A_CLASS = b"\x80\x02ctorch\x0e\nFloatStorage\n."
DAMAGED = {
    **dict.fromkeys([b"", b"garbage", b"PK\x03\x04 truncated"], "checkpoint: .*damaged"),
    OF_A_CLASS: r": Unsupported global: GLOBAL torch\\x0e\.FloatStorage$",  # still one line
}
NO_TABLES = [{}, 3, {"model_state_dict": 3}, {"model_state_dict": {}}]


def test_checkpoints_that_hold_no_tables_are_named(tmp_path):
    write_run(tmp_path, "RotatE")
    for content, message in DAMAGED.items():
        (tmp_path / "checkpoint").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_official(tmp_path)
    for state in NO_TABLES:
        torch.save(state, tmp_path / "checkpoint")
        with pytest.raises(ValueError, match=r"model_state_dict is missing|no entity_embedding"):
            load_official(tmp_path)
