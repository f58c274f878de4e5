"""Counts of kernels, operators of torch and waits in a step of training; needs no GPU.

    python benchmarks/step_counts.py      seconds; writes results/static-step-counts.json

The trainer's code runs on tensors without values (tests/support/steps.py).
"""

import sys

from lib.columns import STEP_COUNTS
from lib.machine import facts
from lib.results import RESULTS, ROOT, write_json
from lib.tables import plain

sys.path.append(str(ROOT / "tests"))
from support import steps


def main() -> None:
    """Count the steps of each mode, print, write."""
    about = facts("cpu", "triton")
    rows = [{**row, **about} for row in steps.rows()]
    print(*plain("A step of training (static; nothing was run)", STEP_COUNTS, rows), sep="\n")
    what = "counted on tensors without values, not on a GPU"
    write_json(RESULTS / "static-step-counts.json", {"what": what, "rows": rows})


if __name__ == "__main__":
    main()
