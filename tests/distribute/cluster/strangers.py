"""Lists messages that a stranger may send to an open port of a job."""

import contextlib
import hashlib
import hmac
import json
import socket
import time
from pathlib import Path

from meshflow.distribute.cluster.channel import SignedChannel, UntrustedPeerError

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def hello(worker=1, workers=2, **more):
    return {"worker": worker, "workers": workers, "addresses": None, **more}


def old_line(connection, message):
    """A greeting without any proof, as a line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def send_signed_greeting(connection, message, secret="wrong"):
    """A greeting signed by another secret, and all that is answered."""
    SignedChannel(connection, secret, False, 5).send(message)


def replay_greeting(connection, message):
    """Return a greeting with an invalid signature."""
    connection.sendall(json.dumps({"meshflow": "0" * 64}).encode() + b"\n")
    text = json.dumps(message).encode()
    connection.sendall(hmac.digest(b"", text, hashlib.sha256).hex().encode() + text + b"\n")


ATTACKS = {
    "another's name": lambda c: old_line(c, hello(0)),
    "a wrong number": lambda c: old_line(c, hello("x")),
    "a number too large": lambda c: send_signed_greeting(c, hello(7)),
    "a wrong size": lambda c: send_signed_greeting(c, hello(1, 9)),
    "a wrong key": lambda c: send_signed_greeting(c, hello(1)),
    "no key": lambda c: send_signed_greeting(c, hello(0), ""),
    "an old greeting": lambda c: replay_greeting(c, hello(1)),
    "another key": lambda c: old_line(c, {"wurker": 1}),
    "garbage": lambda c: c.sendall(bytes(range(256)) * 40 + b"\n"),
    "deep JSON": lambda c: c.sendall(b"[" * 200_000 + b"\n"),
    "10 MB": lambda c: c.sendall(b"x" * 10_000_000),
    "nothing": lambda c: None,
    "half a line": lambda c: c.sendall(b'{"meshflow": '),
}
# Messages for any service.
ANYWHERE = ("another's name", "garbage", "10 MB", "nothing", "half a line")


def attack(host, port, kind):
    """Connect and send; return the open connection."""
    connection = socket.create_connection((host, port), timeout=5)
    connection.settimeout(1)  # blocks if the receiver does not read more than the buffers hold
    with contextlib.suppress(OSError, UntrustedPeerError):
        ATTACKS[kind](connection)
    return connection


def answer(connection, within=15):
    """Return all received bytes until the peer closes, or None if it does not."""
    connection.settimeout(within)
    found = b""
    try:
        while data := connection.recv(1 << 16):
            found += data
    except TimeoutError:
        return None
    except OSError:
        pass
    return found


def listeners(pids):
    """Return (address in the kernel's notation, port) of the listening sockets of processes in this
    network."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(link.readlink())
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found


def descendants(pid):
    """A process and all that it has started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found, new = {pid}, {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def wait_for(found, within=60.0):
    """The first true value of a function."""
    deadline = time.monotonic() + within
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def commands():
    """The command lines of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_bytes().decode(errors="replace"))
    return found


def attack_job(job, folder, host, listening):
    """Attack a launched job of two workers that run `waiting.py` in a folder; it must end normally.

    Args:
        job: the launcher.
        folder: the folder of the script.
        host: the launcher's listening address.
        listening: returns the current listening addresses of the job.

    Returns:
        The listening addresses of the job, and its output.
    """
    opened = []

    def attack_all(ports, kinds):
        for port in ports:
            with contextlib.suppress(ConnectionRefusedError):
                opened.extend(attack(host, port, kind) for kind in kinds)

    try:
        own = wait_for(lambda: listeners([job.pid]))
        attack_all({port for _, port in own}, ATTACKS)
        found = set(own)

        def joined():
            assert job.poll() is None, job.stdout.read()
            found.update(listening())
            return all((folder / f"joined{i}").exists() for i in range(2))

        wait_for(joined, 100)
        # The workers may have started to listen after the last look.
        found.update(listening())
        attack_all({port for _, port in found - own}, ANYWHERE)
        secret = (folder / "joined0").read_text()
        assert len(secret) == 64
        assert not [c for c in commands() if secret in c]
        (folder / "go").touch()
        text, _ = job.communicate(timeout=100)
    finally:
        job.kill()
        job.wait()
        for one in opened:
            one.close()
    assert job.returncode == 0, text
    assert all(f"[worker {i}] the sum is 2.0" in text for i in range(2)), text
    assert secret not in text
    return found, text
