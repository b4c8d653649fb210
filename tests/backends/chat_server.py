"""A process with a server that behaves like a model: it obeys options, calls tools, and ends as it is told."""

import random
import sys

import anyio

from sampling import ToolCall
from sampling.testing.servers import OpenAIServer, Reply

ENDINGS = ("stop", "length", "content_filter", "tool_calls")


def reply(request) -> Reply:
    """Answer a chat request."""
    body = request.json()
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


async def main() -> None:
    async with OpenAIServer(reply) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        # Until the test process closes the pipe.
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main)
