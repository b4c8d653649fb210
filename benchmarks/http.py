"""
Measure the CPU time of an HTTP request in the client.

Contenders are our backend, the client of openai and the backend of mellea, on one loopback server.
The server and each library run in their own processes. Sixteen requests are in flight, and every answer is checked.
The server counts the requests, streamed and whole, and the counts must be as expected.
The CPU time of the client process is compared round by round, so that a slow phase of the machine affects all clients.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.http_line import LineWorker
from benchmarks.http_round import IN_FLIGHT, WARM_UP
from benchmarks.http_server import AT_ONCE, ONE_BY_ONE, STEP_S, TOKENS
from benchmarks.peers import MELLEA
from benchmarks.report import Check, Row, Section, Settings, shout
from benchmarks.worker import NotMeasuredError, WrongWorkError

BOUND = 2.0
SERVER_BOUND = 0.5  # of the CPU time of the fastest client. A slower server might distort the measurement.
REQUESTS = 3 * IN_FLIGHT
SECTION_S = 14.0  # On a busy machine there are fewer rounds, but at least these:
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Contender:
    """One client in one process, with its target."""

    name: str
    process: str
    client: str
    streams: bool = True
    bound: float | None = None


@dataclass
class Measured:
    """The rounds of one contender."""

    rates: list[float] = field(default_factory=list)  # requests per CPU second
    server_shares: list[float] = field(default_factory=list)  # the server's CPU time divided by the client's


OURS = Contender("ours", "ours", "generate")
OPENAI_STREAMED = Contender("openai, streamed", "openai", "streamed", bound=BOUND)
OPENAI_WHOLE = Contender("openai, not streamed", "openai", "whole", streams=False)

# The timing of the tokens, the path of the server that sends them so, and the contenders.
TABLES: tuple[tuple[str, str, tuple[Contender, ...]], ...] = (
    (
        "all at once",
        AT_ONCE,
        (
            OURS,
            OPENAI_STREAMED,
            Contender("mellea", "mellea", "whole", streams=False, bound=BOUND),
            OPENAI_WHOLE,
            Contender("ours on trio", "ours on trio", "generate"),
            Contender("ours, through sample()", "ours", "sample"),
        ),
    ),
    (
        f"{STEP_S * 1e3:g} ms apart",
        ONE_BY_ONE,
        (
            OURS,
            OPENAI_STREAMED,
            Contender("mellea, streamed", "mellea", "streamed", bound=BOUND),
            # These two do not stream, so they get all tokens at once.
            Contender("mellea, not streamed", "mellea", "whole", streams=False),
            OPENAI_WHOLE,
        ),
    ),
)

Rounds = dict[Contender, Measured]


def run(settings: Settings) -> list[Section]:
    """Start all processes, and measure each table."""
    workers: dict[str, LineWorker] = {}
    sections = []
    try:
        _start(workers, settings)
        for tokens, path, everyone in TABLES:
            contenders = [each for each in everyone if settings.peers or each.process not in _peers()]
            rounds = _measure(workers, path, contenders, rounds=FEWEST_ROUNDS if settings.quick else 8)
            sections.append(_section(tokens, rounds, contenders, settings))
    finally:
        for worker in workers.values():
            worker.close()
    return sections


# Processes.


def _start(workers: dict[str, LineWorker], settings: Settings) -> None:
    commands: dict[str, Callable[[], LineWorker]] = {
        "server": lambda: _ours("http_server"),
        "ours": lambda: _ours("http_ours"),
        "ours on trio": lambda: _ours("http_ours", "trio"),
        **(_peers() if settings.peers else {}),
    }
    for name, start in commands.items():
        try:
            workers[name] = start()
        except NotMeasuredError as error:
            shout(f"{name} is NOT MEASURED: {error}")


def _ours(module: str, *arguments: str) -> LineWorker:
    return LineWorker([sys.executable, "-m", f"benchmarks.{module}", *arguments], direct(os.environ))


def _peers() -> dict[str, Callable[[], LineWorker]]:
    def peer(module: str) -> LineWorker:
        return LineWorker([MELLEA.python(), "-m", f"benchmarks.{module}"], direct(MELLEA.env()))

    return {"openai": lambda: peer("http_openai"), "mellea": lambda: peer("http_mellea")}


def direct(env: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables without those of a proxy.

    Some clients would send even loopback requests to it.
    """
    return {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}


# Rounds.


def _measure(workers: dict[str, LineWorker], path: str, contenders: Sequence[Contender], *, rounds: int) -> Rounds:
    measured: Rounds = {each: Measured() for each in contenders if each.process in workers and "server" in workers}
    ends = time.monotonic() + SECTION_S
    for number in range(rounds + 1):
        if number > FEWEST_ROUNDS and time.monotonic() > ends:
            break
        warming_up = number == 0  # The first round imports and fills caches, so its time is not used.
        for contender in list(measured):
            try:
                _round(workers, path, contender, measured[contender], IN_FLIGHT if warming_up else REQUESTS)
            except (NotMeasuredError, WrongWorkError) as error:
                del measured[contender]
                shout(f"{contender.name} is NOT MEASURED: {error}")
        if warming_up:
            measured = {each: Measured() for each in measured}
    return measured


def _round(workers: dict[str, LineWorker], path: str, contender: Contender, measured: Measured, requests: int) -> None:
    server = workers["server"]
    before = server.ask()
    base_url = f"http://127.0.0.1:{before['port']}{path}"
    took = workers[contender.process].ask(client=contender.client, base_url=base_url, requests=requests)
    after = server.ask()
    counted = {kind: after["counts"][kind] - before["counts"][kind] for kind in ("streamed", "whole")}
    asked = requests + WARM_UP
    if counted != {"streamed": asked * contender.streams, "whole": asked * (not contender.streams)}:
        raise WrongWorkError(f"the server must count {asked} requests, streamed={contender.streams}, not {counted}")
    measured.rates.append(requests / took["cpu_s"])
    server_s = (after["cpu_s"] - before["cpu_s"]) / asked
    measured.server_shares.append(server_s * requests / took["cpu_s"])


# Results.


def _section(tokens: str, rounds: Rounds, contenders: Sequence[Contender], settings: Settings) -> Section:
    return Section(
        f"An answer of {len(TOKENS)} tokens over HTTP that come {tokens}, {IN_FLIGHT} in flight",
        "requests per CPU second of the client",
        tuple(_row(contender, rounds) for contender in contenders),
        MELLEA.versions if settings.peers else {},
    )


def _row(contender: Contender, rounds: Rounds) -> Row:
    measured = rounds.get(contender, Measured())
    # Rounds next to each other are compared, so that the load of the machine cancels out.
    times_faster = [ours / its for ours, its in zip(_rates(OURS, rounds), measured.rates, strict=False)]
    server_share = median(measured.server_shares) if measured.server_shares else None
    values = {
        **_spread("", measured.rates),
        **(_spread("ours ÷ it: ", times_faster) if contender != OURS else {}),
    }
    checks = []
    if contender.bound is not None:
        middle = median(times_faster) if times_faster else None
        checks.append(Check("ours ÷ it", middle, contender.bound, at_least=True))
    if contender == OURS:
        checks.append(Check("server ÷ client CPU", server_share, SERVER_BOUND))
    details = {"rounds": measured.rates, "requests_per_round": REQUESTS, "server_share": server_share}
    return Row(contender.name, values, tuple(checks), details)


def _rates(contender: Contender, rounds: Rounds) -> list[float]:
    return rounds[contender].rates if contender in rounds else []


def _spread(label: str, numbers: Sequence[float]) -> dict[str, float | None]:
    kinds: dict[str, Callable[[Sequence[float]], float]] = {"least": min, "median": median, "most": max}
    return {f"{label}{name}": kind(numbers) if numbers else None for name, kind in kinds.items()}
