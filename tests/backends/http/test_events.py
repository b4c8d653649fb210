"""The reader of events skips the JSON of most chunks, and nobody can tell."""

import json

import pytest

from sampling._redaction import Redactor
from sampling.backends.http._events import EventReader
from sampling.backends.openai._answer import StreamedAnswer
from sampling.backends.openai._responses_answer import StreamedResponsesAnswer
from sampling.errors import MalformedResponse
from tests.backends.http.streams import READ, difference, servers

LIMIT = 100_000
SEEDS = 850


def chunk(content, **fields):
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": None}
    return b"data: " + json.dumps({"id": "a", "model": "m", "choices": [choice], **fields}).encode() + b"\n\n"


def reader_of(answer=None, receive=None):
    answer = answer or StreamedAnswer(Redactor())
    reader = EventReader(answer, LIMIT, receive)
    reader.feed(b": the beginning\n\n")
    return answer, reader


@pytest.mark.parametrize("part", range(6))
def test_it_reads_mutated_streams_of_all_servers_as_one_event_at_a_time_would(part):
    """
    Mutated streams of every recorded server give the same answer, the same pieces, usage and errors.

    `python -m benchmarks.events` does the same for 300,000 streams.
    """
    known = servers()
    before = READ["texts without JSON"]
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        assert difference(seed, known) is None
    assert READ["texts without JSON"] - before > SEEDS


def test_only_the_first_of_many_equal_chunks_is_parsed():
    """The others differ in their text only, however they arrive."""
    answer, reader = reader_of()
    texts = ["Hello", " world", " ünd", ' "quotes"', "\n", " \ud83d", "\ude00", " end"]
    stream = b"".join([chunk(text) for text in texts])
    for data in (stream, *[chunk(text) for text in texts]):
        reader.feed(data)
    assert reader.texts_without_json == 2 * len(texts) - 1
    assert answer.text == 'Hello world ünd "quotes"\n 😀 end' * 2
    assert answer.spent.output_tokens == 2 * len(texts)


def test_a_chunk_that_is_cut_is_parsed_and_those_around_it_are_not():
    """A read may end anywhere in a chunk."""
    answer, reader = reader_of()
    stream = b"".join([chunk(f"{number} ") for number in range(10, 40)])
    reader.feed(stream[:1_000])
    reader.feed(stream[1_000:])
    assert reader.texts_without_json == 30 - 2
    assert answer.text == "".join([f"{number} " for number in range(10, 40)])


def test_bytes_that_only_look_like_the_text_are_not_taken_for_it():
    """The text of this chunk is escaped, and what looks like it is the name of a field."""
    answer, reader = reader_of()
    escaped = b'data: {"choices":[{"delta":{"content":"\\u0069ndex"},"index":0}]}\n\n'
    for _ in range(3):
        reader.feed(escaped)
        reader.feed(escaped.replace(b'"index"', b'"other"'))
    assert answer.text == "index" * 6


@pytest.mark.parametrize(
    ("first", "text"),
    [
        # The name before it, the colon and the quote after it look like the text.
        (b'data: {"choices":[{"delta":{"content":":"}}]}\n\n', ":"),
        (b'data: {"choices":[{"delta":{"x":["k",","],"content":","}}]}\n\n', ","),
        # The text has an invalid byte, and the other value the character that stands for it.
        (b'data: {"x":"\xef\xbf\xbd","choices":[{"delta":{"content":"\xff"}}]}\n\n', "\ufffd"),
        # A comment has the same text.
        (b': "a"\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n', "a"),
    ],
)
def test_a_text_whose_place_is_uncertain_is_no_template(first, text):
    """Chunks that differ where it only seemed to be are read as they are."""
    answer, reader = reader_of()
    for _ in range(3):
        reader.feed(first)
    assert answer.text == text * 3
    assert reader.texts_without_json == 0


def test_an_event_that_says_nothing_is_no_template():
    """Its comment has the text of the chunk before."""
    answer, reader = reader_of()
    # An escape, so that this chunk becomes none.
    reader.feed(chunk("hi", system_fingerprint="\\"))
    for comment in ("hi", "ho", "ho"):
        reader.feed(f': "{comment}"\ndata: \n\n'.encode())
    assert answer.text == "hi"


def test_padding_inside_of_another_field_matters():
    """Only the padding field of the chunk itself is ignored."""
    answer, reader = reader_of()
    for padding in ("a1", "b2"):
        reader.feed(chunk("hi ", extra={"obfuscation": padding}))
    assert reader.texts_without_json == 0
    assert answer.generation(allow_missing_finish=True).raw["extra"] == {"obfuscation": "b2"}


def test_padding_does_not_matter():
    """OpenAI pads each chunk with letters that mean nothing, and they are not in the raw response."""
    answer, reader = reader_of()
    for padding in ("aZ3", "x", "0", "qwertyuiop"):
        reader.feed(chunk("hi ", obfuscation=padding))
    reader.feed(chunk("end", obfuscation="no/letters"))
    assert reader.texts_without_json == 3
    assert answer.text == "hi hi hi hi end"
    assert answer.generation(allow_missing_finish=True).raw == {"id": "a", "model": "m"}


def test_numbers_of_events_do_not_matter():
    """The Responses API numbers its events, and a number that is none is an error all the same."""
    answer, reader = reader_of(StreamedResponsesAnswer(Redactor()))

    def delta(number):
        fields = '"type":"response.output_text.delta","delta":"hi ","logprobs":[],"obfuscation":"a1"'
        return f'event: x\ndata: {{{fields},"sequence_number":{number}}}\n\n'.encode()

    for number in (8, 9, 10, 11):
        reader.feed(delta(number))
    assert reader.texts_without_json == 3
    with pytest.raises(MalformedResponse, match="not valid JSON"):
        reader.feed(delta("007"))
    assert answer.text == "hi " * 4


def test_a_receiver_gets_each_piece_at_once_and_may_interrupt():
    """Text after an interruption is not part of the answer, even if it arrived in the same read."""

    def receive(piece):
        got.append(piece)
        if piece == "c":
            raise KeyError

    got = []
    answer, reader = reader_of(receive=receive)
    with pytest.raises(KeyError):
        reader.feed(b"".join([chunk(text) for text in "abcd"]))
    assert got == ["a", "b", "c"]
    assert answer.text == "abc"
    assert answer.spent.output_tokens == 3


def test_templates_that_fit_nothing_are_not_made_again_and_again(monkeypatch):
    """A server with another value in every chunk costs no more than one that is read with care."""
    _, reader = reader_of()
    made = []
    learn = EventReader._learn
    monkeypatch.setattr(EventReader, "_learn", lambda self, raw: (made.append(raw), learn(self, raw)))
    for number in range(100):
        reader.feed(chunk("hi ", created=number))
    assert len(made) == 5
