"""Locust's fastest user, which asks again as soon as it is answered. Run by locust, in its own environment."""

from __future__ import annotations

import json

from locust import FastHttpUser, constant, task  # type: ignore[import-not-found]

BODY = json.dumps(
    {
        "model": "canned",
        "messages": [{"role": "user", "content": "Write something."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
)


class Asker(FastHttpUser):
    """One user."""

    wait_time = constant(0)

    @task
    def ask(self) -> None:
        """Post, and read the answer to its end."""
        with self.client.post(
            "/v1/chat/completions", data=BODY, headers={"content-type": "application/json"}, catch_response=True
        ) as answer:
            if b"[DONE]" not in answer.content:
                answer.failure("not whole")
