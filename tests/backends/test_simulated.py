"""The simulated server: on time, first come first served, honest about usage, and the same for the same seed."""

import anyio
import anyio.lowlevel
import pytest

from sampling import (
    Message,
    MultiTurnStrategy,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Request,
    TransientError,
    Usage,
)
from sampling.backends.layers import Cached, Fallback, Limited, Recorded, Retrying
from sampling.backends.simulated import SimulatedBackend, lognormal
from sampling.protocols import StreamingBackend
from sampling.testing import cancel_at_every_step, run_virtual
from sampling.testing.conformance import check_backend

SECOND = {"time_to_first_token_s": 0.25, "time_per_token_s": 0.25, "output_tokens": 4}
"""A server that takes exactly one second for an answer of four tokens."""


def ask(text="hello", **ids):
    return Request((Message("user", text),), **ids)


async def finish_times(backend, count):
    """Send `count` requests at once and return when each was answered, in the order of sending."""
    times = [0.0] * count

    async def one(number):
        await backend.generate(ask(subsample=number))
        times[number] = anyio.current_time()

    start = anyio.current_time()
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
    return [time - start for time in times]


async def record_of_a_call(seed, slots):
    """Return all that a call came to, ids apart."""
    backend = SimulatedBackend(
        seed=seed, slots=slots, output_tokens=lognormal(20, 0.6), pass_probability={"a": 0.4, "b": 0.5}, failures=0.2
    )
    result = await MultiTurnStrategy(loop_budget=4, concurrency_budget=4).sample(
        "hello", None, backend, backend.requirements
    )
    records = [
        (one.iteration, one.outcome, one.text, one.usage, one.started_s, one.finished_s) for one in result.attempts
    ]
    return repr((records, result.usage, backend.statistics))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_same_seed_gives_the_same_run_to_the_byte(loop):
    """Answers, times, failures, usage and statistics are a function of the seed, even where requests have to queue."""
    runs = [run_virtual(record_of_a_call, 7, 3, loop=loop, seed=1) for _ in range(3)]

    assert runs == [runs[0]] * 3
    assert runs[0] != run_virtual(record_of_a_call, 8, 3, loop=loop, seed=1)


def test_without_a_queue_not_even_the_event_loop_or_the_order_of_tasks_matters():
    """Nothing is drawn from the order of arrival, unless the very same is asked twice."""
    runs = {
        run_virtual(record_of_a_call, 7, 8, loop=loop, seed=order) for loop in ("asyncio", "trio") for order in range(5)
    }

    assert 1 == len(runs)


def test_an_answer_takes_the_time_to_first_token_and_then_a_time_for_each(run):
    """Four tokens are there after the first's time and three more."""
    backend = SimulatedBackend(time_to_first_token_s=0.5, time_per_token_s=0.125, output_tokens=4)

    assert [0.875] == run(finish_times, backend, 1)


def test_requests_wait_for_a_slot_in_the_order_in_which_they_came(run):
    """Two slots, five requests of a second each: two at a time, first come first served."""
    backend = SimulatedBackend(slots=2, **SECOND)

    assert [1.0, 1.0, 2.0, 2.0, 3.0] == run(finish_times, backend, 5)
    assert (5, 5.0) == (backend.statistics.served, backend.statistics.busy_slot_s)


def test_a_stream_brings_every_token_at_its_own_instant(run):
    """The instants are absolute, and together the pieces are the text."""
    backend = SimulatedBackend(time_to_first_token_s=0.5, time_per_token_s=0.1, output_tokens=50)

    async def stream():
        start = anyio.current_time()
        pieces = []
        generation = await backend.stream(ask(), lambda piece: pieces.append((anyio.current_time() - start, piece)))
        return pieces, generation

    pieces, generation = run(stream)
    assert [pytest.approx(0.5 + place * 0.1, abs=1e-9) for place in range(50)] == [at for at, _ in pieces]
    assert generation.text == "".join(piece for _, piece in pieces)
    assert (50, "stop", "simulated") == (generation.usage.output_tokens, generation.finish_reason, generation.model)
    assert isinstance(backend, StreamingBackend)


def test_whole_and_streamed_answers_are_the_same(run):
    """A stream is another way to get the same answer, not another answer."""

    async def both():
        whole = await SimulatedBackend(seed=3).generate(ask())
        streamed = await SimulatedBackend(seed=3).stream(ask(), lambda piece: None)
        return whole, streamed

    whole, streamed = run(both)
    assert whole == streamed


def test_a_cancelled_request_frees_its_slot_at_once_and_pays_for_what_was_generated(run):
    """Row 22: a cancelled request frees its slot in the same instant, and its tokens so far are counted."""
    backend = SimulatedBackend(slots=1, cost_per_output_token=0.5, **SECOND)

    async def loser():
        with anyio.move_on_after(0.6):  # tokens at 0.25 and 0.5
            await backend.generate(ask())

    async def race():
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(loser)
            await anyio.sleep(0.1)
            await backend.generate(ask())
        return anyio.current_time() - start

    assert pytest.approx(1.6) == run(race)
    statistics = backend.statistics
    assert (1, 1, 0, 0) == (statistics.served, statistics.cancelled, statistics.in_flight, statistics.queued)
    assert 6 == statistics.output_tokens


@pytest.mark.parametrize("streaming", [False, True])
def test_losers_are_in_the_usage_of_the_result(run, streaming):
    """Contract 2: eight at once, one wins, and what the other seven had made by then is counted."""
    backend = SimulatedBackend(
        seed=1, slots=8, output_tokens=lognormal(50, 1.0), pass_probability=1.0, cost_per_output_token=2.0
    )

    async def whole(request):
        return await backend.generate(request)

    async def streamed(request):
        return await backend.stream(request, lambda piece: None)

    async def call():
        return await RejectionSamplingStrategy(concurrency_budget=8).sample(
            "hello", None, streamed if streaming else whole
        )

    result = run(call)
    winner = result.best.usage.output_tokens
    assert 8 * winner == result.usage.output_tokens == backend.statistics.output_tokens
    assert 2.0 * result.usage.output_tokens == result.usage.cost
    assert (0, 7) == (backend.statistics.in_flight, backend.statistics.cancelled)


def test_a_receiver_that_raises_stops_the_generation(run):
    """An error of the receiver passes through, frees the slot and stops the generation."""
    backend = SimulatedBackend(slots=1, **SECOND)

    def stop(piece):
        raise LookupError("enough")

    async def cut():
        with pytest.raises(LookupError, match="enough"):
            await backend.stream(ask(), stop)
        return anyio.current_time()

    run(cut)
    assert (0, 1, 1) == (
        backend.statistics.in_flight,
        backend.statistics.output_tokens,
        backend.statistics.cancelled,
    )


def test_a_cancellation_at_any_step_leaves_nothing_behind():
    """Row 38: a cancellation at any step loses no slot, and every request is counted once."""
    backends = []

    async def scenario(world):
        backend = SimulatedBackend(seed=world.seed, slots=2, output_tokens=3, failures=0.2, max_queued=3)
        backends.append(backend)
        await RejectionSamplingStrategy(loop_budget=2, concurrency_budget=4).sample(
            "hello", None, backend, backend.requirements
        )

    def check(world, outcome):
        statistics = backends[-1].statistics
        assert (0, 0) == (statistics.in_flight, statistics.queued)

    for seed in range(3):
        cancel_at_every_step(scenario, seed=seed, check=check)


def test_answers_pass_each_requirement_with_its_probability(run):
    """The share of 2,000 answers that pass is what was asked for, for each requirement apart."""
    backend = SimulatedBackend(
        slots=100, pass_probability={"rare": 0.1, "often": 0.8}, output_tokens=2, time_per_token_s=0, seed=4
    )

    async def texts():
        return [(await backend.generate(ask(subsample=number))).text for number in range(2_000)]

    answers = run(texts)
    passed = {name: sum(backend.requirement(name).check(text) for text in answers) for name in ("rare", "often")}
    assert 150 < passed["rare"] < 250
    assert 1_520 < passed["often"] < 1_680
    assert 2_000 == len(set(answers))


def test_an_answer_that_can_no_longer_pass_shows_it_while_it_grows(run):
    """The mark of a failure stands somewhere in the text, and `partial` sees it as soon as it is there."""
    backend = SimulatedBackend(pass_probability=0.0, output_tokens=40)
    requirement = backend.requirement()

    async def text():
        return (await backend.generate(ask())).text

    answer = run(text)
    end_of_mark = answer.index("[fails:valid]") + len("[fails:valid]")
    assert not requirement.check(answer)
    assert requirement.partial(answer[: end_of_mark - 1])
    assert not requirement.partial(answer[:end_of_mark])


def test_a_sentence_is_judged_by_the_first_word(run):
    """A requirement without a check asks the same server, which says yes as often as it is told to."""

    async def judged(yes):
        backend = SimulatedBackend(yes_probability=yes)
        return (await RejectionSamplingStrategy().sample("hello", None, backend, ["is polite"])).success

    assert run(judged, 1.0)
    assert not run(judged, 0.0)


def test_the_same_request_asked_again_may_end_differently_and_does_so_for_the_seed(run):
    """Each retry is a new draw, and the tenth draw is the same in every run."""

    async def ten():
        backend = SimulatedBackend(seed=5, output_tokens=3)
        return [(await backend.generate(ask())).text for _ in range(10)]

    first = run(ten)
    assert 10 == len(set(first))
    assert first == run(ten)


def test_a_share_of_requests_fails_and_is_accounted_for(run):
    """They are transient, break off anywhere, and what was generated until then is counted."""
    backend = SimulatedBackend(seed=2, slots=50, failures=0.3, output_tokens=10)
    failures = []

    async def many():
        for number in range(300):
            try:
                await backend.generate(ask(subsample=number))
            except TransientError as error:
                failures.append(str(error))

    run(many)
    assert 60 < len(failures) < 120
    assert backend.statistics.failed == len(failures)
    assert len(set(failures)) > 5
    assert 10 * backend.statistics.served < backend.statistics.output_tokens < 10 * 300


def test_too_many_requests_in_a_second_are_refused_with_the_exact_time_to_wait(run):
    """Row 1: two a second, with a burst of two: the third has to wait until half a second has passed."""
    backend = SimulatedBackend(rate_limit=2, output_tokens=1, time_to_first_token_s=0)

    async def storm():
        waits = []
        for _ in range(2):
            await backend.generate(ask())
        for _ in range(3):
            with pytest.raises(RateLimited) as refusal:
                await backend.generate(ask())
            waits.append(refusal.value.retry_after_s)
            await anyio.sleep(waits[-1])
            await backend.generate(ask())
        return waits

    assert [0.5, 0.5, 0.5] == run(storm)
    assert (3, 5) == (backend.statistics.rejected, backend.statistics.served)


def test_a_full_queue_refuses(run):
    """One slot and one place in the queue: of three at once, the third is refused."""
    backend = SimulatedBackend(slots=1, max_queued=1, **SECOND)
    refused = []

    async def one(number):
        try:
            await backend.generate(ask(subsample=number))
        except RateLimited:
            refused.append(number)

    async def three():
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(one, number)

    run(three)
    assert (1, 1, 2) == (len(refused), backend.statistics.rejected, backend.statistics.served)


def test_slots_may_change_while_it_works(run):
    """More slots wake waiting requests, fewer let running ones finish, and zero stops the server."""
    backend = SimulatedBackend(slots=0, **SECOND)

    async def change():
        times = []
        async with anyio.create_task_group() as group:

            async def measure():
                times.extend(await finish_times(backend, 4))

            group.start_soon(measure)
            await anyio.sleep(10)
            backend.slots = 3
            await anyio.sleep(0.5)
            backend.slots = 1
        return times

    assert [11.0, 11.0, 11.0, 12.0] == run(change)


def test_an_answer_is_cut_at_max_tokens(run):
    """It has that many tokens, and says that it was cut."""

    request = Request((Message("user", "hello"),), Options(max_tokens=3))

    async def short():
        return await SimulatedBackend(output_tokens=10).generate(request)

    generation = run(short)
    assert (3, "length") == (generation.usage.output_tokens, generation.finish_reason)


def test_usage_has_tokens_and_cost(run):
    """A token is four characters, and input and output tokens have their own price."""
    backend = SimulatedBackend(output_tokens=10, cost_per_input_token=1.0, cost_per_output_token=10.0)

    async def one():
        return (await backend.generate(ask("x" * 40))).usage

    assert Usage(10, 10, 110.0) == run(one)


def test_a_server_outlives_event_loops():
    """One backend works in several event loops, one after the other, each with its own clock."""
    backend = SimulatedBackend(slots=1, rate_limit=1, **SECOND)

    assert [1.0] == run_virtual(finish_times, backend, 1)
    assert [1.0] == run_virtual(finish_times, backend, 1, loop="trio")
    assert (
        RejectionSamplingStrategy()
        .sample_sync("hello", None, SimulatedBackend(time_to_first_token_s=0, time_per_token_s=0))
        .success
    )


def test_it_answers_without_any_argument(run):
    """It is the default where no model is."""

    async def default():
        backend = SimulatedBackend()
        return await RejectionSamplingStrategy(loop_budget=10, concurrency_budget=2).sample(
            "hello", None, backend, backend.requirements
        )

    assert run(default).success


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": -1}, "slots must be >= 0, got -1"),
        ({"output_tokens": 0}, "output_tokens must be >= 1, got 0"),
        ({"output_tokens": 1.5}, "output_tokens must be an int"),
        ({"pass_probability": 1.5}, "pass_probability must be <= 1, got 1.5"),
        ({"pass_probability": {"a": -1}}, r"pass_probability\['a'\] must be >= 0, got -1"),
        ({"pass_probability": {"a b": 1}}, "names in pass_probability must be made of letters.*got 'a b'"),
        ({"failures": "no"}, "failures must be a number.*got 'no'"),
        ({"rate_limit": 0}, "rate_limit must be > 0, got 0"),
        ({"time_per_token_s": float("nan")}, "time_per_token_s must be a finite number.*got nan"),
        ({"max_queued": -1}, "max_queued must be >= 0"),
        ({"model": " "}, "model must not be empty"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    """The error names the argument, shows the value and says what is allowed."""
    with pytest.raises((TypeError, ValueError), match=message):
        SimulatedBackend(**settings)


def test_unknown_requirements_and_lengths_are_refused(run):
    """A value that is not a requirement, and a distribution with invalid lengths, are refused."""
    with pytest.raises(ValueError, match="name must be one of a, b, got 'c'"):
        SimulatedBackend(pass_probability={"a": 1, "b": 1}).requirement("c")
    with pytest.raises(ValueError, match="name must be one of a, b, got None"):
        SimulatedBackend(pass_probability={"a": 1, "b": 1}).requirement()
    with pytest.raises(ValueError, match="mean must be > 0"):
        lognormal(0, 1)
    with pytest.raises(ValueError, match="what output_tokens draws must be >= 1, got 0"):
        run(SimulatedBackend(output_tokens=lambda rng: 0).generate, ask())


LAYERS = {
    "none": lambda backend, path: backend,
    "Retrying": lambda backend, path: Retrying(backend),
    "Limited": lambda backend, path: Limited(backend, max_in_flight=8),
    "adaptive Limited": lambda backend, path: Limited(backend, adaptive=True),
    "Cached": lambda backend, path: Cached(backend),
    "Recorded": lambda backend, path: Recorded(backend, path, append=True),
    "Fallback": lambda backend, path: Fallback(backend, SimulatedBackend()),
}


@pytest.mark.parametrize("layer", LAYERS)
async def test_it_keeps_the_promises_of_a_backend_in_every_layer(anyio_backend, tmp_path, layer):
    """The rules that every backend is held to: streams, limits, usage of what is cancelled, and nothing left behind."""
    path = tmp_path / "cassette"

    def quick():
        server = SimulatedBackend(time_to_first_token_s=0.001, time_per_token_s=0.001, output_tokens=500)
        return LAYERS[layer](server, path)

    await check_backend(quick, claims=["max_tokens"] if layer == "Cached" else ["usage", "max_tokens"])


def test_the_repr_says_what_server_it_is():
    """Slots, times, lengths and probabilities."""
    backend = SimulatedBackend(seed=1, output_tokens=lognormal(20, 0.5))

    assert repr(backend) == (
        "SimulatedBackend(seed=1, slots=8, time_to_first_token_s=0.2, time_per_token_s=0.02, "
        "output_tokens=lognormal(20, 0.5), pass_probability={'valid': 0.5})"
    )
