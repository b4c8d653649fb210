"""Frozen objects that are made quickly behave as those that attrs makes."""

import copy
import inspect
import pickle  # noqa: TID251 - what is tested is that it can be done
from typing import Any, Generic, TypeVar

import attrs
import pytest

from sampling import Action, Attempt, Context, Generation, Message, Request, Usage, Validation
from sampling._frozen import quick, unchecked
from sampling.results import SamplingResult, Slice
from sampling.usage import NO_USAGE

T = TypeVar("T")


@attrs.frozen
class Plain(Generic[T]):
    """The class that attrs makes."""

    first: T
    second: int = attrs.field(default=2, kw_only=True)
    third: tuple[str, ...] = ()
    _cached: int | None = attrs.field(default=None, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.second < 0:
            raise ValueError("second must not be negative")

    @property
    def cached(self) -> int | None:
        """The private field."""
        return self._cached


@quick
@attrs.frozen
class Quick(Generic[T]):
    """The same, made quickly."""

    first: T
    second: int = attrs.field(default=2, kw_only=True)
    third: tuple[str, ...] = ()
    _cached: int | None = attrs.field(default=None, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.second < 0:
            raise ValueError("second must not be negative")

    @property
    def cached(self) -> int | None:
        """The private field."""
        return self._cached


make_quick = unchecked(Quick)

MESSAGE = Message("user", "hello")
ACTION = Action("hello")
SLICE = Slice(1, "1", 0, 0, "valid", ACTION, Context([MESSAGE]), Generation("hi"), value="hi")
RESULT = SamplingResult(
    success=True,
    best=SLICE,
    slices=(SLICE,),
    attempts=(SLICE,),
    errors=(),
    usage=NO_USAGE,
    stop_reason="validated",
    sampling_id="1",
    elapsed_s=0.5,
    max_attempts=1,
)
VALUES: list[Any] = [
    Quick("a", third=("b",)),
    MESSAGE,
    Attempt(ACTION, Context([MESSAGE])),
    Request([MESSAGE], sampling_id="1", iteration=3),
    Generation("hi", Usage(1, 2), "length", reasoning="so"),
    Usage(1, 2, 0.5, cache_write_tokens=1),
    Validation(False, "too long", 0.5),
    SLICE,
    RESULT,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
class TestEveryQuickClass:
    def test_has_no_dict(self, value: Any) -> None:
        assert not hasattr(value, "__dict__")

    def test_stays_frozen(self, value: Any) -> None:
        name = attrs.fields(type(value))[0].name
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, None)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            delattr(value, name)
        with pytest.raises(AttributeError):
            value.new = 1

    def test_copies_are_equal(self, value: Any) -> None:
        others = [copy.copy(value), attrs.evolve(value)]
        if not isinstance(value, Request):
            # The read-only mapping in `Options` can be neither pickled nor copied deeply.
            others += [copy.deepcopy(value), pickle.loads(pickle.dumps(value))]  # noqa: S301 - made here
        for other in others:
            assert type(other) is type(value)
            assert other == value
            assert hash(other) == hash(value)
            assert repr(other) == repr(value)

    def test_is_restored_from_the_dict_of_an_object_without_slots(self, value: Any) -> None:
        # As it was pickled by versions whose objects had a `__dict__`.
        state = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
        restored = object.__new__(type(value))
        restored.__setstate__(state)
        assert restored == value

    def test_can_be_subclassed_with_a_dict(self, value: Any) -> None:
        kind = type("Kind", (type(value),), {})
        given = {field.alias: getattr(value, field.name) for field in attrs.fields(type(value)) if field.init}
        made = kind(**given)
        assert type(made) is kind
        assert attrs.astuple(made, recurse=False) == attrs.astuple(value, recurse=False)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(made, attrs.fields(type(value))[0].name, None)


@pytest.mark.parametrize("make", [Quick, make_quick])
class TestArguments:
    def test_sets_all_fields(self, make: Any) -> None:
        made = make("a", ("b",), second=3)
        assert type(made) is Quick
        assert (made.first, made.second, made.third, made.cached) == ("a", 3, ("b",), None)

    def test_has_the_defaults(self, make: Any) -> None:
        assert make("a") == Quick(first="a", second=2, third=())

    @pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("a", (), 3), {}), (("a",), {"fourth": 4})])
    def test_refuses_other_arguments(self, make: Any, args: Any, kwargs: Any) -> None:
        with pytest.raises(TypeError):
            make(*args, **kwargs)


def test_runs_the_checks_only_if_asked_to() -> None:
    with pytest.raises(ValueError, match="second must not be negative"):
        Quick("a", second=-1)
    assert make_quick("a", second=-1).second == -1


def test_keeps_the_signature() -> None:
    assert inspect.signature(Quick) == inspect.signature(Plain)
    assert Quick.__init__.__qualname__ == "Quick.__init__"
    assert Quick.__init__.__module__ == __name__


def test_a_subclass_of_attrs_adds_fields() -> None:
    @attrs.frozen
    class More(Quick[str]):
        fourth: int = 4

    more = More("a", second=3, fourth=5)
    assert (more.first, more.second, more.fourth) == ("a", 3, 5)
    with pytest.raises(ValueError, match="second must not be negative"):
        More("a", second=-1)


@pytest.mark.parametrize(
    "field", [attrs.field(converter=int), attrs.field(validator=attrs.validators.ge(0)), attrs.field(factory=int)]
)
def test_refuses_fields_that_are_not_set_as_given(field: Any) -> None:
    kind: Any = attrs.make_class("Kind", {"number": field}, frozen=True, slots=True)
    with pytest.raises(TypeError, match=r"Kind.number must be set as it is given"):
        quick(kind)
