"""The steps of CONTRIBUTING.md add a loss: a copy of the tree in which they are followed works."""

import os
import shutil

import pytest

from support.copies import python, steps, write
from support.paths import ROOT

PACKAGE = {"kgfast": "kgfast", "kernels": "kgfast/kernels", "configs": "kgfast/configs"}
LOSS = '''\
"""Squared margin: ``row = sum_i max(0, margin - s + x_i)^2``; the mean is over pairs."""

from dataclasses import dataclass

from torch import Tensor

from kgfast.losses.negatives import NegativesLoss, masked
from kgfast.ops.checks import check_bounded


@dataclass(frozen=True, kw_only=True)
class SquaredLoss(NegativesLoss):
    mean_over = "pairs"
    margin: float = 1.0

    def check(self) -> None:
        check_bounded("margin", self.margin)

    def of_negatives(self, positive: Tensor, negative: Tensor, mask: Tensor | None) -> Tensor:
        return masked((self.margin - positive[..., None] + negative).relu() ** 2, mask).sum(-1)


squared = SquaredLoss.function("squared")
'''
# File by file what stands in it and what is written after that; a file of its own is new.
EDITS = {
    "kgfast/losses/<name>.py": LOSS,
    "kgfast/losses/__init__.py": {
        "from kgfast.losses.sampled import sampled_scores, with_gamma\n": """\
from kgfast.losses.squared import SquaredLoss, squared
""",
        '    "med": MEDLoss,\n': '    "squared": SquaredLoss,\n',
        '    "smoothed_labels",\n': """\
    "squared",
    "SquaredLoss",
""",
    },
    "tests/losses/test_formulas.py": {
        "# Each loss in plain arithmetic.\n": """\


def test_squared():
    positive, negative = random_scores()
    rows = zip(positive.tolist(), negative.tolist(), strict=True)
    terms = [max(0.0, 1.5 - s + x) ** 2 for s, row in rows for x in row]
    got = losses.SquaredLoss(margin=1.5).of_scores(positive, negative)
    assert got.item() == pytest.approx(sum(terms) / len(terms))
"""
    },
}
TRAINING = """
import pytest
from support.small_runs import trainer_of

@pytest.mark.parametrize("negatives", ["shared", "per_row"])
def test_a_run_with_it_learns(backend, negatives):
    data = {"negatives": negatives, "neg_size": 8, "filter_negatives": True}
    trainer = trainer_of(data=data, loss={"name": "squared", "margin": 2.0}, train={"steps": 30})
    before = trainer.evaluate("valid").mr
    trainer.fit()
    assert trainer.evaluate("valid").mr < 0.9 * before
"""


def test_the_steps_are_those_followed_here():
    assert steps("Add a loss") == list(EDITS)
    assert len(EDITS) <= 3


@pytest.mark.timeout(600)
def test_a_loss_that_was_added_trains(tmp_path):
    ignored = shutil.ignore_patterns("csrc")  # files that were compiled stay compiled
    for name, place in PACKAGE.items():
        shutil.copytree(ROOT / name, tmp_path / "lib" / place, ignore=ignored)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for step in steps("Add a loss"):
        name = step.replace("<name>", "squared")
        path = tmp_path / ("lib" if name.startswith("kgfast/") else "") / name
        if step == name:
            write(path, EDITS[step])
        else:
            path.write_text(EDITS[step])
    env = dict(os.environ) | {"PYTHONPATH": f"{tmp_path / 'lib'}{os.pathsep}{tmp_path / 'tests'}"}
    (tmp_path / "tests/losses/test_squared.py").write_text(TRAINING)
    files = [f"tests/losses/test_{name}.py" for name in ("formulas", "functional", "squared")]
    command = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    python(tmp_path, env, *command, "-k", "squared", *files)
