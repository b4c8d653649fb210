"""Convert options into the settings of a pydantic-ai model, which silently ignores unknown ones."""

from collections.abc import Mapping
from typing import Any, cast

import attrs

from sampling.backends.adapters._requests import Json, options_of
from sampling.errors import Unsupported
from sampling.messages import Request
from sampling.options import Options

__all__ = ["ModelSettings"]

_NAMES: Mapping[str, str] = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "stop": "stop_sequences",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
}
"""The settings of options, by the names of the options."""

_PREFIXES = {
    "OpenAIChatModel": "openai_",
    "OpenAIResponsesModel": "openai_",
    "GoogleModel": "google_",
    "HuggingFaceModel": "",
}
"""The prefixes of the settings for log probabilities, by model class. Others have none."""

_COMPATIBLE = frozenset({"OpenAIChatModel", "GroqModel", "HuggingFaceModel"})
"""Models of servers that accept their own options in the body."""

_EFFORTS: Mapping[str, bool | str] = {"none": False, "max": "xhigh"}
"""The efforts that have different names in pydantic-ai."""

_PROVIDERS = frozenset(
    {"anthropic", "bedrock", "cerebras", "cohere", "google", "groq", "huggingface", "mistral", "ollama", "openai"}
    | {"openrouter", "xai"}
)
_SHARED = frozenset(
    {
        "cache",
        "citations",
        "extra_body",
        "extra_headers",
        "max_retries",
        "parallel_tool_calls",
        "service_tier",
        "timeout",
    }
)
"""Further settings of all models, which `Options.extra` may have."""


class ModelSettings:
    """
    The settings that a pydantic-ai model sends.

    pydantic-ai silently ignores all others, so they have to be refused here.
    """

    def __init__(self, model: Any) -> None:
        while (inner := getattr(model, "wrapped", None)) is not None:
            model = inner
        self.name = f"pydantic-ai's {type(model).__name__}"
        self._classes = {kind.__name__ for kind in type(model).__mro__}
        self._profile: Mapping[str, Any] = getattr(model, "profile", None) or {}
        self._ignored: frozenset[str] = frozenset(
            [*getattr(model, "unsupported_settings", ()), *self._profile.get("openai_unsupported_model_settings", ())]
        )
        self._logprobs = next((prefix for kind, prefix in _PREFIXES.items() if kind in self._classes), None)
        self._takes_body = bool(self._classes & _COMPATIBLE) and "extra_body" not in self._ignored
        self._is_openai = bool(self._classes & {"OpenAIChatModel", "OpenAIResponsesModel"})

    def missing(self) -> list[str]:
        """Return the names of the options that the model does not support."""
        if self._classes & {"FallbackModel", "FunctionModel", "TestModel"}:
            # They pass everything on.
            return []
        names = [option for option, setting in _NAMES.items() if setting in self._ignored]
        if "BedrockConverseModel" in self._classes and not self._profile.get("bedrock_top_k_variant"):
            names.append("top_k")
        if self._takes_body and "top_k" in names:
            names.remove("top_k")
        if not self._takes_body:
            names.append("min_p")
        if self._logprobs is None:
            names.append("logprobs")
        if not self._is_openai and not self._thinks():
            names.append("reasoning_effort")
        return names

    def _thinks(self) -> bool:
        return bool(self._profile.get("supports_thinking") or self._profile.get("thinking_always_enabled"))

    def of(self, request: Request) -> Json:
        """Return the settings of a request."""
        given = request.options
        body = options_of(attrs.evolve(request, options=attrs.evolve(given, extra={}, tools=(), tool_choice=None)))
        settings: Json = {setting: body[option] for option, setting in _NAMES.items() if option in body}
        in_body = {name: getattr(given, name) for name in ("top_k", "min_p") if getattr(given, name) is not None}
        if self._takes_body and in_body:
            settings.pop("top_k", None)
            settings["extra_body"] = in_body
        settings.update(self._logprob_settings(body))
        settings.update(self._effort(given))
        if given.tool_choice is not None and given.tools:
            is_word = given.tool_choice in {"auto", "none", "required"}
            settings["tool_choice"] = given.tool_choice if is_word else [given.tool_choice]
        if "max_retries" not in self._ignored:
            # They would multiply with those of a layer, and no budget would see them.
            settings["max_retries"] = 0
        return self._with_extra(settings, given.extra)

    def _logprob_settings(self, body: Json) -> Json:
        return {f"{self._logprobs}{name}": body[name] for name in ("logprobs", "top_logprobs") if name in body}

    def _effort(self, options: Options) -> Json:
        effort = options.reasoning_effort
        if effort is None:
            return {}
        # `thinking` is left out for models of OpenAI's API that pydantic-ai does not know.
        return {"openai_reasoning_effort": effort} if self._is_openai else {"thinking": _EFFORTS.get(effort, effort)}

    def _is_own(self, name: str) -> bool:
        """Return whether a name is a setting of the model's provider, such as google_labels for a GoogleModel."""
        provider = name.partition("_")[0]
        return provider in _PROVIDERS and any(kind.lower().startswith(provider) for kind in self._classes)

    def _with_extra(self, settings: Json, extra: Mapping[str, Any]) -> Json:
        """Add the caller's own options: settings by their names, and all others to the body."""
        body: Json = dict(settings.get("extra_body") or {})
        for name, value in extra.items():
            if name == "extra_body" and isinstance(value, Mapping):
                body.update(cast("Mapping[str, Any]", value))
            elif name in _SHARED or self._is_own(name):
                settings[name] = value
            else:
                body[name] = value
        if body:
            if "extra_body" in self._ignored:
                names = ", ".join(map(repr, body))
                raise Unsupported(
                    f"{self.name} has no extra_body, so options.extra can't set {names}",
                    hint="Use the names of its settings, such as google_safety_settings.",
                )
            settings["extra_body"] = body
        return settings
