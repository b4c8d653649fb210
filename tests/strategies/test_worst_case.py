"""No call exceeds its worst case."""

import contextlib

import pytest

from sampling import (
    BestOfNStrategy,
    BudgetForcingStrategy,
    Context,
    EscalationStrategy,
    Generation,
    HedgedSamplingStrategy,
    MajorityVotingStrategy,
    MBRStrategy,
    Message,
    MultiTurnStrategy,
    Options,
    Price,
    RateLimited,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Tier,
    Usage,
    checks,
)
from sampling.strategies import Thinking
from sampling.strategies.worst_case import WorstCase, WorstCases

ANSWER_TOKENS = 50
OPTIONS = Options(max_tokens=ANSWER_TOKENS)
QUESTION = "Which rivers are there in Germany, and how long is each?"

STRATEGIES = [
    RejectionSamplingStrategy(loop_budget=3, concurrency_budget=2),
    MultiTurnStrategy(loop_budget=4, concurrency_budget=2),
    RepairTemplateStrategy(loop_budget=3),
    MajorityVotingStrategy(concurrency_budget=5),
    HedgedSamplingStrategy(loop_budget=2, concurrency_budget=3),
    EscalationStrategy([Tier(strategy=RejectionSamplingStrategy()), Tier()], patience=9, loop_budget=3),
    EscalationStrategy([Tier(), Tier(), Tier()], carry="conversation", patience=9, loop_budget=3),
    EscalationStrategy([Tier(strategy=RejectionSamplingStrategy(requirements=["is polite"]))]),
    BudgetForcingStrategy(40, loop_budget=2),
    BudgetForcingStrategy(0, loop_budget=2),
    BudgetForcingStrategy(Thinking(tokens=1024, most_waits=4)),
    BestOfNStrategy("is easy to read", loop_budget=2),
    MBRStrategy(loop_budget=2),
    RejectionSamplingStrategy(requirements=[checks.any_of("is polite", "is short", checks.weighted([("is kind", 1)]))]),
]

HOSTILE = {
    "cuts off without a text": lambda: Generation("", finish_reason="length"),
    "ends without a text": lambda: Generation(""),
    "reports no usage": lambda: Generation("no " * 9),
    "reports too much": lambda: Generation("no", Usage(10**9, 10**9)),
    "ends its thoughts at once": lambda: Generation("</think>", Usage(1, 0)),
    "always agrees": lambda: Generation("yes"),
    "is busy": lambda: RateLimited("slow down"),
    "breaks": lambda: RuntimeError("broken"),
}


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_no_call_takes_more_than_its_worst_case(run, strategy, judged):
    """Row 79: attempts, requests and tokens, with judges, repairs and thinking, when nothing is ever valid."""
    requests: list = []

    async def longest(request) -> Generation:
        requests.append(request)
        text = "no. " * ANSWER_TOKENS
        is_judge = request.messages[0].role == "system" and "requirement" in request.messages[-1].content.lower()
        tokens = 20 if is_judge else request.options.max_tokens
        return Generation(text[: 4 * tokens], Usage(sum(len(one.content) for one in request.messages) // 4, tokens))

    hopeless = Requirement("is something else altogether") if judged else Requirement("is good", lambda text: False)
    worst = WorstCases(strategy, [hopeless], None, OPTIONS).of(QUESTION)

    result = run(strategy.sample, QUESTION, None, longest, [hopeless], options=OPTIONS)

    assert not result.success
    assert len(result.attempts) <= worst.attempts
    assert len(requests) <= worst.requests
    assert result.usage.output_tokens <= worst.output_tokens
    assert result.usage.input_tokens <= worst.input_tokens


@pytest.mark.parametrize("server", HOSTILE)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_no_server_makes_a_call_send_more_requests(run, strategy, server):
    """Row 79: whatever a server answers, attempts and requests stay within the worst case."""
    sent = 0

    async def hostile(request) -> Generation:
        nonlocal sent
        sent += 1
        answer = HOSTILE[server]()
        if isinstance(answer, Exception):
            raise answer
        return answer

    never = Requirement("is good", lambda text: False, judged=True)
    polite = Requirement("is polite")
    worst = WorstCases(strategy, [polite, never], None, OPTIONS).of(QUESTION)
    with contextlib.suppress(RateLimited, RuntimeError):
        result = run(strategy.sample, QUESTION, None, hostile, [polite, never], options=OPTIONS)
        assert len(result.attempts) <= worst.attempts
    assert 0 < sent <= worst.requests


def test_depth_times_breadth_is_exact():
    """Semantics 1: if every attempt is one request, the worst case is exact."""
    cases = WorstCases(RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3), (), None, Options(max_tokens=10))
    worst = cases.of("x" * 39)
    assert (6, 6, 60) == (worst.attempts, worst.requests, worst.output_tokens)
    assert pytest.approx((worst.input_tokens * 1 + 60 * 2) / 1e6) == worst.cost(Price(1, 2))


def test_the_conversation_before_it_counts():
    """Every request has the whole conversation."""
    context = Context([Message("system", "x" * 400)])
    with_it, without = (WorstCases(RejectionSamplingStrategy(), (), one, OPTIONS).of("y") for one in (context, None))
    assert 100 == with_it.input_tokens - without.input_tokens


def test_without_a_limit_an_answer_is_as_long_as_the_longest_known():
    """Budgets learn the longest answer, too."""
    cases = WorstCases(RejectionSamplingStrategy())
    assert (0, 7) == (cases.of("x").output_tokens, cases.of("x", longest_answer=7).output_tokens)


def test_worst_cases_add_up():
    """The sum is the worst case of all questions."""
    assert WorstCase(2, 4, 6, 8) == WorstCase(1, 2, 3, 4) + WorstCase(1, 2, 3, 4)
    assert 14 == WorstCase(2, 4, 6, 8).tokens
