"""`sampling plan`: which depth × breadth meets an SLO, and what it will cost."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import attrs
import typer

from sampling._arguments import shown
from sampling.cli._flags import PriceFlag, bad_flags, price_of
from sampling.cli._load_progress import say
from sampling.cli._outputs import Out, check_outputs, write_outputs
from sampling.load import LoadReport, Option, ServerModel, Slo, calibrate, read_report
from sampling.load import plan as make_plan
from sampling.load.model._units import parse_count, parse_duration, parse_share

__all__ = ["EXAMPLES", "HELP", "plan"]

HELP = """
Say which depth × breadth meets an SLO at the least cost, by simulation.

Depth takes time, breadth takes slots: on a server that is nearly full, breadth makes everyone wait. So each pair is
simulated, with its queue, on a server as you describe it, or like one that you measured (--like). The exit code is 0 if
some pair meets the SLO, 1 if none does, and 2 if a flag is wrong.
"""

EXAMPLES = """
\b
Examples:
  sampling plan --pass-rate 60% --ttft 300ms --per-token 20ms --tokens 200 --slots 16 --rate 2 --slo p95=8s,validity=95%
  sampling plan --pass-rate 0.6 --ttft 300ms --per-token 20ms --tokens 200 --rate 1 --slo validity=99% --price 0.25/2
  sampling load --rate 5 --duration 1m --out slow.json --samples
  sampling load --rate 20 --duration 1m --out busy.json --samples
  sampling plan --like slow.json --like busy.json --rate 10 --slo p95=1s,validity=95% --price 0.25/2 --out plan.json
"""


@attrs.frozen(kw_only=True)
class _Described:
    """The flags that describe a server; None for one that was not given."""

    like: tuple[Path, ...] = ()
    pass_rate: str | None = None
    ttft: str | None = None
    per_token: str | None = None
    tokens: int | None = None
    slots: int | None = None

    def server(self) -> ServerModel:
        """Return the server, measured or described."""
        return self._measured() if self.like else self._supposed()

    def _measured(self) -> ServerModel:
        for name in ("ttft", "per_token", "tokens"):
            if getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{flag} and --like contradict each other: a measured server has its own; leave {flag} out"
                )
        calibration = calibrate([_run_in(path) for path in self.like], slots=self.slots)
        for note in calibration.notes:
            say(f"note: {note}")
        server = calibration.server
        return server if self.pass_rate is None else attrs.evolve(server, pass_probability=self._pass_rate())

    def _supposed(self) -> ServerModel:
        missing = [
            f"--{name.replace('_', '-')}" for name in ("pass_rate", "ttft", "per_token") if getattr(self, name) is None
        ]
        if missing:
            raise ValueError(
                f"describe the server: {', '.join(missing)} missing; or give a recorded run with --like FILE"
            )
        return ServerModel(
            slots=8 if self.slots is None else self.slots,
            time_to_first_token_s=parse_duration("--ttft", self.ttft or ""),
            time_per_token_s=parse_duration("--per-token", self.per_token or ""),
            output_tokens=(64 if self.tokens is None else self.tokens,),
            pass_probability=self._pass_rate(),
        )

    def _pass_rate(self) -> float:
        share = parse_share("--pass-rate", self.pass_rate or "")
        if share > 1:
            raise ValueError(f"--pass-rate is a share such as 60% or 0.6, got {shown(self.pass_rate)}")
        return share


def _run_in(path: Path) -> LoadReport:
    report = read_report(path)
    if not isinstance(report, LoadReport):
        raise ValueError(  # noqa: TRY004 - the file is wrong, not the type of an argument
            f"--like: {path.name} is no load run: give one of `sampling load --samples --out {path.name}`"
        )
    return report


def _several(flag: str, text: str) -> tuple[int, ...]:
    """Read `1,2,4` or `1..4`."""
    low, dots, high = text.partition("..")
    try:
        numbers = tuple(range(int(low), int(high) + 1)) if dots else tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or max(numbers) > 64:
        raise ValueError(f"{flag} must be numbers from 1 to 64, as 1..4 or 1,2,8, got {shown(text)}")
    return numbers


def plan(  # noqa: PLR0913 - each is a flag
    *,
    rate: Annotated[str, typer.Option(help="Calls per second, arriving by chance.")],
    slo: Annotated[str, typer.Option(help="What must hold: p95=4s,validity=95%.")],
    pass_rate: Annotated[str | None, typer.Option(help="How likely one attempt is valid: 60% or 0.6.")] = None,
    ttft: Annotated[
        str | None, typer.Option(help="Time to the first token of a request that has a slot: 300ms.")
    ] = None,
    per_token: Annotated[str | None, typer.Option(help="Time for each further token: 20ms.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="How long an answer is. 64 by default.")] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Requests that the server works on at once. 8 by default.")
    ] = None,
    like: Annotated[
        list[Path] | None,
        typer.Option(
            help="A server like the one in this report (--out x.json --samples); best give two, slow and busy."
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=0, help="How long a prompt is, for its price. 64 by default.")
    ] = None,
    price: PriceFlag = None,
    depths: Annotated[str, typer.Option(help="Depths to try: 1..4 or 1,2,8.")] = "1..4",
    breadths: Annotated[str, typer.Option(help="Breadths to try: 1..4 or 1,2,8.")] = "1..4",
    requests: Annotated[int, typer.Option(help="Calls to simulate of each pair.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same plan.")] = 0,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the server and what would be simulated.")] = False,
) -> int:
    """Plan; the flags are explained where they stand."""
    with bad_flags():
        described = _Described(
            like=tuple(like or ()), pass_rate=pass_rate, ttft=ttft, per_token=per_token, tokens=tokens, slots=slots
        )
        server = described.server()
        if prompt_tokens is not None:
            server = attrs.evolve(server, input_tokens=prompt_tokens)
        limits, priced, per_s = Slo.parse(slo), price_of(price), parse_count("--rate", rate)
        pairs = _several("--depths", depths), _several("--breadths", breadths)
        outputs = check_outputs(out, endings=(".json", ".csv"))
        if dry_run:
            return _show_plan(server, pairs, requests, outputs)
        made = make_plan(
            server,
            rate=per_s,
            slo=limits,
            price=priced,
            depths=pairs[0],
            breadths=pairs[1],
            requests=requests,
            seed=seed,
            on_option=_tell,
        )
    sys.stdout.write(f"{made.render()}\n")
    write_outputs(made, outputs)
    return made.exit_code


def _tell(option: Option) -> None:
    """Say how far it is, where somebody looks."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{option}: {option.judgement.verdict}\033[K")
        sys.stderr.flush()


def _show_plan(
    server: ServerModel, pairs: tuple[Sequence[int], Sequence[int]], requests: int, outputs: Sequence[Path]
) -> int:
    count = len(pairs[0]) * len(pairs[1])
    lines = [f"server: {server}", f"it is full at {server.saturation_rate:.4g} requests per second"]
    lines.append(f"would simulate {count} pairs of depth and breadth, {requests:,} calls each")
    lines += [f"would write {path}" for path in outputs]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
