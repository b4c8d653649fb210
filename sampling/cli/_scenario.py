"""
Read a scenario: the populations of a load test, in a TOML file.

Its keys are the names of the flags of `sampling load`. Keys at the top apply to all populations.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs

from sampling._arguments import short_repr
from sampling.cli._traffic import Traffic
from sampling.cli._workload import (
    WorkloadSettings,
    check_operations,
    check_turns,
    imported_mix,
    select_workload,
)
from sampling.load import ImportedWorkload, Population, Slo

__all__ = ["Scenario", "read_scenario", "scenario_schema"]

_TEXT: Mapping[str, Any] = {"type": "string"}
_COUNT: Mapping[str, Any] = {"type": "integer"}
_NUMBER: Mapping[str, Any] = {"type": ["number", "string"]}
_SWITCH: Mapping[str, Any] = {"type": "boolean"}
_TEXTS: Mapping[str, Any] = {"type": "array", "items": _TEXT}
_TIME: Mapping[str, Any] = {"type": ["number", "string"], "description": "Seconds, or a text such as 250ms, 30s or 5m."}

_PROMPTS: Mapping[str, Mapping[str, Any]] = {
    "prompt-tokens": {"type": "integer", "description": "Generate prompts: their mean length, with the prefix."},
    "prompt-tokens-stdev": {"type": "number"},
    "prompt-tokens-min": _COUNT,
    "prompt-tokens-max": _COUNT,
    "shared-prefix-tokens": _COUNT,
    "prefixes": _COUNT,
}
_WORKLOAD: Mapping[str, Mapping[str, Any]] = {
    "questions": {
        "type": ["array", "string"],
        "items": _TEXT,
        "description": "Questions, or a file with one per line.",
    },
    **_PROMPTS,
    "turns": {"type": "integer", "description": "With users: requests of a conversation."},
    "backend": _TEXT,
    "strategy": _TEXT,
    "depth": _COUNT,
    "breadth": _COUNT,
    "require": _TEXTS,
    "temperature": {"type": "number"},
    "max-tokens": _COUNT,
    "send-env-key": _SWITCH,
    "allow-http": _SWITCH,
    "system": _TEXT,
    "type": _TEXT,
    "constrain": _SWITCH,
    "workload": {"type": "string", "description": "Your own workload instead of questions: MODULE:NAME."},
}
_TRAFFIC: Mapping[str, Mapping[str, Any]] = {
    "rate": _NUMBER,
    "users": _COUNT,
    "trace": {"type": "string", "description": "A file of send times, one per line."},
    "duration": _TIME,
    "requests": _COUNT,
    "to-rate": _NUMBER,
    "arrivals": {"enum": ["constant", "poisson", "burst"]},
    "burst": _COUNT,
    "max-in-flight": _COUNT,
    "think-time": _TIME,
    "on-error": {"enum": ["continue", "cancel"]},
    "warmup": _TIME,
    "drain": _TIME,
    "timeout": _TIME,
}
_POPULATION: Mapping[str, Mapping[str, Any]] = {
    **_TRAFFIC,
    **_WORKLOAD,
    "slo": {"type": "string", "description": "Limits such as p95=2s,ttft_p99=500ms,error=0.1%."},
}
_RUN: Mapping[str, Mapping[str, Any]] = {
    "seed": _COUNT,
    "workers": _COUNT,
    "virtual": _SWITCH,
    "samples": _SWITCH,
    "force": _SWITCH,
    "out": _TEXTS,
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
}


@attrs.frozen(kw_only=True)
class PopulationSettings:
    """A population of a scenario, parsed and checked."""

    name: str
    workload: WorkloadSettings | ImportedWorkload
    operations: Mapping[str, tuple[float, WorkloadSettings]]
    """The operations of a mix with their weights, or none."""

    traffic: Traffic
    slo: Slo | None

    def parts(self) -> tuple[WorkloadSettings | ImportedWorkload, ...]:
        """Return all workloads of this population."""
        return tuple(settings for _, settings in self.operations.values()) or (self.workload,)

    def population(self) -> Population:
        """Return the population, for a run."""
        if self.operations:
            workload, about = imported_mix(self.operations)
        elif isinstance(self.workload, WorkloadSettings):
            workload, about = self.workload.imported(), self.workload.describe()
        else:
            workload, about = self.workload, {}
        return Population(name=self.name, workload=workload, profile=self.traffic.profile(), slo=self.slo, about=about)

    def __str__(self) -> str:
        mixed = [f"{name} (weight {weight:g}): {each}" for name, (weight, each) in self.operations.items()]
        return f"{self.name}: {'; '.join(mixed) or self.workload}"


@attrs.frozen(kw_only=True)
class Scenario:
    """A scenario, parsed and checked."""

    populations: tuple[PopulationSettings, ...]
    seed: int = 0
    workers: int = 1
    virtual: bool = False
    samples: bool = False
    force: bool = False
    out: tuple[Path, ...] = ()


def read_scenario(path: Path) -> Scenario:
    """Read a scenario. Raise `ValueError` that names the file, the population and the key."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"can't read the scenario {short_repr(str(path))}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not TOML: {error}") from None
    try:
        return _scenario(found, path.parent)
    except (TypeError, ValueError) as error:
        # The keys of a scenario are named like the flags.
        raise ValueError(f"{path.name}: {re.sub(r'--(?=[a-z])', '', str(error))}") from None


def _scenario(found: Mapping[str, Any], folder: Path) -> Scenario:
    shared = {name: value for name, value in found.items() if name != "population"}
    _check_keys(shared, {**_RUN, **_POPULATION}, "the scenario")
    populations: Any = found.get("population")
    if not isinstance(populations, list) or not populations:
        raise ValueError("a scenario has at least one population: add a table [[population]] with a name and a rate")
    defaults = {name: value for name, value in shared.items() if name in _POPULATION}
    settings: dict[str, Any] = {name: value for name, value in shared.items() if name in _RUN}
    settings["out"] = tuple(folder / name for name in settings.get("out", ()))
    parsed = tuple(_named_populations(populations, defaults, folder))  # pyright: ignore[reportUnknownArgumentType]
    return Scenario(populations=parsed, **settings)


def _named_populations(
    populations: list[Any], defaults: Mapping[str, Any], folder: Path
) -> Iterator[PopulationSettings]:
    names: set[str] = set()
    for number, given in enumerate(populations, 1):
        if not isinstance(given, Mapping):
            raise ValueError("population must be a table: write [[population]]")  # noqa: TRY004 - the file is wrong
        own = dict(cast("Mapping[str, Any]", given))
        name = own.pop("name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f'population {number} needs a name, such as name = "chat"')
        if name in names:
            raise ValueError(f"two populations are named {name!r}: give each its own name")
        names.add(name)
        try:
            yield _population(name, own, defaults, folder)
        except (TypeError, ValueError) as error:
            raise ValueError(f"population {name!r}: {error}") from None


def _population(name: str, own: Mapping[str, Any], defaults: Mapping[str, Any], folder: Path) -> PopulationSettings:
    operations = own.get("operations", {})
    own = {key: value for key, value in own.items() if key != "operations"}
    _check_keys(own, _POPULATION, "a population")
    given = {**_without_contradictions(defaults, own), **own}
    slo = given.pop("slo", None)
    traffic = Traffic(
        **{_argument(key): _traffic_value(key, given.pop(key), folder) for key in list(given) if key in _TRAFFIC}
    )
    traffic.profile()  # raises if the traffic is wrong
    mixed = {each: _operation(each, table, given, folder) for each, table in _tables(operations)}
    settings = PopulationSettings(
        name=name,
        workload=_workload(given, folder),
        operations=mixed,
        traffic=traffic,
        slo=None if slo is None else Slo.parse(slo),
    )
    settings.population()  # raises if the weights are wrong
    for part in settings.parts():
        check_turns(part, users=traffic.users is not None)
    check_operations(settings.slo, settings.workload, [each for each, (weight, _) in mixed.items() if weight])
    return settings


def _without_contradictions(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the outer keys for traffic and questions if the inner table has another kind of them."""
    kinds = ("rate", "users", "trace")
    dropped = {*kinds} if any(kind in own for kind in kinds) else set[str]()
    if "questions" in own:
        dropped |= _PROMPTS.keys()
    if "prompt-tokens" in own:
        dropped.add("questions")
    return {key: value for key, value in defaults.items() if key not in dropped}


def _tables(operations: object) -> list[tuple[str, Mapping[str, Any]]]:
    tables = cast("Mapping[str, Any]", operations) if isinstance(operations, Mapping) else {"": None}
    for table in tables.values():
        if not isinstance(table, Mapping):
            raise ValueError("operations are tables: write [population.operations.NAME]")  # noqa: TRY004
    return list(tables.items())


def _operation(
    name: str, table: Mapping[str, Any], shared: Mapping[str, Any], folder: Path
) -> tuple[float, WorkloadSettings]:
    keys = {**_WORKLOAD, "weight": {"type": "number"}}
    _check_keys(table, keys, f"operation {name!r}")
    own = {**_without_contradictions(shared, table), **table}
    weight = own.pop("weight", 1.0)
    workload = _workload(own, folder)
    if not isinstance(workload, WorkloadSettings):
        raise ValueError(f"operation {name!r} asks questions: use `mix` in your own workload for anything else")  # noqa: TRY004
    return float(weight), workload


def _workload(given: Mapping[str, Any], folder: Path) -> WorkloadSettings | ImportedWorkload:
    flags = {_argument(key): value for key, value in given.items() if key not in ("questions", "workload")}
    flags["require"] = tuple(flags.get("require", ()))
    flags.setdefault("backend", "llama")
    questions = given.get("questions")
    if questions == []:
        raise ValueError("questions is empty: there is nothing to ask")
    if given.get("workload") is not None:
        return select_workload(given["workload"], questions, None, **flags)
    file = folder / questions if isinstance(questions, str) else None
    return select_workload(None, None if file else questions, file, **flags)


def _argument(key: str) -> str:
    return "type_" if key == "type" else key.replace("-", "_")


def _traffic_value(key: str, value: Any, folder: Path) -> Any:
    if key == "trace":
        return folder / value
    # A number is read as flags are: a count, or seconds.
    return str(value) if "number" in _TRAFFIC[key].get("type", ()) else value


def _check_keys(given: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]], where: str) -> None:
    for key, value in given.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"{where} has no key {key!r}: {advice}")
        _check_value(key, value, known[key])


def _check_value(key: str, value: Any, schema: Mapping[str, Any]) -> None:
    if "enum" in schema:
        if value not in schema["enum"]:
            raise ValueError(f"{key} must be one of {', '.join(schema['enum'])}, got {short_repr(value)}")
        return
    names: list[str] = [schema["type"]] if isinstance(schema["type"], str) else list(schema["type"])
    kinds = tuple(kind for name in names for kind in _TYPES[name])
    # True is an int for Python, and a mistake here.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{key} must be a TOML {' or '.join(names)}, got {short_repr(value)}")
    items: list[Any] = value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
    if not all(isinstance(item, str) for item in items):
        raise ValueError(f"{key} must be an array of strings, got {short_repr(items)}")


def scenario_schema() -> dict[str, Any]:
    """Return the JSON schema of scenarios, for editors."""
    operation = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"weight": {"type": "number", "description": "Share of the requests. Default: 1."}, **_WORKLOAD},
    }
    population = {
        "type": "object",
        "additionalProperties": False,
        "required": ["name"],
        "properties": {
            "name": _TEXT,
            **_POPULATION,
            "operations": {"type": "object", "additionalProperties": operation},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A scenario of `sampling load`",
        "type": "object",
        "additionalProperties": False,
        "required": ["population"],
        "properties": {
            **_RUN,
            **_POPULATION,
            "population": {"type": "array", "minItems": 1, "items": population},
        },
    }
