"""Each instruction set's vectors against plain numbers, and the objects of a build."""

import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from kgfast.kernels import cpu
from support.paths import ROOT, TESTS

SOURCE = TESTS / "support" / "simd_check.cpp"
NATIVE = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
}
NATIVE |= {f"bytes_{name}": NATIVE[name] for name in ("avx2", "avx512")}


def differences(tmp_path, name, compiler, *flags, emulator=()):
    """Return the lines that the check of an instruction set prints."""
    for program in (compiler, *emulator):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    program = str(tmp_path / name)
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", *flags]
    command += [f'-DHEADER="simd/{name}.h"', f"-I{ROOT / 'kernels/cpu/csrc'}"]
    command += ["-DCHECKS_BYTES"] * name.startswith("bytes_")
    subprocess.run([*command, str(SOURCE), "-o", program], check=True)
    return subprocess.run([*emulator, program], capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", ["neon", "bytes_neon", "baseline"])
def test_of_arm(tmp_path, name):
    compiler, emulator = "aarch64-linux-gnu-g++", ["qemu-aarch64-static"]
    said = differences(tmp_path, name, compiler, "-static", emulator=emulator)
    assert said == "0 differ\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
def test_this_machines(tmp_path, name):
    isa = name.removeprefix("bytes_")
    if platform.machine() != "x86_64" or isa not in cpu.available_isas():
        pytest.skip(f"this machine has no {isa}")
    vnni = ["-mavx512vnni"] * (name == "bytes_avx512" and "avx512_vnni" in flags())
    assert differences(tmp_path, name, "g++", *NATIVE[name], *vnni) == "0 differ\n"


def flags() -> set[str]:
    """Return the operating system's names of the processor's instructions."""
    text = Path("/proc/cpuinfo").read_text()
    return set(text.partition("flags")[2].partition("\n")[0].split())


def test_the_probe_agrees_with_the_operating_system():
    if platform.machine() != "x86_64" or sys.platform != "linux" or not cpu.is_available():
        pytest.skip("no list of an x86 machine's flags here")
    needed = {
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"},
        "avx2": {"avx2", "fma", "f16c"},
    }
    found = [name for name in cpu.available_isas() if name != "baseline"]
    assert found == [name for name, flag in needed.items() if flag <= flags()]


# Instructions that older processors run too: tzcnt as bsf, equal for numbers other than 0. And one
# that only a processor with AVX is asked for.
OLDER = {"tzcnt"}
PROBES = {"machine": {"xgetbv"}}


@cache
def objects():
    """Map names of sources to the objects of this tree's extension, where setup.py keeps them."""
    if sys.platform != "linux" or shutil.which("objdump") is None:
        pytest.skip("no objects that binutils read")
    if cpu.extension is None or Path(cpu.extension.__file__).parent != ROOT / "kernels":
        pytest.skip("the extension is not built, or not in this tree")
    sources = sorted(ROOT.glob("kernels/cpu/csrc/*/*.cpp"))
    found = {it.stem: ROOT / "build/objects" / it.relative_to(ROOT) for it in sources}
    missing = [name for name, it in found.items() if not it.with_suffix(".o").exists()]
    assert missing == [], "build again: `.venv/bin/python setup.py build_ext --inplace --force`"
    return {name: it.with_suffix(".o") for name, it in found.items()}


def printed(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options).stdout


@cache
def symbols(path):
    """Map the symbols that an object shares with others to their types, as nm gives them."""
    lines = [it.split() for it in printed("nm", "--format=posix", path).splitlines()]
    shared = {name: kind for name, kind, *_ in lines if kind.isupper() or kind in "uvwi"}
    # The address of C++'s own handler of exceptions: gcc shares this word among all objects.
    return {name: kind for name, kind in shared.items() if name != "DW.ref.__gxx_personality_v0"}


def newer_instructions(path):
    """Return the instructions that the first 64-bit x86 processors lack."""
    lines = printed("objdump", "-d", "--no-show-raw-insn", path).splitlines()
    code = {it.partition("\t")[2].partition("#")[0] for it in lines}
    text = ".arch generic64\n" + "\n".join(sorted(code)) + "\n"
    command = ["as", "-o", "/dev/null", "-"]  # other errors are about addresses in the text
    said = subprocess.run(command, input=text, capture_output=True, text=True).stderr
    return set(re.findall("`(\\S+)' is not supported on `generic64'", said))


def test_an_object_of_an_instruction_set_shares_tables_alone():
    """No function, no data that are made when the extension is loaded, nothing the linker merges.

    A processor would run any of these before machine.cpp, which alone reads the tables, has asked
    it for its instructions.
    """
    tables = set()
    for name, path in objects().items():
        if not name.startswith("isa_"):
            continue
        exported = {it: kind for it, kind in symbols(path).items() if kind not in "Uw"}
        assert set(exported.values()) <= {"D", "R"}, f"{name} exports {exported}"
        assert len(exported) == 1
        assert not re.search("_array|ctors", printed("objdump", "-h", path)), name
        tables |= set(exported)
    readers = {name for name, path in objects().items() if tables & set(symbols(path))}
    assert {name for name in readers if not name.startswith("isa_")} == {"machine"}


def test_other_objects_have_the_instructions_of_every_processor():
    if platform.machine() != "x86_64":
        pytest.skip("every 64-bit ARM has the instructions of its kernels")
    found = {
        name: newer_instructions(path) - OLDER - PROBES.get(name, set())
        for name, path in objects().items()
        if not name.startswith("isa_") or name == "isa_baseline"
    }
    assert {name: it for name, it in found.items() if it} == {}
    assert "vmovups" in newer_instructions(objects()["isa_avx2"])
