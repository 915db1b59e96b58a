"""`slipstream bench breakeven`: when drafting pays. Knows only options and printing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Option

from slipstream.cli.bench_flags import LimitOption, OutputFlags, PromptFlags, PromptsOption
from slipstream.cli.bench_output import check_writable, command, figures_console, step_bar, write
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars
from slipstream.core.errors import InvalidRequest

if TYPE_CHECKING:
    from slipstream.bench.breakeven.plan import BreakEvenPlan, Sweeps
    from slipstream.bench.breakeven.run import Measured
    from slipstream.client.engine import EngineOptions

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """What is swept, and what the rest is meanwhile."""

    acceptances: Annotated[str, Option(help="Chances of each drafted token to be right.")] = (
        "0.2,0.4,0.6,0.8,0.95"
    )
    cost_ratios: Annotated[
        str, Option(help="A drafted token over a plain round of one session.")
    ] = "0,0.1,0.3,0.5"
    rtts_ms: Annotated[str, Option(help="Network round trips of a proposal.")] = "1,5,20"
    sessions: Annotated[str, Option(help="Sessions that decode at once.")] = "4,16"
    base_acceptance: Annotated[float, Option(help="In all other sweeps.")] = 0.7
    base_cost_ratio: Annotated[float, Option(help="In all other sweeps.")] = 0.05
    base_rtt_ms: Annotated[float, Option(help="In all other sweeps.")] = 0.0
    base_sessions: Annotated[int, Option(help="In all other sweeps.")] = 1
    depth: Annotated[int, Option(help="Tokens drafted in every round.")] = 4

    def sweeps(self) -> "Sweeps":
        """Raises `InvalidRequest` for what makes no sense."""
        from slipstream.bench.breakeven.plan import Point, Sweeps
        from slipstream.sizing.break_even import Setting

        middle = Setting(
            self.depth, self.base_cost_ratio, self.base_rtt_ms / 1000, self.base_sessions
        )
        return Sweeps(
            Point(self.base_acceptance, middle),
            _numbers(self.acceptances, "acceptances", float),
            _numbers(self.cost_ratios, "cost ratios", float),
            tuple(ms / 1000 for ms in _numbers(self.rtts_ms, "round trips", float)),
            _numbers(self.sessions, "sessions", int),
        )


@dataclass(frozen=True, slots=True)
class BreakEvenFlags:
    """What decodes, what it is asked, and how often."""

    target: Annotated[str, Option(help="Target: an alias, a path or OWNER/NAME of the hub.")] = (
        "smollm2-135m"
    )
    draft: Annotated[
        str,
        Option(help="Measured as well: glide, vanilla:MODEL, a directory of GliDe weights, none."),
    ] = "glide"
    dtype: Annotated[str, Option(help="auto, bfloat16, float16 or float32.")] = "auto"
    threads: Annotated[int | None, Option(help="CPU threads; default: torch's choice.")] = None
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu"
    prompts: PromptsOption = None
    limit: LimitOption = None
    max_new_tokens: Annotated[int, Option(help="Tokens of each session, in each run.")] = 64
    pairs: Annotated[int, Option(help="Runs of each point, with a plain one beside each.")] = 5
    cost_rounds: Annotated[int, Option(help="Timings of each size of a step.")] = 12
    seed: Annotated[int, Option(help="Of which tokens are right.")] = 0
    plot: Annotated[Path | None, Option(help="Also draw the sweeps into this directory.")] = None

    def plan(self, sweeps: "Sweeps") -> "BreakEvenPlan":
        """Raises `InvalidRequest` for what makes no sense."""
        from slipstream.bench.breakeven.plan import BreakEvenPlan

        return BreakEvenPlan(sweeps, self.max_new_tokens, self.pairs, self.cost_rounds, self.seed)

    def texts(self) -> tuple[str, ...]:
        """What users say first."""
        questions = PromptFlags(self.prompts, self.limit).questions()
        return tuple(question.turns[0] for question in questions)

    def options(self) -> "EngineOptions":
        """Raises `InvalidRequest` for what there is none of."""
        from slipstream.client.engine import EngineOptions

        return EngineOptions(self.dtype, "invariant", self.threads, self.device)

    def check(self) -> None:
        """Raises an error for plots that can't be drawn."""
        if self.plot is not None:
            from slipstream.bench.serve.curves import check_folder

            check_folder(self.plot)


@with_flags
def breakeven(flags: BreakEvenFlags, sweeps: SweepFlags, output: OutputFlags) -> None:
    """When drafting pays: speed-up by acceptance, cost of a draft, round trip and sessions.

    The target is the real one. Its draft knows the answers: it is right as often as told, and
    takes as long as told. One thing is swept at a time, each point beside plain decoding of as
    many sessions; the curve is what sizing reckons from the costs that are measured first.
    """
    check_writable(output)
    flags.check()
    plan, texts = flags.plan(sweeps.sweeps()), flags.texts()
    measured = _measure(flags, plan, texts)
    from slipstream.bench.breakeven import report
    from slipstream.bench.breakeven.figures import break_even_figures

    figures = break_even_figures(plan, measured)
    console = figures_console()
    console.print(report.break_even_table(figures))
    for line in report.remarks(figures):
        console.print(line, markup=False, soft_wrap=True)
    write(output, {"environment": _facts(flags, len(texts)), "breakeven": figures})
    if flags.plot is not None:
        from slipstream.bench.breakeven.pictures import save_pictures

        save_pictures(figures, measured.devices, flags.plot)


def _measure(flags: BreakEvenFlags, plan: "BreakEvenPlan", texts: tuple[str, ...]) -> "Measured":
    from slipstream.bench.breakeven.running import measure
    from slipstream.models.store.resolve import resolve

    options = flags.options()
    with bars() as progress:
        resolve(flags.target, progress=progress)
    total = 2 + plan.num_runs(has_draft=flags.draft != "none") // 2
    with step_bar(total) as advance:
        return measure(flags.target, flags.draft, options, texts, plan, advance=advance)


def _facts(flags: BreakEvenFlags, num_prompts: int) -> dict[str, Any]:
    from slipstream.bench.environment import environment, running_dtype

    facts = {**environment(flags.device), "command": command(), "num_prompts": num_prompts}
    return facts | {
        "target": flags.target,
        "draft": flags.draft,
        "dtype": running_dtype(flags.dtype, flags.device),
    }


def _numbers(text: str, name: str, kind: Callable[[str], N]) -> tuple[N, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidRequest(f"{name} are {text!r}, but must be numbers as 1,2,4") from None
