"""The page about the architecture is true: what it names is there, and there is no more."""

import importlib
import re
from pathlib import Path

import pytest

import sampling._engine

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
STEP = re.compile(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)")
CONCEPT = re.compile(r"^- \*\*`?(\w+)`?\*\* \(`(\w+)\.py`\)", re.MULTILINE)


def places() -> list[tuple[str, str]]:
    return [(file, name) for file, names in STEP.findall(PAGE) for name in re.findall(r"`([\w.]+)`", names)]


@pytest.mark.parametrize(("file", "name"), places())
def test_every_step_of_a_call_is_where_the_page_says(file, name):
    """A file and a function, or a method of a class in that file."""
    module = importlib.import_module("sampling." + file.removesuffix(".py").replace("/", "."))
    owners = [module, *[value for value in vars(module).values() if isinstance(value, type)]]
    first, _, rest = name.partition(".")
    found = [getattr(owner, first) for owner in owners if hasattr(owner, first)]
    assert found, f"{file} has no {first}"
    assert not rest or any(hasattr(one, rest) for one in found), f"{first} in {file} has no {rest}"


def test_the_engine_has_at_most_ten_concepts_one_in_each_file():
    """Each is named in one line, and no file of the engine is without one."""
    concepts = CONCEPT.findall(PAGE)
    folder = Path(next(iter(sampling._engine.__path__)))
    assert len(concepts) <= 10
    assert {file for _, file in concepts} == {path.stem for path in folder.glob("*.py")} - {"__init__"}
    for name, file in concepts:
        module = importlib.import_module(f"sampling._engine.{file}")
        assert name == file or hasattr(module, name)
