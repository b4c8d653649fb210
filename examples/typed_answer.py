"""Parse answers into a typed object, and ask again if one does not fit."""

from datetime import date

import anyio
import attrs

from sampling import Action, MultiTurnStrategy, Validation, View
from sampling.testing import ScriptedBackend


@attrs.frozen
class Flight:
    """The type of the answer. A pydantic model or a dataclass works, too."""

    number: str
    day: date


def is_after_2029(_text: str, view: View) -> Validation:
    """The flight is in 2030 or later."""
    flight: Flight = view.value
    return Validation(True) if flight.day.year >= 2030 else Validation(False, f"{flight.day} is too early")


async def main() -> None:
    """Ask for a flight, and get a `Flight`."""
    action = Action("Which flight? Answer as JSON with number and day.", Flight)
    clerk = ScriptedBackend(  # stands in for a model that is right at the fourth attempt
        [
            "Sure! It is LH400.",
            '{"number": 400, "day": "next May"}',
            '{"number": "LH400", "day": "1999-05-01"}',
            '```json\n{"number": "LH400", "day": "2031-05-01"}\n```',
        ]
    )
    result = await MultiTurnStrategy(loop_budget=4, history=1).sample(action, None, clerk, [is_after_2029])
    print(result.explain())
    flight = result.unwrap()
    print(f"\n{flight.number} leaves on {flight.day:%A, %d %B %Y}")


if __name__ == "__main__":
    anyio.run(main)
