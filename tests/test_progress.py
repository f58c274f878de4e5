"""The lines of a run, and the time that is left."""

import pytest

from kgfast.progress import RunBar


def test_a_line_per_loss_and_evaluation(capsys):
    lines = RunBar(4, start=1)
    lines.update(2, loss=0.75)
    lines.evaluated(2, {"mrr": 0.25})
    lines.update(4, loss=0.5)
    starts = [
        "2 of 4  loss 0.7500  0.0",
        "2 of 4  loss 0.7500  MRR 0.2500  0.0",
        "4 of 4  loss 0.5",
    ]
    shown = capsys.readouterr().err.splitlines()
    assert all(map(str.startswith, shown, [f"step {it}" for it in starts]))
    assert all(line.endswith(" min left") for line in shown)


@pytest.mark.parametrize("enabled", [False, True])
def test_names_are_shown_escaped_if_lines_are_wanted(capsys, enabled):
    RunBar(3, enabled=enabled).say("runs/x\x1b")
    assert capsys.readouterr() == ("", "runs/x\\u001b\n" if enabled else "")
