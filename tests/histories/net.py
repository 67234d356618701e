"""Hosts as network namespaces on one bridge, each with an address, names for the others, a disk and a firewall.

Everything is made with a prefix, and removed by it: what a killed run has left, the next one clears away first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NUMBER: Final = int(os.environ.get("LAGLOSS_HOSTS", "0"))
"""Runs with different ones have hosts of their own on one machine, beside each other."""
PREFIX: Final = f"lgh{NUMBER}-"
BRIDGE: Final = f"{PREFIX}br"
SUBNET: Final = f"10.77.{NUMBER}"
OBSERVER: Final = f"{SUBNET}.1"
"""The address of the run itself, on the bridge: no fault reaches it."""
RECEIVER: Final = f"{SUBNET}.2"
"""Where the receiver of pages listens, on the bridge."""
FIRST_HOST: Final = 11
COMMAND_S: Final = 180
"""A busy machine takes long to delete a namespace; what is left then is for the next run to remove."""
_PROGRAMS: Final = {"ip": "iproute2", "nft": "nftables", "setpriv": "util-linux", "mount": "mount", "cc": "gcc"}
_ETC: Final = Path("/etc/netns")
_LOCK: Final = Path(f"/run/lagloss-histories-{NUMBER}.lock")
_FIREWALL: Final = """
table inet faults {
  set blocked { type ipv4_addr; }
  chain input { type filter hook input priority 0; ip saddr @blocked drop; }
  chain lossy { type filter hook input priority 1; }
}
"""
"""A packet from a blocked address is dropped where it arrives, so that one direction can be cut without the other."""


class NetworkFailed(Exception):
    """A command that makes hosts did not succeed."""


@dataclass(frozen=True)
class Host:
    """A network namespace. `disk` is a small file system of its own, for all data of the host."""

    name: str
    address: str
    disk: Path

    @property
    def namespace(self) -> str:
        return f"{PREFIX}{self.name}"

    def enter(self, argv: Sequence[object]) -> list[object]:
        """Return the command that runs another one on this host."""
        return ["ip", "netns", "exec", self.namespace, *argv]

    def block(self, address: str) -> None:
        """Drop every packet that comes from an address."""
        self._set("add", address)

    def unblock(self, address: str) -> None:
        with suppress(NetworkFailed):  # another fault was healed first
            self._set("delete", address)

    @property
    def clock_path(self) -> Path:
        """Return the file with the milliseconds by which the host's wall clock is wrong."""
        return self.disk.with_name(f"{self.name}.clock")

    def set_clock(self, wrong_by_ms: int) -> None:
        """Set the wall clock of the host's programs, as they see it in the middle of their work."""
        with self.clock_path.open("r+b") as file:
            file.write(wrong_by_ms.to_bytes(8, "little", signed=True))

    def set_link(self, *, up: bool) -> None:
        """Plug in the host's only cable, or pull it."""
        _command("ip", "link", "set", self.namespace, "up" if up else "down")

    def lose(self, percent: int) -> None:
        """Drop so many of the packets that arrive, at random."""
        _command(*self._nft, "flush", "chain", "inet", "faults", "lossy")
        if percent:
            rule = ("iifname", "eth0", "numgen", "random", "mod", "100", "<", str(percent), "drop")
            _command(*self._nft, "add", "rule", "inet", "faults", "lossy", *rule)

    def slow_down(self, kbit: int) -> None:
        """Let so many kbit/s through the host's only cable each way; 0 lets all through again."""
        inside = ("ip", "netns", "exec", self.namespace, "tc")
        for tc, device in ((inside, "eth0"), (("tc",), self.namespace)):
            limit = ("tbf", "rate", f"{kbit}kbit", "burst", "8kb", "latency", "2s") if kbit else ()
            _command(*tc, "qdisc", "replace" if kbit else "delete", "dev", device, "root", *limit)

    def forget_names(self) -> None:
        """Let no name be resolved. In place: the file is mounted where the host's processes read it."""
        (_ETC / self.namespace / "hosts").write_text("127.0.0.1 localhost\n")

    def know_names(self, hosts: Iterable[Host]) -> None:
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
        (_ETC / self.namespace / "hosts").write_text("\n".join([*lines, ""]))

    def fill_disk(self) -> None:
        """Leave no byte on the host's disk."""
        free = shutil.disk_usage(self.disk).free
        with suppress(OSError), (self.disk / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free)
        with suppress(OSError), (self.disk / "ballast").open("ab") as file:
            while file.write(b"\0" * 4096):
                file.flush()

    def free_disk(self) -> None:
        (self.disk / "ballast").unlink(missing_ok=True)

    def _set(self, verb: str, address: str) -> None:
        _command(*self._nft, verb, "element", "inet", "faults", "blocked", f"{{ {address} }}")

    @property
    def _nft(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace, "nft")


def missing() -> str:
    """Return why hosts cannot be made on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root only"
    absent = sorted(package for program, package in _PROGRAMS.items() if shutil.which(program) is None)
    if absent:
        return f"not on this machine: {', '.join(absent)}"
    name = f"{PREFIX}trial"
    try:
        _command("ip", "netns", "add", name)
        try:
            _command("ip", "netns", "exec", name, "nft", "list", "tables")
        finally:
            _command("ip", "netns", "delete", name)
    except NetworkFailed as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


@contextmanager
def network(names: Sequence[str], disk_mb: dict[str, int]) -> Iterator[dict[str, Host]]:
    """Make hosts of these names, which reach each other by them; remove them at the end, with all that runs there.

    Only one run of a number has hosts: another waits for it.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep()
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        root.chmod(0o755)
        try:
            yield _make(names, disk_mb, root)
        finally:
            sweep()
            shutil.rmtree(root, ignore_errors=True)


def _make(names: Sequence[str], disk_mb: dict[str, int], root: Path) -> dict[str, Host]:
    _command("ip", "link", "add", BRIDGE, "type", "bridge")
    for address in (OBSERVER, RECEIVER):
        _command("ip", "address", "add", f"{address}/24", "dev", BRIDGE)
    _command("ip", "link", "set", BRIDGE, "up")
    hosts = {name: Host(name, f"{SUBNET}.{number}", root / name) for number, name in enumerate(names, start=FIRST_HOST)}
    for host in hosts.values():
        space = host.namespace
        _command("ip", "netns", "add", space)
        _command("ip", "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
        _command("ip", "link", "set", space, "master", BRIDGE, "up")
        _command("ip", "-n", space, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _command("ip", "-n", space, "link", "set", device, "up")
        _command("ip", "netns", "exec", space, "nft", "-f", "-", stdin=_FIREWALL)
        (_ETC / space).mkdir(parents=True)
        host.know_names(hosts.values())
        # nobody answers there: a name that no file has fails at once, as it does without a name server
        (_ETC / space / "resolv.conf").write_text(f"nameserver {OBSERVER}\noptions timeout:1 attempts:1\n")
        host.disk.mkdir()
        host.clock_path.write_bytes(bytes(8))
        size = disk_mb.get(host.name, 64)
        _command("mount", "-t", "tmpfs", "-o", f"size={size}m,mode=0755", f"{PREFIX}{host.name}", str(host.disk))
    return hosts


def sweep() -> None:
    """Remove everything of the prefix: processes, namespaces, devices, mounts."""
    spaces = [line.split()[0] for line in _command("ip", "netns", "list").splitlines() if line.startswith(PREFIX)]
    for space in spaces:
        _end_processes(space)
        _command("ip", "netns", "delete", space)
    for path in _ETC.glob(f"{PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in Path("/sys/class/net").glob(f"{PREFIX}*"):
        with suppress(NetworkFailed):  # it went with its namespace
            _command("ip", "link", "delete", path.name)
    for line in Path("/proc/mounts").read_text().splitlines():
        device, place = line.split()[:2]
        if device.startswith(PREFIX):
            _command("umount", "--lazy", place)
            shutil.rmtree(Path(place).parent, ignore_errors=True)


def _end_processes(space: str) -> None:
    deadline = time.monotonic() + 10
    while (pids := _command("ip", "netns", "pids", space).split()) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)


def _command(*words: str, stdin: str | None = None) -> str:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode != 0:
        raise NetworkFailed(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
