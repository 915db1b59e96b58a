"""What the answers of `bench structured` amount to. Pure arithmetic on records."""

from collections.abc import Sequence
from typing import Any

from slipstream.bench.structured.run import Arm, ArmRecord, TemperatureRecord

_SHOWN = 5


def structured_figures(
    records: Sequence[TemperatureRecord], mask_us: Sequence[float]
) -> dict[str, Any]:
    """All figures, as they are written; `mask_us` are the microseconds that each mask took."""
    return {
        "temperatures": [_of_temperature(record) for record in records],
        "mask_us": _spread(mask_us),
    }


def is_proved(figures: dict[str, Any]) -> bool:
    """Whether every answer was valid, and the same with and without speculation, some of which
    was accepted."""
    return all(
        at["num_valid"] == at["num_answers"]
        and at["num_same"] == at["num_schemas"]
        and at["arms"][Arm.FORCED]["num_accepted"] > 0
        for at in figures["temperatures"]
    )


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in sentences."""
    told = []
    for at in figures["temperatures"]:
        told.append(
            f"temperature {at['temperature']:g}: {at['num_valid']} of {at['num_answers']} answers"
            f" valid and ended by themselves; {at['num_same']} of {at['num_schemas']} the same in"
            " every arm"
        )
        told += [f"  {fault}" for fault in at["faults"]]
        plain = at["arms"][Arm.PLAIN]
        for arm, of in at["arms"].items():
            ratio = of["tokens_per_s"] / plain["tokens_per_s"]
            told.append(
                f"  {arm}: {of['num_tokens']} tokens, {of['tokens_per_round']:.2f} a round,"
                f" {of['tokens_per_s']:.1f} tokens/s, {ratio:.2f}x plain"
            )
    mask = figures["mask_us"]
    told.append(
        f"masks: {mask['mean']:.0f} us on average, {mask['p50']:.0f} / {mask['p99']:.0f} /"
        f" {mask['max']:.0f} us p50 / p99 / max, of {mask['count']} slots"
    )
    return told


def _of_temperature(record: TemperatureRecord) -> dict[str, Any]:
    columns = zip(*(arm.texts for arm in record.arms.values()), strict=True)
    num_same = sum(len({text.result.token_ids for text in column}) == 1 for column in columns)
    texts = [text for arm in record.arms.values() for text in arm.texts]
    faults = [f"{text.wrong}: {text.result.text[:200]!r}" for text in texts if text.wrong]
    return {
        "temperature": record.temperature,
        "num_schemas": len(record.arms[Arm.PLAIN].texts),
        "num_answers": len(texts),
        "num_valid": len(texts) - len(faults),
        "num_same": num_same,
        "faults": faults[:_SHOWN],
        "arms": {arm.value: _of_arm(kept) for arm, kept in record.arms.items()},
    }


def _of_arm(kept: ArmRecord) -> dict[str, Any]:
    all_stats = [text.result.stats for text in kept.texts]
    speculation = [stats.speculation for stats in all_stats]
    num_tokens = sum(stats.num_output_tokens for stats in all_stats)
    # The prompt's own round is not recorded, and each has one.
    rounds = sum(of.num_spec_steps + of.num_plain_steps + 1 for of in speculation)
    return {
        "num_tokens": num_tokens,
        "num_rounds": rounds,
        "tokens_per_round": num_tokens / rounds,
        "num_drafted": sum(of.num_draft_tokens for of in speculation),
        "num_accepted": sum(of.num_accepted_draft_tokens for of in speculation),
        "num_copied_accepted": sum(of.num_accepted_lookup_tokens for of in speculation),
        "seconds": kept.seconds,
        "tokens_per_s": num_tokens / kept.seconds,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    count = len(ordered)
    return {
        "count": count,
        "mean": sum(ordered) / count,
        "p50": ordered[count // 2],
        "p99": ordered[min(count * 99 // 100, count - 1)],
        "max": ordered[-1],
    }
