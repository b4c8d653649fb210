"""Capture the events of a call."""

from typing import TypeVar

from sampling.hooks import Event, Hook, Hooks, TextGrown

__all__ = ["CapturedEvents"]

E = TypeVar("E", bound=Event)


class CapturedEvents(Hooks):
    """
    Hooks that record every event, in order.

        captured = CapturedEvents()
        await strategy.sample("…", None, backend, hooks=captured)
        captured.of(IterationFinished)

    With `text=True`, `TextGrown` is among them, and the call streams.
    """

    def __init__(self, *, text: bool = False) -> None:
        super().__init__()
        self.events: list[Event] = []
        without = () if text else (TextGrown,)
        self.add(Hook(Event, self.events.append, critical=False, timeout_s=self.timeout_s, without=without))

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def names(self) -> list[str]:
        """The type names of all events, in order."""
        return [type(event).__name__ for event in self.events]
