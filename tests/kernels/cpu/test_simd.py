"""Each instruction set's vectors against plain C++; ARM's by a cross compiler, emulated."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support.paths import ROOT, TESTS

SOURCE = TESTS / "support" / "simd_check.cpp"
NATIVE = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
}


def differences(tmp_path, name, compiler, *, flags=(), emulator=()):
    """Return the lines that the check of an instruction set prints."""
    for program in (compiler, *emulator):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    program = str(tmp_path / name)
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", *flags]
    command += [f'-DHEADER="simd/{name}.h"', f"-I{ROOT / 'kernels/cpu/csrc'}"]
    subprocess.run([*command, str(SOURCE), "-o", program], check=True)
    return subprocess.run([*emulator, program], capture_output=True, text=True).stdout


def test_neon(tmp_path):
    said = differences(
        tmp_path,
        "neon",
        "aarch64-linux-gnu-g++",
        flags=["-static"],
        emulator=["qemu-aarch64-static"],
    )
    assert said == "0 differ\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
def test_this_machines(tmp_path, name):
    if platform.machine() != "x86_64" or name not in (*cpu.available_isas(), "baseline"):
        pytest.skip(f"this machine has no {name}")
    assert differences(tmp_path, name, "g++", flags=NATIVE[name]) == "0 differ\n"


def test_the_probe_agrees_with_the_operating_system():
    said = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not said.exists() or not cpu.is_available():
        pytest.skip("no list of an x86 machine's flags here")
    flags = set(said.read_text().partition("flags")[2].partition("\n")[0].split())
    needed = {
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"},
        "avx2": {"avx2", "fma", "f16c"},
    }
    found = [name for name in cpu.available_isas() if name != "baseline"]
    assert found == [name for name, flag in needed.items() if flag <= flags]
    if "fp16" in tiers.available(cpu.isa()):  # a compiler may lack what the machine has
        assert "avx512_fp16" in flags
