"""Generated prompts: their lengths, their prefixes and their seeds."""

import random
from statistics import mean, stdev

import pytest

from sampling import Generation, RejectionSamplingStrategy, Request, Usage
from sampling.load import Arrival, Lengths, OpenLoop, RandomPrompts, run_load, strategy_workload


def prompts(generate: RandomPrompts, count: int = 400, seed: int = 0) -> list[list[str]]:
    return [generate(Arrival(number, 0.0, number=number, seed=seed)).split() for number in range(count)]


def test_lengths_follow_their_distribution():
    """C8: fixed, normal, and cut off at both ends."""
    assert {12} == {len(words) for words in prompts(RandomPrompts(12))}
    lengths = [len(words) for words in prompts(RandomPrompts(Lengths(200, stdev=40)))]
    assert 200 == pytest.approx(mean(lengths), abs=8)
    assert 40 == pytest.approx(stdev(lengths), abs=6)
    cut = [Lengths(50, stdev=100, least=10, most=90).draw(random.Random(seed)) for seed in range(200)]
    assert (10, 90) == (min(cut), max(cut))


def test_prefixes_are_shared_and_the_rest_is_not():
    """C8: three beginnings of forty words, and no two prompts alike."""
    found = prompts(RandomPrompts(60, shared_prefix_tokens=40, prefixes=3))
    assert 3 == len({tuple(words[:40]) for words in found})
    assert len(found) == len({tuple(words) for words in found})
    assert {60} == {len(words) for words in found}
    short = prompts(RandomPrompts(5, shared_prefix_tokens=40))
    assert {41} == {len(words) for words in short}


def test_a_rerun_sends_the_same_prompts():
    """C6, C8: and another seed sends others, without touching the other draws of the arrival."""
    generate = RandomPrompts(Lengths(20, stdev=5))
    assert prompts(generate, 5) == prompts(generate, 5) != prompts(generate, 5, seed=1)
    used, fresh = Arrival(0, 0.0), Arrival(0, 0.0)
    generate(used)
    assert fresh.rng.random() == used.rng.random()


def test_a_strategy_asks_them(run):
    """C8: with the usage that the backend counts."""

    async def ask(request: Request) -> Generation:
        return Generation("yes", usage=Usage(input_tokens=len(request.messages[-1].text.split())))

    workload = strategy_workload(RejectionSamplingStrategy(), RandomPrompts(100), None, ask)
    report = run(run_load, workload, OpenLoop(rate=2, requests=4))
    assert (4, 400) == (report.succeeded, report.input_tokens)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (RandomPrompts(100), "random prompts of 100 tokens"),
        (RandomPrompts(Lengths(9.7, most=8)), "random prompts of 8 tokens"),
        (RandomPrompts(Lengths(512, stdev=128)), "random prompts of 512 tokens (stdev 128, at least 1)"),
        (
            RandomPrompts(Lengths(512, stdev=128, least=16, most=2048), shared_prefix_tokens=200, prefixes=4),
            "random prompts of 512 tokens (stdev 128, from 16 to 2048), 4 shared prefixes of 200 tokens",
        ),
    ],
)
def test_a_report_names_them_and_their_settings(prompts, expected, run):
    """R14: so that runs with other prompts are told apart."""

    async def ask(_request: Request) -> Generation:
        return Generation("yes")

    workload = strategy_workload(RejectionSamplingStrategy(), prompts, None, ask)
    assert expected == run(run_load, workload, OpenLoop(rate=2, requests=1)).about["questions"]


def test_a_report_names_the_turns_of_a_conversation():
    """R14: and has nothing about them without a conversation."""

    async def ask(_request: Request) -> Generation:
        return Generation("yes")

    found = []
    for settings in ({}, {"conversation": True}, {"conversation": True, "turns": 3}):
        workload = strategy_workload(RejectionSamplingStrategy(), ["hi"], None, ask, **settings)
        found.append(workload.describe().get("turns"))
    assert [None, "unlimited", 3] == found


def test_prefixes_are_made_when_they_are_used():
    """C8: a billion long ones take no time and no memory before the first request."""
    generate = RandomPrompts(2000, shared_prefix_tokens=1000, prefixes=1_000_000_000)
    assert {2000} == {len(words) for words in prompts(generate, 3)}


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: RandomPrompts(0), ValueError, "tokens must be >= 1"),
        (lambda: Lengths(0), ValueError, "mean must be > 0"),
        (lambda: RandomPrompts("many"), TypeError, "tokens must be"),
        (lambda: RandomPrompts(5, prefixes=0), ValueError, "prefixes must be >= 1"),
        (lambda: Lengths(5, least=9, most=3), ValueError, "most must be >= 9"),
    ],
)
def test_nonsense_is_refused(make, error, says):
    """C8: by name."""
    with pytest.raises(error, match=says):
        make()
