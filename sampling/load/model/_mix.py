"""A workload of several named operations with weights."""

import bisect
import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from sampling._arguments import check_instance, check_items, check_number, check_str
from sampling.load.model._about import describe_workload
from sampling.load.model._workload import Arrival, Draw, Send, Workload, draw_function

__all__ = ["Mix", "mix"]


class Mix:
    """A workload that mixes operations by weight."""

    def __init__(self, operations: Mapping[str, tuple[float, Workload]]) -> None:
        check_instance("operations", operations, Mapping, "a mapping of names to (weight, workload)")
        if not operations:
            raise ValueError("operations must not be empty: add at least one operation")
        weights: list[float] = []
        self._draws: list[tuple[str, Draw]] = []
        self._about: dict[str, Any] = {}
        for name, pair in operations.items():
            check_str("the name of an operation", name, empty=False)
            weight, workload = check_items(f"operations[{name!r}]", pair, "a pair of a weight and a workload")
            weights.append(check_number(f"the weight of {name!r}", weight, least=0))
            self._draws.append((name, draw_function(workload)))
            self._about[name] = {"weight": weight, **describe_workload(workload)}
        self._bounds = list(accumulate(weights))
        if not self._bounds[-1] > 0 or not math.isfinite(self._bounds[-1]):
            raise ValueError(f"the weights of a mix must add up to something positive, got {self._bounds[-1]:g}")

    def describe(self) -> dict[str, Any]:
        """Return the operations and their weights, for reports."""
        return {"workload": "mix", "operations": self._about}

    def draw(self, arrival: Arrival) -> Send | None:
        """
        Choose an operation, and draw from it.

        The choice uses the random numbers of the arrival, so a rerun makes the same one.
        """
        place = bisect.bisect_right(self._bounds, arrival.rng.random() * self._bounds[-1])
        name, draw = self._draws[min(place, len(self._draws) - 1)]
        arrival.operation = name
        return draw(arrival)


def mix(operations: Mapping[str, tuple[float, Workload]]) -> Mix:
    """
    Combine workloads by weight.

    `mix({"chat": (3, chat), "search": (1, search)})` sends three chats per search.
    Each operation has its own latencies in the report, and may have its own limits in `Slo(operations=…)`.
    """
    return Mix(operations)
