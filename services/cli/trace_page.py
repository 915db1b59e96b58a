"""A trace as one HTML page that needs nothing else: no script, font or picture of anybody's.

Everything in a trace file is untrusted, so every text passes `escape`, and the page's own policy
forbids it to load or run anything.
"""

from collections.abc import Iterator, Mapping
from html import escape
from importlib import resources
from typing import Any

from slipstream.cli.trace_rows import Row, axis_ms, rows, value_text
from slipstream.cli.trace_summary import Part, Summary, summary
from slipstream.telemetry.traces import REQUEST_ID, Trace

_STYLE = "data/trace.css"
_KNOWN = ("client", "router", "draft", "target")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_TICKS = 5


def page(trace: Trace) -> str:
    """The whole document."""
    said = summary(trace)
    title = f"Request {_text(trace.request.attributes.get(REQUEST_ID, 'unknown'))}"
    style = resources.files("slipstream").joinpath(_STYLE).read_text(encoding="utf-8")
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body>",
        f"<header><h1>{title}</h1>{_facts(said)}</header>",
        f"<section class=cards>{_words(said)}{_where(said)}</section>",
        f"<section class=waterfall>{_head(trace)}{''.join(map(_row, rows(trace)))}</section>",
        "</body></html>\n",
    )
    return "\n".join(parts)


def _text(value: Any) -> str:
    return escape(value_text(value), quote=True)


def _facts(said: Summary) -> str:
    pairs = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in said.facts
        if name != "request"  # the title is its id
    )
    return f"<dl class=facts>{pairs}</dl>"


def _words(said: Summary) -> str:
    sentences = "".join(f"<li>{_text(sentence)}</li>" for sentence in said.sentences)
    links = "".join(f"<li class=link>{_text(link)}</li>" for link in said.links)
    return f"<article><h2>What drafting gave</h2><ul>{sentences}{links}</ul></article>"


def _where(said: Summary) -> str:
    total = sum(part.share for part in said.parts) or 1.0
    bar = "".join(_slice(part, at, total) for at, part in enumerate(said.parts))
    lines = "".join(_part(part, at) for at, part in enumerate(said.parts))
    told = f"{said.explained:.1%} of the wall time is accounted for."
    return (
        "<article><h2>Where the time went</h2>"
        f"<div class=stack>{bar}</div><table>{lines}</table><p class=quiet>{told}</p></article>"
    )


def _slice(part: Part, at: int, total: float) -> str:
    style = f"width:{100 * part.share / total:.3f}%"
    return f'<i class="{_stage_class(part, at)}" style="{style}" title="{_text(part.name)}"></i>'


def _part(part: Part, at: int) -> str:
    return (
        f'<tr><td><i class="dot {_stage_class(part, at)}"></i>{_text(part.name)}</td>'
        f"<td>{part.duration_ms:.1f} ms</td><td>{part.share:.1%}</td></tr>"
    )


def _stage_class(part: Part, at: int) -> str:
    return "rest" if part.name == "unexplained" else f"stage{at % 9}"


def _head(trace: Trace) -> str:
    services = dict.fromkeys(row.service for row in rows(trace))
    legend = "".join(
        f'<span><i class="dot {_service_class(name)}"></i>{_text(name)}</span>' for name in services
    )
    return (
        f"<h2>Spans</h2><p class=legend>{legend}</p>"
        "<div class='line names'><span>span</span><span>at</span><span>took</span>"
        f"<span class=axis>{''.join(_ticks(trace))}</span></div>"
    )


def _ticks(trace: Trace) -> Iterator[str]:
    length_ms = axis_ms(trace)
    for at in range(_TICKS):
        share = at / (_TICKS - 1)
        yield f'<em style="left:{100 * share:.1f}%">{length_ms * share:.0f} ms</em>'


def _row(row: Row) -> str:
    kind = "failed" if row.has_failed else _service_class(row.service)
    hint = f"{row.name} ({row.service}), {row.span.duration_ms:.3f} ms. {', '.join(row.about)}"
    return (
        f'<details class="{kind}"><summary class=line title="{_text(hint)}">'
        f'<span class=name style="padding-left:{len(row.branches) * 0.9:.1f}em">'
        f"{_text(row.name)} <small>{_text(row.service)}</small></span>"
        f"<span class=ms>{row.offset_ms:.1f}</span><span class=ms>{row.span.duration_ms:.1f}</span>"
        f"{_track(row)}</summary>{_details(row)}</details>"
    )


def _track(row: Row) -> str:
    """A bar, and beside it, or in it where there is no room, what its span says."""
    left, width = 100 * min(row.left, 0.998), max(0.2, 100 * row.width)
    if left + width < 60:
        place = f'style="left:{left + width:.3f}%"'
    elif left > 40:
        place = f'style="right:{100 - left:.3f}%"'
    else:
        place = f'class=inside style="left:{left:.3f}%"'
    bar = f'<b style="left:{left:.3f}%;width:{width:.3f}%"></b>'
    return f"<span class=track>{bar}<small {place}>{_text(', '.join(row.about))}</small></span>"


def _details(row: Row) -> str:
    span = row.span
    about: dict[str, Any] = {
        "span": span.span_id,
        "kind": span.kind,
        "status": span.status if span.error is None else f"{span.status}: {span.error}",
        **span.attributes,
    }
    for number, link in enumerate(span.links, start=1):
        about[f"link {number}"] = f"span {link.span_id} of trace {link.trace_id}"
    return f"<table>{''.join(_pairs(about))}</table>"


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"


def _service_class(service: str) -> str:
    return service if service in _KNOWN else "other"
