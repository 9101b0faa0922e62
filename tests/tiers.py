"""Keep a run of the tests short and small, and report on it: a plugin of pytest.

* Workers, processes of tests and runs share compiled programs, and Python's bytecode.
* XLA compiles without optimization, in a fifth of the time, unless a test needs bits or speed.
* Compiled programs are freed between tests once a worker has grown.
* The end of a run shows the seconds of each area, elapsed and of processors, and the peak memory of
  each worker with the tests that raised it most.
"""

import collections
import contextlib
import ctypes
import gc
import hashlib
import importlib.metadata
import json
import os
import pathlib
import resource
import sys

import pytest

import forked

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / ".test_cache"
# Compiled programs of all checkouts of a user: a run in a new clone, as in CI, finds those of earlier runs.
USER_CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
PROGRAMS = USER_CACHE / "meshflow-tests"
DURATIONS = KEPT / "seconds.json"
# Bytes of programs stored between runs, and of a worker's memory before programs are freed.
KEPT_LIMIT = 2 << 30
GROWN = 2 << 30
# Allocated objects, and younger collections, between collections: growing workers collect in any
# case.
THRESHOLDS = (10_000, 20, 20)
# Tests between collections, after which the remaining objects are not visited again until programs are freed. Each visit
# of all objects of a grown worker takes seconds, and `clear_session` and tests of memory collect, too.
TESTS_BETWEEN = 100


def share_compiled_programs():
    """Let JAX store every compiled program in a folder of this user; call before importing it.

    JAX's keys distinguish programs, options and versions. The folder's name distinguishes processors. If JAX calls Python
    while it compiles a program, as for partitioned convolutions, the key contains a pointer to the code, so other processes
    compile the program again. Programs call kernels by name, so a change of kernels leaves the others valid.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return  # a worker, or a process that a test started
    folder = PROGRAMS / _digest_processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a user without a folder compiles everything
    _forget_programs(PROGRAMS)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def keep_bytecode():
    """Let Python store bytecode next to sources; call before importing the package.

    If the environment forbids this, each of a hundred processes compiles hundreds of modules again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


# The version of JAX, which may not be imported before the flags are set.
JAX = tuple(int(part) for part in importlib.metadata.version("jax").split(".")[:2])
# The same programs after the same rewrites of XLA, but as code that LLVM does not improve; and as users get them.
PLAIN = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
USUAL = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_parallel_codegen_split_count": 32,
}
if JAX < (0, 11):
    # Later versions have only those emitters, and XLA aborts on flags that it does not know.
    PLAIN["xla_cpu_use_fusion_emitters"], USUAL["xla_cpu_use_fusion_emitters"] = False, True
PLAIN_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in PLAIN.items())


def write_plain_code():
    """Has XLA write plain code, here and in processes that tests start; call before importing JAX."""
    if os.environ.get("MESHFLOW_SOAK", "0") in ("", "0") and PLAIN_FLAGS not in _flags():
        os.environ["XLA_FLAGS"] = f"{_flags()} {PLAIN_FLAGS}".strip()


def _flags():
    return os.environ.get("XLA_FLAGS", "")


class Compiling:
    """Compile each test's programs as it requests: without optimization, or as users do."""

    def __init__(self):
        self.plain = PLAIN_FLAGS in _flags()
        self.optimized = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        wanted = self.plain and item.get_closest_marker("optimized") is not None
        if wanted != self.optimized:
            self.optimized = wanted
            self.switch()

    def switch(self):
        import jax
        from jax._src import compiler

        jax.clear_caches()
        if not self.optimized:
            compiler.get_compile_options = self.options
            os.environ["XLA_FLAGS"] = f"{_flags()} {PLAIN_FLAGS}".strip()
            return
        self.options = compiler.get_compile_options

        def usual(*args, env_options_overrides=None, **kwargs):
            overrides = {**USUAL, **(env_options_overrides or {})}
            return self.options(*args, env_options_overrides=overrides, **kwargs)

        compiler.get_compile_options = usual
        os.environ["XLA_FLAGS"] = _flags().replace(PLAIN_FLAGS, "").strip()


def _digest_processor():
    """Return a digest of the features of the processor."""
    told = hashlib.sha256()
    processor = pathlib.Path("/proc/cpuinfo")
    if processor.exists():
        lines = processor.read_text().splitlines()
        features = {x for x in lines if x.startswith(("flags", "Features"))}  # of x86 and ARM
        told.update("\n".join(sorted(features)).encode())
    return told.hexdigest()[:16]


def _forget_programs(parent):
    """Remove the programs that have not been read for the longest time, until the rest is below the limit.

    The folders remain, because runs of other checkouts may write to them.
    """
    programs = []
    for file in parent.glob("*/*"):
        with contextlib.suppress(OSError):  # another run has removed it
            status = file.stat()
            programs.append((max(status.st_atime, status.st_mtime), status.st_size, file))
    size = sum(size for _, size, _ in programs)
    for _, freed, file in sorted(programs):
        if size <= KEPT_LIMIT:
            return
        file.unlink(missing_ok=True)
        size -= freed


class Freeing:
    """Free compiled programs after a test that leaves the process grown."""

    def __init__(self):
        self.limit = GROWN
        self.left = []  # bytes, after each time
        self.ended = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self):
        """Has the garbage collector wait: modules and tests stay."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()

    def pytest_collection_finish(self):
        """Let the garbage collector ignore modules and tests, and run less often."""
        gc.collect()
        gc.freeze()
        # Tracing creates so many live objects that collecting them took a tenth of the time.
        gc.set_threshold(*THRESHOLDS)

    def pytest_runtest_teardown(self, nextitem):
        self.ended += 1
        if nextitem is None or resident() < self.limit:
            if self.ended % TESTS_BETWEEN == 0:
                gc.collect()
                gc.freeze()
            return
        from meshflow.core.dispatch.memory_release import free_memory

        gc.unfreeze()
        free_memory()
        gc.freeze()
        if sys.platform == "linux":
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.left.append(resident())
        # Values shared by tests may be large: freeing repeatedly would not help.
        self.limit = max(GROWN, self.left[-1] + GROWN // 6)


def resident():
    """Return the bytes of this process in memory; none if the system does not report them."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def area(nodeid):
    """The area of a test or example: the folder of `tests/` or package of `meshflow` it is in."""
    parts = nodeid.split("::")[0].split("/")
    if parts[0] == "tests":
        return parts[1] if len(parts) > 2 else "package"
    return "examples: " + (parts[2] if len(parts) > 3 else "package")


class Spending:
    """Add the processor seconds since the end of the previous test to a report, including ended
    children."""

    def __init__(self):
        self.before = 0.0

    def pytest_runtest_logstart(self):
        self.before = self.before or processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        # Reading the time costs as much as a small test, with as many threads as XLA has.
        if call.when == "teardown":
            now = processor_seconds()
            report.processor_seconds, self.before = now - self.before, now
        return report


def processor_seconds():
    """Seconds that processors worked for this process, for its children that ended, and for forked programs."""
    return sum(os.times()[:4]) + sum(forked.SPENT.values())


class Report:
    """Add up seconds by area and by file, and asks workers for their peak memory."""

    def __init__(self, config, growth):
        self.growth = growth
        # Some of a file's tests do not determine its time.
        self.whole = not (config.option.keyword or config.option.markexpr)
        self.whole &= not any("::" in argument for argument in config.args)
        self.areas = collections.Counter()
        self.files = collections.Counter()
        self.processors = collections.Counter()
        self.peaks = {}

    def pytest_runtest_logreport(self, report):
        self.areas[area(report.nodeid)] += report.duration
        self.files[report.nodeid.split("::")[0]] += report.duration
        self.processors[area(report.nodeid)] += getattr(report, "processor_seconds", 0.0)

    def pytest_testnodedown(self, node):
        self.peaks[node.gateway.id] = getattr(node, "workeroutput", {}).get("peak", "unknown")

    def pytest_terminal_summary(self, terminalreporter):
        if not self.areas:
            return
        for kind, seconds in (("", self.areas), (" of processors", self.processors)):
            named = [f"{name} {spent:.0f}" for name, spent in seconds.most_common()]
            total = f"{sum(seconds.values()):.0f}"
            terminalreporter.write_line(f"seconds{kind} by area: {total}: {', '.join(named)}")
        for name, peak in sorted((self.peaks or {"this process": self.growth.told()}).items()):
            terminalreporter.write_line(f"peak memory of {name}: {peak}")

    def pytest_sessionfinish(self, exitstatus):
        """Store the seconds of each file, for `make quick`."""
        found = {f: round(s, 2) for f, s in self.files.items() if (ROOT / f).is_file()}
        if self.whole and found and exitstatus == 0:
            KEPT.mkdir(exist_ok=True)
            # Another run may read or write them now.
            new = DURATIONS.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps({**seconds_of_files(), **found}))
            new.replace(DURATIONS)


def seconds_of_files():
    """Return the seconds of each file's tests in the last complete run."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


class Growth:
    """Record which tests raise a process's peak memory, and how often it was freed."""

    def __init__(self, freeing):
        self.freeing = freeing
        self.before = 0
        self.grown = collections.Counter()

    def pytest_runtest_logstart(self):
        self.before = peak_memory()

    def pytest_runtest_logfinish(self, nodeid):
        self.grown[nodeid] += peak_memory() - self.before

    def told(self):
        """The peak, and the tests that raised it most."""
        most = [f"{nodeid} {size >> 20} MB" for nodeid, size in self.grown.most_common(3) if size]
        left = self.freeing.left
        freed = f"freed {len(left)} times" + (f" to {max(left) >> 20} MB at most" if left else "")
        return f"{peak_memory() / (1 << 30):.2f} GB, {freed}, raised by {', '.join(most) or 'none'}"


class Worker:
    """Report this worker's peak memory to the process that started it."""

    def __init__(self, config, growth):
        self.config, self.growth = config, growth

    def pytest_sessionfinish(self):
        self.config.workeroutput["peak"] = self.growth.told()


def register(config):
    """Register the hooks of a worker, or of the process that receives reports."""
    freeing = Freeing()
    growth = Growth(freeing)
    worker = hasattr(config, "workeroutput")
    report = Worker(config, growth) if worker else Report(config, growth)
    config.pluginmanager.register(report, "meshflow-report")
    config.pluginmanager.register(freeing, "meshflow-freeing")
    config.pluginmanager.register(growth, "meshflow-growth")
    config.pluginmanager.register(Compiling(), "meshflow-compiling")
    config.pluginmanager.register(Spending(), "meshflow-spending")
