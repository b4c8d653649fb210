"""
Measure what a streamed token costs on its way from the socket.

The server runs in a process of its own, and so does every client. CPU time of the client's process is measured, in
rounds that alternate between the clients. The server's own counts must be those that were asked for.
Contenders are our backend on asyncio and on trio, openai-python, a loop by hand on aiohttp and orjson, and the floor:
httptools and msgspec on a bare socket, without errors, limits or cancellation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks import wire_events
from benchmarks.http import direct
from benchmarks.http_line import Json, LineWorker
from benchmarks.peers import Peer
from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.wire_server import AT_ONCE, BREADTH, EACH, LATER, RACE, SHAPES, path
from benchmarks.worker import NotMeasuredError

PEERS = Peer(
    "openai",
    "3.49.0",
    others=(
        ("aiometer", "1.0.0"),
        ("aiohttp", "3.14.5"),
        ("orjson", "3.13.0"),
        ("httptools", "0.9.0"),
        ("msgspec", "0.22.0"),
    ),
    prefixes=("OPENAI_",),
)
OURS, TRIO, OPENAI, AIOHTTP, FLOOR = "ours", "ours on trio", "openai", "aiohttp", "floor"
MODULES = {OPENAI: "wire_openai", AIOHTTP: "wire_aiohttp", FLOOR: "wire_floor"}
SHORT = 8
TITLES = {"vllm": "chunks of vLLM", "openai": "chunks of OpenAI"}


def run(settings: Settings) -> list[Section]:
    """Start all processes, and measure each table."""
    bench = _Bench(settings)
    try:
        bench.start()
        return [
            wire_events.section(bench.rounds),
            bench.one_by_one(),
            bench.in_one_write(),
            bench.request(),
            bench.one_more(),
            bench.bursts(),
            bench.many(),
            bench.memory(),
            bench.losers(),
        ]
    finally:
        bench.close()


class _Bench:
    """The processes, and the tables that are measured with them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workers: dict[str, LineWorker] = {}
        self.rounds = 2 if settings.quick else 7
        self._shapes = SHAPES[:1] if settings.quick else SHAPES
        self._peers = PEERS.versions if settings.peers else {}
        self._calls = 0

    def start(self) -> None:
        """Start the server and the clients."""
        self._start("server", [sys.executable, "-m", "benchmarks.wire_server"], os.environ)
        self._start(OURS, [sys.executable, "-m", "benchmarks.wire_ours"], os.environ)
        self._start(TRIO, [sys.executable, "-m", "benchmarks.wire_ours", "trio"], os.environ)
        if not self._settings.peers:
            return
        try:
            python = str(PEERS.python())
        except NotMeasuredError as error:
            shout(f"The peers are NOT MEASURED: {error}")
            return
        for name, module in MODULES.items():
            self._start(name, [python, "-m", f"benchmarks.{module}"], PEERS.env())

    def _start(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        try:
            self._workers[name] = LineWorker(command, direct(env))
        except NotMeasuredError as error:
            shout(f"{name} is NOT MEASURED: {error}")

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()

    # Rounds.

    def _ask(self, who: str, expected: int, job: str, address: tuple[str, str, int], **question: Any) -> Json | None:
        """Let a client do a job, and check with the server that it sent this number of requests."""
        if who not in self._workers or "server" not in self._workers:
            return None
        server = self._workers["server"]
        try:
            before = server.ask()
            base_url = f"http://127.0.0.1:{before['port']}{path(*address)}"
            answer = self._workers[who].ask(job=job, base_url=base_url, tokens=address[2], **question)
            after = server.ask()
        except NotMeasuredError as error:
            shout(f"{who}, {job} is NOT MEASURED: {error}")
            return None
        counted = after["counts"].get("requests", 0) - before["counts"].get("requests", 0)
        if counted != expected:
            shout(f"{who}, {job} is NOT MEASURED: the server must count {expected} requests, not {counted}")
            return None
        return {**answer, "server": after, "server_before": before}

    def _cpu_s(self, who: str, address: tuple[str, str, int], streams: int, times: int) -> float | None:
        """Return the CPU time of the client for one request."""
        found = self._ask(who, streams * (times + 1), "answers", address, streams=streams, times=times)
        if found is None:
            return None
        slow = found["server"]["counts"].get("one by one", 0) - found["server_before"]["counts"].get("one by one", 0)
        if address[1] == EACH and slow != streams * times:
            shout(f"{who} is NOT MEASURED: it opened {streams * times - slow} new connections in a round")
            return None
        return found["cpu_s"] / (streams * times)

    def _per_token(self, who: str, shape: str, way: str, long: int, streams: int) -> float | None:
        """Return the CPU time for each token that an answer is longer, in µs."""
        long_s = self._cpu_s(who, (shape, way, long), streams, 1)
        short_s = self._cpu_s(who, (shape, way, SHORT), streams, 1)
        return None if long_s is None or short_s is None else (long_s - short_s) / (long - SHORT) * 1e6

    def _everyone(self) -> list[str]:
        return [OURS, TRIO, *(MODULES if self._settings.peers else ())]

    def _medians(
        self, measure: Any, names: Sequence[str], *, unmeasured: int = 1, rounds: int | None = None
    ) -> tuple[dict[str, float | None], Json]:
        """Measure in turns, and return the medians and all rounds. The first fill caches and do not count."""
        rounds_of: dict[str, list[float]] = {name: [] for name in names}
        for number in range(unmeasured + (rounds or self.rounds)):
            for name in names:
                found = measure(name)
                if found is not None and number >= unmeasured:
                    rounds_of[name].append(found)
        return {name: median(found) if found else None for name, found in rounds_of.items()}, {"rounds": rounds_of}

    # Tables.

    def _compared(self, values: Mapping[str, float | None], bounds: Mapping[str, float]) -> tuple[Check, ...]:
        """Compare our cost with others: at least so many times cheaper than openai, at most so much of the rest."""
        checks = []
        for label, bound in bounds.items():
            ours, _, other = label.partition(" ÷ ")
            if not self._settings.peers and (other in MODULES or ours in MODULES):
                continue
            at_least = ours == OPENAI
            checks.append(Check(label, ratio(values.get(ours), values.get(other)), bound, at_least=at_least))
        return tuple(checks)

    def one_by_one(self) -> Section:
        """Measure tokens that are written one by one."""
        long = 32 if self._settings.quick else 72
        bounds = {
            f"{OPENAI} ÷ {OURS}": 10.0,
            f"{OPENAI} ÷ {TRIO}": 6.0,
            f"{OURS} ÷ {FLOOR}": 2.0,
            f"{TRIO} ÷ {FLOOR}": 3.0,
            f"{OURS} ÷ {AIOHTTP}": 1.0,
        }
        rows = []
        for shape in self._shapes:
            values, details = self._medians(
                lambda who, shape=shape: self._per_token(who, shape, EACH, long, 64), self._everyone()
            )
            rows.append(Row(TITLES[shape], values, self._compared(values, bounds), details))
        return Section("One write per token, 64 streams", "CPU µs per token", tuple(rows), self._peers)

    def in_one_write(self) -> Section:
        """Measure answers that arrive at once."""
        long = 128 if self._settings.quick else 512
        bounds = {f"{OPENAI} ÷ {OURS}": 25.0, f"{OURS} ÷ {FLOOR}": 2.5}
        rows = []
        for shape in self._shapes:
            values, details = self._medians(
                lambda who, shape=shape: self._per_token(who, shape, AT_ONCE, long, 16), self._everyone()
            )
            rows.append(Row(TITLES[shape], values, self._compared(values, bounds), details))
        return Section("An answer in one write", "CPU µs per token", tuple(rows), self._peers)

    def request(self) -> Section:
        """Measure short answers."""
        bounds = {f"{OPENAI} ÷ {OURS}": 10.0, f"{OURS} ÷ {AIOHTTP}": 1.6}
        rows = []
        for shape in self._shapes:

            def measure(who: str, shape: str = shape) -> float | None:
                found = self._cpu_s(who, (shape, AT_ONCE, SHORT), 16, 6)
                return None if found is None else found * 1e6

            values, details = self._medians(measure, self._everyone())
            rows.append(Row(TITLES[shape], values, self._compared(values, bounds), details))
        return Section(f"A request with an answer of {SHORT} tokens", "CPU µs", tuple(rows), self._peers)

    def one_more(self) -> Section:
        """Measure a request beside many open streams."""
        counts = (128, 512) if self._settings.quick else (128, 512, 2_000)
        requests = 30
        rows = []
        for who in (OURS, TRIO):
            values: dict[str, float | None] = {}
            for held in counts:
                found = [
                    self._ask(
                        who,
                        requests + 5 + held,
                        "one_more",
                        ("vllm", AT_ONCE, SHORT),
                        held=held,
                        requests=requests,
                    )
                    for _ in range(1 if self._settings.quick else 3)
                ]
                times = [each["cpu_s"] / requests * 1e6 for each in found if each is not None]
                values[f"{held:,}"] = median(times) if times else None
            measured = [value for value in values.values() if value is not None]
            flat = max(measured) / min(measured) if len(measured) == len(counts) else None
            rows.append(Row(who, values, (Check("most ÷ least", flat, 1.3),)))
        return Section("One more request, with so many streams open", "CPU µs", tuple(rows))

    def bursts(self) -> Section:
        """Start many streams at once."""
        rows = []
        for who in (OURS, TRIO):
            for streams in (500,) if self._settings.quick else (2_000, 5_000):
                found = self._ask(who, streams, "burst", ("vllm", AT_ONCE, SHORT), streams=streams) or {}
                values = {
                    "CPU µs each": _scaled(found.get("cpu_s"), 1e6 / streams),
                    "failures": found.get("failures"),
                    "longest stall, s": found.get("stall_s"),
                }
                checks = (
                    Check("failures", found.get("failures"), 0),
                    Check("longest stall, s", found.get("stall_s"), 1.0),
                )
                rows.append(Row(f"{who}, {streams:,}", values, checks, {"kinds": found.get("kinds")}))
        return Section("Streams started at once", "failures, and the longest stall of the loop", tuple(rows))

    def many(self) -> Section:
        """Measure a fan-out against aiometer with openai-python."""
        items = 1_024 if self._settings.quick else 2_048

        def measure(who: str, at_once: int) -> float | None:
            address = ("vllm", LATER, SHORT)
            found = self._ask(who, items + at_once, "many", address, at_once=at_once, items=items)
            return None if found is None else found["cpu_s"] / items * 1e6

        names = [OURS, TRIO, *([OPENAI] if self._settings.peers else [])]
        rounds = 1 if self._settings.quick else 3
        values = {
            at_once: self._medians(
                lambda who, at_once=at_once: measure(who, at_once), names, unmeasured=0, rounds=rounds
            )[0]
            for at_once in (64, 512)
        }
        rows = []
        for who in (OURS, TRIO):
            few, lots = values[64][who], values[512][who]
            checks = [Check("512 ÷ 64", ratio(lots, few), 1.3)]
            if self._settings.peers:
                for at_once, found in values.items():
                    cheaper = ratio(found.get(OPENAI), found[who])
                    checks.append(Check(f"aiometer ÷ it, {at_once}", cheaper, 8.0, at_least=True))
            rows.append(Row(f"fan_out, {who}", {"64": few, "512": lots}, tuple(checks)))
        if self._settings.peers:
            rows.append(Row("aiometer with openai", {str(key): each.get(OPENAI) for key, each in values.items()}))
        return Section("Many items, so many in flight", "CPU µs per item", tuple(rows), self._peers)

    def memory(self) -> Section:
        """Measure the memory of open streams."""
        held = 500 if self._settings.quick else 2_000
        rows = []
        for who, loop in ((OURS, []), (TRIO, ["trio"])):
            # A new process: memory that was used before would be used again.
            self._start("new", [sys.executable, "-m", "benchmarks.wire_ours", *loop], os.environ)
            found = self._ask("new", held + 20, "memory", ("vllm", AT_ONCE, SHORT), held=held) or {}
            if "new" in self._workers:
                self._workers.pop("new").close()
            kilobytes = _scaled(found.get("bytes"), 1e-3)
            rows.append(Row(who, {"KB": kilobytes}, (Check("KB", kilobytes, 15.0),)))
        return Section(f"Memory of an open stream, {held:,} open", "KB (1,000 bytes), resident", tuple(rows))

    def losers(self) -> Section:
        """Cancel losers, and see that the server notices and nothing is left."""
        calls = 200 if self._settings.quick else 10_000
        rows = []
        for who in (OURS, TRIO):
            idle = self._ask(who, 0, "nothing", ("vllm", RACE, SHORT)) or {}
            self._calls += calls
            found = self._ask(
                who,
                calls * BREADTH,
                "race",
                ("vllm", RACE, SHORT),
                first=self._calls,
                calls=calls,
                callers=4,
                own_sockets=idle.get("sockets", 0),
            )
            server, before = (found or {}).get("server", {}), (found or {}).get("server_before", {})
            counts, earlier = server.get("counts", {}), before.get("counts", {})
            late = counts.get("stopped late", 0) - earlier.get("stopped late", 0) if found else None
            stopped = counts.get("stopped", 0) - earlier.get("stopped", 0) if found else None
            values = {
                "CPU µs per call": _scaled((found or {}).get("cpu_s"), 1e6 / calls),
                "slowest stop, s": server.get("slowest_stop_s"),
            }
            checks = (
                Check("losers stopped", stopped, calls * (BREADTH - 1), at_least=True),
                Check("later than 0.1 s", late, 0),
                Check("sockets left", (found or {}).get("sockets"), 0),
            )
            rows.append(Row(f"{who}, {calls:,} calls", values, checks))
        return Section("1×8, with the losers cancelled", "as the server sees it", tuple(rows))


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
