"""The bar of a run, and the lines that stand for it where there is no terminal."""

import io

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


def test_a_line_per_evaluation_elsewhere():
    (line,) = shown(terminal=False).splitlines()
    assert line.startswith("step 2 of 4  loss 0.7500  MRR 0.2500  ")
    assert line.endswith(" min left")


def test_silent(capsys):
    with RunBar(2, enabled=False) as progress:
        progress.update(1, loss=0.5)
        progress.evaluated(1, {"mrr": 0.5})
    assert capsys.readouterr() == ("", "")
