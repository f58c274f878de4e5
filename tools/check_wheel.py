"""Check an installed kgfast as a wheel has to be: ``python -P tools/check_wheel.py [WHEEL]``.

The package must import in time, have its kernels, and rank like the reference. With ``--fresh
FILE`` the wheel is installed into a new environment beside torch and checked there. FILE gets the
findings and the seconds of that install (``make check-wheel``).

``--release`` does all that can be done before a release without a network (``make release-check``):
it runs clang-tidy over the C++ sources, builds the sdist, a wheel of the tree and a wheel of the
sdist, whose bytes must be equal, checks their metadata, and installs the wheel.
"""

import argparse
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

MEGABYTES = 2.2
SECONDS = 0.15  # CPU time that the import of kgfast may take, beyond that of torch
# Importing torch leaves a full garbage collection due, 0.08 s over torch's own objects, which would
# fall into whatever import comes next: it counts as torch's.
TIME = "import gc, time; a = time.process_time(); import torch; gc.collect();"
TIME += "b = time.process_time(); import kgfast, kgfast.eval.ranking;"
TIME += "print(b - a, time.process_time() - b)"

CHECKOUT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Check the package of this environment, or a wheel in a new one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument(
        "--fresh", type=Path, metavar="FILE", help="install it; write what is found"
    )
    parser.add_argument("--release", action="store_true", help="build and check a release")
    options = parser.parse_args()
    if options.release:
        return check_release()
    if options.fresh is None:
        return check(options.wheel)
    if options.wheel is None or not options.wheel.is_file():
        parser.error(f"--fresh needs a wheel; got {options.wheel}")
    found = in_a_fresh_environment(options.wheel)
    options.fresh.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def in_a_fresh_environment(wheel: Path) -> dict[str, Any]:
    """Install torch, then the wheel, time the second, and check the package there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        scripts = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        python = scripts / "python"
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "-r", CHECKOUT / "requirements/torch.txt"], check=True)
        began, before = time.perf_counter(), os.times()
        subprocess.run([*install, wheel.resolve()], check=True)
        seconds, after = time.perf_counter() - began, os.times()
        command = [python, "-P", __file__, wheel.resolve()]
        said = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, Any] = json.loads(said)
    cpu = sum(after[2:4]) - sum(before[2:4])  # CPU time of child processes, user and system
    found |= {"command": "make check-wheel", "install_beyond_torch_s": round(seconds, 1)}
    found |= {"install_beyond_torch_cpu_s": round(cpu, 1)}
    return found | {"date": datetime.now(UTC).isoformat(timespec="seconds")}


def check(wheel: Path | None) -> int:
    """Check the package of this environment, and print the findings as JSON."""
    import torch

    import kgfast

    home = Path(kgfast.__file__).resolve()
    if CHECKOUT in home.parents and "site-packages" not in home.parts:
        raise SystemExit(f"this is the checkout and no wheel: {home}")
    info = kgfast.info()
    if info.backend != "cpu":
        raise SystemExit("the extension is missing: " + "; ".join(info.remarks))
    model = kgfast.RotatE.init(500, 3, 32, seed=0)
    triples = torch.randint(500, (64, 3), generator=torch.Generator().manual_seed(0))
    triples[:, 1] %= 3
    ranks = kgfast.rank(model, triples, known=kgfast.KnownTriples(triples))
    with kgfast.use_backend("reference"):
        expected = kgfast.rank(model, triples, known=kgfast.KnownTriples(triples))
    same = [torch.equal(getattr(ranks, it), getattr(expected, it)) for it in ("greater", "equal")]
    if not all(same):
        raise SystemExit("ranks differ from those of the reference")
    of_torch, own = min((_import_times() for _ in range(5)), key=lambda times: times[1] / times[0])
    found = {
        "command": " ".join(["python -P tools/check_wheel.py", *([wheel.name] if wheel else [])]),
        "machine": platform.machine(),
        "versions": {
            "kgfast": kgfast.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "isa": info.isa,
        "import_torch_cpu_s": round(of_torch, 3),
        "import_beyond_torch_cpu_s": round(own, 3),
    }
    if wheel:
        found["wheel_mb"] = round(wheel.stat().st_size / 1e6, 2)
        if found["wheel_mb"] > MEGABYTES:
            raise SystemExit(f"the wheel has {found['wheel_mb']} MB, of {MEGABYTES} allowed")
    print(json.dumps(found))
    if own > SECONDS:
        raise SystemExit(f"import takes {own:.3f} s beyond torch, of {SECONDS} allowed")
    return 0


def check_release() -> int:
    """Build what is published, the wheel twice, and check all of it; stop at the first fault."""
    began = time.perf_counter()
    check_sources()
    date = run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as folder:
        tree = clone(Path(folder, "tree"))
        sdist = built("sdist", tree, Path(folder, "sdist"), date)
        shutil.unpack_archive(sdist, Path(folder, "unpacked"))
        (unpacked,) = Path(folder, "unpacked").iterdir()
        wheels = []
        for source in (tree, unpacked):
            wheels.append(built("wheel", source, Path(folder, f"{source.name}-wheel"), date))
            say(f"a wheel of {'the sdist' if source is unpacked else 'the tree'}")
        if wheels[0].read_bytes() != wheels[1].read_bytes():
            raise SystemExit(f"two builds differ: {wheels}")
        say(f"{wheels[0].name}: two builds are byte-equal")
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheels[0])
        say("metadata and README are in order (twine check --strict)")
        check_content(wheels[0])
        said = checked_beside_ours(wheels[0], Path(folder, "venv"))
        say(f"the wheel, installed into a fresh environment: {said}")
    say("all checks of a release passed")
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def run(*command: object, **options: Any) -> str:
    """Run a command in the checkout and return its output; stop with its output if it fails."""
    words = [str(it) for it in command]
    done = subprocess.run(
        words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=CHECKOUT, **options
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}:\n{done.stdout[-4000:]}")
    return str(done.stdout)


def clone(folder: Path) -> Path:
    """Copy the files that git knows, as they are now."""
    for name in run("git", "ls-files", "-z").split("\0")[:-1]:
        if (CHECKOUT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CHECKOUT / name, target)
    return folder


def built(what: str, source: Path, out: Path, date: str) -> Path:
    """Build an sdist or a wheel with the packages at hand."""
    asked = {"SOURCE_DATE_EPOCH": date, "KGFAST_REQUIRE_EXTENSION": "1"}
    build = [sys.executable, "-m", "build", f"--{what}", "--no-isolation", "--outdir", out, source]
    run(*build, env={**os.environ, **asked})
    (made,) = out.iterdir()
    return made


def check_sources() -> None:
    """Run clang-tidy (``.clang-tidy``) over the C++ sources, each with the flags of its build."""
    from pybind11 import get_include

    with mock.patch("setuptools.setup"):
        build = runpy.run_path(str(CHECKOUT / "setup.py"))
    flags = ["-std=c++17", f"-I{build['SOURCES']}"]
    flags += [f"-isystem{path}" for path in (sysconfig.get_path("include"), get_include())]
    of_file = build["X86_FLAGS"] if platform.machine() in ("x86_64", "AMD64") else {}

    def check_one(source: Path) -> None:
        tidy = Path(sys.executable).with_name("clang-tidy")
        run(tidy, "--quiet", source, "--", *flags, *of_file.get(source.name, []))

    sources = sorted((CHECKOUT / build["SOURCES"]).glob("*/*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(check_one, sources))
    say(f"clang-tidy finds nothing in {len(sources)} sources and their headers")


def check_content(wheel: Path) -> None:
    """Check what a wheel holds beside the code: licences, types, extension."""
    names = zipfile.ZipFile(wheel).namelist()
    for ending in (r"/licenses/LICENSE", r"kgfast/py\.typed", r"/_cpu\..*(so|pyd)"):
        if not any(re.search(f"{ending}$", name) for name in names):
            raise SystemExit(f"{wheel.name} lacks {ending}")


def checked_beside_ours(wheel: Path, home: Path) -> str:
    """Install a wheel beside the packages of this environment, without a network, and check it."""
    import torch

    venv.create(home, with_pip=False)
    python = home / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Paths of a .pth file add no editable installs.
    (site / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    run(*pip, "--no-deps", wheel)
    run(python.with_name("kgfast"), "--version")
    return run(python, "-P", __file__, wheel).strip()


def _import_times() -> tuple[float, float]:
    """CPU seconds that a new process needs for torch, and then for kgfast."""
    given = {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-P", "-c", TIME]
    run = subprocess.run(command, capture_output=True, check=True, env=given)
    of_torch, own = map(float, run.stdout.split())
    return of_torch, own


if __name__ == "__main__":
    sys.exit(main())
