"""Streams of the Gemini API, chunk by chunk."""

import json

import pytest

from sampling import Usage
from sampling._redaction import Redactor, Secret
from sampling.backends.gemini._answer import StreamedGeminiAnswer
from sampling.backends.gemini._contents import wire_contents
from sampling.backends.gemini._usage import read_usage
from sampling.errors import (
    AnswerRejected,
    AuthenticationFailed,
    BadRequest,
    Incomplete,
    MalformedResponse,
    ModelNotFound,
    QuotaExhausted,
    RateLimited,
    RequestTooLarge,
    ServerError,
)
from sampling.parts import Reasoning, ToolCall


def chunk(*parts, finish=None, **fields):
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **fields}


def text(words, **more):
    return {"text": words, **more}


def call(name="f", args=None, signature=None, **more):
    signed = {} if signature is None else {"thoughtSignature": signature}
    return {"functionCall": {"name": name, "args": args or {}, **more}, **signed}


def read(*chunks):
    """Return the answer after these chunks."""
    answer = StreamedGeminiAnswer(Redactor([Secret("the-secret-key")]), input_tokens_estimate=7)
    for one in chunks:
        answer.add(json.dumps(one))
    return answer


def generated(*chunks):
    return read(*chunks).generation()


def sent_back(*chunks):
    """Return the parts that go back to Gemini for an answer."""
    return wire_contents([generated(*chunks).message], "gemini-2.5-flash")["contents"][0]["parts"]


class TestFinish:
    @pytest.mark.parametrize(
        ("reason", "expected"),
        [
            ("STOP", "stop"),
            ("MAX_TOKENS", "length"),
            ("CONTINUATION", "length"),
            ("SAFETY", "content_filter"),
            ("RECITATION", "content_filter"),
            ("PROHIBITED_CONTENT", "content_filter"),
            ("BLOCKLIST", "content_filter"),
            ("SPII", "content_filter"),
            ("IMAGE_SAFETY", "content_filter"),
            ("IMAGE_PROHIBITED_CONTENT", "content_filter"),
            ("IMAGE_RECITATION", "content_filter"),
            ("SOMETHING_NEW", "something_new"),
        ],
    )
    def test_reasons_in_our_words(self, reason, expected):
        """A reason that is not known yet is passed on."""
        assert expected == generated(chunk(text("hi"), finish=reason)).finish_reason

    @pytest.mark.parametrize(
        "reason",
        ["MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "LANGUAGE"],
    )
    def test_what_the_server_could_not_use_is_rejected_with_its_usage(self, reason):
        """One failed sample, and the tokens are known."""
        answer = read()
        with pytest.raises(AnswerRejected, match=reason):
            answer.add(json.dumps(chunk(finish=reason, usageMetadata={"promptTokenCount": 34})))
        assert Usage(34, 0) == answer.spent

    def test_calls_end_with_tool_calls(self):
        """Gemini says STOP. A call that was cut off stays cut off."""
        assert "tool_calls" == generated(chunk(call(), finish="STOP")).finish_reason
        assert "length" == generated(chunk(call(), finish="MAX_TOKENS")).finish_reason

    @pytest.mark.parametrize("reason", [None, "", "FINISH_REASON_UNSPECIFIED"])
    def test_a_stream_without_an_end_is_incomplete(self, reason):
        """Unless the caller accepts that."""
        answer = read(chunk(text("hi"), finish=reason))
        with pytest.raises(Incomplete, match="finishReason"):
            answer.generation()
        assert ("hi", "unknown") == (
            (found := answer.generation(allow_missing_finish=True)).text,
            found.finish_reason,
        )

    def test_a_stream_without_an_answer_is_incomplete(self):
        """A stream with only a usage is incomplete."""
        with pytest.raises(Incomplete, match="before the answer"):
            generated({"usageMetadata": {"promptTokenCount": 3}})

    def test_older_models_end_every_chunk(self):
        """A finish reason in every chunk does not end the answer, and all of the text is read."""
        assert "ab" == generated(chunk(text("a"), finish="STOP"), chunk(text("b"), finish="STOP")).text

    def test_only_an_end_that_other_chunks_did_not_have_is_the_end(self):
        """A connection that breaks in between would else cut the answer off unseen."""
        assert not read(chunk(text("a"), finish="STOP"), chunk(text("b"), finish="STOP")).finished
        assert not read(chunk(text("a"))).finished
        assert read(chunk(text("a")), chunk(text("b"), finish="STOP")).finished
        assert read({"promptFeedback": {"blockReason": "SAFETY"}}).finished

    def test_text_after_the_end_is_malformed(self):
        """There may be two answers in the stream."""
        with pytest.raises(MalformedResponse, match="two answers"):
            read(chunk(text("a")), chunk(text("b"), finish="STOP"), chunk(text("c")))

    def test_a_mark_of_a_gateway_ends_the_stream(self):
        """Gateways send an end mark, although Gemini does not."""
        answer = read(chunk(text("a"), finish="STOP"))
        assert not answer.done
        answer.add("[DONE]")
        assert answer.done

    @pytest.mark.parametrize("reason", ["SAFETY", "OTHER", "PROHIBITED_CONTENT"])
    def test_a_blocked_prompt_is_an_answer_that_was_filtered(self, reason):
        """A response without a candidate ends with "content_filter"."""
        generation = generated({"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 9}})
        assert ("", "content_filter", Usage(9, 0)) == (generation.text, generation.finish_reason, generation.usage)


class TestParts:
    def test_thoughts_are_not_text(self):
        """Thoughts are in `reasoning`, and not in the text or in its pieces."""
        answer = read()
        assert "" == answer.add(json.dumps(chunk(text("Hm. ", thought=True), text("Ah.", thought=True))))
        assert "4" == answer.add(json.dumps(chunk(text("4"), finish="STOP")))
        generation = answer.generation()
        assert ("4", "Hm. Ah.") == (generation.text, generation.reasoning)
        assert (Reasoning("Hm. Ah."),) == generation.thoughts

    def test_ids_of_calls_are_kept_or_made_up(self):
        """Those that are made up are the same on every reading, and differ from those of other responses."""
        chunks = [chunk(call(id="x1"), call("g"), finish="STOP", responseId="abc-DEF_1")]
        expected = (ToolCall("x1", "f", "{}"), ToolCall("gemini_abc-DEF_1_1", "g", "{}"))
        assert expected == generated(*chunks).tool_calls == generated(*chunks).tool_calls
        other = generated(chunk(call(), call(), finish="STOP", responseId="other"))
        assert ["gemini_other_0", "gemini_other_1"] == [one.id for one in other.tool_calls]
        # OpenAI refuses longer ids, and a conversation may go on there.
        long = generated(chunk(call(), finish="STOP", responseId="x" * 100))
        assert len(long.tool_calls[0].id) <= 40

    def test_arguments_are_json_text(self):
        """Arguments become JSON text that keeps every character."""
        (found,) = generated(chunk(call(args={"city": "Zürich", "days": [1]}), finish="STOP")).tool_calls
        assert '{"city": "Zürich", "days": [1]}' == found.arguments

    def test_logprobs_are_one_item_for_each_token(self):
        """Each token has its log probability and its alternatives, if there are any."""
        chosen = [{"token": "a", "logProbability": -0.1}, {"token": "b", "logProbability": -0.2}]
        top = [{"candidates": [chosen[0]]}, {"candidates": []}]
        one = chunk(text("ab"), finish="STOP")
        one["candidates"][0]["logprobsResult"] = {"chosenCandidates": chosen, "topCandidates": top}
        assert [-0.1, -0.2] == [item["logProbability"] for item in generated(one).logprobs]
        assert [chosen[0]] == generated(one).logprobs[0]["topCandidates"]
        one["candidates"][0]["logprobsResult"] = {"chosenCandidates": chosen}
        assert tuple(chosen) == generated(one).logprobs

    def test_halves_of_a_character_are_joined(self):
        """Some proxies split surrogate pairs."""
        assert "😀" == generated(chunk(text("\ud83d")), chunk(text("\ude00"), finish="STOP")).text


class TestPartialArguments:
    """
    Arguments in pieces, as Vertex streams them with `streamFunctionCallArguments`.

    Source: https://docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling
    """

    def read(self, *pieces):
        """Return the arguments of a call that comes in these pieces."""
        begun = {"functionCall": {"name": "f", "willContinue": True}, "thoughtSignature": "c2ln"}
        more = [chunk({"functionCall": {"partialArgs": [piece], "willContinue": True}}) for piece in pieces]
        generation = generated(chunk(begun), *more, chunk({"functionCall": {}}), chunk(finish="STOP"))
        [one] = generation.tool_calls
        assert "tool_calls" == generation.finish_reason
        assert ["call 0:c2ln"] == [thought.signature for thought in generation.thoughts]
        return one.parse()

    def test_texts_of_one_place_are_joined(self):
        """The last piece of a text is often empty."""
        path = "$.city"
        assert {"city": "San Francisco"} == self.read(
            {"jsonPath": path, "stringValue": "San ", "willContinue": True},
            {"jsonPath": path, "stringValue": "Francisco", "willContinue": True},
            {"jsonPath": path, "stringValue": ""},
        )

    def test_all_kinds_of_values_at_all_kinds_of_places(self):
        """Objects and lists come into being by the paths to what is in them."""
        assert {
            "lines": [{"unit price": 1.5, "count": 2}, {"unit price": None}],
            "paid": True,
            "tags": ["", "b"],
            "a.b": {"c": "d"},
        } == self.read(
            {"jsonPath": "$.lines[0]['unit price']", "numberValue": 1.5},
            {"jsonPath": "$.lines[0].count", "numberValue": 2},
            {"jsonPath": '$.lines[1]["unit price"]', "nullValue": "NULL_VALUE"},
            {"jsonPath": "$.paid", "boolValue": True},
            {"jsonPath": "$.tags[0]", "stringValue": ""},
            {"jsonPath": "$.tags[1]", "stringValue": "b"},
            {"jsonPath": "$['a.b'].c", "stringValue": "d"},
        )

    def test_calls_are_kept_apart(self):
        """A name begins the next call, and pieces may come with it."""
        path = "$.city"
        first = {"functionCall": {"name": "f", "partialArgs": [{"jsonPath": path, "stringValue": "Ro"}]}}
        more = {"functionCall": {"partialArgs": [{"jsonPath": path, "stringValue": "me"}]}}
        second = {"functionCall": {"name": "f", "args": {"city": "Oslo"}}}
        calls = generated(chunk(first), chunk(more, second), chunk(finish="STOP")).tool_calls
        assert [{"city": "Rome"}, {"city": "Oslo"}] == [one.parse() for one in calls]

    @pytest.mark.parametrize(
        "path", ["", "$", "city", "$..city", "$[*]", "$.a[-1]", "$.a[1]", "$.a[9999999]", "$.a b["]
    )
    def test_a_path_to_no_place_is_malformed(self, path):
        """An answer with other arguments than the model gave would be wrong, and a huge list would fill the memory."""
        with pytest.raises(MalformedResponse, match="argument"):
            self.read({"jsonPath": path, "stringValue": "x"})

    def test_places_that_contradict_each_other_are_malformed(self):
        """A text has nothing inside."""
        with pytest.raises(MalformedResponse, match="do not fit together"):
            self.read({"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": "$.a.b", "stringValue": "x"})


class TestSignatures:
    @pytest.mark.parametrize(
        ("chunks", "expected"),
        [
            ([chunk(text("ab", thoughtSignature="s1"), finish="STOP")], [text("ab", thoughtSignature="s1")]),
            (
                [chunk(text("ab")), chunk(text("", thoughtSignature="s1"), finish="STOP")],
                [text("ab"), text("", thoughtSignature="s1")],
            ),
            (
                [
                    chunk(text("ab", thoughtSignature="s1")),
                    chunk(text("cd")),
                    chunk(call(signature="s2"), finish="STOP"),
                ],
                [text("ab", thoughtSignature="s1"), text("cd"), call(signature="s2")],
            ),
            (
                [chunk(call(signature="s1"), call("g"), call("h", signature="s2"), finish="STOP")],
                [call(signature="s1"), call("g"), call("h", signature="s2")],
            ),
            ([chunk(call(), call("g", signature="s1"), finish="STOP")], [call(), call("g", signature="s1")]),
            (
                [chunk(text("Hm.", thought=True, thoughtSignature="s1")), chunk(text("ab"), finish="STOP")],
                [text("Hm.", thought=True, thoughtSignature="s1"), text("ab")],
            ),
        ],
    )
    def test_each_goes_back_on_the_part_that_it_came_with(self, chunks, expected):
        """Exactly as it came: Gemini 3 refuses anything else for calls."""
        assert expected == sent_back(*chunks)

    def test_unsigned_thoughts_do_not_go_back(self):
        """They are summaries, for people."""
        assert [text("ab")] == sent_back(chunk(text("Hm.", thought=True)), chunk(text("ab"), finish="STOP"))


class TestUsage:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"promptTokenCount": 9}, Usage(9, 0)),
            ({"promptTokenCount": 9, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}, Usage(9, 7, 0.0, 0, 4)),
            ({"promptTokenCount": 9, "cachedContentTokenCount": 5}, Usage(9, 0, 0.0, 5)),
            ({"promptTokenCount": 9, "cachedContentTokenCount": 50}, Usage(9, 0, 0.0, 9)),
            ({"promptTokenCount": 9, "toolUsePromptTokenCount": 5}, Usage(14, 0)),
            ({"candidatesTokenCount": 3}, None),
            ({"promptTokenCount": -1}, None),
            ({"promptTokenCount": 9, "candidatesTokenCount": 10**12}, None),
            ({"promptTokenCount": "9"}, None),
            ({"promptTokenCount": 9, "thoughtsTokenCount": True}, None),
            ({"trafficType": "ON_DEMAND"}, None),
        ],
    )
    def test_counts_that_are_missing_or_absurd_are_not_believed(self, given, expected):
        """An estimate is used instead."""
        assert expected == read_usage(given)

    def test_the_last_count_is_the_one(self):
        """Every chunk has the usage so far."""
        answer = read(
            chunk(text("a"), usageMetadata={"promptTokenCount": 9, "candidatesTokenCount": 1}),
            chunk(text("b"), finish="STOP", usageMetadata={"promptTokenCount": 9, "candidatesTokenCount": 2}),
        )
        assert Usage(9, 2) == answer.generation().usage

    def test_without_counts_it_is_estimated(self):
        """Without counts, the usage is estimated from the question and the chunks."""
        assert Usage(7, 2) == generated(chunk(text("a")), chunk(text("b"), finish="STOP")).usage


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}, BadRequest),
            ({"code": 400, "message": "API key expired. Please renew the API key."}, AuthenticationFailed),
            ({"code": 401, "status": "UNAUTHENTICATED"}, AuthenticationFailed),
            ({"code": 403, "message": "denied", "status": "PERMISSION_DENIED"}, AuthenticationFailed),
            (
                {"code": 403, "message": "You do not have permission to access the File x or it may not exist."},
                BadRequest,
            ),
            ({"code": 404, "message": "models/x is not found for API version v1beta"}, ModelNotFound),
            ({"code": 404, "message": "This model models/x is no longer available to new users."}, ModelNotFound),
            ({"code": 404, "message": "Requested entity was not found."}, BadRequest),
            ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, RateLimited),
            ({"code": 500, "status": "INTERNAL"}, ServerError),
            ({"code": 503, "status": "UNAVAILABLE"}, ServerError),
            ({"code": 504, "status": "DEADLINE_EXCEEDED"}, ServerError),
            ({"code": 499, "status": "CANCELLED"}, ServerError),
            (
                {"code": 400, "message": "User location is not supported.", "status": "FAILED_PRECONDITION"},
                QuotaExhausted,
            ),
            ({"code": 400, "message": "Request payload size exceeds the limit: 20971520 bytes."}, RequestTooLarge),
            # In a stream the number may be missing.
            ({"status": "UNAVAILABLE", "message": "overloaded"}, ServerError),
            ({"status": "RESOURCE_EXHAUSTED"}, RateLimited),
            ({"status": "INVALID_ARGUMENT"}, BadRequest),
            ("no object at all", ServerError),
        ],
    )
    def test_an_error_in_a_stream_is_typed(self, error, kind):
        """Like one with a status."""
        answer = read(chunk(text("a")))
        with pytest.raises(kind) as caught:
            answer.add(json.dumps({"error": error}))
        assert type(caught.value) is kind
        assert caught.value.maybe_billed

    @pytest.mark.parametrize(
        ("delay", "expected"),
        [("53s", 53.0), ("0.25s", 0.25), ("3600s", 120.0), ("-1s", None), ("soon", None), (5, None), ("1e9s", None)],
    )
    def test_delays_are_bounded(self, delay, expected):
        """Implausible delays are ignored."""
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
        with pytest.raises(RateLimited) as caught:
            read({"error": {"code": 429, "details": [info]}})
        assert expected == caught.value.retry_after_s

    @pytest.mark.parametrize("details", [3, [3], [{"violations": 3}], [{"violations": [3]}], [{"reason": ["x"]}]])
    def test_odd_details_are_ignored(self, details):
        """They come from the network."""
        with pytest.raises(RateLimited):
            read({"error": {"code": 429, "details": details}})

    def test_an_error_after_the_end_does_not_undo_the_answer(self):
        """An error after the end is ignored, because the answer is complete."""
        assert "a" == generated(chunk(text("a"), finish="STOP"), {"error": {"code": 500}}).text

    def test_the_key_is_not_in_a_message(self):
        """A server may quote it."""
        one = chunk(finish="OTHER")
        one["candidates"][0]["finishMessage"] = "the-secret-key is wrong"
        with pytest.raises(AnswerRejected) as caught:
            read(one)
        assert "the-secret-key" not in f"{caught.value} {caught.value.partial_text}"


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "[]",
        "3",
        '{"candidates": 3}',
        '{"candidates": [3]}',
        '{"candidates": [{"content": 3}]}',
        '{"candidates": [{"content": {"parts": [3]}}]}',
        '{"candidates": [{"content": {"parts": [{"text": 3}]}}]}',
        '{"candidates": [{"content": {"parts": [{"functionCall": {"name": 3}}]}}]}',
        '{"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": []}}]}}]}',
        '{"candidates": [{"finishReason": 3}]}',
        '{"candidates": [{"index": 1}]}',
        '{"candidates": [{"index": "0"}]}',
        '{"candidates": [{"logprobsResult": 3}]}',
        '{"promptFeedback": 3}',
        '{"promptFeedback": {"blockReason": 3}}',
        '{"usageMetadata": 3}',
        '{"modelVersion": 3}',
        '{"candidates": [{"content": {"parts": [{"functionCall": {"name": "f"}}]}}], "responseId": 3}',
    ],
)
def test_what_has_the_wrong_type_is_malformed(data):
    """Row 20: a typed error, never a KeyError."""
    with pytest.raises(MalformedResponse):
        read().add(data)
