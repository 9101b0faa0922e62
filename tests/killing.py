"""Writers that are killed: what is found afterwards is what was there before, or what was to come.

A program defines `write(path, number)`. It runs in a process of its own that ends itself by SIGKILL at a chosen
one of its steps (opening, renaming, removing a file, making a folder), or is killed from
outside after a random time, while data goes to a file that is open.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time

import helpers

# Makes a process for each line that it is given, from one that has imported all there is to import.
NURSERY = """
import operator, os, signal, sys
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import meshflow as tf
import numpy as np

for name in {names}:
    operator.attrgetter(name)(tf)
# The first to import something late would write more files than the others.
sys.dont_write_bytecode = True

def say(*words):
    # At once: a process that is killed while it prints leaves no part of a line.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

{program}

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
for line in sys.stdin:
    path, number, last = line.rstrip().split("\\t")
    child = os.fork()
    if child == 0:
        state.update(last=int(last), counts="begin" not in write.__code__.co_names)
        say("begun", os.getpid())
        write(path, int(number))
        say("ended", state["steps"])
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    say("status", os.waitstatus_to_exitcode(status))
"""


class Nursery:
    """Processes of a program, one after the other."""

    def __init__(self, program):
        # Parts of the package are imported when they are first asked for.
        names = sorted(set(re.findall(r"\btf\.([\w.]*\w)", program)))
        source = NURSERY.format(program=textwrap.dedent(program), names=names)
        self._process = subprocess.Popen(
            [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _next(self, word):
        line = self._process.stdout.readline().split()
        assert line and line[0] == word, f"expected {word!r}, got {line}"
        return int(line[1])

    def _begin(self, path, number, last):
        self._process.stdin.write(f"{path}\t{number}\t{last}\n")
        self._process.stdin.flush()
        return self._next("begun")

    def whole(self, path, number):
        """Writes without being killed; gives the number of steps."""
        self._begin(path, number, 0)
        steps = self._next("ended")
        assert self._next("status") == 0
        return steps

    def killed_at(self, path, number, step):
        """Writes, and is killed at a step; gives whether it came so far."""
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
            assert self._next("status") in (0, -signal.SIGKILL)
            return False
        assert line == ["status", str(-signal.SIGKILL)], line
        return True

    def close(self):
        """Ends the processes."""
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()


def check_kills(program, tmp_path, read, default=10, soak=200):
    """Kills a writer again and again, and looks at what it leaves.

    Args:
      program: source that defines `write(path, number)`, which replaces what is at `path`; steps count from
        the start, or from where it calls `begin()`.
      tmp_path: an empty folder.
      read: called with the path; gives the number that was written, or raises for damage.
      default: how often it is killed.
      soak: how often in `make test-all`.
    """
    nursery = Nursery(program)
    generator = random.Random(0)
    try:
        path = str(tmp_path / "target")
        nursery.whole(path, 0)
        begun = time.monotonic()
        steps = nursery.whole(path, 1)
        seconds = time.monotonic() - begun
        assert read(path) == 1
        number, found, killed = 1, {False: 0, True: 0}, 0
        times = helpers.rounds(default, soak)
        for turn in range(times):
            before, number = read(path), number + 1
            if turn % 4 < 3:
                # What the one before left decides how many steps there are, such as old files to remove.
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
