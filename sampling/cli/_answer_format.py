"""The format of answers: their type, their schema, and the requirements on them."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from sampling._json.extraction import read_json
from sampling._schemas.output_types import is_output_type, reader_for
from sampling._text import unfenced
from sampling.cli._imports import import_target
from sampling.cli._specs import read_schema
from sampling.messages import Action

__all__ = ["AnswerFormat", "parse_format"]

_ANY_OBJECT = {"type": "object"}
"""The schema of `--require json`. Servers constrain answers to objects only, as JSON modes do."""


@attrs.frozen
class AnswerFormat:
    """The parser of answers, and the schema that the server constrains them to."""

    parser: Callable[[str], Any] | None = None
    schema: Any = None
    """For `Options.schema`. None if answers are text, or are not to be constrained."""

    def action(self, prompt: str) -> Action[Any]:
        """Return the action that asks a prompt."""
        return Action(prompt) if self.parser is None else Action(prompt, self.parser)

    def shown(self, text: str) -> str:
        """Return an answer as it is printed. JSON is printed without its code fence."""
        return text if self.parser is None else unfenced(text)


def parse_format(type_spec: str | None, specs: Sequence[str], *, constrain: bool) -> AnswerFormat:
    """Return the answer format for `--type` and `--require`."""
    schemas = [spec for spec in specs if spec.startswith("schema:")]
    if len(schemas) + (type_spec is not None) > 1:
        given = ["--type"] * (type_spec is not None) + [f"--require {spec}" for spec in schemas]
        raise ValueError(f"{' and '.join(given)} contradict each other: an answer has one schema. Keep one of them")
    if type_spec is not None:
        reader = reader_for(_imported_type(type_spec))
        return AnswerFormat(reader, reader.schema if constrain else None)
    if schemas:
        return AnswerFormat(_read_answer, _schema(schemas[0]) if constrain else None)
    return AnswerFormat(_read_answer, _ANY_OBJECT if constrain else None) if "json" in specs else AnswerFormat()


def _imported_type(spec: str) -> Any:
    found = import_target("--type", spec, usage="MODULE:CLASS, such as shop:Invoice")
    if not is_output_type(found):
        raise ValueError(
            f"--type {spec} must be a pydantic model, an attrs class, a dataclass or a typed dict, or a list of one"
        )
    return found


def _schema(spec: str) -> Any:
    try:
        return read_schema(spec.partition(":")[2])
    except ValueError as error:
        raise ValueError(f"--require schema: {error}") from None


def _read_answer(text: str) -> Any:
    """Read the JSON of an answer, which may be in a code fence."""
    return read_json(unfenced(text))
