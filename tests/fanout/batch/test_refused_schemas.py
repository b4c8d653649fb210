"""Schemas that a server can't enforce, in batches: the refused requests are sent again in another batch."""

import json
from functools import partial

import pytest
from pydantic import BaseModel

from sampling import Action, Budget
from sampling.errors import BadRequest
from sampling.testing.batch_servers import Verdict
from tests.fanout.batch.batch_kit import PROVIDERS, batched, openai, paid_twice, server_of, sizes

SHAPES = {**PROVIDERS, "responses": partial(openai, endpoint="responses")}

GRAMMAR = "The compiled grammar is too large, which would cause performance issues. Simplify your tool schemas."
REFUSAL = Verdict(status=400, error={"type": "invalid_request_error", "message": GRAMMAR})
ANSWER = '{"name": "Oslo"}'


class City(BaseModel):
    name: str


def asks_by_tool(request):
    return "tools" in request.body


def asks_natively(request):
    return bool(request.body.keys() & {"response_format", "output_config", "output_format"}) or "text" in request.body


def refuses_grammars(request):
    """Refuse what the server would have to enforce."""
    return REFUSAL if asks_natively(request) else ANSWER


def refuses_tools_too(request):
    return REFUSAL if asks_natively(request) or asks_by_tool(request) else ANSWER


def ways(server):
    """Return how the requests of each batch asked for the schema."""
    return [
        {"tool" if asks_by_tool(one) else "native" if asks_natively(one) else "prompt" for one in batch.requests}
        for batch in server.batches
    ]


CALL = {"name": "City", "arguments": ANSWER}


def called(line):
    """Turn a line with an answer into one that calls the tool, as the services send it."""
    fields = json.loads(line)
    message = fields.get("result", {}).get("message")
    body = (fields.get("response") or {}).get("body", {})
    if message is not None:
        use = {"type": "tool_use", "id": "t", "name": "City", "input": json.loads(ANSWER)}
        message.update(content=[use], stop_reason="tool_use")
    elif "choices" in body:
        calls = [{"id": "c", "type": "function", "function": CALL}]
        body["choices"][0].update(message={"role": "assistant", "tool_calls": calls}, finish_reason="tool_calls")
    elif "output" in body:
        body["output"] = [{"type": "function_call", "id": "f", "call_id": "c", "status": "completed", **CALL}]
    return json.dumps(fields).encode()


CITIES = [Action(f"Which city is number {number}?", City) for number in range(3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_refused_requests_are_sent_again_by_a_tool(run, shape):
    """The whole batch was refused, and its requests cost nothing. The next run asks right at once."""
    server = server_of(refuses_grammars)
    server.mangle = lambda lines: [called(line) for line in lines]
    backend = SHAPES[shape](server)

    async def twice():
        budget = Budget(requests=20)
        first = await batched(backend, CITIES, (), budget=budget)
        return first, await batched(backend, CITIES, ()), budget

    first, second, budget = run(twice)
    for result in (first, second):
        assert [City(name="Oslo")] * 3 == [one.result.value for one in result.outcomes]
    assert [3, 3, 3] == sizes(server)
    assert [{"native"}, {"tool"}, {"tool"}] == ways(server)
    assert 6 == budget.requests_made
    assert not paid_twice(server)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tool_that_is_refused_too_becomes_words(run, shape):
    """There are three batches, one for each way to ask."""
    server = server_of(refuses_tools_too)
    result = run(batched, SHAPES[shape](server), CITIES, ())
    assert [City(name="Oslo")] * 3 == [one.result.value for one in result.outcomes]
    assert [{"native"}, {"tool"}, {"prompt"}] == ways(server)
    assert "matches this schema" in json.dumps(server.batches[-1].requests[0].body)


@pytest.mark.parametrize("shape", SHAPES)
def test_where_no_schema_was_enforced_it_is_an_error(run, shape):
    """There is nothing else to try."""
    server = server_of(lambda request: REFUSAL)
    with pytest.raises(BadRequest, match="compiled grammar is too large"):
        run(batched, SHAPES[shape](server, structured="prompt"), CITIES[:1], ())
    assert [1] == sizes(server)
