"""Run kgfast with its lowest, its locked and its newest dependencies: ``make versions``.

uv makes three environments in ``build/versions``, each with a wheel of this tree. *Lowest* has all
bounds of pyproject.toml as written, *locked* the lists of ``requirements/``, *newest* the newest
releases. README's code, the first commands of a tutorial, and tests run in each environment.
``benchmarks/results/versions.json`` gets the results, with the versions that were installed.

torch of PyPI brings CUDA, some 10 GB. ``UV_TORCH_BACKEND=cpu`` takes torch from its own index.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from lib.machine import machine
from lib.results import RESULTS, ROOT, read_rows
from support.snippets import snippets

HOME = ROOT / "build" / "versions"
FILE = RESULTS / "versions.json"
TUTORIAL = ROOT / "docs" / "tutorials" / "train_and_publish.md"
NAMES = ("lowest", "locked", "newest")
EXTRAS = ("frames", "data", "report", "search", "serve")  # for users
TOOLS = ("triton", "pykeen", "pytest")  # the tests' own, whose versions are written too
TESTS = {
    "tests/ops": ["tests/ops"],
    "tests/kernels, no compiled code": ["tests/kernels", "--ignore-glob=*/test_compile_*"],
    "tests/adapters/test_pykeen.py": ["tests/adapters/test_pykeen.py"],
    "frames, search, server": ["tests/test_frames.py", "tests/extras/search", "tests/extras/serve"],
}


def main() -> int:
    """Make each environment, run each part, and write the results; 1 if something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("wheel", type=Path, help="a wheel of this tree")
    parser.add_argument("--only", choices=NAMES, help="one environment; others keep their results")
    options = parser.parse_args()
    rows = {row["environment"]: row for row in read_rows(FILE)}
    chosen = [options.only] if options.only else NAMES
    for name in chosen:
        install(name, options.wheel.resolve())
        rows[name] = checked(name)
        ordered = [rows[it] for it in NAMES if it in rows]
        FILE.write_text(json.dumps({"rows": ordered}, indent=1) + "\n")
    return int(any("failed" in said for name in chosen for said in rows[name]["parts"].values()))


def bounds(*extras: str) -> dict[str, str]:
    """Return the lowest version that pyproject.toml allows of each dependency, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    lines += [line for extra in extras for line in project["optional-dependencies"][extra]]
    found: dict[str, str] = {}
    for name, bound in (line.split(";")[0].split(">=") for line in lines):
        if found.setdefault(name, bound) != bound:
            raise ValueError(f"pyproject.toml has two bounds of {name}: {found[name]} and {bound}")
    return found


def install(name: str, wheel: Path) -> None:
    """Make an environment with the wheel and its dependencies."""
    print(f"{name}: install", flush=True)
    uv("venv", "--quiet", "--clear", "--python", sys.executable, HOME / name)
    pip: list[str | Path] = ["pip", "install", "--quiet", "--python", HOME / name]
    if name == "lowest":
        uv(*pip, *(f"{it}=={bound}" for it, bound in bounds(*EXTRAS, "test").items()))
    elif name == "locked":
        lists = [f"-r{ROOT}/requirements/{it}.txt" for it in ("package", "develop")]
        uv(*pip, "--no-deps", "--require-hashes", *lists)
        uv(*pip, "-r", ROOT / "requirements/torch.txt")
    else:
        extras = [f"--extra={it}" for it in (*EXTRAS, "test")]
        uv(*pip, "--upgrade", *extras, "-r", ROOT / "pyproject.toml")
    uv(*pip, "--no-deps", wheel)


def checked(name: str) -> dict[str, Any]:
    """Run all parts in an environment; return its row of the results file."""
    home, parts = HOME / name, {}
    with tempfile.TemporaryDirectory() as folder:
        of_users = {"README's code": [readme()], "commands of the tutorial": tutorial(folder)}
        for part, commands in of_users.items():
            parts[part] = run(name, part, commands, folder)
    for part, words in TESTS.items():
        pytest = ["pytest", "-q", "-n2", "--dist=worksteal", "-m", "not slow", *words]
        parts[part] = run(name, part, [pytest], ROOT)
    found = json.loads(uv("pip", "list", "--quiet", "--format=json", "--python", home))
    installed = {it["name"]: it["version"] for it in found}
    shown = ["kgfast", *bounds(*EXTRAS), *TOOLS]
    return {
        "environment": name,
        "command": "make versions",
        "machine": machine("cpu"),
        "versions": {"python": platform.python_version()} | {it: installed[it] for it in shown},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "parts": parts,
    }


def readme() -> list[str]:
    """Return the command that runs README's first lines of Python."""
    page = (ROOT / "README.md").read_text()
    return ["python", "-c", next(it.code for it in snippets(page) if it.language == "python")]


def tutorial(folder: str) -> list[list[str]]:
    """Return the commands of the tutorial but the server, and write the config."""
    found: dict[str, list[str]] = {}
    for it in snippets(TUTORIAL.read_text()):
        found.setdefault(it.language, []).append(it.code)
    Path(folder, "people.yaml").write_text(found["yaml"][0])
    lines = [line.split() for code in found["sh"] for line in code.splitlines()]
    return [["python", "-c", found["python"][0]], *(it for it in lines if it[1] != "serve")]


def run(name: str, part: str, commands: list[list[str]], folder: str | Path) -> str:
    """Run scripts of an environment; return "passed" or "failed", with the counts of pytest."""
    began, output, code = time.perf_counter(), "", 0
    for script, *words in commands:
        command = [HOME / name / "bin" / script, *words]
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        output, code = output + done.stdout, code or done.returncode
    said = "failed" if code else "passed"
    if counts := re.findall(
        r"^(?:=+ )?(\d+ \w+.*?)(?:, \d+ warnings?)? in [\d.]+s", output, re.MULTILINE
    ):
        said = counts[-1] if "failed" in counts[-1] or not code else f"failed: {counts[-1]}"
    if code:
        print(output[-20_000:])
    print(f"{name}: {part}: {said}, {time.perf_counter() - began:.0f} s", flush=True)
    return said


def uv(*words: str | Path) -> str:
    """Run uv, which ``make versions`` installs beside this Python; return the output."""
    command = [Path(sys.executable).with_name("uv"), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
