"""Triton's interpreter, made quicker for tests."""

import inspect
from typing import Any

import triton
import triton.language as tl


def quicken() -> None:
    """Patch ``triton.language`` once a launch, not again at every call of a nested function.

    A launch patches what its kernel sees and restores it; what only Triton's own library sees
    (``triton.language.core``) stays patched. Takes 40 % off a launch; without the internals that
    this knows, nothing changes.
    """
    interpreter = triton.runtime.interpreter
    patch, function = interpreter._patch_lang, interpreter.InterpretedFunction
    if not hasattr(function, "rewrite"):
        return
    patched = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in patched:
            modules = [value for value in self.fn.__globals__.values() if inspect.ismodule(value)]
            if tl not in modules:
                patch(self.fn)
            patched.add(self.fn)
        return self.rewrite()(*args, **kwargs)

    function.__call__ = call
