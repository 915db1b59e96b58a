"""All metrics, and the bounds of their buckets.

Names and buckets are those of the OpenTelemetry semantic conventions for generative AI where they
have them (server metrics).
"""

from functools import partial

from slipstream.telemetry.metric import Metric, MetricKind

ROUTER, TARGET, DRAFT, HTTP = "router", "target", "draft", "http"
_ENGINES = (TARGET, DRAFT)
_OPERATION = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")

# The conventions' own buckets.
_DURATIONS = tuple(round(0.01 * 2**power, 2) for power in range(14))
_FIRST_TOKENS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_TIMES_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# Ours. Rounds take from less than a millisecond to seconds, by machine and model.
_SHORT_TIMES = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
_TOKENS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 40.0)
_NODES = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 127.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
_BYTES = tuple(float(4**power) for power in range(5, 15))


def _metric(
    kind: MetricKind,
    name: str,
    unit: str,
    text: str,
    *attributes: str,
    roles: tuple[str, ...] = (ROUTER,),
) -> Metric:
    return Metric(f"slipstream.{name}", kind, unit, text, roles, attributes)


_counter = partial(_metric, MetricKind.COUNTER)
_gauge = partial(_metric, MetricKind.GAUGE)


def _seconds(name: str, text: str, *attributes: str, role: str = ROUTER) -> Metric:
    kind = MetricKind.HISTOGRAM
    return Metric(f"slipstream.{name}", kind, "s", text, (role,), attributes, _SHORT_TIMES)


def _sizes(name: str, unit: str, text: str, role: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(f"slipstream.{name}", MetricKind.HISTOGRAM, unit, text, (role,), (), buckets)


def _gen_ai(name: str, text: str, buckets: tuple[float, ...], *attributes: str) -> Metric:
    kind, about = MetricKind.HISTOGRAM, (*_OPERATION, *attributes)
    return Metric(f"gen_ai.server.{name}", kind, "s", text, (ROUTER,), about, buckets)


REQUEST_DURATION = _gen_ai(
    "request.duration", "Requests, from their arrival to the last token.", _DURATIONS, "error.type"
)
FIRST_TOKEN = _gen_ai(
    "time_to_first_token", "From a request's arrival to its first token.", _FIRST_TOKENS
)
PER_TOKEN = _gen_ai(
    "time_per_output_token",
    "Time per output token after the first one, a mean of each request.",
    _TIMES_PER_TOKEN,
)

REQUESTS_RUNNING = _gauge(
    "requests.running", "{request}", "Requests that run at the moment.", roles=(ROUTER, HTTP)
)
REQUESTS_CAPACITY = _gauge("requests.capacity", "{request}", "Requests that may run at once.")
REPLICAS = _gauge("replicas", "{replica}", "Replicas as this router sees them.", "role", "state")
TOKENS_PROMPT = _counter(
    "tokens.prompt", "{token}", "Tokens before the output, earlier turns included."
)
TOKENS_CACHED = _counter(
    "tokens.cached", "{token}", "Of those, the ones that were not computed again."
)
TOKENS_DRAFTED = _counter("tokens.drafted", "{token}", "Draft tokens that were verified.")
TOKENS_ACCEPTED = _counter("tokens.accepted", "{token}", "Draft tokens that became final.")
TOKENS_COPIED = _counter(
    "tokens.copied",
    "{token}",
    "Draft tokens that no model proposed, by where they were found.",
    "source",
)
TOKENS_COPIED_ACCEPTED = _counter(
    "tokens.copied.accepted", "{token}", "Of those, the ones that became final.", "source"
)
TOKENS_FINAL = _counter("tokens.final", "{token}", "Output tokens, the target's own included.")
ROUNDS = _counter("rounds", "{round}", "Rounds: prefill, speculative or plain.", "kind")
ROUNDS_GRANTED = _counter(
    "rounds.granted", "{round}", "Of those, the ones that targets began by themselves."
)
ROUND_DURATION = _seconds("round.duration", "Rounds, drafting and wire included.", "kind")
ROUND_ACCEPTED = _sizes(
    "round.accepted", "{token}", "Draft tokens that a speculative round accepted.", ROUTER, _TOKENS
)
POSITION_DRAFTED = _counter(
    "position.drafted",
    "{round}",
    "Speculative rounds that drafted as far as this position.",
    "position",
)
POSITION_ACCEPTED = _counter(
    "position.accepted",
    "{round}",
    "Speculative rounds that accepted as far as this position.",
    "position",
)
STOPS = _counter("draft.stops", "{round}", "What ended the drafting of rounds.", "reason")
DRAFT_WAIT = _seconds("draft.wait.duration", "How long rounds waited for a proposal.")
VERIFY_WAIT = _seconds("verify.wait.duration", "How long rounds waited for a verdict.")
FALLBACKS = _counter("fallbacks", "{round}", "Rounds in which no draft answered.", "reason")
TARGET_LOSSES = _counter("target.losses", "{loss}", "Targets that requests lost, and went on.")
SPECULATION_LENGTH = _gauge(
    "speculation.length", "{token}", "Final tokens of a speculative round, a moving average."
)
SPECULATION_BREAK_EVEN = _gauge(
    "speculation.break_even",
    "{token}",
    "Final tokens of a speculative round from which on it is faster than plain ones.",
)
STORE_DURATION = _seconds(
    "store.duration", "Operations of the session store.", "operation", "outcome"
)
TOKENS_UNKEPT = _counter("tokens.unkept", "{token}", "Tokens sent before they could be kept.")

STEP_DURATION = _seconds("target.step.duration", "Forwards of the target.", role=TARGET)
STEP_ROWS = _sizes("target.step.rows", "{row}", "Rows of a forward.", TARGET, _ROWS)
STEP_SESSIONS = _sizes(
    "target.step.sessions", "{session}", "Sessions that share a forward.", TARGET, _ROWS
)
TARGET_QUEUE = _seconds(
    "target.queue.duration", "How long verifications wait for their forward.", role=TARGET
)
TARGET_TIME = _counter(
    "target.time",
    "s",
    "Time of the target: busy, waiting for drafts, or without anything to do.",
    "state",
    roles=(TARGET,),
)
DRAFT_WAIT_SHARE = _gauge(
    "target.draft_wait",
    "1",
    "Share of the last half minute in which the target waited for drafts.",
    roles=(TARGET,),
)
ROWS_IN_FLIGHT = _gauge(
    "target.rows.in_flight", "{row}", "Rows of the last forward; 0 if idle.", roles=(TARGET,)
)
ROWS_FREE = _gauge(
    "target.rows.free",
    "{row}",
    "Rows that such a forward would still take at next to no cost.",
    roles=(TARGET,),
)
SNAPSHOT_SIZE = _sizes(
    "kv.snapshot.size", "By", "Snapshots of keys and values sent.", TARGET, _BYTES
)
KV_SENT = _counter("kv.sent", "By", "Keys and values sent to drafts.", roles=(TARGET,))
KV_RECEIVED = _counter("kv.received", "By", "Keys and values received.", roles=(DRAFT,))
KV_CACHED = _gauge(
    "kv.cached", "By", "Keys and values kept for texts that begin alike.", roles=(TARGET,)
)

KV_USED = _gauge("kv.used", "By", "Keys and values of sessions.", roles=_ENGINES)
KV_CAPACITY = _gauge("kv.capacity", "By", "Room for keys and values.", roles=_ENGINES)
KV_STREAMS = _gauge("kv.streams", "{stream}", "Open streams of snapshots.", roles=_ENGINES)
SESSIONS = _gauge("sessions", "{session}", "Sessions held.", "state", roles=_ENGINES)
WAITING = _gauge("waiting", "{job}", "What has not begun.", roles=_ENGINES)

DRAFT_QUEUE = _seconds(
    "draft.queue.duration", "How long proposals wait for the engine.", role=DRAFT
)
DRAFT_ENGINE = _seconds(
    "draft.engine.duration", "How long the engine drafts for a proposal.", role=DRAFT
)
KV_WAIT = _seconds(
    "draft.kv_wait.duration", "How long proposals wait for keys and values.", role=DRAFT
)
STALENESS = _sizes(
    "draft.staleness",
    "{token}",
    "Positions by which the target's keys and values lag behind.",
    DRAFT,
    _TOKENS,
)
DRAFT_DEPTH = _sizes("draft.depth", "{token}", "Longest path of proposals.", DRAFT, _TOKENS)
DRAFT_NODES = _sizes("draft.nodes", "{token}", "Nodes of proposals.", DRAFT, _NODES)

CATALOG: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
