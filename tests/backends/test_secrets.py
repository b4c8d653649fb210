"""No key in any output: a canary is sent, echoed back by hostile servers, and searched for wherever words come out."""

import base64
import contextlib
import io
import json
import logging
import pickle  # noqa: TID251 - to see that it refuses
import traceback
from urllib.parse import quote

import pytest
import structlog

from sampling import (
    BackendError,
    Hooks,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    Message,
    RejectionSamplingStrategy,
    Request,
)
from sampling._redaction import Redactor, Secret
from sampling.backends.anthropic import AnthropicBackend
from sampling.backends.gemini import GeminiBackend
from sampling.backends.http._transport import SharedHeaders, WireRequest
from sampling.backends.openai import OpenAIBackend, OpenAIEmbeddings
from sampling.testing.servers import HostileServer, Pause, Step

CANARY = "c?>y/7Zq+x/9'w\"%=Kp4~Lm2NbVtR8sYd"
"""Odd on purpose: every encoding of it differs from every other within the first few characters."""

HEADER_CANARY = "hdr-canary-0123456789abcdef"
HI = Request((Message("user", "hi"),))


def openai(server, **settings):
    return OpenAIBackend(server.url, CANARY, "m", **settings)


def anthropic(server, **settings):
    return AnthropicBackend("m", CANARY, base_url=server.url, **settings)


def gemini(server, **settings):
    return GeminiBackend("m", CANARY, base_url=f"http://127.0.0.1:{server.port}", **settings)


SAID = {
    openai: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]},
    anthropic: {
        "type": "message_start",
        "message": {"id": "a", "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"},
    },
    gemini: {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]},
}
"""An answer, by the provider."""

KEY_HEADERS = {
    openai: ("authorization", f"Bearer {CANARY}"),
    anthropic: ("x-api-key", CANARY),
    gemini: ("x-goog-api-key", CANARY),
}
by_provider = pytest.mark.parametrize("make", SAID)


def answer_of(make):
    body = b"data: " + json.dumps(SAID[make]).encode() + b"\n\ndata: [DONE]\n\n"
    return [f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body]


def encodings(secret):
    """The five ways in which a secret is looked for."""
    return {
        "raw": secret,
        "percent": quote(secret, safe=""),
        "base64": base64.b64encode(secret.encode()).decode().rstrip("="),
        "repr": repr(secret)[1:-1],
        "prefix": secret[:8],
    }


def assert_no_secret(text, where):
    for secret in (CANARY, HEADER_CANARY):
        for name, form in encodings(secret).items():
            assert form not in text, f"{where} holds the key ({name}): {text}"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def echoes():
    """Everything that a server can do with the key that it was sent."""
    forms = " ".join(
        [
            CANARY,
            f"Bearer {CANARY}",
            quote(CANARY, safe=""),
            base64.b64encode(CANARY.encode()).decode(),
            base64.b64encode(f"Bearer {CANARY}".encode()).decode(),
            base64.urlsafe_b64encode(f"x:{CANARY}".encode()).decode(),
            repr(CANARY),
            f"{CANARY[:8]}***{CANARY[-4:]}",
            HEADER_CANARY,
        ]
    )
    page = f"<html>{forms}</html>".encode()
    details = [{"reason": CANARY, "retryDelay": CANARY, "violations": [{"quotaId": CANARY}]}]
    fields = {"message": forms, "type": CANARY, "code": CANARY, "status": CANARY, "details": details}
    error = json.dumps({"error": fields}).encode()
    rejected = json.dumps({"candidates": [{"finishReason": "OTHER", "finishMessage": forms}], "choices": [3]}).encode()

    def response(status, body, more=""):
        return f"HTTP/1.1 {status} .\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body

    return {
        "401": [response(401, error)],
        "400 html": [response(400, page)],
        "429": [response(429, error, f"retry-after: {CANARY}\r\n")],
        "500": [response(500, page)],
        "302": [response(302, b"", f"location: https://{HEADER_CANARY}.example/{quote(CANARY)}?{CANARY}\r\n")],
        "html": [response(200, page, "content-type: text/html\r\n")],
        "json": [response(200, error, "content-type: application/json\r\n")],
        "no events": [response(200, page)],
        "bad chunk": [response(200, b"data: " + page + b"\n\n")],
        "error chunk": [response(200, b"data: " + error + b"\n\n")],
        "bad type": [response(200, b'data: {"id": [' + json.dumps(CANARY).encode() + b"]}\n\n")],
        "rejected": [response(200, b"data: " + rejected + b"\n\n")],
        "bad event": [response(200, b'data: {"type": [' + json.dumps(CANARY).encode() + b"]}\n\n")],
        "encoding": [response(200, b"", f"content-encoding: {CANARY}\r\n")],
        "not http": [f"{CANARY} {CANARY}\r\n\r\n".encode()],
        "bad header": [f"HTTP/1.1 200 OK\r\n{CANARY}\r\n\r\n".encode()],
        "bad length": [f"HTTP/1.1 200 OK\r\ncontent-length: {CANARY}\r\n\r\n".encode()],
        "reset": [Step.RESET],
        "half": [response(200, page)[:-20], Pause(0.01), Step.RESET],
        "hang": [Step.HANG],
    }


async def everything_said(make, script):
    """Run a call that fails, and return every word that came out of it, by where it came out."""
    said = {}
    payloads = []
    hooks = Hooks()
    for event in (LoopStarted, IterationStarted, IterationFinished, LoopFinished):
        hooks.on(event)(payloads.append)
    stdlib_log = io.StringIO()
    handler = logging.StreamHandler(stdlib_log)
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.WARNING)
    backend = None
    try:
        with structlog.testing.capture_logs() as logs:
            async with HostileServer(script) as server:
                # Only a server that hangs is not waited for.
                timeout_s = 1.5 if Step.HANG in script else 20.0
                backend = make(server, headers={"x-gateway": HEADER_CANARY}, timeout_s=timeout_s)
                async with backend:
                    said["repr(backend), open"] = f"{backend!r} {backend} {vars(backend)} {backend._transport!r}"
                    try:
                        result = await RejectionSamplingStrategy(concurrency_budget=2).sample(
                            "hi", None, backend, hooks=hooks
                        )
                        said["result"] = f"{result!r} {result} {result.explain()} {result.attempts!r}"
                    except BackendError as error:
                        said |= words_of(error)
        header, value = KEY_HEADERS[make]
        received = [request.headers[header] for request in server.requests]
        assert {value} == set(received), "the canary was never sent, so nothing was tested"
        assert all(CANARY[:8] not in request.path for request in server.requests)
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
    said["repr(backend)"] = f"{backend!r} {backend} {vars(backend)}"
    said["structlog"] = repr(logs)
    said["logging"] = stdlib_log.getvalue()
    said["hook payloads"] = " ".join(f"{payload!r} {payload}" for payload in payloads)
    assert payloads
    return said


SILENT = ("reset", "hang")
"""Scripts that do not send the key back: after them, not even the variables of our frames may hold it."""


def words_of(error):
    said = {}
    while error is not None:
        name = type(error).__name__
        said[f"{name}: str"] = f"{error} {error!r} {error.args} {getattr(error, '__notes__', '')} {vars(error)}"
        said[f"{name}: traceback"] = "".join(traceback.format_exception(error))
        with_locals = traceback.TracebackException.from_exception(error, capture_locals=True)
        frames = [f"{frame.filename} {frame.name} {frame.locals}" for frame in with_locals.stack]
        said[f"{name}: locals"] = " ".join(line for line in frames if "test_secrets" not in line)
        with contextlib.suppress(TypeError):
            said[f"{name}: pickle"] = repr(pickle.dumps(error))
        error = error.__cause__ or error.__context__
    return said


@pytest.mark.usefixtures("both_transports")
@by_provider
@pytest.mark.parametrize("name", sorted(echoes()))
async def test_no_output_holds_the_key_whatever_the_server_does_with_it(make, name):
    """I17 and row 72: errors, notes, tracebacks with locals, pickles, reprs, vars, logs, hooks and explain()."""
    said = await everything_said(make, echoes()[name])
    assert any("traceback" in where for where in said)
    for where, text in said.items():
        if "locals" not in where or name in SILENT:
            assert_no_secret(text, where)


@by_provider
async def test_a_success_says_nothing_either(make):
    """I17: neither the result nor its explanation knows the key."""
    for where, text in (await everything_said(make, answer_of(make))).items():
        assert_no_secret(text, where)


@by_provider
async def test_a_receiver_that_raises_shows_no_key_in_its_traceback(make):
    """Row 72: the frames between the server and the user's code hold only what may be seen."""

    def fail(piece):
        raise LookupError

    async with HostileServer(answer_of(make)) as server, make(server) as backend:
        with pytest.raises(LookupError) as caught:
            await backend.stream(HI, fail)
    for where, text in words_of(caught.value).items():
        assert_no_secret(text, where)


@pytest.mark.parametrize("kind", [OpenAIBackend, AnthropicBackend, GeminiBackend])
def test_configuration_errors_do_not_show_the_key(kind):
    """I17: a key that is refused at once is not shown either."""
    for wrong in (f"{CANARY} with a blank", f"{CANARY}\n{CANARY}", CANARY.encode()):
        with pytest.raises((TypeError, ValueError)) as caught:
            kind(base_url="https://a.b/v1", api_key=wrong)
        text = f"{caught.value!r} {''.join(traceback.format_exception(caught.value))}"
        assert_no_secret(text, "the error")


def test_the_search_itself_finds_every_encoding():
    """A test that can't fail proves nothing."""
    for form in encodings(CANARY).values():
        with pytest.raises(AssertionError):
            assert_no_secret(f"… {form} …", "here")


class TestRedactor:
    def test_every_encoding_is_masked(self):
        """I17: alone, inside of something longer, and at every offset of base64."""
        redactor = Redactor([Secret(CANARY)])
        for form in encodings(CANARY).values():
            assert_no_secret(redactor.redact(f"a {form} b"), form)
        for prefix in ("", "a", "ab", "abc", "Bearer "):
            encoded = base64.b64encode(f"{prefix}{CANARY}!".encode()).decode()
            assert len(redactor.redact(encoded)) <= len(prefix) * 2 + 6

    def test_other_peoples_keys_are_masked_too(self):
        """A server that mixes up its answers must not make us repeat them."""
        text = Redactor().redact("used sk-proj-abcdefgh12345678 and Authorization: Bearer eyJhbGciOi.abc-def, ok")
        assert text == "used *** and Authorization: ***, ok"

    def test_ordinary_words_stay(self):
        """Ordinary words in an error are not masked."""
        text = "the model 'gpt-5-mini' does not exist or you do not have access to it"
        assert text == Redactor([Secret(CANARY)]).redact(text)
        assert text == Redactor([Secret("abc")]).redact(text)

    @pytest.mark.parametrize("holder", [Secret(CANARY), Redactor([Secret(CANARY)]), SharedHeaders({"x": CANARY})])
    def test_what_holds_a_secret_neither_shows_nor_pickles_it(self, holder):
        """Row 72: nor does it copy."""
        assert_no_secret(f"{holder!r} {holder}", "repr")
        with pytest.raises(TypeError):
            pickle.dumps(holder)

    def test_a_request_on_the_wire_shows_neither_headers_nor_body(self):
        """Row 72 and 74: the repr of a request has neither the key nor the prompt."""
        wire = WireRequest("https://a.b", {"authorization": CANARY}, b"my prompt", lambda: None)
        assert repr(wire) == "WireRequest(url='https://a.b')"


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": 1},
        {"timeout_s": -1},
        {"base_url": "ftp://x"},
        {"base_url": "https://169.254.169.254/v1"},
        {"endpoint": "x"},
        {"max_connections": 0},
    ],
)
@pytest.mark.parametrize("make", [OpenAIBackend, OpenAIEmbeddings, AnthropicBackend, GeminiBackend])
def test_a_constructor_that_fails_leaves_no_key_in_its_frames(make, arguments, monkeypatch):
    """Many loggers print the local variables of a traceback, and those of a constructor hold its arguments."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("GEMINI_API_KEY", CANARY)
    with pytest.raises((TypeError, ValueError)) as raised:
        make(**{"model": "m", "api_key": CANARY, **arguments})
    ours = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)][1:]
    assert ours
    for frame in ours:
        assert_no_secret(str({name: str(value) for name, value in frame.f_locals.items()}), frame.f_code.co_name)


@pytest.mark.parametrize("make", [OpenAIBackend, AnthropicBackend, GeminiBackend])
def test_a_bad_key_is_not_in_the_frames_of_its_error(make):
    """The key itself may be what is wrong."""
    with pytest.raises(ValueError, match="position") as raised:
        make(base_url="https://api.example/v1", api_key=f"{CANARY} {CANARY}", model="m")
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)][1:]
    assert_no_secret(str([{name: str(value) for name, value in frame.f_locals.items()} for frame in frames]), "a frame")
