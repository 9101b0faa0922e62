"""Run programs that configure the start of Meshflow, each in a process forked from one that has
only imported it, with Keras, or only JAX."""

import functools
import json
import os
import signal
import subprocess
import sys

_PARENT = """
import json, linecache, os, sys, traceback
exec(sys.argv[1])

for line in sys.stdin:
    program, sys.argv[1:], environment = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 1)
        os.environ.update(environment)
        code = 0
        try:
            # For AutoGraph, and for the lines of tracebacks.
            linecache.cache["<program>"] = None, None, program.splitlines(True), "<program>"
            exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else bool(end.code)
            if isinstance(end.code, str):
                print(end.code)
        except BaseException:
            code = 1
            print(traceback.format_exc())
        sys.stdout.flush()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as output:
        said = output.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, said, sum(os.times()[2:4])]), flush=True)
"""

# Most programs use Keras. Its import takes longer than they do, and starts no devices.
KERAS = "import jax, meshflow; meshflow.keras"
# Seconds of processors of the programs, by what their process has executed before.
SPENT = {}


@functools.cache
def _parent(after):
    """End with this process."""
    command = [sys.executable, "-c", _PARENT, after]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, start_new_session=True)


def run(program, *arguments, after=KERAS, **environment):
    """Run a program; variables that are read during the import of JAX or Meshflow have no effect.

    Args:
        program: its source.
        *arguments: its arguments on the command line.
        after: what its process has executed before; "import jax" for programs that import Meshflow.
        **environment: further environment variables.

    Returns:
        Its exit code, and its output, without warnings.
    """
    parent = _parent(after)
    try:
        parent.stdin.write(json.dumps([program, list(map(str, arguments)), environment]) + "\n")
        parent.stdin.flush()
        code, output, SPENT[after] = json.loads(parent.stdout.readline())
        return [code, output]
    except BaseException:
        # A timeout: the next test shall not read this one's output.
        os.killpg(parent.pid, signal.SIGKILL)
        _parent.cache_clear()
        raise
