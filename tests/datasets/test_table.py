"""Tables of facts: columns, labels and types against plain loops, the split's rule, bad files."""

import csv
import gzip
import random
import re

import pytest
import torch

from kgfast import TransE, top_facts
from kgfast.datasets import load
from kgfast.training.config import Config

COLUMNS = {
    "columns": ("x", "relation", "y"),
    "labels": ("x_name", "y_name"),
    "types": ("x_type", "y_type"),
}
HEADER = ["relation", "x", "x_type", "x_name", "y", "y_type", "y_name"]


def rows_of_a_graph(seed, num_entities=30, count=150):
    """Return rows with quotes, commas and line ends in labels, both directions and repeats."""
    draw = random.Random(seed)

    def node(i):
        return [str(i), ("drug", "disease", "gene")[i % 3], f'say "{i}",\nor {i}']

    rows = []
    for _ in range(count):
        head, tail = draw.randrange(num_entities), draw.randrange(num_entities)
        relation = draw.choice(["treats", "binds", "rare" if draw.random() < 0.05 else "binds"])
        rows.append([relation, *node(head), *node(tail)])
        if draw.random() < 0.5:
            rows.append([relation, *node(tail), *node(head)])
    return rows + draw.sample(rows, 10)


def write(path, rows, delimiter=",", header=HEADER):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header, *rows] if header else rows)
    return path


def facts_of(triples):
    names = triples.entities.name, triples.relations.name, triples.entities.name
    return [tuple(of(id) for of, id in zip(names, row, strict=True)) for row in triples]


@pytest.mark.filterwarnings("ignore:.*no triples of")
@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv.gz", "\t")])
def test_every_fact_once_with_labels_and_types(tmp_path, name, delimiter):
    rows = rows_of_a_graph(0)
    graph = load(write(tmp_path / name, rows, delimiter), **COLUMNS)
    assert sorted(facts_of(graph.train)) == sorted({(r[1], r[0], r[4]) for r in rows})
    assert list(graph.entities) == sorted(graph.entities, key=int)
    for row in rows:
        assert graph.entities.labels[row[1]] == row[3].replace("\n", " ")
        assert graph.types[row[4]] == row[5]
    drugs = [i for i, entity in enumerate(graph.entities) if graph.types[entity] == "drug"]
    assert torch.equal(graph.of_type("drug"), torch.tensor(drugs))
    with pytest.raises(ValueError, match="'drugs'; did you mean 'drug'"):
        graph.of_type("drugs")


@pytest.mark.filterwarnings("ignore:.*no triples of")
def test_positions_and_types_in_names_and_parquet(tmp_path):
    names = [["Gene::1", "binds", "Drug::2"], ["Drug::2", "binds", "Gene::1"]]
    plain = load(write(tmp_path / "a.tsv", names, "\t", None), columns=(0, 1, 2), types="::")
    assert plain.types == {"Gene::1": "Gene", "Drug::2": "Drug"}
    headed = write(tmp_path / "b.tsv", names, "\t", ["Head", "relation", "tail"])
    with pytest.warns(UserWarning, match=r"the first row names the columns.*columns=\('Head', "):
        assert load(headed, columns=(0, 1, 2)).num_entities == 4
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"y": [7, 8], "r": ["a", "b"], "x": ["1", "2"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    graph = load(tmp_path / "a.parquet", columns=("x", "r", "y"))
    assert facts_of(graph.train) == [("1", "a", "7"), ("2", "b", "8")]


def test_a_folder_has_a_table_for_each_split(tmp_path):
    rows = [[r[1], r[0], r[4]] for r in rows_of_a_graph(1, count=9)]
    for name, split in (("train", rows[:6]), ("valid", rows[6:8]), ("test", rows[8:])):
        write(tmp_path / f"{name}.csv", split, header=["s", "p", "o"])
    with pytest.warns(UserWarning, match="stands in"):
        graph = load(tmp_path, columns=("s", "p", "o"))
    assert facts_of(graph.train) == [tuple(row) for row in rows[:6]]
    assert facts_of(graph.test) == [tuple(row) for row in rows[8:]]
    with pytest.raises(ValueError, match="split is for"):
        load(tmp_path, columns=("s", "p", "o"), split=(0.8, 0.1, 0.1))


@pytest.mark.parametrize("seed", range(8))
def test_the_split_leaves_nothing_out_of_train_and_no_edge_across(tmp_path, seed):
    path = write(tmp_path / "a.csv", rows_of_a_graph(seed))
    graph = load(path, **COLUMNS, split=(0.7, 0.2, 0.1), seed=seed)
    splits = [facts_of(split) for split in (graph.train, graph.valid, graph.test)]
    facts = {fact for split in splits for fact in split}
    assert sum(map(len, splits)) == len(facts)
    assert facts == {(r[1], r[0], r[4]) for r in rows_of_a_graph(seed)}
    assert {e for h, _, t in splits[0] for e in (h, t)} == set(graph.entities)
    assert {r for _, r, _ in splits[0]} == set(graph.relations)
    side = {fact: i for i, split in enumerate(splits) for fact in split}
    for head, relation, tail in facts:
        assert (
            side.get((tail, relation, head), side[head, relation, tail])
            == (side[head, relation, tail])
        )
    for split, size in zip(splits[1:], (0.2, 0.1), strict=True):
        assert abs(len(split) - size * len(facts)) <= 1.5
    again = load(path, **COLUMNS, split=(0.7, 0.2, 0.1), seed=seed)
    assert torch.equal(again.test.hrt, graph.test.hrt)
    other = load(path, **COLUMNS, split=(0.7, 0.2, 0.1), seed=seed + 1)
    assert set(facts_of(other.test)) != set(splits[2])


def test_new_pairs_of_two_types(tmp_path):
    graph = load(write(tmp_path / "a.csv", rows_of_a_graph(2)), **COLUMNS, split=(0.8, 0.1, 0.1))
    rows = torch.arange(graph.num_entities).double()[:, None].sin()
    model = TransE(rows, torch.full((graph.num_relations, 1), 0.25, dtype=torch.float64))
    drugs, diseases = graph.of_type("drug"), graph.of_type("disease")
    facts = top_facts(
        model, k=10**6, known=graph.known(), relations="treats", heads=drugs, tails=diseases,
        vocabulary=graph,
    )  # fmt: skip
    treats = graph.relations["treats"]
    known = {row for split in (graph.train, graph.valid, graph.test) for row in split}
    pairs = {(h, treats, t) for h in drugs.tolist() for t in diseases.tolist()}
    assert {tuple(row) for row in facts.triples.tolist()} == pairs - known
    assert "say" in str(facts)


def test_a_config_reads_a_table(tmp_path):
    path = write(tmp_path / "a.csv", rows_of_a_graph(3))
    expected = load(path, **COLUMNS, split=(0.8, 0.1, 0.1), seed=2)
    options = {name: list(value) for name, value in COLUMNS.items()}
    options |= {"name": "a.csv", "root": str(tmp_path), "split": [0.8, 0.1, 0.1], "seed": 2}
    config = Config.model_validate(
        {"dataset": options, "model": {"name": "transe", "base_dim": 4}, "optim": {"lr": 0.1}}
        | {"train": {"epochs": 1}, "data": {"train_bs": 4}}
    )
    graph = config.dataset.load()
    assert torch.equal(graph.train.hrt, expected.train.hrt)
    assert torch.equal(graph.test.hrt, expected.test.hrt)
    assert graph.types == expected.types


BAD = {
    "a,b,c\n1,r,2\n1,r\n": r"a\.csv:3: expected 3 cells, found 2",
    'a,b,c\n1,r,"2\n\n2"\n\n,r,2\n': r"a\.csv:6: the head is empty",
    "a,b,c\n1,,2\n": r"a\.csv:2: the relation is empty",
    'a,b,c\n1,r,"2\n': r"a\.csv:2: unexpected end of data",
    'a,b,c\n1,r,"2"3\n': r"a\.csv:2: ',' expected after '\"'",
    "a,b,c\n1,r,\udcff\n": r"a\.csv:2: not valid UTF-8",
    "a,b,c\n1,r," + "x" * (1 << 20): r"a\.csv:2: a line has more than",
    "a,b,c\n1,r," + "x" * (1 << 18): r"a\.csv:\d: field larger than field limit",
    "a,bb,c\n1,r,2\n": r"no column 'b'; did you mean 'bb'",
    "a,b,c,c\n1,r,2,3\n": r"two columns 'c'",
    "a,b,c\n": "holds no facts",
    "": "holds no rows",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=range(len(BAD)))
@pytest.mark.parametrize("split", [None, (0.8, 0.1, 0.1)])
def test_bad_files(tmp_path, text, message, split):
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
    with pytest.raises(ValueError, match=message):
        load(path, columns=("a", "b", "c"), split=split)


def test_no_gzip_file(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(b"a,b,c\n")
    with pytest.raises(ValueError, match=re.escape("a.csv.gz: no readable table")):
        load(tmp_path / "a.csv.gz", columns=("a", "b", "c"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": None}, "name head, relation and tail by columns="),
        (
            {"columns": "xyz"},
            "columns, labels and types must be 3 .no time., 2 and 2 names .* got {.columns.: .xyz.",
        ),
        ({"columns": (0, 1, 2)}, "columns, labels and types must be"),
        ({"columns": (0, 1, 9), "labels": None, "types": None}, "columns must be in 0..6; got 9"),
        ({"types": ("x_type",)}, "columns, labels and types must be"),
        ({"labels": ("y", "y")}, r"a.csv:4: '3' has the label '1', elsewhere '2'"),
        ({"types": ("y", "y")}, r"a.csv:4: '3' has the type '1', elsewhere '2'"),
        ({"columns": 5}, "got {.columns.: 5"),
        ({"split": (0.8, 0.1)}, "split must be 3 fractions that sum to 1"),
        ({"split": (0.8, 0.1, 0.2)}, "must be 3 fractions that sum to 1, .* got .0.8, 0.1, 0.2"),
        ({"split": (0.99, 0, 0.01)}, "split: 0.01 of 3 facts leaves nothing for test"),
        ({"split": (0.3, 0.4, 0.3)}, "train needs 2 of 3 facts"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    rows = [["r", h, "t", f"label {h}", t, "t", f"label {t}"] for h, t in ("12", "32", "31")]
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path / "a.csv", rows), **{**COLUMNS, **options})
