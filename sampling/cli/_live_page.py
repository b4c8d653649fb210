"""Serve the metrics of a load run in progress, as a page and for Prometheus."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sampling._result_page.report.document import html_document, tiles
from sampling._result_page.report.markup import Markup, element
from sampling.cli._files import reason_of
from sampling.errors import MissingExtra
from sampling.load import LoadReport, LoadRun, PopulationsReport, PopulationsRun, Summary, render_html
from sampling.load.model._units import seconds_or_dash, share_or_dash
from sampling.telemetry._load_figures import LoadFigures, PopulationFigures

__all__ = ["LivePage", "serving_live_page"]

_REFRESH_S = 2
_WATCHED_S = 3 * _REFRESH_S
"""A page that was requested within this time is still open in a browser, which will reload it."""

_IDLE_S = 10
"""Longest time to wait for the bytes of a client."""

_RECENT = 5_000
"""Number of recent answers whose latencies are shown."""

_PLAIN_TEXT = "text/plain; charset=utf-8"

Route = Callable[[], tuple[str, bytes]]
"""Returns the content type and the body of a response."""


class LivePage:
    """A page with the metrics of a run, which reloads itself without scripts and ends as the report."""

    def __init__(self, run: LoadRun | PopulationsRun, title: str) -> None:
        self._figures = LoadFigures(run, most=_RECENT)
        self._title = title
        self._latencies: dict[str, deque[float]] = {}
        self._lags: dict[str, deque[float]] = {}
        self._start = time.monotonic()
        self._report: str | None = None
        self._asked_at: float = -_WATCHED_S
        self._seen = threading.Event()
        # Each request of a browser has a thread of its own.
        self._lock = threading.Lock()
        self.address = ""
        """Where the page is served, if it is."""

    def respond(self) -> str:
        """Return the page for a browser, and remember that it is open."""
        self._asked_at = time.monotonic()
        page = self.render()
        if self._report is not None:
            self._seen.set()
        return page

    def end(self, report: LoadReport | PopulationsReport) -> None:
        """
        Show the report from now on.

        Wait until open browsers have loaded it, for a few seconds at most, because the server stops afterwards.
        """
        self._report = render_html(report)
        if time.monotonic() - self._asked_at < _WATCHED_S:
            self._seen.wait(_WATCHED_S)

    def render(self) -> str:
        """Return the page as it is now."""
        if self._report is not None:
            return self._report
        elapsed_s = time.monotonic() - self._start
        with self._lock:
            shown = [part for figures in self._figures.read() for part in self._show(figures, elapsed_s)]
        so_far = f"After {elapsed_s:,.0f} s, with latencies of the last {_RECENT:,} answers."
        lead = element("p", f"{so_far} {self._title}", class_="lead")
        return html_document("A load test is running", "load", lead, *shown, refresh_s=_REFRESH_S)

    def _show(self, figures: PopulationFigures, elapsed_s: float) -> Iterator[Markup]:
        name = figures.population
        if name:
            yield element("h2", name)
        self._latencies.setdefault(name, deque(maxlen=_RECENT)).extend(figures.latencies)
        self._lags.setdefault(name, deque(maxlen=_RECENT)).extend(figures.lags)
        latency, lag = Summary.of(self._latencies[name]), Summary.of(self._lags[name])
        yield tiles(_tiles_of(figures, latency, lag, elapsed_s))


def _tiles_of(
    figures: PopulationFigures, latency: Summary, lag: Summary, elapsed_s: float
) -> Iterator[tuple[str, str, str]]:
    tally = figures.tally
    ended = tally.succeeded + tally.failed + tally.cancelled
    errors = (tally.failed + tally.cancelled) / ended if ended else None
    yield "p50", seconds_or_dash(latency.p50), "latency, from due"
    yield "p95", seconds_or_dash(latency.p95), f"mean {seconds_or_dash(latency.mean)}"
    yield "p99", seconds_or_dash(latency.p99), f"max {seconds_or_dash(latency.max)}"
    yield "answered", f"{tally.succeeded:,}", f"{tally.in_flight:,} in flight"
    yield "errors", share_or_dash(errors), f"{tally.failed:,} failed, {tally.cancelled:,} unanswered"
    yield "sent", f"{tally.admitted:,}", f"{tally.admitted / elapsed_s if elapsed_s else 0.0:.3g}/s on average"
    yield "dropped", f"{tally.dropped:,}", f"of {tally.scheduled:,} due, {figures.model} loop"
    yield "lag p99", seconds_or_dash(lag.p99), "of the load generator"


class _Server(ThreadingHTTPServer):
    """A server that logs nothing about disconnected clients, because stderr shows the progress of the run."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # the types of the base class


@contextmanager
def serving_live_page(run: LoadRun | PopulationsRun, port: int, title: str) -> Generator[LivePage]:
    """
    Serve the page and the metrics of a run on this machine, and yield the page.

    Raise `ValueError` if the port can't be used.
    """
    page = LivePage(run, title)
    with ExitStack() as stack:
        routes: dict[str, Route] = {"/": lambda: ("text/html; charset=utf-8", page.respond().encode())}
        routes["/metrics"] = stack.enter_context(_metrics(run))
        try:
            # Only this machine can reach it, because the metrics may be confidential.
            server = _Server(("127.0.0.1", port), _handler(routes))
        except OSError as error:
            raise ValueError(f"--live-port {port} can't be used: {reason_of(error)}") from None
        stack.callback(server.server_close)
        thread = threading.Thread(target=server.serve_forever, name="sampling live page", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        page.address = f"http://127.0.0.1:{server.server_port}/"
        yield page


@contextmanager
def _metrics(run: LoadRun | PopulationsRun) -> Generator[Route]:
    """Yield the route for Prometheus. Without its extra, the route says what to install."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415

        from sampling.telemetry.prometheus import prometheus_load  # noqa: PLC0415 - it needs the extra
    except ImportError:
        missing = MissingExtra("metrics", "prometheus-client", "prometheus")
        yield lambda: (_PLAIN_TEXT, f"{missing} {missing.hint}\n".encode())
        return
    registry = CollectorRegistry()
    with prometheus_load(run, registry):
        yield lambda: (CONTENT_TYPE_LATEST, generate_latest(registry))


def _handler(routes: Mapping[str, Route]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_S

        def do_GET(self) -> None:
            route = routes.get(self.path.partition("?")[0])
            kind, body = (_PLAIN_TEXT, b"There are / and /metrics.\n") if route is None else route()
            self.send_response(404 if route is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            """Write nothing: stderr is for the progress of the run."""

    return Handler
