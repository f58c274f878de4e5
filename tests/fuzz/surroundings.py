"""Surroundings of a call: threads, instruction set, backend, and the global state of torch."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fuzz.case import Case
from kgfast import use_backend
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support.sampled import threads
from support.tiers import FORCED, serving

TESTS = Path(__file__).resolve().parents[1]


@contextmanager
def anywhere(case: Case, reference: float = 0.1) -> Iterator[str]:
    """Draw a backend, instruction set, tiers and number of threads; yield the backend."""
    backend = "reference" if case.chance(reference) or not cpu.is_available() else "cpu"
    count = case.choice((1, 1, 2, 3, 4))
    case.note(backend=backend, threads=count)
    with ExitStack() as stack:
        stack.enter_context(use_backend(backend))
        if backend == "cpu":
            isa = case.choice(cpu.available_isas())
            names = [name for name in tiers.TIERS if case.chance(0.7)]
            forced = case.chance(0.4)
            case.note(isa=isa, tiers=",".join(names), forced=forced)
            stack.enter_context(variable("KGFAST_CPU_ISA", isa))
            stack.enter_context(variable("KGFAST_TIERS", ",".join(names) or "none"))
            if forced:
                stack.enter_context(serving(tiers.mask() | FORCED))
        stack.enter_context(threads(count))
        yield backend


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def worker_environment(more: Mapping[str, str]) -> dict[str, str]:
    paths = [*filter(None, [more.get("PYTHONPATH")]), str(TESTS)]
    kept = {name: it for name, it in os.environ.items() if not name.startswith("KGFAST_")}
    return {
        **kept,
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONSAFEPATH": "1",  # the package under attack is the one on the path, not in the folder
        **more,
        "PYTHONPATH": os.pathsep.join(paths),
    }
