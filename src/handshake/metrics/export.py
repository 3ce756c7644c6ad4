"""Metrics for operators: OpenMetrics as text and over HTTP, and instruments of OpenTelemetry."""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Self

from handshake.closing import Closing
from handshake.errors import InputError, UnsupportedError
from handshake.metrics.address import asks_for_loopback, is_loopback, parse_address
from handshake.metrics.families import FAMILIES, Family
from handshake.metrics.snapshot import Snapshot
from handshake.metrics.watch import Watch

BOUNDS = tuple(1e-6 * 10 ** (k / 100) for k in range(100, 801, 25))
"""Upper bounds of exported latencies in seconds, four per decade; each is one of the histogram's own."""
_QUANTILES = {"0.5": "p50", "0.9": "p90", "0.99": "p99", "1": "longest"}


class Exporter(Closing):
    """Things under watch whose metrics are exported until `close`."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._closing: list[Callable[[], object]] = []
        self.address = ""
        """The address at which the metrics are served; empty if they are not."""

    def add(self, thing: Any, name: str | None = None) -> Self:
        """Export one more join or query; one of the same name replaces the former.

        Args:
            thing: A `Join`, `MultiJoin`, `Query`, replay or run, or a `StreamingQuery` of Spark.
            name: The label `query` of its metrics.
        """
        watch = Watch(thing, name)
        self._watches[watch.name] = watch
        return self

    def snapshots(self) -> list[Snapshot]:
        """Return the figures of everything under watch."""
        return [each for watch in list(self._watches.values()) for each in watch.snapshots()]

    def text(self) -> str:
        """Return all metrics in the OpenMetrics text format."""
        return _text(self.snapshots)

    def serve(self, address: str) -> Self:
        """Serve the metrics over HTTP, in OpenMetrics or Prometheus' own format, as the reader asks.

        Args:
            address: `HOST:PORT`, such as `127.0.0.1:9464`; port 0 takes a free one. On loopback, requests for
                another host name are refused, so that web pages of other sites cannot read the metrics.
        """
        prometheus = _package("prometheus_client")
        host, port = parse_address(address)
        try:
            server, thread = prometheus.start_http_server(port, host, _registry(self.snapshots))
        except OSError as error:
            raise InputError(f"metrics cannot be served at '{address}': {error.strerror or error}") from error
        if is_loopback(host):
            server.set_app(_refuse_other_hosts(server.get_app()))
        self._closing += [server.shutdown, server.server_close, thread.join]
        self.address = f"http://{host}:{server.server_port}/metrics"
        return self

    def instrument(self, provider: Any) -> Self:
        """Create observable instruments of OpenTelemetry, which its readers ask for values.

        Args:
            provider: A `MeterProvider`.
        """
        meter = provider.get_meter("handshake")
        for family in FAMILIES.values():
            counts = family.type == "counter"
            make = meter.create_observable_counter if counts else meter.create_observable_gauge
            unit = {"seconds": "s", "bytes": "By"}.get(family.unit, "1")
            name = f"handshake.{family.name.removesuffix(f'_{family.unit}')}"
            make(name, [_observer(family, self.snapshots)], unit=unit, description=family.help)
        return self

    def close(self) -> None:
        """Stop serving and forget what is watched."""
        while self._closing:
            self._closing.pop(0)()
        self._watches.clear()


def export(
    *things: Any, name: str | None = None, address: str | None = None, provider: Any = None
) -> Exporter:
    """Export the metrics of joins and queries to OpenMetrics, OpenTelemetry, or both.

    Args:
        *things: Joins, queries, runs, or streaming queries of Spark; `add` takes more later.
        name: The label `query` of the thing, if there is one thing.
        address: Serve OpenMetrics at this `HOST:PORT`; needs the extra `metrics`.
        provider: A `MeterProvider` of OpenTelemetry, whose readers get the metrics.

    Returns:
        An `Exporter`: `text()` is the OpenMetrics text, `address` where it is served; `close` ends it.

    Raises:
        InputError: A thing has no metrics, or the address cannot be used.
        UnsupportedError: A package is missing.

    Examples:
        >>> import handshake, pyarrow
        >>> rows = pyarrow.schema([("x", pyarrow.int64())])
        >>> with handshake.Join(left=rows, right=rows, on="l.x < r.x", window="10 tuples") as join:
        ...     _ = join.push_left({"x": [1, 2]}), join.push_right({"x": [2]})
        ...     text = export(join, name="pairs").text()
        >>> [line for line in text.splitlines() if line.startswith("handshake_results_total")]
        ['handshake_results_total{engine="local",query="pairs",result="join"} 1.0']
    """
    if name is not None and len(things) != 1:
        raise InputError(f"name '{name}' is for one thing, and {len(things)} are given; use add(thing, name)")
    exporter = Exporter()
    for thing in things:
        exporter.add(thing, name)
    if address is not None:
        exporter.serve(address)
    if provider is not None:
        exporter.instrument(provider)
    return exporter


def openmetrics(*snapshots: Snapshot) -> str:
    """Return snapshots in the OpenMetrics text format.

    Args:
        *snapshots: The snapshots that `Watch.snapshots` returned.
    """
    return _text(lambda: list(snapshots))


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"this needs the package {name.partition('.')[0]}, which is not installed: {error}; from a "
            "checkout: pip install -e '.[metrics]'"
        ) from error


def _refuse_other_hosts(app: Any) -> Callable[[dict[str, Any], Any], Any]:
    """Return a WSGI application that answers only if it is asked for as this machine."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        if asks_for_loopback(environ.get("HTTP_HOST", "")):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"these metrics are served to 127.0.0.1 and localhost only\n"]

    return answer


# OpenMetrics


def _text(snapshots: Callable[[], list[Snapshot]]) -> str:
    exposition = _package("prometheus_client.openmetrics.exposition")
    text: bytes = exposition.generate_latest(_registry(snapshots))
    return text.decode()


def _registry(snapshots: Callable[[], list[Snapshot]]) -> Any:
    registry = _package("prometheus_client").CollectorRegistry()
    registry.register(_Collector(snapshots))
    return registry


class _Collector:
    """Metric families of this moment, as the Prometheus client asks for them."""

    def __init__(self, snapshots: Callable[[], list[Snapshot]]) -> None:
        self._snapshots = snapshots

    def describe(self) -> list[Any]:
        """Return nothing: the families are made when they are asked for."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families that have samples."""
        core = _package("prometheus_client.core")
        snapshots = self._snapshots()
        by_family = _by_family(snapshots)
        for family in FAMILIES.values():
            if family.type == "histogram":
                yield from _histograms(core, family, snapshots)
            elif family.name in by_family:
                yield _make_family(core, family, by_family[family.name])


def _by_family(snapshots: list[Snapshot]) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and values by family."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for each in snapshots:
        for name, labels, value in each.samples():
            own = {"query": each.name, "engine": each.engine, **labels}
            found.setdefault(name, []).append((own, value))
    return found


def _make_family(core: Any, family: Family, samples: list[tuple[dict[str, str], float]]) -> Any:
    makers = {"counter": "Counter", "gauge": "Gauge", "info": "Info"}
    made = getattr(core, f"{makers[family.type]}MetricFamily")(f"handshake_{family.name}", family.help)
    made.unit = family.unit
    for labels, value in samples:
        made.add_sample(family.sample, dict(sorted(labels.items())), value)
    return made


def _histograms(core: Any, family: Family, snapshots: list[Snapshot]) -> Iterator[Any]:
    held = [each for each in snapshots if each.latency is not None]
    if held:
        made = core.HistogramMetricFamily(f"handshake_{family.name}", family.help, unit=family.unit)
        for each in held:
            own = {"engine": each.engine, "query": each.name}
            for bound, count in cumulate(each.latency.buckets):
                made.add_sample(family.sample, {**own, "le": bound}, count)
        yield made


def cumulate(buckets: Any) -> list[tuple[str, int]]:
    """Return numbers of results up to each exported bound, from the buckets of a histogram."""
    counts = [0] * (len(BOUNDS) + 1)
    for bound, count in buckets:
        counts[bisect_left(BOUNDS, bound)] += count
    total, found = 0, []
    for bound, count in zip([*map(repr, BOUNDS), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, total))
    return found


# OpenTelemetry


def _observer(family: Family, snapshots: Callable[[], list[Snapshot]]) -> Callable[[Any], list[Any]]:
    """Return the callback of the instrument of a family; latencies are gauges of quantiles."""
    observation = _package("opentelemetry.metrics").Observation

    def observe(options: Any) -> list[Any]:
        read = snapshots()
        histogram = family.type == "histogram"
        found = _quantiles(read) if histogram else _by_family(read).get(family.name, ())
        return [observation(value, labels) for labels, value in found]

    return observe


def _quantiles(snapshots: list[Snapshot]) -> Iterator[tuple[dict[str, str], float]]:
    for each in snapshots:
        if each.latency is not None and each.latency.results:
            own = {"query": each.name, "engine": each.engine}
            for quantile, figure in _QUANTILES.items():
                yield {**own, "quantile": quantile}, getattr(each.latency, figure)
