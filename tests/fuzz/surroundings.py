"""What surrounds a call: threads, instruction set, backend, and the global state of torch."""

import ctypes
import ctypes.util
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from fuzz.case import Case
from kgfast import use_backend
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support.tiers import FORCED, serving

TESTS = Path(__file__).resolve().parents[1]
_ROUNDINGS = {"up": 0x800, "down": 0x400, "to zero": 0xC00}  # of fenv.h on x86
STATES = (
    "float64",
    "bfloat16",
    "float16",
    "flush",
    "meta",
    "inference",
    "no_grad",
    "autocast",
    "deterministic",
    "anomaly",
    "poisoned",
)


@contextmanager
def anywhere(case: Case, reference: float = 0.1) -> Iterator[str]:
    """A random backend, instruction set, tiers and number of threads; gives the backend."""
    backend = "reference" if case.chance(reference) or not cpu.is_available() else "cpu"
    threads, before = case.choice((1, 1, 2, 3, 4)), torch.get_num_threads()
    case.note(backend=backend, threads=threads)
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
        torch.set_num_threads(threads)
        try:
            yield backend
        finally:
            torch.set_num_threads(before)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for a scope."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def state(name: str) -> Iterator[None]:
    """A global state of torch for a scope: one of :data:`STATES`, or of :func:`roundings`."""
    with ExitStack() as stack:
        if name in ("float64", "bfloat16", "float16"):
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(getattr(torch, name))
        elif name == "flush":
            stack.callback(torch.set_flush_denormal, False)
            torch.set_flush_denormal(True)
        elif name == "meta":
            stack.enter_context(torch.device("meta"))
        elif name == "inference":
            stack.enter_context(torch.inference_mode())
        elif name == "no_grad":
            stack.enter_context(torch.no_grad())
        elif name == "autocast":
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        elif name == "anomaly":
            stack.enter_context(torch.autograd.set_detect_anomaly(True))
        elif name in ("deterministic", "poisoned"):
            stack.callback(torch.use_deterministic_algorithms, False)
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = True
        else:
            stack.enter_context(_rounding(name))
        yield


def roundings() -> list[str]:
    """The rounding modes that can be set here."""
    return list(_ROUNDINGS) if os.uname().machine == "x86_64" else []


@contextmanager
def _rounding(name: str) -> Iterator[None]:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    before = library.fegetround()
    with torch_alone():
        library.fesetround(_ROUNDINGS[name])
        try:
            yield
        finally:
            library.fesetround(before)


@contextmanager
def torch_alone() -> Iterator[None]:
    """One thread of torch, so that all of it runs in the mode of the caller."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def worker_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that runs cases."""
    paths = [*filter(None, [more.get("PYTHONPATH")]), str(TESTS)]
    kept = {name: it for name, it in os.environ.items() if not name.startswith("KGFAST_")}
    return {
        **kept,
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONSAFEPATH": "1",  # the package under attack is the one on the path, not in the folder
        **more,
        "PYTHONPATH": os.pathsep.join(paths),
    }
