"""Judge of NetworkPolicies: a pure judge of one connection between two pods.
As Kubernetes has it: a pod that no policy of a direction selects is open in that direction; else
one rule of one of them must admit the connection, and both ends must."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection: a pod, or, with an address only, something outside."""

    labels: Mapping[str, str] | None = None
    namespace: str = ""
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    address: str = "10.1.2.3"


def matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects labels; an empty one selects all, none nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(rule, labels) for rule in selector.get("matchExpressions") or ()
    )


def admits(policies: Sequence[Json], source: End, target: End, port: int | str) -> bool:
    """Return whether a TCP connection from `source` to a port of `target` gets through."""
    number = target.ports[port] if isinstance(port, str) else port
    return _lets(policies, "Egress", source, (target, number, target)) and _lets(
        policies, "Ingress", target, (source, number, target)
    )


def _lets(
    policies: Sequence[Json], direction: str, end: End, connection: tuple[End, int, End]
) -> bool:
    other, port, named = connection
    at_work = [policy["spec"] for policy in policies if _selects(policy, direction, end)]
    rules = [rule for spec in at_work for rule in spec.get(direction.lower()) or ()]
    peers = "from" if direction == "Ingress" else "to"
    return not at_work or any(
        _port(rule.get("ports"), port, named)
        and (not rule.get(peers) or any(_is_peer(peer, other, end) for peer in rule[peers]))
        for rule in rules
    )


def _selects(policy: Json, direction: str, end: End) -> bool:
    spec = policy["spec"]
    if end.labels is None or policy["metadata"].get("namespace", end.namespace) != end.namespace:
        return False
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return direction in types and matches(spec["podSelector"], end.labels)


def _port(ports: Sequence[Json] | None, number: int, target: End) -> bool:
    if not ports:
        return True
    return any(_is_port(at, number, target) for at in ports if at.get("protocol", "TCP") == "TCP")


def _is_port(rule: Json, number: int, target: End) -> bool:
    port = rule.get("port")
    first = target.ports.get(port) if isinstance(port, str) else port
    if port is not None and first is None:
        return False
    return port is None or first <= number <= rule.get("endPort", first)


def _is_peer(peer: Json, other: End, end: End) -> bool:
    if block := peer.get("ipBlock"):
        return _within(block, other.address)
    if other.labels is None:
        return False
    spaces = peer.get("namespaceSelector")
    near = other.namespace == end.namespace
    in_space = near if spaces is None else matches(spaces, other.namespace_labels)
    return in_space and matches(peer.get("podSelector", {}), other.labels)


def _within(block: Json, address: str) -> bool:
    at = ip_address(address)
    return at in ip_network(block["cidr"]) and not any(
        at in ip_network(hole) for hole in block.get("except") or ()
    )


def _holds(rule: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or ()
    judges = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return judges[rule["operator"]]
