"""Test and measure Meshflow on a GPU: `python benchmarks/gpu.py [--minutes 8] [--parts tests,cnn,gpt2] [--out FOLDER]`.

Parts, in this order, each in processes of its own so that a failure ends that part only:

* doctor: the machine, the versions, and `meshflow doctor`
* ceilings: the device's rates of products and copies, by plain JAX
* tests: `pytest -m gpu`
* gpt2, resnet50, dlrm, lstm: steps that alternate with PyTorch's, eager and compiled, on the same device
* cnn (after gpt2): the CIFAR-10 network of the mixed-precision article in five precisions

It needs Python 3.12, JAX with CUDA, NumPy, pytest and pytest-timeout; PyTorch, pytest-xdist, h5py and typer where they are
there. Small wheels that an image may lack: google-crc32c. Results are written after each part: gpu.json, and gpu.md with
tables; the former also has the seconds of compilation and the slowest kernels. `--smoke` runs the smallest sizes on a CPU
in about a minute, which the tests do.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import queue
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

# Dense rates in TFLOP/s of the tensor cores, and of float32 without them, by the vendor's datasheets.
PEAKS = {
    "H100 PCIe": {"low": 756.0, "tf32": 378.0, "float32": 51.2},
    "H100": {"low": 989.4, "tf32": 494.7, "float32": 66.9},
    "H200": {"low": 989.4, "tf32": 494.7, "float32": 66.9},
    "A100": {"low": 312.0, "tf32": 156.0, "float32": 19.5},
}
PARTS = ("doctor", "ceilings", "tests", "gpt2", "cnn", "resnet50", "dlrm", "lstm")
ALTERNATING = ("gpt2", "resnet50", "dlrm", "lstm")
# Time limits of the parts in seconds; those of the last parts shrink when the minutes run out.
LIMITS = {"doctor": 45, "ceilings": 45, "tests": 150, "cnn": 170}
TF32 = "float32 with TF32"
ITEMS = (TF32, "mixed_float16", "float32", "mixed_bfloat16", "graph rewrite")
SETTINGS = {
    "ceilings": {"size": 8192, "repeats": 10, "bytes": 1 << 31, "host_bytes": 1 << 28},
    "cnn": {
        # Full batches only, 156 of an epoch's 157, so that each precision compiles one training program.
        "images": 156 * 320,
        "tests": 30 * 320,
        "batch": 320,
        "epochs": 10,
        # At 1e-3 the activations before the only normalization grow beyond float16 within 15 steps, in float32 as well.
        "rate": 1e-4,
        "items": ITEMS,
        # Training stops before an epoch that would not fit into these.
        "seconds": {
            TF32: 8,
            "mixed_float16": 26,
            "float32": 5,
            "mixed_bfloat16": 4,
            "graph rewrite": 4,
        },
        "steps": {"float32": 15},
        "tested": (TF32, "mixed_float16"),
        "profiled": (TF32, "mixed_float16"),
    },
    "gpt2": {
        **{"vocabulary": 50304, "width": 768, "heads": 12, "depth": 12, "length": 1024},
        "batch": 16,
    },
    "resnet50": {
        **{"side": 224, "widths": (64, 128, 256, 512), "blocks": (3, 4, 6, 3), "classes": 1000},
        "batch": 128,
    },
    "dlrm": {
        **{"tables": 26, "rows": 100_000, "width": 64},
        **{"bottom": (512, 256), "top": (1024, 512, 256), "batch": 8192},
    },
    "lstm": {
        **{"vocabulary": 20_000, "width": 256, "units": 512, "length": 256, "classes": 10},
        "batch": 128,
    },
}
SMOKE = {
    "ceilings": {"size": 64, "repeats": 2, "bytes": 1 << 16, "host_bytes": 1 << 16},
    "cnn": {
        **{"images": 8, "tests": 4, "batch": 4, "epochs": 1, "rate": 1e-4, "narrow": 32},
        "items": ("mixed_bfloat16",),
        "seconds": {"mixed_bfloat16": 1},
        **{"steps": {}, "tested": ("mixed_bfloat16",), "profiled": ("mixed_bfloat16",)},
    },
    "gpt2": {
        **{"vocabulary": 97, "width": 16, "heads": 2, "depth": 1, "length": 16},
        "batch": 2,
    },
    "resnet50": {
        **{"side": 32, "widths": (4, 8), "blocks": (1, 1), "classes": 10},
        "batch": 2,
    },
    "dlrm": {
        **{"tables": 3, "rows": 10, "width": 4},
        **{"bottom": (8,), "top": (8,), "batch": 8},
    },
    "lstm": {
        **{"vocabulary": 20, "width": 4, "units": 4, "length": 6, "classes": 3},
        "batch": 4,
    },
}
UNITS = {"gpt2": "tokens/s", "resnet50": "images/s", "dlrm": "examples/s", "lstm": "tokens/s"}


class Failed(Exception):
    """A part's process ended, or took too long; `about` is its entry in the JSON file."""

    def __init__(self, about):
        super().__init__(about.get("error", ""))
        self.about = about


class Worker:
    """A process that prints results as lines that begin with `@@`; all others are logged, and the
    last ones kept."""

    def __init__(self, command, environment, log):
        environment = {**environment, "GPU_STARTED": str(time.time()), "PYTHONUNBUFFERED": "1"}
        self._log, self.tail = log, []
        self.results = queue.Queue()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("@@ "):
                self.results.put(json.loads(line[3:]))
            else:
                self._log.write(line)
                self._log.flush()
                self.tail = [*self.tail[-29:], line.rstrip()[:400]]
        self.results.put(None)

    def result(self, seconds):
        """Return the next result; None when the process has ended."""
        try:
            return self.results.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            raise Failed(
                {"error": f"no result within {seconds:.0f} s", "output": self.tail}
            ) from None

    def order(self, line, seconds):
        """Send a line and return the answer."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(
                {"error": f"the process has ended: {error}", "output": self.tail}
            ) from None
        answer = self.result(seconds)
        if answer is None or "error" in answer:
            raise Failed(answer or {"error": self.end(), "output": self.tail})
        return answer

    def end(self):
        """Return how the process ended, in words."""
        return f"the process ended with {self.process.wait(10)}"

    def stop(self):
        """End the process and all that it started."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(3)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(5)


class Run:
    """One run of the script: its time, its results, and the files that these are written to."""

    def __init__(self, options):
        self.options = options
        self.smoke = options.smoke
        self.settings = SMOKE if options.smoke else SETTINGS
        self.began = time.time()
        self.deadline = self.began + 60 * options.minutes
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = open(self.out / "log", "w")  # noqa: SIM115 - open as long as the run
        self.found = {"began": time.strftime("%Y-%m-%d %H:%M:%S"), "parts": {}}
        self.environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self.environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        if options.smoke:
            self.environment["JAX_PLATFORMS"] = "cpu"

    def left(self, limit=1e9):
        """Return the seconds for the next part: its limit, or the rest of the minutes."""
        return min(limit, self.deadline - time.time())

    def tell(self, text):
        line = f"[{time.time() - self.began:5.0f} s] {text}"
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def write(self):
        """Write both files, with the results so far."""
        self.found["seconds"] = round(time.time() - self.began, 1)
        for name, text in (
            ("gpu.json", json.dumps(self.found, indent=1)),
            ("gpu.md", table(self.found)),
        ):
            part = self.out / f"{name}.part"
            part.write_text(text + "\n")
            part.replace(self.out / name)

    def worker(self, file, part, settings, **environment):
        command = [sys.executable, str(HERE / file), part, json.dumps(settings)]
        return Worker(command, {**self.environment, **environment}, self.log)

    def part(self, name):
        """Run one part; a failure is a result, too."""
        began = time.time()
        if self.left() < (5 if self.smoke else 20):
            self.found["parts"][name] = {"not run": "no time was left"}
            self.tell(f"{name}: skipped, no time is left")
            self.write()
            return
        self.tell(f"{name} begins")
        result = self.found["parts"][name] = {}
        try:
            function = alternate if name in ALTERNATING else globals()[f"run_{name}"]
            function(self, name, result)
        except Failed as failed:
            result.update(failed.about)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        result["seconds"] = round(time.time() - began, 1)
        problem = f", {result['error'][:300]}" if "error" in result else ""
        self.tell(f"{name}: {result['seconds']} s{problem}")
        self.write()


def output(command, environment, seconds):
    """Return the output of a command, or the reason that there is none."""
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            cwd=ROOT,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    text = run.stdout + (run.stderr[-3000:] if run.returncode else "")
    return text.strip() + (f"\n(exit status {run.returncode})" if run.returncode else "")


def run_doctor(run, name, result):
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    result["nvidia-smi"] = output(query, run.environment, 20)
    packages = ["jax", "jaxlib", "jax-cuda13-plugin", "numpy", "torch", "nvidia-cudnn-cu13", "h5py"]
    program = (
        "import importlib.metadata as m, json, sys\n"
        "def version(n):\n"
        "    try: return m.version(n)\n"
        "    except m.PackageNotFoundError: return None\n"
        f"print(json.dumps({{n: version(n) for n in {packages}}} | {{'python': sys.version.split()[0]}}))"
    )
    text = output([sys.executable, "-c", program], run.environment, 30)
    result["versions"] = json.loads(text) if text.startswith("{") else text
    command = [sys.executable, "-m", "meshflow", "doctor"]
    result["doctor"] = output(command, run.environment, run.left(LIMITS["doctor"])).splitlines()
    if any("exit status" in line or line.startswith("TimeoutExpired") for line in result["doctor"]):
        result["error"] = "meshflow doctor failed: " + " / ".join(result["doctor"][-4:])
    for line in result["doctor"]:
        run.log.write(line + "\n")


def run_ceilings(run, name, result):
    worker = run.worker("gpu_models.py", name, run.settings[name])
    try:
        found = worker.result(run.left(LIMITS[name]))
        result.update(found or {"error": worker.end(), "output": worker.tail})
    finally:
        worker.stop()
    run.found["device"] = result.get("device", "unknown")


_TEST = re.compile(r"(tests/\S+::.*?)\s+(PASSED|FAILED|ERROR|SKIPPED)\s*(?:\[|$)")
_TEST_OF_XDIST = re.compile(r"^\[gw\d+\].*?(PASSED|FAILED|ERROR|SKIPPED)\s+(tests/\S+::.*?)\s*$")


def run_tests(run, name, result):
    selected = ["tests/gpu"]
    if run.smoke:
        selected = ["tests/gpu/test_functions.py", "-k", "control_flow or by_name"]
    command = [sys.executable, "-m", "pytest", *selected, "-m", "gpu", "-vv", "-W", "default"]
    command += ["-p", "no:cacheprovider", "--durations=8", "--color=no", "--tb=short"]
    has = lambda package: importlib.util.find_spec(package) is not None
    if has("xdist") and not run.smoke and run.options.workers > 1:
        command += ["-n", str(run.options.workers), "--dist", "worksteal"]
    if has("pytest_timeout"):
        command += ["--timeout=100"]
    if run.options.tests:
        command += ["-k", run.options.tests]
    platform = {"MESHFLOW_TEST_PLATFORM": "cpu" if run.smoke else "cuda"}
    report = run.out / "tests.txt"
    with open(report, "w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**run.environment, **platform},
            start_new_session=True,
        )
        try:
            result["exit"] = process.wait(run.left(LIMITS[name]))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            result["error"] = "the tests took too long; those that had ended are counted"
    lines = report.read_text(errors="replace").splitlines()
    outcomes = {}
    for line in lines:
        found = _TEST_OF_XDIST.match(line)
        if found:
            outcomes[found[2]] = found[1]
        elif found := _TEST.match(line):
            outcomes[found[1]] = found[2]
    for outcome in ("PASSED", "FAILED", "ERROR", "SKIPPED"):
        key = "errors" if outcome == "ERROR" else outcome.lower()
        result[key] = sum(o == outcome for o in outcomes.values())
    result["failures"] = sorted(n for n, o in outcomes.items() if o in ("FAILED", "ERROR"))
    if not result["passed"] or result["failures"] or result.get("exit"):
        result.setdefault("error", f"{len(result['failures'])} tests failed")
        start = next((i for i, x in enumerate(lines) if " FAILURES " in x or " ERRORS " in x), None)
        result["output"] = lines[start : start + 400] if start is not None else lines[-60:]
    result["durations"] = [x.strip() for x in lines if re.match(r"\s*[\d.]+s (call|setup)", x)]
    run.log.write("\n".join(lines) + "\n")
    run.tell(f"tests: {result['passed']} passed, {result['failures'] or 'none failed'}")


def run_cnn(run, name, result):
    settings = dict(run.settings[name])
    limit = run.left(LIMITS[name] if run.options.cnn is None else run.options.cnn)
    share = 1.0 if run.smoke else min(1.0, max(0.3, limit / 110))
    settings["seconds"] = {k: v * share for k, v in settings["seconds"].items()}
    items, until = list(settings["items"]), time.time() + limit
    found = result["items"] = {}
    while items and time.time() < until:
        worker = run.worker("gpu_models.py", name, {**settings, "items": items})
        current = items[0]
        try:
            while items:
                answer = worker.result(until - time.time())
                if answer is None:
                    raise Failed({"error": worker.end(), "output": worker.tail})
                if "begins" in answer:
                    current = answer["begins"]
                    continue
                current = answer.pop("item", current)
                if "progress" in answer:
                    found.setdefault(current, {}).update(answer["progress"])
                    run.write()
                    continue
                found.setdefault(current, {}).update(answer)
                if current in items:
                    items.remove(current)
                else:
                    items.clear()
                run.tell(f"cnn, {current}: {in_short(found[current])}")
                run.write()
        except Failed as failed:
            found.setdefault(current, {}).update(failed.about)
            run.tell(f"cnn, {current}: {failed.about.get('error')}, {in_short(found[current])}")
            if current in items:
                items.remove(current)
        finally:
            worker.stop()
    failures = [k for k, v in found.items() if "error" in v] + items
    if failures:
        result["error"] = f"no complete result for {', '.join(failures)}"


def in_short(item):
    """Return an item of the CNN as a line of the log."""
    parts = [item["error"]] if "error" in item else []
    if "ms_per_step" in item:
        parts.append(f"{item['ms_per_step']:.2f} ms/step in {item['epochs_run']} epochs")
    elif "warm_ms_per_step" in item:
        parts.append(f"about {item['warm_ms_per_step']:.1f} ms/step")
    if "first_step_s" in item:
        parts.append(f"first step {item['first_step_s']:.1f} s, {item['compile_s']}")
    if "busy_ms" in item.get("profile", {}):
        parts.append(f"kernels {item['profile']['busy_ms']:.2f} ms/step")
    if "test_accuracy" in item:
        parts.append(f"accuracy {item['test_accuracy']:.3f}, {item['state']}")
    return "; ".join(parts)


def alternate(run, name, result):
    """Time steps of Meshflow and of PyTorch's variants in turn, in two processes on the same device.

    They compile one after the other, because both choose kernels by timing them. After each comes a round of
    measurements, so that a slow compilation does not take the results of the others along.
    """
    settings = run.settings[name]
    variants = ["eager", "compile"] if not run.smoke or run.options.compile else ["eager"]
    until = time.time() + run.left(1e9 if run.smoke else run.options.each[name])
    rounds = Rounds(run, name, result, until)
    workers = {"meshflow": run.worker("gpu_models.py", name, settings)}
    try:
        if importlib.util.find_spec("torch") is not None:
            workers["torch"] = run.worker("gpu_torch.py", name, settings)
        else:
            result["torch"] = {"not run": "PyTorch is not installed"}
        for side, worker in workers.items():
            try:
                ready = worker.result(until - time.time())
                if ready is None or "error" in ready:
                    raise Failed(ready or {"error": worker.end(), "output": worker.tail})
                result[side] = ready
                if side == "meshflow":
                    told = f"first step after {ready['first_step_s']:.1f} s"
                    run.tell(f"{name}, {side}: {told}, {ready['compile_s']}")
                    rounds.begin("meshflow", worker, "")
                    # Stored even if PyTorch takes all of the time.
                    result["profile"] = worker.order("profile", until - time.time())["profile"]
                    run.write()
            except Failed as failed:
                result.setdefault(side, {}).update(failed.about)
                run.tell(f"{name}, {side}: {failed.about.get('error')}")
        if "torch" in workers and "error" not in result["torch"]:
            prepare(run, name, result["torch"], variants, workers["torch"], rounds, until)
        for _ in range(1 if run.smoke else 3):
            rounds.one()
    finally:
        rounds.report()
        for worker in workers.values():
            worker.stop()
    failures = [w for w in ("meshflow", "torch") if "error" in result.get(w, {})]
    failures += list(result.get("torch", {}).get("errors", {}))
    if failures:
        result["error"] = f"failed: {', '.join(failures)}"


def prepare(run, name, result, variants, worker, rounds, until):
    """Compile PyTorch's variants, with a round of measurements after each."""
    result.update(first_step_s={}, errors={})
    for variant in variants:
        try:
            # The last seconds are reserved for measurements of compiled variants.
            answer = worker.order(f"prepare {variant}", until - time.time() - 4)
        except Failed as failed:
            result["errors"][variant] = failed.about
            run.tell(f"{name}, {variant}: {failed.about.get('error')}")
            if failed.about.get("error", "").startswith(("no result", "the process")):
                # A process that is still at work would be in the way of the others.
                worker.stop()
                rounds.end(worker)
                return
            continue
        result["first_step_s"][variant] = answer["first_step_s"]
        run.tell(f"{name}, {variant}: first step after {answer['first_step_s']:.1f} s")
        rounds.begin(variant, worker, variant + " ")
        rounds.one()


class Rounds:
    """Measure all variants in alternating rounds; the result is each one's median."""

    def __init__(self, run, name, result, until):
        self.run, self.name, self.result, self.until = run, name, result, until
        self.ways, self.steps, self.times, self.answers = {}, {}, {}, {}

    def begin(self, way, worker, order):
        """Add a way: a few steps show how many fill a second, and count as its first result."""
        self.ways[way] = (worker, order)
        self.times[way], self.steps[way] = [], 2 if self.run.smoke else 5
        self.turn(way)
        if self.times[way] and not self.run.smoke:
            self.steps[way] = max(4, min(200, round(1.0 / self.times[way].pop())))
            self.turn(way)

    def end(self, worker):
        """Remove the ways of a process."""
        self.ways = {way: found for way, found in self.ways.items() if found[0] is not worker}

    def turn(self, way):
        worker, order = self.ways[way]
        try:
            # A started turn ends even when the part's time is over, within reason.
            answer = worker.order(f"{order}{self.steps[way]}", max(8, self.until - time.time()))
            self.times[way].append(answer["seconds"] / self.steps[way])
            self.answers[way] = answer
        except Failed as failed:
            self.result.setdefault(way, {}).update(failed.about)
            del self.ways[way]

    def one(self):
        """Measure every variant once more unless the time is over and all have results."""
        for way in list(self.ways):
            if time.time() < self.until or not self.times[way]:
                self.turn(way)

    def report(self):
        """Add the measurements to the result."""
        settings = self.run.settings[self.name]
        examples = settings["batch"]
        if self.name in ("gpt2", "lstm"):
            examples *= settings["length"]
        flops = flops_of(self.name, settings)
        measured = self.result["measured"] = {}
        for way, found in self.times.items():
            if not found:
                continue
            median = statistics.median(found)
            measured[way] = {
                "ms_per_step": [1e3 * t for t in found],
                "median_ms": 1e3 * median,
                "rate": examples / median,
                "unit": UNITS[self.name],
                "steps": self.steps[way],
                "loss": self.answers[way]["loss"],
                "peak_memory_mb": self.answers[way]["peak_memory_mb"],
            }
            if flops:
                measured[way]["tflops"] = flops * examples / median / 1e12
        told = ", ".join(f"{w} {m['rate']:,.0f}" for w, m in measured.items())
        self.run.tell(f"{self.name}: {told} {UNITS[self.name]}")


def flops_of(name, s):
    """Return the floating-point operations of a training step for each token or image; None if
    memory is the limit."""
    if name == "gpt2":
        weights = 12 * s["depth"] * s["width"] ** 2 + s["vocabulary"] * s["width"]
        return 6 * weights + 12 * s["depth"] * s["width"] * s["length"]
    if name != "resnet50":
        return None
    side, channels = -(-s["side"] // 2), s["widths"][0]
    total = 2 * side * side * 49 * 3 * channels
    side = -(-side // 2)
    for stage, (width, count) in enumerate(zip(s["widths"], s["blocks"], strict=True)):
        for block in range(count):
            before = side
            side = -(-side // 2) if block == 0 and stage else side
            total += 2 * before * before * channels * width
            total += 2 * side * side * (9 * width * width + 4 * width * width)
            if block == 0:
                total += 2 * side * side * channels * 4 * width
            channels = 4 * width
    return 3 * (total + 2 * channels * s["classes"])


def peak_of(device, kind):
    return next((rates[kind] for name, rates in PEAKS.items() if name in device), None)


def share(tflops, device, kind):
    """Return a rate with its share of the device's peak, as text."""
    peak = peak_of(device, kind)
    return f"{tflops:.0f}" + (f" ({100 * tflops / peak:.0f} %)" if peak else "")


def accuracy_of(item):
    """Return the accuracy of an item on the test images, or of its last epoch."""
    if "test_accuracy" in item:
        return f"{item['test_accuracy']:.3f}"
    return f"{item['train_accuracy'][-1]:.3f} in training"


def number(value, digits=1):
    if isinstance(value, dict):
        return ", ".join(f"{k} {number(v, digits)}" for k, v in value.items())
    return "-" if value is None else f"{value:,.{digits}f}"


def table(found):
    """Return the results as Markdown, for RESULTS.md."""
    parts, device = found["parts"], found.get("device", "unknown device")
    versions = parts.get("doctor", {}).get("versions")
    versions = versions if isinstance(versions, dict) else {}
    about = [f"{n} {versions[n]}" for n in ("python", "jax", "torch") if versions.get(n)]
    lines = [f"## On a GPU ({found['began'][:10]}, {', '.join([device, *about])})", ""]
    ceilings = parts.get("ceilings", {})
    if "copy_gb_per_s" in ceilings:
        rates = {k[:-7]: v for k, v in ceilings.items() if k.endswith("_tflops")}
        lines += [
            f"Products of plain JAX, TFLOP/s: {number(rates, 0)}; a copy {ceilings['copy_gb_per_s']:,.0f} GB/s, "
            f"from the host {ceilings['host_to_device_gb_per_s']:.1f} GB/s.",
            "",
        ]
    tests = parts.get("tests", {})
    if "passed" in tests:
        failed = ", ".join(tests["failures"]) or "none"
        lines += [
            f"Tests: {tests['passed']} passed in {tests.get('seconds', 0):.0f} s; failed: {failed}.",
            "",
        ]
    items = parts.get("cnn", {}).get("items", {})
    if any("ms_per_step" in item for item in items.values()):
        lines += [
            "| CIFAR-10 network, batch 320 | ms/step | ten epochs (1570 steps), s | epochs run (measured) | first step, s | accuracy | TFLOP/s (of the peak) | peak memory, MB |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name, item in items.items():
            if "ms_per_step" not in item:
                lines.append(f"| {name} | {item.get('error', '')[:100]} |" + " |" * 6)
                continue
            kind = {TF32: "tf32", "float32": "float32"}.get(name, "low")
            lines.append(
                f"| {name} | {number(item['ms_per_step'], 2)} | {number(item['ten_epochs_s'])} | "
                f"{item['epochs_run']} of {item['steps_of_an_epoch']} steps ({number(item['measured_s'])} s) | "
                f"{number(item['first_step_s'])} | {accuracy_of(item)} ({item['data']}) | "
                f"{share(item['tflops'], device, kind)} | {number(item['peak_memory_mb'], 0)} |"
            )
        lines.append("")
    rows = []
    for name in ALTERNATING:
        part = parts.get(name, {})
        for way, one in part.get("measured", {}).items():
            label = "Meshflow" if way == "meshflow" else f"PyTorch, {way}"
            first = part.get("meshflow" if way == "meshflow" else "torch", {}).get("first_step_s")
            first = first.get(way) if isinstance(first, dict) else first
            rate = share(one["tflops"], device, "low") if "tflops" in one else "-"
            rows.append(
                f"| {name} | {label} | {number(one['rate'], 0)} {one['unit']} | {number(one['median_ms'], 2)} | "
                f"{rate} | {number(first)} | {number(one['peak_memory_mb'], 0)} |"
            )
        for side in ("meshflow", "torch"):
            if "error" in part.get(side, {}):
                rows.append(f"| {name} | {side} | {part[side]['error'][:100]} |" + " |" * 4)
    if rows:
        lines += [
            "| model | by | rate | ms/step | TFLOP/s (of the peak) | first step, s | peak memory, MB |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    problems = [
        f"* {n}: {p.get('error') or p.get('not run')}"
        for n, p in parts.items()
        if "error" in p or "not run" in p
    ]
    if problems:
        lines += ["Failures:", "", *problems, ""]
    return "\n".join(line.replace("\n", " ") for line in lines)


def seconds_of_models(text):
    """Return the seconds of each model of a text such as `40` or `resnet50=90,40`."""
    found, rest = {}, 110.0
    for part in text.split(","):
        model, equals, number = part.partition("=")
        if equals and model not in ALTERNATING:
            raise argparse.ArgumentTypeError(f"unknown model {model!r}")
        if equals:
            found[model] = float(number)
        else:
            rest = float(part)
    return {model: found.get(model, rest) for model in ALTERNATING}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no part begins")
    parser.add_argument("--parts", default=",".join(PARTS), help="the parts to run, in order")
    parser.add_argument(
        "--out", default="out/gpu", help="the folder of gpu.json, gpu.md and the log"
    )
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes, on a CPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile with --smoke, too")
    parser.add_argument(
        "--each",
        type=seconds_of_models,
        default="110",
        help="seconds for each compared model: a number, or MODEL=NUMBER,... and a number for the others",
    )
    parser.add_argument(
        "--cnn", type=float, help=f"seconds for the CNN, by default {LIMITS['cnn']}"
    )
    parser.add_argument(
        "--tests", default="", help="pytest's -k: run only the tests of these names"
    )
    parser.add_argument("--workers", type=int, default=4, help="processes of the tests")
    options = parser.parse_args(arguments)
    parts = [part.strip() for part in options.parts.split(",") if part.strip()]
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown parts {unknown}; there are {', '.join(PARTS)}")
    run = Run(options)
    run.write()
    for part in parts:
        run.part(part)
    print((run.out / "gpu.md").read_text())
    failed = [name for name, part in run.found["parts"].items() if "error" in part]
    run.tell(f"failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
