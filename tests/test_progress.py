"""The bar of a run, and the lines that stand for it where there is no terminal."""

import io

import pytest
from rich.console import Console

from kgfast.progress import RunBar


def shown(terminal, steps=4):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with RunBar(steps, start=1, console=console) as progress:
        progress.update(2, loss=0.75)
        progress.evaluated(2, {"mrr": 0.25})
        progress.update(3)
        progress.update(4, loss=0.5)
    return console.file.getvalue()


def test_a_bar_on_a_terminal():
    assert "4/4" in shown(terminal=True)
    assert "loss 0.5000" in shown(terminal=True)
    assert "MRR 0.2500" in shown(terminal=True)


def test_a_line_per_loss_and_evaluation_elsewhere():
    lines = shown(terminal=False).splitlines()
    starts = [
        "2 of 4  loss 0.7500  0.0",
        "2 of 4  loss 0.7500  MRR 0.2500  0.0",
        "4 of 4  loss 0.5",
    ]
    assert all(map(str.startswith, lines, [f"step {it}" for it in starts]))
    assert all(line.endswith(" min left") for line in lines)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_time_left_knows_a_limit(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with RunBar(10**15, console=console, limit=lambda: 90.0) as progress:
        progress.update(1, loss=0.5)
    assert "1.5 min left" in console.file.getvalue()


def test_names_in_lines_are_no_markup():
    console = Console(file=io.StringIO(), width=120)
    RunBar(3, console=console).say("runs/[red]x\x1b")
    assert console.file.getvalue() == "runs/[red]x\\u001b\n"


def test_silent(capsys):
    with RunBar(2, enabled=False) as progress:
        progress.update(1, loss=0.5)
        progress.evaluated(1, {"mrr": 0.5})
    assert capsys.readouterr() == ("", "")
