"""Profiles of deployed models, operator by operator: .tflite by LiteRT, .onnx by ONNX Runtime, saved models by XLA."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, NotFoundError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.environment import extras
from meshflow.profiler import deployed_page
from meshflow.profiler.description import describe
from meshflow.profiler.litert import profiled as by_litert
from meshflow.profiler.operators import Operator
from meshflow.profiler.report import instruction_of
from meshflow.saved_model.loading import (
    TENSORRT_FILE,
    TENSORRT_MODEL,
    contains_saved_model,
    load,
)

__all__ = ["DeployedProfile", "profile_model"]

# Nanoseconds of an operation's runs, by its program and name.
_Times = dict[tuple[str, str], list[float]]


@dataclasses.dataclass
class DeployedProfile:
    """Where the time of a deployed model goes.

    Attributes:
      file: the model.
      runtime: who ran it.
      batch: how many rows each call had.
      runs: how many calls the times are means of.
      load_seconds: for loading it.
      first_seconds: of the first call, which may compile.
      seconds: of a call afterwards.
      operators: by time, the longest first; those inside loops count in the loop's time, too.
      note: what is missing, or empty.
    """

    file: str
    runtime: str
    batch: int
    runs: int
    load_seconds: float
    first_seconds: float
    seconds: float
    operators: list[Operator]
    note: str = ""

    def by_kind(self) -> list[Operator]:
        """The operators of each kind together."""
        kinds: dict[str, Operator] = {}
        for o in self.operators:
            old = kinds.get(o.kind)
            if old is None:
                kinds[o.kind] = dataclasses.replace(o, name=o.kind)
                continue
            kinds[o.kind] = Operator(
                o.kind, o.kind, old.calls + o.calls, old.seconds + o.seconds, _sum(old.first_seconds, o.first_seconds), _sum(old.bytes, o.bytes)
            )  # fmt: skip
        return sorted(kinds.values(), key=lambda o: -o.seconds)

    def write_page(self, path: Any) -> str:
        """Writes a page that draws time, memory and calls of the operators: one HTML file that needs no network.

        Args:
          path: the file, here or in a store.

        Returns:
          The path.
        """
        return deployed_page.write_page(self, path)

    def __str__(self) -> str:
        head = (
            f"{self.file} by {self.runtime}, {self.batch} rows: loaded in {self.load_seconds * 1e3:.1f} ms, first call "
            f"{self.first_seconds * 1e3:.4f} ms, then {self.seconds * 1e3:.4f} ms a call (mean of {self.runs})"
        )
        total = sum(o.seconds for o in self.operators) or 1.0
        lines = [head, f"{'ms':>9} {'%':>5} {'calls':>6} {'kB':>9}  operator"]
        for o in self.operators:
            memory = "" if o.bytes is None else f"{o.bytes / 1e3:.1f}"
            lines.append(
                f"{o.seconds * 1e3:9.4f} {o.seconds / total:5.0%} {o.calls:6.0f} {memory:>9}  {o.kind}  {o.name}"
            )
        return "\n".join([*lines, *([self.note] if self.note else [])])


def _sum(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one + other


def profile_model(
    model: Any, inputs: Mapping[str, Any] | None = None, runs: int = 50, batch: int = 1
) -> DeployedProfile:
    """Runs a deployed model many times, and tells the time of its operators.

    Args:
      model: a .tflite or .onnx file, or the folder of a saved model.
      inputs: arrays by the names of inputs; default zeros.
      runs: how often it is run after the first call.
      batch: rows of zeros, where the model leaves their number open.

    Returns:
      A `DeployedProfile`; its text is a table.

    Raises:
      NotFoundError: when there is nothing of that name.
      InvalidArgumentError: for what is none of these, or inputs that it does not have.
      DataLossError: for a damaged file.
      ImportError: without the extra that runs it.

    Example:
      >>> import meshflow as tf
      >>> tf.profiler.profile_model("model.txt")
      Traceback (most recent call last):
      ...
      meshflow.core.runtime.errors.NotFoundError: model.txt: there is no such file or folder.
    """
    path = os.fspath(model)
    if runs < 1:
        raise InvalidArgumentError(f"runs must be at least 1, got {runs}.")
    if not Path(path).exists():
        raise NotFoundError(f"{path}: there is no such file or folder.")
    known = Path(path).suffix in (".tflite", ".onnx") and Path(path).is_file()
    if Path(path).suffix == ".tflite" and known:
        load_seconds, first, seconds, operators, note = by_litert(path, inputs, runs, batch)
        return DeployedProfile(
            path, "LiteRT", batch, runs, load_seconds, first, seconds, operators, note
        )
    if known:
        return _by_onnx_runtime(path, inputs, runs, batch)
    if (Path(path) / TENSORRT_FILE).is_file():
        return _by_onnx_runtime(os.fspath(Path(path) / TENSORRT_MODEL), inputs, runs, batch)
    if Path(path).is_dir() and contains_saved_model(path):
        return _by_xla(path, inputs, runs, batch)
    raise InvalidArgumentError(
        f"{path}: expected a .tflite or .onnx file, or the folder of a saved model."
    )


def _feed(specs: Mapping[str, tuple[Any, Any]], inputs: Mapping[str, Any] | None, batch: int) -> dict[str, Any]:  # fmt: skip
    """Arrays by name: those given, or zeros."""
    if inputs is not None and set(inputs) != set(specs):
        raise InvalidArgumentError(f"The model takes {sorted(specs)}, got {sorted(inputs)}.")
    if inputs is not None:
        return {n: np.asarray(inputs[n]).astype(dtype) for n, (_, dtype) in specs.items()}
    sizes = {n: [d if isinstance(d, int) else batch for d in shape] for n, (shape, _) in specs.items()}  # fmt: skip
    return {n: np.zeros(sizes[n], dtype) for n, (_, dtype) in specs.items()}


def _timed(run: Any, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


_PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
_NUMPY = {"float": "float32", "double": "float64"}


def _session(runtime: Any, path: str, prefix: str = "") -> Any:
    """A session of a file; it records its nodes into a file whose name begins with the prefix."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.enable_profiling = bool(prefix)
    options.profile_file_prefix = prefix
    providers = [p for p in _PROVIDERS if p in runtime.get_available_providers()]
    try:
        return runtime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # of ONNX Runtime's own classes
        raise DataLossError(f"{path} is no .onnx file, or a damaged one: {error}") from error


def _by_onnx_runtime(path: str, inputs: Any, runs: int, batch: int) -> DeployedProfile:
    runtime = extras.load("onnxruntime", "onnx", "Running ONNX files needs the package onnxruntime")
    start = time.perf_counter()
    session = _session(runtime, path)
    loading = time.perf_counter() - start
    kinds = {i.name: i.type.removeprefix("tensor(").rstrip(")") for i in session.get_inputs()}
    specs = {i.name: (i.shape, _NUMPY.get(kinds[i.name], kinds[i.name])) for i in session.get_inputs()}  # fmt: skip
    feed = _feed(specs, inputs, batch)
    # Recording nodes takes longer than small ones do, so whole calls are timed without.
    first = _timed(lambda: session.run(None, feed), 1)
    seconds = _timed(lambda: session.run(None, feed), runs)
    with tempfile.TemporaryDirectory() as folder:
        recorded = _session(runtime, path, str(Path(folder) / "nodes"))
        for _ in range(runs + 1):
            recorded.run(None, feed)
        written = Path(recorded.end_profiling()).read_text("utf-8", errors="replace")
        events = json.loads(written)
    found: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            found[event["name"].removesuffix("_kernel_time")].append(event)
    operators = []
    for name, calls in found.items():
        each = max(len(calls) // (runs + 1), 1)
        later = calls[each:] or calls
        about = later[0]["args"]
        operators.append(
            Operator(
                name, about.get("op_name", name), len(later) / runs,
                sum(e["dur"] for e in later) / runs / 1e6, sum(e["dur"] for e in calls[:each]) / 1e6,
                int(about.get("output_size", 0)),
            )
        )  # fmt: skip
    operators.sort(key=lambda o: -o.seconds)
    by = session.get_providers()[0].removesuffix("ExecutionProvider")
    return DeployedProfile(path, f"ONNX Runtime ({by})", batch, runs, loading, first, seconds, operators)  # fmt: skip


def _by_xla(path: str, inputs: Any, runs: int, batch: int) -> DeployedProfile:
    start = time.perf_counter()
    signatures = load(path).signatures
    if not signatures:
        raise InvalidArgumentError(f"{path} has no signature that could be run.")
    name = "serving_default" if "serving_default" in signatures else min(signatures)
    function = signatures[name]
    loading = time.perf_counter() - start
    given = function.structured_input_signature[1]
    specs = {n: (s.shape.as_list(), s.dtype.dtype) for n, s in given.items()}
    feed = {n: convert_to_tensor(a) for n, a in _feed(specs, inputs, batch).items()}

    def run() -> None:
        jax.block_until_ready([t._value for t in function(**feed).values()])

    first, begun = _traced(run, 1)
    seconds = _timed(run, runs)
    _, later = _traced(run, runs)
    operators = _of_xla(later, begun, runs)
    device = jax.devices()[0].device_kind
    return DeployedProfile(path, f"XLA ({device})", batch, runs, loading, first, seconds, operators)


def _traced(run: Any, runs: int) -> tuple[float, _Times]:
    """Seconds of a call, and nanoseconds of each of XLA's operations, by program and name."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with _alone(), jax.profiler.trace(folder, profiler_options=options):
            seconds = _timed(run, runs)
        return seconds, _of_trace(folder)


@contextlib.contextmanager
def _alone() -> Any:
    try:
        yield
    except RuntimeError as error:
        raise InvalidArgumentError(f"A profile of this process is being taken already: {error}") from error  # fmt: skip


def _of_trace(folder: str) -> _Times:
    found: _Times = collections.defaultdict(list)
    for file in glob.glob(f"{folder}/**/*.xplane.pb", recursive=True):
        for plane in jax.profiler.ProfileData.from_file(file).planes:
            for line in plane.lines:
                for event in line.events:
                    about = dict(event.stats)
                    if "hlo_op" in about:
                        program = f"{about.get('hlo_module', '')}({about.get('program_id', 0)})"
                        found[program, str(about["hlo_op"])].append(event.duration_ns)
    return found


def _of_xla(later: _Times, begun: _Times, runs: int) -> list[Operator]:
    """Operations with what their programs say of them: what they compute, for which layer, and of how many bytes."""
    programs = describe()["programs"]
    operators = []
    for (program, name), times in later.items():
        known = instruction_of(programs, program, name)
        first, layer = begun.get((program, name)), known.get("layer", "")
        operators.append(
            Operator(
                f"{layer}: {name}" if layer else name, known.get("what") or name.split(".")[0], len(times) / runs,
                sum(times) / runs / 1e9, sum(first) / 1e9 if first else None, known.get("bytes"),
            )
        )  # fmt: skip
    return sorted(operators, key=lambda o: -o.seconds)
