"""The run in the journals of older versions, see `fixtures/README.md`. Do not change it: it would be another run."""

import os
import signal

from sampling import Action, Generation, MultiTurnStrategy, Options, Requirement, Usage, fan_out

KNOWN = ("yes", "maybe")


def is_known(text):
    """Accept some answers."""
    return text in KNOWN


def shout(text):
    """Parse an answer."""
    return f"{text}!"


ITEMS = [("k0", "0"), ("k1", "1"), ("k2", "2"), ("k3", "3"), ("k4", Action("4", shout)), ("k5", "5")]


def backend(*, kill=False, asked=None):
    """Return a backend that fails for some items, and that ends its process when it is asked for the fifth."""

    async def answer(request):
        question = request.messages[0].content
        if asked is not None:
            asked.append(question)
        if kill and question == "4":
            os.kill(os.getpid(), signal.SIGKILL)
        if question == "2":
            raise RuntimeError("broken")
        is_refused = question == "1" or (question == "3" and len(request.messages) == 1)
        return Generation("no" if is_refused else "yes", Usage(3, 2, 0.25))

    return answer


async def run(journal, backend, **settings):
    """Run, or resume."""
    return await fan_out(
        MultiTurnStrategy(loop_budget=2),
        ITEMS,
        None,
        backend,
        [Requirement("is known", is_known)],
        journal=journal,
        on_error="continue",
        options=Options(temperature=0.5),
        max_concurrency=1,
        **settings,
    )
