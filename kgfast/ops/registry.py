"""Register operators with torch.library; the parameters of a function are the schema.

A parameter may be a structure, such as :class:`~kgfast.kernels.operands.Operands`: the schema has
the fields of the structure one by one, and the function gets the structure again.

``torch.library.custom_op`` would do the rest, but its first call imports the compiler, which takes
two CPU seconds and 160 MB in every process.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import NoneType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kgfast.kernels.operands import Panels
from kgfast.kernels.scores import SCORES, Score
from kgfast.ops.differentiable import refuse_second
from kgfast.ops.dispatch import get_backend
from kgfast.ops.row_gradients import RowGradients

P = ParamSpec("P")
R = TypeVar("R")
Body = Callable[..., Any]

OPERATORS: dict[str, "Operator[..., Any]"] = {}
# a registration lives as long as its library object
_libraries: dict[str, torch.library.Library] = {}

_SCHEMA_TYPES = {
    Tensor: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    Sequence[int]: "SymInt[]",
    Sequence[float]: "float[]",
    Sequence[bool]: "bool[]",
    tuple[int, ...]: "SymInt[]",
}


class Operator(Generic[P, R]):
    """Function that is ``torch.ops.kgfast.<name>``; the gradient is a second operator.

    The ``body`` returns new tensors: none shares storage with another or with an argument. With
    ``waits``, the host may wait for the device in the body: the operator stays out of CUDA graphs.
    With ``results``, the body returns so many tensors, or None for some.
    """

    def __init__(
        self, name: str, body: Callable[P, R], *, waits: bool = False, results: int = 0
    ) -> None:
        self.name, self.body, self.waits, self._results = name, body, waits, results
        hints = get_type_hints(body)
        self.parameters = [*inspect.signature(body).parameters]
        parsed = {name: _parsed(hints[name], name) for name in self.parameters}
        leaves = [leaf for some, _ in parsed.values() for leaf in some]
        self.leaves = [leaf.path for leaf in leaves]
        self._expressions = {name: expression for name, (_, expression) in parsed.items()}
        self._names = ", ".join(leaf.name for leaf in leaves)
        # values of the schema for arguments of the body, and arguments of the body for values
        reads = ", ".join(leaf.read for leaf in leaves)
        self.flat: Callable[P, list[Any]] = eval(  # noqa: S307 (our names)
            f"lambda {', '.join(self.parameters)}: [{reads}]"
        )
        self._built = self._builder(self.parameters)
        self._is_differentiable = False
        self._untraced: Body | None = None

        OPERATORS[name] = self
        _libraries.pop(name, None)  # a module that is loaded again registers anew
        vars(torch.ops.kgfast).pop(name, None)  # torch 2.10 would call the former operator
        library = _libraries[name] = torch.library.Library("kgfast", "FRAGMENT")
        arguments = ", ".join(f"{leaf.type} {leaf.name}" for leaf in leaves)
        if not results and (returned := hints["return"]) is not Tensor:  # a tuple, or a NamedTuple
            results = len(getattr(returned, "_fields", get_args(returned)))
        returns = ", ".join(["Tensor"] * (results or 1))
        tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.cudagraph_unsafe,) if waits else ()))
        library.define(f"{name}({arguments}) -> ({returns})", tags=tags)
        library.impl(name, self._run, "CompositeExplicitAutograd")
        self.registered = getattr(torch.ops.kgfast, name).default

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operator through torch."""
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            raise NotImplementedError(
                "operators of kgfast have neither a forward-mode derivative nor transforms of "
                "torch.func (grad, vmap, jvp, hessian): use backward() or torch.autograd.grad"
            )
        if self._is_differentiable:
            return cast(R, self.registered(*self.flat(*args, **kwargs)))
        with torch.no_grad():
            return cast(R, self.registered(*self.flat(*args, **kwargs)))

    def fake(self, function: Body) -> Body:
        """Register a function that returns the result without values.

        The function's parameters are some of the body's, by name.
        """
        build = self._builder([*inspect.signature(function).parameters])
        self._register_fake(lambda *values: function(*build(*values)))
        return function

    def _register_fake(self, fake: Body) -> None:
        torch.library.register_fake(f"kgfast::{self.name}", fake, lib=_libraries[self.name])

    def gradient(self, *wrt: str, rows: bool = False) -> Callable[[Body], "Operator[..., Any]"]:
        """Make a function the operator ``<name>_backward``, the gradient of this operator.

        The function's parameters are ``grad``, of the first result; the last results, by any name
        or as a structure; the parameters of this operator; and ``need``, a bool for each of the
        tensors ``wrt``, named by their fields. The function returns a gradient for each, None if
        not needed. With ``rows``, this operator has the parameters ``sparse`` and ``backend``, and
        the function returns int64 ids last: if ``sparse``, the rows in the table's gradient.
        """
        self._is_differentiable = True
        return lambda body: _Gradient(self, body, wrt, has_rows=rows)

    def places(self, names: Sequence[str]) -> list[int]:
        """Return the places of values in the schema, each by its path or the name of its field."""
        fields = [path.rpartition(".")[2] for path in self.leaves]
        return [(self.leaves if "." in name else fields).index(name) for name in names]

    def _builder(self, names: Sequence[str]) -> Callable[..., list[Any]]:
        """Return a function of the schema's values that makes arguments of the body, by name."""
        expressions = ", ".join(self._expressions[name] for name in names)
        source = f"lambda {self._names}: [{expressions}]"
        built: Callable[..., list[Any]] = eval(source, _KINDS)  # noqa: S307 (our names)
        return built

    def _run(self, *values: Any) -> Any:
        """Run the body, and keep torch.compile out of it without loading the compiler.

        When a compiled function falls back to eager, the compiler would look into every call.
        """
        if "torch._dynamo" not in sys.modules:
            return self.serve(*values)
        if self._untraced is None:
            self._untraced = torch.compiler.disable(self.serve)
        return self._untraced(*values)

    def serve(self, *values: Any) -> Any:
        """Run the body without autocast."""
        kind = values[0].device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self.serve(*values)
        results: Any = self.body(*self._built(*values))  # type: ignore[call-arg]
        if self._results:
            results = [values[0].new_empty(0) if tensor is None else tensor for tensor in results]
            results = results[0] if self._results == 1 else tuple(results)
        return results


def operator(name: str, *, waits: bool = False) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Make a function the operator ``torch.ops.kgfast.<name>``; see :class:`Operator`."""
    return lambda body: Operator(name, body, waits=waits)


class _Gradient(Operator[..., Any]):
    """Backward of an operator; see :meth:`Operator.gradient`."""

    def __init__(
        self, forward: Operator[..., Any], body: Body, wrt: Sequence[str], *, has_rows: bool
    ) -> None:
        name, results = f"{forward.name}_backward", len(wrt) + has_rows
        super().__init__(name, body, waits=forward.waits, results=results)
        self._has_rows, self._places = has_rows, forward.places(wrt)
        self._num_kept = len(self.leaves) - len(forward.leaves) - 2  # grad and need
        if has_rows:
            self._table = wrt.index("table")
            self._sparse, self._name = forward.places(["sparse", "backend"])
        self._register_fake(self._empty)
        name, library = f"kgfast::{forward.name}", _libraries[forward.name]
        torch.library.register_autograd(
            name, self._differentiate, setup_context=self._save, lib=library
        )

    def _empty(self, *values: Any) -> Any:
        inputs, need = values[1 + self._num_kept : -1], values[-1]
        outs = [
            inputs[place].new_empty(inputs[place].shape) if needed else values[0].new_empty(0)
            for place, needed in zip(self._places, need, strict=True)
        ]
        if self._has_rows:
            count: int | torch.SymInt = 0
            if inputs[self._sparse] and need[self._table]:  # a number of distinct ids
                count = torch.library.get_ctx().new_dynamic_size()
                outs[self._table] = outs[self._table].new_empty(count, outs[self._table].shape[1])
            outs.append(torch.empty(count, dtype=torch.int64, device=values[0].device))
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _save(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        ctx.set_materialize_grads(False)  # zeros for kept results would be as large as scores
        ctx.mark_non_differentiable(*results[1:])
        tensors, ctx.others = [], []
        for value in inputs:
            is_tensor = isinstance(value, Tensor)
            tensors.append(value if is_tensor else None)
            ctx.others.append(None if is_tensor else value)
        ctx.save_for_backward(*results[len(results) - self._num_kept :], *tensors)

    def _differentiate(
        self, ctx: Any, grad: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second()
        gradients: list[Tensor | None] = [None] * len(ctx.others)
        if grad is None:
            return tuple(gradients)
        need = list(map(ctx.needs_input_grad.__getitem__, self._places))
        saved = ctx.saved_tensors  # checkpoints unpack saved tensors once
        inputs = []
        for value, tensor in zip(ctx.others, saved[self._num_kept :], strict=True):
            inputs.append(value if tensor is None else tensor)
        results = self.registered(grad, *saved[: self._num_kept], *inputs, need)
        results = [results] if isinstance(results, Tensor) else list(results)
        if self._has_rows:
            table, ids = self._table, results.pop()
            if inputs[self._sparse] and need[table]:
                repeats = hasattr(get_backend(inputs[self._name]), "row_sums")
                num_rows = len(inputs[self._places[table]])
                results[table] = RowGradients(ids, results[table], repeats).to_sparse(num_rows)
        for place, needed, gradient in zip(self._places, need, results, strict=True):
            gradients[place] = gradient if needed else None
        return tuple(gradients)


class _Leaf(NamedTuple):
    """Value of a schema."""

    path: str  # such as operands.candidates.table
    read: str  # expression that reads the value from a parameter
    type: str

    @property
    def name(self) -> str:
        return self.path.replace(".", "_")


_KINDS: dict[str, Any] = {"SCORES": SCORES}  # names in expressions that build structures


def _parsed(kind: Any, path: str) -> tuple[list[_Leaf], str]:
    """Return the values of a parameter, or of a field, and the expression that builds it."""
    optional = ""
    if NoneType in get_args(kind):
        kind, optional = next(option for option in get_args(kind) if option is not NoneType), "?"
    if get_origin(kind) is Literal:
        kind = str
    if kind is Panels:
        return [], "None"  # no tensor of a caller: they come with candidates that are prepared
    leaf = _Leaf(path, path, _SCHEMA_TYPES.get(kind, "str") + optional)
    if kind is Score:
        return [leaf._replace(read=f"{path}.name")], f"SCORES[{leaf.name}]"
    if kind == tuple[int, ...]:
        return [leaf], f"({leaf.name} and tuple({leaf.name}))"
    if kind in _SCHEMA_TYPES:
        return [leaf], leaf.name
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [each.name for each in fields(kind) if each.init]
    parsed = [_parsed(hints[name], f"{path}.{name}") for name in names]
    leaves = [leaf for some, _ in parsed for leaf in some]
    _KINDS[kind.__name__] = kind
    expression = f"{kind.__name__}({', '.join(built for _, built in parsed)})"
    if optional:
        expression = f"(None if {leaves[0].name} is None else {expression})"
        for place, (of, read, type_) in enumerate(leaves):
            read = f"(None if {path} is None else {read})"
            leaves[place] = _Leaf(of, read, type_.rstrip("?") + "?")
    return leaves, expression
