"""Check an installed kgfast as a wheel has to be: ``python -P tools/check_wheel.py [WHEEL]``.

The package must import in time, have its kernels, and rank like the reference. With ``--fresh
FILE`` the wheel is installed into a new environment beside torch and checked there. FILE gets the
findings and the seconds of that install (``make check-wheel``).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MEGABYTES = 5.0
OF_TORCH = 0.25  # import time allowed, as a share of the CPU time that importing torch takes
TIME = "import time; a = time.process_time(); import torch; b = time.process_time();"
TIME += "import kgfast, kgfast.eval.ranking; print(b - a, time.process_time() - b)"


CHECKOUT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Check the package of this environment, or a wheel in a new one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument(
        "--fresh", type=Path, metavar="FILE", help="install it; write what is found"
    )
    options = parser.parse_args()
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
        install = [python, "-m", "pip", "install", "--quiet", "-c", CHECKOUT / "constraints.txt"]
        subprocess.run([*install, "torch"], check=True)
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
    if own > OF_TORCH * of_torch:
        raise SystemExit(f"import takes {own:.3f} s beyond torch's {of_torch:.3f} s")
    return 0


def _import_times() -> tuple[float, float]:
    """Return the CPU seconds that a new process needs to import torch, and then kgfast."""
    run = subprocess.run([sys.executable, "-P", "-c", TIME], capture_output=True, check=True)
    of_torch, own = map(float, run.stdout.split())
    return of_torch, own


if __name__ == "__main__":
    sys.exit(main())
