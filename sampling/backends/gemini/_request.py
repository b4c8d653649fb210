"""Convert a `Request` into the JSON of the Gemini API."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from sampling._arguments import wrong_type
from sampling._json.schemas import reduced_schema
from sampling.backends._structured import AnswerSchema, Structured, answer_schema, answer_tool_name, with_instruction
from sampling.backends.gemini._contents import wire_contents
from sampling.backends.gemini._thinking import thinking_config
from sampling.errors import BadRequest
from sampling.messages import Options, Request

__all__ = ["MISSING_OPTIONS", "gemini_body", "model_path"]

Json: TypeAlias = dict[str, Any]

MISSING_OPTIONS = ("min_p", "logit_bias")
"""Options that the Gemini API does not support."""

# https://ai.google.dev/api/generate-content#FIELDS.response_json_schema
_KEYWORDS = frozenset(
    {
        "$anchor",
        "$defs",
        "$id",
        "$ref",
        "additionalProperties",
        "anyOf",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "oneOf",
        "prefixItems",
        "properties",
        "propertyOrdering",
        "required",
        "title",
        "type",
    }
)
_RESERVED = frozenset({"contents", "systemInstruction", "system_instruction"})
_MERGED = ("generationConfig", "toolConfig")
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


def gemini_body(request: Request, model: str, structured: Structured, *, include_thoughts: bool) -> Json:
    """Return the body of the POST for a request."""
    options = request.options
    schema = None if options.schema is None else answer_schema(options.schema)
    messages = request.messages
    if schema is not None and structured == "prompt":
        messages = with_instruction(messages, schema)
    config = _generation_config(options, schema if structured == "native" else None)
    config["thinkingConfig"] = thinking_config(model, options.reasoning_effort, include_thoughts=include_thoughts)
    body: Json = {
        **wire_contents(messages, model),
        **_tools(options, schema if structured == "tool" else None),
        "generationConfig": {name: value for name, value in config.items() if value is not None},
    }
    _add_extra(body, options.extra)
    return {name: value for name, value in body.items() if name != "generationConfig" or value}


def _generation_config(options: Options, schema: AnswerSchema | None) -> Json:
    config: Json = {
        "temperature": options.temperature,
        "topP": options.top_p,
        "topK": options.top_k,
        "maxOutputTokens": options.max_tokens,
        "stopSequences": list(options.stop) or None,
        "seed": options.seed,
        "presencePenalty": options.presence_penalty,
        "frequencyPenalty": options.frequency_penalty,
    }
    if options.logprobs is not None and options.logprobs is not False:
        config["responseLogprobs"] = True
        config["logprobs"] = None if options.logprobs is True else options.logprobs
    if schema is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = _reduced(options.schema, schema)
    return config


def _reduced(given: object, schema: AnswerSchema) -> Json:
    """Return a schema with only the keywords that the API supports."""
    # Not the one that is rewritten for OpenAI's strict mode: Gemini wants the recursive fields to be optional.
    if isinstance(given, type) and hasattr(given, "model_json_schema"):
        return reduced_schema(cast("Any", given).model_json_schema(), _KEYWORDS)
    return reduced_schema(cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else schema.schema, _KEYWORDS)


def _tools(options: Options, answer: AnswerSchema | None) -> Json:
    choice = options.tool_choice
    functions = [_function(one.name, one.description, reduced_schema(one.schema, _KEYWORDS)) for one in options.tools]
    if answer is not None:
        # Beside other tools, the model may call them first.
        choice = choice if functions and choice else "required"
        functions.append(_function(answer_tool_name(options), "Give the answer.", _reduced(options.schema, answer)))
    if not functions:
        if choice not in {None, "none"}:
            raise BadRequest(f"options.tool_choice is {choice!r}, but there are no options.tools")
        return {}
    config = {} if choice is None else {"toolConfig": {"functionCallingConfig": _calling(choice)}}
    return {"tools": [{"functionDeclarations": functions}], **config}


def _function(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "description": description, "parametersJsonSchema": schema}


def _calling(choice: str) -> Json:
    return {"mode": _MODES[choice]} if choice in _MODES else {"mode": "ANY", "allowedFunctionNames": [choice]}


def _add_extra(body: Json, extra: Mapping[str, Any]) -> None:
    """Add the caller's own fields, merging objects and lists of tools with ours."""
    if reserved := _RESERVED & extra.keys():
        raise BadRequest(
            f"options.extra sets {', '.join(sorted(reserved))}, which the backend sets itself",
            hint="Remove them: they come from the messages of the request.",
        )
    for name, value in extra.items():
        if name in _MERGED:
            if not isinstance(value, Mapping):
                raise wrong_type(f"options.extra[{name!r}]", value, "a mapping")
            body[name] = {**body.get(name, {}), **cast("Mapping[str, Any]", value)}
        elif name == "tools" and isinstance(value, Sequence):
            body[name] = [*body.get(name, []), *cast("Sequence[object]", value)]
        else:
            body[name] = value


def model_path(model: str) -> str:
    """Return the path of a model. Tuned models and those of gateways have a prefix of their own."""
    path = model if "/" in model else f"models/{model}"
    if not all(part and part.strip(".") for part in path.split("/")):
        raise BadRequest(f"the model {model!r} is not the name of a model, such as 'gemini-2.5-flash'")
    return path
