"""Hook failures and partial checks are bounded, and hedging learns only from the model."""

import pytest
from structlog.testing import capture_logs

from sampling import Cached, HedgedSamplingStrategy, Hooks, IterationStarted, RejectionSamplingStrategy, checks
from sampling._engine.validation import PartialText
from sampling.hooks import MAX_FAILURES
from sampling.testing import After, ScriptedBackend


async def sample(strategy, backend, reqs=(), **arguments):
    return await strategy.sample("q", None, backend, reqs, **arguments)


def test_only_so_many_failures_of_hooks_are_kept(run):
    """Each holds its traceback, so a hook that always fails would hold more and more memory. All are logged."""
    hooks = Hooks()

    @hooks.on(IterationStarted)
    def fails(event):
        raise RuntimeError("a hook's own")

    strategy = RejectionSamplingStrategy(loop_budget=2 * MAX_FAILURES)
    with capture_logs() as logs:
        result = run(sample, strategy, ScriptedBackend(lambda _: "no"), [lambda text: text == "yes"], hooks=hooks)
    assert 2 * MAX_FAILURES == len(result.attempts)
    assert MAX_FAILURES == len(result.hook_failures)
    assert 2 * MAX_FAILURES == len([line for line in logs if line["event"] == "hook_failed"])


def test_hedging_does_not_learn_from_cache_hits(run):
    """They take no time, so that every real request would look slow and be hedged."""
    backend = Cached(ScriptedBackend(lambda _: After(2.0, "yes")))
    strategy = HedgedSamplingStrategy(concurrency_budget=1)

    async def ask_three_times():
        return [await sample(strategy, backend) for _ in range(3)]

    results = run(ask_three_times)
    assert [False, True, True] == [result.best.from_cache for result in results]
    assert 1 == len(strategy._latencies)


@pytest.mark.parametrize("bound", [{"max_words": 10**6}, {"max_lines": 10**6}, {"max_chars": 10**7}])
def test_a_maximum_is_checked_in_linear_time_while_a_text_grows(bound):
    """Twice the text is about twice the work: the characters that the check looks at are counted."""

    def looked_at(pieces):
        requirement = checks.length(**bound)
        seen = 0
        partial = requirement.partial

        def counted(text):
            nonlocal seen
            seen += len(text)
            return partial(text)

        text = PartialText([type(requirement)(requirement.description, requirement.check, partial=counted)])
        for _ in range(pieces):
            text.add("word ")
        return seen

    assert looked_at(20_000) < 2.2 * looked_at(10_000)
