"""Processes that are forked before and after devices were used."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
import numpy as np
import meshflow as tf

def report(work):
    try:
        return f"gave {work()}"
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"

def in_a_fork(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, report(work).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 65536).decode()
    assert os.waitpid(child, 0)[1] == 0
    return text

double = tf.function(lambda x: tf.linalg.matmul(x, x))
big = np.ones((300, 300), "float32")
works = {
    "op": lambda: float(tf.reduce_sum(tf.linalg.matmul(big, big))),
    "function": lambda: float(tf.reduce_sum(double(big))),
    "variable": lambda: float(tf.reduce_sum(tf.Variable(big))),
    "compiled": lambda: double(inputs).shape,
    "stack": lambda: tf.stack([large, large]).shape,
}
if "early" in sys.argv:
    print(in_a_fork(works["op"]))
else:
    variable, inputs = tf.Variable(big), tf.linalg.matmul(big, big)
    large = tf.ones([1000, 1000])
    double(inputs), tf.stack([large, large])
    for work in works.values():
        print(in_a_fork(work))
    print(report(works["op"]))
"""


def run(*arguments):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_late_fork_suggests_a_fix():
    *late, parent = run()
    assert len(late) == 5
    for text in late:
        assert text.startswith("RuntimeError: Process ") and "'spawn'" in text, text
    assert parent == "gave 27000000.0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_before_the_first_use_computes():
    assert run("early") == ["gave 27000000.0"]
