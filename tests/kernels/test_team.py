"""The threads that compute the kernels: their number, several callers, and processes."""

import os
import subprocess
import sys

from capabilities import needs

pytestmark = needs("oneDNN")

# Prints a digest of results, computed by the process, by several of its threads at once, and by its child.
PROGRAM = """
import hashlib, os, threading
import numpy as np
from meshflow.kernels import descriptors, library

loaded = library.load()
rng = np.random.default_rng(0)
view = lambda shape: descriptors.make_view(shape, range(len(shape)))
left, right = (rng.normal(size=(256, 256)).astype("float32") for _ in range(2))
product = descriptors.describe_matmul(view(left.shape), view(right.shape), view((256, 256)))
image, kernel = (rng.normal(size=shape).astype("float32") for shape in ((8, 32, 32, 32), (3, 3, 32, 32)))
images = descriptors.make_view(image.shape, (0, 3, 1, 2))
kernels = descriptors.make_view(kernel.shape, (3, 2, 0, 1))
convolution = descriptors.describe_convolution(
    descriptors.FORWARD, 1, images, kernels, images, (1, 1), (1, 1), (1, 1)
)
tasks = [(product, left, right, left), (convolution, image, kernel, image)]

def compute():
    digest = hashlib.sha256()
    for descriptor, *operands, shape in tasks:
        out = np.zeros_like(shape)
        for _ in range(5):
            loaded.make_call(descriptor, ["float32"] * 3)(*operands, out)
            digest.update(out)
    return digest.hexdigest()

def compute_in_thread():
    found.append(compute())

found = [compute()]
threads = [threading.Thread(target=compute_in_thread) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
expected = left.astype("float64") @ right
child = os.fork()
if child == 0:
    os._exit(0 if compute() == found[0] else 3)
assert os.waitpid(child, 0)[1] == 0, "the child has other results"
assert len(set(found)) == 1
print(found[0])
"""


def test_results_do_not_depend_on_threads_or_processes():
    """More threads than processors, one thread, and threads that never poll compute the same bits; so does a forked process."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in (
            {"OMP_NUM_THREADS": "1"},
            {"OMP_NUM_THREADS": "3"},
            {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
        )
    ]
    outputs = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
