"""Registers the operators with torch.library; each says its parameters once.

``torch.library.custom_op`` would do the same, but its first call imports the compiler, which takes
two CPU seconds and 160 MB in every process.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kgfast.ops import dispatch

Body = Callable[..., Any]
_libraries: dict[str, torch.library.Library] = {}  # a registration lives as long as its library


class Operator:
    """A function that is ``torch.ops.kgfast.<name>``.

    The annotations of the function are the operator's schema. Everything else that torch asks for
    gets the arguments by their names, so that nothing repeats the parameters. Without
    :meth:`differentiate`, a backward through the operator raises.

    Parameters
    ----------
    name : str
        Within the namespace ``kgfast``.
    body : callable
        What it computes. It returns new tensors: none may share storage with another or with an
        argument.
    waits : bool
        Whether the host may wait for the device in it, as it does for checks of values: then it has
        the tag ``cudagraph_unsafe``, so that torch.compile leaves it out of CUDA graphs.
    """

    def __init__(self, name: str, body: Body, *, waits: bool = False) -> None:
        self.name, self.body = f"kgfast::{name}", body
        self._names = tuple(inspect.signature(body).parameters)
        self._fake: Body = _no_fake
        self._save: Callable[..., None] = _save_nothing
        self._backward: Body = self._no_backward
        self._wrt: tuple[str, ...] = ()
        _libraries.pop(name, None)  # a module that is loaded again registers anew
        library = _libraries[name] = torch.library.Library("kgfast", "FRAGMENT")
        schema = torch.library.infer_schema(body, mutates_args=())
        tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.cudagraph_unsafe,) if waits else ()))
        library.define(name + schema, tags=tags)
        library.impl(name, _untraced(on_host(body)), "CompositeExplicitAutograd")
        torch.library.register_fake(self.name, self._run_fake, lib=library)
        torch.library.register_autograd(
            self.name, self._run_backward, setup_context=self._run_save, lib=library
        )

    def fake(self, function: Body) -> Body:
        """Register what stands for a result without values: ``function(args)``.

        Parameters
        ----------
        function : callable
            Returns empty tensors as the body would, of ``args.<parameter>`` for each parameter.
        """
        self._fake = function
        return function

    def differentiate(
        self, backward: Body, save: Callable[..., None], wrt: Sequence[str] = ()
    ) -> None:
        """Register a gradient.

        Parameters
        ----------
        backward : callable
            ``backward(ctx, need, *grads)``: the gradients of the tensors in ``wrt``; ``need`` says,
            as a list of bool, which of them are asked for. The others may be anything.
        save : callable
            ``save(ctx, args, output)`` keeps what it takes, as ``setup_context`` of
            :class:`torch.autograd.Function`; arguments are ``args.<parameter>``.
        wrt : sequence of str
            The parameters that have a gradient.
        """
        self._backward, self._save, self._wrt = backward, save, tuple(wrt)

    def refuse_second_derivative(self, public_name: str) -> None:
        """Say of which operator this one, its backward, has no gradient."""

        def refuse(ctx: Any, need: list[bool], *grads: Tensor | None) -> None:
            raise RuntimeError(
                f"kgfast.ops.{public_name} can be differentiated once; its gradient has no "
                f"gradient (create_graph=True cannot be followed through it)"
            )

        self._backward = refuse

    def _named(self, args: Sequence[Any]) -> SimpleNamespace:
        return SimpleNamespace(**dict(zip(self._names, args, strict=True)))

    def _run_fake(self, *args: Any) -> Any:
        return self._fake(self._named(args))

    def _run_save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        self._save(ctx, self._named(inputs), output)

    def _run_backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = dict(zip(self._names, ctx.needs_input_grad, strict=True))
        need = [needed[name] for name in self._wrt]
        gradients = dict(zip(self._wrt, self._backward(ctx, need, *grads), strict=True))
        return tuple(gradients.get(name) if needed[name] else None for name in self._names)

    def _no_backward(self, ctx: Any, need: list[bool], *grads: Tensor | None) -> None:
        raise RuntimeError(f"{self.name} has no gradient")


def operator(name: str, *, waits: bool = False) -> Callable[[Body], Operator]:
    """Make a function the operator ``torch.ops.kgfast.<name>``; see :class:`Operator`."""
    return functools.partial(Operator, name, waits=waits)


def on_host(body: Body) -> Body:
    """The body, for tensors of devices without kernels too: they are copied, and so is the result.

    Such tensors of one call are on one device, as operators check.
    """

    @functools.wraps(body)
    def run(*args: Any) -> Any:
        for arg in args:
            if isinstance(arg, Tensor) and arg.device.type in dispatch.COPIED:
                dispatch.is_copied(arg.device)
                copied = [_on_cpu(it) for it in args]
                return _moved(body(*copied), arg.device)
        return body(*args)

    return run


def _on_cpu(arg: Any) -> Any:
    if isinstance(arg, list):
        return [_on_cpu(it) for it in arg]
    return arg.cpu() if isinstance(arg, Tensor) else arg


def _moved(result: Any, device: torch.device) -> Any:
    if isinstance(result, Tensor):
        return result.to(device)
    return tuple(part.to(device) for part in result)


def _untraced(body: Body) -> Body:
    """The body, into which torch.compile does not look; the compiler is not loaded for that.

    Where a compiled function falls back to eager, the compiler would look into every call.
    """
    disabled: list[Body] = []

    def run(*args: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return body(*args)
        if not disabled:
            disabled.append(torch.compiler.disable(body))
        return disabled[0](*args)

    return run


def _no_fake(args: SimpleNamespace) -> Any:
    raise NotImplementedError("an operator needs a fake kernel")


def _save_nothing(ctx: Any, args: SimpleNamespace, output: Any) -> None:
    """Of an operator without a gradient."""
