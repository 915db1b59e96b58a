"""Options of telemetry, the same for all services.

OpenTelemetry itself reads the OTEL_* variables of exporters (headers, certificates, resource
attributes).
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from slipstream.core.errors import InvalidRequest, check, host_and_port
from slipstream.options import check_bounds, option

SECTION = "telemetry"
OTLP, OTLP_HTTP, FILE = "otlp", "otlp-http", "file:"
TEXT, JSON = "text", "json"
_EXPORTERS = (OTLP, OTLP_HTTP)
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Options of a service's telemetry. By default nothing is exported."""

    traces: tuple[str, ...] = option(
        (), "Where spans go: otlp (gRPC), otlp-http or file:DIRECTORY; unset, nowhere."
    )
    metrics: tuple[str, ...] = option((), "Where metrics are sent: otlp (gRPC) or otlp-http.")
    otlp_endpoint: str | None = option(
        None, "URL of the collector; unset, that of OTEL_EXPORTER_OTLP_* variables."
    )
    metrics_address: str | None = option(
        None, "A plaintext port that Prometheus reads metrics from."
    )
    metrics_interval_s: float = option(15.0, "How often metrics are sent.", least=0.1, most=3600)
    trace_ratio: float = option(
        0.1, "Share of requests traced, where callers do not decide it.", least=0, most=1
    )
    trace_rounds: int = option(
        8, "Rounds of a request that have spans: its first.", least=0, most=1000
    )
    log_format: str = option(TEXT, "Lines of the log: text or json.")
    log_level: str = option("info", "What is logged: debug, info, warning or error.")

    def __post_init__(self) -> None:
        for name in self.traces:
            if not name.startswith(FILE) or name == FILE:
                _check("traces", name, (*_EXPORTERS, "file:DIRECTORY"))
        for name in self.metrics:
            _check("metrics", name, _EXPORTERS)
        for field in ("traces", "metrics"):
            names = getattr(self, field)
            if twice := {name for name in names if names.count(name) > 1}:
                raise InvalidRequest(f"{field} has {min(twice)} twice")
        _check("log_format", self.log_format, (TEXT, JSON))
        _check("log_level", self.log_level, _LEVELS)
        check_bounds(self)
        self._check_endpoint()
        self.metrics_place()

    def _check_endpoint(self) -> None:
        url = self.otlp_endpoint
        if url is None:
            return
        if "@" in urlsplit(url).netloc:
            raise InvalidRequest(
                "otlp_endpoint has credentials in it, which any user can read; use the variable"
                " OTEL_EXPORTER_OTLP_HEADERS"
            )
        is_url = url.startswith(("http://", "https://"))
        check(is_url, "otlp_endpoint", url, "a URL of http:// or https://")
        if not {OTLP, OTLP_HTTP} & {*self.traces, *self.metrics}:
            raise InvalidRequest(
                f"otlp_endpoint is {url}, but neither traces nor metrics go to otlp or otlp-http"
            )

    def metrics_place(self) -> tuple[str, int] | None:
        """Return host and port of the page for Prometheus. Raises `InvalidRequest`."""
        if self.metrics_address is None:
            return None
        return host_and_port("metrics_address", self.metrics_address)


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    check(value in known, name, value, f"one of {', '.join(known)}")
