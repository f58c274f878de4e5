"""kgfast.info(): what kgfast runs on, and what is missing."""

import json

import pytest
import torch

import kgfast
from kgfast import environment
from kgfast.kernels import cpu
from kgfast.ops import dispatch
from support.commands import run
from support.paths import BENCHMARKS, ROOT

RESULTS = BENCHMARKS / "results"


def test_what_is_here():
    found = kgfast.info()
    assert found.kgfast == kgfast.__version__
    assert found.torch == torch.__version__
    assert found.threads == torch.get_num_threads()
    assert found.devices[0] == f"cpu {environment.processor()}"
    assert len(found.devices) == 1 + torch.cuda.device_count()
    if cpu.is_available():
        assert (found.backend, found.isa) == (dispatch.backend_for(torch.device("cpu")), cpu.isa())
        assert not found.remarks
    json.dumps(vars(found))


def test_without_the_extension(monkeypatch):
    """info() and the first call say the same line."""
    monkeypatch.setattr(cpu, "extension", None)
    dispatch._warn_once.cache_clear()
    monkeypatch.delenv("KGFAST_BACKEND", raising=False)
    found = kgfast.info()
    assert (found.backend, found.isa, found.isas) == ("reference", None, ())
    (remark,) = found.remarks
    assert repr(found).endswith(remark)
    assert "the C++ extension is not built" in remark
    assert "install a C++ compiler" in remark
    assert f"{dispatch.TIMES_SLOWER} times slower" in remark
    with pytest.warns(RuntimeWarning) as caught:
        kgfast.rank(kgfast.RotatE.init(20, 2, 4, seed=0), [(0, 1, 2)])
    assert [str(it.message) for it in caught] == [f"kgfast: {remark}"]
    kgfast.rank(kgfast.RotatE.init(20, 2, 4, seed=0), [(0, 1, 2)])  # a warning is an error here


def test_a_wrong_instruction_set_is_a_remark(monkeypatch):
    if not cpu.is_available():
        pytest.skip("the extension is not built")
    monkeypatch.setenv("KGFAST_CPU_ISA", "avx1024")
    assert "KGFAST_CPU_ISA must be one of" in kgfast.info().remarks[0]


def test_how_much_slower_comes_from_a_file():
    rows = json.loads((RESULTS / "cpu-reference-speed.json").read_text())["rows"]
    assert all(row["equal"] for row in rows)
    times = [round(row["times_cpu"]) for row in rows]
    assert f"{min(times)} to {max(times)}" == dispatch.TIMES_SLOWER
    assert f"{dispatch.TIMES_SLOWER} times as long" in (ROOT / "docs/index.md").read_text()


def test_on_the_command_line():
    shown = run("info")
    assert shown.exit_code == 0
    assert shown.stdout.strip() == repr(kgfast.info())
    assert run("--version").stdout == f"kgfast {kgfast.__version__}\n"
