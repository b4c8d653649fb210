"""Check whether a backend supports the parts and options of a request."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import attrs

from sampling._log import Logger
from sampling.errors import Unsupported
from sampling.messages import Request
from sampling.options import Options
from sampling.parts import Content, Reasoning, Text, ToolCall, ToolResult

__all__ = ["TEXT_PARTS", "Support"]

TEXT_PARTS: tuple[type, ...] = (Text, ToolCall, ToolResult, Reasoning)
"""The parts that are made of text."""

_FIELDS = attrs.fields_dict(Options)

log = Logger("sampling.backends")


@attrs.define
class Support:
    """
    The parts and options that a backend can send.

    Anything else is an error before anything is sent. Options can be dropped instead, with a warning.
    Parts never are, because the answer would be to a different question.
    """

    backend: str
    """The name of the backend, for messages."""

    parts: tuple[type, ...] = TEXT_PARTS
    without: Collection[str] = ()
    """The names of options that the backend does not support."""

    drop_unsupported: bool = False
    _warned: set[str] = attrs.field(factory=set[str], init=False)

    def check(self, request: Request, wrong_values: Mapping[str, str] = MappingProxyType({})) -> Request:
        """
        Return the request as the backend can send it, or raise `Unsupported`.

        `wrong_values` maps options with unsupported values to an explanation.
        """
        for message in request.messages:
            if type(message.content) is not str:
                self._check_parts(message.content)
        given = [name for name in self.without if getattr(request.options, name) not in (None, (), False)]
        given += wrong_values
        if not given:
            return request
        if not self.drop_unsupported:
            names = ", ".join(f"Options.{name} {wrong_values.get(name, '')}".rstrip() for name in given)
            raise Unsupported(f"{self.backend} does not support {names}", hint=_DROP_HINT)
        self._warn(given)
        defaults = {name: _FIELDS[name].default for name in given}
        return attrs.evolve(request, options=attrs.evolve(request.options, **defaults))

    def _check_parts(self, content: Content) -> None:
        for part in _all_parts(content):
            if not isinstance(part, self.parts):
                kinds = ", ".join(sorted(kind.__name__ for kind in self.parts))
                raise Unsupported(f"{self.backend} can't send a part of type {type(part).__name__}: it takes {kinds}")

    def _warn(self, names: list[str]) -> None:
        new = sorted(set(names) - self._warned)
        if new:
            self._warned.update(new)
            log.warning("options_dropped", backend=self.backend, options=new)


_DROP_HINT = "Leave the option out, or pass drop_unsupported=True to the backend to send the request without it."


def _all_parts(content: Content) -> Iterator[object]:
    """Yield all parts of a content, including those in tool results."""
    for part in () if isinstance(content, str) else content:
        yield part
        if isinstance(part, ToolResult):
            yield from _all_parts(part.content)
