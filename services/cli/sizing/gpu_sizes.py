"""Sizes and times of a target on a GPU, for `slipstream size --device`: options and table."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from slipstream.core.errors import InvalidRequest
from slipstream.options import option
from slipstream.sizing.gpus import GPUS, MODELS

if TYPE_CHECKING:
    from slipstream.sizing.roofline import GpuTarget, Work

_ROWS = (1, 6, 16, 64)
_SESSIONS = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class GpuFlags:
    """A model on a kind of GPU, whose times are estimated by arithmetic."""

    device: str | None = option(None, f"Times by the data sheet of a GPU: {', '.join(GPUS)}.")
    model: str | None = option(
        None, f"With --device: {', '.join(MODELS)}, or a model with a config.json."
    )
    tensor_parallel: int | None = option(None, "GPUs of a target; default: 1.")
    context: int | None = option(None, "Tokens of a session; default: 4096, or the model's limit.")

    def target(self) -> "GpuTarget | None":
        """Return the model on its GPU; None without a device.

        Raises `InvalidRequest` for options that contradict or name nothing known, `CapacityError`
        for a model that does not fit.
        """
        if self.device is None:
            others = (self.model, self.tensor_parallel, self.context)
            if any(value is not None for value in others):
                raise InvalidRequest("model, tensor_parallel and context need --device")
            return None
        if self.device not in GPUS:
            raise InvalidRequest(f"the device is {self.device!r}, but must be {' or '.join(GPUS)}")
        if self.model is None:
            raise InvalidRequest(f"--device needs --model: {', '.join(MODELS)}, or a model's name")
        from slipstream.models.native.library import NotNative
        from slipstream.models.target.architecture import parse
        from slipstream.sizing.roofline import GpuTarget

        try:
            model = parse(_config(self.model))
        except NotNative as reason:
            raise InvalidRequest(
                f"the model {self.model!r} has no sizes to compute with: {reason}"
            ) from None
        context = min(4096, model.context_length) if self.context is None else self.context
        num_gpus = 1 if self.tensor_parallel is None else self.tensor_parallel
        return GpuTarget(model, GPUS[self.device], num_gpus, context)


def _config(name: str) -> Mapping[str, Any]:
    if name in MODELS:
        return MODELS[name]
    from slipstream.models.native.checkpoint import read_config
    from slipstream.models.store.resolve import find_local

    is_config = (Path(name) / "config.json").is_file()
    folder = Path(name) if is_config else find_local(name)
    return read_config(folder)


def figures(target: "GpuTarget") -> dict[str, Any]:
    """Return all that is known of a target, as `--json` prints it; seconds and bytes."""

    def times(work: "Work") -> dict[str, float]:
        floor_s, expected_s = work.floor_s(target.gpu), work.expected_s(target.gpu)
        return {**asdict(work), "floor_s": floor_s, "expected_s": expected_s}

    batches = sorted({min(count, target.max_sessions()) for count in _SESSIONS})
    plain_s = target.step(1, 1).expected_s(target.gpu)
    draft = times(target.draft_step(1))
    return {
        "gpu": asdict(target.gpu),
        "num_gpus": target.num_gpus,
        "context": target.context,
        **asdict(target.sizes()),
        "workspace": target.workspace(),
        "max_sessions": target.max_sessions(),
        "steps": [
            {"sessions": sessions, "rows": rows, **times(target.step(sessions, rows))}
            for sessions in batches
            for rows in _ROWS
        ],
        "in_place_s": target.step(batches[-1], 1, is_gathered=False).expected_s(target.gpu),
        "bound_rows": {sessions: target.bound_rows(sessions) for sessions in batches},
        "draft_step": draft,
        "draft_cost": draft["expected_s"] / plain_s,
    }


def tables(target: "GpuTarget") -> Iterator[Table]:
    """Yield the same as tables."""
    values = figures(target)
    shown = Table(show_header=False, box=None)
    for name, text in _lines(target, values):
        shown.add_row(name, text)
    yield shown
    steps = Table(box=None)
    for name in ("sessions", "rows of each", "reads GB", "TFLOP", "floor ms", "expected ms"):
        steps.add_column(name, justify="right")
    for step in values["steps"]:
        steps.add_row(
            str(step["sessions"]),
            str(step["rows"]),
            f"{step['read'] / 1e9:.1f}",
            f"{step['flops'] / 1e12:.2f}",
            f"{step['floor_s'] * 1000:.2f}",
            f"{step['expected_s'] * 1000:.2f}",
        )
    yield steps


def _lines(target: "GpuTarget", values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    num, gpu, draft = target.num_gpus, target.gpu, values["draft_step"]
    yield "device", f"{num} x {gpu.name}: {gpu.memory / 1e9:.0f} GB, {gpu.bandwidth / 1e12:g} TB/s"
    weights = f"{values['weights'] / 1e9:.2f} GB of each GPU, {values['read'] / 1e9:.2f} read"
    yield "weights", f"{weights} by a step"
    yield "keys and values", f"{values['kv_per_token'] / 1024:.0f} KiB a token"
    yield "largest batch", f"{values['max_sessions']} sessions of {target.context} tokens"
    bound = ", ".join(f"{rows} with {count}" for count, rows in values["bound_rows"].items())
    yield "compute binds from", f"{bound} sessions (rows of each)"
    most = max(step["sessions"] for step in values["steps"])
    yield "were keys read in place", f"{values['in_place_s'] * 1000:.2f} ms with {most} sessions"
    ratio = f"{values['draft_cost']:.1%} of a plain step"
    yield "GliDe", f"{draft['read'] / 1e9:.2f} GB, {draft['expected_s'] * 1000:.2f} ms: {ratio}"
