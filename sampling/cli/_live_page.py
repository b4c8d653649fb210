"""Serve the figures of a load run while it goes on, as a page and for Prometheus."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sampling.cli._files import reason_of
from sampling.errors import MissingExtra
from sampling.load import LoadRun, PopulationsRun, Summary
from sampling.load.model._units import seconds_or_dash, share_or_dash
from sampling.load.report._page.markup import element
from sampling.load.report._page.page import figures_table, html_document
from sampling.telemetry._load_figures import LoadFigures, PopulationFigures

__all__ = ["LivePage", "serving_live_page"]

_REFRESH_S = 2
_RECENT = 5_000
"""Number of recent answers whose latencies are shown."""

_COUNTS = ("due", "sent", "in flight", "answered", "failed", "dropped")
_COLUMNS = ("population", "loop", *_COUNTS, "errors", "p50", "p95", "p99", "lag p99")
_PLAIN_TEXT = "text/plain; charset=utf-8"

Route = Callable[[], tuple[str, bytes]]
"""Returns the content type and the body of a response."""


class LivePage:
    """A page with the figures of a run, which reloads itself and needs no scripts."""

    def __init__(self, run: LoadRun | PopulationsRun, title: str) -> None:
        self._figures = LoadFigures(run)
        self._title = title
        self._latencies: dict[str, deque[float]] = {}
        self._lags: dict[str, deque[float]] = {}
        # Each request of a browser has a thread of its own.
        self._lock = threading.Lock()

    def render(self) -> str:
        """Return the page as it is now."""
        with self._lock:
            rows = [self._row(figures) for figures in self._figures.read()]
        lead = element("p", f"So far, with latencies of the last {_RECENT:,} answers. {self._title}", class_="lead")
        table = figures_table(_COLUMNS, rows, "Figures so far")
        return html_document("A load test is running", "load", lead, table, refresh_s=_REFRESH_S)

    def _row(self, figures: PopulationFigures) -> list[str]:
        name, tally = figures.population, figures.tally
        latencies = self._latencies.setdefault(name, deque(maxlen=_RECENT))
        lags = self._lags.setdefault(name, deque(maxlen=_RECENT))
        latencies.extend(figures.latencies)
        lags.extend(figures.lags)
        latency, lag = Summary.of(latencies), Summary.of(lags)
        ended = tally.succeeded + tally.failed + tally.cancelled
        counts = (tally.scheduled, tally.admitted, tally.in_flight, tally.succeeded, tally.failed, tally.dropped)
        return [
            name or "all",
            figures.model,
            *(f"{count:,}" for count in counts),
            share_or_dash((tally.failed + tally.cancelled) / ended if ended else None),
            *(seconds_or_dash(time) for time in (latency.p50, latency.p95, latency.p99, lag.p99)),
        ]


@contextmanager
def serving_live_page(run: LoadRun | PopulationsRun, port: int, title: str) -> Generator[str]:
    """
    Serve the page and the metrics of a run on this machine, and yield the address.

    Raise `ValueError` if the port can't be used.
    """
    page = LivePage(run, title)
    with ExitStack() as stack:
        routes: dict[str, Route] = {"/": lambda: ("text/html; charset=utf-8", page.render().encode())}
        routes["/metrics"] = stack.enter_context(_metrics(run))
        try:
            # Only this machine can reach it: the figures are nobody else's business.
            server = ThreadingHTTPServer(("127.0.0.1", port), _handler(routes))
        except OSError as error:
            raise ValueError(f"--live-port {port} can't be used: {reason_of(error)}") from None
        stack.callback(server.server_close)
        thread = threading.Thread(target=server.serve_forever, name="sampling live page", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        yield f"http://127.0.0.1:{server.server_port}/"


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
