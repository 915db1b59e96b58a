"""Sends batch after batch, looks at the services after each, and finds the case behind a fault."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuzz.case import HTTP, Case
from fuzz.generator import ROLES, Generator
from fuzz.report import Finding, Tally
from fuzz.sender import Sender
from fuzz.victims import Symptom, Victims

BATCH = 1000
AT_ONCE = 48
HANG_S = 30.0
SETTLE_S = 30.0
SEARCH_S = 20.0
"""Longest search for the case behind a fault."""
_LOOK_S = 0.02
"""A log line is written a moment after the answer."""


class Fuzzer:
    """Batches against services that run. The same seed gives the same batches."""

    def __init__(self, victims: Victims, seed: int, folder: Path | None) -> None:
        """Findings are kept in `folder`, where there is one."""
        self.tally = Tally()
        self._victims = victims
        self._generator = Generator(seed)
        self._folder = folder
        self._sender = Sender({role: victims.address_of(role) for role in ROLES})

    async def begin(self) -> None:
        """Learn what this run's services are called. The symptoms of their start are none."""
        address = self._victims.address_of("target")
        self._sender.of_target(await self._victims.incarnation(), address)
        self._victims.symptoms()

    async def run(self, until: float, roles: Sequence[str] = ROLES, first: int = 0) -> None:
        """Batches for one role after the other, until a time of the monotonic clock."""
        number = first
        while True:
            for role in roles:
                if time.monotonic() > until:
                    return
                await self.batch(role, number)
            number += 1

    async def batch(self, role: str, number: int, size: int = BATCH) -> None:
        """Send one batch; what it shows becomes a finding."""
        cases = self._generator.batch(role, number, size)
        shown = await self.send(cases)
        for symptom in await self._look():
            shown.setdefault(symptom, None)
        for symptom, case in shown.items():
            if (known := self.tally.findings.get(str(symptom))) is not None:
                known.count += 1
                continue
            behind = [case] if case else await self._behind(symptom, cases)
            found = Finding(str(symptom), f"{role} {number}", behind, symptom.log)
            self.tally.findings[found.what] = found
            if self._folder is not None:
                found.keep(self._folder)

    async def send(self, cases: Sequence[Case]) -> dict[Symptom, Case | None]:
        """Send cases, many at once; those with a status that no caller should see."""
        bad: dict[Symptom, Case | None] = {}
        places = asyncio.Semaphore(AT_ONCE)

        async def one(case: Case) -> None:
            async with places:
                outcome = await self._outcome(case)
            num = 1 if case.to == HTTP else len(case.parts)
            self.tally.forms[case.role][case.kind] += num
            self.tally.outcomes[case.role][outcome.partition(":")[0]] += 1
            if (symptom := _symptom(case, outcome)) is not None:
                bad.setdefault(symptom, case)

        await asyncio.gather(*map(one, cases))
        return bad

    async def close(self) -> dict[str, Any]:
        """End connections and wait until nothing is held; what still is."""
        await self._sender.close()
        held: dict[str, Any] = {}
        until = time.monotonic() + SETTLE_S
        while (held := await self._victims.held()) and time.monotonic() < until:
            await asyncio.sleep(0.1)
        return held

    async def _outcome(self, case: Case) -> str:
        try:
            async with asyncio.timeout(HANG_S):
                return await self._sender.send(case)
        except TimeoutError:
            return f"HANG: {case.to} {case.manner}"

    async def _look(self) -> list[Symptom]:
        """What the services show by now. One that has ended is waited for until it is back."""
        await asyncio.sleep(_LOOK_S)
        found = self._victims.symptoms()
        if any(symptom.kind == "crash" for symptom in found):
            await self._sender.close()
            await self._victims.settled()
            await self.begin()
        return found

    async def _behind(self, symptom: Symptom, cases: list[Case]) -> list[Case]:
        """The first case that shows the symptom alone; all of them where none does."""
        until = time.monotonic() + SEARCH_S
        for case in cases:
            if time.monotonic() > until:
                break
            outcome = await self._outcome(case)
            if symptom in [_symptom(case, outcome), *await self._look()]:
                return [case]
        return cases


def _symptom(case: Case, outcome: str) -> Symptom | None:
    """What is wrong with a status; None where nothing is."""
    kind, has_reason, reason = outcome.partition(": ")
    return Symptom(case.role, "status", f"{case.to} {kind} {reason[:200]}") if has_reason else None
