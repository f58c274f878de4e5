"""Logs and progress: nothing lost by a kill; resumed, they are those of the uninterrupted run."""

import csv
import json
import signal
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgfast.plots import plot
from kgfast.training.logs import COLUMNS, METRICS, Logs, read_rows
from kgfast.training.run_folder import RunFolder
from support.forked import printed_by


def training_row(step):
    return {"step": step, "epoch": step // 10, "loss": 1 / (step + 1), "lr": 1e-3}


def valid_row(step):
    return {"step": step, "split": "valid", **dict.fromkeys(METRICS, step / 100)}


def rows_until(step, every=4):
    for it in range(1, step + 1):
        yield training_row(it)
        if it % every == 0:
            yield valid_row(it)


def write(folder, rows, resume_step=None):
    with Logs(folder, resume_step, tensorboard=False) as logs:
        for row in rows:
            logs.write(row)


def files(folder):
    return [(folder / name).read_text() for name in ("metrics.jsonl", "metrics.csv")]


def test_both_files_hold_the_rows(tmp_path):
    rows = list(rows_until(9))
    write(tmp_path, rows)
    assert read_rows(tmp_path) == rows
    with (tmp_path / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == [*COLUMNS, *METRICS]
    assert [row["step"] for row in table] == [str(row["step"]) for row in rows]
    assert [row["split"] for row in table] == [row.get("split", "") for row in rows]
    assert [float(row["loss"]) for row in table if row["loss"]] == [
        row["loss"] for row in rows if "loss" in row
    ]


NO_ROWS = [
    *("[" * 100_000, "9" * 5000, "{", "[]", "{}", '{"step": 3, "loss": "x"}'),
    *('{"step": 3, "loss": NaN}', '{"step": 3, "dim": [1]}', f'{{"step": 3, "lr": 1{"0" * 400}}}'),
    *(b'{"step": 3, "split": "\xff"}', b"\xff\xfe", "no json", "3", "[1]", '{"loss": 1}'),
]


@given(killed=st.integers(0, 30), saved=st.integers(0, 30), cut=st.integers(0, 40))
def test_resumed_logs_are_those_of_the_uninterrupted_run(tmp_path_factory, killed, saved, cut):
    whole, resumed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("resumed")
    saved = min(saved, killed)
    write(whole, rows_until(30))
    write(resumed, rows_until(killed))
    (resumed / ".metrics-12.jsonl").write_text("of a process that was killed as it wrote")
    for path in resumed.glob("metrics.*"):  # a kill cut the row after the last one short
        path.write_text(path.read_text() + '{"step": 31, "loss": 0.123456789, "epoch"'[:cut])
    write(resumed, [row for row in rows_until(30) if row["step"] > saved], resume_step=saved)
    assert files(resumed) == files(whole)
    assert not list(resumed.glob(".metrics-*"))


def test_a_fresh_run_starts_fresh_files(tmp_path):
    write(tmp_path, rows_until(9))
    write(tmp_path, [training_row(1)])
    assert read_rows(tmp_path) == [training_row(1)]


def test_columns_stay_when_a_run_resumes(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,mrr\n1,\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    write(tmp_path, [{"step": 2, "mrr": 0.25, "loss": 0.1}], resume_step=1)
    assert (tmp_path / "metrics.csv").read_text() == "step,mrr\n1,\n2,0.25\n"


def test_a_key_beyond_the_columns_is_in_the_lines(tmp_path):
    write(tmp_path, [{"step": 1, "gradient_norm": 2.0}])
    assert read_rows(tmp_path) == [{"step": 1, "gradient_norm": 2.0}]
    assert "2.0" not in (tmp_path / "metrics.csv").read_text()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_lines_stay_json(tmp_path, value):
    write(tmp_path, [{"step": 1, "loss": value}])

    def refuse(constant):
        raise AssertionError(constant)

    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse) == {"step": 1, "loss": None}


def test_rows_are_there_after_a_kill(tmp_path):
    script = """
import os, signal, sys
from kgfast.training.logs import Logs
logs = Logs(sys.argv[1], tensorboard=False)
logs.write({"step": 1, "loss": 0.5})
os.kill(os.getpid(), signal.SIGKILL)
"""
    printed_by(script, arguments=[tmp_path], ends=-signal.SIGKILL)
    assert read_rows(tmp_path) == [{"step": 1, "loss": 0.5}]
    assert (tmp_path / "metrics.csv").read_text().split("\n")[1].startswith("1,,,,,0.5,")


def test_tensorboard_gets_the_numbers(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, tag, value, step):
            written.append((tag, value, step))

        def close(self):
            written.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with Logs(tmp_path, resume_step=2) as logs:
        logs.write({"step": 3, "loss": 0.5, "note": "text"})
        logs.write({"step": 3, "split": "valid", "mrr": 0.25, "mr": float("nan")})
    assert written == [
        (str(tmp_path / "tensorboard"), 3),
        ("train/loss", 0.5, 3),
        ("valid/mrr", 0.25, 3),
        "closed",
    ]


def test_no_tensorboard_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with Logs(tmp_path) as logs:
        logs.write(training_row(1))
    assert read_rows(tmp_path) == [training_row(1)]
    assert not (tmp_path / "tensorboard").exists()


class TestPlot:
    @pytest.fixture(autouse=True)
    def matplotlib(self):
        pytest.importorskip("matplotlib")

    def test_the_same_rows_give_the_same_png_and_svg(self, tmp_path):
        write(tmp_path, [*rows_until(9), {"step": 10, "loss": float("nan")}])
        png, svg = plot(tmp_path)
        assert [png.name, svg.name] == ["metrics.png", "metrics.svg"]
        assert png.read_bytes()[:4] == b"\x89PNG"
        text = svg.read_text()
        assert text.count("<svg") == 1
        assert all(word in text for word in ("loss", "MRR", "step"))
        others = plot(tmp_path, tmp_path / "x" / "a.png")
        assert [it.read_bytes() for it in others] == [it.read_bytes() for it in (png, svg)]
        assert others[1] == tmp_path / "x" / "a.svg"
        assert plot(tmp_path, log=True)[1].read_text() != text

    def test_before_the_first_evaluation(self, tmp_path):
        write(tmp_path, [training_row(1)])
        assert len(plot(tmp_path)) == 2

    def test_the_test_result_is_in_it(self, tmp_path):
        write(tmp_path, rows_until(9))
        assert "test MRR" not in plot(tmp_path)[1].read_text()
        (tmp_path / "result.json").write_text(
            json.dumps({"steps": 9, "best_step": 6, "test": {"mrr": 0.51234}})
        )
        assert "test MRR 0.5123" in plot(tmp_path)[1].read_text()
        (tmp_path / "result.json").write_text(json.dumps({"steps": 9, "best_step": 0, "test": {}}))
        assert "test MRR" not in plot(tmp_path)[1].read_text()
        (tmp_path / "result.json").write_text("{")
        with pytest.raises(ValueError, match=r"result\.json: not the result of a run"):
            plot(tmp_path)

    def test_several_runs(self, tmp_path):
        for name in ("x/a", "y/a", "b"):
            (tmp_path / name).mkdir(parents=True)
            write(tmp_path / name, rows_until(9))
        folders = [tmp_path / name for name in ("x/a", "y/a", "b")]
        (folders[2] / "result.json").write_text(json.dumps({"steps": 9, "test": {"mrr": 0.25}}))
        text = plot(folders, tmp_path / "all")[1].read_text()
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


@pytest.mark.parametrize("text", [b"\xff\xfe", b'"' + b"x" * 200_000, b"step,mqr\n", b"a\n"])
def test_a_damaged_table_is_set_aside_and_made_again(tmp_path, text):
    write(tmp_path, rows_until(2))
    whole = files(tmp_path)
    (tmp_path / "metrics.csv").write_bytes(text)
    with pytest.warns(UserWarning, match=r"metrics\.csv: not the table of a log.*\.csv\.broken"):
        write(tmp_path, [], resume_step=2)
    assert files(tmp_path) == whole
    assert (tmp_path / "metrics.csv.broken").read_bytes() == text


@pytest.mark.parametrize("line", NO_ROWS, ids=range(len(NO_ROWS)))
def test_a_damaged_line_is_named_and_set_aside_by_a_resume(tmp_path, line):
    write(tmp_path, rows_until(4))
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = (line if isinstance(line, bytes) else line.encode()) + b"\n"
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a row of a log") as error:
        read_rows(tmp_path)
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl:2: not a row .*metrics\.jsonl\.broken"):
        write(tmp_path, [training_row(5)], resume_step=4)
    assert read_rows(tmp_path) == [row for row in rows_until(5) if row["step"] != 2]
    assert (tmp_path / "metrics.jsonl.broken").read_bytes() == b"".join(lines)


def test_a_folder_in_the_place_of_a_log_is_set_aside(tmp_path):
    for name in ("metrics.jsonl", "metrics.csv"):
        (tmp_path / name).mkdir()
    write(tmp_path, [training_row(1)], resume_step=1)
    assert read_rows(tmp_path) == [training_row(1)]


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
