"""The front door: `sampling` exports the documented and promised names."""

import re
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from runpy import run_path
from types import SimpleNamespace

import pytest

import sampling

DOCS = Path(__file__).resolve().parent.parent / "docs"

GENERATOR = SimpleNamespace(**run_path(str(DOCS.parent / ".ci" / "reference.py")))
"""The script that generates the pages of the reference."""

GENERATED = GENERATOR.public_modules()
"""What it generates them from; made once, since it parses the whole package."""

PROMISED = {
    "Action Attempt Backend Context Generation Message Options Request Requirement SamplingResult Slice",
    "Usage Validation",
    "BaseSamplingStrategy BestOfNStrategy BudgetForcingStrategy Diverse EscalationStrategy HedgedSamplingStrategy",
    "MBRStrategy MajorityVotingStrategy MultiTurnStrategy RejectionSamplingStrategy RepairTemplateStrategy Tier",
    "AnthropicBackend GeminiBackend LlamaBackend OpenAIBackend SimulatedBackend",
    "Cached Fallback Limited Priced Recorded Replayed Retrying",
    "fan_out open_fan_out FanOutResult ItemOutcome Journal Budget Hooks Event IterationFinished IterationStarted",
    "LoopFinished LoopStarted Repaired current report_usage",
    "BackendError BudgetExceeded FatalError MissingExtra NoValidAnswer RateLimited SamplingError Timeout",
    "TransientError",
}
"""The names of the public contract that exist by now."""

PROTOCOLS = {"Backend", "StreamingBackend"}

NAME = re.compile(r"[A-Za-z_]\w*")
IMPORT = re.compile(r"^\s*from (sampling[\w.]*) import \(?([^)\n#]+|[^)]+)\)?", re.MULTILINE)


def test_there_are_at_most_75_names_and_each_once():
    """A longer list would be hard to read."""
    assert len(set(sampling.__all__)) == len(sampling.__all__) <= 75


def test_every_exported_name_can_be_imported():
    """`from sampling import *` imports exactly these names, and no modules."""
    namespace: dict[str, object] = {}
    exec("from sampling import *", namespace)  # noqa: S102 - this is what a user writes
    assert set(sampling.__all__) == set(namespace) - {"__builtins__"}


def test_everything_public_that_is_there_is_exported():
    """Every public name in the namespace is a module or in `__all__`."""
    there = {name for name in vars(sampling) if not name.startswith("_")}
    modules = {name for name in there if type(vars(sampling)[name]) is type(sampling)}
    accidental = there - modules - set(sampling.__all__) - {"TYPE_CHECKING", "Any", "lazy_attributes"}
    assert set() == accidental


def test_editors_see_every_name():
    """`dir(sampling)`, used for completion, includes the names that are imported on first use."""
    assert {*sampling.__all__, "__version__"} <= set(dir(sampling))


def test_the_version_is_that_of_the_distribution():
    """`sampling.__version__` is the version of the installed distribution."""
    assert version("sampling") == sampling.__version__


def test_a_name_that_does_not_exist_is_an_attribute_error():
    """The error names the package, not a module that it imports from, and its traceback the right spelling."""
    with pytest.raises(AttributeError, match="module 'sampling' has no attribute 'OpenAiBackend'") as raised:
        sampling.OpenAiBackend  # noqa: B018 - it is looked up
    # From these two, Python makes "Did you mean: 'OpenAIBackend'?".
    assert ("OpenAiBackend", sampling) == (raised.value.name, raised.value.obj)
    assert "OpenAIBackend" in dir(sampling)


def test_no_function_shadows_a_module():
    """No exported name is also the name of a module, because the import order would decide which one you get."""
    for found in [sampling, *(import_module(name) for name in public_packages())]:
        modules = {module.name for module in iter_modules(found.__path__)}
        assert set() == modules & set(getattr(found, "__all__", ())), found.__name__


def public_packages() -> list[str]:
    found = walk_packages(sampling.__path__, "sampling.")
    return [module.name for module in found if module.ispkg and "._" not in module.name]


def public_modules() -> list[str]:
    found = walk_packages(sampling.__path__, "sampling.")
    return ["sampling", *(module.name for module in found if "._" not in module.name)]


@pytest.mark.parametrize("name", sorted(" ".join(PROMISED).split()))
def test_every_promised_name_is_exported(name):
    """The names of the public contract are importable from `sampling`."""
    assert name in sampling.__all__


@pytest.mark.parametrize("name", sampling.__all__)
def test_every_exported_name_has_a_docstring(name):
    """Every public name is documented where it is defined."""
    assert getattr(sampling, name).__doc__


@pytest.mark.parametrize("name", public_modules())
def test_every_public_name_has_a_place_in_the_reference(name):
    """The generated reference has each name in the `__all__` of each public module."""
    listed = GENERATED.get(name, {})
    module = import_module(name)
    assert set(getattr(module, "__all__", ())) == set(listed)
    for exported, home in listed.items():
        assert getattr(module, exported) is getattr(import_module(home), exported)
        assert f"::: {home}.{exported}\n" in GENERATOR.page_of(home, GENERATED[home])


def test_what_the_pages_import_is_there():
    """Every `from sampling… import …` in the documentation works."""
    imports = [
        (page, module, name)
        for page in sorted(DOCS.rglob("*.md"))
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8"))
        for name in NAME.findall(names)
    ]
    assert imports, f"no page of {DOCS} imports anything"
    for page, module, name in imports:
        assert hasattr(import_module(module), name), f"{page} imports {name} from {module}, where it is not"


@pytest.mark.parametrize(
    "name", [name for name in sampling.__all__ if name.endswith(("Strategy", "Backend")) and name not in PROTOCOLS]
)
def test_a_notebook_shows_the_arguments_of_a_class(name):
    """`inspect.signature` has every keyword by name, with the default of the class."""
    cls = getattr(sampling, name)
    parameters = signature(cls).parameters
    assert not [one for one in parameters.values() if one.kind is one.VAR_KEYWORD]
    if issubclass(cls, sampling.BaseSamplingStrategy):
        assert parameters["loop_budget"].default == cls.loop_budget
        assert parameters["requirements"].annotation is not None
