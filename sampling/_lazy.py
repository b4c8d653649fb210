"""
Import names of a package on first use (PEP 562), and whole modules.

The package then works without the extras of these names.
"""

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["lazy_attributes", "on_first_use"]


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """
    Return a `__getattr__` that imports names on first use.

    `homes` maps each name to the module that defines it.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's own
        home = homes.get(name)
        if home is None:
            # With them, tracebacks suggest the name that was probably meant.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules.get(package)
            )
        return getattr(import_module(home), name)

    return __getattr__


def on_first_use(module: str) -> Callable[[], Any]:
    """Return a function that imports a module and returns it."""

    @cache
    def load() -> Any:
        return import_module(module)

    return load
