"""Test that a missing library selects XLA's code, and that the user is informed."""

import importlib.metadata
import shutil
from pathlib import Path

import hatch_build
import pytest

import forked
from meshflow import kernels
from meshflow.environment import jax_internals
from meshflow.kernels import installation, library

BUILT = Path(library.__file__).parent / library.NAME
PROGRAM = """
import warnings
import jax, jax.numpy as jnp
import meshflow as tf
from meshflow import kernels
from meshflow.kernels import library
{before}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    text = jax.jit(jnp.matmul).lower(jnp.ones((512, 512)), jnp.ones((512, 512), "float32")).as_text()
    x = jnp.ones((128, 128), "float32")
    assert float((x @ x)[0, 0]) == 128
print(isinstance(kernels.status(), library.Library))
print(kernels.status())
print([str(w.message) for w in caught])
"""


def run(before="", MESHFLOW_KERNELS="auto", **environment):
    environment["MESHFLOW_KERNELS"] = MESHFLOW_KERNELS
    code, text = forked.run(PROGRAM.format(before=before), **environment)
    assert code == 0, text
    return text.splitlines()


def test_environment_variable_disables_kernels():
    loaded, state, warned = run(MESHFLOW_KERNELS="xla")
    assert (loaded, warned) == ("False", "[]") and "MESHFLOW_KERNELS=xla" in state


def test_a_damaged_library_is_reported(tmp_path):
    damaged = tmp_path / "damaged.so"
    cases = [b"\x7fELF no more"]
    if BUILT.exists():
        # As after a download that was interrupted.
        cases.append(BUILT.read_bytes()[: BUILT.stat().st_size // 2])
    for content in cases:
        damaged.write_bytes(content)
        loaded, state, warned = run(f"library.NAME = {str(damaged)!r}")
        assert loaded == "False"
        assert "damaged.so is damaged" in state and "damaged.so is damaged" in warned


@pytest.mark.skipif(not BUILT.exists(), reason="no CPU kernels were built")
def test_kernels_for_a_newer_jaxlib_are_not_loaded():
    """Test flags that XLA would reject at its start, which would end the program."""
    before = "from meshflow.environment import jax_internals; jax_internals.read_ffi_version = lambda: (0, 1)"
    loaded, state, warned = run(before)
    assert loaded == "False" and eval(warned) == [
        f"CPU kernels are left to XLA, which is slower: {state}"
    ]
    assert "headers of a newer jaxlib than" in state and "pip install" in state


def test_the_interface_fits_the_declarations_of_the_sources():
    """If this fails, write the new hash into library.py; older compiled kernels are then no longer loaded."""
    assert hatch_build.hash_interface() == library.INTERFACE


@pytest.mark.skipif(not BUILT.exists(), reason="no CPU kernels were built")
def test_kernels_of_other_sources_are_not_loaded():
    loaded, state, warned = run("library.INTERFACE = 'another'")
    assert loaded == "False" and "sources of another version" in state and "pip install" in warned


def test_the_interface_of_the_installed_jaxlib_runs_kernels_of_wheels():
    assert jax_internals.read_ffi_version() >= (0, 3)


def test_a_damaged_onednn_is_reported(tmp_path):
    damaged = tmp_path / "libdnnl.so.3"
    damaged.write_bytes(b"\x7fELF" + bytes(36) + b"\xff" * 30)
    before = f"from pathlib import Path\nlibrary.installation.find_onednn = lambda: Path({str(damaged)!r})"
    loaded, state, warned = run(before)
    if "was not built" not in state:
        assert loaded == "False"
        assert "libdnnl.so.3 is damaged" in state and "libdnnl.so.3 is damaged" in warned


def test_another_library_is_reported():
    other = next(iter(Path("/proc/self/maps").read_text().split("libc.so.6")[:1])).split()[-1]
    loaded, state, _ = run(f"library.NAME = {other + 'libc.so.6'!r}")
    assert loaded == "False" and "libc.so.6 does not load" in state


def test_a_missing_library_is_reported(tmp_path):
    missing = f"library.NAME = {str(tmp_path / 'missing.so')!r}"
    loaded, state, warned = run(missing)
    assert loaded == "False" and "was not built" in state
    assert ("was not built" in warned) == installation.is_supported_platform()
    assert warned.count("left to XLA") == 1
    elsewhere = f"{missing}\nlibrary.installation.is_supported_platform = lambda: False"
    loaded, state, warned = run(elsewhere)
    assert loaded == "False" and eval(warned) == [
        f"CPU kernels are left to XLA, which is slower: {state}"
    ]
    assert "so XLA computes everything" in state and "was not built" not in state
    assert "was not built" in run(elsewhere, MESHFLOW_KERNELS="onednn")[2]
    assert run(missing, MESHFLOW_KERNELS="xla")[2] == "[]"


def test_other_words_in_the_environment_are_an_error(monkeypatch):
    monkeypatch.setenv("MESHFLOW_KERNELS", "fast")
    with pytest.raises(ValueError, match="must be 'auto', 'onednn' or 'xla', got 'fast'"):
        library.are_enabled()


def test_import_loads_no_library():
    code = "import meshflow, sys; maps = open('/proc/self/maps').read(); print('dnnl' in maps)"
    assert forked.run(code, after="import jax") == [0, "False\n"]


def test_library_is_built_if_possible():
    """Test that this checkout's build created the library if its requirements exist."""
    if not library.are_enabled():
        pytest.skip("CPU kernels")
    try:
        importlib.metadata.distribution("onednn-devel-cpu-gomp")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no oneDNN headers")
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler")
    assert isinstance(kernels.status(), library.Library)
    assert kernels.status().read_version().startswith("3.")


PAGES = """
import jax, jax.numpy as jnp, numpy as np
from meshflow import kernels
kernels.status()
array = jnp.asarray(np.ones((1024, 4096), np.float32)) + 1
address, flags = array.unsafe_buffer_pointer(), ""
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        start, end = (int(n, 16) for n in line.split()[0].split("-"))
    elif line.startswith("VmFlags") and start <= address < end:
        flags = line
print(" hg" in flags)
"""


@pytest.mark.skipif(
    not isinstance(kernels.status(), library.Library), reason="the CPU kernels are not built here"
)
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="no huge pages here"
)
@pytest.mark.parametrize("wanted", ["1", "0"])
def test_large_buffers_request_huge_pages(wanted):
    assert forked.run(PAGES, MESHFLOW_HUGE_PAGES=wanted) == [0, f"{wanted == '1'}\n"]


AGAIN = """
import resource, jax, jax.numpy as jnp
from meshflow import kernels
kernels.status()
call = jax.jit(lambda x: jnp.full((16 << 20,), x, jnp.float32))
def run(count):
    return sum(float(call(1.0)[-1]) for _ in range(count))
run(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
total = run(10)
print(total, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 160)
"""


@pytest.mark.skipif(
    not isinstance(kernels.status(), library.Library), reason="the CPU kernels are not built here"
)
def test_large_buffers_are_used_again():
    # A fresh block of 64 MB has 32 faults even in huge pages.
    assert forked.run(AGAIN, MESHFLOW_HUGE_PAGES="1") == [0, "10.0 True\n"]


SHARED = """
import threading, jax, jax.numpy as jnp
from meshflow import kernels
kernels.status()
call = jax.jit(lambda x: jnp.full((2 << 20,), x, jnp.float32))
addresses = set()
def run():
    for _ in range(3):
        addresses.add(call(1.0).block_until_ready().unsafe_buffer_pointer())
for _ in range(4):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
print(len(addresses) < 3)
"""


@pytest.mark.skipif(
    not isinstance(kernels.status(), library.Library), reason="the CPU kernels are not built here"
)
def test_threads_share_free_buffers():
    # The C library keeps freed blocks of 8 MB for the thread that allocated them.
    assert forked.run(SHARED, MESHFLOW_HUGE_PAGES="1") == [0, "True\n"]


FORKS = """
import os, signal, threading
from meshflow import kernels
release = kernels.status().compiled.meshflow_release_memory
is_over = threading.Event()
def run():
    while not is_over.is_set():
        for _ in range(1000):
            release()
threads = [threading.Thread(target=run) for _ in range(2)]
for thread in threads:
    thread.start()
codes = set()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(20)
        release()
        os._exit(0)
    codes.add(os.waitpid(child, 0)[1])
    if codes != {0}:
        break
is_over.set()
print(codes)
"""


@pytest.mark.skipif(
    not isinstance(kernels.status(), library.Library), reason="the CPU kernels are not built here"
)
def test_a_forked_process_frees_memory_while_others_of_its_parent_do():
    assert forked.run(FORKS) == [0, "{0}\n"]


AWAITS = """
import threading
from meshflow import kernels
import jax, jax.numpy as jnp
from meshflow.kernels import library
kernels.status()
size = 40 << 20
print(library.await_memory(size, 1))
x = jnp.zeros(size, jnp.int8).block_until_ready()
print(library.await_memory(size, 1))
threading.Timer(0.1, x.delete).start()
print(library.await_memory(size, 10_000))
library.release_memory()
print(library.await_memory(size, 1))
"""


@pytest.mark.skipif(
    not isinstance(kernels.status(), library.Library), reason="the CPU kernels are not built here"
)
def test_a_thread_can_wait_for_a_free_buffer():
    assert forked.run(AWAITS, MESHFLOW_HUGE_PAGES="1") == [0, "False\nFalse\nTrue\nFalse\n"]
