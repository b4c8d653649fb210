"""A workload that is named instead of passed: made where it is used, in this process or in another."""

import importlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import attrs

from sampling._arguments import check_instance, check_str, shown
from sampling.load.model._workload import Draw, Workload, draw_function

__all__ = ["ImportedWorkload", "as_imported_workload", "open_workload"]


@attrs.frozen
class ImportedWorkload:
    """
    A workload by its address: `ImportedWorkload("shop.load:chat", {"base_url": "http://127.0.0.1:8000/v1"})`.

    Functions and connections can't be sent to another process, but names and plain arguments can.
    What the address leads to is called with the arguments and returns a workload, or an async context manager
    that yields one, for clients that must be opened and closed. Without arguments it is the workload itself.
    """

    target: str
    """`package.module:name`, importable in every process."""

    arguments: Mapping[str, Any] | None = None
    """What to call it with, in plain JSON; None if it is the workload itself."""

    def __attrs_post_init__(self) -> None:
        module, colon, name = check_str("target", self.target).partition(":")
        if not (module and colon and name):
            raise ValueError(f"target must be 'package.module:name', got {shown(self.target)}")
        if self.arguments is not None:
            check_instance("arguments", self.arguments, Mapping, "a mapping of names to JSON values, or None")

    def make(self) -> Workload | AbstractAsyncContextManager[Workload]:
        """Import it, and call it if it is to be called."""
        module, _, path = self.target.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            if not hasattr(found, name):
                raise ValueError(f"target {self.target!r} leads nowhere: {module} has no {path}")
            found = getattr(found, name)
        return cast("Workload", found if self.arguments is None else found(**self.arguments))


@asynccontextmanager
async def open_workload(workload: Workload | ImportedWorkload) -> AsyncGenerator[Draw]:
    """
    Give what draws from a workload, for as long as it is needed.

    One that was passed is open already, if it has to be; one that is made here is opened and closed here.
    """
    made: object = workload.make() if isinstance(workload, ImportedWorkload) else workload
    if made is not workload and isinstance(made, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[object]", made) as inner:
            yield draw_function(inner)
    else:
        yield draw_function(made)


def as_imported_workload(workload: object) -> ImportedWorkload:
    """Return a workload that other processes can make: a function at the top of a module has a name already."""
    if isinstance(workload, ImportedWorkload):
        return workload
    function = cast("Callable[..., object]", workload)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        raise ValueError(
            f"workload can't be made in another process, got {shown(workload)}: with several workers, pass an async "
            "function at the top of a module that can be imported, or an ImportedWorkload that makes one"
        )
    return ImportedWorkload(f"{module}:{name}")
