"""A decision model from prompt files to weights: record rounds, train, judge, write.

Progress goes out through a callback.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import TrainingError
from slipstream.core.request.profile import Profile
from slipstream.core.types import SamplingParams
from slipstream.draft.build import glide_folder
from slipstream.models.decision import DECISION_NAME, draft_digest, save_decision
from slipstream.models.glide.glide_scorer import load_glide
from slipstream.revision import code_revision
from slipstream.text.prompts import encode_prompt
from slipstream.train.data import DataFile, ReadLimits, read_data
from slipstream.train.decision import DecisionSettings, train_decision
from slipstream.train.decision_report import DecisionReport, make_report, write_report
from slipstream.train.records import Records, RecordStore, joined
from slipstream.train.rounds import RoundRecorder
from slipstream.train.run_files import data_facts, write_provenance

REPORT_NAME = "decision.json"
PROVENANCE_NAME = "decision.provenance.json"
Clock = Callable[[], float]
Progress = Callable[[int, int], None]
"""Called with (prompts recorded, prompts in all)."""


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """Extent of recording: `num_prompts` prompts at most, each answered greedily and at temperature
    1 with up to `max_tokens` tokens, `depth` of them drafted per round (None: the draft's own
    limit). No prompt is begun after `minutes`."""

    num_prompts: int = 120
    max_tokens: int = 64
    depth: int | None = None
    minutes: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_prompts < 10 or self.max_tokens < 2:
            raise TrainingError(
                f"num_prompts is {self.num_prompts} and max_tokens {self.max_tokens}: they must be"
                " at least 10 and 2"
            )
        if self.minutes is not None and not self.minutes > 0:
            raise TrainingError(f"minutes is {self.minutes}, it must be above 0")


@dataclass(frozen=True, slots=True)
class DecisionRun:
    """Models and data of a run. `draft` is glide or a directory of weights, where the model goes;
    `work` is for records, report and plot (None: beside the draft's directory)."""

    target: str
    draft: str
    data: tuple[Path, ...]
    work: Path | None = None
    engine: EngineOptions = field(default_factory=lambda: EngineOptions(numerics="fast"))
    recording: RecordingPlan = field(default_factory=RecordingPlan)
    settings: DecisionSettings = field(default_factory=DecisionSettings)
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.data:
            raise TrainingError("no data file was given, at least one is needed")


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """The report and its path; `weights` is None where they are not better."""

    report: DecisionReport
    path: Path
    weights: Path | None


def run_decision(run: DecisionRun, *, clock: Clock, progress: Progress) -> DecisionOutcome:
    """Record, train and judge. Weights are written only if they are better than calibrated
    confidence on the held-out prompts; the report always is."""
    deadline = None if run.recording.minutes is None else clock() + 60 * run.recording.minutes
    engine = Engine.load(run.target, run.engine)
    folder = glide_folder(run.draft, engine.model_id)
    if engine.parts is None:
        raise TrainingError(f"{engine.model_id} has no rotary positions, which GliDe needs")
    scorer = load_glide(folder, engine.parts)
    limits, encode = ReadLimits(engine.facts.vocab_size), partial(encode_prompt, engine.text)
    files = [read_data(path, limits, encode=encode) for path in run.data]
    work = run.work or folder.with_name(folder.name + ".decision")
    store = RecordStore(work / "records", _key(run, engine.model_id, folder, files))
    # Every prompt once, in an order independent of the files'.
    by_key = {d.key: d.ids[: d.num_prompt].tolist() for data in files for d in data.documents}
    prompts = [by_key[key] for key in sorted(by_key)][: run.recording.num_prompts]

    def is_late() -> bool:
        return deadline is not None and clock() > deadline

    usual = Profile().max_depth
    depth = run.recording.depth or min(scorer.max_lag or usual, usual)
    recorder = RoundRecorder(engine, scorer, depth=depth)
    records = _recorded(recorder, store, prompts, run.recording, progress=progress, is_late=is_late)
    train, validation, held = split(records)
    model = train_decision(train, validation, run.settings)
    report = make_report(model, joined([train, validation]), held)
    write_report(report, work / REPORT_NAME)
    if not report.gain.is_better:
        return DecisionOutcome(report, work / REPORT_NAME, None)
    save_decision(model, folder)
    facts = _facts(run, files, report, [len(part) for part in (train, validation, held)])
    write_provenance(folder / PROVENANCE_NAME, command=run.command, facts=facts)
    return DecisionOutcome(report, work / REPORT_NAME, folder / DECISION_NAME)


def split(records: Records) -> tuple[Records, Records, Records]:
    """Return records to train on, to stop by, to report on: 5, 2 and 3 of 10 prompts in turn."""
    digit = records.prompt % 10
    parts = (
        records.rows(digit >= 5),
        records.rows((digit == 3) | (digit == 4)),
        records.rows(digit < 3),
    )
    if not all(len(part) for part in parts):
        raise TrainingError(
            f"{len(records)} drafted tokens of {len(records.prompt.unique())} prompts are too few"
            " to train on some and hold others out: record at least 10 prompts"
        )
    return parts


def _recorded(
    recorder: RoundRecorder,
    store: RecordStore,
    prompts: Sequence[Sequence[int]],
    recording: RecordingPlan,
    *,
    progress: Progress,
    is_late: Callable[[], bool],
) -> Records:
    """Return the records of all prompts, until it is late; stored ones are not made again."""
    parts: list[Records] = []
    for number, prompt in enumerate(prompts):
        found = store.get(number)
        if found is None:
            if is_late():
                break
            seed = recording.seed + number
            samplings = [SamplingParams(temperature=heat, seed=seed) for heat in (0.0, 1.0)]
            length = recording.max_tokens
            found = recorder.record(prompt, samplings, max_tokens=length, number=number)
            store.put(number, found)
        parts.append(found)
        progress(number + 1, len(prompts))
    return joined(parts)


def _key(
    run: DecisionRun, model_id: str, folder: Path, files: Sequence[DataFile]
) -> dict[str, Any]:
    """Return what recorded rounds depend on, apart from their number."""
    recording = run.recording
    return {
        "target": model_id,
        "draft": draft_digest(folder).hex(),
        "data": sorted(data.sha256 for data in files),
        "max_tokens": recording.max_tokens,
        "depth": recording.depth,
        "seed": recording.seed,
    }


def _facts(
    run: DecisionRun, files: Sequence[DataFile], report: DecisionReport, counts: Sequence[int]
) -> dict[str, Any]:
    num_train, num_validation, num_held = counts
    return {
        "revision": code_revision(),
        "data": [data_facts(data) for data in files],
        "recording": asdict(run.recording),
        "settings": asdict(run.settings),
        "num_tokens": {"train": num_train, "stop": num_validation, "report": num_held},
        "report": report.facts(),
    }
