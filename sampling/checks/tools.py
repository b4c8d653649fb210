"""Requirements for the tool calls of an answer."""

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from sampling._arguments import check_int, check_str, wrong_type
from sampling._json import bounded as bounded_json
from sampling._json.time_limit import THREAD_S, within_time
from sampling._schemas.validation import Schema
from sampling.requirements import Requirement, Verdict, View

__all__ = ["tool_calls"]


def tool_calls(
    *names: str, schemas: Mapping[str, Mapping[str, Any]] | None = None, least: int = 1, most: int | None = None
) -> Requirement:
    """
    Require calls of these tools, or of any if no name is given.

    Their arguments must be JSON objects.

    Args:
        names: The names of the tools that may be called.

        schemas: A JSON schema for the arguments of each tool. It needs the extra `jsonschema`.

        least: The minimum number of calls.

        most: The maximum number of calls.
    """
    allowed = [check_str("a name of tool_calls()", name, empty=False) for name in names]
    if schemas is not None and not isinstance(schemas, Mapping):
        raise wrong_type("schemas", schemas, "a dict of JSON schemas by the name of the tool")
    validators = {name: Schema(schema) for name, schema in (schemas or {}).items()}
    fewest = check_int("least", least, least=0)
    greatest = None if most is None else check_int("most", most, least=fewest)
    which = f"one of the tools {', '.join(allowed)}" if allowed else "a tool"

    def verdict(calls: Sequence[Any]) -> Verdict:
        if len(calls) < fewest:
            return False, f"it calls {len(calls)} tools instead of at least {fewest}: call {which}"
        if greatest is not None and len(calls) > greatest:
            return False, f"it calls {len(calls)} tools instead of at most {greatest}: call fewer"
        problems = [problem for call in calls if (problem := _problem(call, allowed, validators)) is not None]
        return not problems, "; ".join(problems) or None

    def calls_tools(_text: str, view: View) -> Verdict | Awaitable[Verdict]:
        return within_time(partial(verdict, getattr(view.generation, "tool_calls", ())))

    return Requirement(f"calls {which}", calls_tools)


def _problem(call: Any, allowed: Sequence[str], validators: Mapping[str, Schema]) -> str | None:
    if allowed and call.name not in allowed:
        return f"there is no tool {call.name!r}: call one of {', '.join(allowed)}"
    try:
        arguments = bounded_json.loads(call.arguments or "{}")
    except ValueError as error:
        return f"the arguments of {call.name} are not JSON ({error})"
    if not isinstance(arguments, dict):
        return f"the arguments of {call.name} must be a JSON object"
    if call.name not in validators:
        return None
    problems = validators[call.name].problems_within(THREAD_S, cast("object", arguments))
    return f"the arguments of {call.name} do not match its schema: {'; '.join(problems)}" if problems else None
