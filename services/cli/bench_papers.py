"""`slipstream bench papers`: the papers' comparisons run again. Knows only options and printing."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from slipstream.bench.papers.catalogue import chosen
from slipstream.bench.papers.experiment import Weights
from slipstream.cli.bench_flags import (
    LimitOption,
    ModelFlags,
    OutputFlags,
    PromptFlags,
    PromptsOption,
)
from slipstream.cli.bench_output import check_writable, figures_console, step_bar, write
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars
from slipstream.core.errors import InvalidRequest
from slipstream.core.options import MAX_NODES
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.bench.papers.lineup import Lineup
    from slipstream.bench.papers.plan import PapersPlan


@dataclass(frozen=True, slots=True)
class PaperFlags:
    """Which comparisons, with which drafts, and how much of them."""

    prompts: PromptsOption = None
    limit: LimitOption = None
    only: Annotated[str, Option(help="Experiments, with commas between; default: all.")] = ""
    glide: Annotated[
        Path | None, Option(help="GliDe weights trained as the next two; default: the draft.")
    ] = None
    no_cross: Annotated[Path | None, Option(help="Weights of a draft trained with --no-cross.")] = (
        None
    )
    last_layer: Annotated[
        Path | None, Option(help="Weights of a draft that reads the target's last layer alone.")
    ] = None
    vanilla: Annotated[
        str | None, Option(help="A causal language model as draft: an alias, a path or a hub id.")
    ] = None
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 64
    warmup: Annotated[int, Option(help="Short unmeasured replies of each method first.")] = 1
    repeats: Annotated[int, Option(help="Runs over all prompts.")] = 1
    seed: Annotated[int, Option(help="Of every method, for temperatures above 0.")] = 0
    long_tokens: Annotated[int, Option(help="Length of the long outputs.")] = 4096
    seeds: Annotated[int, Option(help="First tokens drawn for each law of target-init.")] = 200
    laws: Annotated[int, Option(help="Prompts whose first token's law is looked at.")] = 3

    def asked(self) -> PromptFlags:
        """What is asked of everybody."""
        return PromptFlags(self.prompts, self.limit)

    def sources(self) -> dict[Weights, str]:
        """Where drafts are; raises `InvalidRequest` for weights that are no directory."""
        folders = {
            Weights.ALIKE: self.glide,
            Weights.NO_CROSS: self.no_cross,
            Weights.LAST_LAYER: self.last_layer,
        }
        found = {}
        for kind, folder in folders.items():
            if folder is None:
                continue
            if not folder.expanduser().is_dir():
                raise InvalidRequest(f"the weights of {kind.value} are no directory: {folder}")
            found[kind] = str(folder.expanduser())
        return found | ({Weights.VANILLA: self.vanilla} if self.vanilla else {})


@dataclass(frozen=True, slots=True)
class PageFlags:
    """Where measured figures are shown."""

    render: Annotated[
        list[Path] | None,
        Option(help="Run nothing: write the figures of this file into the page. May be repeated."),
    ] = None
    page: Annotated[Path | None, Option(help="The page to write into; see --render.")] = None


@with_flags
def papers(
    run: PaperFlags,
    models: ModelFlags,
    shown: PageFlags,
    output: OutputFlags,
) -> None:
    """The comparisons of the papers behind this, run again, with a verdict on every claim.

    All arms run in this process, prompt by prompt in turn; what several experiments share runs
    once. Speeds are of decoding, without prefill, and ratios are medians prompt by prompt.
    """
    if (shown.render is None) != (shown.page is None):
        raise InvalidRequest("--render and --page go together only")
    if shown.render is not None and shown.page is not None:
        _render(shown.render, shown.page)
        return
    models.check()
    check_writable(output)
    from slipstream.bench.papers.run import num_steps, run_papers

    plan, lineup = _plan(run), _lineup(run, models)
    with step_bar(num_steps(plan, lineup)) as advance:
        found = run_papers(plan, lineup, advance=advance)
    values = {"environment": _environment(run, models, plan), **found}
    _show(values)
    write(output, values)


def _plan(run: PaperFlags) -> "PapersPlan":
    from slipstream.bench.papers.plan import PapersPlan

    return PapersPlan(
        chosen(run.only),
        run.asked().questions(),
        run.max_new_tokens,
        run.repeats,
        run.warmup,
        run.seed,
        run.long_tokens,
        run.seeds,
        run.laws,
    )


def _lineup(run: PaperFlags, models: ModelFlags) -> "Lineup":
    from slipstream.bench.contenders import Contenders
    from slipstream.bench.papers.lineup import Lineup
    from slipstream.client.engine import EngineOptions
    from slipstream.models.store.resolve import resolve

    options = EngineOptions(
        models.dtype,
        "fast",
        models.threads,
        models.device,
        max_cached_bytes=0,
        free_rows=MAX_NODES + 1,  # a shape is what its paper says, however dear it is here
    )
    with bars() as progress:
        for name in filter(None, (models.target, run.vanilla)):
            resolve(name, progress=progress)
    contenders = Contenders(
        models.target, models.draft, options, sampling=SamplingParams(), profile=models.profile
    )
    return Lineup(contenders, run.sources())


def _render(files: list[Path], page: Path) -> None:
    from slipstream.bench.papers.page import read_results, rendered

    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"the page {page} can't be read ({error.strerror})") from None
    part = page.with_name(f".{page.name}.part")
    part.write_text(rendered(text, read_results(files)), encoding="utf-8")
    os.replace(part, page)


def _environment(run: PaperFlags, models: ModelFlags, plan: "PapersPlan") -> dict[str, Any]:
    from slipstream.bench.environment import environment, running_dtype
    from slipstream.models.store.digests import file_digest, weights_digests
    from slipstream.models.store.resolve import find_local

    folders = {kind.value: Path(at) for kind, at in run.sources().items() if Path(at).is_dir()}
    return {
        **environment(models.device),
        "command": _command(),
        "target": models.target,
        "dtype": running_dtype(models.dtype, models.device),
        "weights_sha256": {
            models.target: weights_digests(find_local(models.target)),
            **{name: weights_digests(folder) for name, folder in folders.items()},
        },
        "prompts": run.asked().path().name,
        "prompts_sha256": file_digest(run.asked().path()),
        "num_prompts": len(plan.questions),
        "max_new_tokens": plan.max_new_tokens,
        "seed": plan.seed,
        "repeats": plan.repeats,
        "warmup": plan.warmup,
    }


def _command() -> str:
    """The command line that is running; where its files lie is nobody's business."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["slipstream", *words])


def _show(values: dict[str, Any]) -> None:
    from slipstream.bench.papers.console import show

    show(values, figures_console())
