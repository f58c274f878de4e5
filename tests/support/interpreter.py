"""Triton's interpreter, made quicker for tests, and rounding as a GPU does."""

import dataclasses
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language import core, semantic
from triton.runtime import interpreter


def quicken() -> None:
    """Keep what the interpreter makes anew at every operation; a launch takes a third of its time.

    Where Triton has not the internals that this knows, nothing changes.
    """
    if hasattr(interpreter.InterpretedFunction, "rewrite"):
        _patch_once_a_launch()
    if {"_get_np_dtype", "_validate_np_data_size"} <= vars(interpreter).keys():
        _keep_types()
        _compare_what_is_kept()


def round_to_nearest() -> None:
    """Round float32 to bfloat16 to nearest, ties to even, as GPUs do: the interpreter cuts it."""
    convert = interpreter._convert_float

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(values, source, target, mode)
        numbers = torch.from_numpy(np.array(values, np.float32))
        return numbers.bfloat16().view(torch.uint16).numpy()

    interpreter._convert_float = rounded


def keep_masks_bools() -> None:
    """Make bools of the masks of loads and stores: Triton 3.9 refuses the integers of its ``&``."""
    builder = interpreter.InterpreterBuilder

    def of_bools(place: int, made: Any) -> Any:
        def call(self: Any, *args: Any, **rest: Any) -> Any:
            mask = interpreter.TensorHandle(args[place].data.astype(bool, copy=False), tl.int1)
            return made(self, *args[:place], mask, *args[place + 1 :], **rest)

        return call

    builder.create_masked_load = of_bools(1, builder.create_masked_load)
    builder.create_masked_store = of_bools(2, builder.create_masked_store)


def _patch_once_a_launch() -> None:
    """Patch ``triton.language`` once a launch, not again at every call of a nested function."""
    patched = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in patched:
            modules = [value for value in self.fn.__globals__.values() if inspect.ismodule(value)]
            if tl not in modules:
                interpreter._patch_lang(self.fn)
            patched.add(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


def _keep_types() -> None:
    """Look up shapes and dtypes that occurred before; do not look for overflow of integers."""
    of_any, of_scalar = interpreter._get_np_dtype, cache(interpreter._get_np_dtype)
    no_shape, one = core.tuple([]), core.constexpr(1)

    def np_dtype(dtype: Any) -> Any:
        is_pointer = isinstance(dtype.scalar, tl.pointer_type)
        return of_any(dtype) if is_pointer else of_scalar(dtype.scalar)

    @cache
    def shape_facts(sizes: tuple[int, ...]) -> tuple[Any, ...]:
        assert sizes, "a block has an axis"
        numel, shape = core.validate_block_shape(sizes), core.tuple(sizes)
        constants = core.tuple([core.constexpr(size) for size in sizes])
        return shape, numel, constants, core.constexpr(numel)

    def make_block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(getattr(size, "value", size) for size in shape)
        self.shape, self.numel, *self.of_tensors = shape_facts(sizes)
        self.element_ty, self.name = element_ty, f"<{sizes}, {element_ty}>"

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensors if type.is_block() else (no_shape, one)

    def fits(array: Any, dtype: Any) -> bool:
        is_pointer = isinstance(dtype, tl.pointer_type)
        return is_pointer or array.itemsize * 8 <= max(8, dtype.primitive_bitwidth)

    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype, interpreter._validate_np_data_size = np_dtype, fits
    core.block_type.__init__, core.tensor.__init__ = make_block, make_tensor


def _compare_what_is_kept() -> None:
    """Compare shapes and dtypes by identity first."""
    true = core.constexpr(True)
    same_dtype, same_tuple = core.dtype.__eq__, core.tuple.__eq__
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def broadcast_unless_same(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    core.dtype.__eq__ = lambda self, other: self is other or same_dtype(self, other)
    core.tuple.__eq__ = lambda self, other: true if self is other else same_tuple(self, other)
    semantic.TritonSemantic.broadcast_impl_value = broadcast_unless_same


@contextmanager
def shuffled_programs(seed: int) -> Iterator[None]:
    """Within, the programs of every launch run in another order, which the seed chooses."""
    builder, random = interpreter.interpreter_builder, Random(seed)
    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx
    dims, places = (1, 1, 1), iter([0])

    def set_grid_dim(*sizes: int) -> None:
        nonlocal dims, places
        dims = sizes
        places = iter(random.sample(range(math.prod(sizes)), math.prod(sizes)))
        set_dim(*sizes)

    def set_grid_index(*_: int) -> None:
        rest, z = divmod(next(places), dims[2])
        x, y = divmod(rest, dims[1])
        set_index(x, y, z)

    builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_index
    try:
        yield
    finally:
        builder.set_grid_dim, builder.set_grid_idx = set_dim, set_index
