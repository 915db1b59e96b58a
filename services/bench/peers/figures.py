"""Figures of every configuration from its batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.bench.peers.engine import EngineAnswer
from slipstream.bench.peers.plan import BASE, BEST, REFERENCES, Configuration
from slipstream.bench.peers.run import BatchSample, PeersRecord, named
from slipstream.bench.statistics import Totals, rate, resampled_ratio

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class LevelSamples:
    """Samples of one level by configuration, in the order of the batches.

    Only batches that all configurations have answered are among them.
    """

    concurrency: int
    configs: Mapping[str, Configuration]
    samples: Mapping[str, tuple[BatchSample, ...]]

    def only(self, category: str) -> "LevelSamples":
        """Return the batches of one category."""
        kept = {
            name: tuple(at for at in of if at.prompts[0].category == category)
            for name, of in self.samples.items()
        }
        return LevelSamples(self.concurrency, self.configs, kept)


def peers_figures(
    record: PeersRecord, configs: Sequence[Configuration], decode: Decode
) -> dict[str, Any]:
    """Return `{"levels": [L], "skipped": {NAME: WHY}, "seats": {...}, "whole": BOOL}`.

    `decode` makes text of tokens, to compare with servers that send only text.
    """
    concurrencies = sorted({sample.concurrency for sample in record.samples})
    found = [_level_samples(record, configs, concurrency) for concurrency in concurrencies]
    reference = _reference(found)
    return {
        "whole": record.is_whole,
        "reference": reference.name,
        "levels": [_level(at, reference, decode) for at in found if at.samples],
        "skipped": dict(record.skipped),
        "seats": dict(record.engines),
    }


def _level_samples(
    record: PeersRecord, configs: Sequence[Configuration], concurrency: int
) -> LevelSamples:
    by_config: dict[str, dict[int, BatchSample]] = {}
    for sample in record.samples:
        if sample.concurrency == concurrency:
            by_config.setdefault(sample.config, {})[sample.batch] = sample
    for name in list(by_config):
        if named(name, concurrency) in record.skipped:
            del by_config[name]
    common = set.intersection(*map(set, by_config.values())) if by_config else set()
    kept = {
        config.name: tuple(by_config[config.name][batch] for batch in sorted(common))
        for config in configs
        if config.name in by_config and common
    }
    return LevelSamples(concurrency, {config.name: config for config in configs}, kept)


@dataclass(frozen=True, slots=True)
class _Expected:
    """Answers of the configuration that others are compared with, by question."""

    name: str | None
    answers: Mapping[int | str, EngineAnswer]


def _reference(found: Sequence[LevelSamples]) -> _Expected:
    """Return the first of the references that has run, at the lowest concurrency that it ran at."""
    for name in REFERENCES:
        for at in found:
            if name in at.samples:
                return _Expected(name, _by_question(at.samples[name]))
    return _Expected(None, {})


def _level(found: LevelSamples, reference: _Expected, decode: Decode) -> dict[str, Any]:
    """Return figures of every configuration, and the best of ours over each of the others."""
    batches = next(iter(found.samples.values()))
    best = _best(found)
    return {
        "concurrency": found.concurrency,
        "prompts": sum(len(batch.prompts) for batch in batches),
        "batches": len(batches),
        "base": BASE if BASE in found.samples else None,
        "best": best,
        "arms": {name: _config(found, name, reference, decode) for name in found.samples},
        "best_over": {
            name: ratio(found.samples[best], of)
            for name, of in found.samples.items()
            if best is not None and not found.configs[name].is_ours
        },
        "samples": [_shown(sample) for of in found.samples.values() for sample in of],
    }


def _config(found: LevelSamples, name: str, reference: _Expected, decode: Decode) -> dict[str, Any]:
    of, config = found.samples[name], found.configs[name]
    wall_s = sum(sample.wall_s for sample in of)
    categories = dict.fromkeys(sample.prompts[0].category for sample in of)
    return {
        **_speed(found, name),
        "tokens": sum(sample.num_tokens for sample in of),
        "tokens_per_forward": _per_forward(of) if found.concurrency == 1 else None,
        "identity": _identity(of, reference, decode),
        "is_reference": name == reference.name and found.concurrency == 1,
        "is_ours": config.is_ours,
        "is_batching": config.is_batching,
        "others_cpu_share": sum(sample.others_cpu_s for sample in of) / wall_s,
        "categories": {
            category: _speed(found.only(category), name)
            for category in categories
            if found.concurrency == 1
        },
    }


def _speed(found: LevelSamples, name: str) -> dict[str, Any]:
    base = found.samples.get(BASE)
    return {
        "tokens_per_s": rate(_totals(found.samples[name])),
        "ratio": None if base is None else ratio(found.samples[name], base),
    }


def ratio(of: Sequence[BatchSample], base: Sequence[BatchSample]) -> dict[str, float | None]:
    """Return the speed over the base's; see `resampled_ratio`."""
    return resampled_ratio(_totals(of), _totals(base))


def _best(found: LevelSamples) -> str | None:
    """Return the default of ours; where it does not run, the fastest of ours."""
    if BEST in found.samples:
        return BEST
    ours = [name for name in found.samples if found.configs[name].is_ours]
    rates = {name: rate(_totals(found.samples[name])) for name in ours}
    return max(rates, key=lambda name: rates[name], default=None)


def _totals(of: Sequence[BatchSample]) -> Totals:
    return np.array([[sample.num_tokens, sample.wall_s] for sample in of], dtype=np.float64)


def _per_forward(of: Sequence[BatchSample]) -> float | None:
    """Return the tokens for each forward of the target, those that read prompts included."""
    counts = [answer.num_forwards for sample in of for answer in sample.answers]
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    return sum(sample.num_tokens for sample in of) / sum(known)


def _identity(
    of: Sequence[BatchSample], reference: _Expected, decode: Decode
) -> dict[str, Any] | None:
    """Count the answers that are the reference's, by tokens or text; None without a reference."""
    found, expected = _by_question(of), reference.answers
    if not expected:
        return None
    is_text = any(answer.token_ids is None for answer in found.values())
    same = [_is_same(found[key], expected[key], decode) for key in found if key in expected]
    return {"same": sum(same), "of": len(same), "by": "text" if is_text else "tokens"}


def _by_question(of: Sequence[BatchSample]) -> dict[int | str, EngineAnswer]:
    return {
        prompt.question_id: answer
        for sample in of
        for prompt, answer in zip(sample.prompts, sample.answers, strict=True)
    }


def _is_same(answer: EngineAnswer, expected: EngineAnswer, decode: Decode) -> bool:
    if answer.token_ids is not None:
        return answer.token_ids == expected.token_ids
    return answer.text == decode(expected.token_ids or ())


def _shown(sample: BatchSample) -> dict[str, Any]:
    return {
        "arm": sample.config,
        "questions": [prompt.question_id for prompt in sample.prompts],
        "wall_s": sample.wall_s,
        "others_cpu_s": sample.others_cpu_s,
        "tokens": [answer.num_tokens for answer in sample.answers],
        "forwards": [answer.num_forwards for answer in sample.answers],
    }
