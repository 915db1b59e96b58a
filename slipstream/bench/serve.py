"""Methods of one engine or router under load, beside plain decoding by the same engine."""

from collections.abc import Sequence

from slipstream.bench.harness import Advance, require_room
from slipstream.bench.load import Answer, EngineUnderTest, LoadBench, LoadPlan, Send
from slipstream.bench.methods import Method
from slipstream.bench.questions import Question
from slipstream.client import AsyncClient
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.types import SamplingParams


def client_sender(
    client: AsyncClient, sampling: SamplingParams, speculation: SpeculationOptions
) -> Send:
    """Return a function that sends questions with these options through a client of the SDK."""

    async def send(question: Question, max_tokens: int) -> Answer:
        result = await client.generate(
            question.turns[0], max_tokens=max_tokens, sampling=sampling, speculation=speculation
        )
        return Answer(len(result.token_ids), result.token_ids, result.stats.speculation)

    return send


async def method_bench(
    plan: LoadPlan,
    questions: tuple[Question, ...],
    methods: Sequence[Method],
    client: AsyncClient,
    sampling: SamplingParams,
    advance: Advance,
) -> LoadBench:
    """Return the benchmark of methods as requests through one client, beside plain decoding.

    Raises `PromptTooLong` before anything is measured.
    """
    limit = (await client.model_info()).limits.context_length
    for question in questions:
        length = len(await client.tokenize(question.turns[0]))
        require_room(question.question_id, length, plan.max_new_tokens, limit)
    engines = tuple(
        EngineUnderTest(
            method.name,
            client_sender(client, sampling, method.options),
            method.is_comparable(is_greedy=sampling.is_greedy),
        )
        for method in methods
    )
    plain = client_sender(client, sampling, SpeculationOptions(mode=Mode.OFF))
    return LoadBench(plan, questions, engines, plain, advance)
