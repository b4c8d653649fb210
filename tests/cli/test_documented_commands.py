"""The commands in README, the documentation and the help texts: flags that exist, and all that are required."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from sampling.cli import _app as cli
from sampling.cli import capacity, demo, doctor, export, load, plan, report, sample
from sampling.cli import map as map_file

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HELPS = [capacity, demo, doctor, export, load, map_file, plan, report, sample]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ |  )sampling (.*)$", re.MULTILINE)


def texts() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of everything that shows commands."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text("utf-8")):
            yield str(page.relative_to(ROOT)), block
    for module in HELPS:
        yield module.__name__, module.EXAMPLES


def commands() -> Iterator[object]:
    for place, text in texts():
        for line in COMMAND.findall(text.replace("\\\n", " ")):
            if "…" not in line:
                yield pytest.param(line, id=f"{place}: {line[:60]}")


@pytest.mark.parametrize("line", list(commands()))
def test_a_documented_command_can_be_parsed(line):
    """It is not run: what it would send depends on servers and files that are not here."""
    words = shlex.split(line, comments=True)
    ends = [index for index, word in enumerate(words) if word in {"|", ">", "<", "2>", "&&", "||"}]
    name, *arguments = words[: min(ends, default=len(words))]
    group = typer.main.get_command(cli.app)
    if name.startswith("-"):
        group.make_context("sampling", [name], resilient_parsing=True)
        return
    group.commands[name].make_context(name, arguments)
