"""Global states of torch and of the processor, which change no result."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

STATES = (
    *("float64", "bfloat16", "float16", "flush", "meta", "inference", "no_grad", "autocast"),
    *("deterministic", "anomaly", "poisoned"),
)


@contextmanager
def state(*names: str) -> Iterator[None]:
    """Set some of :data:`STATES` for a scope."""
    with ExitStack() as stack:
        for name in names:
            _enter(stack, name)
        yield


def _enter(stack: ExitStack, name: str) -> None:
    if name in ("float64", "bfloat16", "float16"):
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(getattr(torch, name))
    elif name == "flush":
        stack.callback(torch.set_flush_denormal, False)
        assert torch.set_flush_denormal(True)
    elif name == "meta":
        stack.callback(torch.set_default_device, None)
        torch.set_default_device("meta")
    elif name == "inference":
        stack.enter_context(torch.inference_mode())
    elif name == "no_grad":
        stack.enter_context(torch.no_grad())
    elif name == "autocast":
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
    elif name == "anomaly":
        stack.enter_context(torch.autograd.set_detect_anomaly(True))
    else:
        assert name in ("deterministic", "poisoned")
        stack.callback(torch.use_deterministic_algorithms, False)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = True
