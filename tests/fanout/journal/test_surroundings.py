"""F16: the fingerprint sees what a check, a parser or a strategy uses of the program around it."""

import importlib.util
import json
import linecache
import sys

import pytest

from sampling import Action, RejectionSamplingStrategy, Requirement, fan_out
from sampling.fanout.journal._fingerprint import differences, fingerprint_of, item_digest
from sampling.fanout.journal._surroundings import changes_in, is_own_code
from tests.faults.journals import InlineJournal, answering, numbers, rows

ONCE = RejectionSamplingStrategy()


@pytest.fixture
def forgotten():
    """Forget the modules that a test imports."""
    before = {*sys.modules}
    yield
    for name in sys.modules.keys() - before:
        del sys.modules[name]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """`load(source, helpers=…)`: the module `program` with this source, as another process would import it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(source, helpers=""):
        for name, text in [("helpers", helpers), ("program", source)]:
            file = tmp_path / f"{name}.py"
            file.write_text(text)
            linecache.checkcache(str(file))
            spec = importlib.util.spec_from_file_location(name, file)
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            if name == "program" or text:
                spec.loader.exec_module(module)
        is_own_code.cache_clear()
        return module

    return load


def of_check(module):
    strategy = getattr(module, "strategy", ONCE)
    return fingerprint_of(strategy, [Requirement("r", module.check)], None, None, None)


CHECKS = {
    "a list": "allowed = [%]\ndef check(text): return text in allowed",
    "a dict": "limits = {'most': %}\ndef check(text): return len(text) < limits['most']",
    "a list that is filled while the module is imported": (
        "allowed = []\nallowed.append(%)\ndef check(text): return text in allowed"
    ),
    "an object": (
        "class Limits:\n    def __init__(self, most): self.most = most\n"
        "limits = Limits(%)\ndef check(text): return len(text) < limits.most"
    ),
    "a callable object": (
        "class Check:\n    def __init__(self, most): self.most = most\n"
        "    def __call__(self, text): return len(text) < self.most\n"
        "CHECK = Check(%)\ndef check(text): return CHECK(text)"
    ),
    "a partial": (
        "import functools\ndef shorter(text, most): return len(text) < most\n"
        "short = functools.partial(shorter, most=%)\ndef check(text): return short(text)"
    ),
    "a class": (
        "class Checks:\n    @staticmethod\n    def short(text): return len(text) < %\n"
        "def check(text): return Checks.short(text)"
    ),
    "a list of a class": (
        "class Checks:\n    allowed = [%]\n    def __call__(self, text): return text in self.allowed\ncheck = Checks()"
    ),
    "an enum": "import enum\nclass Size(enum.Enum):\n    MOST = %\ndef check(text): return len(text) < Size.MOST.value",
    "a pydantic model": (
        "import pydantic\nclass Answer(pydantic.BaseModel):\n    size: int = %\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "a validator of a nested pydantic model": (
        "import pydantic\nclass Part(pydantic.BaseModel):\n    size: int\n"
        "    @pydantic.field_validator('size')\n    @classmethod\n    def small(cls, size): return min(size, %)\n"
        "class Answer(pydantic.BaseModel):\n    parts: list[Part] | None = None\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "a cached function": (
        "import functools\n@functools.cache\ndef short(text): return len(text) < %\ndef check(text): return short(text)"
    ),
    "a cached method": (
        "import functools\nclass Check:\n    @functools.lru_cache\n    def short(self, text): return len(text) < %\n"
        "    def __call__(self, text): return self.short(text)\ncheck = Check()"
    ),
    "a cached property": (
        "import functools\nclass Check:\n    @functools.cached_property\n    def most(self): return %\n"
        "    def __call__(self, text): return len(text) < self.most\ncheck = Check()"
    ),
    "a partial method": (
        "import functools\nclass Check:\n    def shorter(self, most, text): return len(text) < most\n"
        "    short = functools.partialmethod(shorter, %)\n    def __call__(self, text): return self.short(text)\n"
        "check = Check()"
    ),
    "a descriptor": (
        "class Most:\n    def __get__(self, check, kind): return %\n"
        "class Check:\n    most = Most()\n    def __call__(self, text): return len(text) < self.most\ncheck = Check()"
    ),
    "an inner class": (
        "class Check:\n    class Limits:\n        @staticmethod\n        def short(text): return len(text) < %\n"
        "    def __call__(self, text): return self.Limits.short(text)\ncheck = Check()"
    ),
    "a metaclass": (
        "class Kind(type):\n    def short(cls, text): return len(text) < %\nclass Checks(metaclass=Kind): pass\n"
        "def check(text): return Checks.short(text)"
    ),
    "the method of an enum member": (
        "import enum\nclass Mode(enum.Enum):\n    STRICT = 1\n    def short(self, text): return len(text) < %\n"
        "mode = Mode.STRICT\ndef check(text): return mode.short(text)"
    ),
    "the value of an enum member": (
        "import enum\nclass Mode(enum.Enum):\n    STRICT = %\nmode = Mode.STRICT\n"
        "def check(text): return len(text) < mode.value"
    ),
    "the method of a dict": (
        "class Limits(dict):\n    def short(self, text): return len(text) < self['most'] + %\n"
        "limits = Limits(most=9)\ndef check(text): return limits.short(text)"
    ),
    "the attribute of a list": (
        "class Words(list):\n    most = 9\nwords = Words()\nwords.most = %\n"
        "def check(text): return len(text) < words.most"
    ),
    "the method of a named tuple": (
        "from typing import NamedTuple\nclass Limits(NamedTuple):\n    most: int\n"
        "    def short(self, text): return len(text) < self.most + %\nlimits = Limits(9)\n"
        "def check(text): return limits.short(text)"
    ),
    "the fields of a named tuple": (
        "from collections import namedtuple\nLimits = namedtuple('Limits', ['least', 'most'][:: 1 if % == 3 else -1])\n"
        "limits = Limits(1, 9)\ndef check(text): return len(text) < limits.most"
    ),
    "a getter": "import operator\nget = operator.itemgetter(%)\ndef check(text): return bool(get(text))",
    "the caller of a method": "import operator\ncheck = operator.methodcaller('startswith', '%')",
    "a deque": "from collections import deque\nallowed = deque([%])\ndef check(text): return text in allowed",
    "a setter": (
        "class Limits:\n    @property\n    def most(self): return self._most\n"
        "    @most.setter\n    def most(self, most): self._most = most * %\n"
        "def check(text):\n    limits = Limits()\n    limits.most = 1\n    return len(text) < limits.most"
    ),
    "a class with parameters": (
        "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass Short(Generic[T]):\n"
        "    @classmethod\n    def check(cls, text): return len(text) < %\n"
        "ShortText = Short[str]\ndef check(text): return ShortText.check(text)"
    ),
    "parameters": "exec(f'def check(text, {\"*\" * (% - 3)}rest): return True')",
    "whether objects are compared": (
        "import dataclasses\n@dataclasses.dataclass(eq=% == 3)\nclass Answer:\n    text: str\n"
        "def check(text): return Answer(text) == Answer(text)"
    ),
    "whether objects are compared by a field": (
        "import dataclasses\n@dataclasses.dataclass\nclass Answer:\n"
        "    text: str = dataclasses.field(compare=% == 3)\ndef check(text): return Answer(text) == Answer('')"
    ),
    "whether objects of attrs are compared by a field": (
        "import attrs\n@attrs.define\nclass Answer:\n    text: str = attrs.field(eq=% == 3)\n"
        "def check(text): return Answer(text) == Answer('')"
    ),
    "the names of a pydantic field": (
        "import pydantic\nclass Answer(pydantic.BaseModel):\n"
        "    size: int = pydantic.Field(1, validation_alias=pydantic.AliasChoices('a', 'b%'))\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "whether a default of pydantic is validated": (
        "import pydantic\nclass Answer(pydantic.BaseModel):\n"
        "    size: int = pydantic.Field('1', validate_default=% == 3)\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "the configuration of a pydantic dataclass": (
        "import pydantic.dataclasses\n@pydantic.dataclasses.dataclass(config={'strict': % == 3})\n"
        "class Answer:\n    size: int\ndef check(text): return bool(Answer(text))"
    ),
    "an error": "ERROR = ValueError('%')\ndef check(text): raise ERROR",
    "a decoder": "import json\ndecoder = json.JSONDecoder(strict=% == 3)\ndef check(text): return decoder.decode(text)",
    "a docstring that is read": (
        "class Limits:\n    '''At most %.'''\ndef check(text): return str(len(text)) in Limits.__doc__"
    ),
    "the docstring of a module that is read": "'''At most %.'''\ndef check(text): return str(len(text)) in __doc__",
    "an annotation that is read": (
        "class Limits:\n    most: 'int' if % == 3 else 'str'\n"
        "def check(text): return Limits.__annotations__['most'] == text"
    ),
    "an annotation of a function that is read": (
        "import inspect\ndef parse(text: 'int' if % == 3 else 'str'): pass\n"
        "def check(text): return bool(inspect.signature(parse))"
    ),
    "a list for which another function has a name of its own": (
        "words, limits = [%], {'most': %}\ndef check(text): return text in words and len(text) < limits['most']\n"
        "def fill(words): words.append(1)\n"
        "def load():\n    limits = {}\n    def inner(): limits['most'] = 1\n    limits['most'] = 2\n    return inner"
    ),
    "a module of the same name": (
        "import json as reader\nif % == 3: import csv as reader\ndef check(text): return bool(reader.reader(text))"
    ),
    "an imported function of the same name": (
        "from textwrap import indent\nif % == 3: from xml.etree.ElementTree import indent\n"
        "def check(text): return bool(indent(text, ''))"
    ),
    "an imported class of the same name": (
        "from decimal import Decimal as Number\nif % == 3: from fractions import Fraction as Number\n"
        "def check(text): return bool(Number(text))"
    ),
    "objects of packages in a class": (
        "import datetime\nclass Check:\n    age = datetime.timedelta(%)\n"
        "    def __call__(self, text): return self.age.days > 3\ncheck = Check()"
    ),
    "a requirement in a class": (
        "from sampling import checks\nclass Check:\n    inner = checks.matches('a{%}')\n"
        "    def __call__(self, text): return self.inner.check(text)\ncheck = Check()"
    ),
    "a class of a package in a class": (
        "import decimal, fractions\nclass Check:\n    number = decimal.Decimal if % == 3 else fractions.Fraction\n"
        "    def __call__(self, text): return bool(self.number(text))\ncheck = Check()"
    ),
    "the fields that a validator is for": (
        "import pydantic\nclass Answer(pydantic.BaseModel):\n    size: int\n    price: int\n"
        "    @pydantic.field_validator('size' if % == 3 else 'price')\n    @classmethod\n"
        "    def small(cls, number): return min(number, 3)\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "when a validator runs": (
        "import pydantic\nclass Answer(pydantic.BaseModel):\n    size: int\n"
        "    @pydantic.field_validator('size', mode='before' if % == 3 else 'after')\n    @classmethod\n"
        "    def small(cls, number): return number * 2\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "a type that its schema does not show": (
        "import pydantic\nclass Answer(pydantic.BaseModel):\n"
        "    day: list[pydantic.PastDate if % == 3 else pydantic.FutureDate] | None\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "a type in a named tuple": (
        "from typing import NamedTuple\nclass Answer(NamedTuple):\n    size: int if % == 3 else str\n"
        "def check(text): return bool(Answer.__new__(Answer, text))"
    ),
    "the order of the fields of a pydantic model": (
        "import pydantic\nnames = ['why', 'answer'][:: 1 if % == 3 else -1]\n"
        "Answer = pydantic.create_model('Answer', **{name: (str, '') for name in names})\n"
        "def check(text): return bool(Answer.model_validate_json(text))"
    ),
    "metadata of fields": (
        "import attrs, dataclasses\n@attrs.define\nclass Size:\n    most: int = attrs.field(metadata={'most': %})\n"
        "@dataclasses.dataclass\nclass Least:\n    least: int = dataclasses.field(metadata={'least': %})\n"
        "def check(text): return attrs.fields(Size), dataclasses.fields(Least)"
    ),
    "an object that generates something": (
        "class Template:\n    def __init__(self, text): self.text = text\n    def generate(self): return self.text\n"
        "template = Template('%')\ndef check(text): return text == template.generate()"
    ),
    "an object with a pattern": (
        "import re\nclass Check:\n    def __init__(self, pattern, flags, least):\n"
        "        self.pattern, self.flags, self.least = pattern, flags, least\n"
        "    def __call__(self, text): return len(re.findall(self.pattern, text, self.flags)) > self.least\n"
        "check = Check('a', 0, %)"
    ),
    "a class with a pattern": (
        "import re\nclass Words:\n    pattern, flags, least = 'a', 0, %\n"
        "def check(text): return len(re.findall(Words.pattern, text, Words.flags)) > Words.least"
    ),
    "an object with a schema": (
        "class Check:\n    schema = {}\n    def __init__(self, least): self.least = least\n"
        "    def iter_errors(self, text): return [] if len(text) > self.least else ['short']\n"
        "    def __call__(self, text): return not self.iter_errors(text)\ncheck = Check(%)"
    ),
    "an object that validates": (
        "class Check:\n    def __init__(self, least): self.least = least\n    def json_schema(self): return {}\n"
        "    def validate_python(self, text): return len(text) > self.least\n"
        "    def __call__(self, text): return self.validate_python(text)\ncheck = Check(%)"
    ),
    "a timezone": (
        "import datetime\nclass Zone(datetime.tzinfo):\n"
        "    def utcoffset(self, when): return datetime.timedelta(hours=%)\n"
        "zone = Zone()\nstart = datetime.datetime(2026, 1, 1, tzinfo=Zone())\n"
        "def check(text): return text > start.isoformat() and bool(zone)"
    ),
    "the method of a date": (
        "import datetime\nclass Day(datetime.date):\n    def later(self): return self.day + %\n"
        "day = Day(2026, 1, 1)\ndef check(text): return len(text) < day.later()"
    ),
    "a generic type": (
        "import typing\nkinds = [list[typing.Literal[%]], int | list[typing.Literal[%]]]\n"
        "def check(text): return bool(kinds)"
    ),
}

TEXTS = {
    "the docstring of a check": "def check(text):\n    %\n    return len(text) < 9 and text not in {'a', 'b'}",
    "that of a helper": (
        "def short(text):\n    %\n    return len(text) < 9, None, 'One.'\ndef check(text): return short(text)"
    ),
    "that of an inner function": (
        "def check(text):\n    def short():\n        %\n        return len(text) < 9\n    return short()"
    ),
    "that of a class and a method": (
        "class Limits:\n    %\n    def least(self):\n        %\n        return 0\n"
        "def check(text): return len(text) > Limits().least()"
    ),
    "that of a module": "%\ndef check(text): return len(text) < 9",
    "that of a strategy": (
        "from sampling import RejectionSamplingStrategy\nclass Mine(RejectionSamplingStrategy):\n    %\n"
        "    def repair(self, history):\n        %\n        return super().repair(history)\nstrategy = Mine()\n"
        "def check(text): return True"
    ),
    "a comment": "def check(text):\n    # %\n    return len(text) < 9",
}
"""Checks whose answers do not depend on a part of their source."""

HELPERS = {
    "a function of another module": ("import helpers\ndef check(text): return helpers.short(text)"),
    "an imported function": ("from helpers import short\ndef check(text): return short(text)"),
    "a module that a check imports itself": ("def check(text):\n    import helpers\n    return helpers.short(text)"),
}


@pytest.mark.parametrize("change", CHECKS)
def test_what_a_check_uses_of_its_module_is_seen(load, change):
    """F16: it need be neither a constant in capitals nor a function."""
    before, after = (CHECKS[change].replace("%", value) for value in "34")
    then = json.loads(json.dumps(of_check(load(before))))
    assert [] == then["unseen"]
    assert [] == differences(then, of_check(load(before)))
    assert differences(then, of_check(load(after)))


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    "line",
    ["import kit.inner as inner", "from kit import inner", "from kit.inner import short", "import kit.inner, kit"],
)
def test_a_module_of_a_package_that_a_check_imports_itself_is_seen(load, tmp_path, line):
    """F16: before and after its first call, which imports it."""
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "__init__.py").touch()
    use = {"import kit.inner, kit": "kit.inner.short", "from kit.inner import short": "short"}.get(line, "inner.short")
    # So many names that the number of an import takes more than a byte.
    names = "; ".join(f"text.name_{number}" for number in range(300))
    check = load(f"def check(text):\n    if not text: {names}\n    {line}\n    return {use}(text)").check

    def described(most):
        (kit / "inner.py").write_text(f"def short(text): return len(text) < {most}")
        importlib.invalidate_caches()
        return fingerprint_of(ONCE, [Requirement("r", check)], None, None, None)

    then = described(3)
    assert differences(then, described(4))
    assert then == described(3)
    assert check("a")
    assert [] == differences(then, described(3))


@pytest.mark.usefixtures("forgotten")
def test_a_module_that_a_check_imports_from_its_own_package_is_seen(tmp_path, monkeypatch):
    """F16: a relative name alone is that of no module, or of another one."""
    monkeypatch.syspath_prepend(tmp_path)
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "__init__.py").touch()
    (kit / "checks.py").write_text(
        "def check(text):\n    from . import sizes\n    from .words import KNOWN\n    return sizes.short(text) in KNOWN"
    )
    importlib.invalidate_caches()
    check = importlib.import_module("kit.checks").check

    def described(most, known):
        (kit / "sizes.py").write_text(f"def short(text): return text[:{most}]")
        (kit / "words.py").write_text(f"KNOWN = {known}")
        importlib.invalidate_caches()
        return fingerprint_of(ONCE, [Requirement("r", check)], None, None, None)

    then = described(3, ["a"])
    assert [] == differences(then, described(3, ["a"]))
    assert differences(then, described(4, ["a"]))
    assert differences(then, described(3, ["b"]))


@pytest.mark.parametrize("text", ["", "'Another.'"])
@pytest.mark.parametrize("place", TEXTS)
def test_what_only_people_read_is_no_change(load, place, text):
    """F11: a docstring or a comment decides no answer, unless a model or the code reads it."""
    then = json.loads(json.dumps(of_check(load(TEXTS[place].replace("%", "'One.'")))))
    assert [] == differences(then, of_check(load(TEXTS[place].replace("%", text))))


@pytest.mark.parametrize("use", HELPERS)
def test_what_only_people_read_of_another_module_is_no_change(load, use):
    """F11: even if a check imports the module itself, so that its source is all that is known of it."""
    helpers = "{0}\n# {0}\ndef short(text):\n    {0}\n    return len(text) < 9\nclass Empty:\n    {0}\n"
    before, after = (of_check(load(HELPERS[use], helpers.format(text))) for text in ("'One.'", "'Another.'"))
    assert [] == differences(before, after)


def test_what_a_try_covers_is_seen(load):
    """F16: an error of a statement that moved into a `try` is no longer raised. The instructions are the same."""
    lines = ["def check(text):", "    try:", "        a = int(text)", "    except ValueError:", "        return False"]
    outside, inside = (
        [*lines, "    int(text)", "    return True"],
        [*lines[:3], "        int(text)", *lines[3:], "    return True"],
    )
    assert differences(*(of_check(load("\n".join(one))) for one in (outside, inside)))


def test_a_function_of_a_package_is_known_by_its_name(load):
    """F11: those of NumPy and the like are written in C."""
    pytest.importorskip("numpy")
    source = (
        "from numpy import add\nfrom numpy.linalg import norm\ndef check(text): return norm([1.0]) < {}(1, len(text))"
    )
    then = of_check(load(source.format("add")))
    assert [] == then["unseen"] == differences(then, of_check(load(source.format("add"))))
    assert differences(then, of_check(load(source.format("add") + "\nfrom numpy import subtract as add")))


def test_a_file_that_is_only_written_is_not_asked_about(load, tmp_path):
    """F11: a check may write a log. What is in a file that it may read decides answers."""
    source = "file = open({!r}, {!r})\ndef check(text): print(text, file=file)"
    modules = [load(source.format(str(tmp_path / "log"), mode)) for mode in ("w", "a", "r")]
    try:
        unseen = [of_check(module)["unseen"] for module in modules]
    finally:
        for module in modules:
            module.file.close()
    assert [[], [], ["requirements[0].check.globals.file (_io.TextIOWrapper)"]] == [
        [place.replace("program.", "requirements[0].check.globals.") for place in places] for places in unseen
    ]


@pytest.mark.parametrize("package", ["prometheus_client", "opentelemetry.trace"])
def test_what_counts_the_calls_of_a_check_is_no_setting(load, package):
    """F11: a counter has the time at which it was made, and what was counted."""
    pytest.importorskip(package)
    made = {
        "prometheus_client": "p.Counter('c', 'd', registry=p.CollectorRegistry())",
        "opentelemetry.trace": "p.get_tracer('t')",
    }
    source = (
        f"import {package} as p\ncounter = {made[package]}\ndef count(): counter.{{}}\n"
        "def check(text): return bool(count())"
    ).format("inc()" if package == "prometheus_client" else "start_span('check')")
    then = of_check(load(source))
    again = load(source)
    again.check("")
    assert [] == then["unseen"] == differences(then, of_check(again))
    assert {"class"} == then["uses"]["program.counter"].keys()


@pytest.mark.parametrize("use", HELPERS)
def test_what_a_check_uses_of_other_modules_is_seen(load, use):
    """F16: a helper may be in another file of the program."""
    helpers = "least = 1\ndef short(text): return least < len(text) < {}"
    then = of_check(load(HELPERS[use], helpers.format(3)))
    assert [] == then["unseen"]
    assert [] == differences(then, of_check(load(HELPERS[use], helpers.format(3))))
    assert differences(then, of_check(load(HELPERS[use], helpers.format(4))))


STATES = {
    "an attribute of a callable object": (
        "class Check:\n    def __init__(self): self.seen, self.limit = [], 9\n"
        "    def __call__(self, text):\n        self.remember(text)\n        return len(text) < self.limit\n"
        "    def remember(self, text): self.seen.append(text)\n"
        "    def set_limit(self, limit): self.limit = limit\n"
        "owner = check = Check()"
    ),
    "an attribute of the object of a method": (
        "class Check:\n    def __init__(self): self.__calls, self.limit = 0, 9\n"
        "    def short(self, text):\n        self.__calls += 1\n        return len(text) < self.limit\n"
        "    def set_limit(self, limit): self.limit = limit\n"
        "owner = Check()\ncheck = owner.short"
    ),
    "an attribute of an object of the module": (
        "class Check:\n    def __init__(self): self.seen, self.limit = set(), 9\n"
        "    def short(self, text):\n        self.seen.add(text)\n        return len(text) < self.limit\n"
        "    def set_limit(self, limit): self.limit = limit\n"
        "owner = Check()\ndef check(text): return owner.short(text)"
    ),
    "a container that it gives to a function": (
        "class Owner:\n    def __init__(self): self.limit = 9\n    def set_limit(self, limit): self.limit = limit\n"
        "owner, seen = Owner(), set()\ndef remember(text, seen): seen.add(text)\n"
        "def check(text):\n    remember(text, seen)\n    return len(text) < owner.limit"
    ),
    "variables of a closure": (
        "class Owner:\n    def set_limit(self, limit): limits.append(limit)\n"
        "owner, limits = Owner(), None\n"
        "def make():\n    calls, seen, sizes = 0, set(), [9]\n    def check(text):\n        nonlocal calls\n"
        "        calls += 1\n        seen.add(text)\n        return len(text) < sizes[-1]\n    return check, sizes\n"
        "check, limits = make()"
    ),
    "containers in capitals": (
        "CACHE, SEEN, LIMITS = {}, set(), [9]\n"
        "class Owner:\n    def set_limit(self, limit): LIMITS.append(limit)\n"
        "owner = Owner()\ndef remember(text): SEEN.add(text)\n"
        "def check(text):\n    CACHE[text] = text not in SEEN\n    remember(text)\n    return len(text) < LIMITS[-1]"
    ),
    "variables that are declared global": (
        "import re\ncalls, pattern, limit = 0, None, 9\n"
        "def short():\n    global pattern\n    pattern = pattern or re.compile('.')\n    return pattern\n"
        "class Owner:\n    def set_limit(self, new):\n        global limit\n        limit = new\nowner = Owner()\n"
        "def check(text):\n    global calls\n    calls += 1\n    return bool(short()) and len(text) < limit"
    ),
    "an attribute of the class": (
        "class Check:\n    total, limit = 0, 9\n"
        "    def __call__(self, text):\n        Check.total += 1\n        return len(text) < self.limit\n"
        "    def set_limit(self, limit): self.limit = limit\n"
        "owner = check = Check()"
    ),
    "a cached property": (
        "import functools\nclass Check:\n    def __init__(self): self.limit = 9\n"
        "    @functools.cached_property\n    def least(self): return 0\n"
        "    def __call__(self, text): return self.least < len(text) < self.limit\n"
        "    def set_limit(self, limit): self.limit = limit\n"
        "owner = check = Check()"
    ),
    "files that it writes": (
        "import pathlib, tempfile\nFOLDER = tempfile.mkdtemp()\n"
        "LOG, other, LIMITS = (pathlib.Path(FOLDER, name) for name in 'abc')\nLIMITS.write_text('9')\n"
        "class Owner:\n    def set_limit(self, limit):\n        with open(str(LIMITS), 'w') as file: file.write('5')\n"
        "owner = Owner()\ndef check(text):\n    with LOG.open('a') as file: file.write(text)\n"
        "    with open(other, mode='w') as file: file.write(text)\n    return len(text) < int(LIMITS.read_text())"
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_what_a_check_changes_itself_is_no_setting(load, state):
    """F11: a run can be resumed by the process that began it. What only other code sets is still compared."""
    module = load(STATES[state])
    then = json.loads(json.dumps(of_check(module)))
    assert [] == then["unseen"]
    assert module.check("a")
    assert module.check("b")
    assert [] == differences(then, of_check(module))
    module.owner.set_limit(5)
    assert differences(then, of_check(module))


def test_what_a_strategy_changes_itself_is_no_setting(load):
    """F11: a decision may count its calls. What only other code sets is still compared."""
    module = load(
        "from sampling import RejectionSamplingStrategy\nclass Mine(RejectionSamplingStrategy):\n"
        "    def __init__(self):\n        super().__init__()\n        self.calls, self.limit = 0, 9\n"
        "    def select(self, slices):\n        self.calls += 1\n        return slices[0]\n"
        "    def set_limit(self, limit): self.limit = limit"
    )
    strategy = module.Mine()
    then = fingerprint_of(strategy, [], None, None, None)
    strategy.select(["slice"])
    assert [] == differences(then, fingerprint_of(strategy, [], None, None, None))
    strategy.set_limit(5)
    assert differences(then, fingerprint_of(strategy, [], None, None, None))


def test_the_cache_of_a_dispatching_function_is_no_setting(load):
    """F11: Python fills it at the first call."""
    module = load(
        "import functools\n@functools.singledispatch\ndef short(text): return False\n"
        "@short.register\ndef _(text: str): return len(text) < 9\ndef check(text): return short(text)"
    )
    then = of_check(module)
    assert module.check("a")
    assert [] == differences(then, of_check(module))


def test_what_the_program_changes_is_no_setting(load):
    """F16: a cache, a counter and what code assigns are different at every resume, and change no answer."""
    source = (
        "cache = {@: 1}\nseen = [@]\nclass Stats: asked = @\nstats = Stats()\n"
        "def remember(text): cache[text] = seen.append(text)\n"
        "def check(text):\n    stats.asked += 1\n    remember(text)\n    return text in cache and bool(seen)"
    )
    then, now = (of_check(load(source.replace("@", value))) for value in "34")
    assert [] == differences({**then, "uses": {}}, {**now, "uses": {}})
    assert not {"program.cache", "program.seen", "program.stats"} & then["uses"].keys()


def test_functions_that_use_each_other_are_described_once(load):
    """F16: neither a cycle nor a web of helpers makes a description long."""
    calls = "".join(
        f"    @staticmethod\n    def use{number}(text): return Web.use{(number + 1) % 30}, Web.use{(number + 2) % 30}\n"
        for number in range(30)
    )
    described = of_check(load(f"class Web:\n{calls}def check(text): return Web.use0(text)"))
    assert [] == described["unseen"]
    assert len(json.dumps(described)) < 100_000


def test_installed_packages_are_known_by_their_name(load):
    """F16: their code and state are not searched."""
    source = "import attrs, json, pytest\ndef check(text): return attrs.asdict and json.loads(text) and pytest.raises"
    assert {} == of_check(load(source))["uses"]


def test_the_environment_is_asked_about_and_not_stored(load, monkeypatch):
    """F16: it differs between machines, and may hold keys."""
    monkeypatch.setenv("SOME_VARIABLE", "canary")
    described = of_check(load("from os import environ\ndef check(text): return text in environ"))
    assert ["program.environ (os._Environ)"] == described["unseen"]
    assert "canary" not in json.dumps(described)


def test_private_settings_of_a_strategy_are_seen(load):
    """F16: those that only the constructor sets. What methods change is state."""
    source = (
        "from sampling import RejectionSamplingStrategy\n"
        "class Picky(RejectionSamplingStrategy):\n"
        "    def __init__(self, most):\n"
        "        super().__init__()\n        self._most = self.__least = most\n        self._calls = 0\n"
        "    def select(self, slices):\n        self._calls += 1\n        return slices[self._most]\n"
    )
    picky = load(source).Picky
    before, after = (fingerprint_of(picky(most), [], None, None, None) for most in (0, 1))
    assert 'strategy._most: was "0", is "1"' in differences(before, after)
    assert 'strategy._Picky__least: was "0", is "1"' in differences(before, after)
    counted = picky(0)
    counted._calls = 9
    assert [] == differences(before, fingerprint_of(counted, [], None, None, None))


def test_the_timeout_of_a_requirement_is_seen():
    """F16: an answer whose check takes too long is invalid."""
    before, after = (Requirement("r", str.istitle, timeout_s=limit) for limit in (1, 2))
    assert differences(
        fingerprint_of(ONCE, [before], None, None, None), fingerprint_of(ONCE, [after], None, None, None)
    )


def test_a_parser_that_gains_a_validator_is_another_question(load):
    """F17: even if it had none before, as in what an earlier version recorded."""
    plain = "import pydantic\nclass Answer(pydantic.BaseModel):\n    size: int\n"
    validator = (
        "    @pydantic.field_validator('size')\n    @classmethod\n    def small(cls, size): return min(size, 3)\n"
    )
    before, after = (item_digest(Action("q", load(source).Answer), 0) for source in (plain, plain + validator))
    assert before != after


def test_a_journal_of_an_earlier_format_is_resumed(load):
    """F17: it did not look around, so nothing that is seen now is known to have changed."""
    source = "from os import environ\nallowed = ['a']\ndef check(text): return text in allowed and text in environ"
    now = of_check(load(source))
    then = {name: value for name, value in now.items() if name != "uses"} | {"format": 3, "unseen": []}
    assert [] == differences(then, now)


@pytest.mark.parametrize("name", ["client", "CLIENT"])
def test_keys_are_not_stored(load, run, tmp_path, name):
    """I17: a key in an object that a check uses is stored as a digest, and is not shown in a difference."""
    source = (
        "class Client:\n    def __init__(self, key):\n"
        "        self.api_key = key\n        self.headers = {'x-auth': 'Bearer ' + key}\n"
        f"{name} = Client('@')\ndef check(text): return bool({name}.api_key)"
    )
    check = Requirement("r", load(source.replace("@", "canary-one")).check)
    path = tmp_path / "run.db"
    run(fan_out, ONCE, iter(numbers(2)), None, answering(), [check], journal=InlineJournal(path))
    ((stored,),) = rows(path, "SELECT fingerprint FROM run")
    assert "canary" not in stored
    found = differences(json.loads(stored), of_check(load(source.replace("@", "canary-two"))))
    assert found
    assert "canary" not in " ".join(found)


def test_what_is_changed_is_found_in_the_source(load):
    """F16: a name that is changed in any function of the module is state."""
    module = load(
        "def f(x):\n    global a\n    a = x.b.c[0] = 1\n    del d[0]\n    e.f.append(1)\n    (lambda: g.pop())()\n"
    )
    assert {"a", "x", "d", "e", "g"} == changes_in(module.f).names
    assert {"b", "c", "f"} == changes_in(module.f).attributes


def test_functions_that_call_each_other_are_described_once(load):
    """F16: there are any number of ways through the functions of a parser, for example."""
    functions = [
        f"def check_{number}(text):\n    return text == '{number}' or "
        + " or ".join(f"check_{(7 * number + place) % 30}(text)" for place in range(4))
        for number in range(30)
    ]
    source = "\n".join([*functions, "check = check_0"])
    before = of_check(load(source))
    assert len(json.dumps(before)) < 10_000
    (difference,) = differences(before, of_check(load(source.replace("'11'", "'x'"))))
    assert "check_11.code of Python" in difference


def test_functions_of_modules_with_one_name_are_told_apart():
    """F16: a program may make its modules itself."""

    def check_of(most):
        made = {"__name__": __name__}
        exec(f"def short(text): return len(text) < {most}\ndef check(text): return short(text)", made)  # noqa: S102
        return Requirement("r", made["check"])

    before, after = (fingerprint_of(ONCE, [check_of(7), check_of(most)], None, None, None) for most in (8, 9))
    assert differences(before, after)
