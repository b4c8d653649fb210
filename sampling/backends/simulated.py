"""A simulated model server with a queue, slots, and realistic timing."""

import hashlib
import math
import random
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import anyio
import attrs

from sampling._arguments import check_int, check_number, check_str, short_repr
from sampling._engine.scope import report_usage
from sampling._text import estimate_tokens
from sampling.backends._limits import LoopBinding, SlotPool, TokenBucket
from sampling.backends._shared_pace import SharedMachine, SharedPace
from sampling.backends._support import Support
from sampling.errors import RateLimited, TransientError
from sampling.messages import Generation, Request
from sampling.requirements import Requirement
from sampling.usage import Usage

__all__ = ["OutputTokens", "SimulatedBackend", "SimulatedStatistics", "lognormal"]

OutputTokens: TypeAlias = int | Callable[[random.Random], int]
"""The length of answers: a constant, or a function that draws it, such as `lognormal(mean, sigma)`."""

_REMEMBERED_REQUESTS = 65_536
_NAME = re.compile(r"[\w.-]+")
_WORDS = re.findall(
    r" \w+",
    " the rain falls on a quiet town and every window holds its own small light while trains pass slowly "
    "over the river where nobody waits for them but one who counts their wheels until the last of them is "
    "gone beyond the hill and only the long wet rails remain to say that something came this way tonight",
)


@attrs.frozen
class SimulatedStatistics:
    """Counters of a simulated server."""

    in_flight: int
    """The number of requests that hold a slot."""

    queued: int
    """The number of requests that wait for a slot."""

    served: int
    """The number of answered requests."""

    failed: int
    """The number of requests that ended in a simulated failure."""

    rejected: int
    """The number of requests refused by the rate limit or a full queue."""

    cancelled: int
    """The number of requests that their callers cancelled."""

    output_tokens: int
    """The number of generated tokens, including those of failed and cancelled requests."""

    busy_slot_s: float
    """The total time that slots were held, added up when each is freed."""


@attrs.frozen
class _Lognormal:
    mean: float
    sigma: float
    _mu: float

    def __call__(self, rng: random.Random) -> int:
        return max(1, round(rng.lognormvariate(self._mu, self.sigma)))

    def __repr__(self) -> str:
        return f"lognormal({self.mean:g}, {self.sigma:g})"


def lognormal(mean: float, sigma: float) -> Callable[[random.Random], int]:
    """
    Return a lognormal distribution of answer lengths.

    The lengths of real answers look like this: `mean` tokens, with a longer tail for a larger `sigma`.
    """
    check_number("mean", mean, above=0)
    check_number("sigma", sigma, least=0)
    return _Lognormal(mean, sigma, math.log(mean) - sigma**2 / 2)


@attrs.frozen
class _DrawnAnswer:
    """The answer to a request, drawn when the request arrives."""

    tokens: tuple[str, ...]
    finish_reason: str
    fails_after: int | None
    """The number of tokens before a simulated failure, or None."""

    input_tokens: int
    slowness: float = 1.0
    """A factor on all times of this request."""


@attrs.define
class _RequestState:
    """One request on its way through the server."""

    drawn: _DrawnAnswer
    outcome: Literal["served", "failed", "cancelled"] = "cancelled"


_SUPPORT = Support("SimulatedBackend")


@attrs.frozen
class _Pace:
    """
    The times at which tokens are done.

    They are absolute, so a late wake-up delays no later token.
    """

    first_at: float
    per_token_s: float

    def done_at(self, tokens: int) -> float:
        return self.first_at + max(0, tokens - 1) * self.per_token_s

    async def reach(self, tokens: int) -> None:
        await anyio.sleep_until(self.done_at(tokens))

    def tokens_by(self, now: float) -> float:
        if now < self.first_at:
            return 0
        # The small addend keeps a token that is just done from being lost to rounding.
        return 1 + (now - self.first_at) / self.per_token_s + 1e-9 if self.per_token_s else math.inf


class SimulatedBackend:
    """
    A simulated model server with a queue, slots, and a time per token.

    It streams and takes as long as a real server. When a request is cancelled, it frees the slot at once
    and reports the tokens generated so far. In virtual time (`sampling.testing`) it is deterministic to the byte:
    an answer depends on the seed, the messages, the subsample and attempt, and the number of identical requests
    before. The last one lets a retry end differently.

    An answer that does not meet a requirement contains `[fails:NAME]`, and `requirement(NAME)` checks for that.
    The first word is yes or no, for requirements that a model judges.

    Slots and times may be changed during a run, to simulate a server that slows down or loses machines.
    """

    def __init__(  # noqa: PLR0913 - each is a property of the server, and all have a default
        self,
        *,
        seed: int = 0,
        slots: int = 8,
        max_queued: int | None = None,
        time_to_first_token_s: float = 0.2,
        time_per_token_s: float = 0.02,
        first_token_slowdown: float = 0.0,
        token_slowdown: float = 0.0,
        jitter: float = 0.0,
        output_tokens: OutputTokens = 64,
        tokens_per_piece: int = 1,
        pass_probability: float | Mapping[str, float] = 0.5,
        yes_probability: float = 0.5,
        failures: float = 0.0,
        rate_limit: float | None = None,
        cost_per_input_token: float = 0.0,
        cost_per_output_token: float = 0.0,
        model: str = "simulated",
    ) -> None:
        """
        Validate the properties of the server.

        Args:
            seed: The same seed gives the same answers.

            slots: The number of requests served at once. It may be changed later, and 0 stops the server.

            max_queued: The number of requests that may wait for a slot before others are refused. None for any number.

            time_to_first_token_s: The time from getting a slot to the first token.

            time_per_token_s: The time for each token after the first.

            first_token_slowdown: The share by which each further request in a slot increases the time to the first
                token, updated whenever a request enters or leaves. 0 for independent slots.

            token_slowdown: The same for the time per token.

            jitter: The random variation of the pace of requests: the standard deviation of its logarithm.

            output_tokens: The length of answers. `max_tokens` of the request cuts them off.

            tokens_per_piece: The number of tokens per streamed piece of text. The first piece has one.

            pass_probability: The probability that an answer meets the requirement "valid", or several of them by name.

            yes_probability: The probability that an answer begins with "Yes", which is what a judge looks at.

            failures: The share of requests that fail halfway with a `TransientError`.

            rate_limit: The requests per second, with bursts of one second's worth. Further ones get `RateLimited`.

            cost_per_input_token: The cost that the usage reports for each token of a prompt.

            cost_per_output_token: The cost that the usage reports for each token of an answer.

            model: The name of the model on every answer.
        """
        self.seed: int = check_int("seed", seed)
        self.max_queued: int | None = None if max_queued is None else check_int("max_queued", max_queued, least=0)
        self.time_to_first_token_s: float = check_number("time_to_first_token_s", time_to_first_token_s, least=0)
        self.time_per_token_s: float = check_number("time_per_token_s", time_per_token_s, least=0)
        slowdowns = [
            check_number("first_token_slowdown", first_token_slowdown, least=0),
            check_number("token_slowdown", token_slowdown, least=0),
        ]
        self._machine = SharedMachine(*slowdowns) if any(slowdowns) else None
        self.jitter: float = check_number("jitter", jitter, least=0)
        self.output_tokens: OutputTokens = _checked_length(output_tokens)
        self.tokens_per_piece: int = check_int("tokens_per_piece", tokens_per_piece, least=1)
        self.pass_probability: Mapping[str, float] = _checked_names(pass_probability)
        self.yes_probability: float = _checked_probability("yes_probability", yes_probability)
        self.failures: float = _checked_probability("failures", failures)
        self.rate_limit: float | None = None if rate_limit is None else check_number("rate_limit", rate_limit, above=0)
        self.cost_per_input_token: float = check_number("cost_per_input_token", cost_per_input_token, least=0)
        self.cost_per_output_token: float = check_number("cost_per_output_token", cost_per_output_token, least=0)
        self.model: str = check_str("model", model, empty=False)
        self._slots = SlotPool(check_int("slots", slots, least=0))
        self._bucket: TokenBucket | None = None
        self._loop = LoopBinding()
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._outcomes: Counter[str] = Counter()
        self._tokens_generated = 0
        self._busy_slot_s = 0.0

    @property
    def slots(self) -> int:
        """
        The number of requests served at once.

        Lowering it does not interrupt those in a slot.
        """
        return self._slots.total

    @slots.setter
    def slots(self, slots: int) -> None:
        self._slots.total = check_int("slots", slots, least=0)

    @property
    def statistics(self) -> SimulatedStatistics:
        """The counters of the server."""
        return SimulatedStatistics(
            in_flight=self._slots.in_use,
            queued=self._slots.waiting,
            served=self._outcomes["served"],
            failed=self._outcomes["failed"],
            rejected=self._outcomes["rejected"],
            cancelled=self._outcomes["cancelled"],
            output_tokens=self._tokens_generated,
            busy_slot_s=self._busy_slot_s,
        )

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The requirements that answers may pass or fail."""
        return tuple(self.requirement(name) for name in self.pass_probability)

    def requirement(self, name: str | None = None) -> Requirement:
        """Return a requirement by name. Without a name, return the only one."""
        if name is None and len(self.pass_probability) == 1:
            (name,) = self.pass_probability
        if name is None or name not in self.pass_probability:
            raise ValueError(f"name must be one of {', '.join(self.pass_probability)}, got {short_repr(name)}")
        mark = _failure_mark(name)

        def passes(text: str) -> bool:
            return mark not in text

        return Requirement(f"passes {name}", passes, partial=passes)

    async def generate(self, request: Request) -> Generation:
        """Return the answer after its simulated time."""
        return await self._answer(request, None)

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        """Return the answer, and pass on each piece at its simulated time."""
        return await self._answer(request, receive)

    async def _answer(self, request: Request, receive: Callable[[str], None] | None) -> Generation:
        request = _SUPPORT.check(request)
        self._admit()
        state = _RequestState(self._draw_answer(request))
        try:
            async with self._slots.hold():
                return await self._serve(state, receive)
        finally:
            self._outcomes[state.outcome] += 1

    def _admit(self) -> None:
        full = self._slots.in_use >= self.slots
        if self.max_queued is not None and full and self._slots.waiting >= self.max_queued:
            self._outcomes["rejected"] += 1
            raise RateLimited(f"the queue of the simulated server is full: {self.max_queued} requests are waiting")
        if self.rate_limit is not None:
            self._check_rate(self.rate_limit)

    def _check_rate(self, per_s: float) -> None:
        now = anyio.current_time()
        if self._bucket is None or self._loop.has_changed():
            self._bucket = TokenBucket(per_s, burst=max(1, per_s))
            self._loop.rebind()
        wait_s = self._bucket.ready_at(1) - now
        if wait_s > 0:
            self._outcomes["rejected"] += 1
            raise RateLimited(f"the simulated server accepts {per_s:g} requests per second", retry_after_s=wait_s)
        self._bucket.take(1, now)

    async def _serve(self, state: _RequestState, receive: Callable[[str], None] | None) -> Generation:
        drawn = state.drawn
        started_at = anyio.current_time()
        pace = self._start(drawn.slowness, started_at)
        length = len(drawn.tokens) if drawn.fails_after is None else drawn.fails_after
        try:
            await _generate(drawn.tokens[:length], pace, receive, self.tokens_per_piece)
            state.outcome = "served" if drawn.fails_after is None else "failed"
        finally:
            now = anyio.current_time()
            usage = self._usage(drawn.input_tokens, min(length, pace.tokens_by(now)))
            report_usage(usage)
            self._tokens_generated += usage.output_tokens
            self._busy_slot_s += now - started_at
            if self._machine is not None:
                self._machine.leave()
        if state.outcome == "failed":
            raise TransientError(f"simulated failure after {length} tokens")
        return Generation("".join(drawn.tokens), usage, drawn.finish_reason, self.model)

    def _start(self, slowness: float, now: float) -> _Pace | SharedPace:
        """Return the pace of a request that starts now in its own slot."""
        first_s, per_token_s = self.time_to_first_token_s * slowness, self.time_per_token_s * slowness
        if self._machine is None:
            return _Pace(now + first_s, per_token_s)
        self._machine.enter()
        return SharedPace(self._machine, first_s, per_token_s)

    def _usage(self, input_tokens: int, output_tokens: float) -> Usage:
        output = int(output_tokens)
        return Usage(
            input_tokens, output, input_tokens * self.cost_per_input_token + output * self.cost_per_output_token
        )

    def _draw_answer(self, request: Request) -> _DrawnAnswer:
        rng = random.Random(self._random_seed(request))  # noqa: S311 - a simulated answer is no secret
        length = (
            self.output_tokens
            if isinstance(self.output_tokens, int)
            else check_int("what output_tokens draws", self.output_tokens(rng), least=1)
        )
        longest = request.options.max_tokens or length
        tokens = _words(rng, min(length, longest), "Yes" if rng.random() < self.yes_probability else "No")
        for name, probability in self.pass_probability.items():
            # Both are always drawn, so that a changed probability leaves all later draws as they are.
            place, passed = rng.randrange(len(tokens)), rng.random() < probability
            if not passed:
                tokens[place] += _failure_mark(name)
        fails_after = rng.randrange(len(tokens) + 1) if rng.random() < self.failures else None
        input_chars = sum(message.chars for message in request.messages)
        return _DrawnAnswer(
            tuple(tokens),
            "stop" if length <= longest else "length",
            fails_after,
            max(1, estimate_tokens(input_chars)),
            # The mean of this lognormal distribution is 1, so jitter does not change the average pace.
            rng.lognormvariate(-(self.jitter**2) / 2, self.jitter) if self.jitter else 1.0,
        )

    def _random_seed(self, request: Request) -> int:
        """Return the random seed of a request."""
        identity = (self.seed, request.subsample, request.attempt, request.options.seed)
        parts = [repr(identity), *(part for message in request.messages for part in (message.role, message.text))]
        digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16)
        number = int.from_bytes(digest.digest())
        # The number of identical requests before is part of the seed, because a retry must be able to end differently.
        # The ids of calls are random, so they are not.
        times_before = self._seen.pop(number, 0)
        self._seen[number] = times_before + 1
        if len(self._seen) > _REMEMBERED_REQUESTS:
            self._seen.popitem(last=False)
        return number + times_before

    def __repr__(self) -> str:
        return (
            f"SimulatedBackend(seed={self.seed}, slots={self.slots}, "
            f"time_to_first_token_s={self.time_to_first_token_s:g}, time_per_token_s={self.time_per_token_s:g}, "
            f"output_tokens={self.output_tokens!r}, pass_probability={dict(self.pass_probability)!r})"
        )


async def _generate(
    tokens: tuple[str, ...], pace: _Pace | SharedPace, receive: Callable[[str], None] | None, per_piece: int
) -> None:
    if receive is not None:
        start = 0
        while start < len(tokens):
            end = min(start + per_piece, len(tokens)) if start else 1
            await pace.reach(end)
            receive("".join(tokens[start:end]))
            start = end
    await pace.reach(len(tokens))


def _failure_mark(name: str) -> str:
    return f"[fails:{name}]"


def _words(rng: random.Random, count: int, first: str) -> list[str]:
    """Return `count` tokens."""
    # The second one is random, so that answers hardly ever repeat.
    start = rng.randrange(len(_WORDS))
    words = _WORDS[start : start + count]
    while len(words) < count:
        words += _WORDS[: count - len(words)]
    words[:2] = [first, f", {rng.getrandbits(32):08x}:"][:count]
    return words


def _checked_length(output_tokens: OutputTokens) -> OutputTokens:
    if callable(output_tokens):
        return output_tokens
    return check_int("output_tokens", output_tokens, least=1)


def _checked_probability(name: str, probability: object) -> float:
    number = check_number(name, probability, least=0)
    if number > 1:
        raise ValueError(f"{name} must be <= 1, got {number}")
    return number


def _checked_names(probabilities: float | Mapping[Any, Any]) -> Mapping[str, float]:
    if not isinstance(probabilities, Mapping):
        return MappingProxyType({"valid": _checked_probability("pass_probability", probabilities)})
    for name, probability in probabilities.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"names in pass_probability must be made of letters, digits, _ . and -, got {short_repr(name)}"
            )
        _checked_probability(f"pass_probability[{name!r}]", probability)
    return MappingProxyType(dict(probabilities))
