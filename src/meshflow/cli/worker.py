"""Entry point of a worker of `meshflow launch`, which runs the user's script.

The launcher starts this file by its path. The file imports only the standard library, so that the
script
can set environment variables before Meshflow and JAX are imported.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

# The launcher sets this variable to its process id.
LAUNCHER = "MESHFLOW_LAUNCHER"
# The launcher sets this variable for workers on other hosts. It names the variable that such a
# worker requests with a line of output and reads from its input.
ASKS = "MESHFLOW_ASKS"
ASKING = "meshflow: this worker requests the secret of its job"


def _ask(variable: str) -> None:
    """Read a variable from the input, because all users can read command lines."""
    terminal = sys.stdin.isatty()
    if terminal:
        import termios  # noqa: PLC0415 - Windows has no termios

        # The terminal would echo the secret into the output of this worker.
        mode = termios.tcgetattr(0)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)
    print(ASKING, flush=True)
    os.environ[variable] = sys.stdin.readline().strip()
    if terminal:
        mode[3] |= termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)


def _end_with(launcher: int) -> None:
    """Make the kernel kill this process when its launcher dies, even by SIGKILL."""
    if not sys.platform.startswith("linux"):
        return
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)  # The launcher died before the call of prctl.


def _leave(code: str | int | None) -> None:
    """Exit without cleanup, which could wait for workers that wait for this one."""
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Run the script that the first argument names, with the remaining arguments."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        _end_with(int(launcher))
    requested = os.environ.pop(ASKS, None)
    if requested is not None:
        _ask(requested)
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
