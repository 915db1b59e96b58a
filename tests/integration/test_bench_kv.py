"""The measurement of streamed keys and values measures what it says, on a target of its own."""

import pytest

from slipstream.bench.kv import KvPlan, measure_kv
from slipstream.core.errors import InvalidRequest
from slipstream.rpc.kv import KvEncoding


async def test_streams_and_rounds_are_measured_alone_and_together():
    """As they are; the command's test streams them as int8."""
    phases = []
    sizes = {"layers": 2, "positions": 64, "kv_heads": 2, "head_dim": 32}
    plan = KvPlan(seconds=0.2, encoding=KvEncoding.RAW, **sizes)
    report = await measure_kv(plan, advance=phases.append)
    assert phases == ["stream alone", "rounds alone", "both"]
    for stream in (report.stream_alone, report.stream_beside):
        assert stream.cache_bytes == round(stream.num_snapshots * plan.snapshot_bytes) > 0
        assert stream.payload_bytes == stream.cache_bytes
    for rounds in (report.rounds_alone, report.rounds_beside):
        assert rounds.num_rounds > 0
        assert 0 < rounds.median_s <= rounds.p99_s <= rounds.max_s
        assert rounds.median_engine_s <= rounds.max_s


@pytest.mark.parametrize("values", [{"seconds": 0.0}, {"layers": 0}, {"positions": -1}])
def test_a_plan_without_sense_is_refused(values):
    with pytest.raises(InvalidRequest):
        KvPlan(**values)
