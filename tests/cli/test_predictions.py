"""Options of ``kgfast predict`` and ``kgfast evaluate`` beyond the tails of a run."""

import csv
import json

import numpy as np
import pytest
import torch

import kgfast
from support.commands import error_of, lines_of, run
from support.small_runs import ring_trainer, ring_triples, write_ring


@pytest.fixture(scope="module")
def kvsall(root, tmp_path_factory):
    """Return a run of binary cross entropy."""
    folder = tmp_path_factory.mktemp("runs") / "kvsall"
    sections = {
        "model": {"name": "transe"},
        "train": {"mode": "kvsall"},
        "loss": {"name": "bce", "label_smoothing": 0.1},
        "optim": {"name": "adam"},
    }
    ring_trainer(root, folder, **sections).fit()
    return folder


def table_of(result):
    """Return the table that ``evaluate`` prints below its caption."""
    return result.stdout.partition("\n")[2].strip()


def test_all_answers_above_a_score(trained):
    words = ["predict", trained, "--head", "e3", "--head", "e5", "--relation", "next"]
    best = lines_of(*words, "--k", 4)
    least = best[3]["score"]
    found = lines_of(*words, "--above", least)
    assert [it for it in found if it["head"] == "e3"] == sorted(
        best[:4], key=lambda it: int(it["tail"][1:])
    )
    assert all(it["score"] >= least for it in found)
    assert lines_of(*words, "--above", 1e9) == []
    assert error_of("predict", trained, "--all", "--above", 0).endswith("not with --all")


def test_the_best_of_all_facts(trained):
    loaded = kgfast.load_run(trained)
    found = lines_of("predict", trained, "--all", "--k", 7)
    facts = kgfast.top_facts(loaded.model, k=7, known=loaded.dataset.known())
    rows = facts.to_frame(loaded.vocabulary).to_dict("records")
    assert found == [{**row, "score": float(row["score"])} for row in rows]
    some = lines_of("predict", trained, "--all", "--head", "e1", "--head", "e2", "--k", 5)
    assert {it["head"] for it in some} <= {"e1", "e2"}
    assert len(lines_of("predict", trained, "--all", "--k", 999)) == 12 * 2 * 12 - 24
    assert len(lines_of("predict", trained, "--all", "--include-known", "--k", 999)) == 12 * 2 * 12


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("words", [["--all"], ["--tail", "e1", "--relation", "next"]], ids=len)
def test_files(trained, tmp_path, suffix, words):
    path = tmp_path / f"facts.{suffix}"
    found = lines_of("predict", trained, *words, "--k", 5)
    result = run("predict", trained, *words, "--k", 5, "--out", path)
    assert (result.exit_code, result.stdout.strip()) == (0, str(path))
    if suffix == "parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    elif suffix == "jsonl":
        rows = list(map(json.loads, path.read_text().splitlines()))
        own = [{key: it for key, it in row.items() if key not in ("query", "rank")} for row in rows]
        assert own == found
    else:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="," if suffix == "csv" else "\t"))
    assert [row["head"] for row in rows] == [it["head"] for it in found]
    scores = torch.tensor([float(row["score"]) for row in rows])
    assert scores.tolist() == [it["score"] for it in found]
    assert list(tmp_path.iterdir()) == [path]


def called(trained, folder, entities, relations):
    """Return the tables of the run, and the ring, with other names."""
    old = [*(f"e{i}" for i in range(12)), "next", "previous"]
    new = dict(zip(old, [*entities, *relations], strict=True))
    splits = {
        split: [tuple(new[name] for name in row) for row in rows]
        for split, rows in ring_triples().items()
    }
    ring = write_ring(folder / "ring", entities, splits)
    lines = [f"{i}\t{name}\n" for i, name in enumerate(relations)]
    (ring / "relations.dict").write_text("".join(lines))
    tables = folder / "tables"
    assert run("export", trained, "--to", "safetensors", "--out", tables).exit_code == 0
    for name, chosen in (("entities", entities), ("relations", relations)):
        (tables / f"{name}.json").write_text(json.dumps(list(chosen)))
    return tables, ring


@pytest.mark.parametrize("control", ["\x1b", "\x7f", "\x9b", "\u202e"])
def test_names_do_nothing_to_a_terminal(trained, tmp_path, control):
    """The table, JSON, ranks and errors; JSON and files still hold the names."""
    evil = f"e{control}[2J"
    names = [f"{evil}{i}" for i in range(12)], ["next", f"previous{control}"]
    tables, ring = called(trained, tmp_path, *names)
    asked = "predict", tables, "--data", ring, "--head", f"{evil}3"
    asked += "--relation", f"previous{control}"
    shown = f"e\\u{ord(control):04x}[2J"
    for words in (
        asked,
        (*asked, "--json"),
        ("predict", tables, "--data", ring, "--all", "--k", 3),
        ("evaluate", tables, "--data", ring, "--per-relation"),
        ("predict", tables, "--data", ring, "--head", f"{evil}99", *asked[6:]),
        ("evaluate", tmp_path / f"none{control}", "--data", ring),
    ):
        result = run(*words)
        assert control not in result.output
        assert "\\" in result.output
    assert shown in run(*asked).stdout
    assert all(it["tail"].startswith(evil) for it in lines_of(*asked))
    run(*asked, "--out", tmp_path / "a.csv")
    assert evil in (tmp_path / "a.csv").read_text()


def test_probabilities_of_binary_cross_entropy(kvsall, trained):
    found = lines_of("predict", kvsall, "--head", "e3", "--relation", "next", "--k", 3)
    loaded = kgfast.load_run(kvsall)
    scale, shift = kgfast.losses.smoothed_labels(0.1, "torch", 12)
    for row in found:
        sigmoid = torch.tensor(row["score"]).double().add(6.0).sigmoid()
        assert row["probability"] == pytest.approx(float((sigmoid - shift) / scale))
        assert 0 <= row["probability"] <= 1
    assert loaded.probabilities(torch.tensor([1e9, -1e9])).tolist() == [1.0, 0.0]
    assert kgfast.load_run(trained).probabilities(torch.zeros(1)) is None
    assert "probability" in run("predict", kvsall, "--all").stdout


def test_a_long_table_is_cut(trained, monkeypatch):
    monkeypatch.setattr("kgfast.cli.common.MOST_ROWS", 3)
    words = "predict", trained, "--head", "e1", "--relation", "next", "--k", 10**8
    shown = run(*words)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count(" next ") == 3
    everything = lines_of(*words)
    assert shown.stderr == f"{len(everything) - 3:,} more answers: --json or --out FILE\n"


def test_evaluating_relations(trained):
    loaded = kgfast.load_run(trained)
    sides = ("head", "relation", "tail")
    ranks = kgfast.rank(loaded.model, loaded.dataset, sides=sides)
    words = [word for side in sides for word in ("--side", side)]
    assert table_of(run("evaluate", trained, *words)) == repr(ranks).strip()
    assert "relation" in repr(ranks)
    alone = run("evaluate", trained, "--side", "relation")
    assert table_of(alone) == repr(ranks.side("relation")).strip()
    own = table_of(run("evaluate", trained, *words, "--hits", 5, "--hits", 20))
    assert own == ranks.table(hits=(5, 20)).strip()
    assert "hits@20" in own
    grouped = run("evaluate", trained, "--hits", 5, "--per-relation").stdout
    assert "hits@5" in grouped
    assert "hits@10" not in grouped


def test_a_folder_of_tables_whole_and_in_blocks(trained, root, tmp_path):
    out, data = tmp_path / "out", ("--data", root / "ring")
    assert run("export", trained, "--to", "safetensors", "--out", out).exit_code == 0
    for limits in ((), ("--max-memory", "8 KiB")):
        result = run("evaluate", out, *data, *limits)
        assert result.exit_code == 0, result.stderr
        assert table_of(result) == table_of(run("evaluate", trained))
        assert result.stdout.startswith("test triples by the tables of the folder\n")
    line = error_of("evaluate", out)
    assert line.endswith("holds tables, not a run: --data must name the triples to rank")
    asked = ("predict", out, *data, "--head", "e3", "--relation", "next", "--k", 3)
    found = lines_of(*asked)
    assert found == lines_of("predict", trained, *asked[4:])
    assert lines_of(*asked, "--max-memory", "8 KiB") == found
    facts = ("--all", "--k", 4, "--head", "e3", "--max-memory", "8 KiB")
    every = lines_of("predict", trained, *facts[:5])
    assert lines_of("predict", out, *data, *facts) == every
    line = error_of("evaluate", tmp_path / "none", *data, "--max-memory", "8 KiB")
    assert line.endswith("none: no such folder")
    line = error_of("evaluate", trained, "--max-memory", "8 KiB")
    assert line.endswith("--to safetensors makes a folder of tables")


def test_known_triples_of_a_folder(trained, root, tmp_path):
    """The folder's triples take the place of all splits: every tail of a test query is known."""
    out, data = tmp_path / "tables", ("--data", root / "ring")
    run("export", trained, "--to", "safetensors", "--out", out)
    model = kgfast.load_run(out).model
    test = kgfast.datasets.load(root / "ring").test
    rows = test.hrt.repeat_interleave(model.num_entities, 0)
    rows[:, 2] = torch.arange(model.num_entities).repeat(len(test.hrt))
    np.save(tmp_path / "rows.npy", rows.numpy())
    kgfast.KnownTriples.build(tmp_path / "rows.npy", tmp_path / "known")
    result = run("evaluate", out, *data, "--known", tmp_path / "known")
    assert result.exit_code == 0, result.stderr
    ranks = kgfast.rank(model, test, known=kgfast.KnownTriples(rows))
    assert table_of(result) == repr(ranks)
    assert table_of(result) != table_of(run("evaluate", out, *data))
    assert table_of(run("evaluate", trained, "--known", tmp_path / "known")) == repr(ranks)
    line = error_of("evaluate", out, *data, "--known", tmp_path / "none")
    assert "none" in line


def test_data_are_read_by_the_names_of_tables(trained, tmp_path):
    out = tmp_path / "tables"
    run("export", trained, "--to", "safetensors", "--out", out)
    write_ring(tmp_path / "ring", entities=[f"e{i}" for i in reversed(range(12))])
    result = run("evaluate", out, "--data", tmp_path / "ring")
    assert table_of(result) == table_of(run("evaluate", trained))
    other = write_ring(tmp_path / "o", entities=[f"x{i}" for i in range(12)], splits={})
    (other / "train.txt").write_text("x0\tnext\tx1\n")
    line = error_of("evaluate", out, "--data", other)
    assert "tables: dataset o does not fit the entities: unknown name 'x0'" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--all", "--dim", 2], "--dim goes with queries, not with --all"),
        (["--all", "--dim", 0], "--dim goes with queries, not with --all"),
        (["--all", "--queries", "a"], "--queries goes with queries, not with --all"),
        (["--all", "--types", "train"], "--types goes with queries, not with --all"),
        (["--all", "--candidates", "a"], "--candidates goes with queries, not with --all"),
        (["--queries", "a", "--head", "e1"], "give --queries, or --head, --relation, --tail"),
        (["--all", "--known", "a", "--include-known"], "give --known or --include-known"),
        (["--queries", "a", "--types", "a", "--candidates", "b"], "--candidates or --types"),
        (["--queries", "none.tsv"], "none.tsv: no such file"),
        (["--queries", "none.parquet"], "none.parquet: no such file"),
        (["--all", "--known", "none"], "none"),
        (["--all", "--out", "facts.xlsx"], "facts.xlsx: must end in .csv, .tsv, .jsonl, .parquet"),
        (["--all", "--out", "facts"], "got no suffix"),
        (["--head", "e1", "--tail", "e2", "--relation", "next"], "--all the best facts"),
        (["--all", "--head", "e99"], "--head: unknown name 'e99'"),
        (["--all", "--head", "e1", "--head", "e1"], "heads[1] must not repeat"),
    ],
    ids=str,
)
def test_bad_input_is_named(trained, words, message):
    assert message in error_of("predict", trained, *words)
