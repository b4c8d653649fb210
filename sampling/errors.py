"""
Everything that `sampling` raises.

    SamplingError
    ├── BackendError                 the model's side
    │   ├── TransientError           may pass on another try
    │   │   ├── RateLimited
    │   │   ├── Timeout
    │   │   ├── ServerError
    │   │   ├── ConnectFailed        the server was not reached
    │   │   ├── ConnectionLost       it was, and may have done the work
    │   │   ├── WorkerLost           the process that made a call died, and died again
    │   │   ├── Incomplete           an answer without an end
    │   │   └── MalformedResponse
    │   ├── FatalError               never will
    │   │   ├── AuthenticationFailed
    │   │   ├── BadRequest
    │   │   │   └── RequestTooLarge
    │   │   ├── CassetteMiss         a replay is asked what was never recorded
    │   │   ├── CertificateInvalid
    │   │   ├── ModelNotFound
    │   │   ├── QuotaExhausted
    │   │   └── Redirected
    │   └── ResponseTooLarge         ends its subsample only
    ├── BudgetExceeded               a request that the budget has no room for
    ├── NoValidAnswer                what `result.unwrap()` raises
    ├── CheckTimeout                 a requirement's check took too long
    ├── BadVerdict (TypeError)       a check that answered neither yes nor no
    ├── UnclearJudgement             a model that judged, and can't be understood
    ├── HookTimeout                  a hook took too long
    ├── SelectionFailed              `select` or `select_from_failure` gave no slice of this call
    ├── ContextTooLarge              a repair that makes the conversation grow without end
    ├── FileRefused (ValueError)     a cassette or a cache that is damaged, or not ours
    ├── JournalError                 the durable record of a fan-out
    │   ├── JournalLocked            another run is writing it
    │   ├── JournalMismatch          it is of another run, or something has changed since
    │   ├── JournalDamaged           it can't be trusted
    │   ├── JournalTooNew            a newer version has written it
    │   └── JournalWriteFailed       it could not be written; what is not in it is on the error
    ├── ErrorFromJournal             an error of a type that is not restored
    ├── PluginFailed                 a plugin that can't be loaded
    ├── PreflightFailed              the first request of a long load run failed
    ├── NotSendable (TypeError)      something that can't get to a worker of a cluster, or back
    ├── WorkerFailed                 a process that makes load could not be started, or died
    ├── MissingExtra (ImportError)   an optional dependency that is not installed
    ├── WrongThread (RuntimeError)   a running call touched from a thread that is not its own
    └── InsideEventLoop (RuntimeError)   `sample_sync` called where `await sample` is needed

Every class says whether another try may help (`retryable`) and what to do about it (`hint`, a note in the traceback).
Wrong arguments are plain `TypeError` and `ValueError`, raised where they are passed in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from sampling.fanout.items import ItemOutcome
    from sampling.results import SamplingResult, Slice

__all__ = [
    "AuthenticationFailed",
    "BackendError",
    "BadRequest",
    "BadVerdict",
    "BudgetExceeded",
    "CassetteMiss",
    "CertificateInvalid",
    "CheckTimeout",
    "ConnectFailed",
    "ConnectionLost",
    "ContextTooLarge",
    "ErrorFromJournal",
    "FatalError",
    "FileRefused",
    "HookTimeout",
    "Incomplete",
    "InsideEventLoop",
    "JournalDamaged",
    "JournalError",
    "JournalLocked",
    "JournalMismatch",
    "JournalTooNew",
    "JournalWriteFailed",
    "MalformedResponse",
    "MissingExtra",
    "ModelNotFound",
    "NoValidAnswer",
    "NotSendable",
    "PluginFailed",
    "PreflightFailed",
    "QuotaExhausted",
    "RateLimited",
    "Redirected",
    "RequestTooLarge",
    "ResponseTooLarge",
    "SamplingError",
    "SelectionFailed",
    "ServerError",
    "Timeout",
    "TransientError",
    "UnclearJudgement",
    "WorkerLost",
    "WrongThread",
]


class SamplingError(Exception):
    """The root of the tree: `except SamplingError` catches all that this library raises of its own."""

    retryable: ClassVar[bool] = False
    """Whether the same request may succeed on another try."""

    hint: str = ""
    """What to do about it, in one sentence."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
        if self.hint:
            self.add_note(f"hint: {self.hint}")


class BackendError(SamplingError):
    """The backend gave no answer."""

    status: int | None = None
    """The HTTP status, where there was one."""

    maybe_billed: bool = False
    """Whether the server may have done the work, and charge for it, although nothing usable came back."""

    partial_text: str | None = None
    """What had come of the answer by then. It is here to look at, never to be used as an answer."""


class TransientError(BackendError):
    """The backend gave no answer this time; another try may succeed. It costs one attempt."""

    retryable = True
    hint = "Another try may succeed: raise loop_budget, or wrap the backend in a layer that retries."


class RateLimited(TransientError):
    """The backend asked for fewer requests."""

    hint = "Lower concurrency_budget, or limit the rate at the backend."

    def __init__(
        self,
        message: str = "the backend refused the request: too many requests",
        *,
        retry_after_s: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        """How long the backend asked to wait, if it said so."""


class Timeout(TransientError):
    """The backend took longer than it may."""

    hint = "Raise the backend's timeout, or ask for fewer tokens."


class ServerError(TransientError):
    """The server failed, or is overloaded."""

    hint = "The server's own trouble: try again later, or ask another one."

    def __init__(self, message: str, *, retry_after_s: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        """How long the server asked to wait, if it said so."""


class ConnectFailed(TransientError):
    """The server could not be reached; nothing was sent."""

    hint = "Check base_url, that the server is running, and the network."


class ConnectionLost(TransientError):
    """The connection broke after the request was sent: the server may have done the work, and charge for it."""

    hint = "Another try asks, and pays, again from the start: what came before the break can't be continued."
    maybe_billed = True


class WorkerLost(TransientError):
    """The worker of a cluster that ran an item died, and so did the one that ran it once more."""

    hint = "If it is always the same item, it may be what kills them; else look at the workers' memory and Ray's logs."
    maybe_billed = True

    def __init__(self, message: str = "the worker that ran this died", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)


class Incomplete(TransientError):
    """The answer stopped without saying that it is finished."""

    hint = "If this server never sends a finish_reason, pass allow_missing_finish=True to the backend."
    maybe_billed = True


class MalformedResponse(TransientError):
    """The server answered with something that is not an answer."""

    hint = "Check that base_url is that of an OpenAI-compatible API, with its /v1, and not of a proxy or a web page."
    maybe_billed = True


class FatalError(BackendError):
    """The backend will never answer this. It ends the call at once, and its siblings with it."""


class AuthenticationFailed(FatalError):
    """The backend does not accept the key."""

    hint = "Check the key, and that it belongs to this base_url."


class BadRequest(FatalError):
    """The backend does not accept the request as it is."""

    hint = "The same request fails every time: change the options or the messages."


class RequestTooLarge(BadRequest):
    """The request is longer than the backend, or the server, allows."""

    hint = "Send fewer or shorter messages, or raise the backend's max_request_bytes."


class CassetteMiss(FatalError):
    """A replay was asked something that the recording has no answer to."""

    hint = "Record again, or make the request as it was: the message says what differs from the nearest one."


class CertificateInvalid(FatalError):
    """The server's certificate does not prove that it is who base_url names; nothing was sent."""

    hint = "For a private certificate authority, pass ssl_context=ssl.create_default_context(cafile=…)."


class ModelNotFound(FatalError):
    """The backend has no model of that name."""

    hint = "Check the model's name against the list that the server gives."


class QuotaExhausted(FatalError):
    """The account has nothing left to pay with."""

    hint = "Check the plan and the billing of the account that the key belongs to."


class Redirected(FatalError):
    """The server wants the request to be sent elsewhere. It is not: the key would go with it."""

    hint = "If the new address is right, give it as base_url."


class ResponseTooLarge(BackendError):
    """The answer was longer than the backend allows, and was cut off."""

    hint = "Ask for fewer tokens, or raise the backend's max_response_bytes."
    maybe_billed = True


class BudgetExceeded(SamplingError):
    """A request was not sent because the budget has no room for it."""

    hint = "Raise the limit that the message names, or ask for less."


class NoValidAnswer(SamplingError):
    """No answer met the requirements. The whole result is on `.result`."""

    hint = "Read result.explain(): it shows every attempt and which requirement failed."

    def __init__(self, result: "SamplingResult[Any]") -> None:
        super().__init__(str(result))
        self.result = result


class CheckTimeout(SamplingError):
    """A requirement's check did not answer in time; the attempt counts as invalid."""

    hint = "Raise the requirement's timeout_s, or make the check faster."

    def __init__(self, requirement: str, timeout_s: float) -> None:
        super().__init__(f"the check of requirement {requirement!r} took longer than {timeout_s:g} s")


class BadVerdict(SamplingError, TypeError):
    """A check answered with something that is neither yes nor no."""

    hint = "Return True or False, Validation(passed, reason, score), or (passed, reason)."


class UnclearJudgement(SamplingError):
    """A model that was asked to judge gave no verdict that can be read; the attempt counts as invalid."""

    hint = "Judge with a model that follows instructions, or word the requirement so that yes or no is an answer."

    def __init__(self, requirement: str, allowed: str) -> None:
        super().__init__(f"the judge of requirement {requirement!r} did not reply with {allowed}")


class HookTimeout(SamplingError):
    """A hook did not return in time and was cut off."""

    hint = "Do slow work outside the hook, or give it more time: hooks.on(…, timeout_s=…)."

    def __init__(self, hook: str, event: str, timeout_s: float) -> None:
        super().__init__(f"hook {hook!r} on {event} took longer than {timeout_s:g} s")


class SelectionFailed(SamplingError):
    """A strategy's own choice of the answer failed. What had been sampled is on `.slices`."""

    hint = "select and select_from_failure must return one of the slices that they were given."

    def __init__(self, message: str, slices: "Sequence[Slice[Any]]") -> None:
        super().__init__(message)
        self.slices = tuple(slices)


class ContextTooLarge(SamplingError):
    """A repair returned a conversation that is longer than the strategy allows; its subsample ends."""

    hint = "Keep fewer turns in repair(), or raise the strategy's max_context_chars."

    def __init__(self, chars: int, limit: int) -> None:
        super().__init__(f"repair() returned a context of {chars:,} characters; max_context_chars is {limit:,}")


class FileRefused(SamplingError, ValueError):
    """A file that is read back is damaged, of another version, or was never written by this library."""

    hint = "Delete it and let it be written anew, or restore it from where it is whole."


class JournalError(SamplingError):
    """Something is wrong with the journal of a fan-out. Nothing that is in it was changed."""


class JournalLocked(JournalError):
    """Another run holds the journal. Its lock ends with its process, however that ends."""

    hint = "Wait for that run to end, or end it; or give this one a journal of its own."


class JournalMismatch(JournalError, ValueError):
    """The journal is of another run: the strategy, the requirements, the options or the items are not the same."""

    hint = (
        "Make the call as it was, or name another file for a new run. "
        'To go on all the same, with the answers that are there: Journal(path, on_change="continue").'
    )

    def __init__(self, message: str, differences: "Sequence[str]" = ()) -> None:
        super().__init__("\n  ".join([message, *differences]))
        self.differences = tuple(differences)
        """What is different, a line each."""


class JournalDamaged(JournalError, ValueError):
    """The file is no journal, or not as it was written. It is left as it is, and nothing is asked anew."""

    hint = "Restore it from a copy, or start a new run in another file; sqlite3's .recover may save what is in it."


class JournalTooNew(JournalError):
    """The journal was written by a newer version, which may mean something else by it."""

    hint = "Upgrade sampling, or go on with the version that began the run."


class JournalWriteFailed(JournalError):
    """
    The journal could not be written, so the run was stopped: nothing new was started.

    What had been stored is safe. What finished and could not be stored is on `.unsaved`.
    """

    hint = (
        "Make room on the disk, or make the file writable; then make the same call again: "
        "it asks only for what is not in the journal."
    )

    def __init__(self, message: str, unsaved: "Sequence[ItemOutcome[Any]]" = ()) -> None:
        super().__init__(message)
        self.unsaved = tuple(unsaved)
        """The outcomes that were paid for and are not in the journal, by index."""


class ErrorFromJournal(SamplingError):
    """What an item raised in an earlier process, where its own type is none of ours and none of Python's."""

    def __init__(self, message: str, type_name: str) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        """The name of the type that was raised."""


class PluginFailed(SamplingError):
    """An installed plugin could not be loaded."""

    hint = "Fix or uninstall the distribution that brings it, or set SAMPLING_PLUGINS=off."


class PreflightFailed(SamplingError):
    """The one request that is sent before a long load run failed, so the run would have measured nothing."""

    hint = "Send one request by hand: check the address, the key, the model and that the server is up."


class NotSendable(SamplingError, TypeError):
    """Something can't be sent to a worker of a cluster, or back from it."""

    hint = "Make it of plain values, or of functions and classes that the workers can import."

    def __init__(self, what: str, cause: Exception, *, hint: str | None = None) -> None:
        super().__init__(f"{what} can't be sent between processes: {type(cause).__name__}: {cause}", hint=hint)


class WorkerFailed(SamplingError):
    """A process that makes a part of the load could not be started, or died: what it sent is not known."""

    hint = "Run it with workers=1 to see the error where it happens."


class MissingExtra(SamplingError, ImportError):
    """Something was used that needs a package which is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f'{what} needs the package {package!r}: pip install "sampling[{extra}]"')


class WrongThread(SamplingError, RuntimeError):
    """A running call belongs to the thread of its event loop; nothing may be added to it from another."""

    hint = "Hand the value back to the event loop, with anyio.from_thread.run_sync."


class InsideEventLoop(SamplingError, RuntimeError):
    """`sample_sync` was called by code that already runs in an event loop."""

    hint = "Write `await strategy.sample(…)` instead."

    def __init__(self) -> None:
        super().__init__("sample_sync() would block the event loop that is running in this thread")
