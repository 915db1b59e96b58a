"""Attributes of spans and metrics: of a request, of its rounds, of calls.

Those of a request are of the semantic conventions for generative AI (OpenTelemetry, gen_ai.*, in
development), with ours beside them; both ends of a request have the same. None has a text of
a prompt or an answer.
"""

from collections import Counter
from collections.abc import Sequence

from slipstream.core.request.prompt import are_ids
from slipstream.core.request.request import Generation
from slipstream.core.request.results import PromptInfo, RequestStats
from slipstream.core.round import Round
from slipstream.core.types import FinishReason, Proposal, ReplyTiming, SamplingParams, Verdict
from slipstream.telemetry.metric import Attributes, Value

PROVIDER = "slipstream"
CHAT, COMPLETION = "chat", "text_completion"

_Values = dict[str, Value]


def operation_attributes(generation: Generation, model: str) -> Attributes:
    """Return attributes of metrics: messages are a chat, a raw text and token ids are completed.

    `model` must be one that exists: metrics keep every value.
    """
    prompt = generation.prompt
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str)  # not checked yet
    is_raw = generation.ask.form.raw or (is_list and are_ids(prompt))
    operation = COMPLETION if is_raw else CHAT
    values = {"gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER}
    return {**values, "gen_ai.request.model": model} if model else values


def request_attributes(generation: Generation, *, is_stream: bool) -> Attributes:
    """Return what is requested, without most defaults."""
    ask = generation.ask
    values: _Values = dict(operation_attributes(generation, generation.model))
    if ask.max_tokens is not None:
        values["gen_ai.request.max_tokens"] = ask.max_tokens
    values["gen_ai.request.stream"] = is_stream
    known = _sampling(ask.sampling).items()  # what is left to the model is not known yet
    values |= {key: it for key, it in known if key.rpartition(".")[2] not in ask.model_defaults}
    values["slipstream.request.mode"] = ask.speculation.mode.value
    if ask.speculation.verification is not None:
        values["slipstream.request.verification"] = ask.speculation.verification.value
    if generation.session is not None:
        values["gen_ai.conversation.id"] = generation.session.session_id
    if generation.num_received:
        values["slipstream.request.num_received"] = generation.num_received
    return values


def prompt_attributes(info: PromptInfo) -> Attributes:
    """Return what is known when a request begins."""
    return {
        "gen_ai.response.id": info.request_id,
        "gen_ai.response.model": info.model,
        "gen_ai.usage.input_tokens": info.num_prompt_tokens,
    }


def stats_attributes(reason: FinishReason, stats: RequestStats) -> Attributes:
    """Return what is known when a request has ended."""
    speculation, continuity = stats.speculation, stats.continuity
    values: _Values = {
        "gen_ai.usage.output_tokens": stats.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": stats.num_cached_tokens,
        "slipstream.speculation.lossless": speculation.lossless,
        "slipstream.speculation.steps": speculation.num_spec_steps,
        "slipstream.speculation.plain_steps": speculation.num_plain_steps,
        "slipstream.speculation.rejected_steps": speculation.acceptance_histogram.get(0, 0),
        "slipstream.speculation.draft_tokens": speculation.num_draft_tokens,
        "slipstream.speculation.accepted_tokens": speculation.num_accepted_draft_tokens,
        "slipstream.speculation.lookup_tokens": speculation.num_lookup_tokens,
        "slipstream.speculation.accepted_lookup_tokens": speculation.num_accepted_lookup_tokens,
        "slipstream.speculation.store_tokens": speculation.num_store_tokens,
        "slipstream.speculation.accepted_store_tokens": speculation.num_accepted_store_tokens,
        "slipstream.speculation.acceptance_length": speculation.mean_acceptance_length,
        "slipstream.speculation.acceptance_rate": speculation.draft_acceptance_rate,
        "slipstream.continuity.is_kept": continuity.is_kept,
        "slipstream.continuity.resumed_tokens": continuity.num_resumed_tokens,
        "slipstream.continuity.unkept_tokens": continuity.num_unkept_tokens,
        "slipstream.continuity.target_losses": continuity.num_target_losses,
    }
    for name, count in speculation.stop_reasons.items():
        values[f"slipstream.stops.{name.replace(' ', '_')}"] = count
    for name, count in speculation.fallbacks.items():
        values[f"slipstream.fallbacks.{name.replace(' ', '_')}"] = count
    return {**values, "gen_ai.response.finish_reasons": (reason.value,)}


def _sampling(sampling: SamplingParams) -> _Values:
    values: _Values = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.seed": _number(sampling.seed),
    }
    if sampling.top_k is not None:
        values["gen_ai.request.top_k"] = _number(sampling.top_k)
    return values


def _number(value: int) -> int | str:
    """Return a number as an attribute, which has 64 bits and a sign; a text for a larger one."""
    return value if -(2**63) <= value < 2**63 else str(value)


def round_attributes(round_: Round) -> Attributes:
    return {
        "slipstream.round.index": round_.index,
        "slipstream.round.kind": round_.kind,
        "slipstream.round.drafted": round_.num_nodes,
        "slipstream.round.accepted": round_.num_accepted,
        "slipstream.round.final": len(round_.verdict.tokens),
    }


def proposal_attributes(round_: Round) -> Attributes:
    """Return attributes of the span of a proposal: the plan, what came, and why no more."""
    proposal, plan = round_.proposal, round_.plan
    said: dict[str, Value] = {
        "slipstream.proposal.waited_ms": 1000 * round_.proposing_s,
        "slipstream.plan.shape": plan.shape.value,
        "slipstream.plan.stop_policy": plan.stop.value,
        "slipstream.plan.max_depth": plan.max_depth,
        "slipstream.plan.max_nodes": plan.max_nodes,
    }
    if round_.error is not None and round_.verifying is None:  # no proposal came
        return said
    said.update(proposed_attributes(proposal))
    said["slipstream.proposal.copied"] = len(proposal.sources)
    for source, count in Counter(proposal.sources).items():
        said[f"slipstream.proposal.sources.{source.value}"] = count
    if proposal.fallback is not None:
        said["slipstream.proposal.fallback"] = proposal.fallback
    if proposal.timing is not None:
        said["slipstream.proposal.kv_wait_ms"] = 1000 * proposal.timing.kv_wait_s
        said.update(_reply(proposal.timing))
    return said


def proposed_attributes(proposal: Proposal) -> Attributes:
    """Return attributes of a proposal, at the draft and at its caller.

    What the draft knew where it stopped is that of the last node of the longest path that it
    drafted. Entropy in nats; the score is the decision model's, where there is one.
    """
    depths = proposal.tree.depths()
    said: dict[str, Value] = {
        "slipstream.proposal.nodes": len(depths),
        "slipstream.proposal.depth": max(depths, default=0),
        "slipstream.proposal.stop_reason": proposal.stopped_by,
    }
    if proposal.staleness is not None:
        said["slipstream.proposal.staleness"] = proposal.staleness
    if proposal.stats:
        drafted = depths[: len(proposal.stats)]
        last = proposal.stats[drafted.index(max(drafted))]
        said["slipstream.proposal.entropy"] = last.entropy
        if last.score is not None:
            said["slipstream.proposal.score"] = last.score
    return said


def verdict_attributes(round_: Round) -> Attributes:
    verdict = round_.verdict
    said: dict[str, Value] = {
        "slipstream.verdict.waited_ms": 1000 * round_.verifying_s,
        "slipstream.verdict.nodes": len(round_.proposal.tree),
    }
    if round_.error is not None:  # no verdict came
        return said
    said.update(decided_attributes(verdict))
    if verdict.timing is not None:
        said.update(_reply(verdict.timing))
    return said


def decided_attributes(verdict: Verdict) -> Attributes:
    """Return attributes of a verdict, at the target and at its caller."""
    said: dict[str, Value] = {
        "slipstream.verdict.accepted": verdict.num_accepted,
        "slipstream.verdict.final": len(verdict.tokens),
    }
    if verdict.finish_reason is not None:
        said["slipstream.verdict.finish_reason"] = verdict.finish_reason.value
    return said


def _reply(timing: ReplyTiming) -> Attributes:
    return {
        "slipstream.reply.service_ms": 1000 * timing.service_s,
        "slipstream.reply.queue_ms": 1000 * timing.queue_s,
        "slipstream.reply.engine_ms": 1000 * timing.engine_s,
    }


def server_attributes(address: str) -> Attributes:
    """Return attributes of a server at HOST:PORT, or at a gRPC name such as dns:///NAME:PORT."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if address.startswith("unix:") or not (host and port.isdigit()):
        return {"server.address": address}
    return {"server.address": host.strip("[]"), "server.port": int(port)}
