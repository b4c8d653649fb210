"""A call with all parts that can be cancelled."""

import anyio

from sampling import Budget, Hooks, IterationFinished, LoopFinished, LoopStarted, Requirement
from sampling.testing import After, ScriptedBackend, Watch


def call_with_everything(make, number_of):
    """
    Return a scenario with repairs, slow hooks and checks, a judge, an error and a budget, and its records.

    `make(hooks)` returns the strategy. `number_of(request, asked)` returns the number of the attempt of a request:
    the second one raises, the fourth one is right.
    """
    seen = {}

    async def scenario(world):
        hooks = Hooks()

        @hooks.on(LoopStarted, IterationFinished, LoopFinished)
        async def slow(event):
            await anyio.sleep(0.25)

        async def check(text):
            await anyio.sleep(0.25)
            return text != "no"

        asked = []

        def reply(request):
            if request.messages[0].role == "system":
                return After(0.25, "yes")
            asked.append(request)
            number = number_of(request, asked)
            if number == 2:
                return After(0.25, RuntimeError("broken"))
            return After(0.5, "yes" if number == 4 else "no")

        budget = seen["budget"] = Budget(attempts=10, deadline_s=50.0)
        watch = seen["watch"] = Watch(ScriptedBackend(reply))
        reqs = [Requirement("waits", check=check), "is polite"]
        return await watch.sample(make(hooks), "q", None, reqs, budget=budget)

    return scenario, seen
