"""What a run came to: a table for people, and JSON."""

from collections import Counter
from typing import Any

from fuzz.fuzzer import Tally
from support.services.stalls import LoggedStall


def values(
    tally: Tally, stalls: dict[str, list[LoggedStall]], rss: dict[str, list[int]], **about: Any
) -> dict[str, Any]:
    """All of it as JSON."""
    return {
        **about,
        "messages": sum(tally.num_messages.values()),
        "roles": {role: _of_role(role, tally, stalls[role], rss[role]) for role in stalls},
        "crashes": _count(tally, "crash"),
        "stalls_above_100_ms": _count(tally, "stall"),
        "findings": [finding.values() for finding in tally.findings.values()],
        "next_batches": tally.next_batches,
    }


def lines(told: dict[str, Any]) -> list[str]:
    """The table."""
    head = f"{'service':8} {'messages':>9} {'stalls':>7} {'longest ms':>10} {'RSS MiB':>12}  kinds"
    table = [head]
    for role, about in told["roles"].items():
        kinds = " ".join(f"{kind} {count}" for kind, count in about["kinds"].items())
        before, after = about["rss_mib"]
        table.append(
            f"{role:8} {about['messages']:9} {about['stalls']:7} {about['longest_ms']:10.1f}"
            f" {before:5} → {after:4}  {kinds}"
        )
        table.append(f"{'':8} {' '.join(f'{name} {n}' for name, n in about['statuses'].items())}")
        if about["longest_ms"]:
            table.append(f"{'':8} longest: {about['longest']}")
    table += [f"finding: {each['symptom']} ({each['file']})" for each in told["findings"]]
    sessions = told["sessions"]
    table.append(f"sessions: {sessions['calls']} calls; {sessions['failed'] or 'none failed'}")
    table.append(
        f"seed {told['seed']}: {told['messages']} messages in {told['seconds']:.0f} s,"
        f" {told['crashes']} crashes, {told['stalls_above_100_ms']} stalls above 100 ms of CPU,"
        f" {len(told['findings'])} findings, held at the end: {told['held'] or 'nothing'}"
    )
    return table


def _count(tally: Tally, kind: str) -> int:
    found = tally.findings.values()
    return sum(each.num_batches for each in found if each.symptom.kind == kind)


def _of_role(role: str, tally: Tally, stalls: list[LoggedStall], rss: list[int]) -> dict[str, Any]:
    longest = max(stalls, key=lambda stall: stall.cpu_ms, default=LoggedStall(0.0, ""))
    kinds, statuses = _sorted(tally.num_messages, role), _sorted(tally.statuses, role)
    return {
        "messages": sum(kinds.values()),
        "kinds": kinds,
        "statuses": statuses,
        "stalls": len(stalls),
        "longest_ms": longest.cpu_ms,
        "longest": longest.place,
        "rss_mib": rss,
    }


def _sorted(counts: Counter[tuple[str, str]], role: str) -> dict[str, int]:
    own = {name: count for (at, name), count in counts.items() if at == role}
    return dict(sorted(own.items(), key=lambda item: -item[1]))
