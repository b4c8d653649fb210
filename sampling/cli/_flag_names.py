"""Replace the names of Python arguments by flags in error messages."""

import re
from collections.abc import Mapping

from sampling import errors
from sampling.errors import MissingExtra, SamplingError

__all__ = ["describe_error", "hint_for", "with_flags"]

_ANYWHERE: Mapping[str, str] = {
    "activate_per_s": "--activate-per-s",
    "allow_http": "--allow-http",
    "base_url": "the URL of --backend",
    "concurrency_budget": "--breadth",
    "cooldown_s": "--cooldown",
    "drain_s": "--drain",
    "duration_s": "--duration",
    "hold_s": "--hold",
    "horizon_s": "--duration",
    "input_per_million": "the input price of --price",
    "item_timeout_s": "--item-timeout",
    "loop_budget": "--depth",
    "max_concurrency": "--max-concurrency",
    "max_in_flight": "--max-in-flight",
    "max_tokens": "--max-tokens",
    "model_path": "the file of --backend llama:FILE",
    "most_steps": "--most-steps",
    "on_error": "--on-error",
    "outage_grace_s": "--outage-grace",
    "output_per_million": "the output price of --price",
    "pass_probability": "the probability of --backend simulated:",
    "rate_tolerance": "--rate-tolerance",
    "send_env_key": "--send-env-key",
    "think_time_s": "--think-time",
    "timeout_s": "--timeout",
    "to_rate": "--to-rate",
    "warmup_s": "--warmup",
}
"""Names that are not English words, so they can be replaced anywhere."""

_AT_THE_START = frozenset(
    {"arrivals", "axis", "burst", "precision", "rate", "requests", "seed", "slo", "steps", "temperature", "trace"}
    | {"users", "workers"}
)
"""Names that are words too. They are flags only where a message begins with them, or gives them a value."""

_PHRASES: Mapping[str, str] = {
    "pass api_key=…, set OPENAI_API_KEY, or pass the base_url of another server": (
        "set OPENAI_API_KEY, or give another server with --backend openai:MODEL@URL"
    ),
    "pass api_key=…, set GEMINI_API_KEY or GOOGLE_API_KEY, or pass the base_url of another server": (
        "set GEMINI_API_KEY or GOOGLE_API_KEY, or give another server with --backend gemini:MODEL@URL"
    ),
    "pass api_key=…, set ANTHROPIC_API_KEY, or pass the base_url of another server": (
        "set ANTHROPIC_API_KEY, or give another server with --backend anthropic:MODEL@URL"
    ),
    "is not sent to a given base_url): pass api_key=… or send_env_key=True": (
        "is not sent to the URL of --backend): add --send-env-key, or use --header"
    ),
    "pass api_key=… or send_env_key=True": (
        "set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY and add --send-env-key, or use --header"
    ),
    "Pass the key as api_key=…": "Set OPENAI_API_KEY and add --send-env-key, or use --header",
    "Pass parameters in Options(extra=…)": "Leave them out",
    "Pass allow_http=True if the network is your own": "Add --allow-http if the network is your own",
    "omit to_rate and shape, or use arrivals='poisson'": "leave out --to-rate, or use --arrivals poisson",
    "a ramp (to_rate) or a shape needs duration_s": "--to-rate needs --duration",
    "target must be 'package.module:name'": "--workload must be MODULE:NAME, such as shop.load:chat",
    "omit arrivals and shape": "leave out --arrivals",
    "for axis='users': omit them, or change the axis": "for --axis users: leave them out, or change --axis",
    "every step must": "every step of --steps must",
    "a step must be": "a step of --steps must be",
    "a step is": "a step of --steps is",
}

_HINTS: Mapping[type[SamplingError], str] = {
    errors.TransientError: "Another try may succeed: raise --depth, or --retries where the command has it.",
    errors.RateLimited: "Lower --breadth, or --max-concurrency where the command has it.",
    errors.Timeout: "The server is slow, or stuck: run `sampling doctor`, or lower --max-tokens.",
    errors.ServerError: "The problem is on the server: try again later, or use another --backend.",
    errors.ConnectFailed: "Check the URL of --backend, that the server is running, and the network.",
    errors.Incomplete: "The server ended its answer without a finish_reason: `sampling doctor` says more.",
    errors.MalformedResponse: "Check that the URL of --backend is that of an OpenAI-compatible API, including /v1.",
    errors.AuthenticationFailed: "Check OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY, and add --send-env-key "
    "if the URL of --backend is to get it.",
    errors.BadRequest: "The same request fails every time: change the flags or the prompt. If the server can't "
    "constrain answers to a schema, add --no-constrain.",
    errors.RequestTooLarge: "Send shorter prompts.",
    errors.CertificateInvalid: "Check the host name in the URL of --backend, and the server's certificate.",
    errors.ModelNotFound: "Compare the model in --backend with the server's list of models.",
    errors.Redirected: "If the new address is right, use it as the URL of --backend.",
    errors.ResponseTooLarge: "Set --max-tokens.",
    errors.BudgetExceeded: "Raise --budget-requests, --budget-tokens or --budget-cost.",
}
"""Hints that name flags, for errors whose own hint names Python arguments."""


def with_flags(message: str) -> str:
    """Return a message with flags instead of names of arguments."""
    for phrase, said in _PHRASES.items():
        message = message.replace(phrase, said)
    message = _WITH_VALUE.sub(lambda found: f"{_flag(found['name'])} {found['value']}", message)
    message = _UNIQUE.sub(lambda found: _ANYWHERE[found[0]], message)
    first = _FIRST_WORD.match(message)
    return f"--{message}" if first is not None and first[0] in _AT_THE_START else message


def _flag(name: str) -> str:
    return _ANYWHERE.get(name, f"--{name}")


_ALL = "|".join(sorted({*_ANYWHERE, *_AT_THE_START}, key=len, reverse=True))
_WITH_VALUE = re.compile(rf"(?<![\w-])(?P<name>{_ALL})=['\"]?(?P<value>[\w.…]+)['\"]?")
_UNIQUE = re.compile(rf"(?<![\w-])({'|'.join(_ANYWHERE)})(?!\w)")
_FIRST_WORD = re.compile(r"[a-z]+(?= (?:must|needs|is a|and))")


def hint_for(error: SamplingError) -> str:
    """Return how to fix an error, in terms of flags."""
    if isinstance(error, MissingExtra) or type(error).hint != error.hint:
        # The error was raised with a hint of its own.
        return with_flags(error.hint)
    known = next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)
    return with_flags(error.hint) if known is None else known


def describe_error(error: BaseException) -> str:
    """Return an error and its hint, on one line."""
    message = with_flags(str(error)).rstrip()
    hint = hint_for(error) if isinstance(error, SamplingError) else ""
    if hint and message and message[-1] not in ".!?":
        # Most servers do not end their message with a full stop.
        message += "."
    return " ".join(f"{message} {hint}".split())
