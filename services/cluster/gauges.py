"""What a service says of itself on its page of metrics, for the pool that it belongs to.

Reads the page of one process on this machine. Knows names as Prometheus sees them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.request import ProxyHandler, build_opener

TIMEOUT_S = 5.0
_SESSIONS = 'slipstream_sessions{state="active"}'
_WAITING = "slipstream_waiting"
_DRAFT_WAIT = "slipstream_target_draft_wait"


@dataclass(frozen=True, slots=True)
class Gauges:
    """One replica at the moment."""

    num_sessions: float = 0.0
    num_waiting: float = 0.0
    draft_wait: float = 0.0
    """Share of the last half minute in which a target waited for drafts."""

    @property
    def load(self) -> float:
        """What it has to do."""
        return self.num_sessions + self.num_waiting


def read_gauges(url: str) -> Gauges:
    """Those on the page. Raises `OSError` when it can't be read."""
    # What a proxy is for is elsewhere.
    with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT_S) as page:
        body: bytes = page.read()
    return gauges_of(body.decode(errors="replace"))


def gauges_of(page: str) -> Gauges:
    """Those of a page's text; 0 for what is not on it."""
    values = _values(page)
    return Gauges(
        num_sessions=values.get(_SESSIONS, 0.0),
        num_waiting=values.get(_WAITING, 0.0),
        draft_wait=values.get(_DRAFT_WAIT, 0.0),
    )


def _values(page: str) -> Mapping[str, float]:
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}
