"""Outputs under load beside those of the same prompts alone. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.figures import first_difference
from slipstream.bench.serve.sample import Sample

References = Mapping[int | str, tuple[int, ...]]
"""By question_id: the tokens of plain decoding, one request at a time, by the same engine."""


def identity(
    samples: Sequence[Sample], references: References, *, is_expected: bool
) -> dict[str, Any]:
    """How many finished outputs have the tokens they have alone, and where the others part."""
    finished = [sample for sample in samples if sample.is_finished]
    found: dict[int | str, int] = {}
    num_different = 0
    for sample in finished:
        at = first_difference(sample.token_ids, references[sample.question_id])
        if at is not None:
            num_different += 1
            found[sample.question_id] = min(at, found.get(sample.question_id, at))
    return {
        "identical": len(finished) - num_different,
        "outputs": len(finished),
        "expected": is_expected,
        "differences": [{"question_id": name, "position": at} for name, at in found.items()],
    }
