"""A workload that any process can import by name."""

import importlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import attrs

from sampling._arguments import check_instance, check_str, short_repr
from sampling.load.model._workload import Draw, Workload, draw_function

__all__ = ["ImportedWorkload", "as_imported_workload", "open_workload"]


@attrs.frozen
class ImportedWorkload:
    """
    A workload by import path: `ImportedWorkload("shop.load:chat", {"base_url": "http://127.0.0.1:8000/v1"})`.

    Functions and connections can't be sent to another process, but names and plain arguments can.
    The target is called with the arguments. It returns a workload, or an async context manager that yields one, for
    clients that must be opened and closed. Without arguments the target is the workload itself.
    """

    target: str
    """`package.module:name`, importable in every process."""

    arguments: Mapping[str, Any] | None = None
    """Keyword arguments for the target, in plain JSON, or None if the target is the workload itself."""

    def __attrs_post_init__(self) -> None:
        module, colon, name = check_str("target", self.target).partition(":")
        if not (module and colon and name):
            raise ValueError(f"target must be 'package.module:name', got {short_repr(self.target)}")
        if self.arguments is not None:
            check_instance("arguments", self.arguments, Mapping, "a mapping of names to JSON values, or None")

    def make(self) -> Workload | AbstractAsyncContextManager[Workload]:
        """Import the target, and call it if there are arguments."""
        module, _, path = self.target.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            if not hasattr(found, name):
                raise ValueError(f"target {self.target!r} can't be imported: {module} has no {path}")
            found = getattr(found, name)
        return cast("Workload", found if self.arguments is None else found(**self.arguments))


@asynccontextmanager
async def open_workload(workload: Workload | ImportedWorkload) -> AsyncGenerator[Draw]:
    """
    Yield the draw function of a workload.

    Only an imported workload is opened and closed here. One that was passed belongs to the caller.
    """
    made: object = workload.make() if isinstance(workload, ImportedWorkload) else workload
    if made is not workload and isinstance(made, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[object]", made) as inner:
            yield draw_function(inner)
    else:
        yield draw_function(made)


def as_imported_workload(workload: object) -> ImportedWorkload:
    """Return the workload as one that other processes can import. Raise `ValueError` if they can't."""
    if isinstance(workload, ImportedWorkload):
        return workload
    function = cast("Callable[..., object]", workload)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        raise ValueError(
            f"workload can't be imported in another process, got {short_repr(workload)}: with several workers, pass an "
            "async function at the top level of an importable module, or an ImportedWorkload"
        )
    return ImportedWorkload(f"{module}:{name}")
