"""
Make frozen objects quickly.

attrs sets each field of a frozen object by a call of `object.__setattr__`, which takes most of the time to make one.
Here, an object is of another class while its fields are set: a draft, which has the same slots and is not frozen.
Every attempt makes several objects of many fields.
"""

from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

import attrs

__all__ = ["quick", "unchecked"]

C = TypeVar("C")
P = ParamSpec("P")

_SET_CLASS: Any = vars(object)["__class__"].__set__
"""Sets the class of a frozen object, which refuses a plain assignment."""


def quick(cls: type[C]) -> type[C]:
    """Decorate a frozen attrs class with slots: replace its constructor by one that does the same in less time."""
    names = [f"{field.alias}={field.alias}" for field in _given(cls)]
    body = [
        # A subclass has other slots than the draft.
        f"if type(self) is not final: return slow(self, {', '.join(names)})",
        "set_class(self, draft)",
        *_assignments(cls),
        "self.__class__ = final",
    ]
    if hasattr(cls, "__attrs_post_init__"):
        body.append("self.__attrs_post_init__()")
    cls.__init__ = _compiled(cls, "__init__", ["self"], body)  # type: ignore[method-assign]
    return cls


def unchecked(cls: Callable[P, C]) -> Callable[P, C]:
    """Return a function that makes objects of a class as `quick` does, in still less time and without its checks."""
    body = ["self = new(draft)", *_assignments(cls), "self.__class__ = final", "return self"]
    return cast("Callable[P, C]", _compiled(cls, "make", [], body))


def _given(cls: Any) -> list[Any]:
    """Return the fields that the constructor takes."""
    return [field for field in attrs.fields(cls) if field.init]


def _assignments(cls: Any) -> Iterator[str]:
    """Yield a statement for each field."""
    for field in attrs.fields(cls):
        if field.converter is not None or field.validator is not None or isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
            raise TypeError(f"{cls.__name__}.{field.name} must be set as it is given")
        yield f"self.{field.name} = {field.alias if field.init else repr(field.default)}"


def _compiled(cls: Any, name: str, first: list[str], body: list[str]) -> Any:
    """Compile a function that takes the arguments of the constructor of a class."""
    like = cls.__init__
    positional = [field.alias for field in _given(cls) if not field.kw_only]
    keywords = [field.alias for field in _given(cls) if field.kw_only]
    parameters = [*first, *positional, *(["*", *keywords] if keywords else [])]
    source = "\n    ".join([f"def {name}({', '.join(parameters)}):", *body])
    known = {"final": cls, "draft": _draft_of(cls), "new": object.__new__, "set_class": _SET_CLASS, "slow": like}
    # Made of the names of fields alone, as attrs makes its methods.
    exec(compile(source, f"<attrs generated methods {cls.__module__}.{cls.__qualname__}>", "exec"), known)  # noqa: S102
    function = known[name]
    for attribute in ("__defaults__", "__kwdefaults__", "__annotations__", "__doc__", "__module__"):
        setattr(function, attribute, getattr(like, attribute))
    function.__qualname__ = f"{cls.__qualname__}.{name}"
    return function


def _draft_of(cls: type[Any]) -> type[Any]:
    """Return a subclass with the same slots, which is not frozen."""
    plain = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(f"{cls.__name__}Draft", (cls,), {"__slots__": (), **plain})
