"""rank() of entities in files: the integers of the same table in memory."""

import pytest
import torch

import kgfast
from kgfast import MED, RSCF, ConvE, Reciprocal, RotatE, tables
from kgfast.eval import rows
from kgfast.graph import TypeConstraints
from support.ranked_models import MODELS
from support.streamed import KNOWN, SMALL, TRIPLES, D, N, R, in_file, rotate, same


def wrapped(kind):
    base = RotatE.init(N, R, D, seed=0)
    return {
        "med": lambda: MED(base, [2, 4, 6]),
        "med split": lambda: MED(base, [2, 4, 6], crop="split"),
        "rscf": lambda: RSCF(base, seed=1),
        "rscf without relations": lambda: RSCF(base, relation_transform=False, seed=1),
        "reciprocal": lambda: Reciprocal(RotatE.init(N, 2 * R, D, seed=0)),
        "conve": lambda: ConvE.init(N, R, 8, embedding_height=2, seed=0).eval(),
    }[kind]()


@pytest.mark.parametrize("kind", MODELS)
def test_every_model(tmp_path, kind):
    model = MODELS[kind](N, R, D, 0)
    options = {"known": KNOWN, "sides": ("tail", "relation", "head")}
    found = kgfast.rank(in_file(model, tmp_path), TRIPLES, max_memory=SMALL, **options)
    same(found, kgfast.rank(model, TRIPLES, **options))


@pytest.mark.parametrize(
    "kind", ["med", "med split", "rscf", "rscf without relations", "reciprocal", "conve"]
)
def test_models_around_models_and_biases(tmp_path, kind):
    model = wrapped(kind)
    if kind == "conve":
        model.bias.data.normal_(generator=torch.Generator().manual_seed(0))
    options = {"known": KNOWN, "dims": [2, 4, 6] if "med" in kind else None}
    found = kgfast.rank(in_file(model, tmp_path), TRIPLES, max_memory=SMALL, **options)
    same(found, kgfast.rank(model, TRIPLES, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_every_dtype_with_ties(tmp_path, dtype, backend):
    rows = RotatE.init(7, R, D, seed=1).entity.detach().to(dtype)[torch.arange(N) % 7].contiguous()
    (tmp_path / "e.bin").write_bytes(rows.view(torch.uint8).numpy().tobytes())
    relation = RotatE.init(N, R, D, seed=0).relation.to(dtype)
    table = tables.open(tmp_path / "e.bin", columns=2 * D, dtype=dtype)
    with kgfast.use_backend(backend):
        found = kgfast.rank(RotatE(table, relation), TRIPLES, known=KNOWN, max_memory=SMALL)
        same(found, kgfast.rank(RotatE(rows, relation), TRIPLES, known=KNOWN))
    assert found.equal.sum() > 100


@pytest.mark.parametrize("cut", [[1, 1, 7, 40, 61], [0, 60], [30]])
def test_uneven_and_empty_shards(tmp_path, cut):
    model = MODELS["rotate"](N, R, D, 0)
    found = kgfast.rank(in_file(model, tmp_path, cut), TRIPLES, known=KNOWN, max_memory=SMALL)
    same(found, kgfast.rank(model, TRIPLES, known=KNOWN))


def given_of(kind):
    generator = torch.Generator().manual_seed(5)
    lists = torch.stack([torch.randperm(N, generator=generator)[:9] for _ in TRIPLES])
    lists[3, 4:] = -1
    return {
        "one list": torch.randperm(N, generator=generator)[:17],
        "none at all": torch.empty(0, dtype=torch.int64),
        "lists": lists,
        "lists without an id": torch.full((len(TRIPLES), 2), -1),
        "csr": (torch.arange(0, 9 * len(TRIPLES) + 1, 9), torch.arange(9).repeat(len(TRIPLES))),
        "constraints": TypeConstraints.from_triples(TRIPLES),
        "by side": {"head": torch.tensor([3, 60, 5]), "tail": lists},
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["one list", "none at all", "lists", "lists without an id", "csr", "constraints", "by side"],
)
def test_candidates_of_every_kind(tmp_path, kind):
    model, given = MODELS["rotate"](N, R, D, 0), given_of(kind)
    options = {"known": KNOWN, "candidate_ids": given}
    found = kgfast.rank(in_file(model, tmp_path), TRIPLES, max_memory=SMALL, **options)
    same(found, kgfast.rank(model, TRIPLES, **options))


def test_lists_read_each_row_once_for_all_queries(tmp_path, monkeypatch):
    _, stored = rotate(tmp_path)
    table, read = stored.entity, []
    original = type(table).rows
    monkeypatch.setattr(
        type(table), "rows", lambda self, ids: read.append(len(ids)) or original(self, ids)
    )
    lists = given_of("lists")
    kgfast.rank(stored, TRIPLES, sides=("tail",), candidate_ids=lists)
    anchors, targets = (len(TRIPLES[:, column].unique()) for column in (0, 2))
    assert sum(read) <= N + anchors + targets


def test_a_small_limit_makes_blocks_and_passes(tmp_path, monkeypatch):
    _, stored = rotate(tmp_path)
    passes = []  # the rows of a block, and whether pages are given back
    original = rows.prefetched

    def seen(table, ranges, *, gives_back):
        passes.append((ranges[0][1] - ranges[0][0], gives_back))
        return original(table, ranges, gives_back=gives_back)

    monkeypatch.setattr(rows, "prefetched", seen)
    kgfast.rank(stored, TRIPLES, max_memory=SMALL)
    num_passes = len(passes)
    kgfast.rank(stored, TRIPLES, max_memory="2 KiB")
    assert len(set(passes)) == 2
    (block_rows, gives_back), last = passes[0], passes[-1]
    assert 3 * block_rows < N
    assert 1 < num_passes < len(passes) - num_passes
    assert not gives_back
    assert last[1], "a file larger than the limit is given back"
    assert last[0] < block_rows
    with pytest.raises(ValueError, match=r"max_memory must be at least .* bytes here"):
        kgfast.rank(stored, TRIPLES, max_memory=100)


def test_no_triples_and_one_of_them_many_times(tmp_path):
    model, stored = rotate(tmp_path)
    same(kgfast.rank(stored, TRIPLES[:0]), kgfast.rank(model, TRIPLES[:0]))
    many = TRIPLES[:1].repeat(9, 1)
    same(kgfast.rank(stored, many, max_memory=SMALL), kgfast.rank(model, many))


def test_a_model_of_another_class(tmp_path):
    inner, stored = rotate(tmp_path)
    bias = torch.linspace(-1, 1, N)

    class Own:
        score, num_entities, num_relations, dim = "rotate", N, R, D

        def __init__(self, table):
            self.table = table

        def queries(self, anchors, relations, side):
            return inner.queries(anchors, relations, side)

        def candidates(self, side):
            return kgfast.Candidates(self.table, bias)

    found = kgfast.rank(Own(stored.entity), TRIPLES, known=KNOWN, max_memory=SMALL)
    same(found, kgfast.rank(Own(inner.entity.detach()), TRIPLES, known=KNOWN))


def test_nan_deep_inside_names_file_and_row(tmp_path):
    model = MODELS["rotate"](N, R, D, 0)
    model.entity.data[47, 3] = torch.nan
    stored = in_file(model, tmp_path, [20, 41])
    asked = TRIPLES[(TRIPLES[:, ::2] != 47).all(1)]
    with pytest.raises(ValueError, match=r"2\.npy: row 6 \(row 47 of all shards\) holds a NaN"):
        kgfast.rank(stored, asked, max_memory=SMALL)
    target = torch.tensor([[1, 0, 47]])
    with pytest.raises(ValueError, match=r"2\.npy: row 6 \(row 47 of all shards\) holds a NaN"):
        kgfast.rank(stored, target, sides=("tail",), max_memory=SMALL)
    with pytest.raises(
        ValueError, match=r"triples\[0\] = \(47, 0, 1\): its tail query holds a NaN"
    ):
        kgfast.rank(stored, [(47, 0, 1)], sides=("tail",), max_memory=SMALL)
    options = {"nan": "worst", "known": KNOWN}
    same(
        kgfast.rank(stored, TRIPLES, max_memory=SMALL, **options),
        kgfast.rank(model, TRIPLES, **options),
    )


def test_what_a_model_of_a_table_does_not_do(tmp_path):
    model, stored = rotate(tmp_path)
    for call, words in (
        (stored.state_dict, r"state_dict\(\): the entities are FileTable.*its own file"),
        (stored.double, r"to\(\): the entities are FileTable.*table of that dtype"),
        (lambda: stored.to("cpu"), r"to\(\): the entities are FileTable"),
        (lambda: RSCF(stored).state_dict(), r"state_dict\(\): the entities"),
        (lambda: stored.first_columns(2), r"first_columns\(\)"),
        (
            lambda: kgfast.losses.nssa(stored, TRIPLES, torch.arange(4)),
            r"rank\(\), topk\(\) and top_facts\(\) read such a table",
        ),
        (lambda: RotatE(stored.entity, stored.entity), "relation must be a tensor"),
    ):
        with pytest.raises(TypeError, match=words):
            call()
    for option in ({"max_memory": "1GiB"}, {"partial": tmp_path / "p"}):
        with pytest.raises(ValueError, match="tensors are read in place"):
            kgfast.rank(model, TRIPLES, **option)
    for limit, error in (
        ("much", ValueError),
        (True, TypeError),
        (0, ValueError),
        ("1i", ValueError),
    ):
        with pytest.raises(error, match="max_memory must be"):
            kgfast.rank(stored, TRIPLES, max_memory=limit)
    shard = tables.Shard(model.entity.detach()[:30], start=0, total_rows=N)
    with pytest.raises(ValueError, match=r"kgfast\.distributed ranks the shards"):
        kgfast.rank(model.with_entity(shard), TRIPLES)


def test_candidates_are_checked_as_ever(tmp_path):
    _, stored = rotate(tmp_path)
    for ids, words in (([1, 1], "must not repeat"), ([1, N], r"candidate_ids\[1\] must be in")):
        with pytest.raises(ValueError, match=words):
            kgfast.rank(stored, TRIPLES, candidate_ids=ids)


def test_a_file_that_changes_under_the_run(tmp_path):
    _, stored = rotate(tmp_path)
    with (tmp_path / "e.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match=r"changed while it was read|truncated"):
        kgfast.rank(stored, TRIPLES)


def test_a_bar_shows_rows_and_rates(tmp_path, capsys):
    _, stored = rotate(tmp_path)
    kgfast.rank(stored, TRIPLES, max_memory="1GiB", progress=True)
    shown = capsys.readouterr().out
    assert "ranking rows" in shown
    assert f"{N}/{N}" in shown
    assert "elements/s" in shown


def test_relations_by_tails_with_biases(tmp_path):
    """Each of ConvE's tails has the bias of its row, of which few are read."""
    model = kgfast.ConvE.init(N, R, 8, seed=0, embedding_height=2, kernel_size=2)
    model.bias.data.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    stored, sides = in_file(model, tmp_path), ("relation", "tail")
    few = TRIPLES[:9]
    found = kgfast.rank(stored, few, known=KNOWN, sides=sides, max_memory="1MiB", batch_size=4)
    same(found, kgfast.rank(model, few, known=KNOWN, sides=sides))
