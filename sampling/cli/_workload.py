"""Build the workload of `sampling load` and `sampling capacity`."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from sampling._arguments import short_repr
from sampling.backends.simulated import SimulatedBackend
from sampling.cli._specs import open_backend, parse_backend, parse_requirements, parse_strategy
from sampling.load import Arrival, ImportedWorkload, StrategyWorkload, strategy_workload
from sampling.load.model._workload import Send
from sampling.messages import Options
from sampling.protocols import Backend
from sampling.strategy import BaseSamplingStrategy

__all__ = ["WorkloadSettings", "check_workers", "open_workload", "select_workload"]

DEFAULT_QUESTION = "What is 347 + 286?"
IN_PROCESS_BACKENDS = ("llama", "simulated")
"""Backends that run in this process or are started by it, so that every worker would have its own."""

Question = Annotated[list[str] | None, typer.Argument(help=f"Questions to ask in turn. Default: {DEFAULT_QUESTION}")]
Questions = Annotated[Path | None, typer.Option("--questions", help="A file with one question per line.")]
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

    def __attrs_post_init__(self) -> None:
        """Raise ValueError if a setting is wrong."""
        self.make_backend()
        self.make_strategy()
        for question in self.questions:
            parse_requirements(self.require, question)

    def make_backend(self) -> Backend:
        """Return the backend, not yet open."""
        return parse_backend(self.backend, send_env_key=self.send_env_key)

    def make_strategy(self) -> BaseSamplingStrategy:
        """Return the strategy."""
        return parse_strategy(self.strategy, depth=self.depth, breadth=self.breadth)

    @property
    def options(self) -> Options:
        """The options of every request."""
        return Options(temperature=self.temperature, max_tokens=self.max_tokens)

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

    def imported(self) -> ImportedWorkload:
        """Return the workload as an import path and settings."""
        return ImportedWorkload(f"{__name__}:open_workload", attrs.asdict(self))

    def __str__(self) -> str:
        checked = f", checked by {len(self.require)} requirements" if self.require else ""
        return (
            f"{self.strategy}, {self.depth} deep × {self.breadth} wide{checked}, {len(self.questions)} questions, "
            f"backend {self.backend}"
        )


@asynccontextmanager
async def open_workload(**settings: Any) -> AsyncGenerator["_RoundRobin"]:
    """Open the backend and yield the workload with these `WorkloadSettings`."""
    # JSON turns tuples into lists on the way to a worker.
    tuples: dict[str, Any] = {name: tuple(settings[name]) for name in ("questions", "require")}
    parsed = WorkloadSettings(**{**settings, **tuples})
    backend = parsed.make_backend()
    async with open_backend(backend):
        yield _RoundRobin(parsed, backend)


class _RoundRobin:
    """A workload that asks the questions in turn."""

    def __init__(self, settings: WorkloadSettings, backend: Backend) -> None:
        self._workloads = [self._workload(settings, question, backend) for question in settings.questions]

    def _workload(self, settings: WorkloadSettings, question: str, backend: Backend) -> StrategyWorkload:
        # The text of a simulated server means nothing, so only its own requirements can tell valid from invalid.
        own = backend.requirements if isinstance(backend, SimulatedBackend) and not settings.require else ()
        return strategy_workload(
            settings.make_strategy(),
            [question],
            None,
            backend,
            [*own, *parse_requirements(settings.require, question)],
            options=settings.options,
        )

    def draw(self, arrival: Arrival) -> Send | None:
        """Draw a request for the next question."""
        # With users, each starts at another question, so that they do not all send the same one.
        position = (arrival.user or 0) + arrival.number
        return self._workloads[position % len(self._workloads)].draw(arrival)


def _read_questions(given: Iterable[str] | None, file: Path | None) -> tuple[str, ...]:
    """Return the questions of the arguments or of the file."""
    questions = tuple(given or ())
    if questions and file is not None:
        raise ValueError(
            "questions and --questions contradict each other: give the questions as arguments, or in the file"
        )
    if file is None:
        return questions or (DEFAULT_QUESTION,)
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ValueError(f"--questions: can't read {short_repr(str(file))}: {error.strerror}") from None
    found = tuple(line for line in lines if line)
    if not found:
        raise ValueError(f"--questions: {short_repr(str(file))} has no questions: write one per line")
    return found


# A flag with its default value counts as not given: a command sees only the values.
_DEFAULTS: Mapping[str, object] = {
    "backend": "llama", "strategy": "rejection", "depth": 1, "breadth": 1, "require": (), "temperature": None,
    "max_tokens": None, "send_env_key": False,
}  # fmt: skip


def select_workload(
    workload: str | None, question: Sequence[str] | None, questions: Path | None, **flags: Any
) -> WorkloadSettings | ImportedWorkload:
    """Return the workload of `--workload`, or of the other flags."""
    if workload is None:
        return WorkloadSettings(questions=_read_questions(question, questions), **flags)
    unused = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value != _DEFAULTS[name]]
    if question or questions:
        unused.append("the questions")
    if unused:
        raise ValueError(f"--workload is your own code, which asks by itself: leave out {', '.join(sorted(unused))}")
    return ImportedWorkload(workload)


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
