"""Holds an installed kgfast to what a wheel promises: ``python -P tools/check_wheel.py [WHEEL]``.

It imports the package in time, its kernels are there, and its ranks are those of the reference.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MEGABYTES = 5.0
OF_TORCH = 0.25  # of the CPU time that importing torch takes in the same process
TIME = "import time; a = time.process_time(); import torch; b = time.process_time();"
TIME += "import kgfast, kgfast.eval.ranking; print(b - a, time.process_time() - b)"


def main(arguments: Sequence[str]) -> int:
    """Check, and print what was found as JSON."""
    import torch

    import kgfast

    checkout = Path(__file__).resolve().parents[1]
    home = Path(kgfast.__file__).resolve()
    if checkout in home.parents and "site-packages" not in home.parts:
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
    names = [Path(it).name for it in arguments]
    found = {
        "command": " ".join(["python -P tools/check_wheel.py", *names]),
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
    if arguments:
        found["wheel_mb"] = round(Path(arguments[0]).stat().st_size / 1e6, 2)
        if found["wheel_mb"] > MEGABYTES:
            raise SystemExit(f"the wheel has {found['wheel_mb']} MB, of {MEGABYTES} allowed")
    print(json.dumps(found))
    if own > OF_TORCH * of_torch:
        raise SystemExit(f"import takes {own:.3f} s beyond torch's {of_torch:.3f} s")
    return 0


def _import_times() -> tuple[float, float]:
    """CPU seconds that a new process needs for torch, and then for kgfast."""
    run = subprocess.run([sys.executable, "-P", "-c", TIME], capture_output=True, check=True)
    of_torch, own = map(float, run.stdout.split())
    return of_torch, own


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
