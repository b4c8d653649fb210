"""
Draw docs/explanation/coordinated-omission.svg: one stall, as an open and as a closed loop see it.

Both curves are every single request of a real run, in virtual time, so the picture is the same each time it is drawn.
"""

import sys
from functools import partial
from pathlib import Path

import anyio

from sampling.load import Arrival, ClosedLoop, LoadReport, OpenLoop, run_load
from sampling.testing import run_virtual

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "coordinated-omission.svg"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 470, 56, 44, 16, 40
PANEL = (HEIGHT - 2 * TOP - BOTTOM) / 2
SECONDS, MOST_S = 30, 5.5
STYLE = (
    "text{font:13px system-ui,-apple-system,sans-serif;fill:#1b1f24}.small{font-size:12px;fill:#57606a}"
    ".axis{stroke:#9aa1a8;fill:none}.stall{fill:#eef0f3}"
    ".dots{fill:none;stroke-width:3;stroke-linecap:round}.open{stroke:#1f5fa8}.closed{stroke:#b3541e}"
)


async def stalling(arrival: Arrival) -> None:
    """Answer in 10 ms, but stand still once, from 10 s on for 5 s."""
    if 10 <= anyio.current_time() < 15:
        await anyio.sleep_until(15)
    await anyio.sleep(0.01)


def runs() -> tuple[LoadReport, LoadReport]:
    """Make the same traffic, 100 per second for 30 s, by the clock and by ten users who wait."""
    opened = OpenLoop(rate=100, duration_s=SECONDS, max_in_flight=1000)
    closed = ClosedLoop(users=10, think_time_s=0.09, horizon_s=SECONDS)
    by_the_clock, by_users = (run_virtual(partial(run_load, stalling, profile)) for profile in (opened, closed))
    return by_the_clock, by_users


def x(seconds: float) -> float:
    """Where an instant is."""
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / SECONDS


def panel(report: LoadReport, kind: str, title: str, top: float) -> str:
    """Draw every request of a run at the instant it was due, as high as it took."""
    samples = report.samples
    if samples is None:
        raise ValueError("a report without its samples can't be drawn")

    def y(latency_s: float) -> float:
        return top + PANEL * (1 - latency_s / MOST_S)

    stamps = zip(samples.columns["intended_s"], samples.columns["done_s"], strict=True)
    # Requests that would be drawn on the same spot are drawn once.
    dots = "".join(dict.fromkeys(f"M{x(due):.0f} {y(done - due):.0f}h0" for due, done in stamps))
    ticks = "".join(
        f'<text class="small" x="{LEFT - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{level} s</text>'
        for level in (0, 2, 4)
    )
    return (
        f'<rect class="stall" x="{x(10):.1f}" y="{top}" width="{x(15) - x(10):.1f}" height="{PANEL}"/>'
        f'<text x="{LEFT}" y="{top - 10}">{title}: p99 = {report.latency.p99:.3g} s, '
        f"{report.admitted:,} requests</text>"
        f'<path class="axis" d="M{LEFT} {top}V{top + PANEL}H{WIDTH - RIGHT}"/>{ticks}'
        f'<path class="dots {kind}" d="{dots}"/>'
    )


def draw() -> str:
    """Return the picture."""
    opened, closed = runs()
    lower = TOP + PANEL + TOP
    seconds = "".join(
        f'<text class="small" x="{x(second):.1f}" y="{lower + PANEL + 18}" text-anchor="middle">{second} s</text>'
        for second in range(0, SECONDS + 1, 5)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        'aria-label="Latency over time of one stall, as an open loop and a closed loop see it">'
        f"<style>{STYLE}</style>"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10" fill="#ffffff" stroke="#d0d7de"/>'
        f"{panel(opened, 'open', 'Open loop, 100 per second', TOP)}"
        f"{panel(closed, 'closed', 'Closed loop, ten users', lower)}"
        f"{seconds}</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes\n")
