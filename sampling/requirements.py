"""What must be true of an answer."""

import ast
import linecache
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from inspect import Parameter, signature
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import attrs

from sampling._arguments import check_bool, check_number, check_str, shown, wrong_type
from sampling.errors import BadVerdict
from sampling.messages import Context, Generation, Message, Options

if TYPE_CHECKING:
    from sampling.protocols import BackendLike

__all__ = ["Ask", "Check", "Requirement", "RequirementLike", "Validation", "Verdict", "View"]


@attrs.frozen
class Validation:
    """What one requirement said of one answer."""

    passed: bool
    reason: str | None = None
    """Why, in words that a model can act on: a failed check's reason goes into the repair."""

    score: float | None = None
    """How good, where yes or no is too coarse; higher is better. It ranks answers that failed."""

    requirement: "Requirement | None" = attrs.field(default=None, kw_only=True)
    """Which requirement this is about; filled in for you."""

    error: Exception | None = attrs.field(default=None, kw_only=True)
    """What the check raised, if it raised: an error is a failure, but not every failure is an error."""

    def __attrs_post_init__(self) -> None:
        if type(self.passed) is not bool:
            raise BadVerdict(f"passed must be True or False, got {shown(self.passed)}")
        if self.reason is not None and not isinstance(self.reason, str):
            raise BadVerdict(f"reason must be a str or None, got {shown(self.reason)}")
        if self.score is not None and not _is_score(self.score):
            raise BadVerdict(f"score must be a finite number or None, got {shown(self.score)}")
        if self.requirement is not None and not isinstance(self.requirement, Requirement):
            raise wrong_type("requirement", self.requirement, "a Requirement or None")
        if self.error is not None and not isinstance(self.error, Exception):
            raise wrong_type("error", self.error, "an Exception or None")

    @property
    def complaint(self) -> str:
        """What to tell the model when this failed: the reason, else what was required."""
        if self.reason:
            return self.reason
        return self.requirement.description if self.requirement is not None else "a requirement was not met"


def _is_score(score: object) -> bool:
    return isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)


Verdict: TypeAlias = bool | Validation | tuple[bool, str | None]
"""What a check may answer."""


class Ask(Protocol):
    """How a check puts a question to a model."""

    def __call__(
        self, messages: Sequence[Message], *, backend: "BackendLike | None" = None, options: Options | None = None
    ) -> Awaitable[Generation]:
        """Ask the backend of the call, or another; what it costs counts against the budget and is on the slice."""
        ...


@attrs.frozen
class View:
    """What a check may look at besides the text: pass it by taking a second argument."""

    value: Any
    """The parsed answer; the text itself where the action has no parser."""

    context: Context
    """The conversation with this question and answer in it, or the validation_ctx of the call if one was given."""

    generation: Generation

    ask: Ask = attrs.field(repr=False, eq=False)
    """Ask the backend of this call something, or another one; either way it counts against the budget."""


Check: TypeAlias = Callable[[str], Verdict | Awaitable[Verdict]] | Callable[[str, View], Verdict | Awaitable[Verdict]]
"""A check: `check(text)` or `check(text, view)`, sync or async."""


@attrs.frozen(eq=False)
class Requirement:
    """
    Something that must be true of an answer.

    Without a check, the description is a sentence that a model judges.
    A `partial` check sees the text as it grows, where the backend streams: it says whether the text can still pass,
    and when it says no, the generation is cut at once.
    A check that blocks (a file, a subprocess, heavy computing) is marked `blocking=True` and runs in a thread.
    One that asks a model itself is marked `judged=True`, and runs only when all that is code has passed.
    """

    description: str
    check: Check | None = None
    partial: Callable[[str], Verdict] | None = attrs.field(default=None, kw_only=True)
    blocking: bool = attrs.field(default=False, kw_only=True)
    timeout_s: float | None = attrs.field(default=None, kw_only=True)
    judged: bool = attrs.field(default=False, kw_only=True)
    """Whether a model decides, as it does without a check: it costs money, so it is asked when all else passed."""

    takes_view: bool = attrs.field(init=False, repr=False)
    """Whether the check wants the view as its second argument; a model that judges does."""

    _plain: dict[bool, Validation] = attrs.field(init=False, repr=False, factory=dict[bool, Validation])
    """The two answers without a reason, made once: most checks give no other."""

    @takes_view.default  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _default_takes_view(self) -> bool:
        return self.check is None or _takes_view(self.check)

    def __attrs_post_init__(self) -> None:
        check_str("description", self.description, empty=False)
        if self.check is not None and not callable(self.check):
            raise wrong_type("check", self.check, "a callable that takes the text, or None for a model to judge")
        if self.partial is not None and not callable(self.partial):
            raise wrong_type("partial", self.partial, "a callable that takes the text so far, or None")
        check_bool("blocking", self.blocking)
        check_bool("judged", self.judged)
        if self.check is None:
            object.__setattr__(self, "judged", True)
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, above=0)

    def read_verdict(self, verdict: Any) -> Validation:
        """Turn what the check answered into a Validation; anything but a clear answer is a `BadVerdict`."""
        if type(verdict) is bool:
            plain = self._plain.get(verdict)
            if plain is None:
                plain = self._plain[verdict] = Validation(verdict, requirement=self)
            return plain
        if isinstance(verdict, Validation):
            return attrs.evolve(verdict, requirement=self)
        if isinstance(verdict, tuple):
            try:
                passed, reason = cast("tuple[bool, str | None]", verdict)
                return Validation(passed, reason, requirement=self)
            except (BadVerdict, ValueError) as error:
                answer = shown(cast("object", verdict))
                raise self.bad_verdict(f"the check returned {answer}: {error}") from None
        raise self.bad_verdict(f"the check returned {shown(verdict)}")

    def bad_verdict(self, what: str) -> BadVerdict:
        """Build the error for a check that gave no clear answer; it names this requirement."""
        return BadVerdict(f"requirement {self.description!r}: {what}")


RequirementLike: TypeAlias = Requirement | Check | str
"""What may stand for a requirement: itself, a check, or a sentence that a model judges."""


def as_requirements(name: str, requirements: Iterable[RequirementLike] | None) -> tuple[Requirement, ...]:
    """Make requirements of what the caller gave, in the caller's order."""
    if requirements is None:
        return ()
    if not isinstance(requirements, list | tuple) and not _is_ordered(requirements):
        raise wrong_type(name, requirements, "a list of requirements (put a single one in brackets)")
    return tuple([as_requirement(name, requirement) for requirement in requirements])


def _is_ordered(requirements: object) -> bool:
    """Tell whether something has items in an order to keep; a sentence and a mapping have other things in them."""
    return isinstance(requirements, Iterable) and not isinstance(requirements, str | bytes | Mapping | AbstractSet)


def as_requirement(name: str, requirement: RequirementLike) -> Requirement:
    """Make a requirement of a requirement, a callable or a sentence."""
    if isinstance(requirement, Requirement):
        return requirement
    if isinstance(requirement, str):
        return Requirement(check_str(f"an item of {name}", requirement, empty=False))
    if callable(requirement):
        return Requirement(_describe(requirement), requirement)
    raise wrong_type(f"an item of {name}", requirement, "a Requirement, a callable or a str")


def _takes_view(check: Check) -> bool:
    """Tell whether the second positional parameter is there to take the view: required, or called `view`."""
    if type(check) is FunctionType and not hasattr(check, "__wrapped__"):
        code = check.__code__
        required = code.co_argcount - len(check.__defaults__ or ())
        return required >= 2 or (code.co_argcount >= 2 and code.co_varnames[1] == "view")
    try:
        parameters = list(signature(check).parameters.values())
    except (TypeError, ValueError):
        # Builtins without a signature, such as bool, take the text; what can't be called is refused elsewhere.
        return False
    positional = [p for p in parameters if p.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}]
    return len(positional) >= 2 and (positional[1].default is Parameter.empty or positional[1].name == "view")


def _describe(check: Any) -> str:
    """Say what a bare callable requires: its docstring, its own source if it is a lambda, or its name."""
    function = check.__func__ if isinstance(check, MethodType) else check
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_name == "<lambda>":
        return _describe_lambda(code)
    doc = getattr(function, "__doc__", None) if isinstance(code, CodeType) else None
    first_line = doc.strip().partition("\n")[0].strip() if isinstance(doc, str) else ""
    name = getattr(check, "__name__", type(check).__name__)
    return first_line or str(name).replace("_", " ").strip() or "a check"


@lru_cache(maxsize=1024)
def _describe_lambda(code: CodeType) -> str:
    place = f"the check at {code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
    source = "".join(linecache.getlines(code.co_filename))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return place
    # Two lambdas may stand on one line: the columns of the code's instructions tell which one this is.
    columns = [column for line, _, column, _ in code.co_positions() if line == code.co_firstlineno and column]
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            body = node.body
            same_line = body.lineno == node.lineno
            if not columns or not same_line or body.col_offset <= min(columns) < (body.end_col_offset or 0):
                return ast.unparse(body)
    return place
