"""The stream parser: right on what the standard says, total over bytes, linear in time."""

import json
import random

import pytest

from sampling._json.bounded import MAX_DEPTH, loads
from sampling._redaction import Redactor
from sampling.backends.http._sse import EventParser
from sampling.backends.openai._answer import StreamedAnswer
from sampling.errors import BackendError, MalformedResponse, ResponseTooLarge
from sampling.messages import Generation

LIMIT = 100_000


def events_of(*chunks, limit=LIMIT):
    """Feed chunks, close, and return the data of all events."""
    parser = EventParser(limit)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close()


def events_or_error(parse, parser, chunks):
    """Return the events of chunks, or those before one that is too large."""
    events = []
    try:
        for chunk in chunks:
            events.extend(parse(parser, chunk))
    except ResponseTooLarge:
        return [*events, ResponseTooLarge]
    return events + parser.close()


class TestStandard:
    @pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
    def test_lines_end_in_lf_cr_or_crlf(self, end):
        """Row 17: every line ending of the standard is understood."""
        assert events_of(
            end.join([b"data: one", b"", b": a comment", b"event: x", b"data: two", b"data:lines", b"", b""])
        ) == ["one", "two\nlines"]

    @pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
    def test_it_does_not_matter_where_the_chunks_are_cut(self, end):
        """Row 17: a cut inside a character, inside CRLF or inside a field name changes nothing."""
        stream = b"\xef\xbb\xbf" + end.join(
            ["data: é€😀".encode(), b"", b"data", b"data:x", b"id: 1", b"", b"data: [DONE]", b"", b""]
        )
        expected = ["é€😀", "\nx", "[DONE]"]
        assert expected == events_of(stream)
        assert expected == events_of(*(bytes([byte]) for byte in stream))
        for cut in range(len(stream)):
            assert expected == events_of(stream[:cut], b"", stream[cut:])

    def test_the_shorter_way_for_an_event_of_one_line_has_the_same_result(self):
        """Row 17: whatever comes before it, whatever is in it, and with any limit."""
        rng = random.Random(0)
        parts = [b"data: ", b"data:", b"data", b": ", b"a", b"\xff", b"\n", b"\r", b"\n\n", b"\xef\xbb\xbf", b"[DONE]"]
        for _ in range(3_000):
            chunks = [b"data: " + b"".join(rng.choices(parts, k=rng.randrange(4))) + b"\n\n" for _ in range(2)]
            chunks.insert(rng.randrange(3), b"".join(rng.choices(parts, k=rng.randrange(3))))
            limit = rng.choice((8, 20, LIMIT))
            ways = (EventParser.events, EventParser._parse)
            shorter, longer = [events_or_error(way, EventParser(limit), chunks) for way in ways]
            assert shorter == longer, chunks

    def test_a_byte_order_mark_is_skipped_only_at_the_beginning(self):
        """Row 17: a second one is part of a field name that nobody knows."""
        assert events_of(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == ["a"]

    def test_invalid_utf8_is_replaced(self):
        """Row 17: as the standard says, U+FFFD stands for what is not UTF-8."""
        assert events_of(b"data: a\xffb\n\n") == ["a\ufffdb"]

    def test_an_event_without_its_empty_line_counts_at_the_end_of_the_stream(self):
        """An event without the last empty line counts, and a line that was cut off does not."""
        assert events_of(b"data: whole\n") == ["whole"]
        assert events_of(b"data: whole\ndata: cut o") == ["whole"]
        assert events_of(b"data: cut o") == []

    def test_comments_and_empty_lines_are_nothing(self):
        """Row 17: keep-alives produce no event."""
        assert events_of(b": ping\n\n\n\n:\r\n\r\n", b"retry: 5\n\n") == []


class TestLimits:
    def test_a_giant_line_is_refused_as_soon_as_it_is_too_long(self):
        """Row 17: neither data nor a comment may grow without end."""
        for start in (b"data: ", b": "):
            parser = EventParser(1_000)
            parser.feed(start)
            for _ in range(9):
                parser.feed(b"x" * 100)
            with pytest.raises(ResponseTooLarge, match="1,000 bytes"):
                parser.feed(b"x" * 101)

    def test_many_data_lines_in_one_event_are_refused_too(self):
        """Row 17: an event that never ends is as bad as a line that never ends."""
        with pytest.raises(ResponseTooLarge):
            events_of(b"data\n" * 1_000, b"data: x\n" * 1_000, limit=1_000)

    def test_time_is_linear_when_a_long_line_comes_byte_by_byte(self):
        """Row 17: each byte is copied a bounded number of times, however the line is cut."""
        parser = EventParser(300_000)
        for _ in range(200_000):
            parser.feed(b"x")
        assert parser.feed(b"\ndata: yes\n\n") == ["yes"]


class TestJson:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("[" * 100_000, "nested deeper"),
            ('{"a":' * 100_000, "nested deeper"),
            ("[" * 70 + '"' + "]" * 70, "nested deeper"),
            ("[1" + "0" * 1_000_000 + "]", "digits"),
            ('{"a": 1, "a": 2}', "same key twice"),
            ("NaN", "NaN"),
            ("[-Infinity]", "Infinity"),
            ("[]" * 200_000, "brackets"),
            ('"' + '\\"' * 500_000 + "[" * 100, "Unterminated"),
            ("", "Expecting value"),
            ("\ufeff{}", "Expecting value"),
        ],
    )
    def test_what_would_hurt_is_refused_before_it_is_parsed(self, text, problem):
        """Row 78: depth, size, duplicates and NaN give one kind of error, which quotes nothing."""
        with pytest.raises(ValueError, match=problem) as caught:
            loads(text)
        assert len(str(caught.value)) < 100

    def test_brackets_inside_strings_do_not_count(self):
        """Row 78: brackets inside of strings do not count as nesting."""
        text = json.dumps({"a": "[{" * 1_000 + '\\"', "b": [[]] * 100})
        assert json.loads(text) == loads(text)

    def test_honest_depth_is_fine(self):
        """Row 78: the limit itself is allowed, one more is not."""
        loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
        with pytest.raises(ValueError, match="nested"):
            loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


# The fuzz.


def chunk(**fields):
    return b"data: " + json.dumps({"id": "a", "model": "m", **fields}).encode() + b"\n\n"


def delta(finish=None, index=0, **fields):
    return chunk(choices=[{"index": index, "delta": fields, "finish_reason": finish}])


TOOL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"x'}}
CORPUS = [
    delta(role="assistant", content="")
    + delta(content="Héllo")
    + delta(content=" 😀")
    + delta("stop")
    + chunk(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2})
    + b"data: [DONE]\n\n",
    b"\xef\xbb\xbf: hi\r\n\r\n" + delta(reasoning_content="hm").replace(b"\n", b"\r\n") + delta("length", content="x"),
    delta(tool_calls=[TOOL]) + delta("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": '":1}'}}]),
    chunk(choices=[{"index": 0, "text": "t", "logprobs": {"tokens": ["t"], "token_logprobs": [-0.1]}}])
    + chunk(choices=[{"index": 0, "text": "", "finish_reason": "stop"}])
    + b"data: [DONE]\r\r",
    delta(content="\ud83d") + delta(content="\ude00 \ud83d") + delta("stop"),
    chunk(error={"message": "boom", "type": "server_error", "code": 503}),
]
WORDS = [
    b"data:",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"null",
    b"[",
    b"{",
    b'"',
    b"-1",
    b"1e999",
    b"NaN",
    b"\\ud800",
    b"\xff",
    b"\0",
]
MUTATIONS = 100_000


def mutated(rng, stream):
    """Change a stream in one to four places."""
    data = bytearray(stream)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 1, 2, 5, 40)))
        match rng.randrange(6):
            case 0:
                data[start:end] = rng.randbytes(end - start)
            case 1:
                del data[start:end]
            case 2:
                data[start:end] = rng.choice(WORDS)
            case 3:
                data[start:start] = data[start:end] * 2
            case 4:
                other = rng.choice(CORPUS)
                data[start:start] = other[rng.randrange(len(other)) :][:60]
            case _:
                del data[start + 1 :]
    return bytes(data)


def read(rng, stream):
    """Do what the backend does with a stream, cut at random."""
    parser = EventParser(LIMIT)
    answer = StreamedAnswer(Redactor(), input_tokens_estimate=1)
    while stream:
        size = rng.choice((1, 7, 64, 4096))
        for event in parser.feed(stream[:size]):
            answer.add(event)
        stream = stream[size:]
    for event in parser.close():
        answer.add(event)
    return answer.generation()


def outcome_of(rng, stream):
    try:
        return read(rng, stream)
    except BackendError as error:
        return error


@pytest.mark.parametrize("part", range(10))
def test_no_bytes_raise_anything_but_typed_errors(part):
    """Row 17: 100,000 mutated streams end in a Generation or in a BackendError, and both kinds occur."""
    rng = random.Random(part)
    answers = failures = 0
    for number in range(MUTATIONS // 10):
        stream = mutated(rng, CORPUS[number % len(CORPUS)])
        outcome = outcome_of(rng, stream)
        if isinstance(outcome, Generation):
            answers += 1
            outcome.text.encode()
            assert outcome.usage.total_tokens >= 0
        else:
            failures += 1
            assert len(str(outcome).encode()) < 400
            assert str(outcome).isprintable()
    assert answers > 100
    assert failures > 100


@pytest.mark.parametrize("number", range(4))
def test_the_corpus_itself_is_read_without_an_error(number):
    """The fuzz starts from streams that are right."""
    assert read(random.Random(0), CORPUS[number]).finish_reason in {"stop", "length", "tool_calls"}


def test_random_bytes_are_no_answer():
    """Row 17: noise of any length is refused."""
    rng = random.Random(1)
    for _ in range(1_000):
        with pytest.raises(BackendError):
            read(rng, rng.randbytes(rng.randrange(300)))


def test_a_surrogate_pair_that_was_cut_in_two_is_whole_again():
    """Row 17: a surrogate pair that two chunks split is joined, and a lone half becomes U+FFFD."""
    assert read(random.Random(0), CORPUS[4]).text == "😀 \ufffd"


def test_the_error_quotes_at_most_200_bytes():
    """Row 16: an error quotes only the escaped beginning of a malformed response."""
    with pytest.raises(MalformedResponse) as caught:
        read(random.Random(0), "data: \x1b[31mred\u202e ".encode() + "é".encode() * 5_000 + b"\n\n")
    text = str(caught.value)
    assert "\\x1b[31mred\\u202e" in text
    assert len(text.partition(": ")[2].encode()) <= 200
