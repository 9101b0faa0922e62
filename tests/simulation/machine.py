"""The machine of a simulation: processes, environment variables, random bytes, and files.

`install` puts it, the network, the scheduler and the clock in place of the modules `threading`, `time`, `socket`, `secrets`,
`subprocess`, `os`, `atexit` and `gc` in all modules of the distributed code, which refer to these as `module.name`. The
code itself is that of production.
"""

import atexit
import collections.abc
import concurrent.futures
import contextlib
import gc
import json
import logging
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from meshflow.core.runtime import context
from meshflow.distribute.cluster import channel
from meshflow.distribute.parameter_server.cluster import roles
from meshflow.distribute.parameter_server.processes import entry_point
from simulation import network
from simulation.scheduler import (
    THREADING,
    TIME,
    Facade,
    Process,
    ThreadPoolExecutor,
    VariableLock,
    World,
    world,
)

# Modules of which all names are replaced.
SIMULATED = ("meshflow.distribute.parameter_server", "meshflow.distribute.cluster", "meshflow.cli.launch")
# Simulated seconds that a process takes to start, at most.
START_SECONDS = 2.0


def start_process(name, main):
    """Start a process of the simulation, which takes some time, or fails."""
    here = world()
    process = Process(here, f"{name}.{next(here.pids)}")
    here.services["started"].append(process)
    here.note(here.current.process.name, f"starts {process.name}")
    process.start_thread(lambda: _run_main(process, main), "main")
    return process


class Popen:
    """A process of the simulation; its environment says what it does."""

    stdin = stdout = None

    def __init__(self, command, env=None, **_):
        world().check_alive()
        self.process = start_process(*_find_main(env))
        self.pid = self.process.pid

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
        if not self.process.is_dead:
            here.wait(self.process.waiting_for_end, timeout)
        if not self.process.is_dead:
            raise subprocess.TimeoutExpired("process", timeout)
        return self.process.exit_code


def _find_main(environment):
    role = roles.Role(**json.loads(environment[roles.ROLE_VARIABLE]))
    return f"{role.kind}{role.number}", lambda: entry_point.serve(role, environment[channel.SECRET_VARIABLE])


def _run_main(process, main):
    here, code = world(), 0
    here.sleep(here.rng.random() * START_SECONDS)
    if here.rng.random() < here.services["start_failures"]:
        process.kill(1)
    try:
        main()
    except Exception as error:
        here.note(process.name, f"ends with {error!r}")
        code = 1
    process.kill(code)


def _exit(code):
    world().current.process.kill(code)


OS = Facade(
    os,
    _exit=_exit,
    getpid=lambda: world().current.process.pid,
    environ={channel.SECRET_VARIABLE: "secret of the simulation"},
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
GC = Facade(gc, collect=lambda *_: 0, freeze=lambda: None)


class Folder(pathlib.PurePosixPath):
    """A path on the simulated disk, which has no folders, as `pathlib.Path`."""

    def mkdir(self, *_, **__):
        pass

    def rmdir(self):
        pass


class PerProcess(collections.abc.MutableMapping):
    """A global dictionary of a module, of which each process has its own."""

    @property
    def content(self):
        return world().current.process.globals

    def __getitem__(self, key):
        return self.content[key]

    def __setitem__(self, key, value):
        self.content[key] = value

    def __delitem__(self, key):
        del self.content[key]

    def __iter__(self):
        return iter(self.content)

    def __len__(self):
        return len(self.content)


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
