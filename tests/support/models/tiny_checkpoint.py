"""A random two-layer Llama and a byte tokenizer, saved as a real checkpoint. No downloads."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from slipstream.models.glide.glide_files import save_glide
from slipstream.models.glide.glide_init import GlideShape, config_for_target, init_from_target
from slipstream.models.torch.loading import load_target_parts
from slipstream.text.template import default_template
from slipstream.text.tokenizer import TextTokenizer

WEIGHTS = "model.safetensors"
SPECIAL = ("<|end|>", "<|user|>", "<|bot|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|user|>' if m['role'] == 'user' else '<|bot|>' }}"
    "{{ m['content'] }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
)


def byte_tokenizer(
    *, template: str | None = TEMPLATE, more: tuple[str, ...] = (), added: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """One token per byte, after three special ones; `more` tokens and `added` ones behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*SPECIAL, *alphabet, *more])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL, *added])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0])
    fast.chat_template = template
    return fast


def piece_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece's manner: BOS by the post-processor, bytes for what has no piece."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", *"abcdehlortw", "▁a", "he", "ll", "hell", "hello", "▁hello", "or", "wor"]
    vocab = {word: number for number, word in enumerate(words)}
    pairs = ["▁ a", "h e", "l l", "he ll", "hell o", "▁ hello", "o r", "w or"]
    merges = [tuple(pair.split()) for pair in pairs]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_tokens([AddedToken("[own]", lstrip=True), AddedToken("[ OWN ]", rstrip=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocab["<s>"])]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{{ bos_token }}" + TEMPLATE + "{{ eos_token }}"
    return fast


def text_tokenizer(fast: PreTrainedTokenizerFast) -> TextTokenizer:
    """Return the same tokenizer without transformers."""
    parts = fast.backend_tokenizer.to_str().encode(), default_template(fast.chat_template)
    return TextTokenizer.from_parts(*parts, fast.special_tokens_map)


def tiny_llama(
    *, vocab_size: int = 259, context_length: int = 128, seed: int = 0
) -> LlamaForCausalLM:
    """Random weights, two layers, grouped queries, float32."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocab_size, "max_position_embeddings": context_length}
    sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=None, eos_token_id=0))


def save_checkpoint(
    folder: Path, *, vocab_size: int = 259, context_length: int = 128, added: tuple[str, ...] = ()
) -> Path:
    model = tiny_llama(vocab_size=vocab_size, context_length=context_length)
    byte_tokenizer(added=added).save_pretrained(save_model(folder, model))
    return folder


def save_model(folder: Path, model: Any, **options: Any) -> Path:
    """Save a model with the byte tokenizer."""
    model.save_pretrained(folder, **options)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_draft(
    target: Path,
    folder: Path,
    *,
    vocab: torch.Tensor | None = None,
    layers: tuple[int, ...] = (1,),
    max_lag: int = 4,
) -> Path:
    """Save untrained GliDe weights for a target, by default with every other token."""
    loaded = load_target_parts(str(target), dtype="float32", device="cpu")
    vocab = torch.arange(0, 259, 2) if vocab is None else vocab
    shape = GlideShape(target_layers=layers, head_size=len(vocab), max_lag=max_lag)
    named = {"name": loaded.model_id, "tokenizer_hash": loaded.tokenizer_hash}
    config = config_for_target(loaded.model, shape, **named)
    save_glide(init_from_target(loaded.model, config), vocab, folder)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def change_weights(folder: Path, **changes: Any) -> None:
    tensors = {**load_file(folder / WEIGHTS), **changes}
    kept = {name: value.contiguous() for name, value in tensors.items() if value is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
