"""The shadow check on its own: what it finds, what it leaves alone, and when it gives way."""

import asyncio
import re
from dataclasses import replace

import pytest

from slipstream.client import SamplingParams
from slipstream.core.errors import InvalidRequest
from slipstream.core.request.server_info import ShadowInfo
from slipstream.core.types import Verification
from slipstream_router.limits import Admission
from slipstream_router.shadow import Shadow, ShadowOptions
from support.services import fleet
from support.services.fleet import target_worker
from support.services.shadows import NOBODY, PROMPT, answered, checking, num_ended, plain, scores

SAMPLED = SamplingParams(temperature=0.8, seed=7)


async def ended(shadow, count) -> ShadowInfo:
    """What has come of the checks, once so many have come to something."""

    async def info():
        return shadow.info

    return await fleet.eventually(info, lambda info: num_ended(info) == count)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
async def test_a_wrong_token_is_found_with_its_position_and_margin(folder, sampling, caplog):
    right = await plain(folder, 12, sampling)
    async with checking(target_worker(folder)) as shadow:
        shadow.offer(answered(right, sampling=sampling, request_id="right"))
        for position in (0, 5, 11):
            wrong = (*right[:position], (right[position] + 1) % 259, *right[position + 1 :])
            shadow.offer(answered(wrong, sampling=sampling, request_id=f"wrong-{position}"))
        info = await ended(shadow, 4)
    assert (info.num_checked, info.num_diverged, info.num_skipped) == (4, 3, 0)
    assert info.num_checked_tokens == 12 + 1 + 6 + 12
    margins = []
    for position, message in zip((0, 5, 11), caplog.messages, strict=True):
        there = scores((*PROMPT, *right[:position]), sampling)
        token = (right[position] + 1) % 259
        margins.append(float(there[right[position]] - there[token]))
        assert f"request wrong-{position} differs from plain decoding at output position" in message
        assert f"position {position}: it has token {token}, plain decoding draws" in message
        assert f"draws {right[position]} by a margin of" in message
        said = re.search(r"margin of ([\d.e-]+), (a|no) near-tie$", message)
        assert float(said[1]) == pytest.approx(margins[-1], rel=1e-2, abs=1e-4)
        assert (said[2] == "a") == (float(said[1]) <= 1e-3 / (sampling.temperature or 1))
    assert info.smallest_margin == pytest.approx(min(margins), rel=1e-2, abs=1e-4)
    assert info.largest_margin == pytest.approx(max(margins), rel=1e-2, abs=1e-4)


async def test_what_rounding_could_have_decided_is_called_a_near_tie(folder, caplog):
    there = scores(PROMPT, SamplingParams())
    best, second = there.topk(2).indices.tolist()
    bias = float(there[best] - there[second]) - 2e-4
    async with checking(target_worker(folder)) as shadow:
        sampling = SamplingParams(logit_bias=((second, bias),))
        shadow.offer(answered((second,), sampling=sampling))
        info = await ended(shadow, 1)
    assert info.num_diverged == 1
    assert info.smallest_margin == pytest.approx(2e-4, abs=1e-5)
    assert caplog.messages[0].endswith(", a near-tie")


async def test_a_request_that_went_on_behind_its_end_is_found(folder, caplog):
    biased = SamplingParams(logit_bias=((0, 100.0),))
    async with checking(target_worker(folder)) as shadow:
        shadow.offer(answered((0,), sampling=biased))
        shadow.offer(answered((0, 5), sampling=biased))
        info = await ended(shadow, 2)
    assert (info.num_checked, info.num_diverged, info.smallest_margin) == (2, 1, None)
    assert caplog.messages == [
        "request r-1 differs from plain decoding at output position 1: it has token 5, plain"
        " decoding has ended"
    ]


async def test_a_token_that_is_none_is_a_difference_without_a_margin(folder, caplog):
    async with checking(target_worker(folder)) as shadow:
        shadow.offer(answered((259,)))
        info = await ended(shadow, 1)
    assert (info.num_checked, info.num_diverged, info.largest_margin) == (1, 1, None)
    assert caplog.messages[-1].endswith("; the margin is unknown")


async def test_a_check_gives_way_when_the_router_fills(folder):
    right = await plain(folder, 60)
    admission = Admission(1)
    async with checking(worker := target_worker(folder), admission) as shadow:
        shadow.offer(answered(right))
        while shadow.info.num_checked_tokens < 3:
            await asyncio.sleep(0)
        with admission.place():
            shadow.offer(answered(right))
            info = await ended(shadow, 2)
            assert 3 <= info.num_checked_tokens < 60
        assert info.num_skipped == 2
        shadow.offer(answered(right[:4]))
        assert (await ended(shadow, 3)).num_checked == 1
        admission.is_draining = True
        shadow.offer(answered(right[:4]))
        assert (await ended(shadow, 4)).num_skipped == 3
        await fleet.eventually(worker.load, lambda load: load.num_sessions == 0)


async def test_a_check_is_skipped_where_no_target_takes_it(folder):
    async with checking(worker := target_worker(folder)) as shadow:
        shadow.offer(answered((1, 2), model="another"))
        shadow.offer(answered([1] * 4090))  # more than the target has a context for
        assert (await ended(shadow, 2)).num_skipped == 2
        await worker.stop()
        shadow.offer(answered((1, 2)))
        assert (await ended(shadow, 3)).num_skipped == 3


def test_what_can_t_be_compared_is_counted_and_not_checked():
    shadow = Shadow(NOBODY, Admission(1), ShadowOptions(1.0))
    shadow.offer(answered((1, 2), num_drafted=0))
    shadow.offer(answered(()))
    given = answered((1, 2))
    session = replace(given.request.session, verification=Verification.MCSD)
    shadow.offer(replace(given, request=replace(given.request, session=session)))
    info = shadow.info
    assert (info.num_offered, info.num_inconclusive, info.num_incomparable) == (3, 2, 1)


def test_what_does_not_fit_the_queue_is_dropped():
    shadow = Shadow(NOBODY, Admission(1), ShadowOptions(1.0, max_waiting=2))
    for _ in range(5):
        shadow.offer(answered((1, 2)))
    assert (shadow.info.num_offered, shadow.info.num_dropped) == (5, 3)


async def test_requests_are_drawn_at_the_rate_and_none_at_0():
    numbers = iter([0.0, 0.24, 0.25, 0.9])
    some = Shadow(NOBODY, Admission(1), ShadowOptions(0.25), draw=lambda: next(numbers))
    none = Shadow(NOBODY, Admission(1), ShadowOptions(0.0), draw=lambda: 0.0)
    for _ in range(4):
        some.offer(answered((1, 2)))
        none.offer(answered((1, 2)))
    assert some.info.num_offered == 2
    assert none.info == ShadowInfo()
    await asyncio.wait_for(none.run(), fleet.LIMIT_S)  # ends at once


@pytest.mark.parametrize("options", [{"rate": -0.1}, {"rate": 1.1}, {"rate": float("nan")}])
def test_a_rate_that_is_no_share_is_refused(options):
    with pytest.raises(InvalidRequest, match=r"shadow_rate is .* between 0 and 1"):
        ShadowOptions(**options)
