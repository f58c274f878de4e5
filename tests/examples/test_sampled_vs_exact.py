"""The study of sampled metrics: negatives, statistics, and the whole of it on a tiny graph."""

import json

import pytest
import torch

import kgfast
from support.examples import load

negatives, statistics, models, counting, measures, study = (
    load(f"sampled_vs_exact.{name}")
    for name in ("negatives", "statistics", "models", "counting", "measures", "__main__")
)
SIDES = {"head": 2, "tail": 0}  # and the column of the anchor


def graph(entities=60, relations=4, triples=300):
    return kgfast.datasets.synthetic(entities, relations, triples, 30, 30)


def write(dataset, folder):
    """Write a graph as a folder of TSV files."""
    folder.mkdir(parents=True)
    nodes, edges = dataset.entities.name, dataset.relations.name
    for split in ("train", "valid", "test"):
        rows = dataset.split(split).hrt.tolist()
        lines = [f"{nodes(h)}\t{edges(r)}\t{nodes(t)}\n" for h, r, t in rows]
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder


@pytest.fixture
def study_of(tmp_path):
    """Make the study of a tiny graph, with numbers of negatives."""
    data = graph()
    folder = write(data, tmp_path / "tiny")
    return lambda *counts: measures.Study(data, folder, tmp_path / "measures", counts)


def distmult():
    torch.manual_seed(0)
    return kgfast.DistMult(torch.randn(60, 4), torch.randn(4, 4))


class TestNegatives:
    @pytest.mark.parametrize("count", [3, 20, 80])  # by rejection, shuffled, fewer than wanted
    @pytest.mark.parametrize("typed", [False, True])
    def test_negatives_are_allowed_new_and_distinct(self, count, typed):
        data = graph(200, 4, 500)
        known, hrt = data.known(), data.test.hrt
        allowed = kgfast.TypeConstraints.from_triples(data.train) if typed else None
        found = negatives.drawn(hrt, known, 200, count, 0, allowed)
        facts = {tuple(row) for split in (data.train, data.valid, data.test) for row in split}
        for side in SIDES:
            for (h, r, t), ids in zip(hrt.tolist(), found[side].tolist(), strict=True):
                pool = (
                    set(range(200))
                    if allowed is None
                    else set(allowed.candidates(r, side).tolist())
                )
                pool -= {e for e in pool if ((e, r, t) if side == "head" else (h, r, e)) in facts}
                chosen = [e for e in ids if e >= 0]
                assert len(set(chosen)) == len(chosen) == min(count, len(pool))
                assert set(chosen) <= pool
                assert ids[len(chosen) :] == [-1] * (count - len(chosen))

    def test_a_query_with_many_known_answers_still_gets_all_others(self):
        """Only 5 of 1,000 entities are no answers: draws with repetition hardly ever find 3."""
        hrt = torch.tensor([[0, 0, tail] for tail in range(995)])
        known = kgfast.KnownTriples(hrt)
        ids = negatives.drawn(hrt[:4], known, 1000, 3, 0)["tail"]
        assert ids.min() >= 995
        assert all(len(set(row)) == 3 for row in ids.tolist())
        assert len({tuple(row) for row in ids.tolist()}) > 1
        all_five = negatives.drawn(hrt[:4], known, 1000, 9, 0)["tail"]
        assert torch.equal(
            all_five.sort(1).values, torch.tensor([[-1] * 4 + list(range(995, 1000))] * 4)
        )

    def test_a_draw_is_a_function_of_its_number(self):
        data = graph()
        one, same, other = (
            negatives.drawn(data.test.hrt, data.known(), 60, 5, draw) for draw in (3, 3, 4)
        )
        for side in SIDES:
            assert torch.equal(one[side], same[side])
            assert not torch.equal(one[side], other[side])


def test_tau_with_ties_and_of_constants():
    assert statistics.kendall_tau([1, 2, 3], [3, 2, 1]) == -1
    assert statistics.kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 6**0.5)
    assert statistics.kendall_tau([1, 1], [1, 2]) is None


def test_orders_and_flips():
    exact = {"a": 0.3, "b": 0.2, "c": 0.1}
    draws = {"a": [0.5, 0.5], "b": [0.6, 0.4], "c": [0.1, 0.1]}
    order = statistics.order_of(exact, draws)
    assert order["tau"] == pytest.approx((1 / 3 + 1) / 2)
    assert (order["tau_low"], order["pairs"]) == (pytest.approx(1 / 3), 3)
    assert (order["flipped_in_some"], order["flipped_in_most"]) == (1, 0)
    assert order["flipped_share"] == pytest.approx(0.5 / 3)


def test_sampled_ranks_are_those_of_a_plain_loop(study_of):
    model, it = distmult(), study_of(5, 9)
    found = it.sampled({"m/1": lambda: model}, "uniform", 1)["m/1"]  # counted from bits
    ids = negatives.drawn(it.hrt, it.known, 60, 9, 1)
    entity, relation = model.entity.double(), model.relation.double()
    for count in (5, 9):
        ranks = []
        for side, column in SIDES.items():
            for row, (triple, chosen) in enumerate(zip(it.hrt.tolist(), ids[side], strict=True)):
                query = entity[triple[column]] * relation[triple[1]]
                target = entity[triple[2 - column]] @ query
                ranks.append(1 + int((entity[chosen[:count]] @ query > target).sum()))
                assert row < len(it.hrt)
        own = found[f"{count} uniform"]
        expected = sum(1 / rank for rank in ranks) / len(ranks)
        assert own["realistic"]["mrr"] == pytest.approx(expected, abs=1e-12)
        assert own["candidates"] == count + 1


@pytest.mark.parametrize("name", ["distmult", "rotate", "conve", "rscf"])
def test_counts_from_bits_are_those_of_ranking(name):
    data = graph()
    torch.manual_seed(1)
    wave = torch.randn(60, 8), torch.randn(4, 4)
    made = {
        "distmult": lambda: kgfast.DistMult(torch.randn(60, 4), torch.randn(4, 4)),
        "rotate": lambda: kgfast.RotatE(*wave, relation_format="phase"),
        "conve": lambda: kgfast.ConvE.init(60, 4, 8, embedding_height=2, channels=2, seed=0),
        "rscf": lambda: kgfast.RSCF(kgfast.RotatE(*wave, relation_format="phase")),
    }
    model = made[name]().eval()
    if name == "distmult":  # twins, whose scores are equal, and one that float32 calls equal
        model.entity.data[30:58] = model.entity.data[2:30]
        model.entity.data[3:5] *= 1 + 1e-7
    exact = kgfast.rank(model, data.test.hrt)
    bits = counting.bits_of(model, data.test.hrt, exact)
    assert bits is not None
    ids = negatives.drawn(data.test.hrt, data.known(), 60, 50, 0)
    ids["head"][:, 45:] = -1
    draw = counting.Draw(ids, 60, [50])
    for first, last in ((0, 50), (7, 20)):
        ranked = draw.ranked(model, data.test.hrt, first, last)
        counted = draw.counted(bits, first, last)
        assert all(map(torch.equal, ranked, counted))
    assert (int(ranked[1].sum()) > 0) == (name == "distmult")
    exact.greater[3, 1] += 1
    assert counting.bits_of(model, data.test.hrt, exact) is None


def test_a_constant_model_wins_by_optimistic_ranks_alone(study_of):
    it = study_of(5)
    models = {"constant/0": lambda: it.constant}
    exact, drawn = it.exact(models), it.sampled(models, "uniform", 0)
    for values in (*exact["constant/0"].values(), *drawn["constant/0"].values()):
        assert values["optimistic"]["mrr"] == 1.0
        assert values["realistic"]["mrr"] < 0.5
    assert drawn["constant/0"]["5 uniform"]["pessimistic"]["mrr"] == pytest.approx(1 / 6)


def test_measures_are_kept_and_only_missing_ones_made(study_of):
    model, it = distmult(), study_of(5)
    first = it.sampled({"a/1": lambda: model}, "typed", 0)

    def refuse():
        raise AssertionError("measured twice")

    again = it.sampled({"a/1": refuse, "a/2": lambda: model}, "typed", 0)
    assert (it.folder / "a" / "measures-5" / "typed-00.json").is_file()
    assert again["a/1"] == first["a/1"]
    realistic = [again[name]["5 typed"]["realistic"] for name in ("a/1", "a/2")]
    assert realistic[0] == realistic[1]


def test_the_command_names_what_is_missing(capsys, tmp_path):
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert study.main([*words, "--graphs", "wn18rr"]) == 1
    assert "no folder wn18rr in it" in capsys.readouterr().err
    for wrong in (["--negatives", "9,5"], ["--draws", "0"], ["--models", "rotate,gpt"]):
        with pytest.raises(SystemExit):
            study.main([*words, *wrong])
    assert "models are rotate, transe" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_study_of_a_tiny_graph(capsys, tmp_path):
    write(graph(), tmp_path / "data" / "Tiny-1")
    path = tmp_path / "rows.json"
    words = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--graphs", "tiny1"]
    words += ["--minutes", "0.0005", "--draws", "3", "--negatives", "5,9", "--json", str(path)]
    assert study.main([*words, "--plots"]) == 0, capsys.readouterr().err
    rows = json.loads(path.read_text())["rows"]
    assert {row["graph"] for row in rows} == {"Tiny-1"}

    def of(section):
        return [row for row in rows if row["section"] == section]

    assert len(of("run")) == 8
    assert len(of("checkpoint")) == 8 * 3 * 6
    exact = [row for row in of("checkpoint") if row["protocol"] == "exact"]
    assert all(row["mrr"]["bias"] == row["mrr"]["spread"] == 0 for row in exact)
    assert all(row["tau"] in (1, None) for row in of("order") if row["protocol"] == "exact")
    assert all(row["constant_mrr"]["optimistic"] == 1 for row in of("ties"))
    assert rows[0]["command"].endswith("--negatives 5,9 --json rows.json --plots")
    assert (tmp_path / "rows-Tiny-1.png").stat().st_size > 10_000
    assert "| Tiny-1 | " in capsys.readouterr().out

    started = {it: it.stat().st_mtime_ns for it in (tmp_path / "out").rglob("*") if it.is_file()}
    others = {"rows": [{**rows[0], "graph": "another"}, *rows]}
    path.write_text(json.dumps(others))
    assert study.main(words) == 0
    again = json.loads(path.read_text())["rows"]
    assert again[0]["graph"] == "another", "rows of other graphs stay"

    def drop(given):
        return [{k: v for k, v in row.items() if k not in ("date", "command")} for row in given]

    assert drop(again[1:]) == drop(rows)
    for file, when in started.items():
        assert file.stat().st_mtime_ns == when, f"{file.name} was written again"
    assert study.main([*words, "--minutes", "0.002"]) == 1
    assert "name another folder, or the same --minutes" in capsys.readouterr().err
