"""Generate code that passes its tests and a judge."""

import anyio

from sampling import Action, RepairTemplateStrategy, checks
from sampling.testing import ScriptedBackend

TESTS = """
assert median([3, 1, 2]) == 2
assert median([4, 1, 2, 3]) == 2.5, median([4, 1, 2, 3])
"""

# The answers of a stand-in for a model.
ANSWERS = [
    "```python\ndef median(numbers)\n    return sorted(numbers)[len(numbers) // 2]\n```",
    "```python\ndef median(numbers):\n    return sorted(numbers)[len(numbers) // 2]\n```",
    "```python\nimport statistics\n\ndef median(numbers):\n    return statistics.median(numbers)\n```",
]


async def main() -> None:
    """Ask for a function, and run it."""
    critic = ScriptedBackend(["9\nIt uses the standard library."])
    # Judges run after all other checks, whatever their place in the list, as each costs a request.
    requirements = [
        checks.judge("the code is easy to read", backend=critic, at_least=7),
        checks.python_runs(tests=TESTS, timeout_s=60),
    ]
    strategy = RepairTemplateStrategy(loop_budget=3)
    action = Action("Write median(numbers) in Python.", checks.unfenced)
    result = await strategy.sample(action, None, ScriptedBackend(ANSWERS), requirements)
    print(result.explain())
    print(f"\n{result.unwrap()}\n\nThe critic was asked {len(critic.requests)} time.")


if __name__ == "__main__":
    anyio.run(main)
