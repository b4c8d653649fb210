"""The front door: `sampling` exports what the documentation lists and what was promised, by name."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import sampling

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"

PROMISED = (
    "Action",
    "Attempt",
    "AuthenticationFailed",
    "Backend",
    "BackendError",
    "BaseSamplingStrategy",
    "Budget",
    "Context",
    "FatalError",
    "Generation",
    "Hooks",
    "IterationFinished",
    "IterationStarted",
    "LoopFinished",
    "LoopStarted",
    "Message",
    "MultiTurnStrategy",
    "Options",
    "RateLimited",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "Repaired",
    "Request",
    "Requirement",
    "SamplingResult",
    "Slice",
    "Timeout",
    "TransientError",
    "Usage",
    "Validation",
    "current",
)
"""The names of the public contract that exist by now."""

IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"[A-Za-z_]\w*")
IMPORT = re.compile(r"^\s*from (sampling[\w.]*) import \(?([^)\n#]+|[^)]+)\)?", re.MULTILINE)


def reference() -> dict[str, str]:
    """The pages of the reference, by name."""
    return {page.name: page.read_text(encoding="utf-8") for page in sorted(REFERENCE.rglob("*.md"))}


def test_the_names_are_sorted_and_stand_there_once():
    """Capitals first, as `sorted` has it."""
    assert sampling.__all__ == sorted(set(sampling.__all__))


def test_every_exported_name_can_be_imported():
    """`from sampling import *` works, and gives none of the modules."""
    namespace: dict[str, object] = {}
    exec("from sampling import *", namespace)  # noqa: S102 - this is what a user writes
    assert set(sampling.__all__) == set(namespace) - {"__builtins__"}


def test_everything_public_that_is_there_is_exported():
    """No name is at the front door by accident, but the modules behind it."""
    there = {name for name in vars(sampling) if not name.startswith("_")}
    modules = {name for name in there if type(vars(sampling)[name]) is type(sampling)}
    assert there - modules == set(sampling.__all__)


@pytest.mark.parametrize("name", PROMISED)
def test_every_promised_name_is_exported(name):
    """The names of the public contract are importable from `sampling`."""
    assert name in sampling.__all__


@pytest.mark.parametrize("name", sampling.__all__)
def test_every_exported_name_has_a_docstring(name):
    """What is public is explained where it is defined."""
    assert getattr(sampling, name).__doc__


@pytest.mark.parametrize("name", sampling.__all__)
def test_every_exported_name_is_in_the_reference(name):
    """In backticks, on some page of docs/reference."""
    listed = {
        found for page in reference().values() for code in IN_BACKTICKS.findall(page) for found in NAME.findall(code)
    }
    assert name in listed, f"no page of {REFERENCE} has `{name}`"


def test_what_the_reference_imports_is_there():
    """Every `from sampling… import …` on its pages works."""
    imports = [
        (page, module, name)
        for page, text in reference().items()
        for module, names in IMPORT.findall(text)
        for name in NAME.findall(names)
    ]
    assert imports, f"no page of {REFERENCE} imports anything"
    for page, module, name in imports:
        assert hasattr(import_module(module), name), f"{page} imports {name} from {module}, where it is not"
