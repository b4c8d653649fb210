"""The checks of `sampling doctor`."""

import platform
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeAlias

import anyio
import attrs

import sampling
from sampling._json.extraction import read_json
from sampling._picklable import Picklable
from sampling._text import estimate_tokens, unfenced
from sampling.cli._flag_names import hint_for, with_flags
from sampling.cli._specs import open_backend
from sampling.errors import BackendError, BadRequest, CertificateInvalid, ConnectFailed, RateLimited, SamplingError
from sampling.messages import Message, Options, Request
from sampling.protocols import Backend, StreamingBackend

__all__ = ["Checkup", "Finding", "check_packages"]

Status: TypeAlias = Literal["ok", "warn", "fail"]

_PACKAGES = ("anyio", "httpx2", "xllamacpp", "pydantic", "jsonschema", "regex", "typer", "rich", "ray", "trio")
_OLDEST_PYTHON = (3, 11)
_QUESTION = "Reply with one short sentence about rain."
_COUNTED_QUESTION = f"Which number is missing? {' '.join(map(str, range(40)))} 41"
_ESTIMATED_TOKENS = 1 + estimate_tokens(len(_COUNTED_QUESTION))
_LONG_QUESTION = "Write a very long story about rain. Do not stop before you have written ten chapters."
_LONG_ANSWER_TOKENS = 2_048
_AT_ONCE = 4
_SLOW_STOP_S = 2.0


@attrs.frozen
class Finding:
    """The result of one check."""

    status: Status
    check: str
    found: str = ""
    fix: str = ""


class _Unhealthy(Picklable, Exception):
    """A check failed, or found something to warn about."""

    def __init__(self, status: Status, found: str, fix: str) -> None:
        super().__init__(found)
        self.status: Status = status
        self.found = found
        self.fix = fix


def check_packages() -> Iterator[Finding]:
    """Yield the versions of Python, of this package, and of those that it can use."""
    running = platform.python_version_tuple()
    supported = (int(running[0]), int(running[1])) >= _OLDEST_PYTHON
    yield Finding(
        "ok" if supported else "fail",
        "python",
        platform.python_version(),
        "" if supported else "Use Python 3.11 or newer.",
    )
    installed = {name: found for name in _PACKAGES if (found := _version(name)) is not None}
    yield Finding("ok", "packages", ", ".join([f"sampling {sampling.__version__}", *map(" ".join, installed.items())]))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


class Checkup:
    """
    Checks of one backend, in the order in which they depend on each other.

    If the backend does not answer at all, the rest is left out.
    """

    def __init__(self, backend: Backend, *, timeout_s: float) -> None:
        self._backend = backend
        self._timeout_s = timeout_s

    async def run(self) -> list[Finding]:
        """Run all checks."""
        findings: list[Finding] = []
        async with self._opened(findings):
            if findings:
                return findings
            findings.append(await self._check("answers", self._answers))
            if findings[-1].status == "fail":
                return findings
            findings.insert(0, Finding("ok", "reachable", getattr(self._backend, "base_url", "in this process")))
            findings += [
                await self._check("usage", self._reports_usage),
                await self._check("streaming", self._streams),
                await self._check("cancellation", self._stops_when_cancelled),
                await self._check("max_tokens", self._obeys_max_tokens),
                await self._check("schema", self._follows_schema),
                await self._check("limits", self._answers_at_once),
            ]
        return findings

    @asynccontextmanager
    async def _opened(self, findings: list[Finding]) -> AsyncGenerator[None]:
        try:
            opened = open_backend(self._backend)
            await opened.__aenter__()
        except SamplingError as error:
            findings.append(_failure("opens", error))
            yield
            return
        try:
            yield
        finally:
            await opened.__aexit__(None, None, None)  # noqa: ASYNC102 - backends limit the time of closing

    async def _check(self, name: str, check: Callable[[], Awaitable[str]]) -> Finding:
        try:
            with anyio.fail_after(self._timeout_s):
                return Finding("ok", name, await check())
        except _Unhealthy as problem:
            return Finding(problem.status, name, problem.found, problem.fix)
        except (ConnectFailed, CertificateInvalid) as error:
            return _failure("reachable", error)
        except SamplingError as error:
            return _failure(name, error)
        except ExceptionGroup as group:
            # Of requests that were sent at once.
            known = group.subgroup(SamplingError)
            if known is None:
                raise
            return _failure(name, _first(known))
        except TimeoutError:
            fix = "The server is slow, stuck, or still loading its model. Try again, or raise --timeout."
            return Finding("fail", name, f"no answer within {self._timeout_s:g} s", fix)

    # The checks. Each returns what it found, or raises.

    async def _answers(self) -> str:
        started = anyio.current_time()
        generation = await self._backend.generate(_request(_QUESTION, max_tokens=64))
        elapsed_s = anyio.current_time() - started
        if not generation.text.strip():
            if generation.reasoning:
                raise _Unhealthy("warn", "it used all 64 tokens for reasoning", "Omit --max-tokens, or raise it.")
            raise _Unhealthy("fail", "its answer is empty", "Check the model and its chat template.")
        model = f" as {generation.model}" if generation.model else ""
        return f"in {elapsed_s:.2f} s{model}"

    async def _reports_usage(self) -> str:
        usage = (await self._backend.generate(_request(_COUNTED_QUESTION, max_tokens=8))).usage
        # A backend estimates what a server does not report. Digits are more tokens than an estimate expects.
        estimated = hasattr(self._backend, "base_url") and usage.input_tokens == _ESTIMATED_TOKENS
        if estimated or not usage.input_tokens or not usage.output_tokens:
            raise _Unhealthy(
                "warn",
                "the server reports no tokens, so they are estimated",
                "--budget-tokens and --budget-cost are only approximate. Configure the server to report its usage.",
            )
        return f"{usage.input_tokens} input and {usage.output_tokens} output tokens"

    async def _streams(self) -> str:
        backend = self._streaming()
        pieces: list[float] = []
        await backend.stream(_request(_LONG_QUESTION, max_tokens=64), lambda _: pieces.append(anyio.current_time()))
        if len(pieces) < 2:
            raise _Unhealthy(
                "warn",
                f"the answer came in {len(pieces)} piece",
                "A proxy may buffer it: turn that off, or answers can't be stopped early.",
            )
        return f"{len(pieces)} pieces, the first {pieces[-1] - pieces[0]:.2f} s before the last"

    async def _stops_when_cancelled(self) -> str:
        backend = self._streaming()
        before_s = await self._time_of_short_request()
        finished = 0

        async def cancel_at_first_piece() -> None:
            nonlocal finished
            with anyio.CancelScope() as scope:
                await backend.stream(_request(_LONG_QUESTION, max_tokens=_LONG_ANSWER_TOKENS), lambda _: scope.cancel())
                finished += not scope.cancel_called

        async with anyio.create_task_group() as group:
            for _ in range(_AT_ONCE):
                group.start_soon(cancel_at_first_piece)
        if finished:
            raise _Unhealthy("warn", "answers ended before they could be cancelled", "Try a model with longer answers.")
        # A server that keeps generating is busy with answers that are never read.
        after_s = await self._time_of_short_request()
        found = f"after {_AT_ONCE} cancelled requests, one took {after_s:.2f} s, and {before_s:.2f} s before"
        if after_s > before_s + _SLOW_STOP_S:
            fix = "The server, or a proxy, keeps generating after clients have disconnected: upgrade it."
            raise _Unhealthy("warn", found, fix)
        return found

    async def _time_of_short_request(self) -> float:
        started = anyio.current_time()
        await self._backend.generate(_request(_QUESTION, max_tokens=1))
        return anyio.current_time() - started

    async def _obeys_max_tokens(self) -> str:
        generation = await self._backend.generate(_request(_LONG_QUESTION, max_tokens=5))
        used, words = generation.usage.output_tokens, len(generation.text.split())
        if max(used, words) > 5:
            got = f"{used}" if used > 5 else f"{words} words"
            raise _Unhealthy(
                "warn", f"asked for at most 5 tokens, got {got}", "--max-tokens does not limit what an answer costs."
            )
        return f"asked for at most 5 tokens, got {used}"

    async def _follows_schema(self) -> str:
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        }
        request = _request("Name a city, as JSON.", max_tokens=64, schema=schema)
        fix = "Use --no-constrain with --require json, --require schema:FILE and --type."
        try:
            generation = await self._backend.generate(request)
        except BadRequest as error:
            raise _Unhealthy("warn", f"the server refuses a schema: {error}", fix) from error
        try:
            read_json(unfenced(generation.text))
        except ValueError:
            found = "the server ignores a schema, so answers may not be JSON"
            raise _Unhealthy("warn", found, "Repairs still work: raise --depth.") from None
        return "answers follow a schema"

    async def _answers_at_once(self) -> str:
        failures: list[BackendError] = []

        async def ask() -> None:
            try:
                await self._backend.generate(_request(_QUESTION, max_tokens=8))
            except BackendError as error:
                failures.append(error)

        started = anyio.current_time()
        async with anyio.create_task_group() as group:
            for _ in range(_AT_ONCE):
                group.start_soon(ask)
        if failures:
            found = f"{len(failures)} of {_AT_ONCE} requests at once failed: {failures[0]}"
            raise _Unhealthy("warn", found, hint_for(failures[0]))
        return f"{_AT_ONCE} requests at once took {anyio.current_time() - started:.2f} s"

    def _streaming(self) -> StreamingBackend:
        if not isinstance(self._backend, StreamingBackend):
            raise _Unhealthy("warn", "this backend can't stream", "Requests can't stop early.")
        return self._backend


def _request(text: str, **options: object) -> Request:
    return Request((Message("user", text),), Options(**options))  # type: ignore[arg-type]


def _first(group: ExceptionGroup[SamplingError]) -> SamplingError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


def _failure(name: str, error: SamplingError) -> Finding:
    # One request at a time is sent, so fewer would not help.
    hint = _BUSY if isinstance(error, RateLimited) else hint_for(error)
    return Finding("fail", name, f"{type(error).__name__}: {with_flags(str(error))}", hint)


_BUSY = "The server is busy, or a limit of the key is reached: wait, and try again."
