"""Operator times of .tflite files, from the profiler in LiteRT's C library.

LiteRT's Python package does not expose this profiler.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError
from meshflow.environment import optional_packages
from meshflow.environment.types import ArrayLike
from meshflow.profiler.operators import OperatorCosts, measure_seconds

_NEEDS = "Profiles of .tflite files need LiteRT, the package ai-edge-litert"
_ROW = re.compile(
    r"^\s*(\S.*?)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)%\s+[\d.]+%\s+([\d.]+)\s+(\d+)\s+(\S.*)$"
)
_TOTAL = re.compile(r"Timings \(microseconds\): count=\d+ .*?(?:curr|sum)=(\d+)")

LiteRtProfile = tuple[float, float, float, list[OperatorCosts], str]


def profile_file(
    path: str, inputs: Mapping[str, ArrayLike] | None, runs: int, batch: int
) -> LiteRtProfile:
    """Run a model and measure its operators.

    `batch` is the size of unknown dimensions; without `inputs`, the model reads zeros.

    Returns:
      Seconds to load, seconds of the first and of a later call, operators, and a note on missing
      data.

    Raises:
      DataLossError: If the file is not a valid model.
    """
    content, names, shapes, outputs = _resize_model(path, inputs, batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.tflite"
        file.write_bytes(content)
        feed = [
            np.ascontiguousarray(np.zeros(shape, dtype) if inputs is None else np.asarray(inputs[n]).astype(dtype))
            for n, (shape, dtype) in zip(names, shapes, strict=True)
        ]  # fmt: skip
        try:
            load_seconds, first_seconds, seconds = _measure_calls(content, feed, runs)
        except (ValueError, RuntimeError) as error:
            raise DataLossError(f"{path} cannot be run by LiteRT: {error}") from error
        try:
            operators = _profile_with_library(str(file), feed, runs, outputs)
            note = "" if operators else "LiteRT's summary could not be read."
        except (_LibraryError, AttributeError, OSError) as error:
            package = optional_packages.import_extra("ai_edge_litert", "lite", _NEEDS)
            version = getattr(package, "__version__", "")
            note = f"LiteRT {version} does not tell the times of operators: {error}."
            operators = []
    return load_seconds, first_seconds, seconds, operators, note


class _OperatorOutput(NamedTuple):
    """Output of an operator: the operator's code, the tensor's name, and the total bytes."""

    code: str
    name: str
    bytes: int


def _resize_model(
    path: str, inputs: Mapping[str, ArrayLike] | None, batch: int
) -> tuple[bytes, list[str], list[Any], list[_OperatorOutput]]:
    """Set the model's unknown sizes; return it, names and types of inputs, and operator outputs."""
    schema = optional_packages.import_extra("ai_edge_litert.schema_py_generated", "lite", _NEEDS)
    flatbuffers = optional_packages.import_extra("flatbuffers", "lite", _NEEDS)
    data = Path(path).read_bytes()
    if data[4:8] != b"TFL3":
        raise DataLossError(f"{path} is not a .tflite file.")
    try:
        return _parse_model(schema, flatbuffers, data, inputs, batch)
    except InvalidArgumentError:
        raise
    except Exception as error:  # Reading the tables of a damaged file may raise any exception.
        raise DataLossError(f"{path} is a damaged .tflite file: {error!r}.") from error


def _parse_model(
    schema: Any, flatbuffers: Any, data: bytes, inputs: Mapping[str, ArrayLike] | None, batch: int
) -> tuple[bytes, list[str], list[Any], list[_OperatorOutput]]:
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(data, 0))
    main = model.subgraphs[0]
    keys = {
        m.tensorIndex: _decode_name(m.name)
        for s in model.signatureDefs or []
        if s.subgraphIndex == 0
        for m in s.inputs
    }
    names = [keys.get(i, _decode_name(main.tensors[i].name)) for i in main.inputs]
    if inputs is not None:
        if set(inputs) != set(names):
            raise InvalidArgumentError(f"The model takes {sorted(names)}, got {sorted(inputs)}.")
        batch = next((len(np.asarray(a)) for a in inputs.values() if np.ndim(a)), batch)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.shapeSignature is not None and len(tensor.shapeSignature):
                tensor.shape = [batch if d == -1 else int(d) for d in tensor.shapeSignature]
                tensor.shapeSignature = None
    dtypes = {v: k.lower() for k, v in vars(schema.TensorType).items() if not k.startswith("_")}
    tensors = [main.tensors[i] for i in main.inputs]
    shapes = [
        ([] if t.shape is None else [int(d) for d in t.shape], dtypes[t.type]) for t in tensors
    ]
    builder = flatbuffers.Builder(len(data) + 1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output()), names, shapes, _list_outputs(model, schema, dtypes)


def _list_outputs(model: Any, schema: Any, dtypes: Mapping[int, str]) -> list[_OperatorOutput]:
    codes = {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_")}
    main, outputs = model.subgraphs[0], []
    for operator in main.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        tensors = [main.tensors[i] for i in operator.outputs]
        sizes = [_count_bytes(t, dtypes) for t in tensors]
        builtin_code = max(code.builtinCode, code.deprecatedBuiltinCode)
        outputs.append(_OperatorOutput(codes.get(builtin_code, ""), _decode_name(tensors[0].name) if tensors else "", sum(sizes)))  # fmt: skip
    return outputs


def _count_bytes(tensor: Any, dtypes: Mapping[int, str]) -> int:
    shape = [] if tensor.shape is None else [int(d) for d in tensor.shape]
    try:
        return math.prod(shape) * np.dtype(dtypes[tensor.type]).itemsize
    except TypeError:
        return 0  # Strings and other values without a size.


# Prefixes of the names by which LiteRT's delegates show operators of the file.
_DELEGATE_NAMES = {
    **{"CONV_2D": "Conv", "DEPTHWISE_CONV_2D": "Conv", "TRANSPOSE_CONV": "Deconv"},
    **{"FULLY_CONNECTED": "Fully Connected", "SOFTMAX": "Softmax", "RESHAPE": "Static Reshape"},
    **{"ADD": "Add", "MUL": "Multiply", "SUB": "Subtract", "MAX_POOL_2D": "Max Pool"},
    **{"AVERAGE_POOL_2D": "Average Pool", "LOGISTIC": "Sigmoid", "TANH": "Tanh"},
}
# Names that are matched together; last, because a convolution with a 1 x 1 kernel runs as a
# product.
_NAME_GROUPS = (
    *((word,) for word in dict.fromkeys(_DELEGATE_NAMES.values())),
    ("Conv", "Fully Connected"),
)


def _add_outputs(
    operators: list[OperatorCosts], results: list[_OperatorOutput]
) -> list[OperatorCosts]:
    """Add names and sizes of the file's outputs to operators, in order.

    If fusion changed the number of operators of a kind, those are returned unchanged.
    """
    updated = list(operators)
    for words in _NAME_GROUPS:
        outputs = [result for result in results if _DELEGATE_NAMES.get(result.code) in words]
        indices = [
            n for n, o in enumerate(operators) if re.search(rf"\b({'|'.join(words)})", o.kind)
        ]
        if len(outputs) == len(indices):
            for i, result in zip(indices, outputs, strict=True):
                old = updated[i]
                updated[i] = dataclasses.replace(
                    old, name=result.name or old.name, bytes=old.bytes or result.bytes
                )
    return updated


def _decode_name(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _measure_calls(content: bytes, feed: list[Any], runs: int) -> tuple[float, float, float]:
    """Measure loading, the first call and later calls without recording operators, which is slower."""
    module = optional_packages.import_extra("ai_edge_litert.interpreter", "lite", _NEEDS)
    start = time.perf_counter()
    interpreter = module.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    load_seconds = time.perf_counter() - start
    for details, array in zip(interpreter.get_input_details(), feed, strict=True):
        interpreter.set_tensor(details["index"], array)
    return (
        load_seconds,
        measure_seconds(interpreter.invoke, 1),
        measure_seconds(interpreter.invoke, runs),
    )


# ---- the C library -------------------------------------------------------------------------


class _LibraryError(Exception):
    """A function of the library returned an error."""


class _TensorLayout(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("dims", ctypes.c_int32 * 8),
        ("strides", ctypes.c_uint32 * 8),
    ]


class _RankedTensorType(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("layout", _TensorLayout)]


_Pointer, _Size = ctypes.c_void_p, ctypes.c_size_t
_CPU = 1


class _LiteRtLibrary:
    def __init__(self) -> None:
        package = optional_packages.import_extra("ai_edge_litert", "lite", _NEEDS)
        folder = os.path.dirname(package.__file__)
        self._library = ctypes.CDLL(os.path.join(folder, "libLiteRt.so"))
        self._c = ctypes.CDLL(None)
        self._c.strdup.restype = _Pointer

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, f"LiteRt{name}")
        function.restype = ctypes.c_int
        status = function(*arguments)
        if status:
            raise _LibraryError(f"LiteRt{name} gave the status {status}")

    def free(self, name: str, pointer: Any) -> None:
        """Destroy an object."""
        function = getattr(self._library, f"LiteRtDestroy{name}")
        function.restype = None
        function(pointer)

    def create(self, name: str, *arguments: Any) -> Any:
        """Call a function and return the object that it writes to its last argument."""
        result = _Pointer()
        self.call(name, *arguments, ctypes.byref(result))
        return result

    def create_text_option(self, name: bytes, value: bytes) -> Any:
        """Return text options, which the library frees."""
        payload = _Pointer(self._c.strdup(value))
        free = ctypes.cast(self._c.free, _Pointer)
        return self.create("CreateOpaqueOptions", name, payload, free)


def _profile_with_library(
    path: str, feed: list[Any], runs: int, results: list[_OperatorOutput]
) -> list[OperatorCosts]:
    library = _LiteRtLibrary()
    environment = library.create("CreateEnvironment", 0, None)
    model = library.create("CreateModelFromFile", environment, path.encode())
    options = library.create("CreateOptions")
    library.call("SetOptionsHardwareAccelerators", options, _CPU)
    profiling = library.create_text_option(b"runtime_options_string", b"enable_profiling = true\n")
    library.call("AddOpaqueOptions", options, profiling)
    compiled = library.create("CreateCompiledModel", environment, model, options)
    profiler = library.create("CompiledModelGetProfiler", compiled)
    graph = library.create("GetModelSubgraph", model, _Size(0))
    inputs = _create_buffers(library, environment, compiled, graph, "Input")
    outputs = _create_buffers(library, environment, compiled, graph, "Output")
    if len(inputs) != len(feed):
        raise _LibraryError(f"the library has {len(inputs)} inputs, the file {len(feed)}")
    for buffer, array in zip(inputs, feed, strict=True):
        host = _Pointer()
        library.call("LockTensorBuffer", _Pointer(buffer), ctypes.byref(host), 1)
        ctypes.memmove(host, array.ctypes.data, array.nbytes)
        library.call("UnlockTensorBuffer", _Pointer(buffer))

    def run() -> None:
        library.call(
            "RunCompiledModel", compiled, _Size(0), _Size(len(inputs)), inputs, _Size(len(outputs)), outputs
        )  # fmt: skip

    def phase(count: int) -> list[OperatorCosts]:
        library.call("ResetProfiler", profiler)
        library.call("StartProfiler", profiler)
        for _ in range(count):
            run()
        library.call("StopProfiler", profiler)
        text = ctypes.c_char_p()
        library.call("GetProfileSummary", profiler, compiled, ctypes.byref(text))
        return _add_outputs(_parse_operators((text.value or b"").decode(), count), results)

    first_operators, operators = phase(1), phase(runs)
    first_seconds = {(o.name, o.kind): o.seconds for o in first_operators}
    for operator in operators:
        operator.first_seconds = first_seconds.get((operator.name, operator.kind))
    for buffer in (*inputs, *outputs):
        library.free("TensorBuffer", _Pointer(buffer))
    for name, pointer in (("CompiledModel", compiled), ("Options", options), ("Model", model), ("Environment", environment)):  # fmt: skip
        library.free(name, pointer)
    return sorted(operators, key=lambda o: -o.seconds)


def _create_buffers(
    library: _LiteRtLibrary, environment: Any, compiled: Any, graph: Any, kind: str
) -> Any:
    count = _Size()
    library.call(f"GetNumSubgraph{kind}s", graph, ctypes.byref(count))
    buffers = (_Pointer * count.value)()
    for i in range(count.value):
        tensor_type = _RankedTensorType()
        tensor = library.create(f"GetSubgraph{kind}", graph, _Size(i))
        library.call("GetRankedTensorType", tensor, ctypes.byref(tensor_type))
        requirements = library.create(f"GetCompiledModel{kind}BufferRequirements", compiled, _Size(0), _Size(i))  # fmt: skip
        buffer = library.create("CreateManagedTensorBufferFromRequirements", environment, ctypes.byref(tensor_type), requirements)  # fmt: skip
        buffers[i] = buffer.value
    return buffers


def _parse_operators(text: str, runs: int) -> list[OperatorCosts]:
    """Parse the operators of the library's summary: times are rounded, but percentages are precise."""
    section = text.split("Top by Computation Time")[0]
    total = _TOTAL.search(text)
    run_seconds = int(total[1]) / 1e6 / runs if total else None
    operators = []
    for line in section.splitlines():
        row = _ROW.match(line)
        if row is None:
            continue
        kind, _, _, average, share, memory, calls, name = row.groups()
        # The first call may count an operator more often.
        calls_per_run = max(int(calls) // runs, 1)
        seconds = (
            float(share) / 100 * run_seconds
            if run_seconds is not None
            else float(average) / 1e3 * calls_per_run
        )
        size = int(float(memory) * 1e3) or None
        operators.append(
            OperatorCosts(name, kind.removeprefix("Delegate/"), calls_per_run, seconds, None, size)
        )
    return operators
