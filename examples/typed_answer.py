"""An answer that is parsed: the value has a type, and what can't be parsed is asked for again."""

import json
from datetime import date

import anyio
import attrs

from sampling import Action, MultiTurnStrategy, Validation, View
from sampling.testing import ScriptedBackend


@attrs.frozen
class Flight:
    """What we want to know."""

    number: str
    day: date


def parse_flight(text: str) -> Flight:
    """Make a flight of a JSON object; whatever this raises, the model is told."""
    fields = json.loads(text)
    return Flight(fields["number"], date.fromisoformat(fields["day"]))


def is_after_2029(_text: str, view: View) -> Validation:
    """The flight is in 2030 or later."""
    flight: Flight = view.value
    return Validation(True) if flight.day.year >= 2030 else Validation(False, f"{flight.day} is too early")


async def main() -> None:
    """Ask for a flight, and get a Flight."""
    action = Action("Which flight? Answer as JSON with number and day.", parse_flight)
    clerk = ScriptedBackend(  # stands in for a model that gets it right at the third try
        [
            "Sure! It is LH400.",
            '{"number": "LH400", "day": "1999-05-01"}',
            '{"number": "LH400", "day": "2031-05-01"}',
        ]
    )
    result = await MultiTurnStrategy(loop_budget=3).sample(action, None, clerk, [is_after_2029])
    print(result.explain())
    flight = result.unwrap()
    print(f"\n{flight.number} leaves on {flight.day:%A, %d %B %Y}")


if __name__ == "__main__":
    anyio.run(main)
