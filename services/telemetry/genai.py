"""A request in the words of the semantic conventions for generative AI, and in ours beside them.

(OpenTelemetry semantic conventions, gen_ai.*, in development.) Text is in what is named content
alone. Shared by the router and the SDK, so that both ends of a request say the same.
"""

import json
from collections.abc import Sequence
from typing import Any

from slipstream.core.prompt import are_ids
from slipstream.core.request import Generation
from slipstream.core.results import PromptInfo, RequestStats
from slipstream.core.types import FinishReason, SamplingParams
from slipstream.telemetry.metric import Attributes, Value

PROVIDER = "slipstream"
CHAT, COMPLETION = "chat", "text_completion"
MAX_CONTENT = 1 << 16
"""Characters of a prompt or an answer in a span, where they are switched on."""

_Said = dict[str, Value]


def operation_of(asked: Generation) -> str:
    """What kind of request it is: messages are a chat, a raw text and token ids are completed."""
    prompt = asked.prompt
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str)  # of what is unchecked
    is_raw = asked.ask.raw or (is_list and are_ids(prompt))
    return COMPLETION if is_raw else CHAT


def operation_attributes(asked: Generation, model: str) -> Attributes:
    """What metrics tell apart. `model` must be one that there is: metrics keep every value."""
    said = {"gen_ai.operation.name": operation_of(asked), "gen_ai.provider.name": PROVIDER}
    return {**said, "gen_ai.request.model": model} if model else said


def request_attributes(asked: Generation, *, is_stream: bool) -> Attributes:
    """What was asked for; what is as ever is not said."""
    ask = asked.ask
    said: _Said = dict(operation_attributes(asked, asked.model))
    said["gen_ai.request.max_tokens"] = ask.max_tokens
    said["gen_ai.request.stream"] = is_stream
    said.update(_sampling(ask.sampling))
    said["slipstream.request.mode"] = ask.speculation.mode.value
    if ask.speculation.verification is not None:
        said["slipstream.request.verification"] = ask.speculation.verification.value
    if asked.session is not None:
        said["gen_ai.conversation.id"] = asked.session.session_id
    if asked.num_received:
        said["slipstream.request.num_received"] = asked.num_received
    return said


def prompt_attributes(info: PromptInfo) -> Attributes:
    """What is known when a request begins."""
    return {
        "gen_ai.response.id": info.request_id,
        "gen_ai.response.model": info.model,
        "gen_ai.usage.input_tokens": info.num_prompt_tokens,
    }


def stats_attributes(reason: FinishReason, stats: RequestStats) -> Attributes:
    """What is known when a request has ended."""
    speculation, continuity = stats.speculation, stats.continuity
    said: _Said = {
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
        "slipstream.speculation.learned_tokens": speculation.num_learned_tokens,
        "slipstream.speculation.accepted_learned_tokens": speculation.num_accepted_learned_tokens,
        "slipstream.speculation.acceptance_length": speculation.mean_acceptance_length,
        "slipstream.speculation.acceptance_rate": speculation.draft_acceptance_rate,
        "slipstream.continuity.is_kept": continuity.is_kept,
        "slipstream.continuity.resumed_tokens": continuity.num_resumed_tokens,
        "slipstream.continuity.unkept_tokens": continuity.num_unkept_tokens,
        "slipstream.continuity.target_losses": continuity.num_target_losses,
    }
    for name, count in speculation.stop_reasons.items():
        said[f"slipstream.stops.{_word(name)}"] = count
    for name, count in speculation.fallbacks.items():
        said[f"slipstream.fallbacks.{_word(name)}"] = count
    return {**said, "gen_ai.response.finish_reasons": (reason.value,)}


def input_content(asked: Generation) -> Attributes:
    """The prompt, for those who switched it on; one that is too long is told by its length."""
    prompt = asked.prompt
    if isinstance(prompt, str):
        messages: list[Any] = [_message("user", prompt)]
    elif are_ids(prompt):
        messages = [_message("user", " ".join(map(str, prompt)))]
    else:
        messages = [_message(item["role"], item["content"]) for item in prompt]  # type: ignore[index]
    return _content("input", messages)


def output_content(text: str, reason: FinishReason) -> Attributes:
    """The answer, likewise."""
    message = {**_message("assistant", text), "finish_reason": reason.value}
    return _content("output", [message])


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _content(side: str, messages: list[Any]) -> Attributes:
    text = json.dumps(messages, ensure_ascii=False)
    if len(text) > MAX_CONTENT:
        return {f"slipstream.{side}.omitted_chars": len(text)}
    return {f"gen_ai.{side}.messages": text}


def _sampling(sampling: SamplingParams) -> _Said:
    said: _Said = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        # An attribute is a signed number of 64 bits, and a seed is not.
        "gen_ai.request.seed": sampling.seed if sampling.seed < 2**63 else str(sampling.seed),
    }
    if sampling.top_k is not None:
        said["gen_ai.request.top_k"] = sampling.top_k
    return said


def _word(name: str) -> str:
    return name.replace(" ", "_")
