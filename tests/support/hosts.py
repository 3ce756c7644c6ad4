"""Several hosts on one machine: a network namespace, a root folder and processes of its own each.

A bridge connects the hosts; its address is this machine's. `make cluster-test` starts the tests in a network
and a mount namespace of their own: names and addresses collide with nothing, and nothing is left afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
BRIDGE = "handshake"
GATEWAY = "198.18.0.1"
"""This machine's address on the bridge, from the range that is reserved for tests of networks."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
"""Folders of the operating system, which all hosts have read-only."""


@dataclass
class Host:
    """A host with its own address, files and processes; the operating system is this machine's, read-only."""

    name: str
    address: str
    folder: Path
    """The folder of this machine that is the root of the host, and has all that the host writes."""
    image: Mapping[str, str] = field(default_factory=dict)
    """Folders of this machine that the host has read-only, with their paths there."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The addresses of hosts that this one knows by name."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def link(self) -> str:
        """The name of the plug in the bridge."""
        return f"to-{self.name}"

    def connect(self) -> None:
        """Make the network of the host and plug it into the bridge."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self.link, "master", BRIDGE, "up")
        for device in ("lo", "eth0"):
            _ip("-n", self.name, "link", "set", device, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")

    def boot(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the first process of the host; when it ends, all processes of the host do."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = {"localhost": "127.0.0.1", self.name: self.address, **self.names}
        lines = [f"{address} {name}\n" for name, address in known.items()]
        (self.folder / "hosts").write_text("".join(lines))
        system = {place: place for place in SYSTEM if os.path.lexists(place)}
        places = [f"{source}:{target}" for source, target in (system | dict(self.image)).items()]
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        root = ["sh", str(HERE / "host_root.sh"), str(self.folder), self.name, *places, "--"]
        with open(log, "ab") as sink:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "unshare", *spaces, *root, *command],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=dict(environment),
            )  # fmt: skip

    def cut_off(self) -> None:
        """Unplug the host: its processes go on, and nothing reaches them."""
        _ip("link", "set", self.link, "down")

    def plug_in(self) -> None:
        """Plug a host in again after `cut_off`."""
        _ip("link", "set", self.link, "up")

    def kill(self) -> None:
        """Kill all processes of the host at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def bridge() -> Iterator[None]:
    """Make a switch that connects the hosts and this machine."""
    Path("/run/netns").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)  # names of networks end here
    _ip("link", "set", "lo", "up")
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    try:
        yield
    finally:
        _ip("link", "del", BRIDGE)


def python_home() -> dict[str, str]:
    """Return the folder of the Python that made this environment, unless it belongs to the system."""
    home = os.path.realpath(sys.base_prefix)
    return {} if home.startswith("/usr") else {home: home, sys.base_prefix: sys.base_prefix}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
