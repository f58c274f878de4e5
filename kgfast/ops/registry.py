"""Register operators with torch.library; the annotations of a function are its schema.

``torch.library.custom_op`` would do the same. But the first call imports the compiler, which takes
two CPU seconds and 160 MB in every process.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, peek_interpreter_stack
from torch.autograd import Function

from kgfast.ops import dispatch
from kgfast.ops.differentiable import is_transformed, no_forward_mode, zero_gradients
from kgfast.ops.row_gradients import RowGradients

Body = Callable[..., Any]
# a registration lives as long as its library object
_libraries: dict[str, torch.library.Library] = {}
_operators: dict[str, "Operator"] = {}


class Operator:
    """Function that is ``torch.ops.kgfast.<name>``; the gradient is a second operator.

    The body returns new tensors: none shares storage with another or with an argument. With
    ``waits``, the host may wait for the device in the body, as checks of values do. The tag
    ``cudagraph_unsafe`` then keeps the operator out of CUDA graphs. A backward through an operator
    without a gradient raises.
    """

    def __init__(self, name: str, body: Body, *, waits: bool = False) -> None:
        self.name, self.body, self._waits = f"kgfast::{name}", body, waits
        self._names = tuple(inspect.signature(body).parameters)
        self._fake: Body = _no_fake
        self._save: Callable[..., None] = _save_nothing
        self._backward: Body = self._no_backward
        self._wrt: tuple[str, ...] = ()
        _operators[name] = self
        _libraries.pop(name, None)  # a module that is loaded again registers anew
        vars(torch.ops.kgfast).pop(name, None)  # torch 2.10 would call the former operator
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
        """Register ``function(args)``, which returns the body's result without values."""
        self._fake = function
        return function

    def differentiate(
        self, backward: Body, save: Callable[..., None], wrt: Sequence[str] = ()
    ) -> None:
        """Register ``backward(ctx, need, *grads)``, the gradients of the parameters ``wrt``.

        ``need`` has a bool for each, True if the gradient is needed. ``save(ctx, args, output)`` is
        ``setup_context`` of :class:`torch.autograd.Function`.
        """
        self._backward, self._save, self._wrt = backward, save, tuple(wrt)

    def gradient(
        self,
        *wrt: str,
        of: str,
        grads: Sequence[str] = ("grad_rows",),
        kept: Sequence[str] = (),
        unsaved: Sequence[str] = (),
        rows: str | None = None,
        named: str = "",
    ) -> Callable[[Body], "Operator"]:
        """Make ``function(args)`` the operator ``<name>_backward``, the gradient of this one.

        Parameters
        ----------
        *wrt : str
            Parameters that have a gradient. The function returns these gradients, None if not
            needed.
        of : str
            Public name, for the error of a second derivative.
        grads, kept : sequence of str
            Names in ``args`` of the gradients of the first results, and of the last results.
            ``args`` has the operator's arguments too, and ``need``, a bool for each of ``wrt``.
        unsaved : sequence of str
            Arguments that are None in ``args``.
        rows : str, optional
            Parameter with a gradient of only some rows if ``args.sparse``. The function then
            returns the int64 ids of these rows as the last result. The operator has a ``backend``.
        named : str
            Argument or kept result with these ids.
        """

        def register(function: Body) -> Operator:
            made = _Gradient(self, function, wrt, grads, kept, unsaved, rows, named)
            self.differentiate(made.differentiate, made.save, wrt)
            name = f"{self.name.removeprefix('kgfast::')}_backward"
            found = Operator(name, made.body(), waits=self._waits)
            found.fake(made.fake)
            found.refuse_second_derivative(of)
            return found

        return register

    def refuse_second_derivative(self, public_name: str) -> None:
        """Make a second derivative raise an error that names the public operator."""

        def refuse(ctx: Any, need: list[bool], *grads: Tensor | None) -> None:
            raise RuntimeError(
                f"kgfast.ops.{public_name} can be differentiated once; a second derivative "
                "(create_graph=True) does not exist"
            )

        self._backward = refuse

    def _named(self, args: Sequence[Any]) -> SimpleNamespace:
        return SimpleNamespace(**dict(zip(self._names, args, strict=True)))

    def _run_fake(self, *args: Any) -> Any:
        return self._fake(self._named(args))

    def _run_save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        self._save(ctx, self._named(inputs), output)

    def _run_backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[-len(self._names) :]  # a transform puts a name first
        needed = dict(zip(self._names, needs, strict=True))
        need = [needed[name] for name in self._wrt]
        gradients = dict(zip(self._wrt, self._backward(ctx, need, *grads), strict=True))
        return tuple(gradients.get(name) if needed[name] else None for name in self._names)

    def _no_backward(self, ctx: Any, need: list[bool], *grads: Tensor | None) -> None:
        raise RuntimeError(f"{self.name} has no gradient")


def operator(name: str, *, waits: bool = False) -> Callable[[Body], Operator]:
    """Make a function the operator ``torch.ops.kgfast.<name>``; see :class:`Operator`."""
    return functools.partial(Operator, name, waits=waits)


def call(name: str, *args: Any) -> Any:
    """Call an operator; under transforms of ``torch.func`` in the form that they take."""
    if is_transformed() and peek_interpreter_stack().key() != TransformType.Functionalize:
        return _Transformed.apply(name, *args)  # type: ignore[no-untyped-call]
    return getattr(torch.ops.kgfast, name)(*args)


class _Transformed(Function):
    """Operator in the form that the transforms of ``torch.func`` take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, *args: Any) -> Any:
        return getattr(torch.ops.kgfast, name)(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = _operators[inputs[0]]
        ctx.operator._run_save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.operator._run_backward(ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise no_forward_mode(ctx.operator.name.removeprefix("kgfast::"))


@dataclass(frozen=True)
class _Gradient:
    """Backward of an operator as an operator; fields are those of :meth:`Operator.gradient`."""

    forward: Operator
    function: Body
    wrt: Sequence[str]
    grads: Sequence[str]
    kept: Sequence[str]
    unsaved: Sequence[str]
    rows: str | None
    named: str

    def body(self) -> Body:
        """Make the body; the signature has the gradients, kept results and arguments."""
        own, count = inspect.signature(self.forward.body).parameters, len(self.wrt)
        count += self.rows is not None
        kinds: dict[str, Any] = dict.fromkeys((*self.grads, *self.kept), Tensor)
        kinds |= {name: it.annotation for name, it in own.items()} | {"need": Sequence[bool]}

        def run(*values: Any) -> Any:
            made = list(self.function(SimpleNamespace(**dict(zip(kinds, values, strict=True)))))
            for place, it in enumerate(made):
                if it is None:  # an operator cannot return None
                    dtype = torch.int64 if place == len(self.wrt) else None
                    made[place] = values[0].new_empty(0, dtype=dtype)
            return _result(made)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
                for name, kind in kinds.items()
            ],
            return_annotation=tuple[(Tensor,) * count] if count > 1 else Tensor,  # type: ignore[misc]
        )
        return run

    def fake(self, args: SimpleNamespace) -> Any:
        tensors = [getattr(args, name) for name in self.wrt]
        made = zero_gradients(tensors, args.need)
        if self.rows is not None:
            count: int | torch.SymInt = 0
            place = self.wrt.index(self.rows)
            if args.sparse and args.need[place]:
                count = self._num_rows(args, tensors[place])
                made[place] = tensors[place].new_empty(count, tensors[place].shape[1])
            made.append(torch.empty(count, dtype=torch.int64, device=tensors[0].device))
        return _result(made)

    def _num_rows(self, args: SimpleNamespace, table: Tensor) -> int | torch.SymInt:
        """Return the number of rows of a gradient: an unknown number of distinct ids, or all."""
        if not _repeats(args.backend):
            return torch.library.get_ctx().new_dynamic_size()
        besides = getattr(args, "besides", None)
        count: int = min(getattr(args, self.named).numel(), len(table))
        return count if besides is None else count + len(besides)

    def save(self, ctx: Any, args: SimpleNamespace, output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        count = len(self.grads)
        ctx.set_materialize_grads(False)  # zeros for kept results would be as large as scores
        ctx.mark_non_differentiable(*results[count:])
        ctx.results = [(it.shape, it.dtype, it.device) for it in results[:count]]
        kept = results[len(results) - len(self.kept) :]
        given = {**vars(args), **dict.fromkeys(self.unsaved)}
        tensors = {name: it for name, it in given.items() if isinstance(it, Tensor)}
        ctx.names, ctx.given = tuple(tensors), {**given, **dict.fromkeys(tensors)}
        ctx.save_for_backward(*kept, *tensors.values())

    def differentiate(self, ctx: Any, need: list[bool], *slopes: Tensor | None) -> list[Any]:
        saved, count = ctx.saved_tensors, len(self.kept)  # checkpoints unpack saved tensors once
        kept, tensors = saved[:count], saved[count:]
        given = ctx.given | dict(zip(ctx.names, tensors, strict=True))
        own = [
            _zeros(shape, dtype, device) if it is None else it
            for it, (shape, dtype, device) in zip(slopes, ctx.results, strict=False)
        ]
        name = f"{self.forward.name.removeprefix('kgfast::')}_backward"
        made = call(name, *own, *kept, *given.values(), need)
        gradients = [made] if isinstance(made, Tensor) else list(made[: len(self.wrt)])
        if self.rows is not None:
            place = self.wrt.index(self.rows)
            if given["sparse"] and need[place]:
                rows = RowGradients(made[-1], gradients[place], _repeats(given["backend"]))
                gradients[place] = rows.to_sparse(len(given[self.rows]))
        return gradients


def _repeats(backend: str) -> bool:
    return dispatch.get_backend(backend).row_sums is not None


def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    if shape.numel():
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.empty(shape, dtype=dtype, device=device)  # launches nothing


def _result(made: Sequence[Tensor]) -> Any:
    return made[0] if len(made) == 1 else tuple(made)


def on_host(body: Body) -> Body:
    """Let a body serve devices without kernels: copy tensors to the CPU, and results back."""

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
    """Keep torch.compile out of the body without loading the compiler.

    When a compiled function falls back to eager, the compiler would look into every call.
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
    pass
