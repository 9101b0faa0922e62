"""The machine of a simulation: processes, environment variables, random bytes, and files.

`install` puts it, the network, the scheduler and the clock in place of the modules `threading`, `time`, `socket`, `secrets`,
`subprocess`, `os`, `atexit` and `gc` in all modules of the distributed code, which refer to these as `module.name`. The
code itself is that of production.
"""

import atexit
import collections
import concurrent.futures
import contextlib
import dataclasses
import gc
import logging
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from meshflow.core.runtime import context
from simulation import disk, network
from simulation.scheduler import (
    START,
    THREADING,
    TIME,
    Facade,
    Process,
    SimulationFailure,
    ThreadPoolExecutor,
    VariableLock,
    World,
    world,
)

# Modules of which all names are replaced.
SIMULATED = (
    "meshflow.distribute.parameter_server",
    "meshflow.distribute.cluster",
    "meshflow.cli.launch",
)
# Simulated seconds that a process takes to start, at most.
START_SECONDS = 2.0


@dataclasses.dataclass
class Report:
    """Record the events of a run."""

    seed: int
    steps: int
    seconds: float
    error: BaseException | None
    faults: dict[str, int]


def create_world(seed, keeps_trace, mutations):
    """Create a simulation with a network and a disk whose speeds depend on the seed."""
    # A job with a mistake often waits forever, which takes as long to simulate as other work.
    seconds = 600.0 if mutations else 3600.0
    here = World.current_world = World(seed, max_seconds=seconds, keeps_trace=keeps_trace)
    rng, net, files = here.rng, network.Network(here), disk.Disk(here)
    net.latency = rng.choice([0.0002, 0.002, 0.02, 0.1])
    net.slow = rng.choice([0.0, 0.0, 0.0, 0.03])
    net.split = rng.choice([0.0, 0.1, 0.5])
    net.stall = rng.choice([0.0, 0.0, 0.0, 0.003])
    files.slow = rng.choice([0.0, 0.0, 0.02, 0.1])
    here.services.update(network=net, disk=files, started=[], start_failures=0.0, unreachable=0.0)
    return here


def run(here, scenario, main, faults, replaced, allowed_errors):
    """Run a program with faults.

    Returns:
      The report, and the simulation.

    Raises:
      SimulationFailure: If the run violates an invariant; with the seed and the trace.
    """
    here.services["faults"] = faults
    error = None

    def main_with_faults():
        Process(here, "faults").start_thread(faults.run, "faults")
        main()

    with install(replaced):
        try:
            here.run(main_with_faults)
        except SimulationFailure as failure:
            threads = "".join(
                f"\nthread {t} of {p} ended with {e!r}" for p, t, e in here.thread_errors
            )
            command = f"PYTHONPATH=tests python -m simulation {scenario} {here.seed}"
            raise SimulationFailure(
                f"seed {here.seed}: {failure}{threads}\n{here.format_trace()}\nRun it again: {command}"
            ) from failure
        except allowed_errors as raised:
            if not faults.counts:
                raise
            error = raised
    return Report(here.seed, here.steps, here.now - START, error, faults.counts), here


def start_process(name, main, environment=None):
    """Start a process of the simulation, which takes some time, or fails."""
    here = world()
    process = Process(here, f"{name}.{next(here.pids)}")
    process.environment.update(environment or {})
    here.services["started"].append(process)
    here.note(here.current.process.name, f"starts {process.name}")
    process.start_thread(lambda: _run_main(process, main), "main")
    return process


def _run_main(process, main):
    here, code = world(), 0
    here.sleep(here.rng.random() * START_SECONDS)
    if here.rng.random() < here.services["start_failures"]:
        here.services["faults"].counts["start"] = 1
        process.kill(1)
    try:
        main()
    except Exception as error:
        here.note(process.name, f"ends with {error!r}")
        code = 1
    process.kill(code)


class Pipe:
    """The output of a process."""

    def __init__(self, process):
        self.process, self.lines, self.readers = process, [], process.waiting_for_end

    def write(self, line):
        self.lines.append(line)
        world().wake_all(self.readers)

    def readline(self):
        here = world()
        while not self.lines and not self.process.is_dead:
            here.wait(self.readers)
        return self.lines.pop(0) if self.lines else ""

    def __iter__(self):
        while line := self.readline():
            yield line

    def close(self):
        pass


class Popen:
    """A process of the simulation."""

    def __init__(self, command, env=None, **_):
        here = world()
        here.check_alive()
        self.process = start_process(*here.services["programs"](command, env), env)
        self.pid = self.process.pid
        self.stdin, self.stdout = None, Pipe(self.process)
        self.process.stdout = self.stdout

    @property
    def returncode(self):
        return self.process.exit_code

    def poll(self):
        world().check_alive()
        return self.process.exit_code

    def kill(self):
        here = world()
        here.check_alive()
        if here.rng.random() < here.services["unreachable"]:
            here.note(self.process.name, "is not reached by its kill")
        else:
            self.process.kill()

    def wait(self, timeout=None):
        here = world()
        here.check_alive()
        process = self.process
        if not here.wait_until(lambda: process.is_dead, process.waiting_for_end, timeout):
            raise subprocess.TimeoutExpired("process", timeout)
        return process.exit_code


def _kill_group(pid, number):
    here = world()
    here.check_alive()
    process = here.find_process(pid)
    if process is None:
        raise ProcessLookupError(pid)
    if number == signal.SIGKILL:
        process.kill()
    elif here.rng.random() < 0.7:
        # A suspended process handles the signal when it goes on, and some programs ignore it.
        here.after(
            here.rng.random(), lambda: None if process.is_suspended else process.kill(-number)
        )


def _wait_for_stop(_, pid, options):
    process = world().find_process(pid)
    if process is None:
        raise ChildProcessError(pid)
    return process if process.is_suspended else None


class _OperatingSystem(Facade):
    @property
    def environ(self):
        return world().current.process.environment


def _exit(code):
    world().current.process.kill(code)


OS = _OperatingSystem(
    os,
    _exit=_exit,
    getpid=lambda: world().current.process.pid,
    killpg=_kill_group,
    waitid=_wait_for_stop,
    cpu_count=lambda: 64,
)
SECRETS = Facade(
    secrets,
    token_hex=lambda count=32: f"{world().rng.getrandbits(8 * count):0{2 * count}x}",
)
SUBPROCESS = Facade(subprocess, Popen=Popen)
TEMPFILE = Facade(tempfile, gettempdir=lambda: "/temporary")
SHUTIL = Facade(shutil, rmtree=lambda path, **_: world().services["disk"].delete_folder(path))
ATEXIT = Facade(atexit, register=lambda function, *_, **__: function)
TRACEBACK = Facade(
    traceback, print_exc=lambda: world().note(world().current.process.name, repr(sys.exc_info()[1]))
)
GC = Facade(gc, collect=lambda *_: 0, freeze=lambda: None)


class Folder(pathlib.PurePosixPath):
    """Represent a path on the simulated disk, which has no folders, as `pathlib.Path`."""

    def mkdir(self, *_, **__):
        pass

    def rmdir(self):
        pass


class _PerProcess:
    """Represent a global container of a module, of which each process has its own."""

    def __init__(self):
        pass

    @property
    def data(self):
        return world().current.process.globals.setdefault(id(self), self.make())


class PerProcess(_PerProcess, collections.UserDict):
    make = dict


class PerProcessList(_PerProcess, collections.UserList):
    make = list


class _TraceHandler(logging.Handler):
    def emit(self, record):
        here = world()
        if here is not None:
            who = "" if here.current is None else here.current.process.name
            here.note(who, f"log: {record.getMessage()}")


_REPLACEMENTS = {
    id(threading): THREADING,
    id(time): TIME,
    id(socket): network.SOCKET,
    id(secrets): SECRETS,
    id(subprocess): SUBPROCESS,
    id(os): OS,
    id(atexit): ATEXIT,
    id(gc): GC,
    id(tempfile): TEMPFILE,
    id(traceback): TRACEBACK,
    id(shutil): SHUTIL,
    id(context.variable_lock): VariableLock(),
    id(concurrent.futures.ThreadPoolExecutor): ThreadPoolExecutor,
}


@contextlib.contextmanager
def install(extra=()):
    """Replace the modules in the distributed code.

    Args:
      extra: Tuples of a module, a name and a value, to replace too.
    """
    saved = []
    for name, module in list(sys.modules.items()):
        if name.startswith(SIMULATED):
            for attribute, value in list(vars(module).items()):
                replacement = _REPLACEMENTS.get(id(value))
                if replacement is not None:
                    saved.append((module, attribute, value))
                    setattr(module, attribute, replacement)
    for owner, attribute, value in extra:
        saved.append((owner, attribute, vars(owner).get(attribute, _ABSENT)))
        setattr(owner, attribute, value)
    logger = logging.getLogger("meshflow")
    handler, propagates = _TraceHandler(), logger.propagate
    handlers, logger.handlers, logger.propagate = logger.handlers, [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagates
        World.current_world = None
        for owner, attribute, value in reversed(saved):
            if value is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, value)


_ABSENT = object()
