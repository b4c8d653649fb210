"""Build the workload of `sampling load` and `sampling capacity`."""

import sys
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import attrs
import typer

from sampling._arguments import check_int, short_repr
from sampling.backends.simulated import SimulatedBackend
from sampling.cli._answer_format import AnswerFormat, parse_format
from sampling.cli._files import read_input
from sampling.cli._flags import system_context, usage_errors
from sampling.cli._generated_prompts import parse_prompts
from sampling.cli._headers import Headers
from sampling.cli._imports import import_target
from sampling.cli._specs import (
    WITH_CONNECTIONS,
    open_backend,
    parse_backend,
    parse_requirements,
    parse_strategy,
    refuse_connection_flags,
)
from sampling.load import (
    Arrival,
    ImportedWorkload,
    Mix,
    RandomPrompts,
    Slo,
    StrategyWorkload,
    mix,
    strategy_workload,
)
from sampling.load._strategy_workload import Actions
from sampling.load.model._about import digest
from sampling.load.model._workload import Send
from sampling.messages import Options
from sampling.protocols import Backend
from sampling.strategy import BaseSamplingStrategy

__all__ = [
    "DEFAULT_QUESTION",
    "WorkloadSettings",
    "check_operations",
    "check_turns",
    "check_workers",
    "imported_mix",
    "open_mix",
    "open_workload",
    "prompt_tokens_of",
    "read_questions",
    "select_workload",
    "sending_headers",
    "sharing_backends",
]

DEFAULT_QUESTION = "What is 347 + 286?"
IN_PROCESS_BACKENDS = ("llama", "simulated", "smollm2")
"""Backends that run in this process or are started by it, so that every worker would have its own."""

Question = Annotated[list[str] | None, typer.Argument(help=f"Questions to ask in turn. Default: {DEFAULT_QUESTION}")]
Questions = Annotated[
    Path | None, typer.Option("--questions", help="A file with one question per line, or - for stdin.")
]
TrafficSeed = Annotated[int, typer.Option("--seed", help="Seed of the traffic.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of processes that send.")]
Workload = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="Your own workload instead of questions: an async function of one arrival.",
    ),
]


@attrs.frozen(kw_only=True)
class WorkloadSettings:
    """The settings of a workload, as plain values for any process."""

    questions: tuple[str, ...]
    backend: str
    strategy: str = "rejection"
    depth: int = 1
    breadth: int = 1
    require: tuple[str, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    send_env_key: bool = False
    allow_http: bool = False
    system: str | None = None
    type_: str | None = None
    constrain: bool = True
    prompt_tokens: int | None = None
    prompt_tokens_stdev: float | None = None
    prompt_tokens_min: int | None = None
    prompt_tokens_max: int | None = None
    shared_prefix_tokens: int | None = None
    prefixes: int | None = None
    turns: int | None = None

    def __attrs_post_init__(self) -> None:
        """Raise ValueError if a setting is wrong."""
        self.make_backend()
        self.make_strategy()
        _ = self.options
        prompts = self.prompts
        if self.turns is not None:
            check_int("--turns", self.turns, least=1)
        sums = any(spec.partition(":")[0] == "arithmetic" for spec in self.require)
        if sums and (prompts or (self.turns and len(self.questions) > 1)):
            unfit = "--prompt-tokens" if prompts else "--turns"
            raise ValueError(f"--require arithmetic checks the sum in a given question: leave it out, or {unfit}")
        for question in self.questions or ("",):
            parse_requirements(self.require, question)

    def make_backend(self) -> Backend:
        """Return the backend, not yet open."""
        # Headers are in the environment: these settings are written to files and shown, and headers must not be.
        headers = Headers.parse(())
        return parse_backend(self.backend, send_env_key=self.send_env_key, allow_http=self.allow_http, headers=headers)

    def make_strategy(self) -> BaseSamplingStrategy:
        """Return the strategy."""
        strategy = parse_strategy(self.strategy, depth=self.depth, breadth=self.breadth)
        # A load test limits the length of answers to measure the server: one that reaches the limit is a full one.
        strategy.accept_incomplete = True
        return strategy

    @property
    def options(self) -> Options:
        """The options of every request."""
        return Options(temperature=self.temperature, max_tokens=self.max_tokens, schema=self.format.schema)

    @property
    def format(self) -> AnswerFormat:
        """The format of answers."""
        return parse_format(self.type_, self.require, constrain=self.constrain)

    @property
    def prompts(self) -> RandomPrompts | None:
        """The generated prompts, instead of questions."""
        return parse_prompts(
            self.prompt_tokens,
            stdev=self.prompt_tokens_stdev,
            least=self.prompt_tokens_min,
            most=self.prompt_tokens_max,
            shared_prefix_tokens=self.shared_prefix_tokens,
            prefixes=self.prefixes,
        )

    @property
    def connection(self) -> tuple[object, ...]:
        """The settings that decide which backend is opened."""
        return self.backend, self.send_env_key, self.allow_http

    @property
    def in_process(self) -> bool:
        """True if every process has its own backend."""
        return self.backend.partition(":")[0] in IN_PROCESS_BACKENDS

    @property
    def simulated(self) -> bool:
        """True if the backend is simulated."""
        return self.backend.partition(":")[0] == "simulated"

    @property
    def max_requests(self) -> int:
        """The maximum requests of one call, without judges and retries."""
        return self.depth * self.breadth

    def describe(self) -> dict[str, Any]:
        """Describe the workload, for reports."""
        return {
            "workload": "questions",
            "strategy": self.strategy,
            "depth": self.depth,
            "breadth": self.breadth,
            "backend": self.backend,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "questions": str(self.prompts or f"{len(self.questions)}, {digest(self.questions)}"),
            "turns": self.turns,
            "requirements": digest(self.require) if self.require else None,
        }

    def imported(self) -> ImportedWorkload:
        """Return the workload as an import path and settings."""
        return ImportedWorkload(f"{__name__}:open_workload", attrs.asdict(self))

    def __str__(self) -> str:
        checked = f", checked by {_count(self.require, 'requirement')}" if self.require else ""
        shape = f"{self.strategy}, {self.depth} deep × {self.breadth} wide"
        asked = f"{self.prompts or _count(self.questions, 'question')}"
        turns = f", {self.turns} turns each" if self.turns else ""
        return f"{shape}{checked}, {asked}{turns}, backend {self.backend}"


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


@asynccontextmanager
async def open_workload(**settings: Any) -> AsyncGenerator["_RoundRobin"]:
    """Open the backend and yield the workload with these `WorkloadSettings`."""
    # JSON turns tuples into lists on the way to a worker.
    tuples: dict[str, Any] = {name: tuple(settings[name]) for name in ("questions", "require")}
    parsed = WorkloadSettings(**{**settings, **tuples})
    shared = _shared.get().get(parsed.connection)
    if shared is not None:
        yield _RoundRobin(parsed, shared)
        return
    backend = parsed.make_backend()
    async with open_backend(backend):
        yield _RoundRobin(parsed, backend)


_shared: ContextVar[Mapping[tuple[object, ...], Backend]] = ContextVar(
    "sampling_shared_backends", default=MappingProxyType({})
)


@asynccontextmanager
async def sharing_backends(settings: Iterable[WorkloadSettings]) -> AsyncGenerator[None]:
    """
    Open each backend once, for all workloads that are opened inside the block.

    So populations load the same server, even if it is simulated or runs in this process.
    """
    async with AsyncExitStack() as stack:
        opened: dict[tuple[object, ...], Backend] = {}
        for each in settings:
            if each.connection not in opened:
                opened[each.connection] = backend = each.make_backend()
                await stack.enter_async_context(open_backend(backend))
        before = _shared.set(opened)
        try:
            yield
        finally:
            _shared.reset(before)


@asynccontextmanager
async def open_mix(**operations: Any) -> AsyncGenerator[Mix]:
    """Open the workload of each operation, and yield a mix of them by weight."""
    async with AsyncExitStack() as stack:
        opened = {
            name: (weight, await stack.enter_async_context(open_workload(**settings)))
            for name, (weight, settings) in operations.items()
        }
        yield mix(opened)


def imported_mix(
    operations: Mapping[str, tuple[float, WorkloadSettings]],
) -> tuple[ImportedWorkload, dict[str, Any]]:
    """Return a mix of operations as an import path, and what it sends, for reports."""
    mix({name: (weight, _never_sent) for name, (weight, _) in operations.items()})  # raises if the weights are wrong
    arguments = {name: (weight, attrs.asdict(settings)) for name, (weight, settings) in operations.items()}
    about = {name: {"weight": weight, **settings.describe()} for name, (weight, settings) in operations.items()}
    return ImportedWorkload(f"{__name__}:open_mix", arguments), {"workload": "mix", "operations": about}


async def _never_sent(arrival: Arrival) -> None:  # noqa: ASYNC124 - a workload is async
    raise NotImplementedError


class _RoundRobin:
    """A workload that asks the questions in turn, or generated prompts."""

    def __init__(self, settings: WorkloadSettings, backend: Backend) -> None:
        prompts, answer = settings.prompts, settings.format
        if prompts is not None:
            groups: list[tuple[Actions, str]] = [(lambda arrival: answer.action(prompts(arrival)), "")]
        elif settings.turns is not None:
            # A conversation goes through several questions, so they are all of one workload.
            groups = [([answer.action(question) for question in settings.questions], settings.questions[0])]
        else:
            groups = [([answer.action(question)], question) for question in settings.questions]
        self._workloads = [self._workload(settings, actions, question, backend) for actions, question in groups]

    def _workload(
        self, settings: WorkloadSettings, actions: Actions, question: str, backend: Backend
    ) -> StrategyWorkload:
        # The text of a simulated server means nothing, so only its own requirements can tell valid from invalid.
        own = backend.requirements if isinstance(backend, SimulatedBackend) and not settings.require else ()
        return strategy_workload(
            settings.make_strategy(),
            actions,
            system_context(settings.system),
            backend,
            [*own, *parse_requirements(settings.require, question)],
            options=settings.options,
            conversation=settings.turns is not None,
            turns=settings.turns,
        )

    def draw(self, arrival: Arrival) -> Send | None:
        """Draw a request for the next question."""
        # With users, each starts at another question, so that they do not all send the same one.
        position = (arrival.user or 0) + arrival.number
        return self._workloads[position % len(self._workloads)].draw(arrival)


def read_questions(
    given: Iterable[str] | None, file: Path | None, *, prompt_tokens: int | None = None
) -> tuple[str, ...]:
    """Return the questions of the arguments or of the file, or none if prompts are generated."""
    questions = tuple(given or ())
    if prompt_tokens is not None:
        if questions or file is not None:
            raise ValueError(
                "questions and --prompt-tokens contradict each other: prompts are given, or generated. Keep one of them"
            )
        return ()
    if questions and file is not None:
        raise ValueError(
            "questions and --questions contradict each other: give the questions as arguments, or in the file"
        )
    if file is None:
        return questions or (DEFAULT_QUESTION,)
    text = sys.stdin.read() if str(file) == "-" else read_input("--questions", file)
    found = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not found:
        raise ValueError(f"--questions: {short_repr(str(file))} has no questions: write one per line")
    return found


# A flag with its default value counts as not given: a command sees only the values.
_DEFAULTS: Mapping[str, object] = {
    "backend": "llama", "strategy": "rejection", "depth": 1, "breadth": 1, "require": (), "temperature": None,
    "max_tokens": None, "send_env_key": False, "allow_http": False, "system": None, "type_": None, "constrain": True,
    "prompt_tokens": None, "prompt_tokens_stdev": None, "prompt_tokens_min": None, "prompt_tokens_max": None,
    "shared_prefix_tokens": None, "prefixes": None, "turns": None,
}  # fmt: skip


def select_workload(
    workload: str | None, question: Sequence[str] | None, questions: Path | None, **flags: Any
) -> WorkloadSettings | ImportedWorkload:
    """Return the workload of `--workload`, or of the other flags."""
    if workload is None:
        asked = read_questions(question, questions, prompt_tokens=flags.get("prompt_tokens"))
        return WorkloadSettings(questions=asked, **flags)
    unused = [f"--{name.strip('_').replace('_', '-')}" for name, value in flags.items() if value != _DEFAULTS[name]]
    if question or questions:
        unused.append("the questions")
    if unused:
        raise ValueError(f"--workload sends its own requests: leave out {', '.join(sorted(unused))}")
    # Import it now: a typo is found before the run, and not in each worker.
    found = import_target("--workload", workload)
    if not callable(found) and not callable(getattr(found, "draw", None)):
        raise ValueError(  # noqa: TRY004 - the flag is wrong, not the type of an argument
            f"--workload {workload} must be an async function of one arrival, got {short_repr(found)}"
        )
    return ImportedWorkload(workload)


@contextmanager
def sending_headers(header: Sequence[str] | None, *, workload: str | None, backend: str) -> Generator[None]:
    """
    Send these headers with every request inside the block, also from worker processes.

    They are not a part of `WorkloadSettings`, which reports and journals describe.
    """
    with usage_errors():
        headers = Headers.parse(header)
        if headers.from_flags and workload is not None:
            raise ValueError("--workload sends its own requests: leave out --header")
        if headers.from_flags and backend.partition(":")[0] not in WITH_CONNECTIONS:
            refuse_connection_flags(backend, header=True)
    with headers.in_environment():
        yield


def check_operations(
    slo: Slo | None, workload: WorkloadSettings | ImportedWorkload, operations: Iterable[str] = ()
) -> None:
    """
    Raise ValueError if the SLO limits an operation that is never sent.

    A workload of the user's own may name its operations while it runs, so they are not checked.
    """
    sent = tuple(operations)
    unknown = [] if slo is None or isinstance(workload, ImportedWorkload) else [*slo.operations.keys() - {*sent}]
    if unknown:
        there_are = f"the operations are {', '.join(map(repr, sent))}" if sent else "there are no operations"
        raise ValueError(f"the SLO limits {', '.join(map(repr, sorted(unknown)))}, but {there_are}")


def check_turns(workload: WorkloadSettings | ImportedWorkload, *, users: bool, flag: str = "--users") -> None:
    """Raise ValueError if conversations are wanted, but there are no users to have them."""
    if not users and isinstance(workload, WorkloadSettings) and workload.turns is not None:
        raise ValueError(f"--turns is for {flag}: only users have conversations. Leave it out")


def prompt_tokens_of(calls: float, workloads: Sequence[WorkloadSettings]) -> str:
    """Return about how many tokens the generated prompts of these calls have, as text to append, or nothing."""
    tokens = max((each.max_requests * (each.prompt_tokens or 0) for each in workloads), default=0)
    return f" with about {calls * tokens:,.0f} tokens of prompts" if tokens else ""


def check_workers(workload: WorkloadSettings | ImportedWorkload, workers: int, *, virtual: bool) -> None:
    """Raise ValueError if the backend excludes workers or virtual time."""
    if workers > 1 and isinstance(workload, WorkloadSettings) and workload.in_process:
        raise ValueError(
            f"--workers {workers} would start {workers} servers of their own with --backend {workload.backend}: "
            "use --workers 1, or a server that all of them can reach (--backend openai:MODEL@URL)"
        )
    if virtual and not (isinstance(workload, WorkloadSettings) and workload.simulated):
        raise ValueError("--virtual needs --backend simulated: the time of a real server can't be skipped")
    if virtual and workers > 1:
        raise ValueError("--virtual and --workers contradict each other: virtual time needs a single process")
