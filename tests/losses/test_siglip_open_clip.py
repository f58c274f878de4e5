"""open_clip's own SigLipLoss and ours: the same losses and gradients, in one process and several.

Runs where ``KGFAST_OPEN_CLIP`` names a Python that has open_clip_torch, of an environment of its
own, or where this one has it.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

from support import siglip
from support.gloo import run_together, values
from support.paths import TESTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COUNT, WIDTH = 12, 6  # images of all processes
RINGS = [(2, "bidir"), (2, "gather"), (4, "bidir"), (4, "shift"), (4, "reduce"), (4, "gather")]
WEIGHTS = [1.0, 0.5, 2.0, 3.0]  # gradients of the losses of processes


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Results of open_clip, by the number of processes and the way that texts go round."""
    python = os.environ.get("KGFAST_OPEN_CLIP", sys.executable)
    imported = subprocess.run([python, "-c", "import open_clip"], capture_output=True, text=True)
    if imported.returncode:
        said = (imported.stderr.splitlines() or ["it ended without a word"])[-1]
        pytest.skip(f"no open_clip_torch (KGFAST_OPEN_CLIP names a Python that has it): {said}")
    folder = tmp_path_factory.mktemp("open_clip")
    image, text = siglip.pairs(COUNT, WIDTH)
    numbers = {"scale": siglip.SCALE, "bias": siglip.BIAS, "weights": WEIGHTS, "rings": RINGS}
    rows = {"image": image.tolist(), "text": text.tolist()}
    (folder / "given.json").write_text(json.dumps(rows | numbers))
    script = TESTS / "support/open_clip_losses.py"
    done = subprocess.run([python, script, folder], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, torch.tensor(other), rtol=1e-5, atol=1e-6)


def test_one_process(theirs):
    given = *siglip.pairs(COUNT, WIDTH), siglip.SCALE, siglip.BIAS
    assert_same(siglip.graded(siglip.by_module, *given), theirs["1"][0])


@pytest.mark.parametrize(("world", "how"), RINGS)
def test_several_processes(theirs, world, how):
    given = siglip.of_process, world, COUNT // world, WIDTH, WEIGHTS[:world], "module"
    for found, expected in zip(
        values(run_together(world, *given)), theirs[f"{world} {how}"], strict=True
    ):
        assert_same(found, expected)
