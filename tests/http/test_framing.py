"""The framing of HTTP/1.1 responses: what it reads, what it refuses, and that pieces make no difference."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling._http.framing import CACHED_HEAD_BYTES, MANY_CHUNKS_BYTES, FramingError, ResponseParser, _known_head

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


def parse(*pieces):
    parser = ResponseParser()
    for piece in pieces:
        parser.feed(piece)
    return parser


def summary(*pieces, closed=False):
    """Summarize the response as a caller sees it, or the refusal."""
    parser = ResponseParser()
    body = b""
    try:
        for piece in pieces:
            parser.feed(piece)
            body += parser.take()
    except FramingError:
        return "refused"
    if closed:
        parser.end_of_stream()
    return parser.status, parser.headers, body, parser.ended, parser.ended and parser.reusable


READ = {
    "length": (OK + b"content-length: 5\r\n\r\nhello", b"hello"),
    "empty": (OK + b"content-length: 0\r\n\r\n", b""),
    "the same length twice": (OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
    "chunks": (CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", b"hello world"),
    "chunks with extensions": (CHUNKED + b"2;a=b\r\nhi\r\n1 ; c\r\n!\r\n000;x\r\n\r\n", b"hi!"),
    "chunks with trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nexpires: never\r\ndigest: x\r\n\r\n", b"hi"),
    "sizes in upper case": (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "after informational responses": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        + OK
        + b"content-length: 2\r\n\r\nhi",
        b"hi",
    ),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
    "lines that end in LF": (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi", b"hi"),
    "odd blanks": (OK + b"content-length:\t 2 \t\r\nx:\r\n\r\nhi", b"hi"),
    "204": (b"HTTP/1.1 204 .\r\n\r\n", b""),
    "304 with the length of what it does not send": (b"HTTP/1.1 304 .\r\ncontent-length: 5\r\n\r\n", b""),
}


@pytest.mark.parametrize("name", READ)
def test_a_response_is_read_whole_and_byte_by_byte(name):
    """The pieces in which it arrives make no difference, and its connection can be used again."""
    data, body = READ[name]
    whole = summary(data)
    assert whole[2:] == (body, True, True)
    assert whole == summary(*[bytes([byte]) for byte in data])
    for cut in range(1, len(data)):
        assert whole == summary(data[:cut], data[cut:])
        assert not parse(data[:cut]).ended


@pytest.mark.parametrize("name", READ)
def test_what_follows_a_response_is_no_part_of_it(name):
    """It would be read as the answer to the next request, so the connection is not used again."""
    data, body = READ[name]
    stale = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nSTALE"
    for pieces in ([data + stale], [data, stale], [data, b"\n"]):
        assert summary(*pieces)[2:] == (body, True, False)


REFUSED = {
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "only a bit of it": b"HTTX",
    "another version": b"HTTP/2.0 200 OK\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a long status": b"HTTP/1.1 2000 OK\r\n\r\n",
    "a low status": b"HTTP/1.1 099 OK\r\n\r\n",
    "an empty line first": b"\r\nHTTP/1.1 200 OK\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
    "no colon": OK + b"bad header\r\n\r\n",
    "no name": OK + b": x\r\n\r\n",
    "a blank before the colon": OK + b"content-length : 5\r\n\r\nhello",
    "a folded line": OK + b"x: a\r\n b\r\n\r\n",
    "a folded first line": OK + b" x: a\r\n\r\n",
    "NUL": OK + b"x: a\0b\r\n\r\n",
    "a lone CR": OK + b"x: a\rcontent-length: 5\r\n\r\n",
    "a name that is not ASCII": OK + "é: x\r\n\r\n".encode(),
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
    "two lengths in one": OK + b"content-length: 5, 6\r\n\r\n",
    "the same length, written differently": OK + b"content-length: 5\r\ncontent-length: 05\r\n\r\n",
    "a negative length": OK + b"content-length: -5\r\n\r\n",
    "a signed length": OK + b"content-length: +5\r\n\r\n",
    "a length with digits of another script": OK + "content-length: ٥\r\n\r\n".encode(),
    "a length with an underscore": OK + b"content-length: 1_0\r\n\r\n",
    "a huge length": OK + b"content-length: " + b"9" * 100 + b"\r\n\r\n",
    "a length with a blank of another kind": OK + b"content-length: 5\xa0\r\n\r\n",
    "an empty length": OK + b"content-length:\r\n\r\n",
    "a length and chunks": OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    "another coding": OK + b"transfer-encoding: gzip\r\n\r\n",
    "two codings": OK + b"transfer-encoding: gzip, chunked\r\n\r\n",
    "two codings in two lines": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n",
    "a coding with a blank": OK + b"transfer-encoding: \x0bchunked\r\n\r\n",
    "a size that is no number": CHUNKED + b"zz\r\n",
    "a size with a prefix": CHUNKED + b"0x5\r\nhello\r\n",
    "a negative size": CHUNKED + b"-5\r\nhello\r\n",
    "a size with an underscore": CHUNKED + b"1_0\r\n",
    "a size of LF": CHUNKED + b"5\nhello\r\n",
    "a huge size": CHUNKED + b"f" * 17 + b"\r\n",
    "an empty size": CHUNKED + b"\r\nhello\r\n",
    "a chunk that is too long": CHUNKED + b"5\r\nhello!\r\n",
    "a chunk that ends in LF": CHUNKED + b"5\r\nhello\n0\r\n\r\n",
    "an extension with NUL": CHUNKED + b"5;\0\r\nhello\r\n",
    "a trailer without a colon": CHUNKED + b"0\r\nbad\r\n\r\n",
    "a trailer with NUL": CHUNKED + b"0\r\na: \0\r\n\r\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_single_meaning_is_refused(name):
    """Whole and byte by byte."""
    assert summary(REFUSED[name]) == "refused"
    assert summary(*[bytes([byte]) for byte in REFUSED[name]]) == "refused"


ENDLESS = {
    "a status line": (b"HTTP/1.1 200 ", b"x" * 1_000),
    "headers": (OK, b"x: y\r\n" * 100),
    "a header": (OK + b"x: ", b"y" * 1_000),
    "informational responses": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 50),
    "a chunk size": (CHUNKED, b"5;" + b"x" * 1_000),
    "blanks after a size": (CHUNKED + b"5", b" " * 1_000),
    "extensions": (CHUNKED, (b"1;" + b"x" * 1_000 + b"\r\ny\r\n") * 10),
    "trailers": (CHUNKED + b"0\r\n", b"x: y\r\n" * 100),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_is_cut_off(name):
    """Everything that is kept has a limit, and it is refused long before it fills the memory."""
    start, more = ENDLESS[name]
    tracemalloc.start()
    try:
        assert summary(*[start] if start else [], *[more] * 200) == "refused"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_many_headers_are_refused():
    """Too many headers are refused even if they are short."""
    assert summary(OK + b"x: y\r\n" * 257 + b"\r\n") == "refused"
    assert summary(OK + b"x: y\r\n" * 255 + b"content-length: 0\r\n\r\n") != "refused"


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (OK + b"\r\nhello", True),
        (OK + b"content-length: 9\r\n\r\nhello", False),
        (CHUNKED + b"5\r\nhello\r\n", False),
        (CHUNKED + b"5\r\nhello\r\n0\r\n", False),
        (OK + b"x: y", False),
        (b"", False),
    ],
)
def test_a_connection_that_ends_completes_only_a_response_without_a_length(data, complete):
    """Everything else was cut off."""
    parser = parse(*[data][: len(data)])
    assert complete is parser.end_of_stream()
    assert not parser.reusable


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n",
        OK + b"connection: close\r\n",
        OK + b"connection: x, Close\r\n",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n",
    ],
)
def test_a_server_that_closes_its_connections_is_believed(head):
    """The next request would be lost."""
    parser = parse(head + b"content-length: 2\r\n\r\nhi")
    assert parser.ended
    assert not parser.reusable


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_any_chunks_in_any_pieces_give_the_same_body(chunks, data):
    """Chunk sizes and the pieces in which bytes arrive have nothing to do with each other."""
    wire = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=10)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert summary(*pieces)[2:] == (b"".join(chunks), True, True)


FRAGMENTS = [
    *[data for data, _ in READ.values()],
    *REFUSED.values(),
    b"\r\n", b"\r\n\r\n", b"\n", b"0", b"5", b":", b" ", b";", b"\0", b"\xff", b"HTTP/1.1 ", b"200", b"x: y\r\n",
    b"content-length: ", b"transfer-encoding: chunked", b"connection: close\r\n",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=6), max_size=8).map(b"".join), st.data())
def test_any_bytes_mean_the_same_in_any_pieces(wire, data):
    """The only error is `FramingError`, and how bytes are cut never decides between an answer and an error."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=6)))
    pieces = [piece for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True) if (piece := wire[a:b])]
    assert summary(*[wire] if wire else [], closed=True) == summary(*pieces, closed=True)


CHUNK_DAMAGE = [
    b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"0", b"00000000000000005", b"_", b"+", b"-", b"0x", b" ", b";a=b", b"\0", b"",
    b"3\r\nabc\r\n", b"3\r\na\r\r\n", b"2\r\n\r\n\r\n", b"0\r\nx: y\r\n\r\n",
]  # fmt: skip


def damaged_chunks(seed):
    """Return many chunks, some of them with line ends inside, and a few bytes of them replaced."""
    rng = random.Random(seed)
    bodies = [rng.choice([b"data: hello\n\n", b"x", b"\r\n", b"a\r\nb"]) * rng.randint(1, 9) for _ in range(100)]
    wire = b"".join([b"%x\r\n%b\r\n" % (len(body), body) for body in bodies if seed % 2 or b"\r" not in body])
    wire += b"0\r\n\r\n"
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        place = rng.randrange(len(wire))
        wire = wire[:place] + rng.choice(CHUNK_DAMAGE) + wire[place + rng.randint(0, 3) :]
    return wire


def test_many_chunks_at_once_mean_the_same_as_one_after_the_other():
    """They are read all at once only if that gives what reading one by one gives."""
    found = set()
    for seed in range(1_500):
        wire = damaged_chunks(seed)
        assert len(wire) > MANY_CHUNKS_BYTES
        few = [wire[place : place + 200] for place in range(0, len(wire), 200)]
        at_once = summary(CHUNKED, wire)
        assert at_once == summary(CHUNKED, *few), seed
        found.add(at_once if at_once == "refused" else at_once[3:])
    assert found == {"refused", (True, True), (True, False), (False, False)}


def test_one_chunk_at_a_time_means_the_same_as_byte_by_byte():
    """A whole chunk in one read is taken at once only if that is what the bytes mean."""
    pieces = [b"2\r\nhi\r\n", b"0\r\n\r\n", b"3\r\nhi\r\n", b"1\r\nhi\r\n", b"000000000000002\r\nhi\r\n"]
    pieces += [
        b"0000000000000002\r\nhi\r\n",
        b"2;x\r\nhi\r\n",
        b"4\r\n\r\n\r\n\r\n",
        b"2\r\n\r\n\r\n",
        b"0\r\nx: y\r\n\r\n",
    ]
    for first in pieces:
        for second in pieces:
            one_by_one = [bytes([byte]) for byte in first + second]
            assert summary(CHUNKED, first, second) == summary(CHUNKED, *one_by_one), (first, second)


@pytest.mark.parametrize("size", [b"1_0", b"+10", b" 10", b"0x10", b"-0", b"0000000000000010", b""])
def test_a_size_that_only_python_takes_for_a_number_is_refused_among_many(size):
    """`int` reads more than HTTP allows."""
    good = b"10\r\n0123456789abcdef\r\n" * 100
    assert summary(CHUNKED + good + size + b"\r\n0123456789abcdef\r\n0\r\n\r\n") == "refused"


def test_a_head_that_came_before_means_the_same_again():
    """Heads are remembered, but only short ones, and what is refused is refused each time."""
    for head in (
        OK + b"x: y\r\ncontent-length: 2\r\n\r\n",
        OK + b"x: " + b"y" * 2_000 + b"\r\ncontent-length: 2\r\n\r\n",
    ):
        known = _known_head.cache_info()
        assert summary(head + b"hi") == summary(head + b"hi")
        assert summary(head + b"hi")[2] == b"hi"
        looked_up = _known_head.cache_info().hits + _known_head.cache_info().misses - known.hits - known.misses
        assert looked_up == (3 if len(head) <= CACHED_HEAD_BYTES else 0)
    for _ in range(2):
        assert summary(REFUSED["two lengths"]) == "refused"
    with pytest.raises(TypeError):
        parse(OK + b"content-length: 2\r\n\r\n").headers["x"] = "y"
