"""Fields of bodies that are no parameters here, with the values at which they change no answer.

One table for all bodies. Null is as absent everywhere, and a field that a body's own model has is
that model's. docs/compatibility.md is written from it.
"""

from collections.abc import Mapping, Set
from typing import Any

from slipstream.gateway.errors import HttpError

IGNORED: Mapping[str, str] = {
    name: why
    for names, why in {
        "user safety_identifier metadata request_id rid": "names the caller or the request in logs",
        "prompt_cache_key prompt_cache_retention prompt_cache_options cache_prompt": (
            "a hint for caches; the prefix cache finds what is the same by itself"
        ),
        "service_tier priority": "price and order of service, which are the same for all callers",
        "prediction": "a hint for speed; the drafts propose in its place",
        "length_penalty early_stopping": "only for beam search, which is refused",
        "spaces_between_special_tokens": "only for special tokens, which texts do not show",
        "reasoning.summary reasoning.generate_summary include_reasoning separate_reasoning"
        " stream_reasoning": "only for reasoning apart from the text, which no model here has",
        "max_tool_calls": "counts calls of built-in tools, of which there are none",
        "mm_processor_kwargs": "only for images and audio, which are refused",
        "guided_decoding_backend guided_whitespace_pattern": "only for the other guided_ fields",
        "repeat_last_n mirostat_tau mirostat_eta dynatemp_exponent xtc_threshold dry_base"
        " dry_allowed_length dry_penalty_last_n dry_sequence_breakers": (
            "only for a sampler that is off"
        ),
        "keep_alive": "only for loading models, which are loaded all the time",
    }.items()
    for name in names.split()
}
"""Fields without effect, whatever their value, and why."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    # OpenAI's.
    "store": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "n": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "text.verbosity": ("medium",),
    "reasoning_effort": ("none", "medium"),
    "reasoning": ({},),
    "reasoning.effort": ("none", "medium"),
    "stream_options.include_obfuscation": (False,),
    "background": (False,),
    "truncation": ("disabled",),
    "include": ([],),
    "conversation": (),
    "context_management": ([],),
    "prompt": (),
    "moderation": (),
    "thinking": ({"type": "disabled"},),
    # vLLM's.
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "allowed_token_ids": ([],),
    "logprob_token_ids": ([],),
    "bad_words": ([],),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "structured_outputs.grammar": ("",),
    "structured_outputs.json_object": (False,),
    "structured_outputs.structural_tag": (),
    "structured_outputs.whitespace_pattern": (),
    "structured_outputs.disable_any_whitespace": (False,),
    "structured_outputs.disable_fallback": (True, False),
    "structured_outputs.disable_additional_properties": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_token_strs": (False,),
    "logits_processors": ([],),
    "detokenize": (True,),
    "vllm_xargs": ({},),
    "kv_transfer_params": ({},),
    "cache_salt": (),
    "add_special_tokens": (True,),
    # llama.cpp's and Ollama's.
    "n_predict": (-1,),
    "mirostat": (0,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "dynatemp_range": (0,),
    "repeat_penalty": (1,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "samplers": (),
    "grammar": ("",),
    "json_schema": ({},),
    "n_keep": (0,),
    "n_probs": (0,),
    "n_indent": (0,),
    "min_keep": (0,),
    "t_max_predict_ms": (0,),
    "id_slot": (-1,),
    "lora": ([],),
    "return_progress": (False,),
    "return_tokens": (False,),
    "timings_per_token": (False,),
    "post_sampling_probs": (False,),
    "reasoning_format": ("none", "auto"),
    "options": ({},),
    "format": ("",),
    "think": (False,),
    # SGLang's.
    "regex": ("",),
    "ebnf": ("",),
    "min_new_tokens": (0,),
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
    "lora_path": (),
    "session_params": ({},),
    "custom_logit_processor": (),
}
"""Fields that can't be honoured, and the values that ask for what happens anyway."""

_NESTED = {name.partition(".")[0] for name in (*IGNORED, *NEUTRAL) if "." in name}
_CONTINUES = "an answer is always a new message, and the last one can't be continued"
_SENTENCES = {"add_generation_prompt": _CONTINUES, "continue_final_message": _CONTINUES}


def parameters_of(body: Mapping[str, Any], known: Set[str], place: str = "") -> dict[str, Any]:
    """Return the fields of a body that have an effect; `known` are those of its model.

    Raises `HttpError` for a field of the table that can't be honoured, with its full name.
    """
    kept = {}
    for name, given in body.items():
        path, value = place + name, given
        if name in _NESTED and isinstance(given, dict) and not place:
            value = parameters_of(given, set(), f"{name}.")
            if value and name not in known:
                raise _unknown(f"{path}.{next(iter(value))}")
        if value is None or (name not in known and _is_without_effect(path, value)):
            continue
        if not place and name not in known:
            raise _unknown(path)
        kept[name] = value
    return kept


def _is_without_effect(name: str, value: object) -> bool:
    """Return whether it is a field of the table. Raises `HttpError` for one with an effect."""
    if name in IGNORED:
        return True
    if name not in NEUTRAL:
        return False
    # 1 == True in Python, but not in JSON.
    values = NEUTRAL[name]
    if any((type(value) is bool) == (type(it) is bool) and value == it for it in values):
        return True
    only = " or ".join(map(shown, values)) or "left out"
    why = f"{name} can't be honoured here; it may only be {only}"
    why = f"{why}: {_SENTENCES[name]}" if name in _SENTENCES else why
    raise HttpError(why, code="unsupported_parameter", param=name)


def shown(value: object) -> str:
    """Return a neutral value as JSON has it."""
    return repr(value).replace("False", "false").replace("True", "true").replace("'", '"')


def _unknown(name: str) -> HttpError:
    message = f"{name[:80]} is no parameter of this server"
    return HttpError(message, code="unknown_parameter", param=name[:80])
