"""Errors as the documentation of providers and the issues of their clients show them: what each one ends, and says."""

import json
from typing import get_args

import pytest
from openai.types.responses.response_error import ResponseError

from sampling._redaction import Redactor
from sampling.backends.http._errors import ErrorResponse
from sampling.backends.openai._answer import StreamedAnswer
from sampling.errors import (
    AuthenticationFailed,
    BadRequest,
    ModelNotFound,
    QuotaExhausted,
    RateLimited,
    RequestTooLarge,
    ServerError,
)


def about(message, kind=None, code=None, **more):
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


OPENROUTER = {"provider_name": "Azure", "raw": '{"error":{"message":"max_tokens is too large"}}'}
FLAGGED = {"reasons": ["violence"], "flagged_input": "…", "provider_name": "OpenAI"}
MISSING = [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {}}]
EXTRA = [{"type": "extra_forbidden", "loc": ["body", "messages", 0, "name"], "msg": "Extra inputs are not permitted"}]

# The server, the status, the body, the error, and what a user needs to read.
ERRORS = [
    ("openai", 400, about("maximum context length is 8192", code="context_length_exceeded"), BadRequest, "8192"),
    ("openai", 429, about("no quota", "insufficient_quota", "insufficient_quota"), QuotaExhausted, "no quota"),
    ("openai", 429, about("Your account is not active", "billing_not_active"), QuotaExhausted, "not active"),
    ("azure", 400, about("filtered due to the prompt", code="content_filter", status=400), BadRequest, "filtered"),
    ("azure", 404, about("does not exist", code="DeploymentNotFound"), ModelNotFound, "not exist"),
    ("azure", 401, {"statusCode": 401, "message": "Access token is missing"}, AuthenticationFailed, "token is missing"),
    ("anthropic", 400, about("Your credit balance is too low to access"), QuotaExhausted, "credit balance"),
    ("anthropic", 400, about("You have reached your specified API usage limits."), QuotaExhausted, "usage limits"),
    ("anthropic", 400, about("prompt is too long: 210000 tokens"), BadRequest, "too long"),
    ("anthropic", 413, about("exceeds the maximum size", "request_too_large"), RequestTooLarge, "maximum size"),
    ("anthropic", 529, about("Overloaded", "overloaded_error"), ServerError, "Overloaded"),
    ("fireworks", 412, about("Account x is suspended, possibly due to reaching"), QuotaExhausted, "suspended"),
    ("gemini", 429, about("Your prepayment credits are depleted.", code=429), QuotaExhausted, "depleted"),
    ("gemini", 429, about("Your project has exceeded its monthly spending cap.", code=429), QuotaExhausted, "cap"),
    ("groq", 413, about("Request too large", "tokens", "rate_limit_exceeded"), RequestTooLarge, "too large"),
    ("groq", 498, about("Flex tier capacity exceeded", code="capacity_exceeded"), ServerError, "capacity"),
    (
        "litellm",
        400,
        about("Budget has been exceeded! Current cost: 2", "budget_exceeded"),
        QuotaExhausted,
        "exceeded!",
    ),
    ("litellm", 429, about("Over the budget of the team", "budget_exceeded", "429"), QuotaExhausted, "team"),
    (
        "mistral",
        422,
        {"object": "error", "message": {"detail": EXTRA}},
        BadRequest,
        "messages.0.name: Extra",
    ),
    ("mistral", 429, {"message": "Service tier capacity exceeded", "code": "3505"}, RateLimited, "tier capacity"),
    ("mistral", 401, {"detail": "Unauthorized"}, AuthenticationFailed, "Unauthorized"),
    ("fastapi", 422, {"detail": MISSING}, BadRequest, "body.model: Field required"),
    ("openrouter", 400, about("Provider returned error", metadata=OPENROUTER), BadRequest, "max_tokens is too large"),
    ("openrouter", 403, about("your input was flagged", metadata=FLAGGED), BadRequest, "flagged"),
    ("openrouter", 429, about("Rate limit exceeded: free-models-per-day"), QuotaExhausted, "per-day"),
    ("vllm", 404, {"message": "The model `x` does not exist.", "code": 404}, ModelNotFound, "not exist"),
    ("ollama", 404, about('model "x" not found, try pulling it first', "api_error"), ModelNotFound, "pulling"),
    ("llama.cpp", 400, about("exceeds the context size", "exceed_context_size_error", 400), BadRequest, "context"),
    ("llama.cpp", 501, about("Start it with `--embeddings`", "not_supported_error", 501), BadRequest, "--embeddings"),
    ("llama.cpp", 503, about("Loading model", "unavailable_error", 503), ServerError, "Loading"),
    ("deepseek", 402, about("Insufficient Balance", code="invalid_request_error"), QuotaExhausted, "Balance"),
    ("tgi", 424, {"error": "Request failed during generation", "error_type": "generation"}, ServerError, "generation"),
    ("together", 404, about("Unable to access model", code="model_not_available"), ModelNotFound, "access model"),
    ("moonshot", 429, about("exceeded quota", "exceeded_current_quota_error"), QuotaExhausted, "exceeded quota"),
    ("dashscope", 400, about("Access denied", "Arrearage", "Arrearage"), QuotaExhausted, "denied"),
    ("xai", 400, {"code": "Client specified an invalid argument", "error": "Model not found: g"}, ModelNotFound, "g"),
    ("xai", 403, {"error": "Your newly created team doesn't have any credits yet."}, QuotaExhausted, "credits"),
    ("proxy", 499, {}, ServerError, "499"),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"), [one[1:] for one in ERRORS], ids=[f"{one[0]}-{one[1]}" for one in ERRORS]
)
def test_an_error_ends_what_it_is_about_and_says_why(status, body, kind, said):
    """The key or the account, one request, or one attempt."""
    error = ErrorResponse.from_response(status, {}, json.dumps(body).encode(), Redactor()).as_error()
    assert type(error) is kind
    assert said in str(error)
    assert "{'" not in str(error)


TRANSIENT = {"server_error", "rate_limit_exceeded", "vector_store_timeout"}


@pytest.mark.parametrize("code", get_args(ResponseError.model_fields["code"].annotation))
def test_a_failed_response_is_tried_again_only_if_that_may_help(code):
    """OpenAI's client lists the codes, which come without a status."""
    error = ErrorResponse.from_error_object({"code": code, "message": "so"}, Redactor()).as_error()
    assert error.retryable is (code in TRANSIENT)


@pytest.mark.parametrize("kind", ["BadRequestError", "content_filter", "exceed_context_size_error", "invalid_prompt"])
def test_an_error_in_a_stream_may_be_about_the_request(kind):
    """Without a status, the code of the error decides."""
    error = ErrorResponse.from_error_object({"type": kind, "message": "so"}, Redactor()).as_error()
    assert type(error) is BadRequest


OVERFLOW = "Trying to keep the first 9 tokens. However, the model is loaded with context length of only 8 tokens"


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        ("Unexpected endpoint or method. (POST /chat/completions)", BadRequest, "base_url"),
        ({"message": OVERFLOW}, BadRequest, "the same request"),
        ({"message": "This exceeds the context window"}, BadRequest, "the same request"),
        ("Input validation error: `max_new_tokens` must be positive", BadRequest, "the same request"),
        (
            {"message": "Input validation error: too many tokens", "http_status_code": 422},
            BadRequest,
            "the same request",
        ),
        # TGI gives this status to all of its errors.
        ({"message": "Model is overloaded", "http_status_code": 422}, ServerError, "try again"),
        ({"message": "Request failed during generation", "http_status_code": 422}, ServerError, "try again"),
        ("Failed to allocate memory for a context length of 8192", ServerError, "try again"),
    ],
)
def test_without_a_code_the_words_of_an_error_decide(error, kind, hint):
    """LM Studio and TGI send errors with status 200 that no other try would avoid, and others that may pass."""
    found = ErrorResponse.from_error_object(error, Redactor()).as_error()
    assert type(found) is kind
    assert hint in found.hint.lower()


@pytest.mark.parametrize(("code", "kind"), [(400, BadRequest), (429, RateLimited), (502, ServerError)])
def test_a_choice_may_say_why_it_failed(code, kind):
    """OpenRouter reports an error of its provider in the choice."""
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": {"code": code, "message": "so"}}
    with pytest.raises(kind, match="so"):
        StreamedAnswer(Redactor()).add(json.dumps({"id": "1", "choices": [choice]}))
