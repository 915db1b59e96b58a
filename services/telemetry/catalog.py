"""Every metric there is. Names and buckets are those of the semantic conventions where they exist.

(OpenTelemetry semantic conventions for generative AI: server and client metrics.)
"""

from slipstream.telemetry import buckets as bounds
from slipstream.telemetry.metric import Kind, Metric

ROUTER, TARGET, DRAFT, CLIENT = "router", "target", "draft", "client"
_ENGINES = (TARGET, DRAFT)

_OPERATION = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")


def _counter(name: str, unit: str, text: str, roles: tuple[str, ...], *attributes: str) -> Metric:
    return Metric(name, Kind.COUNTER, unit, text, roles, attributes)


def _gauge(name: str, unit: str, text: str, roles: tuple[str, ...], *attributes: str) -> Metric:
    return Metric(name, Kind.GAUGE, unit, text, roles, attributes)


def _seconds(
    name: str,
    text: str,
    role: str,
    *attributes: str,
    buckets: tuple[float, ...] = bounds.SHORT_TIMES,
) -> Metric:
    return Metric(name, Kind.HISTOGRAM, "s", text, (role,), attributes, buckets)


def _sizes(name: str, unit: str, text: str, role: str, *, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, unit, text, (role,), (), buckets)


REQUEST_DURATION = _seconds(
    "gen_ai.server.request.duration",
    "Requests, from their arrival to the last token.",
    ROUTER,
    *_OPERATION,
    "error.type",
    buckets=bounds.DURATIONS,
)
FIRST_TOKEN = _seconds(
    "gen_ai.server.time_to_first_token",
    "From a request's arrival to its first token.",
    ROUTER,
    *_OPERATION,
    buckets=bounds.FIRST_TOKENS,
)
PER_TOKEN = _seconds(
    "gen_ai.server.time_per_output_token",
    "Time per output token after the first one, a mean of each request.",
    ROUTER,
    *_OPERATION,
    buckets=bounds.TIMES_PER_TOKEN,
)
CLIENT_DURATION = _seconds(
    "gen_ai.client.operation.duration",
    "Requests as callers of the SDK see them.",
    CLIENT,
    *_OPERATION,
    "error.type",
    buckets=bounds.DURATIONS,
)
CLIENT_FIRST_CHUNK = _seconds(
    "gen_ai.client.operation.time_to_first_chunk",
    "From a call of the SDK to the first piece of its answer.",
    CLIENT,
    *_OPERATION,
    buckets=bounds.FIRST_TOKENS,
)
CLIENT_TOKENS = Metric(
    "gen_ai.client.token.usage",
    Kind.HISTOGRAM,
    "{token}",
    "Tokens of requests as callers of the SDK see them.",
    (CLIENT,),
    (*_OPERATION, "gen_ai.token.type"),
    bounds.USAGES,
)

REQUESTS_RUNNING = _gauge(
    "slipstream.requests.running", "{request}", "Requests that run at the moment.", (ROUTER,)
)
REQUESTS_CAPACITY = _gauge(
    "slipstream.requests.capacity", "{request}", "Requests that may run at once.", (ROUTER,)
)
REPLICAS = _gauge(
    "slipstream.replicas",
    "{replica}",
    "Replicas as this router sees them.",
    (ROUTER,),
    "role",
    "state",
)
TOKENS_PROMPT = _counter(
    "slipstream.tokens.prompt", "{token}", "Tokens before the output, earlier turns included.",
    (ROUTER,),
)  # fmt: skip
TOKENS_CACHED = _counter(
    "slipstream.tokens.cached", "{token}", "Of those, the ones that were not computed again.",
    (ROUTER,),
)  # fmt: skip
TOKENS_DRAFTED = _counter(
    "slipstream.tokens.drafted", "{token}", "Draft tokens that were verified.", (ROUTER,)
)
TOKENS_ACCEPTED = _counter(
    "slipstream.tokens.accepted", "{token}", "Draft tokens that became final.", (ROUTER,)
)
TOKENS_COPIED = _counter(
    "slipstream.tokens.copied",
    "{token}",
    "Draft tokens that no model proposed, by where they were found.",
    (ROUTER,),
    "source",
)
TOKENS_COPIED_ACCEPTED = _counter(
    "slipstream.tokens.copied.accepted",
    "{token}",
    "Of those, the ones that became final.",
    (ROUTER,),
    "source",
)
TOKENS_FINAL = _counter(
    "slipstream.tokens.final", "{token}", "Output tokens, the target's own included.", (ROUTER,)
)
ROUNDS = _counter(
    "slipstream.rounds", "{round}", "Rounds: prefill, speculative or plain.", (ROUTER,), "kind"
)
ROUND_DURATION = _seconds(
    "slipstream.round.duration", "Rounds, drafting and wire included.", ROUTER, "kind"
)
ROUND_ACCEPTED = _sizes(
    "slipstream.round.accepted",
    "{token}",
    "Draft tokens that a speculative round accepted.",
    ROUTER,
    buckets=bounds.TOKENS,
)
POSITION_DRAFTED = _counter(
    "slipstream.position.drafted",
    "{round}",
    "Speculative rounds that drafted as far as this position.",
    (ROUTER,),
    "position",
)
POSITION_ACCEPTED = _counter(
    "slipstream.position.accepted",
    "{round}",
    "Speculative rounds that accepted as far as this position.",
    (ROUTER,),
    "position",
)
STOPS = _counter(
    "slipstream.draft.stops", "{round}", "What ended the drafting of rounds.", (ROUTER,), "reason"
)
DRAFT_WAIT = _seconds(
    "slipstream.draft.wait.duration", "How long rounds waited for a proposal.", ROUTER
)
VERIFY_WAIT = _seconds(
    "slipstream.verify.wait.duration", "How long rounds waited for a verdict.", ROUTER
)
FALLBACKS = _counter(
    "slipstream.fallbacks", "{round}", "Rounds in which no draft answered.", (ROUTER,), "reason"
)
TARGET_LOSSES = _counter(
    "slipstream.target.losses", "{loss}", "Targets that requests lost, and went on.", (ROUTER,)
)
SPECULATION_LENGTH = _gauge(
    "slipstream.speculation.length",
    "{token}",
    "Final tokens of a speculative round, a moving average.",
    (ROUTER,),
)
SPECULATION_BREAK_EVEN = _gauge(
    "slipstream.speculation.break_even",
    "{token}",
    "Final tokens of a speculative round from which on it is faster than plain ones.",
    (ROUTER,),
)
STORE_DURATION = _seconds(
    "slipstream.store.duration", "Operations of the session store.", ROUTER, "operation", "outcome"
)
TOKENS_UNKEPT = _counter(
    "slipstream.tokens.unkept", "{token}", "Tokens sent before they could be kept.", (ROUTER,)
)
SHADOW_CHECKED = _counter(
    "slipstream.shadow.checked", "{request}", "Requests decoded again without drafts.", (ROUTER,)
)
SHADOW_DIVERGED = _counter(
    "slipstream.shadow.diverged", "{request}", "Of those, the ones that differed.", (ROUTER,)
)
LEARNED_TOKENS = _gauge(
    "slipstream.learned.tokens", "{token}", "Tokens of earlier requests to draft from.", (ROUTER,)
)
LEARNED_TEXTS = _counter(
    "slipstream.learned.texts", "{text}", "Texts that were learned.", (ROUTER,), "source"
)
LEARNED_EVICTED = _counter(
    "slipstream.learned.evicted", "{token}", "Learned tokens that were forgotten.", (ROUTER,)
)
LEARNED_LOST = _counter(
    "slipstream.learned.lost", "{text}", "Texts that were not learned, or not shared.", (ROUTER,),
    "reason",
)  # fmt: skip

STEP_DURATION = _seconds("slipstream.target.step.duration", "Forwards of the target.", TARGET)
STEP_ROWS = _sizes(
    "slipstream.target.step.rows", "{row}", "Rows of a forward.", TARGET, buckets=bounds.ROWS
)
STEP_SESSIONS = _sizes(
    "slipstream.target.step.sessions", "{session}", "Sessions that share a forward.", TARGET,
    buckets=bounds.ROWS,
)  # fmt: skip
TARGET_QUEUE = _seconds(
    "slipstream.target.queue.duration", "How long verifications wait for their forward.", TARGET
)
TARGET_TIME = _counter(
    "slipstream.target.time",
    "s",
    "Time of the target: busy, waiting for drafts, or without anything to do.",
    (TARGET,),
    "state",
)
DRAFT_WAIT_SHARE = _gauge(
    "slipstream.target.draft_wait",
    "1",
    "Share of the last half minute in which the target waited for drafts.",
    (TARGET,),
)
ROWS_IN_FLIGHT = _gauge(
    "slipstream.target.rows.in_flight", "{row}", "Rows of the last forward; 0 if idle.", (TARGET,)
)
ROWS_FREE = _gauge(
    "slipstream.target.rows.free",
    "{row}",
    "Rows that such a forward would still take at next to no cost.",
    (TARGET,),
)
SNAPSHOT_SIZE = _sizes(
    "slipstream.kv.snapshot.size", "By", "Snapshots of keys and values sent.", TARGET,
    buckets=bounds.BYTES,
)  # fmt: skip
KV_SENT = _counter("slipstream.kv.sent", "By", "Keys and values sent to drafts.", (TARGET,))
KV_RECEIVED = _counter("slipstream.kv.received", "By", "Keys and values received.", (DRAFT,))
KV_CACHED = _gauge(
    "slipstream.kv.cached", "By", "Keys and values kept for texts that begin alike.", (TARGET,)
)

KV_USED = _gauge("slipstream.kv.used", "By", "Keys and values of sessions.", _ENGINES)
KV_CAPACITY = _gauge("slipstream.kv.capacity", "By", "Room for keys and values.", _ENGINES)
KV_STREAMS = _gauge("slipstream.kv.streams", "{stream}", "Open streams of snapshots.", _ENGINES)
SESSIONS = _gauge("slipstream.sessions", "{session}", "Sessions held.", _ENGINES, "state")
WAITING = _gauge("slipstream.waiting", "{job}", "What has not begun.", _ENGINES)

DRAFT_QUEUE = _seconds(
    "slipstream.draft.queue.duration", "How long proposals wait for the engine.", DRAFT
)
DRAFT_ENGINE = _seconds(
    "slipstream.draft.engine.duration", "How long the engine drafts for a proposal.", DRAFT
)
KV_WAIT = _seconds(
    "slipstream.draft.kv_wait.duration", "How long proposals wait for keys and values.", DRAFT
)
STALENESS = _sizes(
    "slipstream.draft.staleness",
    "{token}",
    "Positions by which the target's keys and values lag behind.",
    DRAFT,
    buckets=bounds.TOKENS,
)
DRAFT_DEPTH = _sizes(
    "slipstream.draft.depth",
    "{token}",
    "Longest path of proposals.",
    DRAFT,
    buckets=bounds.TOKENS,
)
DRAFT_NODES = _sizes(
    "slipstream.draft.nodes", "{token}", "Nodes of proposals.", DRAFT, buckets=bounds.NODES
)

CATALOG: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
