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
NATIVE |= {f"{of}_{name}": NATIVE[name] for of in ("bytes", "words") for name in ("avx2", "avx512")}


BYTES = TESTS / "support" / "bytes_check.cpp"
HASH = "7d79f7329ea676ab\n"  # hash of all that bytes_check.cpp packs and adds up


def differences(tmp_path, name, compiler, *, flags=(), emulator=(), source=SOURCE):
    """Return the lines that the check of an instruction set prints."""
    for program in (compiler, *emulator):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    program = str(tmp_path / name)
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", *flags]
    command += [f'-DHEADER="simd/{name}.h"', f"-I{ROOT / 'kernels/cpu/csrc'}"]
    command += ["-DCHECKS_BYTES"] * name.startswith(("bytes_", "words_"))
    command += ["-DCHECKS_WORDS"] * name.startswith("words_")
    subprocess.run([*command, str(source), "-o", program], check=True)
    return subprocess.run([*emulator, program], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("neon", []),
        ("bytes_neon", []),
        ("bytes_neon", ["-march=armv8.2-a+dotprod"]),
        ("words_neon", []),
    ],
)
def test_neon(tmp_path, name, flags):
    compiler, emulator = "aarch64-linux-gnu-g++", ["qemu-aarch64-static"]
    said = differences(tmp_path, name, compiler, flags=["-static", *flags], emulator=emulator)
    assert said == "0 differ\n"


def test_neon_packs_and_adds_bytes_as_x86_does(tmp_path):
    emulator = ["qemu-aarch64-static"]
    said = differences(
        tmp_path,
        "bytes_neon",
        "aarch64-linux-gnu-g++",
        flags=["-static"],
        emulator=emulator,
        source=BYTES,
    )
    assert said == HASH


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bytes_avx2", "bytes_avx512"])
def test_this_machines_bytes(tmp_path, name):
    isa = name.removeprefix("bytes_")
    if platform.machine() != "x86_64" or isa not in cpu.available_isas():
        pytest.skip(f"this machine has no {isa}")
    assert differences(tmp_path, name, "g++", flags=NATIVE[name], source=BYTES) == HASH


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
def test_this_machines(tmp_path, name):
    isa = name.rpartition("_")[2]
    if platform.machine() != "x86_64" or isa not in (*cpu.available_isas(), "baseline"):
        pytest.skip(f"this machine has no {isa}")
    assert differences(tmp_path, name, "g++", flags=NATIVE[name]) == "0 differ\n"


@pytest.mark.slow
def test_products_of_bytes_and_words_by_vnni(tmp_path):
    said = Path("/proc/cpuinfo")
    if not said.exists() or "avx512_vnni" not in said.read_text():
        pytest.skip("this machine has no AVX512-VNNI")
    flags = [*NATIVE["avx512"], "-mavx512vnni"]
    assert differences(tmp_path, "words_avx512", "g++", flags=flags) == "0 differ\n"


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
