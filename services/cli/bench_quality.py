"""`slipstream bench quality`: what rounding costs. Knows only options and printing."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from typer import Option

from slipstream.cli.bench_flags import LimitOption, OutputFlags, PromptFlags, PromptsOption
from slipstream.cli.bench_output import check_writable, machine_facts, write
from slipstream.cli.flags import with_flags
from slipstream.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class QualityFlags:
    """Target, reference and texts of a comparison."""

    target: Annotated[str, Option(help="Target: an alias, a path or OWNER/NAME of the hub.")] = (
        "smollm2-135m-q4_1"
    )
    dtype: Annotated[str, Option(help="Of the target: auto, bfloat16, float16 or float32.")] = (
        "auto"
    )
    reference: Annotated[
        str | None, Option(help="What it is compared with; default: the target itself.")
    ] = None
    reference_dtype: Annotated[str, Option(help="Of the reference.")] = "float32"
    prompts: PromptsOption = None
    limit: LimitOption = None
    num_tokens: Annotated[int, Option(help="Tokens of the prompts to compare at.")] = 2000


@with_flags
def quality(flags: QualityFlags, output: OutputFlags) -> None:
    """How near a target's next-token distributions are to those of a reference.

    By default a target in blocks of a GGUF file, whose tokens are rounded to 8 bits for each
    product, is compared with the same weights in float32.
    """
    check_writable(output)
    if flags.num_tokens < 1:
        raise InvalidRequest(f"num_tokens is {flags.num_tokens}, but must be at least 1")
    questions = PromptFlags(flags.prompts, flags.limit).questions()
    from slipstream.bench.quality import compare, cut
    from slipstream.models.causal import CausalModel
    from slipstream.models.loading import load_model
    from slipstream.models.tokenizer import text_tokenizer

    loaded = load_model(flags.target, dtype=flags.dtype)
    text = text_tokenizer(loaded.tokenizer)
    chunks = cut(
        [text.encode("\n".join(at.turns), add_special_tokens=True) for at in questions],
        flags.num_tokens,
    )
    named = flags.reference or flags.target
    reference = CausalModel(load_model(named, dtype=flags.reference_dtype).model)
    model = CausalModel(loaded.model)
    found = compare(reference, model, chunks)
    typer.echo(
        f"{flags.target} ({model.weights_type}) beside {named} ({reference.weights_type}),"
        f" {found.num_tokens} tokens: top-1 agreement {found.top1:.3f}, KL {found.kl:.5f} nats,"
        f" perplexity {found.perplexity:.3f} ({found.reference_perplexity:.3f})"
    )
    types = {"target_type": model.weights_type, "reference_type": reference.weights_type}
    facts = {**machine_facts("cpu"), **types}
    write(output, {"environment": facts, "quality": asdict(found)})
