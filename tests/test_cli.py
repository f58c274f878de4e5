"""The command line: what it prints, where it stops, and with what exit code."""

import io
import json
import re
import shutil
import statistics
import subprocess
import sys

import pytest
import yaml

import kgfast
from kgfast.cli import main
from kgfast.training import Config, RunFolder, checkpoint
from support.commands import error_of, run
from support.small_runs import ring_triples, write_ring

STEPS = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder of datasets with one, ``ring``: 12 entities, 2 relations."""
    root = tmp_path_factory.mktemp("data")
    write_ring(root / "ring", layout="plain")
    return root


@pytest.fixture(scope="module")
def config(data):
    path = data / "tiny.yaml"
    values = {
        "dataset": {"name": "ring", "root": str(data)},
        "model": {"name": "rotate", "base_dim": 4, "gamma": 6.0},
        "optim": {"lr": 0.01},
        "train": {"steps": STEPS, "eval_every": 3, "log_every": 1},
        "data": {"train_bs": 5, "neg_size": 3},
    }
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    """Return a run folder, and what training printed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    result = run("train", "--config", config, "--run", folder)
    assert result.exit_code == 0, result.stderr
    return folder, result


class TestTrain:
    def test_it_ends_with_a_table_of_the_test_set(self, trained):
        folder, result = trained
        metrics = RunFolder(folder).read_result()["test"]
        assert f"{STEPS} steps in" in result.stdout
        for name in ("mrr", "mr", "hits@1", "hits@10"):
            assert name in result.stdout
        assert f"{metrics['mrr']:.4f}" in result.stdout
        assert f"{metrics['mr']:,.1f}" in result.stdout

    def test_the_table_says_what_it_is_of(self, config, tmp_path):
        def said(*words):
            resume = ["--resume"] if (tmp_path / "run").exists() else []
            result = run("train", "-c", config, "--run", tmp_path / "run", *resume, *words)
            assert result.exit_code == 0, result.stderr
            return " ".join(result.stdout.split())

        # No metric gains on the first evaluation: the best checkpoint is an earlier one.
        rate = ["--set", "optim.lr=1e-9"]
        assert "test triples, filtered, by the best checkpoint on valid (step 3)" in said(*rate)

    def test_progress_is_on_the_error_stream(self, trained):
        lines = [line for line in trained[1].stderr.splitlines() if line.startswith("step ")]
        seen = [line.split("  ")[0] for line in lines if "MRR 0." in line]
        assert seen == ["step 3 of 6", "step 6 of 6"]
        assert len(lines) == STEPS + 2

    def test_a_run_is_not_overwritten(self, trained, config):
        line = error_of("train", "-c", config, "--run", trained[0])
        assert line.endswith(
            "holds a run: continue with --resume, or name another folder with --run"
        )

    def test_a_run_is_resumed_by_its_own_config(self, config, tmp_path):
        words = "train", "--run", tmp_path / "run", "--quiet"
        assert "holds no run to resume" in error_of(*words, "--resume")
        assert run(*words, "-c", config, "--set", "train.steps=2").exit_code == 0
        result = run(*words, "--resume", "--set", "train.steps=4")
        assert result.exit_code == 0, result.stderr
        assert "4 steps in" in result.stdout

    def test_nothing_to_resume_is_an_error(self, config, tmp_path):
        """A run that was killed before its first checkpoint is resumed by the same command."""
        folder = tmp_path / "none"
        words = "train", "-c", config, "--run", folder, "--resume", "--quiet"
        assert f"{folder} holds no run to resume: name its folder with --run" in error_of(*words)
        assert not folder.exists()
        folder.mkdir()
        Config.from_yaml(config).to_yaml(folder / "config.yaml")
        result = run(*words)
        assert result.exit_code == 0, result.stderr
        assert result.stderr == f"{folder} holds no checkpoint: the run begins again at step 0\n"
        assert RunFolder(folder).read_result()["steps"] == STEPS

    def test_resuming_with_another_config(self, trained, config):
        words = ["train", "-c", config, "--run", trained[0], "--resume", "--set", "optim.lr=0.5"]
        line = error_of(*words)
        assert line.endswith("was started with another config: optim.lr was 0.01, is 0.5")


class TestErrors:
    def test_debug_shows_the_traceback(self, tmp_path):
        result = run("train", "-c", tmp_path / "none.yaml", "--debug")
        assert isinstance(result.exception, FileNotFoundError)

    @pytest.mark.parametrize(
        "words",
        [
            ["evaluate"],
            ["report"],
            ["predict", "--head", "a", "--relation", "b"],
            ["export", "--to", "official"],
        ],
        ids=lambda it: it[0],
    )
    def test_not_a_run(self, words, tmp_path):
        assert str(tmp_path) in error_of(words[0], tmp_path, *words[1:])


class TestEvaluate:
    @pytest.mark.parametrize("split", ["test", "valid"])
    def test_the_numbers_are_those_of_rank(self, trained, data, split):
        result = run("evaluate", trained[0], "--split", split)
        assert result.exit_code == 0, result.stderr
        dataset = kgfast.datasets.load(data / "ring")
        tensors, _ = checkpoint.load(trained[0] / "best.safetensors")
        model = kgfast.RotatE(tensors["model.entity"], tensors["model.relation"], gamma=6.0)
        known = kgfast.KnownTriples(dataset.train, dataset.valid, dataset.test)
        ranks = kgfast.rank(model, getattr(dataset, split), known=known)
        caption, _, table = result.stdout.strip().partition("\n")
        assert table == repr(ranks).strip()
        step = checkpoint.load(trained[0] / "best.safetensors")[1]["step"]
        assert caption == f"{split} triples by the best checkpoint (step {step})"

    def test_per_relation(self, trained):
        lines = run("evaluate", trained[0], "--per-relation").stdout.splitlines()
        assert lines[1] == "Ranks by relation, filtered, realistic"
        assert [line.split()[0] for line in lines[3:]] == ["previous"]


@pytest.fixture(scope="module")
def seeded(config, tmp_path_factory):
    """Return the folder of three seeds, and what training printed."""
    folder = tmp_path_factory.mktemp("runs") / "seeds"
    result = run("train", "--config", config, "--run", folder, "--seeds", 3, "--set", "seed=7")
    assert result.exit_code == 0, result.stderr
    return folder, result


class TestSeeds:
    def test_runs_and_one_table(self, seeded):
        folder, result = seeded
        names = ["seed-7", "seed-8", "seed-9"]
        assert sorted(path.name for path in folder.iterdir()) == [*names, "seeds.json"]
        rows = json.loads((folder / "seeds.json").read_text())
        assert [*rows] == [*names, "mean", "deviation"]
        tests = [RunFolder(folder / name).read_result()["test"] for name in names]
        assert [rows[name] for name in names] == tests
        assert [RunFolder(folder / name).read_config().seed for name in names] == [7, 8, 9]
        values = [of["mrr"] for of in tests]
        assert len(set(values)) > 1
        assert rows["mean"]["mrr"] == pytest.approx(sum(values) / 3)
        assert rows["deviation"]["mrr"] == pytest.approx(statistics.stdev(values))
        assert f"{rows['deviation']['mrr']:.4f}" in result.stdout

    def test_seeds_that_ended_are_not_trained_again(self, seeded, config):
        folder, _ = seeded
        words = ("train", "--config", config, "--run", folder, "--seeds", 3, "--set", "seed=7")
        assert "holds a run: continue with --resume" in error_of(*words)
        before = {path: path.read_bytes() for path in folder.glob("seed-*/result.json")}
        shutil.rmtree(folder / "seed-9")
        result = run(*words, "--resume")
        assert result.stderr.count("finished already") == 2
        after = {path: json.loads(path.read_bytes()) for path in folder.glob("seed-*/result.json")}
        assert {path: json.loads(text)["test"] for path, text in before.items()} == {
            path: values["test"] for path, values in after.items()
        }

    def test_what_is_no_folder_of_seeds(self, seeded, trained, config):
        words = ("train", "--config", config, "--run", trained[0], "--seeds")
        assert "holds one run; name another folder" in error_of(*words, 2)
        assert "--seeds" in error_of(*words, 1)
        assert "add --seeds" in error_of("train", "--run", seeded[0], "--resume")
        one = ("train", "--config", config, "--run", seeded[0])
        assert "holds runs of --seeds" in error_of(*one)

    def test_without_test_triples_there_is_no_table(self, config, tmp_path):
        splits = {split: ring_triples()[split] for split in ("train", "valid")}
        write_ring(tmp_path / "untested", splits=splits, layout="plain")
        dataset = ("--set", "dataset.name=untested", "--set", f"dataset.root={tmp_path}")
        result = run("train", "--config", config, "--run", tmp_path / "it", "--seeds", 2, *dataset)
        assert "test triples, filtered" not in result.stdout
        assert not (tmp_path / "it" / "seeds.json").exists()

    def test_runs_are_evaluated_together(self, seeded, trained, tmp_path):
        folder, one = seeded[0], trained[0]
        rows = json.loads((folder / "seeds.json").read_text())
        result = run("evaluate", folder)
        for row in rows.values():
            assert f"{row['mrr']:.4f}" in result.stdout
        result = run("evaluate", folder / "seed-7", folder / "seed-8", "--hits", 5)
        assert re.search(r"95% interval +p$", result.stdout, re.M)
        assert "hits@5" in result.stdout
        both = [kgfast.load_run(folder / name).ranks() for name in ("seed-7", "seed-8")]
        found = kgfast.compare(*both, hits=(5,))["mrr"]
        assert f"[{found.low:+.4f}, {found.high:+.4f}]" in result.stdout
        assert "no common interval" in run("evaluate", folder, one).stdout
        assert "goes with one RUN" in error_of("evaluate", folder, one, "--classify")
        assert "1 differ" in error_of("evaluate", one, one)
        copy = tmp_path / "seeds"
        shutil.copytree(folder, copy)
        (copy / "seed-8" / "result.json").unlink()
        assert "seed-8/result.json: the run has not ended" in error_of("evaluate", copy)
        for name in ("seed-8", "seed-9"):
            shutil.rmtree(copy / name)
        shutil.copytree(copy / "seed-7", copy / "seed-7-old")
        assert "best checkpoint" in run("evaluate", copy).stdout


def test_without_matplotlib(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = error_of("report", trained[0])
    assert 'needs matplotlib: pip install "kgfast[report]" (in a clone: ".[report]")' in line


class TestPredict:
    def answers(self, *words):
        result = run("predict", *words, "--json")
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()], result.stderr

    def test_new_tails_by_name_as_topk_finds_them(self, trained, data):
        found, said = self.answers(trained[0], "--head", "e3", "--relation", "next", "--k", 4)
        assert said == ""
        loaded = kgfast.load_run(trained[0])
        ids = [loaded.vocabulary.entities["e3"], loaded.vocabulary.relations["next"]]
        known = loaded.dataset.known()
        asked = {"heads": [ids[0]], "relations": ids[1], "known": known}
        top = kgfast.topk(loaded.model, **asked, k=4, vocabulary=loaded.vocabulary)
        assert [(it["tail"], it["score"]) for it in found] == top[0]
        assert all((it["head"], it["relation"]) == ("e3", "next") for it in found)
        assert "e4" not in [it["tail"] for it in found]  # a known answer

    def test_heads_and_several_queries(self, trained):
        words = ["--tail", "e1", "--tail", "e2", "--relation", "next", "--relation", "previous"]
        found, _ = self.answers(trained[0], *words, "--k", 3)
        asked = [(it["relation"], it["tail"]) for it in found]
        assert asked == [("next", "e1")] * 3 + [("previous", "e2")] * 3
        many, _ = self.answers(trained[0], *words[:-2], "--k", 1)
        assert [it["tail"] for it in many] == ["e1", "e2"]

    def test_a_table_with_names(self, trained):
        result = run("predict", trained[0], "--head", "e3", "--relation", "next")
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        assert all(it in lines[1] for it in ("head", "relation", "tail", "score"))
        assert len([it for it in lines if "e3" in it and "next" in it]) == 10
        assert max(map(len, lines)) <= 80

    @pytest.mark.parametrize(
        ("words", "what"),
        [
            (["--head", "e33"], "error: --head: unknown name 'e33' (of 12 names); did you mean"),
            (["--head", "E3"], "did you mean 'e3'"),
            (["--tail", "e3", "--relation", "nxt"], "--relation: unknown name 'nxt' (of 2 names"),
            (["--head", "e3", "--tail", "e4"], "give --head to predict tails, or --tail to pre"),
            ([], "give --head to predict tails, or --tail to predict heads"),
        ],
        ids=str,
    )
    def test_what_is_not_there(self, trained, words, what):
        with_relation = [] if "--relation" in words else ["--relation", "next"]
        assert what in error_of("predict", trained[0], *words, *with_relation)
        assert "give --relation" in error_of("predict", trained[0], "--head", "e3")

    def test_a_moved_run_is_filtered_by_the_graph_that_it_stores(self, trained, data, tmp_path):
        moved = moved_run(trained[0], data, tmp_path)
        words = [moved, "--head", "e3", "--relation", "next", "--k", 99]
        found, said = self.answers(*words)
        assert (len(found), said) == (11, "")
        assert self.answers(*words, "--data", data) == (found, said)
        line = error_of("predict", *words, "--data", tmp_path)
        assert line.startswith("error: no dataset ring")
        assert line.endswith("holds train.txt; --data must be the folder that contains it")
        for command in (["evaluate"], ["report", "--out", tmp_path / "a.html"], ["export"]):
            more = (
                ["--to", "safetensors", "--out", tmp_path / "out"] if command == ["export"] else []
            )
            done = run(command[0], moved, *command[1:], *more)
            assert done.exit_code == 0, done.stderr
        straight = run("evaluate", trained[0])
        assert run("evaluate", moved).stdout == straight.stdout
        assert "no valid_negatives.txt" in error_of("evaluate", moved, "--classify", "--data", data)
        (moved / "graph.safetensors").unlink()
        assert "graph.safetensors is missing: the rows" in error_of("predict", *words)


def moved_run(folder, data, tmp_path):
    """Return a copy of a run whose config points to no data."""
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    text = (moved / "config.yaml").read_text()
    (moved / "config.yaml").write_text(text.replace(str(data), str(tmp_path / "gone")))
    return moved


def test_python_m_kgfast():
    words = [sys.executable, "-m", "kgfast", "train", "--config", "none.yaml"]
    result = subprocess.run(words, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: none.yaml: no such config file, nor one of the package")
    assert result.stderr.count("\n") == 1


def printed(monkeypatch, encoding, *words):
    """Return what a program prints to an output of another encoding."""
    with monkeypatch.context() as patch, io.TextIOWrapper(io.BytesIO(), encoding) as output:
        patch.setattr(sys, "stdout", output)
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(sys, "argv", ["kgfast", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, sys.stderr.getvalue()
        output.flush()
        return output.buffer.getvalue().decode(encoding)


def test_an_output_that_has_not_all_characters(tmp_path, monkeypatch):
    """Names are escaped there; JSON stays JSON."""
    folder = tmp_path / "tables"
    model = kgfast.TransE.init(3, 1, 2, seed=0)
    kgfast.save(model, folder, entities=["Zürich", "東京", "x"], relations=["größer"])
    words = ["predict", str(folder), "--head", "Zürich", "--relation", "größer", "--k", "3"]
    for encoding in ("ascii", "latin-1"):
        said = printed(monkeypatch, encoding, *words)
        assert r"\u6771\u4eac" in said
        assert (r"Z\xfcrich" if encoding == "ascii" else "Zürich") in said
    lines = printed(monkeypatch, encoding, *words, "--json")
    found = [json.loads(line) for line in lines.splitlines()]
    assert {it["tail"] for it in found} == {"Zürich", "東京", "x"}
    assert "東京" in run(*words).stdout  # in UTF-8
