"""What a decision model is worth, on prompts that it never saw: figures, a file and a plot.

Compared with the draft's top-1 probability at its word, with the same calibrated on the training
prompts, and with SVIP's bound. Knows nothing of how the model was trained.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.models.decision import GREEDY, SAMPLED, DecisionModel
from slipstream.plots import save_plot
from slipstream.train.records import Records
from slipstream.train.reliability import (
    Figures,
    Gain,
    figures,
    gain,
    isotonic,
    reliability,
    svip_bound,
)

DECISION, CONFIDENCE, CALIBRATED, SVIP = "decision", "confidence", "calibrated", "svip bound"
_MODES = {"greedy": GREEDY, "sampled": SAMPLED}


@dataclass(frozen=True, slots=True)
class Mode:
    """Greedy or sampled rounds: how many tokens, the share accepted, figures per estimate, the
    decision model's gain over calibrated confidence, and its reliability and the confidence's."""

    num_tokens: int
    acceptance: float
    figures: Mapping[str, Figures]
    gain: Gain
    curves: Mapping[str, list[tuple[float, float, float]]]


@dataclass(frozen=True, slots=True)
class Report:
    """Of each mode, and the gain over calibrated confidence on both together."""

    modes: Mapping[str, Mode]
    gain: Gain

    @property
    def verdict(self) -> str:
        """better or not better, by the gain on both modes together."""
        return "better" if self.gain.is_better else "not better"

    def facts(self) -> dict[str, Any]:
        """As plain values for a file."""
        return {"verdict": self.verdict, **asdict(self)}


def make_report(model: DecisionModel, train: Records, held: Records) -> Report:
    """Judge the model on `held`, with the confidence calibrated on `train`."""
    modes: dict[str, Mode] = {}
    estimates: dict[str, dict[str, Tensor]] = {}
    parts: list[Records] = []
    for name, column in _MODES.items():
        is_mode = column == GREEDY
        seen = train.rows(train.is_greedy == is_mode)
        rows = held.rows(held.is_greedy == is_mode)
        if len(rows) and len(seen):
            estimates[name] = _estimates(model, column, seen, rows)
            modes[name] = _mode(estimates[name], rows)
            parts.append(rows)
    ours, theirs = (
        torch.cat([chances[name] for chances in estimates.values()])
        for name in (DECISION, CALIBRATED)
    )
    accepted, prompt = (torch.cat([getattr(p, c) for p in parts]) for c in ("accepted", "prompt"))
    return Report(modes, gain(ours, theirs, accepted, prompt))


def _estimates(
    model: DecisionModel, column: int, seen: Records, rows: Records
) -> dict[str, Tensor]:
    confidence = rows.confidence
    return {
        DECISION: model.score(rows.hidden, rows.stats)[:, column],
        CONFIDENCE: confidence,
        CALIBRATED: isotonic(seen.confidence, seen.accepted)(confidence),
        SVIP: svip_bound(rows.stats[:, 1]),
    }


def _mode(chances: Mapping[str, Tensor], rows: Records) -> Mode:
    accepted = rows.accepted
    return Mode(
        len(rows),
        float(accepted.double().mean()),
        {name: figures(values, accepted) for name, values in chances.items()},
        gain(chances[DECISION], chances[CALIBRATED], accepted, rows.prompt),
        {name: reliability(chances[name], accepted) for name in (DECISION, CONFIDENCE)},
    )


def write_report(report: Report, path: Path) -> None:
    """Write the report as JSON, whole or not at all, and its plot beside it as PNG."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report.facts(), indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color="grey", linewidth=1, label="perfect")
        for name, mode in report.modes.items():
            for estimate, points in mode.curves.items():
                said, rate, _ = zip(*points, strict=True)
                style = "-o" if estimate == DECISION else "--s"
                axes.plot(said, rate, style, label=f"{estimate}, {name}")

    save_plot(
        path.with_suffix(".png"),
        draw,
        title="Chance of acceptance: estimated and measured",
        x="estimated chance",
        y="share accepted",
    )
