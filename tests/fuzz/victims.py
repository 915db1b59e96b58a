"""The services that everything is sent to: processes with a watchdog, and what they log.

Knows logs, memory and what is held; not what was sent.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.cluster import Cluster, Pair
from slipstream.client import AsyncClient
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.v1 import target_pb2, target_pb2_grpc
from support.services import fleet
from support.services.stalls import LoggedStall, stalls_in

SIZES = {"router": 1, "target": 1, "draft": 1, "gateway": 1}
STALL_MS = 100.0
"""CPU time from which on a stall is a finding."""
_LOG_CHARS = 8000
_TTL_S = "0.2"
"""How long what happened to be a good request is kept for a next turn."""
_FAULT = re.compile(r" (?:ERROR|CRITICAL) |^Traceback|never retrieved|was never awaited")
_HARMLESS = "ExecuteBatchError"
"""What gRPC logs where a caller has left before the answer."""
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception|Warning)\b.*|^\w+(?:\.\w+)+$")
_PLACE = re.compile(r'File ".*?/slipstream/(.*?)", line \d+, in (\w+)')


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is wrong with a process, so that the same fault looks the same."""

    role: str
    kind: str
    """crash, stall, log or status."""
    what: str
    log: str = field(default="", compare=False)
    """The end of what the process had logged by then."""

    def __str__(self) -> str:
        return f"{self.role} {self.kind}: {self.what}"


class Victims(Cluster):
    """One service of each role, and Redis."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        super().__init__(pair, folder, sizes=SIZES)
        self._read: dict[str, int] = {}
        self._num_ended: dict[str, int] = {}
        self.stalls: dict[str, list[LoggedStall]] = {role: [] for role in SIZES}
        """All that was logged, by role."""

    def address_of(self, role: str) -> str:
        return self._at(f"{role}-0")

    def symptoms(self) -> list[Symptom]:
        """What went wrong since the last look."""
        found: list[Symptom] = []
        for role in SIZES:
            found += self._ends(role)
            news = self._news(role)
            stalls = stalls_in(news)
            self.stalls[role] += stalls
            long = [stall for stall in stalls if stall.cpu_ms >= STALL_MS]
            found += [Symptom(role, "stall", stall.name) for stall in long]
            found += [Symptom(role, "log", what, news[-_LOG_CHARS:]) for what in _faults(news)]
        return found

    def rss_mib(self) -> dict[str, int]:
        sizes = {}
        for role in SIZES:
            status = Path(f"/proc/{self.members[f'{role}-0'].pid}/status").read_text()
            match = re.search(r"VmRSS:\s+(\d+)", status)
            sizes[role] = int(match[1]) // 1024 if match else 0
        return sizes

    async def incarnation(self) -> str:
        async with connect(self.address_of("target"), ChannelOptions()) as channel:
            stub = target_pb2_grpc.TargetServiceStub(channel)
            about = await stub.DescribeTarget(target_pb2.DescribeTargetRequest())
        return str(about.identity.incarnation)

    async def answer(self) -> tuple[int, ...]:
        """What somebody else's request gives."""
        async with AsyncClient(self.address_of("router"), timeout_s=60) as client:
            return (await client.generate("the quick brown fox", max_tokens=24)).token_ids

    async def held(self) -> dict[str, Any]:
        """What the services hold for requests; empty where it is nothing."""
        held: dict[str, Any] = {}
        for role, service in (("target", fleet.TARGET), ("draft", fleet.DRAFT)):
            load = await fleet.load_of(service, self.address_of(role))
            counts = (load.num_sessions, load.num_parked, load.kv_bytes, load.num_kv_streams)
            held |= {role: counts} if any(counts) else {}
        async with AsyncClient(self.address_of("router")) as client:
            num_requests = (await client.server_info()).num_requests
        return held | ({"router": num_requests} if num_requests else {})

    def _ends(self, role: str) -> list[Symptom]:
        codes = self.members[f"{role}-0"].codes
        news = codes[self._num_ended.get(role, 0) :]
        self._num_ended[role] = len(codes)
        return [Symptom(role, "crash", f"exit code {code}") for code in news]

    def _news(self, role: str) -> str:
        with self.members[f"{role}-0"].log.open(errors="replace") as log:
            log.seek(self._read.get(role, 0))
            news = log.read()
            self._read[role] = log.tell()
        return news

    def _router(self, name: str) -> Iterable[str]:
        return [*super()._router(name), "--park-ttl-s", _TTL_S]

    def _target(self, name: str) -> Iterable[str]:
        return [*super()._target(name), "--max-park-ttl-s", _TTL_S]

    def _draft(self, name: str) -> Iterable[str]:
        return [*super()._draft(name), "--max-park-ttl-s", _TTL_S]


def _faults(log: str) -> list[str]:
    """Errors in a piece of a log, each as the place of its own code and what was raised."""
    faults, place, is_open = [], "", False
    for line in log.splitlines():
        if match := _PLACE.search(line):
            place = f"{match[1]} in {match[2]}"
        if _FAULT.search(line):
            is_open = True
            faults += [] if line.startswith("Traceback") else [_words(line)]
        elif is_open and _RAISED.search(line):
            faults.append(f"{place}: {_words(line)}")
            is_open = False
    return [fault for fault in faults if _HARMLESS not in fault]


def _words(line: str) -> str:
    """A line without its time and without numbers."""
    text = re.sub(r"^[\d-]+ [\d:,]+ ", "", line)
    return re.sub(r"0x[0-9a-f]+|\d+|(?:request|session)_id=\S+", "N", text)[:160]
