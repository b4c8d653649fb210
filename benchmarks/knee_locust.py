"""A step load of locust: more users every few seconds. Locust runs this in its own environment."""

from __future__ import annotations

import json
import os

from locust import FastHttpUser, LoadTestShape, constant, task  # type: ignore[import-not-found]

ORDER = json.loads(os.environ["KNEE"])
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {ORDER['key']}"}


class Asker(FastHttpUser):
    """One user."""

    wait_time = constant(0)

    @task
    def ask(self) -> None:
        """Post a request, and read the whole response."""
        with self.client.post(
            "/chat/completions", data=json.dumps(ORDER["body"]), headers=HEADERS, catch_response=True
        ) as answer:
            if b"[DONE]" not in (answer.content or b""):
                answer.failure("not whole")


class Steps(LoadTestShape):
    """More users at each step."""

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users, and how many start per second."""
        step = int(self.get_run_time() // ORDER["step_s"])
        return None if step >= ORDER["steps"] else ((step + 1) * ORDER["users"], 100.0)
