"""Requirements: checks that every answer must pass."""

import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from inspect import CO_VARARGS, Parameter, signature
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import attrs

from sampling._arguments import check_bool, check_number, check_str, short_repr, wrong_type
from sampling._frozen import quick
from sampling._text.lambda_source import describe_lambda
from sampling.errors import BadVerdict, ScoreNotFinite
from sampling.messages import Context, Generation, Message, Options

if TYPE_CHECKING:
    from sampling.protocols import BackendLike

__all__ = ["Ask", "Check", "Requirement", "RequirementLike", "Validation", "Verdict", "View"]


@quick
@attrs.frozen
class Validation:
    """The result of one requirement for one answer."""

    passed: bool
    reason: str | None = attrs.field(default=None, repr=short_repr)
    """The reason, in words that a model can act on. Repairs send it to the model if the check failed."""

    score: float | None = None
    """A grade, higher is better. It ranks answers that failed."""

    requirement: "Requirement | None" = attrs.field(
        default=None, kw_only=True, repr=lambda requirement: repr(requirement and requirement.description)
    )
    """The requirement that was checked. Set by the library."""

    error: Exception | None = attrs.field(default=None, kw_only=True)
    """The exception that the check raised, if any. A check that raises has failed."""

    transcript: tuple[Message, ...] = attrs.field(default=(), kw_only=True, repr=False)
    """The messages that a judge was sent, and its reply. Empty if no model judged."""

    def __attrs_post_init__(self) -> None:
        if type(self.passed) is not bool:
            raise BadVerdict(f"passed must be True or False, got {short_repr(self.passed)}")
        if self.reason is not None and not isinstance(self.reason, str):
            raise BadVerdict(f"reason must be a str or None, got {short_repr(self.reason)}")
        if self.score is not None and type(self.score) is not float:
            object.__setattr__(self, "score", _as_float(self.score))
        if self.score is not None and not math.isfinite(self.score):
            self._fail_without_score()
        if self.requirement is not None and not isinstance(self.requirement, Requirement):
            raise wrong_type("requirement", self.requirement, "a Requirement or None")
        if self.error is not None and not isinstance(self.error, Exception):
            raise wrong_type("error", self.error, "an Exception or None")

    def _fail_without_score(self) -> None:
        """Make this a failure: an answer whose score is not a number can't be ranked."""
        error = ScoreNotFinite(f"the score of an answer must be finite, got {self.score}")
        for name, value in (("passed", False), ("score", None), ("error", self.error or error)):
            object.__setattr__(self, name, value)
        if not self.reason:
            object.__setattr__(self, "reason", "it could not be scored")

    @property
    def complaint(self) -> str:
        """
        The requirement and the reason why it failed.

        Repairs send it to the model after a failure.
        """
        if self.requirement is None:
            return self.reason or "a requirement was not met"
        description = self.requirement.description
        if not self.reason:
            return description
        # A reason may state the requirement by itself.
        return self.reason if description in self.reason else f"{description.rstrip('.')}: {self.reason}"


def _as_float(score: object) -> float:
    """Convert a score, of numpy for example. One that is too large for a float is infinite."""
    try:
        return float(cast("Any", score))
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        raise BadVerdict(f"score must be a finite number or None, got {short_repr(score)}") from None


Verdict: TypeAlias = bool | Validation | tuple[bool, str | None]
"""The types that a check may return."""


class Ask(Protocol):
    """A function that sends a request to a model."""

    def __call__(
        self, messages: Sequence[Message], *, backend: "BackendLike | None" = None, options: Options | None = None
    ) -> Awaitable[Generation]:
        """
        Send messages, by default to the backend of the call.

        The usage counts against the budget of the call.
        """
        ...


@attrs.frozen
class View:
    """Facts about an answer, for checks with a second argument."""

    value: Any
    """The parsed answer, or its text if the action has no parser."""

    context: Context
    """The `validation_ctx` of the call if given, else the conversation including this answer."""

    generation: Generation

    ask: Ask = attrs.field(repr=False, eq=False)
    """Send a request to a model. It counts against the budget of the call."""

    in_turn: bool = attrs.field(default=False, repr=False, eq=False, kw_only=True)
    """Whether checks are awaited one after the other, so that no timing decides which of them may still ask."""


Check: TypeAlias = Callable[[str], Verdict | Awaitable[Verdict]] | Callable[[str, View], Verdict | Awaitable[Verdict]]
"""
A check: `check(text)` or `check(text, view)`, sync or async.

It gets the view if its second parameter is required, or is named `view`.
"""


# eq=False: compared and hashed by identity, because functions can't be compared in any other way.
@attrs.frozen(eq=False)
class Requirement:
    """
    Something that must be true of an answer.

    A requirement without a check is a sentence: a model judges if it is true of the answer.
    """

    description: str
    """The requirement in words. A judge reads it, and so does the model if the check gives no reason."""

    check: Check | None = None
    """A function of the text, or of the text and a `View`. None lets a model judge."""

    partial: Callable[[str], Verdict] | None = attrs.field(default=None, kw_only=True)
    """A check of the text so far, called while it streams. If it fails, the generation is stopped at once."""

    blocking: bool = attrs.field(default=False, kw_only=True)
    """Run the check in a thread. For checks that use files, subprocesses or much computation."""

    timeout_s: float | None = attrs.field(default=None, kw_only=True)
    """The time limit of the check, in seconds. An attempt that exceeds it is invalid."""

    judged: bool = attrs.field(default=False, kw_only=True)
    """True if the check calls a model. Models cost money, so it runs after all other checks have passed."""

    key: Hashable = attrs.field(init=False, repr=False)
    """Equal for requirements that check the same, so that each is checked once."""

    takes_view: bool = attrs.field(init=False, repr=False)
    """True if the check takes a `View` as its second argument."""

    _plain: dict[bool, Validation] = attrs.field(init=False, repr=False, factory=dict[bool, Validation])
    """Validations for a plain True and False, cached because most checks return nothing else."""

    @key.default  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _default_key(self) -> Hashable:
        # By value: a bound method is another object each time, and judges of one sentence are the same.
        return self.description, _value_of(self.check), _value_of(self.partial)

    @takes_view.default  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _default_takes_view(self) -> bool:
        return self.check is None or _takes_view(self.check)

    def __attrs_post_init__(self) -> None:
        check_str("description", self.description, empty=False)
        if self.check is not None and not callable(self.check):
            raise wrong_type("check", self.check, "a function of the text, or None to let a model judge")
        if self.partial is not None and not callable(self.partial):
            raise wrong_type("partial", self.partial, "a function of the text so far, or None")
        check_bool("blocking", self.blocking)
        check_bool("judged", self.judged)
        if self.check is None:
            # The default check lets a model judge.
            object.__setattr__(self, "judged", True)
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, above=0)

    def read_verdict(self, verdict: Any) -> Validation:
        """
        Convert the return value of the check to a Validation.

        Raise `BadVerdict` for anything that is not a verdict.
        """
        if type(verdict) is bool:
            plain = self._plain.get(verdict)
            if plain is None:
                plain = self._plain[verdict] = Validation(verdict, requirement=self)
            return plain
        if isinstance(verdict, Validation):
            return attrs.evolve(verdict, requirement=self)
        if isinstance(verdict, tuple):
            try:
                # Unpacking raises ValueError if there are not two items.
                passed, reason = cast("tuple[bool, str | None]", verdict)
                return Validation(passed, reason, requirement=self)
            except (BadVerdict, ValueError) as error:
                answer = short_repr(cast("object", verdict))
                raise self.bad_verdict(f"the check returned {answer}: {error}") from None
        raise self.bad_verdict(f"the check returned {short_repr(verdict)}")

    def bad_verdict(self, what: str) -> BadVerdict:
        """Build the error for an unusable return value."""
        return BadVerdict(f"requirement {self.description!r}: {what}")


_MAX_VALUE_DEPTH = 8
"""The depth to which the values of a check are compared."""


def _value_of(value: object, depth: int = 0) -> Hashable:
    """
    Return a key that is equal for the same checks.

    A ready-made check is another function each time that it is made, so it is compared by its code and its arguments.
    """
    if isinstance(value, Requirement):
        return value.key
    if depth > _MAX_VALUE_DEPTH:
        return id(value)
    parts = _parts_of(value)
    if parts is not None:
        return type(value), tuple([_value_of(part, depth + 1) for part in parts])
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _parts_of(value: Any) -> Iterable[object] | None:
    """Return the parts that make up a check or one of its arguments, or None for what is compared as it is."""
    if isinstance(value, list | tuple):
        return cast("Iterable[object]", value)
    if isinstance(value, dict):
        return [part for pair in cast("dict[object, object]", value).items() for part in pair]
    if isinstance(value, partial):
        return (value.func, value.args, value.keywords)  # pyright: ignore[reportUnknownMemberType]
    return _parts_of_ready_made(value) if _is_ready_made(value) else None


def _parts_of_ready_made(value: Any) -> Iterable[object] | None:
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, FunctionType):
        return (value.__code__, value.__defaults__, *[cell.cell_contents for cell in value.__closure__ or ()])
    return attrs.astuple(value, recurse=False) if attrs.has(cast("Any", type(value))) else None


def _is_ready_made(value: object) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.startswith("sampling.checks.")


RequirementLike: TypeAlias = Requirement | Check | str
"""A requirement, a check, or a sentence that a model judges."""


def as_requirements(name: str, requirements: Iterable[RequirementLike] | None) -> tuple[Requirement, ...]:
    """Convert the items to requirements, in the same order."""
    if requirements is None:
        return ()
    if not isinstance(requirements, list | tuple) and not _is_ordered(requirements):
        raise wrong_type(name, requirements, "a list of requirements (put a single one in brackets)")
    return tuple([as_requirement(name, requirement) for requirement in requirements])


def _is_ordered(requirements: object) -> bool:
    """Return True for an iterable with a stable order."""
    # A str or a mapping is probably a mistake. A set would check the requirements in a random order.
    return isinstance(requirements, Iterable) and not isinstance(requirements, str | bytes | Mapping | AbstractSet)


def as_requirement(name: str, requirement: RequirementLike) -> Requirement:
    """Convert a callable or a sentence to a requirement."""
    if isinstance(requirement, Requirement):
        return requirement
    if isinstance(requirement, str):
        return Requirement(check_str(f"an item of {name}", requirement, empty=False))
    if callable(requirement):
        return Requirement(_describe(requirement), requirement)
    raise wrong_type(f"an item of {name}", requirement, "a Requirement, a callable or a str")


def _takes_view(check: Check) -> bool:
    """
    Return True if the check takes a `View`, or raise TypeError if it is not a valid check.

    It does if its second positional parameter is required, or is named `view`.
    """
    # inspect.signature is slow, and lambdas are often created for each call.
    if type(check) is FunctionType and not hasattr(check, "__wrapped__"):
        code = check.__code__
        required = code.co_argcount - len(check.__defaults__ or ())
        needs_keywords = code.co_kwonlyargcount > len(check.__kwdefaults__ or ())
        if required > 2 or needs_keywords or not (code.co_argcount or code.co_flags & CO_VARARGS):
            raise _uncallable(check)
        return required >= 2 or (code.co_argcount >= 2 and code.co_varnames[1] == "view")
    try:
        parameters = list(signature(check).parameters.values())
    except (TypeError, ValueError):
        # Builtins without a signature, such as bool, take the text. Non-callables are refused elsewhere.
        return False
    positional = [p for p in parameters if p.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}]
    needs_keywords = any(p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty for p in parameters)
    if needs_keywords or not parameters or sum(p.default is Parameter.empty for p in positional) > 2:
        raise _uncallable(check)
    return len(positional) >= 2 and (positional[1].default is Parameter.empty or positional[1].name == "view")


def _uncallable(check: object) -> TypeError:
    return wrong_type("check", check, "a function of the text, or of the text and a view")


def _describe(check: Any) -> str:
    """
    Describe a callable by its docstring, source or name.

    The source is used for a lambda.
    """
    if isinstance(check, partial):
        return _describe(check.func)
    function = check.__func__ if isinstance(check, MethodType) else check
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_name == "<lambda>":
        return describe_lambda(code)
    doc = getattr(function, "__doc__", None) if isinstance(code, CodeType) else None
    first_line = doc.strip().partition("\n")[0].strip() if isinstance(doc, str) else ""
    name = getattr(check, "__name__", type(check).__name__)
    return first_line or str(name).replace("_", " ").strip() or "a check"
