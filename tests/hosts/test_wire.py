"""The wire between hosts is as bad as it is said to be, and nothing of it stays."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hosts.network import network, require_hosts

PORT, GONE_S, DELAY_S = 5000, 0.3, 0.05


def socket_of(host, kind):
    with ThreadPoolExecutor(1, initializer=host.enter_thread) as pool:
        made = pool.submit(socket.socket, socket.AF_INET, kind).result()
    made.bind((host.address, PORT))
    made.settimeout(GONE_S)
    return made


@pytest.fixture
def net(tmp_path):
    """Commands of a network's wire, and a socket on each of two hosts."""
    require_hosts(tmp_path)
    with network(tmp_path, {"wide": 1500, "narrow": 1400}) as net:
        wide, narrow = (socket_of(net.hosts[at], socket.SOCK_DGRAM) for at in ("wide", "narrow"))
        with wide, narrow:
            yield net.say, wide, narrow


def arrives(sender, receiver, size=1):
    sender.sendto(bytes(size), receiver.getsockname())
    try:
        return len(receiver.recv(2 * size)) == size
    except TimeoutError:
        return False


def test_a_way_can_be_cut_in_one_direction_alone(net):
    say, wide, narrow = net
    assert arrives(wide, narrow)
    say("cut wide narrow")
    assert (arrives(wide, narrow), arrives(narrow, wide)) == (False, True)
    say("mend wide narrow")
    assert arrives(wide, narrow)


def test_no_packet_is_early_and_a_lost_one_never_comes(net):
    say, *ends = net
    assert arrives(*ends)
    say(f"delay wide {1000 * DELAY_S}")
    began = time.monotonic()
    assert arrives(*ends)
    assert time.monotonic() - began >= DELAY_S
    lost = say("loss narrow 1").lost
    assert not arrives(*ends)
    assert say().lost == lost + 1


def test_a_wire_carries_no_packet_above_its_size(net):
    assert arrives(*net[1:], size=1400 - 28)
    assert not arrives(*net[1:], size=1400 - 27)


def test_a_refused_connection_is_refused_and_nothing_of_a_network_stays(tmp_path):
    require_hosts(tmp_path)
    with network(tmp_path, {"near": 1500, "far": 1500}) as net:
        near = socket_of(net.hosts["near"], socket.SOCK_STREAM)
        with near, socket_of(net.hosts["far"], socket.SOCK_STREAM) as far:
            far.listen()
            net.say("refuse near far")
            with pytest.raises(ConnectionRefusedError):
                near.connect(far.getsockname())
        interfaces = socket.if_nameindex()
    assert len(socket.if_nameindex()) == len(interfaces) - 1
