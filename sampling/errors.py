"""
The exceptions of `sampling`.

    SamplingError
    ├── BackendError                 the backend gave no answer
    │   ├── TransientError           another try may succeed
    │   │   ├── RateLimited
    │   │   ├── Timeout
    │   │   ├── ServerError
    │   │   ├── ConnectFailed        the server was not reached
    │   │   ├── ConnectionLost       the connection broke after the request was sent
    │   │   ├── WorkerLost           the worker process of a cluster died twice
    │   │   ├── AnswerRejected       the server refused what the model wrote
    │   │   ├── Incomplete           the answer ended without a finish_reason
    │   │   ├── MalformedResponse
    │   │   └── UnexpectedCancellation   the backend raised a cancellation that nobody requested
    │   ├── FatalError               another try can't succeed
    │   │   ├── AuthenticationFailed
    │   │   ├── BadRequest           about one request: siblings with another request continue
    │   │   │   ├── RequestTooLarge
    │   │   │   └── Unsupported      the backend has no such part or option
    │   │   ├── CassetteMiss         the request is not in the recording
    │   │   ├── CertificateInvalid
    │   │   ├── ModelNotFound        also about one request
    │   │   ├── NestedTooDeeply      calls are nested without end
    │   │   ├── QuotaExhausted
    │   │   ├── Redirected
    │   │   └── UnknownPrice         a budget limits the cost, but the backend reports none
    │   └── ResponseTooLarge         ends only its subsample
    ├── BudgetExceeded               the budget has no room for a request
    ├── NoValidAnswer                raised by `result.unwrap()`
    ├── CheckTimeout                 a check took too long
    ├── BadVerdict (TypeError)       a check returned something other than a verdict
    ├── ScoreNotFinite (ValueError)  a check gave a score that is NaN or infinite
    ├── UnclearJudgement             a judging model gave no readable verdict
    ├── HookTimeout                  a hook took too long
    ├── SelectionFailed              `select` or `select_from_failure` failed
    ├── ContextTooLarge              a repair made the conversation too long
    ├── FileRefused (ValueError)     a cassette or cache file is damaged or in another format
    ├── JournalError                 the journal of a fan-out
    │   ├── JournalLocked            another run is using it
    │   ├── JournalMismatch          it belongs to a different call
    │   ├── JournalDamaged           the file is corrupt or not a journal
    │   ├── JournalTooNew            written by a newer version
    │   └── JournalWriteFailed       writing failed, and the error has what was not saved
    ├── ErrorFromJournal             a recorded error whose type can't be restored
    ├── PluginFailed                 a plugin could not be loaded
    ├── PreflightFailed              the test request before a load run failed
    ├── NotSendable (TypeError)      a value can't be sent to or from a worker
    ├── WorkerFailed                 a load worker did not start, or died
    ├── MissingExtra (ImportError)   an optional dependency is not installed
    ├── WrongThread (RuntimeError)   a running call was used from another thread
    └── InsideEventLoop (RuntimeError)   `sample_sync` called where `await sample` is needed

Every class has `retryable` (another try may succeed) and `hint` (how to fix it, also a note in the traceback).
All of them can be pickled and copied. Invalid arguments raise plain `TypeError` and `ValueError`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sampling._picklable import Picklable

if TYPE_CHECKING:
    # Only for annotations: these modules import this one.
    from sampling.fanout.items import ItemOutcome
    from sampling.results import SamplingResult, Slice

__all__ = [
    "AnswerRejected",
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
    "NestedTooDeeply",
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
    "ScoreNotFinite",
    "SelectionFailed",
    "ServerError",
    "Timeout",
    "TransientError",
    "UnclearJudgement",
    "UnexpectedCancellation",
    "Unsupported",
    "WorkerFailed",
    "WorkerLost",
    "WrongThread",
]


class SamplingError(Picklable, Exception):
    """The base class of all exceptions of this library."""

    retryable: ClassVar[bool] = False
    """True if the same request may succeed on another try."""

    hint: str = ""
    """How to fix it, in one sentence."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
        if self.hint:
            # Tracebacks print notes, so the fix is next to the error.
            self.add_note(f"hint: {self.hint}")


class BackendError(SamplingError):
    """The backend gave no answer."""

    status: int | None = None
    """The HTTP status, if there is one."""

    maybe_billed: bool = False
    """True if the server may charge for the request although it returned no usable answer."""

    partial_text: str | None = None
    """The text received before the error. For debugging only, not a usable answer."""


class TransientError(BackendError):
    """
    The backend gave no answer, but another try may succeed.

    It costs one attempt.
    """

    retryable = True
    hint = "Another try may succeed: raise loop_budget, or wrap the backend in Retrying."


class RateLimited(TransientError):
    """The backend received too many requests."""

    hint = "Wrap the backend in Retrying, lower concurrency_budget, or limit the rate with Limited."

    def __init__(
        self,
        message: str = "the backend refused the request: too many requests",
        *,
        retry_after_s: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        """The wait in seconds that the backend asked for, if any."""


class Timeout(TransientError):
    """The backend did not answer in time."""

    hint = "Raise the backend's timeout, or ask for fewer tokens."


class ServerError(TransientError):
    """The server failed or is overloaded."""

    hint = "The problem is on the server: try again later, or use another server."

    def __init__(self, message: str, *, retry_after_s: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        """The wait in seconds that the server asked for, if any."""


class ConnectFailed(TransientError):
    """The server could not be reached. Nothing was sent."""

    hint = "Check base_url, that the server is running, and the network."


class ConnectionLost(TransientError):
    """
    The connection broke after the request was sent.

    The server may charge for it.
    """

    hint = "Another try starts from the beginning, and is charged again: a broken answer can't be continued."
    maybe_billed = True


class WorkerLost(TransientError):
    """Two workers died while they ran the same item."""

    hint = "If it is always the same item, that item may crash the workers. Else check their memory and Ray's logs."
    maybe_billed = True

    def __init__(self, message: str = "the worker that ran this died", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)


class Incomplete(TransientError):
    """The answer ended without a finish_reason."""

    hint = "If this server never sends a finish_reason, pass allow_missing_finish=True to the backend."
    maybe_billed = True


class MalformedResponse(TransientError):
    """The server's response could not be understood."""

    hint = "Check that base_url is that of an OpenAI-compatible API, including /v1, and not of a proxy or a web page."
    maybe_billed = True


class AnswerRejected(TransientError):
    """
    The server refused what the model wrote, such as JSON that does not match the schema.

    It costs one attempt. `partial_text` is the text that was refused, if the server returned it.
    """

    hint = "Another sample may pass: raise loop_budget, or use a simpler schema or another model."
    maybe_billed = True


class UnexpectedCancellation(TransientError):
    """
    The code of an attempt or a hook raised a cancellation that nobody requested.

    It costs one attempt. The caller's own cancellation is never turned into this.
    """

    hint = "Look in the backend and the checks for a task that was cancelled and awaited, or a scope that leaks."
    maybe_billed = True

    def __init__(
        self, message: str = "a cancellation was raised that nobody requested", *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)


class FatalError(BackendError):
    """
    The backend can't answer, and another try can't succeed.

    The call ends at once, and all other subsamples with it. If the error is about one request, only its subsample
    ends, unless every other subsample sends the same request.
    """

    about_request: ClassVar[bool] = False
    """True if another request may succeed."""


class AuthenticationFailed(FatalError):
    """The backend rejected the API key."""

    hint = "Check the key, and that it belongs to this base_url."


class BadRequest(FatalError):
    """The backend rejected the request."""

    about_request = True
    hint = "The same request fails every time: change the options or the messages."


class RequestTooLarge(BadRequest):
    """The request is larger than the backend or the server allows."""

    hint = "Send fewer or shorter messages, or raise the backend's max_request_bytes."


class Unsupported(BadRequest):
    """The backend can't send a part or an option of the request. Nothing was sent."""

    hint = "Use a backend that supports it, or leave it out."


class CassetteMiss(FatalError):
    """The recording has no answer to this request."""

    hint = "Record again, or restore the recorded request: the message shows the difference to the closest one."


class CertificateInvalid(FatalError):
    """
    The certificate of the server is not valid for base_url.

    Nothing was sent.
    """

    hint = "For a private certificate authority, pass ssl_context=ssl.create_default_context(cafile=…)."


class ModelNotFound(FatalError):
    """The backend has no model with this name."""

    about_request = True
    hint = "Compare the model's name with the server's list of models."


class NestedTooDeeply(FatalError):
    """Calls of `sample()` are nested without end."""

    hint = "A check, a tool or a backend calls the strategy that uses it: call another strategy there."


class QuotaExhausted(FatalError):
    """The quota or the credit of the account is used up."""

    hint = "Check the plan and the billing of the key's account."


class Redirected(FatalError):
    """
    The server redirected the request.

    Redirects are not followed, because they would send the key along.
    """

    hint = "If the new address is right, use it as base_url."


class UnknownPrice(FatalError):
    """
    A budget limits the cost, but the backend reports none.

    The limit could never be reached.
    """

    hint = "Give the prices of a million tokens: `Priced(backend, Price(0.15, 0.60))`, or limit tokens instead of cost."


class ResponseTooLarge(BackendError):
    """
    The answer exceeded the size limit and was cut off.

    This ends only its subsample.
    """

    hint = "Ask for fewer tokens, or raise the backend's max_response_bytes."
    maybe_billed = True


class BudgetExceeded(SamplingError):
    """
    The budget has no room for a request.

    The request was not sent.
    """

    hint = "Raise the limit in the message, or send fewer or smaller requests."


class NoValidAnswer(SamplingError):
    """
    No answer met the requirements.

    See `.result` for the whole result.
    """

    hint = "Read result.explain(): it shows every attempt and which requirement failed."

    def __init__(self, result: "SamplingResult[Any]", why: str = "") -> None:
        super().__init__(f"{result} · failed: {why}" if why else str(result))
        self.result = result


class CheckTimeout(SamplingError):
    """
    A check did not return in time.

    The attempt counts as invalid.
    """

    hint = "Raise the requirement's timeout_s, or make the check faster."

    def __init__(self, requirement: str, timeout_s: float) -> None:
        super().__init__(f"the check of requirement {requirement!r} took longer than {timeout_s:g} s")


class BadVerdict(SamplingError, TypeError):
    """A check returned something other than a verdict."""

    hint = "Return True or False, Validation(passed, reason, score), or (passed, reason)."


class ScoreNotFinite(SamplingError, ValueError):
    """
    A check gave a score that is NaN or infinite.

    The attempt counts as invalid.
    """

    hint = "Return a finite score, or none: Validation(passed, reason)."


class UnclearJudgement(SamplingError):
    """
    A judging model gave no readable verdict.

    The attempt counts as invalid.
    """

    hint = "Use a model that follows instructions, or word the requirement as a yes-or-no question."

    def __init__(self, requirement: str, allowed: str) -> None:
        super().__init__(f"the judge of requirement {requirement!r} did not reply with {allowed}")


class HookTimeout(SamplingError):
    """A hook did not return in time and was cancelled."""

    hint = "Do slow work outside the hook, or give it more time: hooks.on(…, timeout_s=…)."

    def __init__(self, hook: str, event: str, timeout_s: float) -> None:
        super().__init__(f"hook {hook!r} on {event} took longer than {timeout_s:g} s")


class SelectionFailed(SamplingError):
    """
    A strategy could not select the answer.

    The samples are in `.slices`.
    """

    hint = "select and select_from_failure must return one of the slices passed to them."

    def __init__(self, message: str, slices: "Sequence[Slice[Any]]") -> None:
        super().__init__(message)
        self.slices: tuple[Slice[Any], ...] = tuple(slices)


class ContextTooLarge(SamplingError):
    """A repair exceeded the strategy's `max_context_chars`. Its subsample ends."""

    hint = "Keep fewer turns in repair(), or raise the strategy's max_context_chars."

    def __init__(self, chars: int, limit: int) -> None:
        super().__init__(f"repair() returned a context of {chars:,} characters, but max_context_chars is {limit:,}")


class FileRefused(SamplingError, ValueError):
    """A file is damaged, in another format, or of another version."""

    hint = "Delete the file to have it written again, or restore it from a backup."


class JournalError(SamplingError):
    """
    The journal of a fan-out can't be used.

    Its contents were not changed.
    """


class JournalLocked(JournalError):
    """
    Another run has locked the journal.

    The lock is released when its process ends, even by a crash.
    """

    hint = "Wait for the other run, or stop it, or use another journal for this run."


class JournalMismatch(JournalError, ValueError):
    """
    The journal belongs to a different call.

    That call has other items, options or requirements, or another strategy.
    """

    hint = (
        "Restore the original call, or use another file for a new run. "
        'To continue anyway with the recorded answers: Journal(path, on_change="continue").'
    )

    def __init__(self, message: str, differences: "Sequence[str]" = ()) -> None:
        super().__init__("\n  ".join([message, *differences]))
        self.differences: tuple[str, ...] = tuple(differences)
        """The differences, one line each."""


class JournalDamaged(JournalError, ValueError):
    """
    The file is corrupt or not a journal.

    It was not changed, and no request was sent.
    """

    hint = "Restore it from a backup, or start a new run in another file. sqlite3's .recover may rescue its contents."


class JournalTooNew(JournalError):
    """The journal was written by a newer version of this library."""

    hint = "Upgrade sampling, or continue with the version that started the run."


class JournalWriteFailed(JournalError):
    """
    The journal could not be written, so the run was stopped.

    Stored outcomes are safe. Outcomes that could not be stored are in `.unsaved`.
    """

    hint = (
        "Remove the cause, such as a full disk, then make the same call again: "
        "it runs only the items that are not in the journal."
    )

    def __init__(self, message: str, unsaved: "Sequence[ItemOutcome[Any]]" = ()) -> None:
        super().__init__(message)
        self.unsaved: tuple[ItemOutcome[Any], ...] = tuple(unsaved)
        """The finished outcomes that are not in the journal, by index."""


class ErrorFromJournal(SamplingError):
    """
    A recorded error whose type can't be restored.

    Only types of this library and built-in ones can.
    """

    def __init__(self, message: str, type_name: str) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        """The name of the original type."""


class PluginFailed(SamplingError):
    """An installed plugin could not be loaded."""

    hint = "Fix or uninstall the distribution that provides it, or set SAMPLING_PLUGINS=off."


class PreflightFailed(SamplingError):
    """
    The test request before a load run failed.

    The run was not started.
    """

    hint = "Send one request by hand: check the address, the key, the model and that the server is running."


class NotSendable(SamplingError, TypeError):
    """A value can't be sent to or from a worker."""

    hint = "Use plain values, or functions and classes that the workers can import."

    def __init__(self, what: str, cause: Exception, *, hint: str | None = None) -> None:
        super().__init__(f"{what} can't be sent between processes: {type(cause).__name__}: {cause}", hint=hint)


class WorkerFailed(SamplingError):
    """
    A process that generates load did not start, or died.

    The results of its requests are lost.
    """

    hint = "Run with workers=1 to see the original error."


class MissingExtra(SamplingError, ImportError):
    """A feature needs a package that is not installed."""

    def __init__(self, what: str, package: str, extra: str, *, install: str | None = None) -> None:
        """
        Build the message.

        Args:
            what: The feature.

            package: The package that it needs.

            extra: The extra that has the package.

            install: What to pass to `pip install`. None means the extra.
        """
        install = install or f'"sampling[{extra}]"'
        super().__init__(f"{what} needs the package {package!r}: pip install {install}")
        self.extra = extra


class WrongThread(SamplingError, RuntimeError):
    """A running call was used from another thread."""

    hint = "Pass the value to the event loop with anyio.from_thread.run_sync."


class InsideEventLoop(SamplingError, RuntimeError):
    """`sample_sync` was called inside a running event loop."""

    hint = "Write `await strategy.sample(…)` instead."

    def __init__(self) -> None:
        super().__init__("sample_sync() would block the event loop that is running in this thread")
