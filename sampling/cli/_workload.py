"""What load is made of: the flags that say whom to ask what and how, and the workload that they come to."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from sampling._arguments import shown
from sampling.backends.simulated import SimulatedBackend
from sampling.cli._specs import backend_of, opened, requirements_of, strategy_of
from sampling.load import Arrival, ImportedWorkload, StrategyWorkload, strategy_workload
from sampling.load.model._workload import Send
from sampling.messages import Options
from sampling.protocols import Backend
from sampling.strategy import BaseSamplingStrategy

__all__ = ["Asking", "asked_questions", "workload_of"]

DEFAULT_QUESTION = "What is 347 + 286?"
MADE_HERE = ("llama", "simulated")
"""Backends that are in this process, or are started by it: several workers would each have one of their own."""

Question = Annotated[list[str] | None, typer.Argument(help=f"What to ask, in turn. By default: {DEFAULT_QUESTION}")]
Questions = Annotated[Path | None, typer.Option("--questions", help="A file with one question a line, instead.")]
Workload = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="Your own code, instead of questions: an async function of one arrival.",
    ),
]


@attrs.frozen(kw_only=True)
class Asking:
    """What is asked, of whom, and how: all that the flags say, in plain values that another process can be given."""

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
        """See that all of it can be made, before anything is started."""
        self.make_backend()
        self.make_strategy()
        for question in self.questions:
            requirements_of(self.require, question)

    def make_backend(self) -> Backend:
        """Make the backend, not open yet."""
        return backend_of(self.backend, send_env_key=self.send_env_key)

    def make_strategy(self) -> BaseSamplingStrategy:
        """Make the strategy."""
        return strategy_of(self.strategy, depth=self.depth, breadth=self.breadth)

    @property
    def options(self) -> Options:
        """What goes with every request."""
        return Options(temperature=self.temperature, max_tokens=self.max_tokens)

    @property
    def made_here(self) -> bool:
        """Whether the backend is in this process, or is started by it."""
        return self.backend.partition(":")[0] in MADE_HERE

    @property
    def simulated(self) -> bool:
        """Whether nothing real is asked."""
        return self.backend.partition(":")[0] == "simulated"

    @property
    def most_requests(self) -> int:
        """How many requests to the backend one call may make, judges and retries aside."""
        return self.depth * self.breadth

    def imported(self) -> ImportedWorkload:
        """Return the workload by its name, for this process and for others."""
        return ImportedWorkload(f"{__name__}:workload_of", attrs.asdict(self))

    def __str__(self) -> str:
        checked = f", checked by {len(self.require)} requirements" if self.require else ""
        return (
            f"{self.strategy}, {self.depth} deep × {self.breadth} wide{checked}, {len(self.questions)} questions, "
            f"backend {self.backend}"
        )


@asynccontextmanager
async def workload_of(**settings: Any) -> AsyncGenerator["_InTurn"]:
    """Open the backend, and make the workload that `Asking` describes."""
    lists_back: dict[str, Any] = {name: tuple(settings[name]) for name in ("questions", "require")}
    asking = Asking(**{**settings, **lists_back})
    backend = asking.make_backend()
    async with opened(backend):
        yield _InTurn(asking, backend)


class _InTurn:
    """Asks one question after the other, each with the requirements that belong to it."""

    def __init__(self, asking: Asking, backend: Backend) -> None:
        self._workloads = [self._one(asking, question, backend) for question in asking.questions]

    def _one(self, asking: Asking, question: str, backend: Backend) -> StrategyWorkload:
        # What a simulated server says only it can judge, if nobody else does.
        own = backend.requirements if isinstance(backend, SimulatedBackend) and not asking.require else ()
        return strategy_workload(
            asking.make_strategy(),
            [question],
            None,
            backend,
            [*own, *requirements_of(asking.require, question)],
            options=asking.options,
        )

    def draw(self, arrival: Arrival) -> Send | None:
        """Take the next question."""
        place = (arrival.user or 0) + arrival.number
        return self._workloads[place % len(self._workloads)].draw(arrival)


def asked_questions(given: Iterable[str] | None, file: Path | None) -> tuple[str, ...]:
    """Return the questions that were given, or those in the file, or the one that the embedded model can answer."""
    questions = tuple(given or ())
    if questions and file is not None:
        raise ValueError("questions and --questions contradict each other: give them on the line, or in the file")
    if file is None:
        return questions or (DEFAULT_QUESTION,)
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ValueError(f"--questions: can't read {shown(str(file))}: {error.strerror}") from None
    found = tuple(line for line in lines if line)
    if not found:
        raise ValueError(f"--questions: there is no question in {shown(str(file))}: write one a line")
    return found


def workload_from(workload: str | None, flags: Mapping[str, Any], changed: Iterable[str]) -> Asking | ImportedWorkload:
    """Return what to send: the code that was named, or what the flags about asking come to."""
    if workload is None:
        return Asking(**flags)
    if useless := sorted(changed):
        raise ValueError(f"--workload is your own code, which asks by itself: leave out {', '.join(useless)}")
    return ImportedWorkload(workload)
