"""``python -m fuzz``: run the attack, or one case of it.

python -m fuzz --cases 2000                      so many cases, 10,000 by default
python -m fuzz --minutes 10 --seed 7
python -m fuzz --case 'ops.topk:12' --seed 7     one case alone, in this process
python -m fuzz --sanitize address                with the extension under a sanitizer
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuzz import sanitizers
from fuzz.driver import Attack, Tally
from fuzz.kinds import KINDS
from fuzz.worker import run_case

sys.path.insert(0, str(sanitizers.ROOT / "benchmarks"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attack; the exit code is 1 where something was found."""
    options = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    if options.case and not options.sanitize:
        return _run_alone(options.case, seed)
    print(f"seed {seed}", flush=True)
    attack = _attack(options, seed)
    begun = time.monotonic()
    attack.run()
    seconds = time.monotonic() - begun
    _print(attack.tallies, seconds)
    if options.json is not None:
        _write(options.json, attack, options.sanitize, seconds)
    return int(any(it.findings for it in attack.tallies.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--cases", type=int, help="of all kinds together")
    parser.add_argument("--minutes", type=float, help="stop handing out cases after these")
    parser.add_argument("--kinds", help="names or groups of kinds, with commas between")
    parser.add_argument("--case", help="KIND:NUMBER, alone")
    parser.add_argument("--sanitize", choices=sanitizers.NAMES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write counts and findings")
    return parser


def _run_alone(case: str, seed: int) -> int:
    kind, _, number = case.rpartition(":")
    finding = run_case(kind, seed, int(number))
    print(f"{case}, seed {seed}: {'as it should be' if finding is None else 'not as it should be'}")
    for name, text in (finding or {}).items():
        print(f"{name}: {text}")
    return int(finding is not None)


def _attack(options: argparse.Namespace, seed: int) -> Attack:
    deadline = float("inf")
    if options.minutes is not None:
        deadline = time.monotonic() + 60 * options.minutes
    total = options.cases or (10**6 if options.minutes else 10_000)
    names = [name for name, kind in KINDS.items() if _is_wanted(options, kind)]
    for name in [name for name in names if KINDS[name].lacks()]:
        print(f"{name} is left out: {KINDS[name].lacks()}")
        names.remove(name)
    shares = {name: KINDS[name].share for name in names}
    scale = total / sum(shares.values())
    counts = {name: max(1, round(scale * share)) for name, share in shares.items()}
    given: dict[str, Any] = {}
    if options.sanitize:
        built = sanitizers.build(options.sanitize)
        given["environment"] = sanitizers.environment(options.sanitize, built)
        given["launcher"] = sanitizers.launcher(options.sanitize)
        given["patience"] = sanitizers.PATIENCE
        given["options"] = f" SANITIZE={options.sanitize}"
    if options.case:
        kind, _, number = options.case.rpartition(":")
        counts, given["first"] = {kind: int(number) + 1}, int(number)
    return Attack(
        seed, counts, lambda text: print(text, flush=True), options.workers, deadline=deadline,
        **given,
    )  # fmt: skip


def _is_wanted(options: argparse.Namespace, kind: Any) -> bool:
    wanted = options.kinds.split(",") if options.kinds else None
    named = wanted is None or kind.name in wanted or kind.group in wanted
    return named and (options.sanitize is None or options.sanitize in kind.sanitized)


def _print(tallies: dict[str, Tally], seconds: float) -> None:
    columns = ("cases", "wrong", "crashes", "hangs", "reports")
    rows = [(name, *(getattr(it, column) for column in columns), round(it.seconds))
            for name, it in tallies.items()]  # fmt: skip
    total = [sum(row[place] for row in rows) for place in range(1, 7)]
    print(f"{'kind':28}" + "".join(f"{it:>9}" for it in (*columns, "seconds")))
    for row in (*rows, ("all", *total[:5], round(seconds))):
        print(f"{row[0]:28}" + "".join(f"{it:>9}" for it in row[1:]), flush=True)


def _write(path: Path, attack: Attack, sanitizer: str | None, seconds: float) -> None:
    from lib.machine import facts

    content = {
        **facts("cpu"),
        "command": " ".join(["python -m fuzz", *sys.argv[1:]]),
        "sanitizer": sanitizer,
        "seed": attack.seed,
        "seconds": round(seconds, 1),
        "cases": sum(it.cases for it in attack.tallies.values()),
        "findings": sum(it.findings for it in attack.tallies.values()),
        "kinds": {
            name: {**asdict(it), "seconds": round(it.seconds, 1)}
            for name, it in attack.tallies.items()
        },
        "found": attack.findings,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
