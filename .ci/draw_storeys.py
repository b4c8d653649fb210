"""Draw docs/explanation/storeys.svg from the import contract in pyproject.toml. Run it when the contract changes."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/explanation/storeys.svg"
WIDTH, LINE, GAP, PADDING = 720, 22, 8, 12
CHARACTERS_A_LINE = 72
COLOURS = ["#0b5f59", "#0f6f68", "#137e76"]


def storeys() -> list[list[str]]:
    """Return the layers of the first import contract, from the top, each with its modules."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["sampling"])
    return [re.split(r" [:|] ", layer) for layer in layers]


def draw() -> str:
    """Return the picture: boxes in colours of their own, which can be read on a light and on a dark page."""
    y, parts = 0, []
    for number, modules in enumerate(storeys()):
        lines = _wrapped(modules)
        height = LINE * len(lines) + 2 * PADDING
        parts.append(f'<rect y="{y}" width="{WIDTH}" height="{height}" rx="6" fill="{COLOURS[number % len(COLOURS)]}"/>')
        for row, line in enumerate(lines):
            names = "".join(f'<tspan dx="{14 if place else 0}">{name}</tspan>' for place, name in enumerate(line))
            parts.append(f'<text x="{WIDTH / 2:g}" y="{y + PADDING + LINE * row + 16}">{names}</text>')
        y += height + GAP
    style = "text{font:15px ui-monospace,Menlo,Consolas,monospace;fill:#fff;text-anchor:middle}"
    title = "The storeys of the package, from the command line at the top to the foundation. Imports point down."
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GAP}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{style}</style>", *parts, "</svg>", ""])


def _wrapped(names: list[str]) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    for name in names:
        if lines[-1] and sum(len(other) + 2 for other in lines[-1]) + len(name) > CHARACTERS_A_LINE:
            lines.append([])
        lines[-1].append(name)
    return lines


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
