"""A small network on one machine: a namespace for each node, and one for the bridge between them.

    with Network.create(("primary", "safekeeper1", …)) as network:
        network["primary"].prefix              before a command: the command runs there
        network.deafen(receiver, sender)       one direction is cut; both: network.cut(a, b)
        network.heal()

Packets are dropped where they arrive (nftables, input hook), so that the sender learns nothing, as
with a cable that is cut. This process stays outside, with a link to the bridge, and reaches every
node at all times. The bridge is not outside: where Docker runs, the machine drops packets that its
own bridges forward. Needs root. Names hold the pid of the run, so that the next run finds the
remains of one that was killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.proof.chaos.verdicts import CannotRun
from tests.support.waiting import wait_until

PROGRAM_S = 20
PREFIX = "wkc"  # begins the name of each namespace and link; a link's has 15 characters at most
NAMESPACE = re.compile(rf"{PREFIX}(\d+)-\S+")
LINK = re.compile(rf"\b({PREFIX}(\d+)v)(?:@\S+)?:")
SUBNETS = [f"198.18.{number}" for number in range(1, 255)]  # RFC 2544: no other network uses them
LOSS_PERCENT = 10
DELAY_MS = 40
RULES = f"""
table inet chaos {{
  set deaf_to {{ type ipv4_addr; }}
  set lossy {{ type ipv4_addr; }}
  chain input {{
    type filter hook input priority 0;
    ip saddr @deaf_to drop
    ip saddr @lossy numgen random mod 100 < {LOSS_PERCENT} drop
  }}
}}
"""
NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "mkfs.ext4": "e2fsprogs",
    "gcc": "gcc",
}


def run(*command: str, text: str | None = None) -> str:
    """Return the command's output; raise CannotRun with its error text if it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PROGRAM_S)
    if done.returncode:
        raise CannotRun(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def succeeds(*command: str) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=PROGRAM_S)
    return done.returncode == 0


def why_not() -> str | None:
    """Return why no network can be made here, or None if one can."""
    if os.geteuid():
        return "network namespaces and mounts need root"
    if missing := sorted({package for name, package in NEEDED.items() if not shutil.which(name)}):
        return f"missing: apt-get install {' '.join(missing)}"
    probe = f"{PREFIX}{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", probe)
        run("ip", "netns", "exec", probe, "nft", "-f", "-", text=RULES)
    except CannotRun as error:
        return f"network namespaces do not work here: {error}"
    finally:
        succeeds("ip", "netns", "del", probe)
    return None


def inside(namespace: str) -> tuple[str, ...]:
    """Return the words to put before a command; the pid stays the command's."""
    return ("nsenter", f"--net=/run/netns/{namespace}", "--")


@dataclass(frozen=True, slots=True)
class Node:
    """One namespace with one address."""

    name: str
    namespace: str
    address: str
    link: str  # its end at the bridge

    @property
    def prefix(self) -> tuple[str, ...]:
        return inside(self.namespace)

    def run(self, *command: str) -> str:
        return run(*self.prefix, *command)

    def processes(self) -> list[int]:
        return [int(pid) for pid in run("ip", "netns", "pids", self.namespace).split()]


class Network:
    """The network's nodes. `create` makes it, and removes everything at its end, processes too."""

    def __init__(self, names: Sequence[str]) -> None:
        label = f"{PREFIX}{os.getpid()}"
        self._outside_link = f"{label}v"
        self._bridge_namespace = f"{label}-bridge"
        self._bridge = inside(self._bridge_namespace)
        self.subnet = _free_subnet()
        self.has_delay = False
        self._nodes = {
            name: Node(name, f"{label}-{name}", f"{self.subnet}.{number}", f"v{number}")
            for number, name in enumerate(names, 10)
        }

    @classmethod
    @contextlib.contextmanager
    def create(cls, names: Sequence[str]) -> Iterator[Network]:
        network = cls(names)
        try:
            network._make()
            yield network
        finally:
            _remove(os.getpid())

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    @property
    def outside(self) -> str:
        """Our own address."""
        return f"{self.subnet}.1"

    def _make(self) -> None:
        run("ip", "netns", "add", self._bridge_namespace)
        run(*self._bridge, "ip", "link", "add", "bridge", "type", "bridge")
        run(*self._bridge, "ip", "link", "set", "bridge", "up")
        self._plug_in("outside", self._outside_link, str(os.getpid()))
        run("ip", "addr", "add", f"{self.outside}/24", "dev", self._outside_link)
        run("ip", "link", "set", self._outside_link, "up")
        for node in self._nodes.values():
            run("ip", "netns", "add", node.namespace)
            self._plug_in(node.link, "eth0", node.namespace)
            node.run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
            node.run("ip", "link", "set", "eth0", "up")
            node.run("ip", "link", "set", "lo", "up")
            run(*node.prefix, "nft", "-f", "-", text=RULES)
        probe = ("dev", next(iter(self._nodes.values())).link, "root")
        self.has_delay = succeeds(
            *self._bridge, "tc", "qdisc", "add", *probe, "netem", "delay", "1"
        )
        succeeds(*self._bridge, "tc", "qdisc", "del", *probe)

    def _plug_in(self, link: str, other_end: str, namespace: str) -> None:
        """Add a link between the bridge and a namespace, given by name or pid."""
        there = ("type", "veth", "peer", "name", other_end, "netns", namespace)
        run(*self._bridge, "ip", "link", "add", link, *there)
        run(*self._bridge, "ip", "link", "set", link, "master", "bridge", "up")

    def deafen(self, receiver: Node, sender: Node) -> None:
        """Drop all packets of `sender` at `receiver`; the other direction works."""
        self._add(receiver, "deaf_to", sender)

    def cut(self, one: Node, other: Node) -> None:
        self.deafen(one, other)
        self.deafen(other, one)

    def lose_packets(self, one: Node, other: Node) -> None:
        """Drop LOSS_PERCENT of the packets between them, in both directions."""
        self._add(one, "lossy", other)
        self._add(other, "lossy", one)

    def narrow(self, node: Node) -> None:
        """Delay all packets to this node.

        Where the kernel has netem the delay is fixed; else they queue in a narrow pipe.
        """
        late = ("netem", "delay", f"{DELAY_MS}ms", "10ms")
        narrow = ("tbf", "rate", "6mbit", "burst", "32kb", "latency", "300ms")
        discipline = late if self.has_delay else narrow
        run(*self._bridge, "tc", "qdisc", "replace", "dev", node.link, "root", *discipline)

    def heal(self) -> None:
        for node in self._nodes.values():
            for name in ("deaf_to", "lossy"):
                node.run("nft", "flush", "set", "inet", "chaos", name)
            succeeds(*self._bridge, "tc", "qdisc", "del", "dev", node.link, "root")

    def _add(self, receiver: Node, name: str, sender: Node) -> None:
        element = f"{{ {sender.address} }}"
        receiver.run("nft", "add", "element", "inet", "chaos", name, element)


def _free_subnet() -> str:
    taken = run("ip", "-4", "addr")
    first = os.getpid() % len(SUBNETS)
    return next(net for net in SUBNETS[first:] + SUBNETS[:first] if f"{net}." not in taken)


def remove_leftovers() -> list[int]:
    """Remove the processes, namespaces and links of runs that are gone; return their pids."""
    pids = {int(match[1]) for match in NAMESPACE.finditer(run("ip", "netns", "list"))}
    pids |= {int(match[2]) for match in LINK.finditer(run("ip", "-o", "link"))}
    gone = sorted(pid for pid in pids if not Path(f"/proc/{pid}").exists())
    for pid in gone:
        _remove(pid)
    return gone


def _remove(pid: int) -> None:
    """Remove all that the run with this pid made."""
    for match in NAMESPACE.finditer(run("ip", "netns", "list")):
        if int(match[1]) == pid:
            end_processes(match[0])
            run("ip", "netns", "del", match[0])
    for match in LINK.finditer(run("ip", "-o", "link")):
        if int(match[2]) == pid:
            succeeds("ip", "link", "del", match[1])


def end_processes(namespace: str) -> None:
    """Kill all processes there with SIGKILL, and wait until they are gone."""

    def none_left() -> bool:
        pids = [int(pid) for pid in run("ip", "netns", "pids", namespace).split()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(none_left, PROGRAM_S)
