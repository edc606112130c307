"""An audit of a command: what it and every process that it starts try to reach outside of this machine.

Linux hands their system calls for connections and datagrams to this process before they run (seccomp_unotify(2)). So
native code, children and grandchildren are seen, no privilege is needed, and no attempt leaves the machine: it fails as
it does without a network.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import os
import platform
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.sources import ROOT

# (AUDIT_ARCH of linux/audit.h, number of seccomp, numbers of connect, sendto, sendmsg and sendmmsg) of a machine.
_MACHINES = {
    "x86_64": (0xC000003E, 317, {42: "connect", 44: "sendto", 46: "sendmsg", 307: "sendmmsg"}),
    "aarch64": (0xC00000B7, 277, {203: "connect", 206: "sendto", 211: "sendmsg", 269: "sendmmsg"}),
}
_PIDFD_GETFD = 438  # on every machine

# linux/seccomp.h and linux/filter.h
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NO_NEW_PRIVILEGES = 38  # of prctl(2)

_DNS = 53
# Variables by which libraries recognize CI and send nothing, and folders that stand for the user's home.
_OF_CI = re.compile("CI|TF_BUILD|JENKINS_URL|GITHUB_|GITLAB_|.*TELEMETRY|.*USAGE_STATS|DO_NOT_TRACK|XDG_|HF_", re.I)
_RESOLVER = b"/run/systemd/resolve/"  # sockets of a local service that looks up names for the C library


@dataclass(frozen=True)
class Audited:
    """What a command did.

    Args:
        code: its exit code.
        output: what it printed to stdout and stderr.
        attempts: one line for each attempt to reach another machine or to look up a name, without repetitions.
        files: what it left in the home of its user, which was empty.
    """

    code: int
    output: str
    attempts: tuple[str, ...]
    files: tuple[str, ...]


def unsupported() -> str:
    """Return why this machine cannot audit; empty if it can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"no table of system calls for {sys.platform} on {platform.machine()}"
    try:
        audit([sys.executable, "-I", "-S", "-c", "pass"])
    except OSError as error:
        return f"system calls cannot be watched: {error}"
    return ""


def audit(command: Sequence[str], cwd: Path | None = None, **variables: str) -> Audited:
    """Run a command to its end, and to the end of all processes that it starts, as a user would.

    Args:
        command: the command. Its home is empty, and none of the variables is set by which libraries recognize CI.
        cwd: its working directory.
        variables: environment variables.
    """
    kept = {key: value for key, value in os.environ.items() if not _OF_CI.match(key)}
    source, sink = os.pipe()
    start_source, start_sink = os.pipe()
    launcher = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.support.network_audit import launch; "
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{launcher} launch({sink}, {start_source}, {list(command)!r})"],
            env={**kept, "HOME": home, "DELEGATE_CACHE": "off", **variables}, cwd=cwd, pass_fds=(sink, start_source),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        os.close(sink)
        os.close(start_source)
        with ThreadPoolExecutor(1) as pool:
            try:
                with open(source) as numbers:
                    watch = pool.submit(_watch, _take(process.pid, numbers.readline()))
            finally:
                os.close(start_sink)  # the command starts, or the launcher ends
                output, _ = process.communicate()
            attempts = tuple(watch.result())
        files = tuple(sorted(str(path.relative_to(home)) for path in Path(home).rglob("*") if path.is_file()))
    return Audited(process.returncode, output, attempts, files)


def launch(sink: int, go: int, command: Sequence[str]) -> None:
    """Filter this process and what it starts, tell the audit the number of the listener, and become the command."""
    architecture, seccomp, calls = _MACHINES[platform.machine()]
    rules = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 0)]
    for number in calls:
        rules += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NOTIFY)]
    rules.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    listener = libc.syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    os.write(sink, f"{listener}\n".encode())
    os.close(sink)
    os.read(go, 1)
    os.close(go)
    os.close(listener)
    os.execvp(command[0], command)


def _take(pid: int, number: str) -> int:
    """Return the listener of the launcher as a descriptor of this process; raise OSError if that is not allowed."""
    if not number:
        raise OSError("seccomp is not allowed")
    process = os.pidfd_open(pid)
    try:
        return _descriptor_of(process, int(number))
    finally:
        os.close(process)


def _descriptor_of(process: int, number: int) -> int:
    """Return a copy of a descriptor of another process."""
    copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return int(copy)


def _watch(listener: int) -> list[str]:
    """Answer each call until the last filtered process has ended, and return the attempts to reach others."""
    calls = _MACHINES[platform.machine()][2]
    attempts: dict[str, None] = {}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    try:
        while all(event & select.POLLIN for _, event in poll.poll()):
            call = bytearray(80)  # struct seccomp_notif
            with contextlib.suppress(OSError):  # of a process that has just ended
                fcntl.ioctl(listener, _RECEIVE, call)
                ident, thread, _, number, _, _, *arguments = struct.unpack("QIIiIQ6Q", call)
                attempt = _outside(thread, calls[number], arguments)
                attempts |= {attempt: None} if attempt else {}
                answer = (0, -errno.ENETUNREACH, 0) if attempt else (0, 0, _CONTINUE)
                fcntl.ioctl(listener, _SEND, struct.pack("QqiI", ident, *answer))
    finally:
        os.close(listener)
    return [*attempts]


def _outside(thread: int, call: str, arguments: Sequence[int]) -> str:
    """Describe a call, if it is for another machine or the lookup of a name; else return an empty string."""
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:

        def read(address: int, size: int) -> bytes:
            memory.seek(address)
            return memory.read(size)

        if call == "connect":
            named = [(arguments[1], arguments[2])]
        elif call == "sendto":
            named = [(arguments[4], arguments[5])]
        else:
            count = 1 if call == "sendmsg" else arguments[2]
            named = [struct.unpack("PI", read(arguments[1] + 64 * i, 12)) for i in range(count)]
        places = [_place(read(address, size)) for address, size in named if address and size]
    place = next(filter(None, places), "")
    return f"{_kind(thread, arguments[0])} to {place} by {_name(thread)}" if place else ""


def _place(address: bytes) -> str:
    """Return a socket address as text; empty if it is on this machine and no service that looks up names."""
    (family,) = struct.unpack_from("H", address)
    if family == socket.AF_UNIX:
        return "the resolver" if _RESOLVER in address else ""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    is_old = family == socket.AF_INET
    (port,) = struct.unpack_from("!H", address, 2)
    host = ipaddress.ip_address(address[4:8] if is_old else address[8:24])
    host = getattr(host, "ipv4_mapped", None) or host
    is_here = host.is_loopback or host.is_unspecified or _is_own(str(host))
    return "" if is_here and port != _DNS else f"{host} port {port}"


def _kind(thread: int, descriptor: int) -> str:
    """Return what a thread does with a socket: a connection, or datagrams, such as the lookup of a name."""
    status = Path(f"/proc/{thread}/status").read_text()
    process = os.pidfd_open(int(re.search(r"^Tgid:\s*(\d+)", status, re.MULTILINE)[1]))  # type: ignore[index]
    try:
        with socket.socket(fileno=_descriptor_of(process, descriptor)) as copy:
            return "connection" if copy.type == socket.SOCK_STREAM else "datagrams"
    finally:
        os.close(process)


def _is_own(host: str) -> bool:
    """Return if an address is one of this machine's."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _name(thread: int) -> str:
    """Return the name of a thread, and the end of the command line of its process."""
    name = Path(f"/proc/{thread}/comm").read_text().strip()
    line = Path(f"/proc/{thread}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return f"thread {name!r} of {line[-150:].strip()!r}"
