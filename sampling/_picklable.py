"""Exceptions that can be pickled and copied, whatever their constructors take."""

import pickle  # noqa: TID251 - only to find out what can be pickled: nothing is loaded
from typing import Any, Self, cast

__all__ = ["Picklable"]


class Picklable:
    """
    A mixin for exceptions.

    Python restores an exception by calling its class with `args`, which is usually the message alone.
    That fails for every class that takes something else. This restores `args` and the attributes instead.
    """

    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, _picklable_items(self.__dict__))

    def __copy__(self) -> Self:
        return cast("Self", _restore(type(self), self.args, self.__dict__))

    def __deepcopy__(self, memo: object) -> Self:
        # The attributes are frozen values such as results, so copies can share them.
        return self.__copy__()


def _restore(kind: type[Any], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """Make an exception without calling its `__init__`."""
    error = kind.__new__(kind, *args)
    # `__new__` of a builtin exception takes over the arguments, but one of ours may not pass them on.
    error.args = args
    for name, value in attributes.items():
        setattr(error, name, list(value) if name == "__notes__" else value)
    return error


def _picklable_items(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that can be pickled, with a note about those that can't, such as lambdas in a result."""
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    for name, value in attributes.items():
        try:
            pickle.dumps(value)
        except Exception:  # noqa: BLE001 - whatever an object raises means that it can't be pickled
            left_out.append(name)
        else:
            kept[name] = value
    if left_out:
        note = f"not pickled: {', '.join(left_out)}"
        kept["__notes__"] = [*kept.get("__notes__", ()), note]
        kept.update(dict.fromkeys(left_out))
    return kept
