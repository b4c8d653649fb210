"""
Find the knee of a server that has a known one.

Contenders are `sampling capacity --refine`, the sweep of guidellm, the method of `vllm bench serve`, and a step load of
locust. All get the same SLO, on simulated servers whose truth is a long simulation, and on llama.cpp, whose truth is
what a saturating closed loop is answered per second. vLLM itself is too heavy to install here, so its method is run by
our client: Poisson arrivals at the rates of a grid, and percentiles over the answered requests.

The simulated servers sleep and compute nothing, so they are measured side by side, each by another contender at a time.
A contender that has not ended after `MOST_S` is stopped with all of its processes, and has no answer.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.http import direct
from benchmarks.http_line import LineWorker
from benchmarks.http_server import MODEL, QUESTION
from benchmarks.knee_server import server_with
from benchmarks.peers import GUIDELLM, LOCUST
from benchmarks.report import Row, Section, Settings, shout
from benchmarks.searches import true_capacity
from benchmarks.worker import ROOT, NotMeasuredError
from sampling.backends.llama._server import LlamaServer, LlamaSettings

VICES = ("noise", "sheds", "hangs")
ERRORS = 0.01
STEP_S, WARMUP_S, DRAIN_S = 15, 4, 20
MOST_S = 1_200
"""Maximum time of a contender."""

SWEEP_SIZE = 10
GRID = 8  # rates of the vLLM method
USER_STEPS = 10
FULL_USERS = 8
"""Users that keep all slots of llama.cpp busy."""

NO_KEY = "none"


@dataclass(frozen=True)
class Target:
    """A server, its limit on the p95, and the rates that an operator would try who knows it roughly."""

    name: str
    base_url: str
    truth: float
    limit_s: float
    top_rate: float
    """An upper end of the rates to try, about twice the truth."""

    users: int
    """Users of one step of locust."""

    key: str = NO_KEY
    max_tokens: int = 8
    count: Callable[[], int] | None = None
    """Returns how many requests have reached the server, if it counts them."""

    @property
    def body(self) -> dict[str, Any]:
        """The body of a request."""
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(frozen=True)
class Reading:
    """The results at one load, as the tool shows them."""

    rate: float
    """Requests per second: of the schedule, or those of a closed loop."""

    p95_s: float | None
    sent: int
    failed: int


@dataclass(frozen=True)
class Answer:
    """The knee that a contender found, and what it took."""

    rate: float | None
    requests: int
    careful_rate: float | None = None
    """The rate if the errors that the tool shows next to the p95 are read, too."""


Contender = Callable[[Target, Path], Answer]


def run(settings: Settings) -> list[Section]:
    """Measure each server with each contender."""
    contenders: dict[str, Contender] = {"sampling": _sampling, "vLLM's method": _vllm}
    if settings.peers:
        contenders |= {"guidellm": _guidellm, "locust": _locust}
        GUIDELLM.python()  # install them before anything is timed
        LOCUST.python()
    peers = {GUIDELLM.package: GUIDELLM.version, LOCUST.package: LOCUST.version} if settings.peers else {}
    locks = {name: Lock() for name in contenders}
    vices = VICES[:1] if settings.quick else VICES
    with ThreadPoolExecutor(len(vices)) as threads:
        measured = [
            threads.submit(_section, _simulated(vice), _rotated(contenders, turn), locks, peers)
            for turn, vice in enumerate(vices)
        ]
        sections = [each.result() for each in measured]
    # llama.cpp computes, so it has the machine to itself. Other work makes it slower, which the last row shows.
    again: dict[str, Contender] = {f"{FULL_USERS} users, again": _full_rate}
    return [*sections, _section(_llama_cpp(), contenders | again, {}, peers)]


def _rotated(contenders: Mapping[str, Contender], turn: int) -> dict[str, Contender]:
    """Begin with another contender, so that servers which are measured side by side do not wait for the same one."""
    pairs = deque(contenders.items())
    pairs.rotate(-turn)
    return dict(pairs)


def _section(
    open_target: AbstractContextManager[Target],
    contenders: Mapping[str, Contender],
    locks: Mapping[str, Lock],
    peers: dict[str, str],
) -> Section:
    rows: list[Row] = []
    with open_target as target:
        for name, find in contenders.items():
            with locks.get(name) or Lock():
                rows.append(_row(name, find, target))
    title = f"The knee of {target.name}, truly {target.truth:.1f} per second, p95 ≤ {target.limit_s:g} s"
    return Section(title, "per second", tuple(sorted(rows, key=lambda row: row.name)), peers)


def _row(name: str, find: Contender, target: Target) -> Row:
    before = target.count() if target.count else 0
    started = time.monotonic()
    problem = None
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            answer = find(target, Path(folder))
    except NotMeasuredError as error:
        shout(f"{name} has NO ANSWER about {target.name}: {error}")
        answer, problem = Answer(None, 0), str(error)
    seconds = time.monotonic() - started
    requests = target.count() - before if target.count else answer.requests
    values = {
        "found": answer.rate,
        "off by, %": _off(answer.rate, target.truth),
        "with errors read": answer.careful_rate,
        "off by %": _off(answer.careful_rate, target.truth),
        "requests": float(requests),
        "seconds": seconds,
    }
    shout(f"{target.name}: {name} {values}")
    return Row(name, values, details={"problem": problem})


def _off(rate: float | None, truth: float) -> float | None:
    return None if rate is None else 100 * (rate / truth - 1)


# Servers.


_NAMES = {
    "noise": "a queue with noise",
    "sheds": "a queue that refuses what would wait too long",
    "hangs": "a queue that never answers what would wait too long",
}


@contextmanager
def _simulated(vice: str) -> Iterator[Target]:
    simulated = server_with(vice)
    truth = true_capacity(simulated)
    server = LineWorker([sys.executable, "-m", "benchmarks.knee_server", vice], direct(os.environ))
    try:
        url = f"http://127.0.0.1:{server.ask()['port']}/v1"
        yield Target(
            _NAMES[vice],
            url,
            truth,
            simulated.limit_s,
            # Not a multiple of the truth, or a step would hit it by luck.
            top_rate=2.25 * simulated.slots / simulated.service_s,
            users=2 * simulated.slots // USER_STEPS,
            count=lambda: server.ask()["counts"]["arrived"],
        )
    finally:
        server.close()


@contextmanager
def _llama_cpp() -> Iterator[Target]:
    """Serve the embedded model, and estimate the truth with more users than slots."""
    with LlamaServer(LlamaSettings(slots=4, context_tokens=4_096, threads=1)) as server:
        key = server.api_key.reveal()
        full = Target("llama.cpp", server.base_url, 0.0, 1.0, top_rate=0.0, users=1, key=key, max_tokens=16)
        alone = _run_client(full, users=1, seconds=STEP_S)["p50_s"]
        truth = _full_rate(full, Path()).rate or 0.0
        limit_s = max(0.1, round(6 * (alone or 1.0), 2))
        yield Target("llama.cpp", server.base_url, truth, limit_s, 2.25 * truth, users=2, key=key, max_tokens=16)


# Contenders.


def _full_rate(target: Target, folder: Path) -> Answer:
    """Return what more users than slots are answered per second."""
    found = _run_client(target, users=FULL_USERS, seconds=2 * STEP_S)
    return Answer(found["answered_rate"], found["sent"])


def _run_client(target: Target, **order: Any) -> dict[str, Any]:
    whole = {"url": f"{target.base_url}/chat/completions", "body": target.body, "key": target.key, **order}
    command = [sys.executable, "-m", "benchmarks.knee_client", json.dumps(whole)]
    found: dict[str, Any] = json.loads(_run(command, ROOT, os.environ).splitlines()[-1])
    return found


def _sampling(target: Target, folder: Path) -> Answer:
    """Let it search by itself, from four steps that are far apart."""
    steps = ",".join(f"{target.top_rate * share:.3g}" for share in (0.125, 0.25, 0.5, 1.0))
    out = folder / "capacity.json"
    command = [
        *(str(Path(sys.executable).parent / "sampling"), "capacity", QUESTION),
        *("--backend", f"openai:{MODEL}@{target.base_url}", "--max-tokens", str(target.max_tokens)),
        *("--steps", steps, "--slo", f"p95={target.limit_s}s", "--refine", "--send-env-key"),
        *("--warmup", f"{WARMUP_S}s", "--hold", f"{STEP_S}s", "--cooldown", "1s", "--drain", f"{DRAIN_S}s"),
        *("--out", str(out)),
    ]
    _run(command, folder, {**os.environ, "OPENAI_API_KEY": target.key}, codes=(0, 1))
    found = json.loads(out.read_text())
    reports = [step["report"] for step in found["steps"] if step["report"]]
    sent = sum(report["admitted"] + report["warmup_sent"] for report in reports)
    return Answer(found["max_rate"], sent, careful_rate=found["max_rate"])


def _vllm(target: Target, folder: Path) -> Answer:
    """Send at the rates of a grid, and read the percentiles of what was answered."""
    readings = []
    for number in range(1, GRID + 1):
        rate = target.top_rate * number / GRID
        found = _run_client(target, rate=rate, seconds=STEP_S, drain_s=DRAIN_S)
        readings.append(Reading(rate, found["p95_s"], found["sent"], found["failed"]))
    return _read(readings, target)


def _guidellm(target: Target, folder: Path) -> Answer:
    """Let it sweep from one request at a time to as many as possible."""
    prompts, out = folder / "prompts.csv", folder / "out.json"
    prompts.write_text("prompt\n" + f"{QUESTION}\n" * 20_000)
    backend = {
        "kind": "openai_http",
        "target": target.base_url.removesuffix("/v1"),
        "model": MODEL,
        "api_key": target.key,
        "extras": {"body": {"max_tokens": target.max_tokens}},
    }
    command = [
        *(str(GUIDELLM.python().parent / "guidellm"), "run", "--backend", json.dumps(backend)),
        *("--profile", json.dumps({"kind": "sweep", "sweep_size": SWEEP_SIZE})),
        *("--constraint", json.dumps({"kind": "max_duration", "seconds": STEP_S})),
        *("--data", json.dumps({"kind": "csv_file", "path": str(prompts)})),
        *("--output", json.dumps({"kind": "json", "path": str(out)}), "--disable-console"),
    ]
    _run(command, folder, GUIDELLM.env())
    return _read([_reading(found) for found in json.loads(out.read_text())["benchmarks"]], target)


def _reading(found: Mapping[str, Any]) -> Reading:
    strategy, metrics = found["config"]["strategy"], found["metrics"]
    totals, latency = metrics["request_totals"], metrics["request_latency"]["successful"]
    rate = strategy.get("rate") or metrics["requests_per_second"]["successful"]["mean"]
    return Reading(rate, latency["percentiles"]["p95"], totals["total"], totals["errored"])


def _locust(target: Target, folder: Path) -> Answer:
    """Add users step by step, and read the rate and the p95 of the last ten seconds at the end of each step."""
    command = [
        *(str(LOCUST.python().parent / "locust"), "-f", str(ROOT / "benchmarks" / "knee_locust.py")),
        *("--host", target.base_url, "--headless", "--only-summary", "--csv", "steps", "--csv-full-history"),
    ]
    steps = {"body": target.body, "key": target.key, "step_s": STEP_S, "users": target.users, "steps": USER_STEPS}
    _run(command, folder, {**LOCUST.env(), "KNEE": json.dumps(steps)}, codes=(0, 1))
    with (folder / "steps_stats_history.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["Name"] == "Aggregated" and row["95%"] != "N/A"]
    last = {int(row["User Count"]): row for row in rows}
    readings, sent, failed = [], 0, 0
    for row in last.values():
        count, errors = int(row["Total Request Count"]), int(row["Total Failure Count"])
        readings.append(
            Reading(float(row["Requests/s"]), float(row["95%"]) / 1000, count - sent, max(errors - failed, 0))
        )
        sent, failed = count, errors
    return _read(readings, target)


def _read(readings: list[Reading], target: Target) -> Answer:
    """Return the highest rate below the first with too high a p95, without and with a look at the errors."""
    good = [each.p95_s is not None and each.p95_s <= target.limit_s for each in readings]
    careful = [fine and each.failed <= ERRORS * each.sent for fine, each in zip(good, readings, strict=True)]
    sent = sum(each.sent for each in readings)
    return Answer(_highest(readings, good), sent, careful_rate=_highest(readings, careful))


def _highest(readings: list[Reading], good: list[bool]) -> float | None:
    ordered = sorted(zip(readings, good, strict=True), key=lambda pair: pair[0].rate)
    bad = [each.rate for each, fine in ordered if not fine]
    return max((each.rate for each, fine in ordered if fine and (not bad or each.rate < bad[0])), default=None)


def _run(command: list[str], folder: Path, env: Mapping[str, str], *, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command in a session of its own, so that all of its processes can be stopped."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=direct(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(MOST_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read()
    if code is None:
        raise NotMeasuredError(f"it had not ended after {MOST_S} s: {text.strip()[-500:]}")
    if code not in codes:
        raise NotMeasuredError(text.strip()[-1500:])
    return text
