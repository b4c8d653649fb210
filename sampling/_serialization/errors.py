"""
Convert errors to plain JSON and back.

Reading imports and runs nothing: errors are created from a fixed list of types.
"""

import builtins
from typing import Any

from sampling import errors
from sampling._arguments import message_or, short_repr
from sampling._redaction import Redactor
from sampling._serialization.values import MAX_NUMBER
from sampling.errors import ErrorFromJournal

__all__ = ["dump_error", "load_error", "message_of", "redact"]

_redactor = Redactor()

_TYPES: dict[str, type[Exception]] = {
    name: kind
    for module in (builtins, errors)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, BaseExceptionGroup)
}
_DETAILS = {
    "retry_after_s": (int, float),
    "status": (int,),
    "maybe_billed": (bool,),
    "partial_text": (str,),
    "hint": (str,),
}
_MISSING = {"retry_after_s": None, "status": None, "maybe_billed": False, "partial_text": None}
"""The details of an error that has none. A constructor would set them."""


def redact(text: str) -> str:
    """Return a text in which anything that looks like a key is masked."""
    return _redactor.redact(text)


def dump_error(error: BaseException, notes: list[str]) -> dict[str, Any]:
    """
    Return the type and message of an error as JSON.

    Anything that looks like a key is masked. A detail of the wrong type is left out, with a note.
    """
    details: dict[str, Any] = {}
    if isinstance(error, errors.BackendError):
        details = {name: _attribute(error, name) for name in _MISSING}
    if isinstance(error, errors.SamplingError) and "hint" in vars(error):
        # Most errors have the hint of their class.
        hint: Any = error.hint
        details["hint"] = redact(hint) if isinstance(hint, str) else hint
    given = {name: value for name, value in details.items() if value is not None and value is not False}
    kept = {name: value for name, value in given.items() if _is_detail(name, value)}
    notes += [f"{name} of the error is {short_repr(given[name])}, and is not stored" for name in given.keys() - kept]
    return {"type": _type_of(error), "message": redact(message_of(error)), **kept}


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - it may be a property of the user's
        return None


def _is_detail(name: str, value: Any) -> bool:
    if name not in _DETAILS or not isinstance(value, _DETAILS[name]):
        return False
    # An integer may be too large to be read back.
    return not isinstance(value, int | float) or -MAX_NUMBER <= value <= MAX_NUMBER


def _type_of(error: BaseException) -> str:
    # An error that was restored without its type has kept the name of it.
    return error.type_name if isinstance(error, ErrorFromJournal) else type(error).__name__


def message_of(error: BaseException) -> str:
    """Return the message of an error, whatever its `__str__` does."""
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        # str() would quote it, and quote it again after each reading.
        return error.args[0]
    message = message_or(error, "an error that can't be shown")
    if isinstance(error, ErrorFromJournal):
        return message.removeprefix(error.type_name).removeprefix(": ")
    return message


def load_error(record: Any) -> Exception:
    """
    Return the error that `dump_error` described.

    It has its own type if that is one of ours or a builtin, and can have this message.
    """
    details = dict(record)
    type_name, message = str(details.pop("type")), str(details.pop("message"))
    kind = _TYPES.get(type_name)
    if kind is None or kind is ErrorFromJournal:
        return ErrorFromJournal(message, type_name)
    # Bypass the constructor, whose other arguments are not recorded. `args` restores the message.
    error = kind.__new__(kind, message)
    error.args = (message,)
    if isinstance(error, SyntaxError):
        error.msg = message
    if message_of(error) != message:
        # That of a UnicodeDecodeError is made from the bytes, which are not recorded.
        return ErrorFromJournal(message, type_name)
    for name, default in _MISSING.items():
        if isinstance(error, errors.BackendError) and not hasattr(error, name):
            setattr(error, name, default)
    for detail, value in details.items():
        # Earlier versions stored details as the backend gave them, of whatever type.
        if _is_detail(detail, value):
            setattr(error, detail, value)
    return error
