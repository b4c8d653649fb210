"""Messages as the contents of the Gemini API."""

import pytest

from sampling import Audio, Image, Message, Text, ToolCall, ToolResult
from sampling.backends.gemini._contents import is_newer_than_2, wire_contents
from sampling.backends.gemini._signatures import SKIP_VALIDATION, SignedPlace, signed_reasoning, split_signature
from sampling.errors import BadRequest, Unsupported
from sampling.parts import Reasoning

PNG = b"\x89PNG\r\n\x1a\n0000"
OLD, NEW = "gemini-2.5-flash", "gemini-3-pro-preview"


def contents(*messages, model=OLD):
    return wire_contents(messages, model)["contents"]


def parts(*given, model=OLD):
    """Return the parts of an answer."""
    return contents(Message("assistant", list(given)), model=model)[0]["parts"]


def test_all_system_messages_are_the_system_instruction():
    """The API has one, for the whole conversation."""
    wire = wire_contents(
        [Message("system", "Be brief."), Message("user", "hi"), Message("developer", [Text("Be kind.")])], OLD
    )
    assert {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]} == wire["systemInstruction"]
    assert [{"role": "user", "parts": [{"text": "hi"}]}] == wire["contents"]


def test_a_conversation_without_system_messages_has_no_system_instruction():
    """An empty one would be refused."""
    assert ["contents"] == list(wire_contents([Message("user", "hi")], OLD))


def test_an_image_in_the_system_instruction_is_unsupported():
    """It takes text only, and nothing is sent."""
    with pytest.raises(Unsupported, match="Image in the system instruction"):
        contents(Message("system", [Image(PNG)]))


def test_a_url_without_a_known_type_has_none():
    """The server finds it out."""
    (part,) = contents(Message("user", [Audio("https://example.com/sound")]))[0]["parts"]
    assert {"fileData": {"fileUri": "https://example.com/sound"}} == part


class TestToolResults:
    CALLS = Message("assistant", [ToolCall("a", "f", "{}"), ToolCall("b", "f", '{"x": 1}')])

    def test_results_of_one_turn_are_one_content_in_the_order_of_the_calls(self):
        """Without ids, only the order tells which call of a tool a result is for."""
        wire = contents(
            self.CALLS, Message("tool", [ToolResult("b", "two"), ToolResult("a", "one")]), Message("user", "go on")
        )
        assert ["model", "user", "user"] == [content["role"] for content in wire]
        responses = [part["functionResponse"] for part in wire[1]["parts"]]
        assert ["one", "two"] == [response["response"]["output"] for response in responses]
        assert [{"text": "go on"}] == wire[2]["parts"]

    def test_results_in_messages_of_their_own_are_one_content_too(self):
        """The API refuses a turn that has fewer responses than calls."""
        wire = contents(
            self.CALLS, Message("tool", [ToolResult("a", "one")]), Message("tool", [ToolResult("b", "two")])
        )
        assert [2, 2] == [len(content["parts"]) for content in wire]

    def test_made_up_ids_are_not_sent(self):
        """They are ours: the API gave none."""
        wire = contents(
            Message("assistant", [ToolCall("gemini_r_0", "f", "{}")]), Message("tool", [ToolResult("gemini_r_0", "x")])
        )
        assert {"name": "f", "args": {}} == wire[0]["parts"][0]["functionCall"]
        assert {"name": "f", "response": {"output": "x"}} == wire[1]["parts"][0]["functionResponse"]

    def test_a_result_may_have_an_image(self):
        """It is a part of the response, beside its text."""
        result = ToolResult("a", [Text("see"), Image(PNG)])
        response = contents(self.CALLS, Message("tool", [result]))[1]["parts"][0]["functionResponse"]
        assert {"output": "see"} == response["response"]
        assert "image/png" == response["parts"][0]["inlineData"]["mimeType"]

    def test_a_result_without_its_call_is_a_bad_request(self):
        """The API needs the name of the tool, which only the call has."""
        with pytest.raises(BadRequest, match="'z'"):
            contents(self.CALLS, Message("tool", [ToolResult("z", "x")]))

    def test_arguments_that_are_no_json_do_not_end_the_conversation(self):
        """Invalid arguments of another model are sent as an object."""
        (part,) = parts(ToolCall("a", "f", '{"x": '))
        assert {"invalid_json": '{"x": '} == part["functionCall"]["args"]


class TestSignatures:
    def test_a_signature_goes_back_on_the_first_call(self):
        """That is where Gemini 3 puts it."""
        first, second = parts(Reasoning("", "call 0:c2ln"), ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))
        assert "c2ln" == first["thoughtSignature"]
        assert "thoughtSignature" not in second

    def test_without_a_call_it_goes_back_on_an_empty_text_at_the_end(self):
        """That is how Gemini 3 streams it."""
        assert [{"text": "Hello."}, {"text": "", "thoughtSignature": "c2ln"}] == parts(
            Reasoning("", "text 6-6:c2ln"), Text("Hello.")
        )

    def test_a_signed_thought_is_a_thought(self):
        """A signed thought keeps its text and its signature."""
        assert [{"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"}, {"text": "Hello."}] == parts(
            Reasoning("Hm.", "thought:c2ln"), Text("Hello.")
        )

    @pytest.mark.parametrize(
        "place",
        [SignedPlace(0), SignedPlace(2), SignedPlace(None, 0, 5), SignedPlace(None, 3, 9), SignedPlace(None, 9, 9)],
    )
    def test_every_place_is_remembered(self, place):
        """The signature itself is as it came, whatever is around it."""
        kept = signed_reasoning("c2ln+/=", place).signature
        assert (place, "c2ln+/=") == split_signature(kept)

    def test_a_text_with_several_signatures_is_split_where_it_was(self):
        """Parts that are signed must not be merged with others."""
        signed = [
            signed_reasoning(name, SignedPlace(None, start, end)) for name, start, end in (("b", 6, 9), ("a", 0, 2))
        ]
        assert [
            {"text": "ab", "thoughtSignature": "a"},
            {"text": "cdef"},
            {"text": "ghi", "thoughtSignature": "b"},
        ] == parts(*signed, Text("abcdefghi"))

    def test_a_text_that_became_shorter_keeps_its_signatures(self):
        """An application may have cut it."""
        signed = signed_reasoning("a", SignedPlace(None, 4, 9))
        assert [{"text": "abc"}, {"text": "", "thoughtSignature": "a"}] == parts(signed, Text("abc"))

    @pytest.mark.parametrize("signature", ["c2ln", "redacted_thinking:c2ln", "encrypted_content:c2ln"])
    def test_what_another_provider_signed_is_not_sent(self, signature):
        """The API refuses signatures that are not its own."""
        assert [{"text": "Hello."}] == parts(Reasoning("Hm.", signature), Reasoning("", signature), Text("Hello."))

    def test_calls_of_another_model_are_marked_for_newer_models_only(self):
        """Gemini 3 refuses the first call of a step without a signature. Google documents this one."""
        assert SKIP_VALIDATION == parts(ToolCall("a", "f", "{}"), model=NEW)[0]["thoughtSignature"]
        assert "thoughtSignature" not in parts(ToolCall("a", "f", "{}"), model=OLD)[0]


@pytest.mark.parametrize(
    ("model", "newer"),
    [
        ("gemini-2.5-flash", False),
        ("models/gemini-2.0-flash-001", False),
        ("gemini-1.5-pro", False),
        ("gemini-pro", False),
        ("gemma-3-27b-it", False),
        ("gemini-3-pro-preview", True),
        ("gemini-3.7-flash", True),
        ("gemini-flash-latest", True),
        ("gemini-10-pro", True),
    ],
)
def test_the_generation_of_a_model_is_in_its_name(model, newer):
    """Thinking has another setting from Gemini 3 on."""
    assert newer is is_newer_than_2(model)


def test_an_answer_without_any_part_is_an_empty_text():
    """The API refuses a content without parts."""
    assert [{"text": ""}] == parts(Reasoning("only a thought"))
