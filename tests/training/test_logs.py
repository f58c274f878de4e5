"""The log: nothing lost by a kill; resumed, it is that of the uninterrupted run."""

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgfast.eval.metrics import METRICS
from kgfast.training.logs import line_of, opened_log, read_rows
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


def write(folder, rows, resume_step=0):
    with opened_log(folder, resume_step) as log:
        for row in rows:
            log.write(line_of(row))


@given(killed=st.integers(0, 30), saved=st.integers(0, 30), cut=st.integers(0, 40))
def test_a_resumed_log_is_that_of_the_uninterrupted_run(tmp_path_factory, killed, saved, cut):
    folder, saved = tmp_path_factory.mktemp("resumed"), min(saved, killed)
    write(folder, rows_until(killed))
    (folder / ".kgfast-metrics.jsonl.tmp").mkdir()  # left by a process that was killed as it wrote
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
from kgfast.training.logs import line_of, opened_log
log = opened_log(sys.argv[1])
log.write(line_of({"step": 1, "loss": 0.5}))
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
        opened_log(tmp_path, resume_step=4)
