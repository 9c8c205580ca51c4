"""What to say about an address that cannot be used, or that is open to the network."""

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path

from ...settings import Settings

_LISTENING = "0A"
_TRIED = 100


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """Say in one line why the server cannot listen, who has the port, and which other one is free."""
    if error.errno == errno.EADDRINUSE:
        who = holder(port)
        by = "" if who is None else f" by {who}"
        other = free_port(host, port)
        instead = "choose another one with --port" if other is None else f"use --port {other}"
        return f"port {port} of {host} is already in use{by}: stop it, or {instead}"
    if error.errno == errno.EACCES:
        return f"this user may not use port {port}: ports below 1024 need more rights; use --port 8080"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{host} is not an address of this machine: use --host 127.0.0.1, or 0.0.0.0 for all addresses"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def free_port(host: str, after: int) -> int | None:
    """The next free port; None if there is none nearby."""
    for port in range(after + 1, min(after + _TRIED, 65_536)):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host if "." in host else "127.0.0.1", port))
            return port
    return None


def holder(port: int) -> str | None:
    """The process that listens on a port, as this user may see it; None if it cannot be found, or not on Linux."""
    with contextlib.suppress(OSError):
        inodes = {inode for table in ("tcp", "tcp6") for inode in _inodes(Path("/proc/net") / table, port)}
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and inodes & _sockets(process):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
                name = " ".join([Path(words[0]).name, *words[1:3]]) if words else "?"
                return f"process {process.name} ({name})"
    return None


def _inodes(table: Path, port: int) -> set[str]:
    rows = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
    return {row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port}


def _sockets(process: Path) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    return found


def open_without_tls(settings: Settings) -> str | None:
    """A warning if other machines can connect without encryption; None if not."""
    if settings.tls_cert is not None or settings.forwarded_allow_ips is not None or _is_loopback(settings.host):
        return None
    return (
        f"--host {settings.host} without TLS: everybody on the network between can read tokens and updates, and clients"
        " refuse it without --insecure. Set --tls-cert and --tls-key, or put a proxy with TLS in front"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
