"""
Checks of arguments.

Each error names the argument, shows the value and says what is allowed.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

_MAX_REPR = 80

MAX_ATTEMPTS = 1_000_000
"""The limit of `loop_budget * concurrency_budget`: every attempt is kept in memory, and more is probably a typo."""


def short_repr(value: object) -> str:
    """
    Return a truncated repr for a message.

    It is safe to print, because a repr escapes control characters.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the error being built
        text = f"<{type(value).__name__} object that has no repr>"
    return text if len(text) <= _MAX_REPR else f"{text[: _MAX_REPR - 1]}…"


def message_or(error: BaseException, otherwise: str) -> str:
    """Return the message of an exception, or another text if the exception's own code is broken."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken message must not hide the exception
        return otherwise


def wrong_type(name: str, value: object, allowed: str) -> TypeError:
    """Build the TypeError for an argument of the wrong type."""
    return TypeError(f"{name} must be {allowed}, got {short_repr(value)} ({type(value).__name__})")


def check_int(name: str, value: object, *, least: int | None = None, most: int | None = None) -> int:
    """Return value if it is an int within the bounds, and not a bool."""
    # Not `isinstance`: a bool is an int.
    if type(value) is not int:
        raise wrong_type(name, value, "an int" if least is None else f"an int >= {least}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be <= {most:,}, got {value:,}")
    return value


def check_number(
    name: str, value: object, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> float:
    """Return value if it is a finite number (not a bool) within the bounds."""
    bounds = f" >= {least}" if least is not None else f" > {above}" if above is not None else ""
    bounds += f" and <= {most}" if most is not None else ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, value, f"a number{bounds}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number{bounds}, got {value}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    if above is not None and value <= above:
        raise ValueError(f"{name} must be > {above}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be <= {most}, got {value}")
    return value


def check_str(name: str, value: object, *, empty: bool = True) -> str:
    """
    Return value if it is a str.

    With `empty=False` it must not be blank.
    """
    if not isinstance(value, str):
        raise wrong_type(name, value, "a str")
    if not empty and not value.strip():
        raise ValueError(f"{name} must not be empty, got {value!r}")
    return value


def check_bool(name: str, value: object) -> bool:
    """Return value if it is True or False."""
    if not isinstance(value, bool):
        raise wrong_type(name, value, "True or False")
    return value


def check_instance(name: str, value: object, types: type[Any] | tuple[type[Any], ...], allowed: str) -> None:
    """Raise a TypeError unless value is an instance of `types`."""
    if not isinstance(value, types):
        raise wrong_type(name, value, allowed)


def check_items(name: str, value: object, allowed: str) -> tuple[Any, ...]:
    """
    Return the items of an iterable that is not a str.

    A str is probably a single item without brackets around it.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise wrong_type(name, value, allowed)
    return tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def check_budgets(loop_budget: object, concurrency_budget: object) -> tuple[int, int]:
    """
    Return both budgets if each is an int >= 1.

    Their product must not exceed `MAX_ATTEMPTS`.
    """
    # This runs for every call. The code after the first test only builds the error message.
    if (
        type(loop_budget) is int
        and type(concurrency_budget) is int
        and loop_budget > 0
        and concurrency_budget > 0
        and loop_budget * concurrency_budget <= MAX_ATTEMPTS
    ):
        return loop_budget, concurrency_budget
    depth = check_int("loop_budget", loop_budget, least=1)
    breadth = check_int("concurrency_budget", concurrency_budget, least=1)
    if depth * breadth > MAX_ATTEMPTS:
        raise ValueError(
            f"loop_budget * concurrency_budget must be <= {MAX_ATTEMPTS:,}, got {depth:,} * {breadth:,} attempts"
        )
    return depth, breadth


def unknown_keyword(cls: type[Any], given: str, synonyms: Mapping[str, str]) -> TypeError:
    """Build the TypeError for an unknown keyword argument, with a suggestion."""
    # Imported here because only this error path needs it.
    from difflib import get_close_matches  # noqa: PLC0415

    known = sorted(_keywords(cls))
    close = get_close_matches(given, known, n=1)
    meant = synonyms.get(given) or (close[0] if close else None)
    advice = f"Did you mean {meant!r}?" if meant in known else f"It takes {', '.join(known)}."
    return TypeError(f"{cls.__name__}() got an unexpected keyword argument {given!r}. {advice}")


def _keywords(cls: type[Any]) -> set[str]:
    """
    Return the keyword arguments of a class and its bases.

    They include the keys of an unpacked `TypedDict`.
    """
    # Imported here because only this error path needs it.
    from inspect import Parameter, signature  # noqa: PLC0415
    from typing import get_args  # noqa: PLC0415

    found: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        for parameter in list(signature(vars(base)["__init__"]).parameters.values())[1:]:
            if parameter.kind is Parameter.VAR_KEYWORD:
                for unpacked in get_args(parameter.annotation):
                    found.update(getattr(unpacked, "__annotations__", ()))
            elif parameter.kind not in {Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL}:
                found.add(parameter.name)
    return found


class WrittenOutSignature:
    """
    The `__signature__` of a class, with the keys of an unpacked `TypedDict` written out.

    `inspect.signature`, `help()` and notebooks show it. A default is that of the class attribute, or `...`.
    """

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if instance is not None:
            raise AttributeError("__signature__")  # instances that can be called have a signature of their own
        # Imported here because only help needs it.
        from inspect import Parameter, signature  # noqa: PLC0415
        from typing import get_args  # noqa: PLC0415

        parameters: list[Parameter] = []
        own = signature(owner.__init__)
        for parameter in list(own.parameters.values())[1:]:
            unpacked = get_args(parameter.annotation) if parameter.kind is Parameter.VAR_KEYWORD else ()
            if not unpacked:
                parameters.append(parameter)
            for name, annotation in getattr(unpacked[0] if unpacked else None, "__annotations__", {}).items():
                default = getattr(owner, name, ...)
                default = ... if callable(default) or hasattr(default, "__get__") else default
                parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
        return own.replace(parameters=parameters)
