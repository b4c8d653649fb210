"""Every exception of the package can be pickled and copied."""

import copy
import importlib
import inspect
import pickle  # noqa: TID251 - what process pools do with exceptions
import pkgutil
import signal
from concurrent.futures import ProcessPoolExecutor

import anyio
import pytest

import sampling
from sampling import RejectionSamplingStrategy, Requirement, errors
from sampling._virtual_time import Deadlocked, Spinning
from sampling.hooks import CriticalHookError
from sampling.testing import PassRate, ScriptedBackend
from sampling.testing.conformance import RuleBroken
from sampling.testing.schedules import Exploration, NeverReached, Nondeterministic


def exceptions_of_the_package():
    """Yield every exception class that a module of the package defines."""
    for module in pkgutil.walk_packages(sampling.__path__, "sampling."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:
            continue
        for thing in vars(loaded).values():
            if inspect.isclass(thing) and issubclass(thing, BaseException) and thing.__module__ == module.name:
                yield thing


def a_result():
    """Return a result with a lambda in its requirements, which can't be pickled."""

    async def main():
        reqs = [Requirement("is yes", check=lambda text: text == "yes")]
        return await RejectionSamplingStrategy().sample("q", None, ScriptedBackend(["no"]), reqs)

    return anyio.run(main)


ARGUMENTS = {
    "NoValidAnswer": lambda: (a_result(),),
    "CheckTimeout": lambda: ("is short", 1.5),
    "UnclearJudgement": lambda: ("is polite", "yes or no"),
    "HookTimeout": lambda: ("a hook", "LoopStarted", 5.0),
    "SelectionFailed": lambda: ("select() raised", a_result().slices),
    "ContextTooLarge": lambda: (11, 10),
    "JournalMismatch": lambda: ("another call", ["one", "two"]),
    "JournalWriteFailed": lambda: ("no space", [1, 2]),
    "ErrorFromJournal": lambda: ("message", "KeyError"),
    "NotSendable": lambda: ("the value", ValueError("why")),
    "MissingExtra": lambda: ("charts", "plotly", "charts"),
    "InsideEventLoop": lambda: (),
    "CriticalHookError": lambda: (ValueError("why"),),
    "CheckDefect": lambda: (NameError("lenght"),),
    "CutShort": lambda: ("the text", sampling.Validation(False, "too long")),
    "Deadlocked": lambda: (1.0, 2.0, ["a task"]),
    "Spinning": lambda: (1.0, 10, "a task"),
    "NeverReached": lambda: (["a state"], Exploration(1, 0, {})),
    "Nondeterministic": lambda: ("one", "two"),
    "Interrupted": lambda: (signal.SIGTERM,),
    "TooComplex": lambda: (),
    "_ParameterRefused": lambda: ("max_tokens", errors.BadRequest("unknown")),
    "_Unhealthy": lambda: ("warn", "it is slow", "Wait."),
    "RuleBroken": lambda: ("answers", "it did not"),
    "PassRateTooLow": lambda: ("too low", PassRate(1, 2, 0.9, 0.95)),
    "_Refused": lambda: (404, "not_found", "there is no such batch"),
}
"""The arguments of classes that take something else than a message."""

SPECIAL = {Deadlocked, Spinning, NeverReached, Nondeterministic, RuleBroken, CriticalHookError}
CLASSES = sorted(exceptions_of_the_package(), key=lambda kind: kind.__qualname__)


def test_all_of_them_are_found():
    """Those of `errors` and those beside it."""
    assert {getattr(errors, name) for name in errors.__all__} <= set(CLASSES)
    assert set(CLASSES) >= SPECIAL


def described(error):
    """Return everything about an error that a handler may look at."""
    attributes = {name: value for name, value in vars(error).items() if name not in {"__notes__", "result", "slices"}}
    return type(error), str(error), repr(error.args), repr(attributes)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__qualname__)
def test_it_can_be_pickled_and_copied(kind):
    """With its message, its attributes and its notes, whatever its constructor takes."""
    error = kind(*ARGUMENTS.get(kind.__name__, lambda: ("a message",))())
    error.add_note("a note of the caller")
    error.status = 503
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert described(error) == described(again)
        assert error.__notes__ == again.__notes__[: len(error.__notes__)]
    if isinstance(error, errors.SamplingError):
        copy.copy(error).add_note("another")
        assert "another" not in error.__notes__


def test_what_cant_be_pickled_is_left_out_with_a_note():
    """A result may hold lambdas. The error must reach the caller all the same."""
    error = errors.NoValidAnswer(a_result())
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert again.result is None
    assert any("not pickled: result" in note for note in again.__notes__)
    assert copy.copy(error).result is error.result


def raise_rate_limit():
    raise errors.RateLimited(retry_after_s=3.0)


def raise_mismatch():
    raise errors.ContextTooLarge(11, 10)


@pytest.mark.parametrize(
    ("function", "kind"), [(raise_rate_limit, errors.RateLimited), (raise_mismatch, errors.ContextTooLarge)]
)
def test_it_comes_back_from_a_process_pool(function, kind):
    """An error that can't be restored would break the pool."""
    with ProcessPoolExecutor(1) as pool:
        error = pool.submit(function).exception(timeout=60)
        assert kind is type(error)
        assert 4 == pool.submit(abs, -4).result(timeout=60)
