"""Profiles of deployed models by operator.

LiteRT runs .tflite files, ONNX Runtime .onnx files, and XLA saved models.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, NotFoundError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.environment import optional_packages
from meshflow.environment.types import ArrayLike, StrPath
from meshflow.profiler import deployed_page
from meshflow.profiler.description import describe_process
from meshflow.profiler.litert import profile_file as by_litert
from meshflow.profiler.operators import OperatorCosts, measure_seconds
from meshflow.profiler.report import find_instruction
from meshflow.saved_model.loader import (
    TENSORRT_FILE,
    TENSORRT_MODEL,
    contains_saved_model,
    load,
)
from meshflow.saved_model.programs.restored_signatures import RestoredSignature

# Nanoseconds of the runs of each operation, by program and name.
_Times = dict[tuple[str, str], list[float]]
_N = TypeVar("_N", int, float)


@dataclasses.dataclass
class DeployedProfile:
    """Profile of a deployed model.

    Attributes:
      file: Path of the model.
      runtime: Runtime that ran it.
      batch: Number of rows of each call.
      runs: Number of calls over which times are averaged.
      load_seconds: Seconds to load it.
      first_seconds: Seconds of the first call, which may include compilation.
      seconds: Mean seconds of a later call.
      operators: Operators, the slowest first; those inside loops are also counted in the loop's
        time.
      note: Missing information, or empty.
    """

    file: str
    runtime: str
    batch: int
    runs: int
    load_seconds: float
    first_seconds: float
    seconds: float
    operators: list[OperatorCosts]
    note: str = ""

    def by_kind(self) -> list[OperatorCosts]:
        """Return the sums of the operators of each kind."""
        kinds: dict[str, OperatorCosts] = {}
        for operator in self.operators:
            total = kinds.get(operator.kind)
            if total is None:
                kinds[operator.kind] = dataclasses.replace(operator, name=operator.kind)
                continue
            kinds[operator.kind] = OperatorCosts(
                operator.kind,
                operator.kind,
                total.calls + operator.calls,
                total.seconds + operator.seconds,
                _add_optional(total.first_seconds, operator.first_seconds),
                _add_optional(total.bytes, operator.bytes),
            )
        return sorted(kinds.values(), key=lambda o: -o.seconds)

    def write_page(self, path: StrPath) -> str:
        """Write an HTML page with time, memory and calls of the operators, which needs no network.

        Args:
          path: Path of the file, local or in an object store.

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


def _add_optional(a: _N | None, b: _N | None) -> _N | None:
    return b if a is None else a if b is None else a + b


def profile_model(
    model: StrPath, inputs: Mapping[str, ArrayLike] | None = None, runs: int = 50, batch: int = 1
) -> DeployedProfile:
    """Run a deployed model many times and measure the time of its operators.

    Args:
      model: Path of a .tflite or .onnx file, or the folder of a saved model.
      inputs: Arrays by the names of inputs; default: zeros.
      runs: Number of calls after the first one.
      batch: Number of rows of the zeros, where the model does not specify it.

    Returns:
      A `DeployedProfile`; `str` formats it as a table.

    Raises:
      NotFoundError: If the path does not exist.
      InvalidArgumentError: If the path is not such a model, or inputs have other names.
      DataLossError: If the file is damaged.
      ImportError: If the package that runs the model is not installed.

    Example:
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
    is_file = Path(path).suffix in (".tflite", ".onnx") and Path(path).is_file()
    if Path(path).suffix == ".tflite" and is_file:
        load_seconds, first, seconds, operators, note = by_litert(path, inputs, runs, batch)
        return DeployedProfile(
            path, "LiteRT", batch, runs, load_seconds, first, seconds, operators, note
        )
    if is_file:
        return _profile_with_onnx_runtime(path, inputs, runs, batch)
    if (Path(path) / TENSORRT_FILE).is_file():
        return _profile_with_onnx_runtime(
            os.fspath(Path(path) / TENSORRT_MODEL), inputs, runs, batch
        )
    if Path(path).is_dir() and contains_saved_model(path):
        return _profile_with_xla(path, inputs, runs, batch)
    raise InvalidArgumentError(
        f"{path}: expected a .tflite or .onnx file, or the folder of a saved model."
    )


def _make_inputs(specs: Mapping[str, tuple[Any, Any]], inputs: Mapping[str, Any] | None, batch: int) -> dict[str, Any]:  # fmt: skip
    """Return arrays by name: the explicit inputs, or zeros."""
    if inputs is not None and set(inputs) != set(specs):
        raise InvalidArgumentError(f"The model takes {sorted(specs)}, got {sorted(inputs)}.")
    if inputs is not None:
        return {n: np.asarray(inputs[n]).astype(dtype) for n, (_, dtype) in specs.items()}
    sizes = {n: [d if isinstance(d, int) else batch for d in shape] for n, (shape, _) in specs.items()}  # fmt: skip
    return {n: np.zeros(sizes[n], dtype) for n, (_, dtype) in specs.items()}


_PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
_NUMPY = {"float": "float32", "double": "float64"}


def _create_session(runtime: Any, path: str, prefix: str = "") -> Any:
    """Create a session of a file; with a prefix, it records its nodes to a file with this prefix."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.enable_profiling = bool(prefix)
    options.profile_file_prefix = prefix
    providers = [p for p in _PROVIDERS if p in runtime.get_available_providers()]
    try:
        return runtime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # ONNX Runtime's exceptions have no public base class.
        raise DataLossError(f"{path} is not an .onnx file, or is damaged: {error}") from error


def _profile_with_onnx_runtime(path: str, inputs: Any, runs: int, batch: int) -> DeployedProfile:
    runtime = optional_packages.import_extra(
        "onnxruntime", "onnx", "Running ONNX files needs the package onnxruntime"
    )
    start = time.perf_counter()
    session = _create_session(runtime, path)
    load_seconds = time.perf_counter() - start
    kinds = {i.name: i.type.removeprefix("tensor(").rstrip(")") for i in session.get_inputs()}
    specs = {i.name: (i.shape, _NUMPY.get(kinds[i.name], kinds[i.name])) for i in session.get_inputs()}  # fmt: skip
    feed = _make_inputs(specs, inputs, batch)
    # Recording small nodes takes longer than running them, so total times are measured without
    # recording.
    first = measure_seconds(lambda: session.run(None, feed), 1)
    seconds = measure_seconds(lambda: session.run(None, feed), runs)
    with tempfile.TemporaryDirectory() as folder:
        recorded = _create_session(runtime, path, str(Path(folder) / "nodes"))
        for _ in range(runs + 1):
            recorded.run(None, feed)
        text = Path(recorded.end_profiling()).read_text("utf-8", errors="replace")
        events = json.loads(text)
    calls_by_name: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            calls_by_name[event["name"].removesuffix("_kernel_time")].append(event)
    operators = []
    for name, calls in calls_by_name.items():
        calls_per_run = max(len(calls) // (runs + 1), 1)
        later = calls[calls_per_run:] or calls
        arguments = later[0]["args"]
        operators.append(
            OperatorCosts(
                name, arguments.get("op_name", name), len(later) / runs,
                sum(e["dur"] for e in later) / runs / 1e6, sum(e["dur"] for e in calls[:calls_per_run]) / 1e6,
                int(arguments.get("output_size", 0)),
            )
        )  # fmt: skip
    operators.sort(key=lambda o: -o.seconds)
    provider = session.get_providers()[0].removesuffix("ExecutionProvider")
    return DeployedProfile(path, f"ONNX Runtime ({provider})", batch, runs, load_seconds, first, seconds, operators)  # fmt: skip


def _profile_with_xla(path: str, inputs: Any, runs: int, batch: int) -> DeployedProfile:
    start = time.perf_counter()
    signatures = load(path).signatures
    if not signatures:
        raise InvalidArgumentError(f"{path} has no signature that could be run.")
    name = "serving_default" if "serving_default" in signatures else min(signatures)
    function = signatures[name]
    if isinstance(function, RestoredSignature):
        function.disable_interpreter()
    load_seconds = time.perf_counter() - start
    signature = function.structured_input_signature[1]
    specs = {n: (s.shape.as_list(), s.dtype.dtype) for n, s in signature.items()}
    feed = {n: convert_to_tensor(a) for n, a in _make_inputs(specs, inputs, batch).items()}

    def run() -> None:
        jax.block_until_ready([t.array for t in function(**feed).values()])

    first, first_times = _trace_calls(run, 1)
    seconds = measure_seconds(run, runs)
    _, later_times = _trace_calls(run, runs)
    operators = _make_operators(later_times, first_times, runs)
    device = jax.devices()[0].device_kind
    return DeployedProfile(
        path, f"XLA ({device})", batch, runs, load_seconds, first, seconds, operators
    )


def _trace_calls(run: Callable[[], object], runs: int) -> tuple[float, _Times]:
    """Return the mean seconds of a call, and the times of XLA's operations."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with _convert_trace_errors(), jax.profiler.trace(folder, profiler_options=options):
            seconds = measure_seconds(run, runs)
        return seconds, _read_times(folder)


@contextlib.contextmanager
def _convert_trace_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise InvalidArgumentError(f"A profile of this process is being taken already: {error}") from error  # fmt: skip


def _read_times(folder: str) -> _Times:
    times: _Times = collections.defaultdict(list)
    for file in glob.glob(f"{folder}/**/*.xplane.pb", recursive=True):
        for plane in jax.profiler.ProfileData.from_file(file).planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats:
                        program = f"{stats.get('hlo_module', '')}({stats.get('program_id', 0)})"
                        times[program, str(stats["hlo_op"])].append(event.duration_ns)
    return times


def _make_operators(later_times: _Times, first_times: _Times, runs: int) -> list[OperatorCosts]:
    """Return the operators with the operation, layer and bytes from their programs."""
    programs = describe_process()["programs"]
    operators = []
    for (program, name), times in later_times.items():
        instruction = find_instruction(programs, program, name)
        first_ns, layer = first_times.get((program, name)), instruction.get("layer", "")
        operators.append(
            OperatorCosts(
                f"{layer}: {name}" if layer else name, instruction.get("what") or name.split(".")[0], len(times) / runs,
                sum(times) / runs / 1e9, sum(first_ns) / 1e9 if first_ns else None, instruction.get("bytes"),
            )
        )  # fmt: skip
    return sorted(operators, key=lambda o: -o.seconds)
