"""`sampling plan`: find the cheapest depth × breadth that meets an SLO."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import attrs
import typer

from sampling._arguments import short_repr
from sampling.cli._exit_codes import FAILED
from sampling.cli._files import Force
from sampling.cli._flags import PriceFlag, parse_price, usage_errors
from sampling.cli._outputs import Out, check_outputs, publish
from sampling.cli._status import print_status
from sampling.cli._stdout import write_result
from sampling.load import LoadReport, Option, ServerModel, Slo, calibrate, read_report
from sampling.load import plan as make_plan
from sampling.load.model._units import parse_count, parse_duration, parse_share

__all__ = ["EXAMPLES", "HELP", "plan"]

HELP = """
Find the cheapest depth × breadth for an SLO. Simulates them instead of sending requests.

Depth takes time and breadth takes slots, so on a busy server more breadth makes every call wait. Each pair is simulated
with its queue, on a server that you describe or measured (--like).

Exit code: 0 if any pair meets the SLO, 1 if none does.
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
class _ServerFlags:
    """The flags that describe a server, or None for those not given."""

    like: tuple[Path, ...] = ()
    pass_rate: str | None = None
    ttft: str | None = None
    per_token: str | None = None
    tokens: int | None = None
    slots: int | None = None

    def server(self) -> ServerModel:
        """Return the server model, measured or described."""
        return self._measured() if self.like else self._described()

    def _measured(self) -> ServerModel:
        for name in ("ttft", "per_token", "tokens"):
            if getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{flag} and --like contradict each other: a measured server has its own. Leave {flag} out"
                )
        calibration = calibrate([_read_run(path) for path in self.like], slots=self.slots)
        for note in calibration.notes:
            print_status(f"note: {note}")
        server = calibration.server
        return server if self.pass_rate is None else attrs.evolve(server, pass_probability=self._pass_rate())

    def _described(self) -> ServerModel:
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
            raise ValueError(f"--pass-rate is a share such as 60% or 0.6, got {short_repr(self.pass_rate)}")
        return share


def _read_run(path: Path) -> LoadReport:
    report = read_report(path)
    if not isinstance(report, LoadReport):
        raise ValueError(  # noqa: TRY004 - the file is wrong, not the type of an argument
            f"--like: {path.name} is not a load run: give one from `sampling load --samples --out {path.name}`"
        )
    return report


def _parse_numbers(flag: str, text: str) -> tuple[int, ...]:
    """Parse `1,2,4` or `1..4`."""
    low, dots, high = text.partition("..")
    try:
        given = tuple(int(part) for part in ((low, high) if dots else text.split(",")))
    except ValueError:
        given = ()
    # Checked before there is a range, which may be too long for memory.
    if not given or min(given) < 1 or max(given) > 64 or (dots and given[0] > given[1]):
        raise ValueError(f"{flag} must be numbers from 1 to 64, as 1..4 or 1,2,8, got {short_repr(text)}")
    return tuple(range(given[0], given[1] + 1)) if dots else given


def plan(  # noqa: PLR0913 - each is a flag
    *,
    rate: Annotated[str, typer.Option(help="Calls per second, as a Poisson process.")],
    slo: Annotated[str, typer.Option(help="Limits that must hold: p95=4s,validity=95%.")],
    pass_rate: Annotated[str | None, typer.Option(help="Share of attempts that are valid: 60% or 0.6.")] = None,
    ttft: Annotated[str | None, typer.Option(help="Time to first token of a request that has a slot: 300ms.")] = None,
    per_token: Annotated[str | None, typer.Option(help="Time per further token: 20ms.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per answer. Default: 64.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Requests that the server runs at once. Default: 8.")] = None,
    like: Annotated[
        list[Path] | None,
        typer.Option(help="Take the server from a load report with --samples. Best give two: low and high load."),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=0, help="Tokens per prompt, for its price. Default: 64.")
    ] = None,
    price: PriceFlag = None,
    depths: Annotated[str, typer.Option(help="Depths to try: 1..4 or 1,2,8.")] = "1..4",
    breadths: Annotated[str, typer.Option(help="Breadths to try: 1..4 or 1,2,8.")] = "1..4",
    requests: Annotated[int, typer.Option(help="Calls to simulate for each pair.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    out: Out = None,
    force: Force = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the server and the pairs, and simulate nothing.")
    ] = False,
) -> int:
    """Simulate every pair and print the plan."""
    with usage_errors():
        protected = {f"a report of --like ({path.name})": path for path in like or ()}
        outputs = check_outputs(out, force=force, protected=protected, endings=(".json", ".csv"))
        server_flags = _ServerFlags(
            like=tuple(like or ()), pass_rate=pass_rate, ttft=ttft, per_token=per_token, tokens=tokens, slots=slots
        )
        server = server_flags.server()
        if prompt_tokens is not None:
            server = attrs.evolve(server, input_tokens=prompt_tokens)
        limits, priced, per_s = Slo.parse(slo), parse_price(price), parse_count("--rate", rate)
        pairs = _parse_numbers("--depths", depths), _parse_numbers("--breadths", breadths)
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
            on_option=_show_progress,
        )
    _clear_progress()
    written = publish(made, f"{made.render()}\n", outputs)
    return made.exit_code if written else FAILED


def _show_progress(option: Option) -> None:
    """Show the current option, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{option}: {option.judgement.verdict}\033[K")
        sys.stderr.flush()


def _clear_progress() -> None:
    """Clear the progress line, so that the result starts on a line of its own."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def _show_plan(
    server: ServerModel, pairs: tuple[Sequence[int], Sequence[int]], requests: int, outputs: Sequence[Path]
) -> int:
    count = len(pairs[0]) * len(pairs[1])
    lines = [f"server: {server}", f"it is full at {server.saturation_rate:.4g} requests per second"]
    lines.append(f"would simulate {count} pairs of depth and breadth, {requests:,} calls each")
    lines += [f"would write {path}" for path in outputs]
    write_result("\n".join(lines) + "\n")
    return 0
