"""The rule that tensors name their dtype and device: what it finds, and that the house keeps it."""

import subprocess
import sys

import check_allocations
import pytest

from support.paths import ROOT

TOOL = ROOT / "tools" / "check_allocations.py"


BOTH = 'dtype=torch.float32, device="cpu"'
OFFENCES = {
    "import torch\n\nx = torch.empty(3)": (3, "torch.empty must name dtype and device"),
    "import torch as t\nx = t.arange(3, device='cpu')": (2, "torch.arange must name dtype"),
    "import torch\nx = torch.tensor([1], dtype=torch.int64)": (2, "torch.tensor must name device"),
    "import torch\nx = torch.rand(\n    3\n)": (2, "torch.rand must name dtype and device"),
    "import torch\nx = torch.zeros(3, **like)": (2, "torch.zeros must name dtype and device"),
    "import torch\nmake = torch.ones\nx = make(3)": (2, "torch.ones must name dtype and device"),
    "from torch import eye as identity\nx = identity(3)": (2, "torch.eye must name dtype"),
    "import torch\nx = torch.as_tensor([1])": (2, "torch.as_tensor must name device"),
    "import torch\nf = lambda: torch.linspace(0, 1, 3)": (2, "torch.linspace must name"),
}
ALLOWED = (
    f"import torch\nx = torch.full((3,), 1.0, {BOTH})",
    f"from torch import zeros\nx = zeros(3, {BOTH})",
    "import torch\nx = torch.zeros_like(y)\nz = y.new_empty(3)",
    "import numpy as np\nimport torch\nx = np.zeros(3)",
    "import torch\nx: torch.Tensor = torch.from_numpy(y)",
    "import triton.language as tl\nx = tl.zeros((3,), tl.float32)",
    'import torch\n"""x = torch.zeros(3)"""',
)


@pytest.mark.parametrize("source", OFFENCES)
def test_an_offence_is_named_with_its_line(source):
    line, message = OFFENCES[source]
    found = check_allocations.findings(source, "some/file.py")
    assert [it.line for it in found] == [line]
    assert str(found[0]).startswith(f"some/file.py:{line}: ")
    assert message in found[0].message


@pytest.mark.parametrize("source", ALLOWED)
def test_what_names_both_passes(source):
    assert check_allocations.findings(source, "file.py") == []


def test_every_offence_of_a_file_is_found():
    source = "import torch\nx = torch.zeros(1)\ny = torch.ones(1) + torch.ones(2)"
    assert [it.line for it in check_allocations.findings(source, "file.py")] == [2, 3, 3]


def test_the_house_keeps_the_rule_and_a_file_that_does_not_fails(tmp_path):
    def said(*words):
        done = subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True)
        return done.returncode, done.stdout

    assert said() == (0, "")
    path = tmp_path / "bad.py"
    path.write_text("import torch\nx = torch.zeros(3)\n")
    code, line = said(path)
    assert (code, line.startswith(f"{path}:2: torch.zeros must name dtype and device")) == (1, True)
