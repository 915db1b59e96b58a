"""A trace as one HTML page, which loads and runs nothing.

Everything in a trace file is untrusted: the template escapes every value, and the page's own policy
forbids it to load or run anything.
"""

from jinja2 import Environment, PackageLoader

from slipstream.cli.trace_rows import axis_ms, rows, value_text
from slipstream.cli.trace_summary import summary
from slipstream.telemetry.traces import REQUEST_ID, Trace

_SERVICES = ("client", "router", "draft", "target")


def page(trace: Trace) -> str:
    """Return the whole document."""
    templates = Environment(
        loader=PackageLoader("slipstream", "data"),
        autoescape=True,
        finalize=value_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found = rows(trace)
    return templates.get_template("trace.html").render(
        request_id=trace.request.attributes.get(REQUEST_ID, "unknown"),
        summary=summary(trace),
        rows=found,
        services=dict.fromkeys(row.service for row in found),
        known=_SERVICES,
        ticks=[axis_ms(trace) * at / 4 for at in range(5)],
    )
