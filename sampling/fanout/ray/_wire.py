"""
Messages between the driver and its workers.

They are pickled with Ray's cloudpickle, because that can send functions to another process.
Driver and workers run the same program and trust each other. Pickles are never written to a file of ours.

Objects that both sides have, such as the requirements and the action of the item, are sent by name.
This keeps results small, and the requirement in a result is the same object that the caller passed in.
"""

import io
import pickle  # noqa: TID251 - between processes of one program, never from a file
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs

from sampling._arguments import short_repr
from sampling._picklable import Picklable
from sampling.budgets import Budget
from sampling.errors import MissingExtra, NotSendable, SamplingError, WorkerLost
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
    "INSTALL_HINT",
    "Allowance",
    "Shared",
    "WorkerJob",
    "WorkerReply",
    "check_versions",
    "pack_job",
    "pack_reply",
    "pack_shared",
    "unpack",
    "unpack_reply",
    "versions",
    "with_traceback",
]

Names = Mapping[str, Any]
"""Objects that both sides have, by name."""


@attrs.frozen(kw_only=True)
class Allowance:
    """The budget of one item on a worker. None means no limit."""

    attempts: int | None = None
    requests: int | None = None
    tokens: int | None = None
    cost: float | None = None
    deadline_s: float | None = None

    def budget(self) -> Budget:
        """Return a budget with these limits."""
        return Budget(**attrs.asdict(self))


@attrs.frozen(kw_only=True)
class Shared:
    """The arguments that all items share. They are sent to each worker once."""

    strategy: BaseSamplingStrategy
    context: Context | None
    requirements: tuple[Requirement, ...]
    options: Options | None
    hooks: Hooks | None
    backend: BackendLike | None
    backend_factory: Callable[[], BackendLike] | None
    """Creates the backend on the worker, instead of `backend`."""

    max_requests: int | None = None
    """The number of requests that each worker may have in flight."""

    def names(self) -> dict[str, Any]:
        """Return the objects that both sides have, by name."""
        everywhere = (*as_requirements("requirements", self.strategy.requirements), *self.requirements)
        named: dict[str, Any] = {f"requirement {number}": one for number, one in enumerate(everywhere)}
        if self.context is not None:
            named["context"] = self.context
        if self.options is not None:
            named["options"] = self.options
        return named


@attrs.frozen(kw_only=True)
class WorkerJob:
    """One item to sample, with its spending limits."""

    item: Item[Any]
    allowance: Allowance | None

    def names(self, shared: Names) -> dict[str, Any]:
        """
        Return the objects that both sides have, by name.

        The action of this item is one of them.
        """
        return {**shared, **_names_of_action(self.item.action)}


def _names_of_action(action: Action[Any]) -> dict[str, Any]:
    parts = {"action": action, "parser": action.parser, "schema": action.schema}
    return {name: part for name, part in parts.items() if part is not None}


@attrs.frozen(kw_only=True)
class WorkerReply:
    """
    The reply of a worker about one item.

    It has neither result nor error if the item was stopped.
    """

    result: SamplingResult[Any] | None = None
    error: Exception | None = None
    exit: SystemExit | KeyboardInterrupt | None = None
    """The request of the call to end the program. The driver raises it, as if the call had run there."""

    usage: Usage = NO_USAGE
    attempts: int = 0
    requests: int = 0
    tokens: int = 0
    """The tokens that the worker's budget was charged: as reported, else as estimated."""


INSTALL_HINT = 'Install the same versions on all nodes, or let Ray do it: actor_options={"runtime_env": …}.'


def versions() -> dict[str, str]:
    """
    Return the versions that driver and workers must share, because they send each other pickles.

    That of this library is left out if it is not installed but only imported, as from the `py_modules` of Ray.
    """
    found = {"Python": ".".join(map(str, sys.version_info[:2]))}
    try:
        return {"sampling": version("sampling"), **found}
    except PackageNotFoundError:
        return found


def check_versions(driver: Mapping[str, str]) -> None:
    """Raise `WorkerLost` if the driver has other versions than this process."""
    here = versions()
    different = [
        f"{name} {here[name]} instead of {wanted}"
        for name, wanted in driver.items()
        if here.get(name, wanted) != wanted
    ]
    if different:
        raise WorkerLost(f"a worker has {' and '.join(different)}", hint=INSTALL_HINT)


def pack_shared(
    work: Work, backend_factory: Callable[[], BackendLike] | None, max_requests: int | None = None
) -> tuple[bytes, Shared]:
    """Pickle the shared arguments. Raise `NotSendable`, naming the part, if one can't be pickled."""
    parts: dict[str, Any] = {
        "strategy": work.strategy,
        "context": work.context,
        "requirements": work.requirements,
        "options": work.options,
        "hooks": work.hooks,
        "backend": None if backend_factory is not None else work.backend,
        "backend_factory": backend_factory,
        "max_requests": max_requests,
    }
    shared = Shared(**parts)
    try:
        return pack(shared), shared
    except Exception as error:
        raise _not_sendable(parts, error) from error


def _not_sendable(parts: Mapping[str, Any], error: Exception) -> NotSendable:
    """Return an error that names the unpicklable part."""
    for name, part in parts.items():
        try:
            pack(part)
        except Exception as cause:  # noqa: BLE001 - pickling user objects may raise anything
            hint = _BACKEND_HINT if name == "backend" else None
            return NotSendable(f"the {name} {short_repr(part)}", cause, hint=hint)
    return NotSendable("the shared arguments", error)


_BACKEND_HINT = "Pass RayEngine(backend_factory=…), a function that creates the backend on each worker."


def pack_job(job: WorkerJob) -> bytes:
    """Pickle one item."""
    try:
        return pack(job)
    except Exception as error:
        raise NotSendable(f"the item {job.item.key!r}", error) from error


def pack(thing: object, names: Names | None = None, *, degrade_errors: bool = False) -> bytes:
    """
    Pickle an object. Objects in `names` are replaced by their names.

    With `degrade_errors`, errors are sent without what can't be pickled.
    """
    buffer = io.BytesIO()
    packer = _DegradingPacker if degrade_errors else _Packer
    packer(buffer, names or {}).dump(thing)
    return buffer.getvalue()


def unpack(packed: bytes, names: Names | None = None) -> Any:
    """Unpickle an object. Names are replaced by the objects in `names`."""
    return _Unpacker(io.BytesIO(packed), names or {}).load()


_Pickler: Any = cloudpickle.Pickler


class _Packer(_Pickler):  # type: ignore[misc]
    def __init__(self, buffer: io.BytesIO, names: Names) -> None:
        super().__init__(buffer)  # pyright: ignore[reportUnknownMemberType]
        self._names = {id(thing): name for name, thing in names.items()}

    def persistent_id(self, obj: object) -> str | None:
        return self._names.get(id(obj))

    def reducer_override(self, obj: object) -> Any:
        # Ours too, because their own reduction leaves out causes, and attributes that only cloudpickle can send.
        if isinstance(obj, BaseException) and (isinstance(obj, Picklable) or _has_builtin_reduce(obj)):
            _, args, *state = _builtin_base(type(obj)).__reduce__(obj)
            return self._reduced(obj, args, {**dict(*filter(None, state)), **_state_of(obj)})
        return super().reducer_override(obj)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def _reduced(self, error: BaseException, args: tuple[Any, ...], attributes: dict[str, Any]) -> tuple[Any, ...]:
        return _without_init, (type(error), args), attributes


class _DegradingPacker(_Packer):
    """
    Replaces what can't be pickled in errors, such as the response of an SDK, and adds a note about it.

    It tries each part of each error, so it is used only after the other packer has failed.
    """

    def __init__(self, buffer: io.BytesIO, names: Names) -> None:
        super().__init__(buffer, names)
        self._things = names

    def _reduced(self, error: BaseException, args: tuple[Any, ...], attributes: dict[str, Any]) -> tuple[Any, ...]:
        # The errors of a group, and causes, are degraded themselves.
        if not _is_group(error):
            args = tuple(one if self._can_pack(one) else short_repr(one) for one in args)
        left_out = [name for name, value in attributes.items() if not self._can_pack(value)]
        if left_out:
            note = f"not sent from the worker: {', '.join(left_out)}"
            notes = [*attributes.get("__notes__", ()), note]
            attributes = {**attributes, **dict.fromkeys(left_out), "__notes__": notes}
        return super()._reduced(error, args, attributes)

    def _can_pack(self, part: object) -> bool:
        if isinstance(part, BaseException):
            return True
        try:
            pack(part, self._things, degrade_errors=True)
        except Exception:  # noqa: BLE001 - pickling user objects may raise anything
            return False
        return True


def _has_builtin_reduce(error: BaseException) -> bool:
    """
    Return whether an error has the reduction of the builtin error that it is or is derived from.

    That calls the class with the arguments of the builtin one, which few classes accept.
    """
    kind = type(error)
    return kind.__reduce__ is _builtin_base(kind).__reduce__


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)


def _builtin_base(kind: type[BaseException]) -> Any:
    """Return the builtin error that determines the layout of a class."""
    base: Any = kind
    while base.__module__ != "builtins":
        base = base.__base__
    return base


def _state_of(error: BaseException) -> dict[str, Any]:
    return {**vars(error), "__cause__": error.__cause__, "__suppress_context__": error.__suppress_context__}


def _without_init(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Make an error with the constructor of its builtin base, which sets attributes such as `errno`."""
    base = _builtin_base(kind)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    return error


class _Unpacker(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, names: Names) -> None:
        super().__init__(buffer)
        self._names = names

    def persistent_load(self, pid: Any) -> Any:
        return self._names[pid]


def pack_reply(reply: WorkerReply, names: Names) -> bytes:
    """
    Pickle a reply. If its outcome can't be pickled, a `NotSendable` error replaces it.

    An error keeps its type even if a part of it can't be pickled: the type decides whether the item is tried again.
    The outcome is a pickle inside of the reply, so that the driver learns what was spent even if it can't read it.
    """
    what = _described(reply)
    parts = (reply.result, reply.error, reply.exit)
    try:
        outcome = pack(parts, names)
    except Exception:  # noqa: BLE001 - pickling user objects may raise anything
        try:
            outcome = pack(parts, names, degrade_errors=True)
        except Exception as cause:  # noqa: BLE001 - as above
            outcome = pack((None, NotSendable(what, cause), None))
    return pack((attrs.evolve(reply, result=None, error=None, exit=None), what, outcome))


def _described(reply: WorkerReply) -> str:
    """Return what a reply holds, for an error that says that it can't be sent."""
    if reply.error is None:
        return "the result"
    try:
        return f"the error {type(reply.error).__name__}: {reply.error}"
    except Exception:  # noqa: BLE001 - an error of others may have no text
        return f"the error {type(reply.error).__name__}"


def unpack_reply(packed: bytes, names: Names) -> WorkerReply:
    """Unpickle a reply of a worker. If its outcome can't be unpickled, a `NotSendable` error replaces it."""
    reply: WorkerReply
    reply, what, outcome = unpack(packed)
    try:
        result, error, exit_request = unpack(outcome, names)
    except Exception as cause:  # noqa: BLE001 - unpickling user objects may raise anything
        return attrs.evolve(reply, error=NotSendable(what, cause))
    return attrs.evolve(reply, result=result, error=error, exit=exit_request)


def with_traceback(error: Exception) -> Exception:
    """Add the traceback of an unexpected error as a note. Pickling loses the traceback itself."""
    if not isinstance(error, SamplingError):
        lines = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        error.add_note(f"raised on a worker:\n{lines}")
    return error
