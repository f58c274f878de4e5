"""Engines: a backend on a device, with an instruction set or a tier, as conformance tests ask it.

A test that takes ``engine`` runs on each. Tensors come from the host and go back to it, so that one
test serves every device. Triton decides when it decorates a kernel whether to interpret it: without
a GPU its engine runs in the processes that ``test_interpreted.py`` starts.
"""

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from torch import Tensor

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.kernels.cpu.panels import pack
from kgfast.kernels.operands import Operands, Panels
from support import flat
from support.problems import SCORES
from support.tiers import FORCED, INT8, lacks, serving

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = not INTERPRETED and torch.cuda.is_available()
CAN_RUN = INTERPRETED or ON_GPU
DEVICE = "cuda" if ON_GPU else "cpu"  # device of Triton's tensors
NO_DEVICE = "torch sees no CUDA or ROCm device: `make gpu` runs this on one"
LAYERS = ("backend", "operator")

# The instruction sets of this kind of machine, beside the baseline, which each has.
ISAS = ("neon",) if platform.machine() in ("aarch64", "arm64") else ("avx512", "avx2")
TIERS = {"int8": INT8 | FORCED}
SERVED = {
    "int8": ("dot",),
    "triton split": ("dot",),  # by tensor cores, emulated
}
NAMES = (*ISAS, *TIERS, "panels", "baseline", "triton")
SPLIT = "triton split"  # served where dot products are all that is asked for


if INTERPRETED:
    from support.interpreter import keep_masks_bools, quicken, round_to_nearest

    quicken()
    round_to_nearest()
    keep_masks_bools()


class Packed(flat.Flat):
    """The CPU backend, of candidates that were packed before, where they can be."""

    def operands(self, *args: Any, **options: Any) -> Operands:
        operands = super().operands(*args, **options)
        panels = pack(operands.candidates)
        if not isinstance(panels, Panels):
            return operands
        return replace(operands, candidates=replace(operands.candidates, panels=panels))


@dataclass(frozen=True)
class Engine:
    """A backend on a device; ``scores`` are those it serves itself, ``layer`` is who is called."""

    name: str
    flat: flat.Flat
    device: str = "cpu"
    scores: tuple[str, ...] = SCORES
    layer: str = "backend"

    @property
    def is_triton(self) -> bool:
        return self.name.startswith("triton")

    def at(self, layer: str) -> "Engine":
        return replace(self, layer=layer)

    def there(self, value: Any) -> Any:
        """Move tensors to the device, with their strides, within whatever holds them."""
        if isinstance(value, Tensor):
            return _moved(value, self.device)
        return _each(value, self.there)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Call a :class:`support.flat.Flat`, or an operator, with tensors of the host."""
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            args, options = self.there(args), self.there(options)
            is_operator = name in ops.__all__ and not options.get("nan_worst")
            if self.layer == "backend" or not is_operator:
                return host(getattr(self.flat, name)(*args, **options))
            options.pop("nan_worst", None)
            if name == "topk":
                options["pad"] = True
            with ops.use_backend(self.flat.name):
                return host(getattr(ops, name)(*args, **options))

        return call


def engine_of(name: str) -> Engine:
    if name.startswith("triton"):
        return Engine(name, flat.triton, DEVICE, SERVED.get(name, SCORES))
    if name == "reference":
        return Engine(name, flat.reference)
    if name == "panels":
        return Engine(name, Packed("cpu"))
    return Engine(name, flat.cpu, scores=SERVED.get(name, SCORES))


@contextmanager
def at_work(name: str) -> Iterator[Engine]:
    """Make the backend serve as an engine does; skip where the engine is not here."""
    with pytest.MonkeyPatch.context() as environment, ExitStack() as stack:
        if name in TIERS:
            if name not in (tiers.available(cpu.isa()) if cpu.is_available() else ()):
                pytest.skip(lacks(name))
            stack.enter_context(serving(TIERS[name]))
        elif name in (*ISAS, "baseline"):
            if name not in cpu.available_isas():
                pytest.skip(f"this machine has no {name} kernels")
            environment.setenv("KGFAST_CPU_ISA", name)
        elif name == "panels" and not cpu.is_available():
            pytest.skip("the extension is not built")
        elif name == "triton split":
            from support.triton_split import split_sweeps

            calls = stack.enter_context(split_sweeps())
        yield engine_of(name)
        assert name != "triton split" or calls[0], "no tensor core was asked"


def marks_of(name: str, *, is_rare: bool = False) -> list[pytest.MarkDecorator]:
    """List the marks of all tests of an engine; ``is_rare``: slow by plain C++ or interpreted."""
    if name == "baseline":
        return [pytest.mark.slow] if is_rare else []
    if not name.startswith("triton"):
        return []
    if name == "triton split" and not INTERPRETED:
        return [pytest.mark.skip(reason="tensor cores are emulated in Triton's interpreter")]
    marks = [pytest.mark.slow] if is_rare and not ON_GPU else []
    if INTERPRETED:
        return marks
    return [*marks, pytest.mark.gpu, pytest.mark.skipif(not CAN_RUN, reason=NO_DEVICE)]


def engines(
    *names: str, scores: Iterable[str] = (), quick: Iterable[str] | bool = False
) -> pytest.MarkDecorator:
    """Parametrize a test by ``engine``, and by ``score`` where some are given.

    By the baseline, and in Triton's interpreter, only the ``quick`` scores are fast tests, or all
    where it is True. Engines are left out for scores that they do not serve.
    """
    names, scores = names or NAMES, tuple(scores)
    if not scores:
        cases = [pytest.param(it, marks=marks_of(it, is_rare=not quick)) for it in names]
        return pytest.mark.parametrize("engine", cases, indirect=True)
    fast = scores if quick is True else tuple(quick or ())
    cases = [
        pytest.param(name, score, marks=marks_of(name, is_rare=score not in fast))
        for name in names
        for score in scores
        if score in SERVED.get(name, (score,))
    ]
    return pytest.mark.parametrize(("engine", "score"), cases, indirect=["engine"])


def on_triton(item: Any) -> Any:
    """Mark a test or a class that calls Triton's backend by itself, with tensors on ``DEVICE``."""
    for mark in marks_of("triton"):
        item = mark(item)
    return item


def examples(count: int, interpreted: int = 6) -> settings:
    """Draw that many cases, or those of ``make fuzz``.

    Draw fewer where kernels are interpreted; these are not shrunk.
    """
    return settings(
        max_examples=interpreted if INTERPRETED else max(count, int(os.environ.get("EXAMPLES", 0))),
        phases=[Phase.explicit, Phase.generate] if INTERPRETED else tuple(Phase),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@contextmanager
def packed(is_packed: bool = True) -> Iterator[None]:
    """Let Triton pack few queries as it does many, or sweep them in place."""
    if not CAN_RUN:
        yield
        return
    from kgfast.kernels.triton.host import configs

    with patch.object(configs, "FEW_QUERIES", 0 if is_packed else configs.FEW_QUERIES):
        yield


def host(value: Any) -> Any:
    """Move tensors to the host, within whatever holds them."""
    return value.cpu() if isinstance(value, Tensor) else _each(value, host)


def bits(values: Tensor, *, zeros_have_signs: bool = True) -> Tensor:
    """Return numbers as integers, for a comparison to the last bit; NaN are alike."""
    if not values.is_floating_point():
        return values
    if not zeros_have_signs:
        values = values + 0.0
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()]
    return torch.where(values.isnan(), torch.nan, values).contiguous().view(integers)


def assert_same(
    found: Iterable[Tensor], expected: Iterable[Tensor], note: Any = "", **options: bool
) -> None:
    """Assert that results have the same dtypes, shapes and bits."""
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.dtype == b.dtype, f"result {place} of {note}"
        assert torch.equal(bits(a, **options), bits(b, **options)), f"result {place} of {note}"


def _moved(values: Tensor, device: str) -> Tensor:
    if device == "cpu":
        return values
    storage = values.untyped_storage().to(device=device)
    moved = torch.empty(0, dtype=values.dtype, device=device)
    moved.set_(storage, values.storage_offset(), values.shape, values.stride())
    return moved.requires_grad_(values.requires_grad)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: change(it) for name, it in value.items()}
    if isinstance(value, tuple | list):
        items = [change(it) for it in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
