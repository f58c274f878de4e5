"""The log: nothing lost by a kill; resumed, it is that of the uninterrupted run; its pictures."""

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgfast.eval.metrics import METRICS
from kgfast.plots import plot
from kgfast.training import RunFolder
from kgfast.training.logs import Logs, read_rows
from support.forked import printed_by


def training_row(step):
    return {"step": step, "epoch": step // 10, "loss": 1 / (step + 1), "lr": 1e-3}


def valid_row(step):
    return {"step": step, "split": "valid", **{metric.name: step / 100 for metric in METRICS}}


def rows_until(step, every=4):
    for number in range(1, step + 1):
        yield training_row(number)
        if number % every == 0:
            yield valid_row(number)


def write(folder, rows, resume_step=None):
    with Logs(folder, resume_step) as logs:
        for row in rows:
            logs.write(row)


@given(killed=st.integers(0, 30), saved=st.integers(0, 30), cut=st.integers(0, 40))
def test_a_resumed_log_is_that_of_the_uninterrupted_run(tmp_path_factory, killed, saved, cut):
    folder, saved = tmp_path_factory.mktemp("resumed"), min(saved, killed)
    write(folder, rows_until(killed))
    (folder / "metrics.jsonl.tmp").mkdir()  # left by a process that was killed as it wrote
    path = folder / "metrics.jsonl"  # a kill cut the row after the last one short
    path.write_text(path.read_text() + '{"step": 31, "loss": 0.123456789, "epoch"'[:cut])
    write(folder, [row for row in rows_until(30) if row["step"] > saved], resume_step=saved)
    assert read_rows(folder) == list(rows_until(30))
    assert not list(folder.glob("*.tmp"))
    write(folder, [training_row(1)])
    assert read_rows(folder) == [training_row(1)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_lines_stay_json(tmp_path, value):
    write(tmp_path, [{"step": 1, "loss": value}])
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "loss": None}


def test_rows_are_there_after_a_kill(tmp_path):
    script = """
import os, signal, sys
from kgfast.training.logs import Logs
logs = Logs(sys.argv[1])
logs.write({"step": 1, "loss": 0.5})
os.kill(os.getpid(), signal.SIGKILL)
"""
    printed_by(script, arguments=[tmp_path], ends=-signal.SIGKILL)
    assert read_rows(tmp_path) == [{"step": 1, "loss": 0.5}]


NO_ROWS = [
    *("[" * 100_000, "9" * 5000, "{", "[]", "{}", '{"step": 3, "loss": "x"}'),
    *('{"step": 3, "loss": NaN}', '{"step": 3, "dim": [1]}', f'{{"step": 3, "lr": 1{"0" * 400}}}'),
    *('{"step": 3, "split": "\xff"}', "\xff\xfe", "no json", "3", "[1]", '{"loss": 1}'),
]


@pytest.mark.parametrize("line", NO_ROWS, ids=range(len(NO_ROWS)))
def test_a_damaged_line_is_named(tmp_path, line):
    write(tmp_path, rows_until(4))
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = line.encode("latin-1") + b"\n"
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a row of a log") as error:
        read_rows(tmp_path)
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a row of a log"):
        Logs(tmp_path, resume_step=4)


class TestPlot:
    @pytest.fixture(autouse=True)
    def matplotlib(self):
        pytest.importorskip("matplotlib")

    def test_a_picture_of_rows(self, tmp_path):
        write(tmp_path, [*rows_until(9), {"step": 10, "loss": float("nan")}])
        text = plot(tmp_path).read_text()
        assert all(word in text for word in ("<svg", "loss", "MRR", "step"))
        png = plot(tmp_path, tmp_path / "x" / "a.png")
        assert png.read_bytes()[:4] == b"\x89PNG"
        write(tmp_path / "x", [training_row(1)])  # before the first evaluation
        assert plot(tmp_path / "x") == tmp_path / "x" / "metrics.svg"

    def test_the_test_result_is_in_it(self, tmp_path):
        write(tmp_path, rows_until(9))
        assert "test MRR" not in plot(tmp_path).read_text()
        (tmp_path / "result.json").write_text(
            json.dumps({"steps": 9, "best_step": 6, "test": {"mrr": 0.51234}})
        )
        assert "test MRR 0.5123" in plot(tmp_path).read_text()
        (tmp_path / "result.json").write_text(json.dumps({"steps": 9, "best_step": 0, "test": {}}))
        assert "test MRR" not in plot(tmp_path).read_text()
        (tmp_path / "result.json").write_text("{")
        with pytest.raises(ValueError, match=r"result\.json: not the result of a run"):
            plot(tmp_path)

    def test_several_runs(self, tmp_path):
        for name in ("x/a", "y/a", "b"):
            (tmp_path / name).mkdir(parents=True)
            write(tmp_path / name, rows_until(9))
        folders = [tmp_path / name for name in ("x/a", "y/a", "b")]
        (folders[2] / "result.json").write_text(json.dumps({"steps": 9, "test": {"mrr": 0.25}}))
        text = plot(folders, tmp_path / "all.svg").read_text()
        for label in ("x/a, MRR", "y/a, MRR", "b, MRR", "b, test MRR 0.2500"):
            assert label in text
        assert "hits@10" not in text
        with pytest.raises(ValueError, match="say with --out where to put the picture of several"):
            plot(folders)
        with pytest.raises(ValueError, match="runs must name at least one folder"):
            plot([])

    def test_no_rows(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="is it a run folder"):
            plot(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        *("[", "3", '{"steps": "x"}', '{"seconds_training": NaN}', '{"test": {"mrr": [1]}}'),
        *('{"test": 3}', '{"best_step": {}}', b"\xff", "", "[]x", "[1]", "[" * 100_000),
    ],
)
def test_a_result_that_is_none_is_named(tmp_path, text):
    (tmp_path / "result.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"result\.json: not the result of a run: "):
        RunFolder(tmp_path).read_result()
