"""Attempt attacks of a malicious file that controls the parsing process; called in isolated
processes."""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time


def connect(arguments):
    socket.create_connection(("127.0.0.1", arguments["port"]), 5)


def connect_in_thread(arguments):
    errors = []

    def run():
        try:
            connect(arguments)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    raise errors[0]


def write_file(arguments):
    with open(os.path.join(arguments["folder"], "new"), "w") as file:
        file.write("x")


def append_to_file(arguments):
    with open(os.path.join(arguments["folder"], "old"), "a") as file:
        file.write("x")


def run_program(arguments):
    subprocess.run(["touch", os.path.join(arguments["folder"], "new")], check=True)


def fork(arguments):
    if os.fork() == 0:
        os._exit(0)


def raise_limit(arguments):
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def make_io_ring(arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")


ATTACKS = {
    "connect": connect,
    "connect_in_thread": connect_in_thread,
    "write": write_file,
    "append": append_to_file,
    "remove": lambda a: os.remove(os.path.join(a["folder"], "old")),
    "rename": lambda a: os.rename(
        os.path.join(a["folder"], "old"), os.path.join(a["folder"], "new")
    ),
    "link": lambda a: os.symlink("/etc/passwd", os.path.join(a["folder"], "new")),
    "mode": lambda a: os.chmod(os.path.join(a["folder"], "old"), 0o777),
    "folder": lambda a: os.mkdir(os.path.join(a["folder"], "new")),
    "run": run_program,
    "fork": fork,
    "kill": lambda a: os.kill(os.getppid(), signal.SIGTERM),
    "limit": raise_limit,
    "ring": make_io_ring,
    "allocate": lambda a: bytearray(1 << 34),
}


def try_attacks(arguments, file):
    """Attempt attacks, and write the class of the error of each; None for a success."""
    results = {}
    for name in arguments["attacks"]:
        try:
            ATTACKS[name](arguments)
            results[name] = None
        except (OSError, MemoryError, ValueError, subprocess.SubprocessError) as error:
            results[name] = type(error).__name__
    file.write(json.dumps(results).encode())


def loop(arguments, file):
    """Never return."""
    while True:
        time.sleep(0.01)


def crash(arguments, file):
    """End by a signal."""
    os.abort()


def write_without_end(arguments, file):
    """Return more than the limit."""
    while True:
        file.write(bytes(1 << 24))


def fail(arguments, file):
    """Raise an error of a class that the parent does not know."""
    raise KeyError("secret")


def list_secrets(arguments, file):
    """Return the names of environment variables and open files."""
    names = [
        os.readlink(f"/proc/self/fd/{n}")
        for n in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{n}")
    ]
    file.write(json.dumps([sorted(os.environ), names]).encode())
