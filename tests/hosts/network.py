"""Hosts of a network on one machine, and the wires between: see `wire.c`, the program of both."""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

CLIENT, EVERY = "client", "*"
"""The machine itself, where clients run: the first host of every network. All hosts."""
_SOURCE = Path(__file__).with_name("wire.c")
_NUM_SUBNETS = 1 << 13
"""Subnets of 16 addresses in 198.18.0.0/15, which is kept for tests of networks (RFC 2544)."""
_CLONE_NEWNS, _CLONE_NEWNET, _MS_BIND, _MS_PRIVATE = 0x20000, 0x40000000, 0x1000, 0x44000


class Frames(NamedTuple):
    """Numbers of frames since the start, of all wires together."""

    carried: int
    lost: int
    stopped: int
    """Frames between hosts that can't reach each other, or larger than a wire carries."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host's address, the file of its network namespace, and its list of name servers."""

    address: str
    namespace: str
    resolver: Path

    def enter(self) -> None:
        """Move this process there. Raises `OSError`."""
        namespace = os.open(self.namespace, os.O_RDONLY)
        _call("unshare", _CLONE_NEWNS)
        _call("mount", None, b"/", None, _MS_PRIVATE, None)
        _call("mount", bytes(self.resolver), b"/etc/resolv.conf", None, _MS_BIND, None)
        _call("setns", namespace, _CLONE_NEWNET)
        os.close(namespace)

    def enter_thread(self) -> None:
        """Move this thread there: sockets that it makes are the host's."""
        with Path(self.namespace).open() as namespace:
            _call("setns", namespace.fileno(), _CLONE_NEWNET)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


class Network:
    """Hosts by name, the client first, each reached by all others."""

    def __init__(self, wire: "subprocess.Popen[str]", resolver: Path) -> None:
        """Raises `OSError` where this machine can't, with the call that failed."""
        self._wire = wire
        self.hosts: dict[str, Host] = {}
        while (said := self._read()) != ["ready"]:
            name, address, file = said
            self.hosts[name] = Host(address, f"/proc/{wire.pid}/fd/{file}", resolver)
        server = self.hosts[CLIENT].address
        resolver.write_text(f"nameserver {server}\noptions timeout:1 attempts:5\n")

    def say(self, *lines: str) -> Frames:
        """Have commands of the wire carried out, from now on; the frames until then."""
        for line in lines or ("count",):
            self._wire.stdin.write(f"{line}\n")
            self._wire.stdin.flush()
            done, *numbers = self._read()
            assert done == "ok", line
        return Frames(*map(int, numbers))

    def _read(self) -> list[str]:
        if not (line := self._wire.stdout.readline()):
            raise OSError(self._wire.stderr.read().strip())
        return line.split()


@contextmanager
def network(folder: Path, mtus: Mapping[str, int]) -> Iterator[Network]:
    """Hosts by name with the largest packets of their wires; they end with the last process there.
    Files go to the folder. Raises what `Network` does."""
    program, number = str(folder / "wire"), 16 * (os.getpid() % _NUM_SUBNETS)
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", program, str(_SOURCE)], check=True)
    subnet = f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    words = [program, subnet, CLIENT, *(f"{name}={mtu}" for name, mtu in mtus.items())]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, text=True, **pipes) as wire:
        try:
            yield Network(wire, folder / "resolv.conf")
        finally:
            wire.communicate()


def require_hosts(folder: Path) -> None:
    """Skip where this machine makes no hosts, with the reason."""
    try:
        with network(folder, {"probe": 1500}):
            pass
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"hosts need Linux, root, a C compiler and network namespaces: {error}")
