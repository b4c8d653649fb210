"""Rows, targets, tables and files of all suites."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA = 1
PACKAGES = ("sampling", "anyio", "attrs", "httpcore2", "httpx2", "structlog", "tenacity", "trio")


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    quick: bool = False
    peers: bool = True


@dataclass(frozen=True)
class Check:
    """A number with a target. A value of None was not measured, and misses the target."""

    label: str
    value: float | None
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """True if the target is met."""
        if self.value is None:
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def target(self) -> str:
        """The target as text."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    def __str__(self) -> str:
        value = "not measured" if self.value is None else _number(self.value)
        return f"{value} ({self.target})"


@dataclass(frozen=True)
class Row:
    """One scenario, with the values of all contenders and the targets."""

    name: str
    values: dict[str, float | None]
    checks: tuple[Check, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)  # only in the file


@dataclass(frozen=True)
class Section:
    """One table."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    peers: dict[str, str] = field(default_factory=dict)  # their versions


Suite = Callable[[Settings], list[Section]]
"""The `run` function of a suite, which measures and returns its tables."""


def ratio(value: float | None, base: float | None) -> float | None:
    """Return `value / base`, or None if one was not measured."""
    return None if value is None or base is None else value / base


def table(section: Section) -> str:
    """Return the section as aligned text."""
    lines = _cells(section)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [f"{section.title} [{section.unit}]"]
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        text.append(("  " + "   ".join(cells)).rstrip())
    return "\n".join(text)


def markdown(section: Section) -> str:
    """Return the section as a table of Markdown."""
    head, *lines = _cells(section)
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "\n".join([f"{section.title}, in {section.unit}:", "", *["| " + " | ".join(row) + " |" for row in rows]])


def _cells(section: Section) -> list[list[str]]:
    """Return the cells of a table, line by line, with the names of the columns first."""
    contenders = _ordered(name for row in section.rows for name in row.values)
    labels = _ordered(check.label for row in section.rows for check in row.checks)
    lines = [["", *contenders, *labels]]
    for row in section.rows:
        checks = {check.label: f"{check} {'met' if check.met else 'MISSED'}" for check in row.checks}
        values = [_number(row.values[name]) if name in row.values else "" for name in contenders]
        lines.append([row.name, *values, *(checks.get(label, "") for label in labels)])
    return lines


def missed(sections: Iterable[Section]) -> list[str]:
    """Return one line for each missed target."""
    return [
        f"{section.title}, {row.name}: {check.label} {check}"
        for section in sections
        for row in section.rows
        for check in row.checks
        if not check.met
    ]


def write(path: Path, suite: str, sections: Iterable[Section], settings: Settings) -> None:
    """Store the results as JSON. The file describes the machine, but has nothing that identifies it."""
    found = {
        "schema": SCHEMA,
        "suite": suite,
        "quick": settings.quick,
        "machine": machine(),
        "sections": [
            {
                "title": section.title,
                "unit": section.unit,
                "peers": section.peers,
                "rows": [
                    {
                        "name": row.name,
                        "values": row.values,
                        "checks": [
                            {"label": check.label, "value": check.value, "target": check.target, "met": check.met}
                            for check in row.checks
                        ],
                        **row.details,
                    }
                    for row in section.rows
                ],
            }
            for section in sections
        ],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(_rounded(found), indent=2, ensure_ascii=False) + "\n")


def machine() -> dict[str, Any]:
    """Describe the machine and the interpreter."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {package: _version(package) for package in PACKAGES},
    }


def shout(message: str) -> None:
    """Print a message that must not be overlooked."""
    print(f"\n!!! {message}\n", file=sys.stderr, flush=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _number(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
