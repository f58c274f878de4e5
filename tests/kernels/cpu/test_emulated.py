"""The package on emulated processors that lack instructions of this machine."""

import json
import platform
import shutil
import subprocess
import sys

import pytest

from kgfast.kernels import cpu

QEMU = "qemu-x86_64-static"
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86 programs"),
    pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"{QEMU} is not installed"),
    pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built"),
]
PROGRAM = """
import json, torch, kgfast
graph = kgfast.datasets.synthetic(60, 3, 200, 20, 20)
integers, numbers = {}, {}
for name in ("RotatE", "TransE", "DistMult"):
    model = getattr(kgfast, name).init(60, 3, 19, seed=0)
    ranks = kgfast.rank(model, graph.test, known=graph.known())
    best = kgfast.topk(model, heads=[0, 7], relations=2, k=10, index=kgfast.Index(model))
    integers[name] = [*ranks.greater.flatten().tolist(), *best.ids.flatten().tolist()]
    optimizer = kgfast.RowAdam(model.parameters(), lr=0.01)
    for loss in (kgfast.losses.nssa(model, graph.train.hrt[:32], torch.arange(9)),
                 kgfast.losses.bce(model, graph.train.hrt[:32])):
        loss.backward()
    optimizer.step()
    numbers[name] = torch.cat([it.detach().flatten() for it in model.parameters()]).tolist()
print(json.dumps([kgfast.info().isa, integers, numbers]))
"""

# All that optimizers ask of dynamo, whose import takes as long as torch's.
EMULATED = """
import sys, torch, types
sys.modules["torch._dynamo"] = types.SimpleNamespace(disable=lambda call, *_, **__: call)
torch.set_num_threads(1)
"""


def emulated(processor):
    """Run the program with a Python of its own."""
    command = [QEMU, "-cpu", processor, sys.executable, "-c", EMULATED + PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr[-2000:]}"
    return json.loads(ended.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("processor", "isa"),
    [("Nehalem", "baseline"), pytest.param("Haswell-noTSX", "avx2", marks=pytest.mark.slow)],
)
def test_ranks_answers_and_a_step_are_those_of_this_machine(processor, isa, capsys):
    """Integers are equal; numbers are close: roots of AVX2 have other errors on each processor."""
    best, integers, numbers = emulated(processor)
    assert best == isa
    exec(PROGRAM, {})
    _, expected, close = json.loads(capsys.readouterr().out)
    assert integers == expected
    for name, values in numbers.items():
        assert values == pytest.approx(close[name], abs=1e-5 * max(map(abs, close[name])))
