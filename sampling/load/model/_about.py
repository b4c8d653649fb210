"""Describe the workload and the environment of a run."""

import hashlib
import importlib.util
import inspect
import json
import platform
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import anyio

from sampling.load.model._imported_workload import ImportedWorkload

__all__ = [
    "DETAILS_OF_A_RUN",
    "describe_briefly",
    "describe_run",
    "describe_workload",
    "digest",
    "is_real_clock",
    "name_of",
]

DETAILS_OF_A_RUN = ("sampling", "python", "started")
"""The parts of a description that differ between two runs of the same workload."""


def describe_workload(workload: object) -> dict[str, Any]:
    """
    Describe a workload and its target, in JSON types.

    A workload may have a method `describe()` that returns a mapping. Otherwise its name and a digest of its source are
    used, so that a changed workload is told from the one before.
    """
    if isinstance(workload, ImportedWorkload):
        arguments = json.dumps(workload.arguments, sort_keys=True, default=repr)
        # Arguments may hold keys, so only a digest tells them apart.
        return {
            "workload": workload.target,
            "code": _digest_of_module(workload.target.partition(":")[0]),
            "arguments": None if workload.arguments is None else digest([arguments]),
        }
    describe = getattr(workload, "describe", None)
    if callable(describe) and not isinstance(workload, type):
        return dict(cast("Mapping[str, Any]", describe()))
    return {"workload": name_of(workload), "code": _digest_of_source(workload)}


def _digest_of_source(workload: object) -> str | None:
    """Return a digest of the source of a function or of an object's class, or None if it is not known."""
    named: Any = workload if hasattr(workload, "__qualname__") else type(workload)
    try:
        return digest([inspect.getsource(named)])
    except (OSError, TypeError):
        return None


def _digest_of_module(name: str) -> str | None:
    """Return a digest of the source of a module, or None if it is not known. The module is not imported."""
    if name.startswith("sampling."):
        # It is described by the command that uses it.
        return None
    try:
        spec = importlib.util.find_spec(name)
        return None if spec is None or spec.origin is None else digest([Path(spec.origin).read_text("utf-8")])
    except (ImportError, OSError, ValueError):
        return None


def describe_run() -> dict[str, Any]:
    """Return the versions and the time, which is virtual in virtual time."""
    now_s = anyio.current_time()
    started = datetime.now(UTC).isoformat(timespec="seconds") if is_real_clock() else f"virtual clock, {now_s:g} s"
    try:
        ours = version("sampling")
    except PackageNotFoundError:  # a source tree that is not installed
        ours = "unknown"
    return {"sampling": ours, "python": platform.python_version(), "started": started}


def describe_briefly(about: Mapping[str, Any]) -> str:
    """Return a description as one line."""
    return ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)


def digest(texts: Iterable[str]) -> str:
    """Return a short digest of texts, to tell whether two runs sent the same ones."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def name_of(thing: object) -> str:
    """Return the import path of a function, or of the class of an object."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{getattr(named, '__qualname__', named.__class__.__qualname__)}"


def is_real_clock() -> bool:
    """Return True for a real clock. A virtual clock stands still while code runs."""
    before, began_s = anyio.current_time(), time.monotonic()
    while time.monotonic() == began_s:
        pass
    return anyio.current_time() != before
