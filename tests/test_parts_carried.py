"""All that keeps, compares or sends messages carries their parts: images, sounds, files, calls, results, thoughts."""

import json

import attrs
import pytest

from sampling import (
    Action,
    Audio,
    Context,
    File,
    Generation,
    Image,
    Message,
    MultiTurnStrategy,
    Options,
    Reasoning,
    RejectionSamplingStrategy,
    Request,
    SamplingResult,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    fan_out,
)
from sampling.backends.layers import Cached, Recorded, Replayed
from sampling.errors import CassetteMiss, JournalMismatch
from sampling.testing import ScriptedBackend
from tests.fanout.batch.batch_kit import PROVIDERS, batched, server_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
LARGE = b"\x89PNG\r\n\x1a\n" + b"large" * 40_000
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "
PDF = b"%PDF-1.7 of two pages"
LOOK = Tool("look", "Look it up.", {"type": "object", "properties": {"at": {"type": "string"}}})
CALL = ToolCall("toolu_1", "look", '{"at": "§"}')
SIGNED = Reasoning("Let me look.", "EqQBCkg==")
URL = "https://example.com/cat.png?sig=1"


def conversation(tmp_path, **changes) -> tuple[Message, ...]:
    """Return a conversation with a part of every kind."""
    path = tmp_path / "dog.png"
    path.write_bytes(changes.get("path", LARGE))
    image = changes.get("image", PNG)
    asked = [Text("What?"), Image(image), Image(path), Image(changes.get("url", URL))]
    asked += [Audio(changes.get("audio", WAV)), File(changes.get("file", PDF), name=changes.get("name", "a.pdf"))]
    call = attrs.evolve(CALL, **changes.get("call", {}))
    content = ["found", Image(changes.get("result", PNG))]
    result = ToolResult(call.id, content, is_error=changes.get("is_error", True))
    thought = attrs.evolve(SIGNED, signature=changes.get("signature", SIGNED.signature))
    return Message("user", asked), Message("assistant", [thought, Text("Hm."), call]), Message("tool", [result])


CHANGES = [
    {"image": PNG + b"!"},
    {"path": LARGE + b"!"},
    {"url": f"{URL}2"},
    {"audio": WAV + b"!"},
    {"file": PDF + b"!"},
    {"name": "b.pdf"},
    {"call": {"id": "toolu_2"}},
    {"call": {"arguments": "{}"}},
    {"call": {"name": "see"}},
    {"result": PNG + b"!"},
    {"is_error": False},
    {"signature": "EqQBCkh=="},
]
CHANGE_IDS = ["-".join(str(name) for name in change) + str(number) for number, change in enumerate(CHANGES)]


def answer(tmp_path) -> Generation:
    """Return an answer with all that one may have."""
    return Generation(
        "A cat.",
        Usage(7, 5, 0.5, 3, 2),
        "tool_calls",
        "model",
        reasoning="Let me look.",
        tool_calls=[CALL],
        thoughts=[SIGNED, Reasoning("", "redacted_thinking:Emw=")],
        logprobs=[{"token": "A", "logprob": -0.5}],
        turns=conversation(tmp_path)[1:],
        raw={"id": "msg_1"},
    )


def request(messages) -> Request:
    return Request(tuple(messages), Options(tools=[LOOK], temperature=0.5))


def test_a_cassette_carries_them(run, tmp_path):
    """A cassette finds requests with parts again. Large media are stored by digest only."""
    asked, given = request(conversation(tmp_path)), answer(tmp_path)
    run(Recorded(ScriptedBackend([given]), tmp_path / "cassette").generate, asked)
    assert given == run(Replayed(tmp_path / "cassette").generate, asked)
    text = (tmp_path / "cassette").read_text()
    assert Image(LARGE).digest in text
    assert Image(LARGE).base64() not in text
    assert "sig=1" not in text


@pytest.mark.parametrize("change", CHANGES, ids=CHANGE_IDS)
def test_a_cassette_tells_them_apart(run, tmp_path, change):
    """A change of any part is a miss."""
    backend = Recorded(ScriptedBackend(["yes"]), tmp_path / "cassette")
    run(backend.generate, request(conversation(tmp_path)))
    with pytest.raises(CassetteMiss):
        run(Replayed(tmp_path / "cassette").generate, request(conversation(tmp_path, **change)))


@pytest.mark.parametrize("place", ["memory", "file"])
def test_a_cache_carries_them(run, tmp_path, place):
    """The same question has the same answer, at no cost."""
    given, store = answer(tmp_path), {} if place == "memory" else {"store": tmp_path / "cache"}
    backend = Cached(ScriptedBackend([given]), **store)

    async def twice():
        asked = request(conversation(tmp_path))
        return [await backend.generate(asked), await backend.generate(asked)]

    first, again = run(twice)
    assert first == given
    assert attrs.evolve(again, usage=given.usage) == given


@pytest.mark.parametrize("change", CHANGES, ids=CHANGE_IDS)
def test_a_cache_tells_them_apart(run, tmp_path, change):
    """A change of any part is another question."""
    backend = Cached(ScriptedBackend(["one", "two"]))

    async def both():
        first = await backend.generate(request(conversation(tmp_path)))
        return first.text, (await backend.generate(request(conversation(tmp_path, **change)))).text

    assert ("one", "two") == run(both)


def questions(tmp_path, **change) -> list[Action]:
    return [Action(list(conversation(tmp_path, **change)[0].content))]


def test_a_journal_carries_them(run, tmp_path):
    """A second run asks nothing, and has the same contexts, answers and questions."""
    strategy, context = MultiTurnStrategy(loop_budget=2), Context(conversation(tmp_path))
    arguments = {"options": Options(tools=[LOOK]), "journal": tmp_path / "run.db"}

    async def once(backend):
        return await fan_out(strategy, questions(tmp_path), context, backend, [lambda text: text == "yes"], **arguments)

    first = run(once, ScriptedBackend([answer(tmp_path), "yes"])).outcomes[0].result
    again = run(once, ScriptedBackend([])).outcomes[0].result
    assert first.success
    assert [one.generation for one in first.attempts] == [one.generation for one in again.attempts]
    for before, after in zip(first.attempts, again.attempts, strict=True):
        assert before.context.messages == after.context.messages
        assert before.action.content == after.action.content


@pytest.mark.parametrize("change", CHANGES[:6], ids=CHANGE_IDS[:6])
def test_a_journal_notices_another_question(run, tmp_path, change):
    """F16: with any other part it is another item."""
    strategy = RejectionSamplingStrategy()
    run(fan_out, strategy, questions(tmp_path), None, ScriptedBackend(["yes"]), journal=tmp_path / "run.db")
    with pytest.raises(JournalMismatch):
        run(fan_out, strategy, questions(tmp_path, **change), None, ScriptedBackend([]), journal=tmp_path / "run.db")


@pytest.mark.parametrize("change", CHANGES, ids=CHANGE_IDS)
def test_a_journal_notices_another_context(run, tmp_path, change):
    """F16: with any other part it is another run."""
    strategy, journal = RejectionSamplingStrategy(), tmp_path / "run.db"
    contexts = [Context(conversation(tmp_path)), Context(conversation(tmp_path, **change))]
    run(fan_out, strategy, ["hi"], contexts[0], ScriptedBackend(["yes"]), journal=journal)
    with pytest.raises(JournalMismatch, match="context"):
        run(fan_out, strategy, ["hi"], contexts[1], ScriptedBackend([]), journal=journal)


def test_large_bytes_of_a_question_are_in_a_journal_at_most_once(run, tmp_path):
    """Every attempt sends them, and none keeps a copy."""
    strategy, journal = MultiTurnStrategy(loop_budget=8), tmp_path / "run.db"
    noise = b"\x89PNG\r\n\x1a\n" + bytes(index * index % 251 for index in range(200_000))
    backend = ScriptedBackend(["no"] * 8)
    run(fan_out, strategy, questions(tmp_path, path=noise), None, backend, [lambda _: False], journal=journal)
    assert len(backend.requests) == 8
    assert journal.stat().st_size < 3 * len(noise)


def test_a_result_carries_them_as_json(run, tmp_path):
    """`from_dict` gives back what `to_json` wrote."""
    context = Context(conversation(tmp_path))
    backend = ScriptedBackend([answer(tmp_path)])
    options = Options(tools=[LOOK])
    strategy = RejectionSamplingStrategy()
    result = run(strategy.sample, questions(tmp_path)[0], context, backend, options=options)
    again = SamplingResult.from_dict(json.loads(result.to_json()))
    assert result.best.generation == again.best.generation
    assert result.best.context.messages == again.best.context.messages
    assert result.best.action.content == again.best.action.content


def test_ray_carries_them(run, tmp_path):
    """Both ways: in the item and the context, and in the result."""
    wire = pytest.importorskip("sampling.fanout.ray._wire")
    context, action = Context(conversation(tmp_path)), questions(tmp_path)[0]
    sent = wire.unpack(wire.pack((context, action, answer(tmp_path))))
    assert (context.messages, action.content, answer(tmp_path)) == (sent[0].messages, sent[1].content, sent[2])
    assert [part.digest for part in sent[1].content[1:]] == [part.digest for part in action.content[1:]]


PARTS = [Image(PNG), Image(URL), Audio(WAV), File(PDF), CALL, ToolResult("1", "found"), SIGNED]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_an_estimate_of_tokens_counts_them(part):
    """A budget reserves something for every part."""
    role = {ToolCall: "assistant", Reasoning: "assistant", ToolResult: "tool"}.get(type(part), "user")
    assert Message(role, [part]).chars > 0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_batch_carries_them(run, tmp_path, provider):
    """They are in the lines of a batch, a repair sends them again, and a journal has them."""
    path = tmp_path / "dog.png"
    path.write_bytes(LARGE)
    images = [Image(PNG), Image(path), Image(URL)]
    journal = tmp_path / "run.db"

    async def ask(answer):
        server = server_of(lambda asked: answer(len(asked.body["messages"])))
        async with PROVIDERS[provider](server) as backend:
            strategy, actions = MultiTurnStrategy(loop_budget=2), [Action([Text("What?"), *images])]
            result = await batched(backend, actions, strategy=strategy, journal=journal)
        return result.outcomes[0].result, [json.dumps(one.body) for batch in server.batches for one in batch.requests]

    first, sent = run(ask, lambda messages: "yes" if messages > 1 else "no")
    again, more = run(ask, lambda messages: "no")
    assert first.success
    assert len(sent) == 2
    assert all(what in body for body in sent for what in (images[0].base64(), images[1].base64(), URL))
    assert more == []
    assert [one.context.messages for one in again.attempts] == [one.context.messages for one in first.attempts]
