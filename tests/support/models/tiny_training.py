"""A tiny target on disk with a little text, and training runs on them."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slipstream.train.config import EagleLoss, GlideLoss, TrainSchedule, TrainSettings
from slipstream.train.run import DraftSettings, EagleRun, GlideRun, train_draft
from slipstream.train.trainer import Check, TrainHooks
from support.models import tiny_glide as tiny

TEMPLATE = "{% for m in messages %}w1 {{ m['content'] }} w2{% endfor %}"
SETTINGS = TrainSettings(
    TrainSchedule(steps=6), batch_tokens=40, heldout=2, report_seconds=2.0, export_minutes=1e6
)
LOSS = GlideLoss(block_min=2, block_max=4)
CHECKED = replace(SETTINGS, export_minutes=0.05)
"""Train with a held-out check every few steps, not only at the end."""


def training_place(base: Path, **changes: Any) -> Path:
    """`base`, with a target model, of these sizes, and a data file in it."""
    target = tiny.llama(tie_word_embeddings=False, **changes)
    target.to(torch.bfloat16).save_pretrained(base / "target")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(tiny.VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w60")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(base / "target")
    generator = torch.Generator().manual_seed(0)
    with (base / "data.jsonl").open("w") as file:
        for _ in range(20):
            ids = torch.randint(1, tiny.VOCAB, (12,), generator=generator).tolist()
            file.write(json.dumps({"p": ids[:5], "g": ids[5:]}) + "\n")
        file.write(json.dumps({"prompt": "w7 w8 w9"}) + "\n")
    return base


def glide_run(place: Path, out: Path, **changes: Any) -> GlideRun:
    command = ("slipstream", "train", "glide")
    return GlideRun(loss=LOSS, command=command, **_values(place, out, "1,3", changes))


def eagle_run(place: Path, out: Path, **changes: Any) -> EagleRun:
    command, loss = ("slipstream", "train", "eagle3"), EagleLoss(unrolled=3)
    return EagleRun(loss=loss, command=command, **_values(place, out, "1,2,3", changes))


def _values(place: Path, out: Path, layers: str, changes: dict[str, Any]) -> dict[str, Any]:
    own = ("layers", "head_size", "init_from")
    draft = {name: changes.pop(name) for name in own if name in changes}
    target = {"target": str(place / "target"), "layers": layers, "head_size": 30}
    values = {
        "draft": DraftSettings(**{**target, **draft}),
        "data": (place / "data.jsonl",),
        "out": out / "weights",
        "settings": SETTINGS,
        "licence": "none",
    }
    return {**values, **changes}


def hooks(check: Any = lambda result: None) -> TrainHooks:
    """A clock that moves one second with each look."""
    ticks = itertools.count()
    return TrainHooks(lambda: float(next(ticks)), lambda report: None, check)


def train(run: GlideRun | EagleRun, check: Any = lambda result: None) -> list[Check]:
    checks: list[Check] = []

    def told(result: Check) -> None:
        checks.append(result)
        check(result)

    train_draft(run, hooks(told))
    return checks
