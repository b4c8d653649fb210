"""`sampling load --live-port`: figures of a run while it goes on."""

import threading
import urllib.error
import urllib.request

import anyio
import pytest

from sampling.cli._app import run as run_command
from sampling.cli._live_page import LivePage, serving_live_page
from sampling.load import Arrival, LoadRun, OpenLoop
from sampling.testing import run_virtual


async def quick(arrival: Arrival) -> None:
    await anyio.sleep(0.2)
    if arrival.index % 2:
        raise OSError("<no>")


def test_the_page_shows_the_figures_so_far(run):
    """In the middle of a run and after it. The page reloads itself without a script."""

    async def watch() -> list[str]:
        load = LoadRun(quick, OpenLoop(rate=10, duration_s=10))
        page, pages = LivePage(load, "a <test>"), []

        async def look(at_s: float) -> None:
            await anyio.sleep(at_s)
            pages.append(page.render())

        async with anyio.create_task_group() as group:
            group.start_soon(look, 5.05)
            await load.run()
        pages.append(page.render())
        return pages

    during, after = run(watch)
    assert "<td>51</td><td>51</td><td>2</td>" in during
    assert "<td>100</td><td>100</td><td>0</td><td>50</td><td>50</td><td>0</td><td>50%</td><td>200ms</td>" in after
    assert 'http-equiv="refresh"' in during
    assert "<script" not in during
    assert "a &lt;test&gt;" in during


def test_the_page_and_the_metrics_are_served_and_nothing_is_left(capsys):
    """On this machine only, while the block lasts."""
    load = LoadRun(quick, OpenLoop(rate=10, duration_s=1))
    with serving_live_page(load, 0, "here") as address:
        run_virtual(load.run)
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as response:  # noqa: S310
            assert "A load test is running" in response.read().decode()
        with urllib.request.urlopen(f"{address}metrics") as response:  # noqa: S310
            assert 'sampling_load_scheduled_total{model="open",population=""} 10.0' in response.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{address}other")  # noqa: S310
        refused.value.close()
        port = address.rstrip("/").rpartition(":")[2]
        with (
            pytest.raises(ValueError, match=f"--live-port {port} can't be used"),
            serving_live_page(load, int(port), ""),
        ):
            pass
    assert not any(thread.name == "sampling live page" for thread in threading.enumerate())
    assert ("", "") == tuple(capsys.readouterr())


def test_a_port_and_virtual_time_contradict_each_other(capsys):
    """R16: exit code 2."""
    assert 2 == run_command(
        ["load", "--virtual", "--backend", "simulated", "--rate", "1", "--requests", "1", "--live-port", "0"]
    )
    assert "--live-port and --virtual contradict each other" in capsys.readouterr().err
