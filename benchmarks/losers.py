"""
Measure the cost of losers on a real server.

Contenders are our `OpenAIBackend` and that of mellea, on one llama.cpp with the embedded model.
Each question is asked with depth 3 and breadth 4, and the same check. The server counts the generated tokens, including
those of requests that were cancelled but still run. Rounds alternate, and begin when the server is idle.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import quantiles

from benchmarks.http_line import LineWorker
from benchmarks.peers import MELLEA
from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.worker import NotMeasuredError
from sampling.backends.llama._server import LlamaServer, LlamaSettings
from sampling.backends.llama.models.arithmetic import held_out
from tests.llama_slots import LlamaSlots

QUESTIONS = 40
ROUNDS = 4
DEPTH, BREADTH = 3, 4
SLOTS = 8
IDLE_S = 10.0


@dataclass
class Measured:
    """The rounds of one contender."""

    times_s: list[float] = field(default_factory=list)
    tokens: int = 0
    right: int = 0

    @property
    def p95_s(self) -> float | None:
        """The 95th percentile of the times."""
        return quantiles(self.times_s, n=20)[-1] if self.times_s else None

    @property
    def tokens_per_question(self) -> float | None:
        """Tokens generated, as the server counts them."""
        return self.tokens / len(self.times_s) if self.times_s else None


CONTENDERS: dict[str, tuple[str, int, int]] = {
    "ours, one at a time": ("ours", DEPTH * BREADTH, 1),
    "ours": ("ours", DEPTH, BREADTH),
    "mellea": ("mellea", DEPTH, BREADTH),
}
"""The process, depth and breadth of each contender."""


def run(settings: Settings) -> list[Section]:
    """Start all processes, and run the rounds in turns."""
    measured = {name: Measured() for name in CONTENDERS if settings.peers or name != "mellea"}
    workers: dict[str, LineWorker] = {}
    with LlamaServer(LlamaSettings(slots=SLOTS, context_tokens=1_024)) as server:
        try:
            _start(workers, settings)
            for number in range(1 if settings.quick else ROUNDS):
                _ask_in_turns(server, workers, measured, seed=number)
        finally:
            for worker in workers.values():
                worker.close()
    return [_section(measured, settings)]


def _start(workers: dict[str, LineWorker], settings: Settings) -> None:
    workers["ours"] = _worker(sys.executable, "losers_ours", os.environ)
    if settings.peers:
        try:
            workers["mellea"] = _worker(MELLEA.python(), "losers_mellea", MELLEA.env())
        except NotMeasuredError as error:
            shout(f"mellea is NOT MEASURED: {error}")


def _worker(python: object, module: str, env: Mapping[str, str]) -> LineWorker:
    direct = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
    return LineWorker([str(python), "-m", f"benchmarks.{module}"], direct)


def _ask_in_turns(
    server: LlamaServer, workers: dict[str, LineWorker], measured: dict[str, Measured], *, seed: int
) -> None:
    questions = [(question.text, question.answer) for question in held_out(QUESTIONS, seed=seed)]
    slots = LlamaSlots(server.address, server.api_key.reveal())
    for name, found in measured.items():
        process, depth, breadth = CONTENDERS[name]
        if process not in workers:
            continue
        before = slots.tokens_generated()
        answer = workers[process].ask(
            base_url=server.base_url,
            key=server.api_key.reveal(),
            model=server.settings.model,
            depth=depth,
            breadth=breadth,
            questions=questions,
        )
        _wait_until_idle(slots)
        found.tokens += slots.tokens_generated() - before
        found.times_s += answer["times_s"]
        found.right += answer["right"]


def _wait_until_idle(slots: LlamaSlots) -> None:
    ends = time.monotonic() + IDLE_S
    while slots.busy():
        if time.monotonic() > ends:
            raise NotMeasuredError("the server is still busy, long after the last answer")
        time.sleep(0.01)


# Results.


def _section(measured: dict[str, Measured], settings: Settings) -> Section:
    return Section(
        f"Time to a right answer and what it costs, {DEPTH} deep and {BREADTH} wide, llama.cpp with the embedded model",
        f"{SLOTS} slots; tokens as the server counts them, losers included",
        tuple(_row(name, found, measured) for name, found in measured.items()),
        MELLEA.versions if settings.peers else {},
    )


def _row(name: str, found: Measured, measured: dict[str, Measured]) -> Row:
    ours = measured["ours"]
    values = {
        "p95 ms": None if found.p95_s is None else 1_000 * found.p95_s,
        "tokens/question": found.tokens_per_question,
        "right %": 100 * found.right / len(found.times_s) if found.times_s else None,
    }
    checks = ()
    if name == "mellea":
        checks = (
            Check("tokens ÷ ours", ratio(found.tokens_per_question, ours.tokens_per_question), 1.0, at_least=True),
            Check("p95 ÷ ours", ratio(found.p95_s, ours.p95_s), 1.0, at_least=True),
        )
    return Row(name, values, checks, {"times_s": found.times_s, "tokens": found.tokens})
