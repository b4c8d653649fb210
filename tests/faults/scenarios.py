"""
Scenarios that build a call from a seed, watch it and check the invariants.

Latencies come from a coarse grid, so that events tie. The order of ready tasks is seeded.
"""

import math

import anyio
import attrs
from anyio.lowlevel import checkpoint

from sampling import (
    BestOfNStrategy,
    Budget,
    BudgetExceeded,
    BudgetForcingStrategy,
    Context,
    Diverse,
    EscalationStrategy,
    FatalError,
    Generation,
    HedgedSamplingStrategy,
    Hooks,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    MajorityVotingStrategy,
    MBRStrategy,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Repaired,
    RepairTemplateStrategy,
    Requirement,
    Tier,
    ToolCall,
    TransientError,
    Usage,
    report_usage,
)
from sampling.backends.layers import Limited, ToolLoop
from sampling.errors import AuthenticationFailed, BadRequest
from sampling.strategies import Thinking
from sampling.testing import After, ScriptedBackend, Watch

DEPTH, BREADTH = 2, 4


def once_enough(strategy_class):
    """Return a strategy that fails if `done` returns True twice, as with two winners (I4)."""

    class OnceEnough(strategy_class):
        said_yes = 0

        def done(self, slices):
            enough = super().done(slices)
            self.said_yes += enough
            assert self.said_yes <= 1, "I4: a second winner was registered"
            return enough

    return OnceEnough


Rejection, Template, MultiTurn = map(
    once_enough, [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]
)


def is_yes(text):
    return text == "yes"


def table(world, *, yes=0.3, errors=()):
    """Draw the outcome and the latency of every possible attempt in advance."""
    fates = {}
    for subsample in range(BREADTH):
        for attempt in range(6):
            reply = "yes" if world.rng.random() < yes else "no"
            for error, share in errors:
                reply = error if world.rng.random() < share else reply
            fates[subsample, attempt] = (world.latency(), reply)
    return fates


def backend_of(fates):
    def reply(request):
        delay_s, fate = fates[request.subsample, request.attempt]
        if isinstance(fate, type):
            return After(delay_s, fate(f"in {request.iteration}"))
        return After(delay_s, Generation(fate, Usage(3, 2)))

    return ScriptedBackend(reply)


async def watched(world, strategy, backend, reqs=(is_yes,), **arguments):
    """Make a watched call, and return its outcome as plain data to compare with a replay."""
    watch = Watch(backend)
    try:
        await watch.sample(strategy, "q", Context(), reqs, **arguments)
    except Exception as error:
        watch.check()
        return summary(world, watch, type(error).__name__)
    watch.check()
    return summary(world, watch, watch.result.stop_reason)


def summary(world, watch, ending):
    finished = watch.events.of(IterationFinished)
    winners = [event.slice for event in finished if event.slice.valid]
    if len(winners) > 1 and winners[0].finished_s == winners[1].finished_s:
        world.reached("two winners in one tick")
    outcomes = [event.slice.outcome for event in finished]
    if "valid" in outcomes and "errored" in outcomes:
        world.reached("an error beside a winner")
    if "cancelled" in outcomes:
        world.reached("losers were cancelled")
    world.reached(ending)
    return ending, sorted((event.iteration, event.slice.outcome) for event in finished)


async def plain_race(world):
    """Answers without errors, some of them valid."""
    strategy = world.rng.choice([Rejection, Template, MultiTurn])
    return await watched(world, strategy(loop_budget=DEPTH, concurrency_budget=BREADTH), backend_of(table(world)))


async def errors_and_answers(world):
    """Rows 28 to 30: transient, unknown and fatal errors among the answers."""
    errors = [(TransientError, 0.2), (RuntimeError, 0.2), (AuthenticationFailed, 0.05)]
    fates = table(world, yes=0.3, errors=errors)
    watch = Watch(backend_of(fates))
    strategy = Rejection(loop_budget=DEPTH, concurrency_budget=BREADTH)
    try:
        result = await watch.sample(strategy, "q", None, [is_yes])
    except Exception as error:
        watch.check()
        assert not [e for e in watch.events.of(IterationFinished) if e.slice.outcome in {"valid", "invalid"}]
        return summary(world, watch, type(error).__name__)
    watch.check()
    assert result.slices, "I5: no slice survived, and nothing was raised"
    if any(one.valid for one in result.slices):
        assert result.success, "I3: a winner was lost"
    return summary(world, watch, result.stop_reason)


async def hooks_that_wait_and_fail(world):
    """Rows 46 and 47: slow, raising and hanging hooks on every event."""
    hooks = Hooks(timeout_s=0.5)

    @hooks.on(LoopStarted, IterationStarted, IterationFinished, Repaired)
    async def slow(event):
        await anyio.sleep(world.latency())

    @hooks.on(IterationStarted, IterationFinished)
    def raises(event):
        if world.rng.random() < 0.2:
            raise RuntimeError("a hook's own")

    strategy = MultiTurn(loop_budget=DEPTH, concurrency_budget=BREADTH, hooks=hooks)
    watch = Watch(backend_of(table(world)))
    result = await watch.sample(strategy, "q", None, [is_yes])
    watch.check()
    if any(failure.event == "IterationFinished" for failure in result.hook_failures):
        world.reached("a hook failed at the end of an attempt")
    return summary(world, watch, result.stop_reason)


async def checks_that_wait_and_break(world):
    """Rows 50 and 51: several slow, raising and hanging async checks per attempt."""

    def check(yes, breaks):
        async def verdict(text):
            await anyio.sleep(world.latency((0.0, 0.25, 0.5, 1000.0)))
            if world.rng.random() < breaks:
                raise ValueError("a check's own")
            return world.rng.random() < yes

        return Requirement("passes", check=verdict, timeout_s=1.0)

    strategy = Rejection(loop_budget=DEPTH, concurrency_budget=BREADTH)
    return await watched(world, strategy, backend_of(table(world)), [check(0.5, 0.1), check(0.8, 0.1)])


async def shared_budget(world):
    """I10: two concurrent calls share attempts, tokens and a deadline that ties with completions."""
    budget = Budget(attempts=world.rng.randint(0, 30), tokens=world.rng.randint(5, 200), deadline_s=0.75)
    endings = []

    async def one_call():
        strategy = Rejection(loop_budget=DEPTH, concurrency_budget=BREADTH)
        endings.append(await watched(world, strategy, backend_of(table(world, yes=0.1)), budget=budget))

    async with anyio.create_task_group() as group:
        group.start_soon(one_call)
        group.start_soon(one_call)
    assert attrs.astuple(budget.reserved) == (0, 0, 0, 0.0), "I10: something is still reserved"
    in_flight_overshoot = 2 * BREADTH * 5
    assert budget.tokens_charged <= budget.tokens + in_flight_overshoot
    return sorted(endings)


async def deadline_at_a_completion(world):
    """Rows 12 and 37: an answer arrives exactly at the deadline. Either outcome is fine, but there must be one."""
    deadline_s = world.rng.choice([0.25, 0.5, 1.0, 1.5])
    breadth = world.rng.choice([1, BREADTH])
    watch = Watch(backend_of(table(world)))
    strategy = Rejection(loop_budget=3, concurrency_budget=breadth)
    result = await watch.sample(strategy, "q", None, [is_yes], budget=Budget(deadline_s=deadline_s))
    watch.check()
    assert result.elapsed_s <= deadline_s, "I12: the call outlived its deadline"
    return summary(world, watch, result.stop_reason)


async def deterministic(world):
    """Semantics 8: the winner is the valid slice with the smallest (attempt, subsample), whatever the timing."""
    fates = table(world, yes=0.25, errors=[(TransientError, 0.15), (RuntimeError, 0.1)])
    strategy = RejectionSamplingStrategy(loop_budget=3, concurrency_budget=BREADTH, deterministic=True)
    expected = winner_by_hand(fates, 3, BREADTH)
    watch = Watch(backend_of(fates))
    try:
        result = await watch.sample(strategy, "q", None, [is_yes])
    except Exception as error:
        watch.check()
        assert expected is None
        return type(error).__name__
    watch.check()
    assert expected == ((result.best.attempt, result.best.subsample) if result.success else None)
    if expected and any((one.attempt, one.subsample) > expected for one in result.slices if one.valid):
        world.reached("a faster answer had to wait")
    return expected


def winner_by_hand(fates, depth, breadth):
    """Return the attempt and subsample of the winner, computed sequentially and without the library."""
    ended = set()
    for attempt in range(depth):
        for subsample in range(breadth):
            if subsample in ended:
                continue
            _, reply = fates[subsample, attempt]
            if reply == "yes":
                return attempt, subsample
            if reply is RuntimeError:
                ended.add(subsample)
    return None


async def nested(world):
    """Row 45: a check that makes a call with losers, inside attempts that are cancelled."""
    inner_events = []

    async def inner_agrees(text):
        watch = Watch(backend_of(table(world, yes=0.4)))
        try:
            result = await watch.sample(Rejection(loop_budget=2, concurrency_budget=2), "inner", None, [is_yes])
        finally:
            watch.check()
            inner_events.append(watch.events)
        return result.success

    strategy = Rejection(loop_budget=DEPTH, concurrency_budget=BREADTH)
    ending = await watched(world, strategy, backend_of(table(world, yes=0.6)), [is_yes, inner_agrees])
    ids = [event.iteration_id for events in inner_events for event in events.of(IterationStarted)]
    assert len(ids) == len(set(ids)), "I8: an id came twice"
    return ending


async def judged(world):
    """Semantics 6 and 9: judges use the same backend, and judge only answers that pass the coded checks."""
    fates = table(world, yes=0.5)

    def reply(request):
        if request.messages[0].role == "system":
            assert "yes" in request.messages[-1].content, "a judge was asked about an answer that a check had refused"
            return After(world.latency(), Generation(world.rng.choice(["yes", "no\nnot polite"]), Usage(7, 1)))
        return backend_reply(request)

    backend_reply = backend_of(fates)._reply_to
    budget = Budget(requests=world.rng.randint(3, 20))
    strategy = MultiTurn(loop_budget=DEPTH, concurrency_budget=BREADTH)
    return await watched(world, strategy, ScriptedBackend(reply), [is_yes, "is polite"], budget=budget)


async def one_deep_subsample(world):
    """Breadth 1 runs without a task group, with the same guarantees."""
    errors = [(TransientError, 0.2), (RuntimeError, 0.1)]
    strategy = MultiTurn(loop_budget=6)
    return await watched(world, strategy, backend_of(table(world, yes=0.15, errors=errors)))


async def caller_gives_up(world):
    """I11: a cancellation by the caller propagates, and no task is left."""
    watch = Watch(backend_of(table(world, yes=0.2)))
    strategy = Rejection(loop_budget=DEPTH, concurrency_budget=BREADTH)
    with anyio.move_on_after(world.rng.choice([0.25, 0.5, 1.0])) as scope:
        await watch.sample(strategy, "q", None, [is_yes])
    watch.check()
    if scope.cancelled_caught:
        world.reached("the caller's cancellation came through")
        assert watch.result is None
        return "cancelled"
    return summary(world, watch, watch.result.stop_reason)


class HedgedOnTheGrid(once_enough(HedgedSamplingStrategy)):
    """Hedges that start at the same time as answers arrive."""

    def _hedge_after_s(self, progress):
        return 0.25


async def hedged(world):
    """Hedges that start when an answer arrives, after all kinds of failures, and in the winning step."""
    errors = [(TransientError, 0.15), (RuntimeError, 0.15), (AuthenticationFailed, 0.03)]
    watch = Watch(backend_of(table(world, yes=0.25, errors=errors)))
    strategy = HedgedOnTheGrid(loop_budget=DEPTH, concurrency_budget=BREADTH)
    budget = Budget(attempts=world.rng.randint(1, 12), deadline_s=world.rng.choice([0.5, 1.0, 50.0]))
    try:
        result = await watch.sample(strategy, "q", None, [is_yes], budget=budget)
    except Exception as error:
        watch.check()
        return summary(world, watch, type(error).__name__)
    watch.check()
    if result.success and result.best.subsample:
        world.reached("a hedge won")
    if len({one.subsample for one in result.attempts}) == 1 and result.success:
        world.reached("no hedge was needed")
    return summary(world, watch, result.stop_reason)


async def started_whenever(world):
    """Subsamples start at any time that a strategy chooses."""

    class Whenever(RejectionSamplingStrategy):
        def next_subsample_in_s(self, progress):
            assert len(progress.running) + len(progress.ended) >= progress.started
            return world.rng.choice([0.0, 0.25, 0.5, math.inf])

        def settled(self, progress):
            return progress.slices[-1].valid and (len(progress.ended) > 1 or progress.started == BREADTH)

    errors = [(TransientError, 0.15), (RuntimeError, 0.15)]
    strategy = Whenever(loop_budget=DEPTH, concurrency_budget=BREADTH, deterministic=world.rng.random() < 0.3)
    ending = await watched(world, strategy, backend_of(table(world, yes=0.4, errors=errors)))
    started = {iteration // DEPTH for iteration, _ in ending[1]}
    world.reached("all started" if len(started) == BREADTH else "some never started")
    return ending


def tiers_of(world, fates):
    """Three tiers: the defaults of the call, a strategy with options, and another backend."""
    strong = backend_of(fates["strong"])
    strategies = [Rejection(loop_budget=2, concurrency_budget=2), HedgedOnTheGrid(loop_budget=2, concurrency_budget=3)]
    middle = Tier(strategy=world.rng.choice(strategies), options=Options(model="middle"))
    return [Tier(), middle, Tier(strong, world.rng.choice([None, MultiTurn(concurrency_budget=2)]))], strong


async def escalated(world):
    """S20: all tiers are on one result, and share one budget and one deadline."""
    errors = [(TransientError, 0.2), (RuntimeError, 0.2), (AuthenticationFailed, 0.02)]
    fates = {name: table(world, yes=0.15, errors=errors) for name in ("small", "middle", "strong")}
    replies = {name: backend_of(fates[name])._reply_to for name in ("small", "middle")}
    tiers, strong = tiers_of(world, fates)
    budget = Budget(attempts=world.rng.randint(1, 20), deadline_s=world.rng.choice([0.5, 1.0, 1.5, 50.0]))
    strategy = EscalationStrategy(tiers, loop_budget=DEPTH, concurrency_budget=2, patience=1)
    watch = Watch(ScriptedBackend(lambda request: replies[request.options.model or "small"](request)))
    try:
        result = await watch.sample(strategy, "q", None, [is_yes], budget=budget)
    except Exception as error:
        ending = type(error).__name__
    else:
        ending = result.stop_reason
    watch.check()
    assert not strong.in_flight, "I6: a request of a tier outlived the call"
    assert budget.attempts_made == len(watch.events.of(IterationStarted)), "I10: an attempt was not counted"
    calls = [event.sampling_id for event in watch.events.of(LoopFinished)]
    assert len(calls) == len(set(calls)), "I9: a call ended twice"
    world.reached(f"{len(calls) - 1} tiers")
    return summary(world, watch, ending)


async def escalation_given_up(world):
    """Row 45: the caller cancels the outer call. Each inner call ends once, and no task is left."""
    fates = {name: table(world, yes=0.1) for name in ("small", "middle", "strong")}
    tiers, strong = tiers_of(world, fates)
    inner = EscalationStrategy(tiers[1:], loop_budget=DEPTH, concurrency_budget=2)
    strategy = EscalationStrategy([tiers[0], Tier(strategy=inner)], loop_budget=DEPTH, concurrency_budget=2)
    watch = Watch(backend_of(fates["small"]))
    with anyio.move_on_after(world.rng.choice([0.25, 0.5, 1.0, 1.5, 2.0])) as scope:
        await watch.sample(strategy, "q", None, [is_yes])
    watch.check()
    assert not strong.in_flight
    started = [event.sampling_id for event in watch.events.of(LoopStarted)]
    assert sorted(started) == sorted(event.sampling_id for event in watch.events.of(LoopFinished))
    if scope.cancelled_caught:
        world.reached(f"cancelled in {len(started)} calls")
        return "cancelled"
    return summary(world, watch, watch.result.stop_reason)


def strategies(**settings):
    """Return every strategy, with settings under which it stops early, repairs, votes or escalates."""
    return [
        RejectionSamplingStrategy(**settings),
        RejectionSamplingStrategy(variation=Diverse(models=("a", "b"), seeds=range(9)), **settings),
        RepairTemplateStrategy(**settings),
        MultiTurnStrategy(**settings),
        MajorityVotingStrategy(**settings),
        MajorityVotingStrategy(certainty=0.8, all_at_once=True, **settings),
        MBRStrategy(**settings),
        BestOfNStrategy(len, enough=2, **settings),
        BestOfNStrategy(len, **settings),
        BudgetForcingStrategy(Thinking(tokens=4, most_waits=1), **settings),
        HedgedOnTheGrid(**settings),
        EscalationStrategy([Tier(), Tier(options=Options(model="strong"))], patience=1, **settings),
    ]


ERRORS = [
    TransientError,
    RuntimeError,
    BadRequest,
    lambda message: ExceptionGroup("several", [TransientError(message), BadRequest(message)]),
    AuthenticationFailed,
]
"""One error of each kind that ends something else."""


class Script:
    """A script for each attempt of a backend, drawn once and replayed with any latencies."""

    def __init__(self, world, *, errors=0.25):
        self._world = world
        self._replies = {}
        for subsample in range(BREADTH):
            for attempt in range(DEPTH):
                text = world.rng.choice(["no", "no", "a", "a", "bb", "ccc"])
                error = world.rng.choice([*ERRORS, AuthenticationFailed]) if world.rng.random() < errors else None
                usage = Usage(world.rng.randint(1, 9), world.rng.randint(1, 9), world.rng.choice([0.0, 0.25]))
                judged = {sentence: world.rng.choice(["yes", "yes", "no"]) for sentence in SENTENCES}
                self._replies[subsample, attempt] = text, error, usage, judged

    def backend(self):
        """Return a backend with these replies and new latencies."""

        def reply(request):
            text, error, usage, judged = self._replies[request.subsample, request.attempt]
            if request.messages[0].role == "system":
                asked = request.messages[-1].text
                [verdict] = [verdict for sentence, verdict in judged.items() if sentence in asked]
                return After(self._world.latency(), Generation(verdict, usage))
            return After(
                self._world.latency(), Generation(text, usage) if error is None else error(request.iteration_id[-7:])
            )

        return ScriptedBackend(reply)


SENTENCES = ("is polite", "is short")
"""Requirements that a model judges."""


def is_not_no(text):
    return text != "no"


def asking_after(sentence, latency):
    """Return a check that waits, and then asks a model."""

    async def check(text, view):
        await anyio.sleep(latency())
        return (await view.ask([Message("system", "judge"), Message("user", sentence)])).text == "yes"

    return check


def draw_requirements(world):
    """Return a check of the text, and up to two that ask a model: of the engine's own, or coded."""
    if world.rng.random() < 0.8:
        return [is_not_no, *SENTENCES][: world.rng.randint(1, 3)]
    return [is_not_no, *(asking_after(sentence, world.latency) for sentence in SENTENCES)]


async def every_strategy(world):
    """I1 to I12: every strategy, with all kinds of errors, judges and budgets."""
    strategy = world.rng.choice(
        strategies(loop_budget=DEPTH, concurrency_budget=BREADTH, deterministic=world.rng.random() < 0.3)
    )
    reqs = draw_requirements(world)
    budget = world.rng.choice([None, Budget(attempts=5), Budget(requests=7), Budget(tokens=60), Budget(deadline_s=1.0)])
    world.reached(type(strategy).__name__)
    return await watched(world, strategy, Script(world).backend(), reqs, budget=budget)


async def same_outcome_in_any_timing(world):
    """Semantics 8: two runs of a deterministic call differ in their latencies, but in nothing that a caller sees."""
    settings = {"loop_budget": DEPTH, "concurrency_budget": BREADTH, "deterministic": True}
    number = world.rng.randrange(len(strategies(**settings)))
    script = Script(world, errors=world.rng.choice([0.0, 0.1, 0.3]))
    reqs = draw_requirements(world)
    limits = world.rng.choice(
        [
            {},
            {},
            {"attempts": world.rng.randint(0, 8)},
            {"requests": world.rng.randint(0, 12)},
            {"tokens": world.rng.randint(0, 100)},
            {"cost": world.rng.choice([0.0, 0.25, 0.5, 1.0])},
        ]
    )
    # New objects each time: a strategy may learn, and a budget is used up.
    outcomes = [
        await outcome_of(strategies(**settings)[number], script.backend(), reqs, limits) for _ in ("one", "another")
    ]
    assert len(set(outcomes)) == 1, f"semantics 8: {outcomes} with {limits}"
    world.reached(f"strategy {number}")
    world.reached(outcomes[0][0])
    return outcomes[0]


async def outcome_of(strategy, backend, reqs, limits):
    """Return what the caller of a call learns: what was raised, or the answer and why it ended."""
    try:
        result = await strategy.sample("q", None, backend, reqs, budget=Budget(**limits) if limits else None)
    except Exception as error:
        return type(error).__name__, str(error)
    best = result.best
    return result.stop_reason, result.success, best and (best.subsample, best.attempt, best.text, best.outcome)


def draw_plain_or_staged(world, breadth):
    """Return a strategy that makes its attempts itself, or one that makes them in a stage."""
    strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=breadth)
    return EscalationStrategy([Tier(strategy=strategy)]) if world.rng.random() < 0.5 else strategy


async def budget_that_is_only_reserved(world):
    """Semantics 9: calls wait for reservations, and all of them end. None is refused while there is room."""
    breadth = world.rng.choice([1, 2])
    calls = world.rng.randint(2, 5)
    nests = world.rng.random() < 0.3
    # Every attempt uses 2 tokens of up to 41 that it reserves: there is room for all, but not at once.
    budget = Budget(tokens=41 + 2 * calls * 2 * breadth + world.rng.choice([0, 20]))
    endings = []

    async def backend(request):
        if nests and request.messages[-1].content == "outer" and world.rng.random() < 0.3:
            world.reached("nested")
            await one_call("inner", 20)
        report_usage(Usage(1, 1))
        await anyio.sleep(world.latency())
        return Generation(world.rng.choice(["yes", "no"]), Usage(1, 1))

    async def one_call(question, max_tokens):
        strategy = draw_plain_or_staged(world, breadth)
        patience_s = world.rng.choice([0.25, 500.0, 500.0, 500.0])
        with anyio.move_on_after(patience_s) as scope:
            result = await strategy.sample(
                question, None, backend, [is_yes], budget=budget, options=Options(max_tokens=max_tokens)
            )
            endings.append((question, result.stop_reason))
        if scope.cancelled_caught:
            endings.append((question, "cancelled" if patience_s < 1 else "waited for ever"))

    async with anyio.create_task_group() as group:
        for _ in range(calls):
            group.start_soon(one_call, "outer", world.rng.choice([10, 30, 40]))
    assert attrs.astuple(budget.reserved) == (0, 0, 0, 0.0), "I10: something is still reserved"
    assert not [ending for ending in endings if ending[1] == "waited for ever"], "semantics 9: a call waited for ever"
    refused = [ending for ending in endings if ending[1] == "budget"]
    if "nested" not in world.states:
        assert not refused, f"semantics 9: refused with {budget.tokens_charged} of {budget.tokens} tokens spent"
        assert calls == len(endings)
    for ending in endings:
        world.reached(ending[1])
    return sorted(endings)


class Agents:
    """Calls that share a budget, and run tools in the slots of a limiter. A tool may make a call, too."""

    def __init__(self, world):
        self._world = world
        self._nests = world.rng.random() < 0.5
        self._in_flight = 0
        self.most_in_flight = 0
        self.slots = world.rng.choice([1, 2])
        self.budget = Budget(tokens=world.rng.randint(30, 100))
        self.endings = []
        tools = ToolLoop(self._model, [self.look], max_rounds=3, timeout_s=world.rng.choice([None, 0.75]))
        self.limited = Limited(tools, max_in_flight=self.slots)

    async def _model(self, request):
        self._in_flight += 1
        self.most_in_flight = max(self._in_flight, self.most_in_flight)
        try:
            await anyio.sleep(self._world.latency())
        finally:
            self._in_flight -= 1
        if self._world.rng.random() < 0.5:
            return Generation("", Usage(1, 1), "tool_calls", tool_calls=[ToolCall("1", "look", "{}")] * 2)
        return Generation(self._world.rng.choice(["yes", "no"]), Usage(1, 1))

    async def look(self) -> str:
        """Look it up."""
        await anyio.sleep(self._world.latency())
        if self._nests and self._world.rng.random() < 0.3:
            self._world.reached("nested")
            await self.call(ScriptedBackend(lambda _: After(self._world.latency(), Generation("yes", Usage(1, 1)))))
        return "found"

    async def call(self, backend, patience_s=500.0):
        """Make a call, and record how it ended."""
        strategy = RejectionSamplingStrategy(concurrency_budget=3)
        options = Options(max_tokens=self._world.rng.choice([5, 10, 20]))
        with anyio.move_on_after(patience_s) as scope:
            try:
                result = await strategy.sample("q", None, backend, [is_yes], budget=self.budget, options=options)
            except BudgetExceeded:
                self.endings.append("refused")
            else:
                self.endings.append(result.stop_reason)
        if scope.cancelled_caught:
            self.endings.append("cancelled" if patience_s < 1 else "waited for ever")


async def agents_behind_a_limiter(world):
    """Semantics 9: a round waits for the budget of others, which wait for its slot, and all of them end."""
    agents = Agents(world)
    async with anyio.create_task_group() as group:
        for _ in range(world.rng.choice([1, 2])):
            group.start_soon(agents.call, agents.limited, world.rng.choice([0.25, 500.0, 500.0]))
    statistics = agents.limited.statistics
    assert "waited for ever" not in agents.endings, "semantics 9: a call waited for ever"
    assert attrs.astuple(agents.budget.reserved) == (0, 0, 0, 0.0), "I10: something is still reserved"
    assert (statistics.in_flight, statistics.waiting) == (0, 0), "a slot was lost"
    assert agents.most_in_flight <= agents.slots, "the limiter let too many requests through"
    for ending in agents.endings:
        world.reached(ending)
    return sorted(agents.endings)


class Leaks(Exception):
    """Raised by cleanups."""


async def work(fate, delay_s):
    """Wait, and clean up as this fate says if cancelled."""
    try:
        await anyio.sleep(delay_s)
    except BaseException:
        if fate == "raises":
            raise Leaks("in the cleanup") from None
        if fate == "waits":
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.25)
            raise FatalError("in the cleanup") from None
        raise


def hostile_backend(world):
    fates = table(world, yes=0.3)

    async def backend(request):
        delay_s, text = fates[request.subsample, request.attempt]
        fate = world.rng.choice(["raises", "waits", "group", "leaks", "fine", "fine", "fine"])
        if fate == "leaks":
            world.reached("a cancellation that nobody requested")
            await raise_cancellation()
        if fate == "group":
            async with anyio.create_task_group() as group:
                group.start_soon(work, "raises", delay_s + 0.25)
                await anyio.sleep(delay_s)
                group.cancel_scope.cancel()
        else:
            await work(fate, delay_s)
        return Generation(text, Usage(3, 2))

    return backend


async def hostile_cleanups(world):
    """Semantics 3 and 10: cleanups that raise, wait and raise groups, and cancellations that nobody requested."""
    strategy = Rejection(loop_budget=DEPTH, concurrency_budget=world.rng.choice([1, BREADTH]))
    watch = Watch(hostile_backend(world))
    ending = None
    patience_s = world.rng.choice([0.25, 0.5, 50.0, 50.0])
    with anyio.move_on_after(patience_s) as scope:
        try:
            ending = (await watch.sample(strategy, "q", None, [is_yes])).stop_reason
        except Exception as error:
            ending = type(error).__name__
    watch.check()
    if scope.cancelled_caught:
        world.reached("the caller's cancellation came through")
        return "cancelled"
    assert not scope.cancel_called or watch.result is not None, "I11: the caller's cancellation became an error"
    assert watch.events.of(LoopFinished)[0].elapsed_s <= patience_s + 0.25, "I11: the caller's cancellation was lost"
    assert ending != "deadline", "I12: a cancellation was taken for a deadline"
    outcomes = {event.slice.outcome for event in watch.events.of(IterationFinished)}
    assert "valid" not in outcomes or watch.result is not None, f"semantics 3: a loser undid the winner: {ending}"
    if {"valid", "errored"} <= outcomes:
        world.reached("a cleanup raised beside a winner")
    return summary(world, watch, ending)


async def raise_cancellation():
    """Raise the cancellation of a scope that has ended, as leaking code does."""
    kept = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await checkpoint()
        except anyio.get_cancelled_exc_class() as error:
            kept = error
    raise kept


async def errors_about_requests(world):
    """Semantics 5: a refused request ends its subsample, a refused key the call, a group what its leaves end."""
    refused = world.rng.randrange(BREADTH)
    error = world.rng.choice(ERRORS)
    latencies = [world.latency() for _ in range(BREADTH)]

    def reply(request):
        if request.subsample == refused:
            return After(latencies[request.subsample], error("refused"))
        return After(1.25 + latencies[request.subsample], "yes")

    strategy = Rejection(concurrency_budget=BREADTH, variation=Diverse(models=("a", "b", "c", "d")))
    watch = Watch(ScriptedBackend(reply))
    try:
        result = await watch.sample(strategy, "q", None, [is_yes])
    except AuthenticationFailed:
        watch.check()
        return summary(world, watch, "AuthenticationFailed")
    except Exception as other:
        raise AssertionError("semantics 5: an error ended siblings that would have won") from other
    watch.check()
    assert result.success
    assert error is not ERRORS[-1], "semantics 5: a refused key did not end the call"
    return summary(world, watch, result.stop_reason)


CAMPAIGN = {
    plain_race: ["losers were cancelled", "validated", "exhausted"],
    errors_and_answers: ["an error beside a winner", "failed", "AuthenticationFailed", "RuntimeError"],
    hooks_that_wait_and_fail: ["a hook failed at the end of an attempt"],
    checks_that_wait_and_break: ["two winners in one tick", "validated", "exhausted"],
    shared_budget: ["budget", "deadline", "validated"],
    deadline_at_a_completion: ["deadline", "validated", "exhausted"],
    deterministic: ["a faster answer had to wait"],
    nested: ["validated", "losers were cancelled"],
    judged: ["budget", "validated"],
    one_deep_subsample: ["validated", "exhausted", "failed"],
    caller_gives_up: ["the caller's cancellation came through"],
    hedged: [
        "a hedge won",
        "no hedge was needed",
        "losers were cancelled",
        "budget",
        "deadline",
        "validated",
        "exhausted",
    ],
    started_whenever: ["all started", "some never started", "validated", "exhausted"],
    escalated: ["1 tiers", "2 tiers", "3 tiers", "validated", "exhausted", "budget", "deadline", "failed"],
    every_strategy: [
        "BestOfNStrategy",
        "BudgetForcingStrategy",
        "EscalationStrategy",
        "HedgedOnTheGrid",
        "MBRStrategy",
        "MajorityVotingStrategy",
        "MultiTurnStrategy",
        "RejectionSamplingStrategy",
        "RepairTemplateStrategy",
        "validated",
        "budget",
        "deadline",
        "AuthenticationFailed",
    ],
    same_outcome_in_any_timing: [
        *(f"strategy {number}" for number in range(12)),
        "validated",
        "budget",
        "exhausted",
        "failed",
        "AuthenticationFailed",
        "BadRequest",
    ],
    budget_that_is_only_reserved: ["validated", "exhausted", "cancelled", "nested", "budget"],
    agents_behind_a_limiter: ["validated", "exhausted", "budget", "cancelled", "nested", "refused"],
    hostile_cleanups: [
        "a cleanup raised beside a winner",
        "a cancellation that nobody requested",
        "the caller's cancellation came through",
        "validated",
    ],
    errors_about_requests: ["validated", "AuthenticationFailed"],
    escalation_given_up: ["cancelled in 2 calls", "cancelled in 4 calls", "cancelled in 5 calls", "validated"],
}
"""All scenarios, with the states that at least one run must reach (I19)."""
