"""The threads that compute the kernels: their number, several callers, and processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capabilities import needs
from meshflow import kernels

pytestmark = needs("oneDNN")

# Prints a digest of results, computed by the process, by several of its threads at once, and by its child.
PROGRAM = """
import hashlib, os, signal, threading
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
# A waveform, and a product of aliased rows.
wave, window, features = (rng.normal(size=shape).astype("float32") for shape in ((4, 4000, 1), (80, 1, 32), (4, 1000, 32)))
rows = [descriptors.make_view(a.shape, spec) for a, spec in ((wave, (0, 2, 1)), (window, (2, 1, 0)), (features, (0, 2, 1)))]
describe = lambda code: descriptors.describe_convolution(code, 1, *rows, (4,), (1,), (38,))
tasks.append((describe(descriptors.FORWARD), wave, window, features))
tasks.append((describe(descriptors.KERNEL_GRADIENT), wave, features, window))
wide = rng.normal(size=(256, 512)).astype("float32")
tasks.append((descriptors.describe_matmul(view(left.shape), view(wide.shape), view(wide.shape)), left, wide, wide))

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

# The process forks while a thread makes kernels.
def make_kernels():
    for size in range(64, 1000):
        if is_over.is_set():
            return
        sizes = size, size
        descriptor = descriptors.describe_matmul(view(sizes), view(sizes), view(sizes))
        loaded.find_implementation(descriptor, ["float32"] * 3)

is_over = threading.Event()
maker = threading.Thread(target=make_kernels)
maker.start()
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        os._exit(0 if compute() == found[0] else 3)
    assert os.waitpid(child, 0)[1] == 0, "the child has other results, or waits forever"
is_over.set()
maker.join()
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


# Regions in regions, and exceptions of some or all threads.
REGIONS = """
#include "team.h"

using namespace meshflow;

int main() {
  for (int threads : {1, 2, 5}) {
    std::vector<std::atomic<int>> computed(100);
    Team::get().run([&] {
      in_turns(10, [&](int64_t i) { in_parts(10, [&](int64_t j) { ++computed[i * 10 + j]; }); }, threads);
    });
    for (auto& times : computed)
      if (times != 1) return 1;
    for (int64_t last : {0, 50, 99})
      for (int64_t first : {int64_t{0}, last}) {
        bool caught = false;
        try {
          in_parts(100, [&](int64_t i) { if (i >= first && i <= last) throw std::runtime_error("wrong"); }, threads);
        } catch (const std::runtime_error&) {
          caught = true;
        }
        if (!caught || place().threads != 1) return 2;
      }
  }
}
"""


@pytest.mark.soak
def test_regions_may_contain_regions_and_throw(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder, source, program = (
        Path(kernels.__file__).parent,
        tmp_path / "regions.cc",
        tmp_path / "regions",
    )
    source.write_text(REGIONS)
    options = ["-std=c++17", "-O1", "-pthread", f"-I{folder}", "-o", str(program)]
    command = [compiler, *options, str(source), str(folder / "team.cc"), "-ldl"]
    subprocess.run(command, check=True, timeout=300)
    assert subprocess.run([program], check=False, timeout=60).returncode == 0
