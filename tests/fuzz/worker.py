"""A process that runs cases as it is told to, so that a crash or a hang ends only itself.

``python -m fuzz.worker FD``: commands come as JSON lines on the standard input, events go to a file
descriptor as JSON lines: where a case begins, and how it ended.
"""

import faulthandler
import gc
import json
import os
import sys
import traceback
from typing import Any

import torch

from fuzz.case import Case, Wrong
from fuzz.kinds import KINDS
from support.paths import ROOT

_COLLECT_EVERY = 50


def run_case(kind: str, seed: int, number: int) -> dict[str, Any] | None:
    """Run one case; None, or what was wrong."""
    case = Case(kind, seed, number)
    try:
        KINDS[kind].run(case)
    except Wrong as error:
        return {"what": "wrong", "message": str(error), "drawn": " ".join(case.notes)}
    except (Exception, KeyboardInterrupt) as error:
        last = traceback.format_exception(error)[-3:]
        message = f"{type(error).__name__}: {error} ({''.join(last)[-1500:]})"
        message = message.replace(f"{ROOT}/", "")
        return {"what": "wrong", "message": message, "drawn": " ".join(case.notes)}
    return None


def main() -> None:
    """Serve until the standard input ends."""
    faulthandler.enable()
    torch.set_num_threads(1)
    events = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    print(json.dumps({"ready": True}), file=events)
    for line in sys.stdin:
        order = json.loads(line)
        for number in range(order["first"], order["end"]):
            print(json.dumps({"begins": number}), file=events)
            finding = run_case(order["kind"], order["seed"], number)
            print(json.dumps({"ends": number, "finding": finding}), file=events)
            if number % _COLLECT_EVERY == 0:
                gc.collect()
        print(json.dumps({"done": True}), file=events)


if __name__ == "__main__":
    main()
