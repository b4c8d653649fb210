"""A session of mellea uses our strategies. mellea runs on asyncio alone."""

import asyncio  # noqa: TID251 - mellea's own
import json
from contextlib import ExitStack

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from mellea import MelleaSession
from mellea.backends import ModelOption
from mellea.backends.openai import OpenAIBackend
from mellea.backends.tools import MelleaTool
from mellea.core import CBlock, ImageBlock, ModelOutputThunk, ValidationResult
from mellea.core import Requirement as MelleaRequirement
from mellea.core import SamplingResult as MelleaResult
from mellea.stdlib.components import Instruction, Message
from mellea.stdlib.context import ChatContext, SimpleContext
from mellea.stdlib.requirements import req, simple_validate
from mellea.stdlib.sampling import RejectionSamplingStrategy as MelleasOwn
from pydantic import BaseModel

from sampling import (
    Budget,
    BudgetForcingStrategy,
    Diverse,
    EscalationStrategy,
    Hooks,
    IterationFinished,
    LoopFinished,
    MajorityVotingStrategy,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Tier,
)
from sampling.compat.mellea import MelleaStrategy
from sampling.errors import BadRequest, BudgetExceeded, ServerError
from sampling.strategies import Thinking
from sampling.testing import ScriptedBackend
from sampling.testing.servers import OpenAIServer, Reply

BREADTH = 4
NEVER_S = 3600.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Answers:
    """Replies one after the other, and the last one for ever."""

    def __init__(self, *replies):
        self._replies = list(replies)

    def __call__(self, request):
        if not request.path.endswith("/chat/completions"):
            return Reply(status=404)  # mellea asks servers for their version
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return Reply([reply]) if isinstance(reply, str) else reply


@pytest.fixture
def serve():
    """Start servers in a thread of their own: the constructor of mellea's backend blocks its thread."""
    with start_blocking_portal() as portal, ExitStack() as stack:

        def start(*replies):
            return stack.enter_context(portal.wrap_async_context_manager(OpenAIServer(Answers(*replies))))

        yield start


def session(server, ctx=None, **model_options):
    backend = OpenAIBackend("any", base_url=server.url, api_key="none", model_options=model_options)
    return MelleaSession(backend, ctx=ctx or ChatContext())


async def instruct(m, question, strategy, *requirements, **arguments):
    try:
        return await m.ainstruct(
            question,
            requirements=list(requirements),
            strategy=strategy if isinstance(strategy, MelleaStrategy) else MelleaStrategy(strategy),
            return_sampling_results=True,
            **arguments,
        )
    finally:
        await m.backend.aclose()


def says(text):
    return req(f"it says {text}", validation_fn=simple_validate(lambda answer: answer == text))


async def until(is_true):
    """Wait for the server, which runs in another thread."""
    with anyio.fail_after(60):
        while not is_true():  # noqa: ASYNC110
            await anyio.sleep(0.001)


def asked(server):
    """Return the bodies of all requests for an answer."""
    return [request.json() for request in server.requests if request.path.endswith("/chat/completions")]


# The winner is the last to be asked, so that all of its siblings are under way when it answers.
LAST_WINS = (*[Reply(["no"], interval_s=NEVER_S)] * (BREADTH - 1), Reply(["yes"]))


async def race(server, strategy):
    """Sample with a strategy, and return the tasks that it left running."""
    m = session(server, **{ModelOption.STREAM: True})
    before = asyncio.all_tasks()
    result = await m.ainstruct("q", requirements=[says("yes")], strategy=strategy, return_sampling_results=True)
    left = asyncio.all_tasks() - before
    assert (True, "yes") == (result.success, result.value)
    assert BREADTH == len(asked(server))
    return m, left


async def test_the_losers_of_our_strategy_stop(serve):
    """Semantics 2: when one of four answers wins, the other three requests are closed."""
    server = serve(*LAST_WINS)
    m, left = await race(server, MelleaStrategy(RejectionSamplingStrategy(concurrency_budget=BREADTH)))
    assert not left
    await until(lambda: server.disconnects == BREADTH - 1)
    await m.backend.aclose()


async def test_the_losers_of_melleas_own_strategy_do_not(serve):
    """The reason for the adapter: in mellea, three requests go on after the answer."""
    server = serve(*LAST_WINS)
    m, left = await race(server, MelleasOwn(concurrency_budget=BREADTH))
    assert 0 == server.disconnects
    assert BREADTH - 1 <= len(left)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await m.backend.aclose()


async def test_the_session_goes_on_from_the_answer(serve):
    """The result and the context are those of mellea."""
    server = serve("no", "yes")
    m = session(server)
    thunk = await m.ainstruct(
        "q", requirements=[says("yes")], strategy=MelleaStrategy(MultiTurnStrategy(loop_budget=2))
    )
    assert "yes" == thunk.value
    assert "yes" == m.ctx.last_output().value
    assert 4 == len(m.ctx.as_list())
    await m.backend.aclose()


async def test_a_turn_repairs_the_conversation(serve):
    """The model sees its answer and what was wrong with it, in the same chat."""
    server = serve("no", "yes")
    result = await instruct(session(server), "q", MultiTurnStrategy(loop_budget=2), says("yes"))
    first, second = [body["messages"] for body in asked(server)]
    assert first == second[: len(first)]
    assert ["user", "assistant", "user"] == [message["role"] for message in second]
    assert "it says yes" in second[-1]["content"]
    assert [False, True] == [bool(validations[0][1]) for validations in result.sample_validations]
    assert isinstance(result, MelleaResult)


async def test_a_template_repairs_the_question(serve):
    """The conversation before stays, and the question has the reasons."""
    server = serve("no", "yes")
    context = ChatContext().add(CBlock("before")).add(ModelOutputThunk("noted"))
    await instruct(session(server, context), "q", RepairTemplateStrategy(loop_budget=2), says("yes"))
    first, second = [body["messages"] for body in asked(server)]
    assert ["before", "noted"] == [message["content"] for message in second[:2]]
    assert first[-1]["content"] != second[-1]["content"]
    assert 3 == len(second)


async def test_a_context_without_history_stays_without(serve):
    """A SimpleContext shows the model one question at a time."""
    server = serve("no", "yes")
    await instruct(session(server, SimpleContext()), "q", RejectionSamplingStrategy(loop_budget=2), says("yes"))
    assert [1, 1] == [len(body["messages"]) for body in asked(server)]


async def test_a_sentence_is_judged_by_mellea(serve):
    """A requirement without a function is put to the model, and its request counts."""
    server = serve("text", "no", "text", "yes")
    budget = Budget(requests=4)
    strategy = MelleaStrategy(RejectionSamplingStrategy(loop_budget=2), budget=budget)
    result = await instruct(session(server), "q", strategy, "is polite")
    assert result.success
    assert 4 == len(asked(server)) == budget.requests_made
    [(requirement, verdict)] = result.result_validations
    assert ("is polite", True, "yes") == (requirement.description, bool(verdict), verdict.thunk.value)


async def test_a_judge_of_a_loser_stops(serve):
    """The request of a judge is closed with the attempt that it belongs to."""
    server = serve("text", Reply(["yes"], interval_s=NEVER_S))
    m = session(server)
    before = asyncio.all_tasks()
    with anyio.move_on_after(60) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(instruct, m, "q", RejectionSamplingStrategy(), "is polite")
            await until(lambda: len(asked(server)) == 2)
            group.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert not asyncio.all_tasks() - before


async def test_votes_and_usage(serve):
    """Any strategy will do, and every attempt has its usage."""
    server = serve("a", "b", "b")
    hooks = Hooks()
    ended = []
    hooks.on(LoopFinished)(ended.append)
    result = await instruct(session(server), "q", MajorityVotingStrategy(concurrency_budget=3, hooks=hooks))
    assert ("b", 3) == (result.value, len(result.sample_generations))
    assert 33 == ended[0].usage.total_tokens


async def test_samples_differ_although_the_backend_has_a_seed(serve):
    """Semantics 13: each iteration has a seed of its own."""
    server = serve("no")
    strategy = RejectionSamplingStrategy(concurrency_budget=3)
    await instruct(session(server, **{ModelOption.SEED: 7}), "q", strategy, says("yes"))
    assert [7, 8, 9] == sorted(body["seed"] for body in asked(server))


async def test_a_strategy_varies_the_options(serve):
    """A variation decides, and the options of the caller are the default."""
    server = serve("no")
    strategy = RejectionSamplingStrategy(concurrency_budget=2, variation=Diverse(temperatures=(0.1, 0.9)))
    options = {ModelOption.MAX_NEW_TOKENS: 9, ModelOption.TEMPERATURE: 0.5, "top_p": 0.4}
    await instruct(session(server), "q", strategy, says("yes"), model_options=options)
    assert [0.1, 0.9] == sorted(body["temperature"] for body in asked(server))
    assert all(9 in body.values() and 0.4 == body["top_p"] for body in asked(server))


async def test_a_model_can_not_be_varied(serve):
    """A backend of mellea has one model, and says so."""
    strategy = RejectionSamplingStrategy(variation=Diverse(models=("a", "b")))
    with pytest.raises(BadRequest, match="has one model"):
        await instruct(session(serve("yes")), "q", strategy)


class Flight(BaseModel):
    """A typed answer."""

    to: str


async def test_a_typed_answer(serve):
    """`format` goes to mellea, which constrains the answer."""
    server = serve(json.dumps({"to": "Rome"}))
    result = await instruct(session(server), "q", RejectionSamplingStrategy(), format=Flight)
    assert "Rome" == json.loads(result.value)["to"]
    assert "json_schema" == asked(server)[0]["response_format"]["type"]


async def test_an_answer_that_was_cut_off_is_invalid(serve):
    """Semantics 12: mellea would take it."""
    server = serve(Reply(["ye"], finish_reason="length"), "yes")
    result = await instruct(session(server), "q", RejectionSamplingStrategy(loop_budget=2))
    assert ("yes", 2) == (result.value, len(result.sample_generations))
    assert not result.sample_validations[0][0][1]


async def test_requirements_of_ours_come_first(serve):
    """The requirements of the strategy are checked with those of the call, unlike in mellea."""
    server = serve("no", "yes")
    ours = Requirement("is yes", check=lambda text: text == "yes")
    strategy = RejectionSamplingStrategy(loop_budget=2, requirements=[ours])
    result = await instruct(session(server), "q", strategy, says("yes"))
    assert ["is yes", "it says yes"] == [requirement.description for requirement, _ in result.result_validations]


async def test_a_check_that_raises_is_a_failed_check(serve):
    """mellea would end the call."""

    def broken(_context):
        raise ValueError("broken")

    result = await instruct(session(serve("yes")), "q", RejectionSamplingStrategy(), req("works", validation_fn=broken))
    [(_, verdict)] = result.result_validations
    assert not result.success
    assert isinstance(verdict.error, ValueError)


async def test_a_tier_with_a_backend_of_ours(serve):
    """An escalation may end at another backend, which gets the conversation."""
    strong = ScriptedBackend(lambda _request: "strong")
    context = ChatContext().add(CBlock("before")).add(ModelOutputThunk("noted"))
    m = session(serve("weak"), context)
    strategy = EscalationStrategy([Tier(), Tier(strong)])
    result = await instruct(m, "q", strategy, says("strong"))
    assert (True, "strong") == (result.success, result.value)
    texts = [message.text for message in strong.requests[0].messages]
    assert ["before", "noted"] == texts[:2]
    assert texts[2].startswith("q")
    assert "strong" == result.result_ctx.last_output().value


async def test_errors_are_ours_and_known(serve):
    """Errors of the server have our types, so that strategies know what they end."""
    finished = []
    hooks = Hooks()
    hooks.on(IterationFinished)(finished.append)
    server = serve(Reply(status=503, error={"error": {"message": "busy"}}))
    m = session(server)
    m.backend._client.max_retries = 0
    with pytest.raises(ServerError):
        await instruct(m, "q", RejectionSamplingStrategy(loop_budget=2, hooks=hooks))
    assert 2 == len(finished)


async def test_a_spent_budget_without_an_answer(serve):
    """A spent budget without an answer raises `BudgetExceeded`."""
    strategy = MelleaStrategy(RejectionSamplingStrategy(), budget=Budget(attempts=0))
    with pytest.raises(BudgetExceeded):
        await instruct(session(serve("yes")), "q", strategy)


@pytest.mark.parametrize("wrong", [None, "rejection", MelleasOwn()])
def test_only_strategies_of_ours(wrong):
    """The error says what is expected."""
    with pytest.raises(TypeError, match="a strategy of sampling"):
        MelleaStrategy(wrong)


def test_what_the_session_reads():
    """Budgets are those of the strategy."""
    strategy = MelleaStrategy(RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3))
    assert (2, 3) == (strategy.loop_budget, strategy.concurrency_budget)
    assert "RejectionSamplingStrategy" in repr(strategy)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def images_of(body):
    """Return how many images each message of a request has."""
    contents = [message["content"] for message in body["messages"]]
    return [sum(part["type"] == "image_url" for part in one) if isinstance(one, list) else 0 for one in contents]


@pytest.mark.parametrize("context", [ChatContext(), SimpleContext()])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (RepairTemplateStrategy(loop_budget=2), [[1], [1]]),
        (MultiTurnStrategy(loop_budget=2), [[1], [1, 0, 0]]),
        (RejectionSamplingStrategy(variation=Diverse(prompts=("Be terse.",))), [[0, 1]]),
    ],
)
async def test_a_question_keeps_its_images(serve, context, strategy, expected):
    """A repair or a system message does not take the image out of the question."""
    server = serve("no", "yes")
    await instruct(session(server, context), "q", strategy, says("yes"), images=[ImageBlock(PIXEL)])
    assert expected == [images_of(body) for body in asked(server)]


async def test_a_repair_keeps_the_tools_of_the_action(serve):
    """The repaired question offers the tools of the first one."""

    class Looking(Message):
        def format_for_llm(self):
            representation = super().format_for_llm()
            representation.tools = {"look": MelleaTool.from_callable(look)}
            return representation

    def look(place: str) -> str:
        """Look at a place."""
        return place

    server = serve("no", "yes")
    m = session(server)
    strategy = MelleaStrategy(RepairTemplateStrategy(loop_budget=2))
    await m.aact(Looking("user", "q"), requirements=[says("yes")], strategy=strategy, tool_calls=True)
    await m.backend.aclose()
    assert [["look"]] * 2 == [[tool["function"]["name"] for tool in body["tools"]] for body in asked(server)]


async def test_turns_are_shown_although_the_context_has_no_history(serve):
    """A SimpleContext would show a model the reasons alone, without the question. The session keeps its context."""
    server = serve("no", "yes")
    m = session(server, SimpleContext())
    await instruct(m, "q", MultiTurnStrategy(loop_budget=2), says("yes"))
    assert [["user"], ["user", "assistant", "user"]] == [
        [message["role"] for message in body["messages"]] for body in asked(server)
    ]
    assert (SimpleContext, "yes") == (type(m.ctx), m.ctx.last_output().value)


async def test_a_bool_is_a_verdict(serve):
    """A validation function may return what mellea takes the `bool()` of."""
    is_yes = req("is yes", validation_fn=lambda context: context.last_output().value == "yes")
    result = await instruct(session(serve("no", "yes")), "q", RejectionSamplingStrategy(loop_budget=2), is_yes)
    assert (True, "yes") == (result.success, result.value)
    assert [False, True] == [bool(validations[0][1]) for validations in result.sample_validations]


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "high"])
async def test_an_odd_score_decides_nothing(serve, score):
    """The verdict counts, and the score stays in mellea's result."""
    scored = req("is scored", validation_fn=lambda _: ValidationResult(True, reason=CBlock("fine"), score=score))
    result = await instruct(session(serve("yes")), "q", RejectionSamplingStrategy(), scored)
    assert result.success
    assert score is result.result_validations[0][1].score


async def test_a_blank_description_is_none(serve):
    """The class names a requirement that says nothing about itself."""
    blank = req("  ", validation_fn=simple_validate(lambda _: False))
    result = await instruct(session(serve("no")), "q", RejectionSamplingStrategy(), blank)
    assert [(blank, False)] == [(requirement, bool(verdict)) for requirement, verdict in result.result_validations]


async def test_a_requirement_is_checked_once(serve):
    """mellea ignores a requirement that is in the list twice."""
    answers = []
    counted = req("counts", validation_fn=simple_validate(lambda answer: not answers.append(answer)))
    await instruct(session(serve("yes")), "q", RejectionSamplingStrategy(), counted, counted)
    assert ["yes"] == answers


@pytest.mark.parametrize("grounded", [False, True])
async def test_what_is_not_computed_yet_is_awaited(serve, grounded):
    """A session may go on while an earlier answer is still being generated."""
    server = serve("first", "yes")
    m = session(server)
    first = await m.aact(CBlock("before"), strategy=None, await_result=False)
    question = Instruction("q", grounding_context={"document": first} if grounded else None)
    thunk = await m.aact(question, requirements=[says("yes")], strategy=MelleaStrategy(RejectionSamplingStrategy()))
    await m.backend.aclose()
    assert "yes" == thunk.value
    assert ["before", "first"] == [message["content"] for message in asked(server)[-1]["messages"][:2]]


class AsksTwice(MelleaRequirement):
    """A requirement that makes two requests."""

    async def validate(self, backend, ctx, *, format=None, model_options=None):  # noqa: A002 - mellea's name
        for question in ("one", "two"):
            thunk, _ = await backend.generate_from_context(CBlock(question), ctx, model_options=model_options)
            await thunk.avalue()
        return ValidationResult(True, thunk=thunk)


async def test_every_request_of_a_judge_has_its_usage(serve):
    """The usage of a judge is that of all its requests."""
    ended = []
    hooks = Hooks()
    hooks.on(LoopFinished)(ended.append)
    server = serve("yes")
    await instruct(session(server), "q", RejectionSamplingStrategy(hooks=hooks), AsksTwice("asks twice"))
    assert 3 == len(asked(server))
    assert 3 * 11 == ended[0].usage.total_tokens
    assert 3 == ended[0].result.attempts[0].requests


async def test_a_budget_limits_every_request_of_a_judge(serve):
    """I10: the second request of the judge is not sent."""
    server = serve("yes")
    strategy = MelleaStrategy(RejectionSamplingStrategy(), budget=Budget(requests=2))
    result = await instruct(session(server), "q", strategy, AsksTwice("asks twice"))
    assert not result.success
    assert 2 == len(asked(server)) == strategy.budget.requests_made


async def test_options_by_the_names_of_the_server(serve):
    """Semantics 13: `seed` and `max_tokens` are options too, and each iteration has a seed of its own."""
    server = serve("no")
    strategy = RejectionSamplingStrategy(concurrency_budget=3)
    await instruct(session(server), "q", strategy, says("yes"), model_options={"seed": 7, "max_tokens": 9})
    assert [(7, 9), (8, 9), (9, 9)] == sorted((body["seed"], body["max_completion_tokens"]) for body in asked(server))


async def test_thoughts_have_a_stop_word_and_no_format(serve):
    """The stop words and the format of the caller are for the answer that follows."""
    server = serve("thought", json.dumps({"to": "Rome"}))
    strategy = BudgetForcingStrategy(Thinking(tokens=1))
    options = {ModelOption.STOP_SEQUENCES: ["END"]}
    await instruct(session(server), "q", strategy, format=Flight, model_options=options)
    *thoughts, answer = asked(server)
    assert [(["</think>"], False)] * len(thoughts) == [(body["stop"], "response_format" in body) for body in thoughts]
    assert (["END"], True) == (answer["stop"], "response_format" in answer)
