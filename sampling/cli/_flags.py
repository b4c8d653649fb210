"""Flags that several commands share."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer
from typer.exceptions import TyperException

from sampling._arguments import short_repr
from sampling.cli._exit_codes import REFUSED
from sampling.cli._files import reason_of
from sampling.cli._flag_names import describe_error
from sampling.cli._headers import HEADERS_VARIABLE
from sampling.cli._specs import BACKENDS, REQUIREMENTS, STRATEGIES
from sampling.errors import JournalTooNew
from sampling.messages import Context, Message
from sampling.usage import Price

__all__ = [
    "AllowHttp",
    "BackendFlag",
    "Breadth",
    "Constrain",
    "DefaultBackendFlag",
    "Depth",
    "Header",
    "MaxTokens",
    "PriceFlag",
    "Require",
    "Retries",
    "Seed",
    "SendEnvKey",
    "Strategy",
    "System",
    "Temperature",
    "TypeFlag",
    "UsageError",
    "parse_price",
    "system_context",
    "usage_errors",
]

BackendFlag = Annotated[str, typer.Option("--backend", "-b", help=f"The model to ask: {BACKENDS}.")]
DefaultBackendFlag = Annotated[
    str | None,
    typer.Option("--backend", "-b", help=f"The model to ask: {BACKENDS}. Default: smollm2, if it is installed."),
]
Strategy = Annotated[str, typer.Option("--strategy", "-s", help=f"The strategy: {', '.join(STRATEGIES)}.")]
Depth = Annotated[int, typer.Option("--depth", "-d", min=1, help="Attempts per subsample (loop_budget).")]
Breadth = Annotated[int, typer.Option("--breadth", "-n", min=1, help="Subsamples in parallel (concurrency_budget).")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        "-r",
        help="A requirement on the answer, repeatable: "
        f"{'; '.join(one.usage for one in REQUIREMENTS.values())}; or a sentence for the model to judge.",
    ),
]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="The sampling temperature.")]
Seed = Annotated[int | None, typer.Option(help="Seed, if the backend supports it.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The maximum tokens of an answer.")]
SendEnvKey = Annotated[
    bool,
    typer.Option(
        "--send-env-key", help="Send the key from the environment, such as OPENAI_API_KEY, to the URL of --backend."
    ),
]
AllowHttp = Annotated[
    bool, typer.Option("--allow-http", help="Accept an http:// URL of another machine. Others can read the traffic.")
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="'NAME: VALUE'",
        help=f"A header of every request, repeatable. It is never shown. {HEADERS_VARIABLE} can hold more, "
        "one per line.",
    ),
]
System = Annotated[str | None, typer.Option("--system", help="The system message before every prompt.")]
TypeFlag = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="MODULE:CLASS",
        help="Read the answer as JSON of this class: a pydantic model, an attrs class, a dataclass.",
    ),
]
Constrain = Annotated[
    bool,
    typer.Option(
        "--constrain/--no-constrain",
        help="Send the schema of --type or --require to the server, which then generates nothing else.",
    ),
]
Retries = Annotated[int, typer.Option(min=0, help="How often to retry a request after a transient error.")]
PriceFlag = Annotated[
    str | None,
    typer.Option("--price", metavar="IN/OUT", help="The price of a million input and output tokens: 0.15/0.60."),
]


class UsageError(TyperException):
    """A flag or a file is wrong."""

    exit_code = REFUSED


@contextmanager
def usage_errors() -> Generator[None]:
    """Turn TypeError, ValueError, a journal of a newer version and an error of the system into a usage error."""
    try:
        yield
    except OSError as error:
        what = "the system refused" if error.filename is None else f"can't use {short_repr(str(error.filename))}"
        raise UsageError(f"{what}: {reason_of(error)}") from error
    except (TypeError, ValueError, JournalTooNew) as error:
        raise UsageError(describe_error(error)) from error


def system_context(system: str | None) -> Context | None:
    """Return the conversation that `--system` begins."""
    return None if system is None else Context([Message("system", system)])


def parse_price(given: str | None) -> Price | None:
    """Parse the value of `--price`."""
    if given is None:
        return None
    try:
        input_price, output_price = map(float, given.split("/"))
    except ValueError:
        raise ValueError(f"--price must be IN/OUT, such as 0.15/0.60, got {given!r}") from None
    return Price(input_price, output_price)
