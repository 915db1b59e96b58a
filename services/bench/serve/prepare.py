"""What comes before anything is measured: refusals, and warming up. Prints nothing."""

from itertools import cycle, islice

from slipstream.bench.serve.arms import Arm
from slipstream.bench.serve.load import Load
from slipstream.bench.serve.plan import Point
from slipstream.bench.serve.workers import closed_loop
from slipstream.core.errors import PromptTooLong

WARMUP_TOKENS = 32


async def prepare(load: Load) -> None:
    """Let every arm answer alone, then at every point. Raises whatever refuses it.

    Alone, any failure ends the benchmark; under load it is what is measured.
    """
    plan = load.plan
    await _check_lengths(load)
    for arm in plan.arms:
        ask = load.ask(plan.questions[0], arm, most=WARMUP_TOKENS)
        await load.client.generate(
            ask.prompt,
            max_tokens=ask.max_tokens,
            sampling=ask.sampling,
            speculation=ask.speculation,
        )
    for point in plan.points if plan.warmup else ():
        for arm in plan.arms:
            await _warm_up(load, point, arm)
            load.advance(arm.name)


async def _warm_up(load: Load, point: Point, arm: Arm) -> None:
    """Short answers that nobody measures; failures come again where they count."""
    width = point.concurrency or 1
    asked = islice(cycle(load.plan.questions), width * load.plan.warmup)
    await closed_loop(width, asked, load.sender(arm, most=WARMUP_TOKENS), pace=load.pace)


async def _check_lengths(load: Load) -> None:
    plan, client = load.plan, load.client
    limit = (await client.model_info()).limits.context_length
    for question in plan.questions:
        length = len(await client.tokenize(question.turns[0]))
        if length + plan.max_new_tokens > limit:
            raise PromptTooLong(
                f"question {question.question_id} has {length} tokens, which with"
                f" {plan.max_new_tokens} new ones exceed the context of {limit}"
            )
    if plan.intruder is not None and plan.intruder.num_tokens >= limit:
        raise PromptTooLong(
            f"intruder_tokens is {plan.intruder.num_tokens}, but the context holds {limit} with"
            " the token that follows"
        )
