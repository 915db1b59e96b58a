"""Requests on the real model, alone and plain, then together and drafted: run as a process of its
own, whose environment says which instructions its libraries may use.
`python tests/other_cpu.py [DTYPE]` prints one JSON object: the tokens of both runs and how
many were drafted."""

import asyncio
import json
import sys

from slipstream.client import (
    AsyncClient,
    Mode,
    Result,
    SamplingParams,
    Shape,
    SpeculationOptions,
    StopPolicy,
)
from slipstream.client.embedded import AsyncEmbedded
from slipstream.client.engine import EngineOptions

MODEL = "smollm2-135m"
NUM_TOKENS = 16
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=3)
OFF = SpeculationOptions(mode=Mode.OFF)
LONG = "The river carried the boats past mills and orchards down to the harbour. " * 12
REQUESTS = [
    ("Count from one to thirty.", GREEDY, Shape.CHAIN),
    ("Write a short poem about rain.", SAMPLED, Shape.CAPE),
    (f"Summarise this text. {LONG}", GREEDY, Shape.DYNAMIC),
    ("Why is the sky blue?", SAMPLED, Shape.CHAIN),
    (f"Translate the first sentence into French. {LONG}", GREEDY, Shape.CAPE),
    ("Name the days of the week.", SAMPLED, Shape.DYNAMIC),
]
"""Prompts within one block of keys and beyond, each drafted in another way."""


def forced(shape: Shape) -> SpeculationOptions:
    """Drafts in this shape, whether they pay here or not."""
    return SpeculationOptions(
        mode=Mode.FORCED, shape=shape, stop=StopPolicy.FIXED, max_draft_tokens=4, max_nodes=12
    )


async def answers(client: AsyncClient) -> tuple[list[Result], list[Result]]:
    def ask(prompt: str, sampling: SamplingParams, options: SpeculationOptions):
        asked = {"sampling": sampling, "speculation": options}
        return client.generate(prompt, max_tokens=NUM_TOKENS, **asked)

    alone = [await ask(prompt, sampling, OFF) for prompt, sampling, _ in REQUESTS]
    drafted = [ask(prompt, sampling, forced(shape)) for prompt, sampling, shape in REQUESTS]
    return alone, await asyncio.gather(*drafted)


async def main(dtype: str) -> dict[str, object]:
    backend = AsyncEmbedded.load(MODEL, "glide", EngineOptions(dtype=dtype))
    async with AsyncClient.of(backend) as client:
        alone, together = await answers(client)
    return {
        "alone": [list(at.token_ids) for at in alone],
        "together": [list(at.token_ids) for at in together],
        "num_drafted": [at.stats.speculation.num_draft_tokens for at in together],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:] or ["auto"]))) + "\n")
