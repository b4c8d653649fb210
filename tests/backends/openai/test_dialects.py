"""Servers with the chat API that word some things in a way of their own."""

import json

import pytest

from sampling import Audio, File, Image, Message, Options, Reasoning, Request, Text, Tool, ToolCall, ToolResult
from sampling._redaction import Redactor
from sampling.backends.openai import OpenAIBackend
from sampling.backends.openai._answer import StreamedAnswer
from sampling.backends.openai._dialects import COMPATIBLE, MISTRAL, OPENAI, dialect_of
from sampling.backends.openai._messages import wire_messages
from sampling.errors import Unsupported

PNG = b"\x89PNG\r\n\x1a\n"
LOOK = Tool("look", "Look it up.", {"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("https://api.openai.com/v1", OPENAI),
        ("https://eu.api.openai.com/v1", OPENAI),
        ("https://api.mistral.ai/v1", MISTRAL),
        ("https://codestral.mistral.ai/v1", MISTRAL),
        ("https://notmistral.ai/v1", COMPATIBLE),
        ("https://api.mistral.ai.example.com/v1", COMPATIBLE),
        ("http://127.0.0.1:8000/v1", COMPATIBLE),
    ],
)
def test_the_address_tells_the_dialect(url, dialect):
    """A server that is not known gets what most servers take."""
    assert dialect == dialect_of(url)


def body(url, *messages, **options):
    """Return the body that a backend with this address sends."""
    backend = OpenAIBackend(url, "k", "m")
    return json.loads(backend._body(Request(messages, Options(**options)), "m"))


class TestMistral:
    """The expected requests are those of mistralai 3.7, whose API refuses all fields that it does not know."""

    URL = "https://api.mistral.ai/v1"

    def test_options(self):
        """The seed has a name of its own, and the usage comes without being asked for."""
        assert {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q"}],
            "random_seed": 7,
            "max_tokens": 9,
            "top_k": 3,
            "stream": True,
        } == body(self.URL, Message("developer", "Be brief."), Message("user", "Q"), seed=7, max_tokens=9, top_k=3)

    def test_sounds_and_files(self):
        """A sound is a text, and a file is a URL that may have the bytes in it."""
        parts = [
            Audio(b"ID3x"),
            Audio("https://x.org/a.mp3"),
            File(b"%PDF-", name="c.pdf"),
            File("https://x.org/d.pdf"),
        ]
        [message] = body(self.URL, Message("user", parts))["messages"]
        assert [
            {"type": "input_audio", "input_audio": "SUQzeA=="},
            {"type": "input_audio", "input_audio": "https://x.org/a.mp3"},
            {"type": "document_url", "document_url": "data:application/pdf;base64,JVBERi0=", "document_name": "c.pdf"},
            {"type": "document_url", "document_url": "https://x.org/d.pdf", "document_name": "d.pdf"},
        ] == message["content"]

    def test_calls_and_results(self):
        """Ids have nine letters, the same for the call and its result. Reasoning of other servers stays here."""
        asked = Message(
            "assistant",
            [Reasoning("hm", "reasoning_content:"), ToolCall("D681PevKs", "look", ""), ToolCall("call_1", "look", "")],
        )
        told = Message("tool", [ToolResult("D681PevKs", "a"), ToolResult("call_1", [Text("b"), Image(PNG)])])
        call, first, second = body(self.URL, asked, told, tools=[LOOK])["messages"]
        assert {"role", "content", "tool_calls"} == call.keys()
        ids = [one["id"] for one in call["tool_calls"]]
        assert "D681PevKs" == ids[0]
        assert ids[1].isalnum()
        assert 9 == len(ids[1])
        assert ids == [first["tool_call_id"], second["tool_call_id"]]
        assert "a" == first["content"]
        assert ["text", "image_url"] == [part["type"] for part in second["content"]]

    async def test_what_it_lacks_is_refused(self):
        """Before anything is sent."""
        for options in ({"min_p": 0.1}, {"logit_bias": {1: 2}}):
            with pytest.raises(Unsupported, match=next(iter(options))):
                await OpenAIBackend(self.URL, "k", "m").generate(Request([Message("user", "Q")], Options(**options)))


def answer_of(*deltas):
    """Return the generation of a stream of deltas."""
    answer = StreamedAnswer(Redactor())
    for delta in deltas:
        answer.add(json.dumps({"choices": [{"index": 0, "delta": delta}]}))
    answer.add('{"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}')
    return answer.generation()


def thinking(text, **fields):
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}], **fields}


class TestThinkingChunks:
    """Mistral has its reasoning in the content, and wants it back there."""

    @pytest.mark.parametrize("dialect", [MISTRAL, COMPATIBLE])
    @pytest.mark.parametrize("fields", [{}, {"closed": True}, {"signature": "c2ln"}, {"signature": "a:b", "x": [1]}])
    def test_they_go_back_as_they_came(self, dialect, fields):
        """With everything beside their text, at Mistral and at gateways to it."""
        chunk = thinking("Hm. 2+2=4.", **fields)
        generation = answer_of({"content": [chunk]}, {"content": [{"type": "text", "text": "4"}]})
        assert ("4", "Hm. 2+2=4.") == (generation.text, generation.reasoning)
        [message] = wire_messages([generation.message], dialect)
        assert {"role": "assistant", "content": [chunk, {"type": "text", "text": "4"}]} == message

    def test_pieces_are_one_chunk(self):
        """Until a signature, which ends a chunk."""
        generation = answer_of(
            {"role": "assistant", "content": [thinking("Hm. ")]},
            {"content": [thinking("2+2", signature=None)]},
            {"content": [thinking("=4.", signature="s1")]},
            {"content": [thinking("Sure.")]},
            {"content": "The answer"},
            {"content": " is 4."},
        )
        [message] = wire_messages([generation.message], MISTRAL)
        expected = [
            thinking("Hm. 2+2=4.", signature="s1"),
            thinking("Sure."),
            {"type": "text", "text": "The answer is 4."},
        ]
        assert expected == message["content"]
        assert "Hm. 2+2=4.Sure." == generation.reasoning

    def test_with_calls(self):
        """A turn with calls and no text has the chunks only."""
        call = {"index": 0, "id": "D681PevKs", "function": {"name": "look", "arguments": "{}"}}
        generation = answer_of({"content": [thinking("Hm.")]}, {"content": "", "tool_calls": [call]})
        [message] = wire_messages([generation.message], MISTRAL)
        assert [thinking("Hm.")] == message["content"]
        assert ["D681PevKs"] == [one["id"] for one in message["tool_calls"]]

    def test_other_providers_do_not_get_them(self):
        """OpenAI would refuse the conversation."""
        generation = answer_of({"content": [thinking("Hm."), {"type": "text", "text": "4"}]})
        assert [{"role": "assistant", "content": "4"}] == wire_messages([generation.message], OPENAI)


@pytest.mark.parametrize("signature", ["reasoning_content:", 'reasoning_details:{"type":"reasoning.text"}'])
def test_openai_gets_no_reasoning_of_other_servers(signature):
    """A conversation may change its server."""
    asked = Message("assistant", [Reasoning("hm", signature), ToolCall("1", "look", "")])
    assert {"role", "content", "tool_calls"} == wire_messages([asked], OPENAI)[0].keys()
    assert {"role", "content", "tool_calls"} < wire_messages([asked], COMPATIBLE)[0].keys()
