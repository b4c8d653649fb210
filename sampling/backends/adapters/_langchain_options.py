"""Convert options into the arguments of LangChain models, which all use different names."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from sampling.backends.adapters._requests import Json

__all__ = ["Dialect", "dialect_of"]

Names: TypeAlias = Mapping[str, str]


@attrs.frozen
class Dialect:
    """The names under which the models of one package take options. OpenAI's are the default."""

    names: Names = attrs.field(factory=dict[str, str])
    """Names of arguments, by OpenAI's names of options."""

    missing: tuple[str, ...] = ()
    """The names of options that the models do not support."""

    fields: Names = attrs.field(factory=dict[str, str])
    """Names of fields of the model, for options that are not arguments of a request."""

    in_body: tuple[str, ...] = ()
    """Options that the client of the package takes only in `extra_body`."""

    def arguments(self, options: Json) -> tuple[Json, Json]:
        """Return the arguments of a request, and the fields of the model to replace."""
        fields = {self.fields[name]: value for name, value in options.items() if name in self.fields}
        arguments = {self.names.get(name, name): value for name, value in options.items() if name not in self.fields}
        body = {name: arguments.pop(name) for name in self.in_body if name in arguments}
        if body:
            arguments["extra_body"] = {**body, **(arguments.get("extra_body") or {})}
        return arguments, fields


_PENALTIES = ("frequency_penalty", "presence_penalty")
_NO_NUMBERS = ("seed", "min_p", *_PENALTIES, "logit_bias", "logprobs")
_GOOGLE = Dialect(
    # The names of a response's log probabilities come in a pair, as OpenAI's do.
    {"max_tokens": "max_output_tokens", "logprobs": "response_logprobs", "top_logprobs": "logprobs"},
    ("min_p", "logit_bias"),
)
_SAME_IN_OLLAMA = ("temperature", "seed", "top_p", "top_k")
_DIALECTS: Mapping[str, Dialect] = {
    "langchain_openai": Dialect(in_body=("top_k", "min_p")),
    "langchain_groq": Dialect(in_body=("top_k", "min_p")),
    "langchain_google_genai": _GOOGLE,
    "langchain_google_vertexai": _GOOGLE,
    "langchain_anthropic": Dialect(missing=_NO_NUMBERS),
    "langchain_aws": Dialect(missing=(*_NO_NUMBERS, "top_k", "reasoning_effort")),
    "langchain_ollama": Dialect(
        {"reasoning_effort": "reasoning"},
        ("min_p", *_PENALTIES, "logit_bias"),
        {"max_tokens": "num_predict", **{name: name for name in _SAME_IN_OLLAMA}},
    ),
}


def dialect_of(chat_model: Any) -> Dialect:
    """Return the dialect of a model, by the package of its class or of one of its bases."""
    packages = [kind.__module__.partition(".")[0] for kind in type(chat_model).__mro__]
    return next((_DIALECTS[package] for package in packages if package in _DIALECTS), Dialect())
