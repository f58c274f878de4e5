"""Register operators with torch.library; the parameters of a function are the schema.

A parameter may be a structure, such as :class:`~kgfast.kernels.operands.Operands`: the schema has
the fields of the structure one by one, and the function gets the structure again. So a new field
of ``Operands`` is an argument of every operator.

``torch.library.custom_op`` would do the rest. But the first call imports the compiler, which takes
two CPU seconds and 160 MB in every process.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor
from torch._C._functorch import TransformType, peek_interpreter_stack
from torch.autograd import Function

from kgfast.kernels.backend import kernel_of
from kgfast.kernels.panels import Panels
from kgfast.kernels.scores import SCORES, Score
from kgfast.ops import dispatch
from kgfast.ops.differentiable import no_autocast, no_forward_mode, zero_gradients
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

    A call goes through torch, so that the compiler and transforms see it; ``body`` is the function.
    The body returns new tensors: none shares storage with another or with an argument. With
    ``waits``, the host may wait for the device in the body, as checks of values do. The tag
    ``cudagraph_unsafe`` then keeps the operator out of CUDA graphs. Results of an operator without
    a gradient need none. With ``results``, the body returns so many tensors, or None for some.
    """

    def __init__(
        self, name: str, body: Callable[P, R], *, waits: bool = False, results: int = 0
    ) -> None:
        self.name, self.body, self.waits, self._results = name, body, waits, results
        self.public_name = name  # name in errors
        hints = get_type_hints(body)
        self.parameters = [*inspect.signature(body).parameters]
        parsed = {it: _parsed(hints[it], it) for it in self.parameters}
        leaves = [leaf for some, _ in parsed.values() for leaf in some]
        self.leaves = [leaf.path for leaf in leaves]
        self._expressions = {it: expression for it, (_, expression) in parsed.items()}
        self._names = ", ".join(leaf.name for leaf in leaves)
        # values of the schema for arguments of the body, and arguments of the body for values
        reads = ", ".join(leaf.read for leaf in leaves)
        self.flat: Callable[P, list[Any]] = eval(  # noqa: S307 (own names)
            f"lambda {', '.join(self.parameters)}: [{reads}]"
        )
        self.built = self._builder(self.parameters)
        self._fake: Body = _no_fake
        self._rule: _Rule | None = None
        self._untraced: Body | None = None

        OPERATORS[name] = self
        _libraries.pop(name, None)  # a module that is loaded again registers anew
        vars(torch.ops.kgfast).pop(name, None)  # torch 2.10 would call the former operator
        library = _libraries[name] = torch.library.Library("kgfast", "FRAGMENT")
        arguments = ", ".join(f"{leaf.type} {leaf.name}" for leaf in leaves)
        returns = ", ".join(["Tensor"] * (results or _count(hints["return"])))
        tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.cudagraph_unsafe,) if waits else ()))
        library.define(f"{name}({arguments}) -> ({returns})", tags=tags)
        library.impl(name, self._run, "CompositeExplicitAutograd")
        path = f"kgfast::{name}"
        torch.library.register_fake(path, lambda *values: self._fake(*values), lib=library)
        torch.library.register_autograd(
            path, self._run_backward, setup_context=self._run_save, lib=library
        )
        self._registered = getattr(torch.ops.kgfast, name).default

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operator through torch."""
        result: R = self.call(*self.flat(*args, **kwargs))
        return result

    def call(self, *values: Any) -> Any:
        """Call with values of the schema; for ``torch.func`` in the form that transforms take."""
        is_transformed = (
            not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
        )
        if is_transformed and peek_interpreter_stack().key() != TransformType.Functionalize:
            return _Transformed.apply(self.name, *values)  # type: ignore[no-untyped-call]
        if self._rule is not None:
            return self._registered(*values)
        with torch.no_grad():
            return self._registered(*values)

    def fake(self, function: Body) -> Body:
        """Register a function that returns the result without values.

        The function's parameters are some of the body's, by name.
        """
        build = self._builder([*inspect.signature(function).parameters])
        self._fake = lambda *values: function(*build(*values))
        return function

    def gradient(
        self, *wrt: str, of: str, rows: str | None = None
    ) -> Callable[[Body], "Operator[..., Any]"]:
        """Make a function the operator ``<name>_backward``, the gradient of this operator.

        The function's parameters are ``grad``, which is the gradient of the first result; the last
        results, by any name or as a structure; some of the parameters of this operator; and
        ``need``, a bool for each of ``wrt``. The function returns a gradient for each of ``wrt``,
        None if not needed.

        Parameters
        ----------
        *wrt : str
            Tensors of the schema that have a gradient, by the names of their fields.
        of : str
            Public name, for the error of a second derivative.
        rows : str, optional
            Parameter that names the rows of the table's gradient if ``sparse``. The function then
            returns the int64 ids of these rows as the last result. It has the parameters ``sparse``
            and ``backend``, and may have ``besides``, with more rows.
        """

        def register(function: Body) -> Operator[..., Any]:
            count = len(wrt) + (rows is not None)
            name = f"{self.name}_backward"
            backward: Operator[..., Any] = Operator(name, function, waits=self.waits, results=count)
            made = _Gradient(self, backward, wrt, rows)
            self.differentiate(made.differentiate, made.save, wrt)
            backward._fake, self.public_name = made.fake, of
            backward.refuse_second_derivative(of)
            return backward

        return register

    def differentiate(self, backward: Body, save: Body, wrt: Sequence[str] = ()) -> None:
        """Register ``backward(ctx, need, *grads)``, the gradients of the tensors ``wrt``.

        ``need`` has a bool for each, True if the gradient is needed. ``save(ctx, values, output)``
        is ``setup_context`` of :class:`torch.autograd.Function`, with the values of the schema.
        """
        self._rule = _Rule(self.places(wrt), save, backward)

    def refuse_second_derivative(self, public_name: str) -> None:
        """Make a second derivative raise an error that names the public operator."""

        def refuse(ctx: Any, need: list[bool], *grads: Tensor | None) -> None:
            raise RuntimeError(
                f"kgfast.ops.{public_name} can be differentiated once; a second derivative "
                "(create_graph=True) does not exist"
            )

        self.differentiate(refuse, lambda *_: None)

    def places(self, names: Sequence[str]) -> list[int]:
        """Return the places of values in the schema, each by its path or the name of its field."""
        fields = [path.rpartition(".")[2] for path in self.leaves]
        return [(self.leaves if "." in name else fields).index(name) for name in names]

    def _builder(self, names: Sequence[str]) -> Callable[..., list[Any]]:
        """Return a function of the schema's values that makes arguments of the body, by name."""
        expressions = ", ".join(self._expressions[name] for name in names)
        source = f"lambda {self._names}: [{expressions}]"
        built: Callable[..., list[Any]] = eval(source, _KINDS)  # noqa: S307 (own names)
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
        """Run the body without autocast; on the CPU for devices without kernels."""
        device = values[0].device
        is_copied = device.type in dispatch.COPIED and dispatch.is_copied(device)
        if is_copied:
            values = tuple(it.cpu() if isinstance(it, Tensor) else it for it in values)
        with no_autocast(device):
            made: Any = self.body(*self.built(*values))  # type: ignore[call-arg]
        if self._results:
            made = [values[0].new_empty(0) if it is None else it for it in made]
            made = made[0] if self._results == 1 else tuple(made)
        return _moved(made, device) if is_copied else made

    def _run_save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self._rule is not None:
            self._rule.save(ctx, inputs, output)

    def _run_backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if self._rule is None:
            raise RuntimeError(f"kgfast::{self.name} has no gradient")
        needs = ctx.needs_input_grad[-len(self.leaves) :]  # a transform puts a name first
        need = list(map(needs.__getitem__, self._rule.places))
        gradients: list[Tensor | None] = [None] * len(self.leaves)
        made = self._rule.differentiate(ctx, need, *grads)
        for place, needed, gradient in zip(self._rule.places, need, made, strict=True):
            gradients[place] = gradient if needed else None
        return tuple(gradients)


def operator(name: str, *, waits: bool = False) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Make a function the operator ``torch.ops.kgfast.<name>``; see :class:`Operator`."""
    return lambda body: Operator(name, body, waits=waits)


class _Rule(NamedTuple):
    """Derivative of an operator: places of tensors with a gradient, and two functions."""

    places: list[int]
    save: Body
    differentiate: Body


class _Transformed(Function):
    """Operator in the form that the transforms of ``torch.func`` take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, *values: Any) -> Any:
        return OPERATORS[name]._registered(*values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = OPERATORS[inputs[0]]
        ctx.operator._run_save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.operator._run_backward(ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise no_forward_mode(ctx.operator.public_name)


class _Gradient:
    """Backward of an operator as an operator; see :meth:`Operator.gradient`."""

    def __init__(
        self,
        forward: Operator[..., Any],
        backward: Operator[..., Any],
        wrt: Sequence[str],
        rows: str | None,
    ) -> None:
        self._backward, self._wrt, self._rows = backward, wrt, rows
        leaves = backward.leaves[1:-1]
        given = [it for it in leaves if it.partition(".")[0] in forward.parameters]
        self._num_kept = len(leaves) - len(given)
        self._given = forward.places(given)
        self._tensors = backward.places(wrt)
        self._sparse = backward.places(["sparse", "backend", "table"]) if rows else []

    def fake(self, *values: Any) -> Any:
        tensors = [values[place] for place in self._tensors]
        made = zero_gradients(tensors, values[-1])
        if self._rows is None:
            return made[0] if len(made) == 1 else tuple(made)
        count: int | torch.SymInt = 0
        table = self._wrt.index("table")
        if values[self._sparse[0]] and values[-1][table]:
            count = self._num_rows(values, tensors[table])
            made[table] = tensors[table].new_empty(count, tensors[table].shape[1])
        return *made, torch.empty(count, dtype=torch.int64, device=tensors[0].device)

    def _num_rows(self, values: tuple[Any, ...], table: Tensor) -> int | torch.SymInt:
        """Return the number of rows of a gradient: an unknown number of distinct ids, or all."""
        named = dict(zip(self._backward.leaves, values, strict=True))
        if not _repeats(named["backend"]):
            return torch.library.get_ctx().new_dynamic_size()
        count: int = min(named[str(self._rows)].numel(), len(table))
        besides = named.get("besides")
        return count if besides is None else count + len(besides)

    def save(self, ctx: Any, values: Sequence[Any], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        ctx.set_materialize_grads(False)  # zeros for kept results would be as large as scores
        ctx.mark_non_differentiable(*results[1:])
        ctx.result = results[0].shape, results[0].dtype, results[0].device
        tensors, ctx.given = list(results[len(results) - self._num_kept :]), []
        for place in self._given:
            is_tensor = isinstance(values[place], Tensor)
            tensors.append(values[place] if is_tensor else None)
            ctx.given.append(None if is_tensor else values[place])
        ctx.save_for_backward(*tensors)

    def differentiate(
        self, ctx: Any, need: list[bool], grad: Tensor | None, *_: Tensor | None
    ) -> list[Any]:
        if grad is None:
            shape, dtype, device = ctx.result
            grad = torch.empty(shape, dtype=dtype, device=device)
            if shape.numel():
                grad.zero_()
        saved = ctx.saved_tensors  # checkpoints unpack saved tensors once
        values = [grad, *saved[: self._num_kept]]
        for value, tensor in zip(ctx.given, saved[self._num_kept :], strict=True):
            values.append(value if tensor is None else tensor)
        values.append(need)
        made = self._backward.call(*values)
        gradients = [made] if isinstance(made, Tensor) else list(made[: len(self._wrt)])
        if self._rows is not None:
            table = self._wrt.index("table")
            sparse, backend, place = self._sparse
            if values[sparse] and need[table]:
                rows = RowGradients(made[-1], gradients[table], _repeats(values[backend]))
                gradients[table] = rows.to_sparse(len(values[place]))
        return gradients


def _repeats(backend: str) -> bool:
    return kernel_of(dispatch.get_backend(backend), "row_sums") is not None


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
    optional, kinds = "", [it for it in get_args(kind) if it is not NoneType]
    if NoneType in get_args(kind):
        kind, optional = kinds[0], "?"
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
    names = [it.name for it in fields(kind) if it.init] if is_dataclass(kind) else kind._fields
    parts = [_parsed(hints[name], f"{path}.{name}") for name in names]
    leaves = [leaf for some, _ in parts for leaf in some]
    _KINDS[kind.__name__] = kind
    expression = f"{kind.__name__}({', '.join(it for _, it in parts)})"
    if optional:
        expression = f"(None if {leaves[0].name} is None else {expression})"
        leaves = [
            _Leaf(it.path, f"(None if {path} is None else {it.read})", it.type.rstrip("?") + "?")
            for it in leaves
        ]
    return leaves, expression


def _count(returned: Any) -> int:
    """Count the tensors that an annotation names: a tensor, a tuple, or a NamedTuple."""
    return 1 if returned is Tensor else len(getattr(returned, "_fields", get_args(returned)))


def _moved(result: Any, device: torch.device) -> Any:
    if isinstance(result, Tensor):
        return result.to(device)
    return tuple(part.to(device) for part in result)


def _no_fake(*values: Any) -> Any:
    raise NotImplementedError("an operator needs a fake kernel")
