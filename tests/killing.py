"""Kill writers: a reader must find the previous or the new contents.

A program defines `write(path, number)`. It runs in a separate process that ends itself by SIGKILL
at a chosen step (opening, renaming, removing a file, creating a folder), or is killed from outside
after a random time, while data is written to an open file.
"""

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time

import helpers

# Makes a process for each write that it is asked for, from one that has imported all there is to import.
NURSERY = """
import json, operator, os, signal, sys
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import meshflow as tf
import numpy as np

def say(*words):
    # At once: a process that is killed while it prints leaves no part of a line.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

STEPS = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree")
state = dict(steps=0, last=None, counts=True)

def begin():
    state.update(steps=0, counts=True)

def step(event, args):
    if event in STEPS and state["last"] is not None and state["counts"]:
        state["steps"] += 1
        if state["steps"] == state["last"]:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(step)
known, writers = dict(globals()), []
for line in sys.stdin:
    asked = json.loads(line)
    if "program" in asked:
        for name in asked["names"]:
            operator.attrgetter(name)(tf)
        writers.append(dict(known))
        exec(asked["program"], writers[-1])
        say("writer", len(writers) - 1)
        continue
    write = writers[asked["writer"]]["write"]
    child = os.fork()
    if child == 0:
        sys.dont_write_bytecode = True  # the steps are those of the program
        state.update(last=asked["last"], counts="begin" not in write.__code__.co_names)
        say("begun", os.getpid())
        write(asked["path"], asked["number"])
        say("ended", state["steps"])
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    say("status", os.waitstatus_to_exitcode(status))
"""


@functools.cache
def _process():
    """Return the process from which others are forked, for all programs; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Nursery:
    """Processes of a program, one after the other."""

    def __init__(self, program):
        self._process = _process()
        self._writing = True
        # Parts of the package are imported when they are first asked for.
        names = sorted(set(re.findall(r"\btf\.([\w.]*\w)", program)))
        self._ask(program=textwrap.dedent(program), names=names)
        self._writer = self._next("writer")
        self._writing = False

    def _ask(self, **words):
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def _next(self, word):
        line = self._process.stdout.readline().split()
        assert line and line[0] == word, f"expected {word!r}, got {line}"
        return int(line[1])

    def _begin(self, path, number, last):
        self._writing = True
        self._ask(writer=self._writer, path=path, number=number, last=last)
        return self._next("begun")

    def _status(self):
        status = self._next("status")
        self._writing = False
        return status

    def whole(self, path, number):
        """Write without being killed; return the number of steps."""
        self._begin(path, number, 0)
        steps = self._next("ended")
        assert self._status() == 0
        return steps

    def killed_at(self, path, number, step):
        """Write, with a kill at a step; return whether that step was reached."""
        self._begin(path, number, step)
        return self._killed()

    def killed_after(self, path, number, seconds):
        """Writes, and is killed after a time, if it has not ended by then."""
        child = self._begin(path, number, 0)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(child, signal.SIGKILL)
        return self._killed()

    def _killed(self):
        line = self._process.stdout.readline().split()
        if line and line[0] == "ended":
            # It may be killed after it has ended.
            assert self._status() in (0, -signal.SIGKILL)
            return False
        assert line == ["status", str(-signal.SIGKILL)], line
        self._writing = False
        return True

    def close(self):
        """Leave the process to other programs, if it waits for them."""
        if self._writing:
            _process.cache_clear()
            self._process.kill()
            self._process.communicate()


def check_kills(program, tmp_path, read, default=10, soak=200, name="target"):
    """Kill a writer repeatedly, and check its files.

    Args:
        program: source that defines `write(path, number)`, which replaces the contents of `path`;
            steps count from the start, or from its call of `begin()`.
        tmp_path: an empty folder.
        read: called with the path; returns the number that was written, or raises for damage.
        default: number of kills.
        soak: number of kills in `make test-all`.
        name: name of the file or folder.
    """
    nursery = Nursery(program)
    generator = random.Random(0)
    try:
        path = str(tmp_path / name)
        nursery.whole(path, 0)
        begun = time.monotonic()
        steps = nursery.whole(path, 1)
        seconds = time.monotonic() - begun
        assert read(path) == 1
        after, number, found, killed = 1, 1, {False: 0, True: 0}, 0
        times = helpers.rounds(default, soak)
        for turn in range(times):
            before, number = after, number + 1
            if turn % 4 < 3:
                # The leftovers of the previous write determine the number of steps, such as old
                # files to remove.
                ended = not nursery.killed_at(path, number, 1 + turn * steps // times)
                killed += not ended
            else:
                ended = not nursery.killed_after(path, number, generator.uniform(0, seconds))
            after = read(path)
            allowed = [number] if ended else [before, number]
            assert after in allowed, f"turn {turn}: {after}, not one of {allowed}"
            found[after == number] += 1
        assert killed >= times // 2, f"only {killed} of {times} were killed at a step"
        nursery.whole(path, number + 1)
        assert read(path) == number + 1
        found_names = [n for _, folders, files in os.walk(tmp_path) for n in (*folders, *files)]
        left = [n for n in found_names if n.endswith((".part", ".old", ".new"))]
        assert not left, f"left over: {left}"
        return found
    finally:
        nursery.close()
