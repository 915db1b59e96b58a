"""Which addresses a draft may dial for keys and values."""

import pytest

from slipstream.core.errors import InvalidRequest, PermissionDenied
from slipstream.options import build
from slipstream_draft.config import DraftConfig
from slipstream_draft.kv_sources import ANYWHERE, THIS_MACHINE, KvSources, dialled, usual_sources

NO_ADDRESSES = [
    *("", "nowhere", "host:0", "host:65536", "host:http", "host:٣", ":50061", "a b:50061"),
    *("host\n:50061", "user@host:50061", "unix:/run/x.sock", "unix:///run/x.sock:80"),
    *("unix-abstract:x:80", "vsock:2:80", "xds:///target:80", "ipv4:10.0.0.1:80", "ipv6:[::1]:80"),
    *("::1:80", "[10.0.0.1]:80", "[name]:80", "dns:target:80", "dns://10.0.0.1/target:80"),
    *("http://target:80", "h" * 9999 + ":80", "/" * 9999),
]


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_an_address_that_is_not_a_host_and_a_port_is_refused_briefly(address):
    with pytest.raises(InvalidRequest, match="are read from HOST:PORT") as refusal:
        KvSources(ANYWHERE).check(address)
    assert len(str(refusal.value)) < 200


OPEN = ("10.0.0.1:1", "[fe80::1]:65535", "target-0.targets.svc:50061", "dns:///target:50061")
HERE = ("127.0.0.1:9", "127.9.9.9:9", "[::1]:9", "LocalHost:9")
ELSEWHERE = ("10.0.0.1:9", "localhost.example:9", "[::ffff:10.0.0.1]:9")
ALLOWED = [
    *((ANYWHERE, address) for address in OPEN),
    *((THIS_MACHINE, address) for address in HERE),
    (("10.0.0.0/8:50061",), "10.200.3.4:50061"),
    (("[fd00::/8]:50061",), "[fd00::1]:50061"),
    (("10.0.0.7:*",), "10.0.0.7:1"),
    (("*.targets.svc:50061",), "target-0.Targets.svc:50061"),
    (("*:50061",), "anything.example:50061"),
    (("a:1", "b:2"), "b:2"),
]
REFUSED = [
    *((THIS_MACHINE, address) for address in ELSEWHERE),
    (("10.0.0.0/8:50061",), "10.0.0.1:50062"),
    (("10.0.0.0/8:*",), "11.0.0.1:1"),
    (("10.0.0.0/8:*",), "10.0.0.1.example:1"),
    (("*.targets.svc:*",), "targets.svc:1"),
    (("*.targets.svc:*",), "xtargets.svc:1"),
    (("*.0.0.1:*",), "10.0.0.1:1"),
    (("a:1", "b:2"), "a:2"),
    (("*:50061",), "anything.example:80"),
]


@pytest.mark.parametrize(("patterns", "address"), ALLOWED)
def test_what_a_pattern_admits_may_be_dialled(patterns, address):
    KvSources(patterns).check(address)


@pytest.mark.parametrize(("patterns", "address"), REFUSED)
def test_what_no_pattern_admits_may_not(patterns, address):
    with pytest.raises(PermissionDenied, match="kv_sources"):
        KvSources(patterns).check(address)


@pytest.mark.parametrize("pattern", ["", "host", "*", "a*b:1", "*.*:1", "10.0.0.0/33:1", "h:0"])
def test_a_pattern_that_is_none_is_refused_at_the_start(pattern):
    with pytest.raises(InvalidRequest, match="kv_sources has"):
        build(DraftConfig, kv_sources=(pattern,))


@pytest.mark.parametrize(
    ("address", "patterns"),
    [
        ("127.0.0.1:50062", THIS_MACHINE),
        ("[::1]:50062", THIS_MACHINE),
        ("localhost:0", THIS_MACHINE),
        ("0.0.0.0:50062", ANYWHERE),
        ("[::]:50062", ANYWHERE),
        ("draft-0.example:50062", ANYWHERE),
    ],
)
def test_a_draft_that_only_its_machine_reaches_reads_from_that_machine_only(address, patterns):
    assert usual_sources(address) == patterns


def test_no_host_is_taken_for_a_scheme():
    assert dialled("unix:80") == "dns:///unix:80"
    assert dialled("dns:///target:80") == "dns:///target:80"
    assert dialled("[::1]:80") == "dns:///%5B::1%5D:80"
