"""A process with a server that behaves like a model: it obeys options, calls tools, and ends as it is told."""

import json
import random
import sys

import anyio

from sampling import ToolCall
from sampling.testing.servers import OpenAIServer, Reply

ENDINGS = ("stop", "length", "content_filter", "tool_calls")


def reply(request) -> Reply:
    """Answer a chat request."""
    body = as_chat(request.json()) if is_responses(request) else request.json()
    messages = body.get("messages") or ()
    if not messages:
        return Reply(status=400, error={"error": {"message": "messages must not be empty"}})
    content = messages[-1].get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    if body.get("tools") and messages[-1]["role"] != "tool" and body.get("tool_choice") != "none":
        # The tools of the conformance suite and of `ENDINGS`.
        name = body["tools"][0]["function"]["name"]
        return Reply([], tool_calls=[ToolCall("call_1", name, '{"number": 7}')], usage=usage(body, 5))
    ending = next((one for one in ENDINGS if text == f"end with {one}"), None)
    if ending is not None:
        return Reply(["so"], finish_reason=ending, usage=usage(body, 1))
    words = random.Random(body.get("seed", 0)).choices(["rain", "snow", "wind"], k=limit(body))
    pieces = [f"{word} " for word in words]
    return Reply(pieces, "length", interval_s=0.002, usage=usage(body, len(pieces)))


def limit(body) -> int:
    return body.get("max_tokens") or body.get("max_completion_tokens") or 10


def usage(body, written: int) -> dict[str, int]:
    asked = sum(len(str(message.get("content"))) for message in body["messages"])
    return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}


def is_responses(request) -> bool:
    return request.path.endswith("/responses")


def as_chat(body):
    """Return a request of the Responses API as one of the chat API."""
    return {
        "messages": [
            {"role": "tool", "content": item["output"]} if item.get("type") == "function_call_output" else item
            for item in body["input"]
        ],
        "tools": [{"function": tool} for tool in body.get("tools", ())],
        "tool_choice": body.get("tool_choice"),
        "max_tokens": body.get("max_output_tokens"),
    }


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Server(OpenAIServer):
    """Has the Responses API beside that for chats."""

    def _whole(self, reply, request):
        return None if is_responses(request) else super()._whole(reply, request)

    def _event(self, piece, request):
        if not is_responses(request):
            return super()._event(piece, request)
        return event("response.output_text.delta", delta=piece, output_index=0)

    def _last_events(self, reply, request):
        if not is_responses(request):
            return super()._last_events(reply, request)
        reason = _INCOMPLETE.get(reply.finish_reason)
        response = {
            "object": "response",
            "status": "completed" if reason is None else "incomplete",
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": {"input_tokens": reply.usage["prompt_tokens"], "output_tokens": reply.usage["completion_tokens"]},
        }
        calls = [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in reply.tool_calls
        ]
        done = [
            event("response.output_item.done", output_index=place, item=call) for place, call in enumerate(calls, 1)
        ]
        return [*done, event("response.completed" if reason is None else "response.incomplete", response=response)]


def event(kind, **fields) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def main() -> None:
    async with Server(reply) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        # Until the test process closes the pipe.
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main)
