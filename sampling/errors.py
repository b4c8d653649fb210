"""
Everything that `sampling` raises.

    SamplingError
    ├── BackendError                 the model's side
    │   ├── TransientError           may pass on another try
    │   │   ├── RateLimited
    │   │   └── Timeout
    │   └── FatalError               never will
    │       ├── AuthenticationFailed
    │       ├── BadRequest
    │       └── ModelNotFound
    ├── BudgetExceeded               a request that the budget has no room for
    ├── NoValidAnswer                what `result.unwrap()` raises
    ├── CheckTimeout                 a requirement's check took too long
    ├── BadVerdict (TypeError)       a check that answered neither yes nor no
    ├── HookTimeout                  a hook took too long
    ├── SelectionFailed              `select` or `select_from_failure` gave no slice of this call
    ├── ContextTooLarge              a repair that makes the conversation grow without end
    ├── PluginFailed                 a plugin that can't be loaded
    ├── WrongThread (RuntimeError)   a running call touched from a thread that is not its own
    └── InsideEventLoop (RuntimeError)   `sample_sync` called where `await sample` is needed

Every class says whether another try may help (`retryable`) and what to do about it (`hint`, a note in the traceback).
Wrong arguments are plain `TypeError` and `ValueError`, raised where they are passed in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from sampling.results import SamplingResult, Slice

__all__ = [
    "AuthenticationFailed",
    "BackendError",
    "BadRequest",
    "BadVerdict",
    "BudgetExceeded",
    "CheckTimeout",
    "ContextTooLarge",
    "FatalError",
    "HookTimeout",
    "InsideEventLoop",
    "ModelNotFound",
    "NoValidAnswer",
    "PluginFailed",
    "RateLimited",
    "SamplingError",
    "SelectionFailed",
    "Timeout",
    "TransientError",
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


class FatalError(BackendError):
    """The backend will never answer this. It ends the call at once, and its siblings with it."""


class AuthenticationFailed(FatalError):
    """The backend does not accept the key."""

    hint = "Check the key, and that it belongs to this base_url."


class BadRequest(FatalError):
    """The backend does not accept the request as it is."""

    hint = "The same request fails every time: change the options or the messages."


class ModelNotFound(FatalError):
    """The backend has no model of that name."""

    hint = "Check the model's name against the list that the server gives."


class BudgetExceeded(SamplingError):
    """A request was not sent because the budget has no room for it."""

    hint = "Raise the limit that the message names, or ask for less."


class NoValidAnswer(SamplingError):
    """No answer met the requirements. The whole result is on `.result`."""

    hint = "Read result.explain(): it shows every attempt and which requirement failed."

    def __init__(self, result: "SamplingResult[Any]") -> None:
        super().__init__(f"no valid answer: {result}")
        self.result = result


class CheckTimeout(SamplingError):
    """A requirement's check did not answer in time; the attempt counts as invalid."""

    hint = "Raise the requirement's timeout_s, or make the check faster."

    def __init__(self, requirement: str, timeout_s: float) -> None:
        super().__init__(f"the check of requirement {requirement!r} took longer than {timeout_s:g} s")


class BadVerdict(SamplingError, TypeError):
    """A check answered with something that is neither yes nor no."""

    hint = "Return True or False, Validation(passed, reason, score), or (passed, reason)."


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


class PluginFailed(SamplingError):
    """An installed plugin could not be loaded."""

    hint = "Fix or uninstall the distribution that brings it, or set SAMPLING_PLUGINS=off."


class WrongThread(SamplingError, RuntimeError):
    """A running call belongs to the thread of its event loop; nothing may be added to it from another."""

    hint = "Hand the value back to the event loop, with anyio.from_thread.run_sync."


class InsideEventLoop(SamplingError, RuntimeError):
    """`sample_sync` was called by code that already runs in an event loop."""

    hint = "Write `await strategy.sample(…)` instead."

    def __init__(self) -> None:
        super().__init__("sample_sync() would block the event loop that is running in this thread")
