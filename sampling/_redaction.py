"""Secrets that are never printed, and redaction of text from servers."""

import re
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import quote

from sampling._text import quoted

__all__ = ["Redactor", "Secret", "clears_locals", "looks_like_a_key"]

F = TypeVar("F", bound=Callable[..., None])

SAMPLE_BYTES = 200
"""The number of bytes of a response that an error may quote."""

_READ_BYTES = 4096
"""More than is quoted, so that a secret at the end of a sample is recognised as a whole."""

_SHORTEST_SECRET = 4
"""Shorter ones are not masked, because they occur in ordinary text."""

_PREFIX = 8
_BASE64_PREFIX = 10
_MASK = "***"

# Anything that looks like a key is masked, because a server may quote the key of somebody else.
_LOOKS_LIKE_A_KEY = r"(?i:\bbearer\s+)[\w\-.~+/=]+|\b(?:sk|pk|key|api)-[\w\-*.]{8,}"


def looks_like_a_key(text: str) -> bool:
    """Return whether a text contains something that looks like a key."""
    return re.search(_LOOKS_LIKE_A_KEY, text) is not None


class Secret:
    """A string that is never printed or pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({_MASK})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret can't be pickled or copied: it must not leave the process")


class Redactor:
    """Masks secrets in text: plain, %-encoded, in base64, or truncated."""

    __slots__ = ("_pattern", "_secrets")

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._secrets = tuple(secrets)
        self._pattern: re.Pattern[str] | None = None

    def redact(self, text: str) -> str:
        """Return text with every secret masked."""
        # Compiled for the first text: most backends never have one, and it is slow.
        pattern = self._pattern = self._pattern or _compiled(self._secrets)
        return pattern.sub(_MASK, text)

    def sample(self, data: bytes | str) -> str:
        """Return the beginning of untrusted data, redacted, on one line, and safe for a terminal."""
        text = data[:_READ_BYTES]
        if isinstance(text, bytes):
            text = text.decode("utf-8", "backslashreplace")
        shown = quoted(self.redact(text), SAMPLE_BYTES)[1:-1]
        encoded = shown.encode()
        if len(encoded) <= SAMPLE_BYTES:
            return shown
        return encoded[: SAMPLE_BYTES - 3].decode("utf-8", "ignore") + "…"

    def __repr__(self) -> str:
        return "Redactor()"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Redactor can't be pickled or copied: it holds the secrets that it hides")


def _compiled(secrets: Iterable[Secret]) -> re.Pattern[str]:
    """Return the pattern of everything to mask."""
    forms = {form for secret in secrets for form in _forms(secret.reveal())}
    # Longest first, because an alternation takes the first match.
    ordered = sorted(forms, key=len, reverse=True)
    return re.compile("|".join([*ordered, _LOOKS_LIKE_A_KEY]))


def _forms(secret: str) -> Iterable[str]:
    """Return patterns for the encodings of a secret."""
    if len(secret) < _SHORTEST_SECRET:
        return
    yield re.escape(secret)
    yield re.escape(quote(secret, safe=""))
    yield re.escape(repr(secret)[1:-1])  # as escaped in a Python literal
    if len(secret) > _PREFIX:
        # Servers quote a refused key by its beginning: "Incorrect API key provided: sk-abc12***".
        yield re.escape(secret[:_PREFIX]) + r"[\w\-*.%]*"
        # Base64 encodes groups of three bytes, so the text before a secret shifts its encoding.
        for offset in range(3):
            prefix = _inside_base64(secret, offset)[:_BASE64_PREFIX]
            yield re.escape(prefix) + r"[\w+/=-]*"
            yield re.escape(prefix.replace("+", "-").replace("/", "_")) + r"[\w+/=-]*"


def _inside_base64(secret: str, offset: int) -> str:
    """Return the base64 form of a secret that starts `offset` bytes after a multiple of three."""
    data = secret.encode()
    whole = (len(data) + offset) // 3 * 3 - offset
    encoded = b64encode(b"\0" * offset + data[:whole]).decode()
    # The first characters also encode bits of the text before.
    return encoded[(0, 2, 3)[offset] :]


def clears_locals(constructor: F) -> F:
    """
    Clear the local variables of a constructor that raises.

    Its arguments hold a key, and many loggers print the local variables of a traceback.
    """

    @wraps(constructor)
    def construct(*args: Any, **kwargs: Any) -> None:
        try:
            constructor(*args, **kwargs)
        except Exception as error:
            # This frame still runs and can't be cleared, so its variables are replaced.
            args, kwargs = (), {}
            _clear_frames(error)
            raise

    return cast("F", construct)


def _clear_frames(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
