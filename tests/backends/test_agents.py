"""A race of agents: tools over a real server, one winner, and books that agree with those of the server."""

from collections import Counter, defaultdict

import anyio
import pytest

from sampling import (
    Budget,
    Hooks,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    Retrying,
    TextGrown,
    ToolCall,
    ToolLoop,
    Usage,
)
from sampling.backends.openai import OpenAIBackend
from sampling.testing.servers import HostileServer, OpenAIServer, Reply, Step

pytestmark = pytest.mark.anyio

AGENTS = 24
WINNER = 17
"""The seed of the agent that wins. Agents are told apart by their seeds, which are 0 to 23."""


class Ledger:
    """The server's record of requests and of what they cost."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.charged: defaultdict[int, Usage] = defaultdict(Usage)
        self.streaming: set[int] = set()

    def reply(self, request) -> Reply:
        body = request.json()
        seed, messages = body["seed"], body["messages"]
        self.requests[seed] += 1
        check_conversation(messages)
        results = sum(message["role"] == "tool" for message in messages)
        if results == 0:
            calls = [ToolCall(f"a{seed}", "count_lines", ""), ToolCall(f"b{seed}", "ask_port", f'{{"seed": {seed}}}')]
            return self.charge(seed, Reply(["Let me", " see."], tool_calls=calls, usage=usage(100 + seed, 20)))
        if results == 2 and seed == WINNER:
            call = ToolCall(f"c{seed}", "wait_for_others", "{}")
            return self.charge(seed, Reply([], tool_calls=[call], usage=usage(200, 5)))
        if seed == WINNER:
            return self.charge(seed, Reply(["42", " lines"], usage=usage(300, 2)))
        self.streaming.add(seed)
        return Reply(["well "], endless=True, interval_s=0.001)

    def charge(self, seed: int, reply: Reply) -> Reply:
        self.charged[seed] += Usage(reply.usage["prompt_tokens"], reply.usage["completion_tokens"])
        return reply


class Readers:
    """The agents that have received a part of an endless answer, and an event that is set when all have."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.subsamples: set[int] = set()
        self.all_read = anyio.Event()
        self.hooks = Hooks()
        self.hooks.on(TextGrown)(self.note)

    def note(self, event: TextGrown) -> None:
        if "well" in event.text:
            self.subsamples.add(event.subsample)
        if len(self.subsamples) == self.expected:
            self.all_read.set()


def usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written}


def check_conversation(messages) -> None:
    """Raise if a provider would refuse it: every call has its result, right after it."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls, messages
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    assert not open_calls, messages


async def test_the_winner_is_whole_and_the_losers_are_gone_and_all_is_accounted(anyio_backend, tmp_path):
    """
    Two thirds of the losers are in the middle of a tool, and the others in the middle of an answer.

    Every connection of a loser closes, those of its tools too, and every request and token is in both books.
    """
    lines = tmp_path / "lines"
    lines.write_text("rain\n" * 42)
    ledger = Ledger()
    hung = AGENTS - len(range(0, AGENTS, 3)) - 1
    streaming = len(range(0, AGENTS, 3))

    def count_lines() -> int:
        """Count the lines of the file."""
        return len(lines.read_text().splitlines())

    readers = Readers(streaming)

    async with OpenAIServer(ledger.reply) as server, HostileServer([Step.HANG]) as port:

        async def ask_port(seed: int) -> str:
            """Ask the port, which answers some."""
            if seed != WINNER and seed % 3:
                async with await anyio.connect_tcp("127.0.0.1", port.port) as stream:
                    await stream.send(b"GET / HTTP/1.1\r\n\r\n")
                    await stream.receive()
            return "nothing"

        async def wait_for_others() -> str:
            """Wait until every other agent is where it stays."""
            await port.until(lambda: len(port.requests) == hung)
            # Not only sent by the server but received: what nobody read is not in the estimate.
            await readers.all_read.wait()
            return "ready"

        budget = Budget(requests=1_000)
        has_42 = Requirement("has the number", lambda text, view: "42" in text and len(view.generation.turns) == 4)
        async with OpenAIBackend(server.url, model="any", max_connections=AGENTS) as backend:
            agent = ToolLoop(Retrying(backend), [count_lines, ask_port, wait_for_others])
            strategy = RejectionSamplingStrategy(concurrency_budget=AGENTS)
            with anyio.fail_after(60):
                result = await strategy.sample(
                    "How many?", None, agent, [has_42], options=Options(seed=0), budget=budget, hooks=readers.hooks
                )
                # While the backend is still open: a loser's connection closes by itself.
                await server.until(lambda: server.disconnects == streaming)
                await port.until(lambda: port.open == 0)
        with anyio.fail_after(60):
            await server.until(lambda: server.open == 0)

    check_transcript(result.best)
    by_seed = {one.subsample: one for one in result.attempts}
    assert {"valid": 1, "cancelled": AGENTS - 1} == Counter(one.outcome for one in result.attempts)
    # Every request is counted, by agent and in total.
    assert dict(ledger.requests) == {seed: one.requests for seed, one in by_seed.items()}
    assert len(server.requests) == budget.requests_made == sum(one.requests for one in result.attempts)
    # Every token that the server charged is there. What a broken answer cost is estimated, and no less.
    for seed, one in by_seed.items():
        if seed in ledger.streaming:
            assert one.usage.input_tokens > ledger.charged[seed].input_tokens
            assert one.usage.output_tokens > ledger.charged[seed].output_tokens
        else:
            assert ledger.charged[seed] == one.usage
    assert result.usage == budget.spent == Usage.total(one.usage for one in result.attempts)


def check_transcript(best) -> None:
    assert WINNER == best.subsample
    assert "42 lines" == best.value
    assert ["user", "assistant", "tool", "assistant", "tool", "assistant"] == [
        message.role for message in best.context.messages
    ]
    _, asked, answered, asked_again, answered_again, _ = best.context.messages
    assert "Let me see." == asked.text
    assert [("a17", "42"), ("b17", "nothing")] == [(part.id, part.content) for part in answered.content]
    assert ["a17", "b17"] == [part.id for part in asked.content[1:]]
    assert ("c17", "ready") == (asked_again.content[0].id, answered_again.content[0].content)


async def test_a_repair_of_an_agent_is_a_conversation_that_providers_accept(anyio_backend):
    """The second attempt has the calls and results of the first, and the reason."""

    def reply(request) -> Reply:
        messages = request.json()["messages"]
        check_conversation(messages)
        if messages[-1]["role"] == "tool":
            return Reply(["rain" if len(messages) > 4 else "snow"])
        return Reply([], tool_calls=[ToolCall(f"call_{len(messages)}", "look", "")])

    async def look() -> str:
        """Look outside."""
        return "wet"

    async with OpenAIServer(reply) as server, OpenAIBackend(server.url, model="any") as backend:
        result = await MultiTurnStrategy(loop_budget=2).sample(
            "How is it?", None, ToolLoop(backend, [look]), [lambda text: (text == "rain", "it is not snow")]
        )
    assert ("rain", 4, 8) == (result.value, len(server.requests), len(result.best.context.messages))
