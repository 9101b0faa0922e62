"""Runs a script as a worker of `meshflow launch`.

Started by its path and using the standard library only, so that what the script sets in the environment
comes before the first import of Meshflow and JAX.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Any

# Set by the launcher: its process id.
LAUNCHER = "MESHFLOW_LAUNCHER"
# Set for workers on other machines: the variable whose value they ask for, with a line of output, and read.
ASKS = "MESHFLOW_ASKS"
ASKING = "meshflow: this worker asks for the secret of its job"


def _ask(variable: str) -> None:
    """Reads a variable that may not stand on a command line."""
    terminal = sys.stdin.isatty()
    if terminal:
        import termios  # noqa: PLC0415 - Windows has none

        # Otherwise the terminal would write it among this worker's output.
        mode = termios.tcgetattr(0)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)
    print(ASKING, flush=True)
    os.environ[variable] = sys.stdin.readline().strip()
    if terminal:
        mode[3] |= termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)


def _end_with(launcher: int) -> None:
    """Makes the kernel kill this process when its launcher dies, even by kill -9."""
    if not sys.platform.startswith("linux"):
        return
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)  # it died before


def _leave(code: Any) -> None:
    """Ends at once: without waiting for workers that wait for this one."""
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Runs the script that the arguments name, with the arguments that follow it."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        _end_with(int(launcher))
    asked = os.environ.pop(ASKS, None)
    if asked is not None:
        _ask(asked)
    script = os.path.abspath(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            _leave(end.code)
        raise


if __name__ == "__main__":
    main()
