"""Make torch's threads sleep while they wait, and leave the environment as it was.

After an operator, the threads of GNU OpenMP spin for milliseconds on the cores that the next kernel
needs. ``OMP_WAIT_POLICY=passive`` stops the spinning. OpenMP reads the variable once, when torch is
loaded. So the variable is set while torch is imported and removed afterwards: child processes do
not inherit it.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "OMP_WAIT_POLICY"


def let_torch_sleep() -> None:
    """Set the wait policy unless torch is loaded or the environment has a policy."""
    if "torch" not in sys.modules and VARIABLE not in os.environ:
        sys.meta_path.insert(0, _BeforeTorch())


class _BeforeTorch:
    """Finder of torch that removes itself once torch is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torch's spec, which is then loaded with the policy; None for other modules."""
        if name != "torch":
            return None
        others = [
            finder
            for finder in sys.meta_path
            if finder is not self and hasattr(finder, "find_spec")
        ]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the wrapper hid the method of the class
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            with _policy():
                load(module)

        loader.exec_module = exec_module


@contextmanager
def _policy() -> Iterator[None]:
    """Set the variable within the context, unless it was set since."""
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = "PASSIVE"
    try:
        yield
    finally:
        del os.environ[VARIABLE]
