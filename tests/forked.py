"""Run programs that configure the start of Meshflow, each in a process forked from one that has
only imported it, with Keras, or only JAX."""

import functools
import json
import subprocess
import sys

_PARENT = """
import json, os, sys, traceback
exec(sys.argv[1])

for line in sys.stdin:
    program, environment = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 1)
        os.environ.update(environment)
        code = 0
        try:
            exec(program, {"__name__": "__main__"})
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
    print(json.dumps([code, said]), flush=True)
"""

# Most programs use Keras. Its import takes longer than they do, and starts no devices.
KERAS = "import jax, meshflow; meshflow.keras"


@functools.cache
def _parent(after):
    """End with this process."""
    command = [sys.executable, "-c", _PARENT, after]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(program, after=KERAS, **environment):
    """Run a program; variables that are read during the import of JAX or Meshflow have no effect.

    Args:
        program: its source.
        after: what its process has executed before; "import jax" for programs that import Meshflow.
        **environment: further environment variables.

    Returns:
        Its exit code, and its output, without warnings.
    """
    parent = _parent(after)
    parent.stdin.write(json.dumps([program, environment]) + "\n")
    parent.stdin.flush()
    return json.loads(parent.stdout.readline())
