"""Options of a generation."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from sampling._arguments import check_int, check_items, check_number, check_str, short_repr, wrong_type
from sampling.tools import Tool, tool

__all__ = ["Options", "ReasoningEffort"]

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a reasoning model thinks."""

# Without underscores and in lower case, because servers and libraries write the same names in several ways.
_TOKEN_LIMITS = frozenset(
    {
        "maxcompletiontokens",
        "maxgenlen",
        "maxgeneratedtokens",
        "maxlength",
        "maxnewtokens",
        "maxoutputtokens",
        "maxtokens",
        "maxtokenstosample",
        "npredict",
        "numpredict",
    }
)
_ANSWERS = frozenset(
    {
        "bestof",
        "candidatecount",
        "maxretries",
        "n",
        "ncompletions",
        "numbeams",
        "numgenerations",
        "numresults",
        "numretries",
        "numreturnsequences",
        "usebeamsearch",
    }
)
"""Names of options that set the number of answers or of requests."""

_DATA = frozenset({"chattemplatekwargs", "format", "functions", "guidedjson", "metadata", "responseformat", "tools"})
"""Names whose values are schemas or data of the caller, which may contain any name."""

_MAX_DEPTH = 16


def _frozen_mapping(mapping: object) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping):
        raise wrong_type("extra", mapping, "a mapping of option names to values")
    given = cast("Mapping[str, Any]", mapping)
    for name in given:
        check_str("a name in extra", name, empty=False)
    return MappingProxyType(_checked_copy(given, 0))


def _checked_copy(extra: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """
    Return a copy of extra options, or raise if they would bypass the budget.

    Libraries and servers take further options inside of others, such as `extra_body` and `generationConfig`, so all of
    them are looked into. It is a copy so that later changes to the caller's dicts have no effect.
    """
    copied: dict[str, Any] = {}
    for name, value in extra.items():
        plain = str(name).replace("_", "").replace("-", "").lower()
        if plain in _TOKEN_LIMITS:
            raise ValueError(f"extra must not set {name!r}, which budgets don't see. Use Options(max_tokens=…).")
        if plain in _ANSWERS and not (value is None or (isinstance(value, int) and value in {0, 1})):
            raise ValueError(f"extra must not set {name!r}, which budgets don't see. Use the strategy's breadth.")
        is_data = plain in _DATA or plain.endswith(("schema", "headers"))
        copied[name] = value if is_data else _checked_value(value, depth + 1)
    return copied


def _checked_value(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"extra must not be nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return _checked_copy(cast("Mapping[str, Any]", value), depth)
    if isinstance(value, list | tuple):
        return [_checked_value(item, depth + 1) for item in cast("Sequence[Any]", value)]
    return value


def _stop_words(stop: object) -> tuple[str, ...]:
    words = check_items("stop", stop, "a sequence of str, such as ('\\n',)")
    for word in words:
        check_str("an item of stop", word)
    return words


def _token_biases(biases: object) -> Mapping[int, float] | None:
    if biases is None:
        return None
    if not isinstance(biases, Mapping):
        raise wrong_type("logit_bias", biases, "a mapping of token ids to numbers, or None")
    checked: dict[int, float] = {}
    pairs = cast("Any", biases).items()
    for token, bias in pairs:
        # JSON has only text as keys.
        number = int(token) if isinstance(token, str) and token.isdecimal() else token
        checked[check_int("a token id in logit_bias", number, least=0)] = check_number(
            "a number in logit_bias", bias, least=-100, most=100
        )
    return MappingProxyType(checked)


def _as_tools(tools: object) -> tuple[Tool, ...]:
    if tools == ():
        return ()
    made: dict[str, Tool] = {}
    for one in check_items("tools", tools, "a sequence of Tool"):
        if not isinstance(one, Tool) and not callable(one):
            raise wrong_type("an item of tools", one, "a Tool or a function")
        added = one if isinstance(one, Tool) else tool(one)
        if added.name in made:
            raise ValueError(f"tools must have different names, got {added.name!r} twice")
        made[added.name] = added
    return tuple(made.values())


@attrs.frozen
class Options:
    """Generation options. None leaves the choice to the backend."""

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    """The seed of the call. Iteration `i` sends `seed + i - 1`, so that samples differ and runs repeat."""

    stop: Sequence[str] = attrs.field(default=(), converter=_stop_words)
    # hash=False here and below: dicts can't be hashed.
    schema: Any = attrs.field(default=None, hash=False)
    """A JSON schema or a model class for the answer, for backends that support constrained decoding."""

    extra: Mapping[str, Any] = attrs.field(factory=dict[str, Any], converter=_frozen_mapping, hash=False)
    """Further options, passed to the backend unchanged. Token limits and the number of answers are refused."""

    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = attrs.field(default=None, converter=_token_biases, hash=False)
    """Numbers from -100 to 100 that are added to the logits of tokens, by token id."""

    logprobs: bool | int | None = None
    """Return the log probability of each token, or with an int also those of that many alternatives."""

    tools: Sequence[Tool] = attrs.field(default=(), converter=_as_tools)
    """Tools that the model may call. A function becomes a tool with `tool(function)`."""

    tool_choice: str | None = None
    """"auto", "none", "required", or the name of the tool that the model must call."""

    reasoning_effort: ReasoningEffort | None = None

    def __attrs_post_init__(self) -> None:
        for name, check in _CHECKS:
            value = getattr(self, name)
            if value is not None:
                check(name, value)
        if self.tools and self.tool_choice not in _TOOL_CHOICES:
            names = [one.name for one in self.tools]
            if self.tool_choice not in names:
                allowed = ", ".join(map(repr, [*sorted(filter(None, _TOOL_CHOICES)), *names]))
                raise ValueError(f"tool_choice must be one of {allowed}, got {short_repr(self.tool_choice)}")

    def overlaid(self, other: "Options | None") -> "Options":
        """Return these options, overridden by those that `other` sets."""
        if other is None:
            return self
        changes = other.given()
        if other.extra:
            changes["extra"] = {**self.extra, **other.extra}
        return attrs.evolve(self, **changes)

    def given(self) -> dict[str, Any]:
        """Return the options that are set, by name. A temperature of 0 is set, and so is `logprobs=False`."""
        values = ((name, getattr(self, name)) for name in _NAMES)
        return {name: value for name, value in values if value is not None and value not in ((), {})}


_TOOL_CHOICES = frozenset({None, "auto", "none", "required"})
_NAMES = tuple(field.name for field in attrs.fields(Options))


def _check_top_k(name: str, value: object) -> None:
    check_int(name, value, least=0)


def _check_share(name: str, value: object) -> None:
    check_number(name, value, least=0, most=1)


def _check_penalty(name: str, value: object) -> None:
    check_number(name, value, least=-2, most=2)


def _check_logprobs(name: str, value: object) -> None:
    if not isinstance(value, bool):
        check_int(name, value, least=0)


def _check_word(name: str, value: object) -> None:
    check_str(name, value, empty=False)


def _check_effort(name: str, value: object) -> None:
    if value not in get_args(ReasoningEffort):
        allowed = ", ".join(map(repr, get_args(ReasoningEffort)))
        raise ValueError(f"{name} must be one of {allowed}, got {short_repr(value)}")


_CHECKS: tuple[tuple[str, Callable[[str, object], object]], ...] = (
    ("model", _check_word),
    ("temperature", lambda name, value: check_number(name, value, least=0)),
    ("max_tokens", lambda name, value: check_int(name, value, least=1)),
    ("seed", check_int),
    ("top_p", _check_share),
    ("top_k", _check_top_k),
    ("min_p", _check_share),
    ("frequency_penalty", _check_penalty),
    ("presence_penalty", _check_penalty),
    ("logprobs", _check_logprobs),
    ("tool_choice", _check_word),
    ("reasoning_effort", _check_effort),
)
