"""Use every extra of the installed package once, and print the outcomes as JSON. Optional packages are not imported."""

import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import anyio

import sampling
from sampling import Action, Priced, RejectionSamplingStrategy, Requirement, checks, fan_out, tool
from sampling.fanout.journal import Journal, export

ONCE = RejectionSamplingStrategy()


async def model(_request: object) -> str:
    return '{"name": "Rhine"}'


def ask(*requirements: Requirement) -> None:
    assert ONCE.sample_sync("Which river?", None, model, requirements).success


def use_anthropic() -> None:
    sampling.AnthropicBackend(model="m", api_key="k")


def use_cli() -> None:
    from sampling.cli import main  # noqa: F401
    from sampling.telemetry.call_progress import progress  # noqa: F401
    from sampling.telemetry.run_progress import fan_out_progress  # noqa: F401


def use_gemini() -> None:
    sampling.GeminiBackend(model="m", api_key="k")


def use_gguf() -> None:
    from sampling.testing.gguf_model import write_tiny_gguf

    with tempfile.TemporaryDirectory() as folder:
        write_tiny_gguf(Path(folder) / "tiny.gguf")


def use_jsonschema() -> None:
    ask(checks.json_schema({"properties": {"name": {"type": "string", "pattern": "^R"}}, "required": ["name"]}))


def use_llama() -> None:
    with sampling.LlamaBackend(threads=1) as backend:
        assert ONCE.sample_sync("1+1=", None, backend).text


def use_mellea() -> None:
    from sampling.compat.mellea import MelleaStrategy  # noqa: F401


def use_openai() -> None:
    sampling.OpenAIBackend("http://127.0.0.1:1/v1", model="m")


def use_otel() -> None:
    from sampling.telemetry.otel import otel_hooks  # noqa: F401
    from sampling.telemetry.otel_load import otel_load  # noqa: F401


def use_parquet() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        anyio.run(lambda: fan_out(ONCE, ["Which river?"], None, model, journal=Journal(folder / "run.db")))
        export(folder / "run.db", folder / "run.parquet")


def use_prices() -> None:
    Priced(model)


def use_prometheus() -> None:
    from sampling.telemetry.prometheus import prometheus_hooks  # noqa: F401


def use_pydantic() -> None:
    # Without the package, this is what a user's class with a dict of lists needs.
    assert {"name": "Rhine"} == ONCE.sample_sync(Action("Which river?", dict[str, str]), None, model).value
    tool(ask_weather)


def ask_weather(city: str) -> str:
    """Return the weather of a city."""
    return city


def use_pytest() -> None:
    from sampling.testing.pytest_plugin import cassette  # noqa: F401


def use_ray() -> None:
    from sampling.fanout.ray import RayEngine  # noqa: F401


def use_regex() -> None:
    ask(checks.matches(".*Rhine.*"))


def use_trio() -> None:
    from sampling.testing import run_virtual

    try:
        run_virtual(anyio.sleep, 1, loop="trio")
    except ModuleNotFoundError as error:  # of the lowest storey, which does not know `MissingExtra`
        [extra] = re.findall(r"pip install 'sampling\[(\w+)\]'", str(error))
        raise sampling.MissingExtra("run_virtual", "trio", extra) from error


def outcome(use: Callable[[], None]) -> str:
    """Return "ok", the extra that is missing, or the error."""
    try:
        use()
    except sampling.MissingExtra as missing:
        return f"extra {missing.extra}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


if __name__ == "__main__":
    warnings.simplefilter("error")
    uses = {name.removeprefix("use_"): use for name, use in list(globals().items()) if name.startswith("use_")}
    json.dump({extra: outcome(use) for extra, use in uses.items()}, sys.stdout)
