"""
What travels between the driver and its workers.

It is pickled, with the cloudpickle that Ray brings: that is how functions get to another process.
Driver and workers trust each other, they run the same program; nothing of this is ever written to a file of ours.

What both sides have anyway, such as the requirements and the item's own question, is sent as a name:
a result is small, and the requirement in it is the very one that the caller passed in.
"""

import io
import pickle  # noqa: TID251 - between processes of one program, never from a file
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from sampling._arguments import shown
from sampling.budgets import Budget
from sampling.errors import MissingExtra, NotSendable, SamplingError
from sampling.fanout.engines import Work
from sampling.fanout.items import Item
from sampling.hooks import Hooks
from sampling.messages import Action, Context, Options
from sampling.protocols import BackendLike
from sampling.requirements import Requirement, as_requirements
from sampling.results import SamplingResult
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import NO_USAGE, Usage

try:
    from ray import cloudpickle
except ImportError as error:
    raise MissingExtra("the cluster", "ray", "ray") from error

__all__ = [
    "Allowance",
    "Job",
    "Reply",
    "Shared",
    "pack_job",
    "pack_reply",
    "pack_shared",
    "unpack",
    "unpack_reply",
    "with_traceback",
]

Names = Mapping[str, Any]
"""What both sides have, by the names that they use for it."""


@attrs.frozen(kw_only=True)
class Allowance:
    """What one item may spend: the limits of the worker's own budget. None is no limit."""

    attempts: int | None = None
    requests: int | None = None
    tokens: int | None = None
    cost: float | None = None
    deadline_s: float | None = None

    def budget(self) -> Budget:
        """Make a budget with these limits."""
        return Budget(**attrs.asdict(self))


@attrs.frozen(kw_only=True)
class Shared:
    """What all items of a run have in common: a worker gets it once."""

    strategy: BaseSamplingStrategy
    context: Context | None
    requirements: tuple[Requirement, ...]
    options: Options | None
    hooks: Hooks | None
    backend: BackendLike | None
    backend_factory: Callable[[], BackendLike] | None
    """Makes the backend on the worker, instead."""

    def names(self) -> dict[str, Any]:
        """Name what both sides have."""
        everywhere = (*as_requirements("requirements", self.strategy.requirements), *self.requirements)
        named: dict[str, Any] = {f"requirement {number}": one for number, one in enumerate(everywhere)}
        if self.context is not None:
            named["context"] = self.context
        if self.options is not None:
            named["options"] = self.options
        return named


@attrs.frozen(kw_only=True)
class Job:
    """One item, and what it may spend."""

    item: Item[Any]
    allowance: Allowance | None

    def names(self, shared: Names) -> dict[str, Any]:
        """Name what both sides have, the question of this item among it."""
        return {**shared, **_names_of_action(self.item.action)}


def _names_of_action(action: Action[Any]) -> dict[str, Any]:
    parts = {"action": action, "parser": action.parser, "schema": action.schema}
    return {name: part for name, part in parts.items() if part is not None}


@attrs.frozen(kw_only=True)
class Reply:
    """What became of one item on a worker; with neither result nor error, it was stopped before its end."""

    result: SamplingResult[Any] | None = None
    error: Exception | None = None
    usage: Usage = NO_USAGE
    attempts: int = 0
    requests: int = 0
    tokens: int = 0
    """What the worker's budget was charged: as reported, or as estimated where nothing was reported."""


def pack_shared(work: Work, backend_factory: Callable[[], BackendLike] | None) -> tuple[bytes, Shared]:
    """Pack what all items have in common; what can't be sent is a `NotSendable` that says which part it is."""
    parts: dict[str, Any] = {
        "strategy": work.strategy,
        "context": work.context,
        "requirements": work.requirements,
        "options": work.options,
        "hooks": work.hooks,
        "backend": None if backend_factory is not None else work.backend,
        "backend_factory": backend_factory,
    }
    shared = Shared(**parts)
    try:
        return pack(shared), shared
    except Exception as error:
        raise _blame(parts, error) from error


def _blame(parts: Mapping[str, Any], error: Exception) -> NotSendable:
    """Find out which part it is that can't be pickled."""
    for name, part in parts.items():
        try:
            pack(part)
        except Exception as cause:  # noqa: BLE001 - anything may be in there, and anything may come of it
            hint = _MAKE_IT_THERE if name == "backend" else None
            return NotSendable(f"the {name} {shown(part)}", cause, hint=hint)
    return NotSendable("what all items have in common", error)


_MAKE_IT_THERE = "Pass RayEngine(backend_factory=…), a function that makes the backend on each worker."


def pack_job(job: Job) -> bytes:
    """Pack one item."""
    try:
        return pack(job)
    except Exception as error:
        raise NotSendable(f"the item {job.item.key!r}", error) from error


def pack(thing: object, names: Names | None = None) -> bytes:
    """Turn a thing into bytes, with what `names` names left out."""
    buffer = io.BytesIO()
    _Packer(buffer, names or {}).dump(thing)
    return buffer.getvalue()


def unpack(packed: bytes, names: Names | None = None) -> Any:
    """Make a thing of bytes from the other side, with what `names` names put in."""
    return _Unpacker(io.BytesIO(packed), names or {}).load()


_Pickler: Any = cloudpickle.Pickler


class _Packer(_Pickler):  # type: ignore[misc]
    def __init__(self, buffer: io.BytesIO, names: Names) -> None:
        super().__init__(buffer)  # pyright: ignore[reportUnknownMemberType]
        self._names = {id(thing): name for name, thing in names.items()}

    def persistent_id(self, obj: object) -> str | None:
        return self._names.get(id(obj))

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, BaseException) and _reduces_plainly(obj):
            return _without_init, (type(obj), obj.args), _state_of(obj)
        return super().reducer_override(obj)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _reduces_plainly(error: BaseException) -> bool:
    """Tell whether an error is pickled as most are: by calling its class with its args, which few classes can take."""
    kind = type(error)
    return kind.__module__ != "builtins" and kind.__reduce__ is BaseException.__reduce__


def _state_of(error: BaseException) -> dict[str, Any]:
    return {**vars(error), "__cause__": error.__cause__, "__suppress_context__": error.__suppress_context__}


def _without_init(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *args)


class _Unpacker(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, names: Names) -> None:
        super().__init__(buffer)
        self._names = names

    def persistent_load(self, pid: Any) -> Any:
        return self._names[pid]


def pack_reply(reply: Reply, names: Names) -> bytes:
    """Pack what became of an item; where a part of it can't be sent, the reply is an error that says so."""
    try:
        return pack(reply, names)
    except Exception as cause:  # noqa: BLE001 - a value is the user's own, and so is the way it is pickled
        what = "the result" if reply.error is None else f"the error {type(reply.error).__name__}: {reply.error}"
        return pack(attrs.evolve(reply, result=None, error=NotSendable(what, cause)), names)


def unpack_reply(packed: bytes, names: Names) -> Reply:
    """Make a reply of bytes from a worker."""
    try:
        reply: Reply = unpack(packed, names)
    except Exception as error:
        raise NotSendable("the result", error) from error
    return reply


def with_traceback(error: Exception) -> Exception:
    """Keep where an unexpected error came from, for a traceback does not travel."""
    if not isinstance(error, SamplingError):
        lines = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        error.add_note(f"raised on a worker:\n{lines}")
    return error
