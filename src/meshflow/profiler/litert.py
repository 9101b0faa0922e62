"""Times of a .tflite file's operators, from the profiler of LiteRT's C library, which its Python does not show."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError
from meshflow.environment import extras
from meshflow.profiler.operators import Operator

__all__ = ["profiled"]

_NEEDS = "Profiles of .tflite files need LiteRT, the package ai-edge-litert"
_ROW = re.compile(
    r"^\s*(\S.*?)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)%\s+[\d.]+%\s+([\d.]+)\s+(\d+)\s+(\S.*)$"
)
_TOTAL = re.compile(r"Timings \(microseconds\): count=\d+ .*?(?:curr|sum)=(\d+)")

Found = tuple[float, float, float, list[Operator], str]


def profiled(path: str, inputs: Mapping[str, Any] | None, runs: int, batch: int) -> Found:
    """Runs a model.

    Args:
      path: the file.
      inputs: arrays by name, or None for zeros.
      runs: how often after the first time.
      batch: what open sizes are.

    Returns:
      (seconds to load, of the first call, of a call afterwards, operators, what is missing).

    Raises:
      DataLossError: for a file that is no model.
    """
    content, names, shapes, results = _with_sizes(path, inputs, batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.tflite"
        file.write_bytes(content)
        feed = [
            np.ascontiguousarray(np.zeros(shape, dtype) if inputs is None else np.asarray(inputs[n]).astype(dtype))
            for n, (shape, dtype) in zip(names, shapes, strict=True)
        ]  # fmt: skip
        try:
            loading, first, later = _whole(content, feed, runs)
        except (ValueError, RuntimeError) as refused:
            raise DataLossError(f"{path} cannot be run by LiteRT: {refused}") from refused
        try:
            operators = _by_library(str(file), feed, runs, results)
            note = "" if operators else "LiteRT's summary could not be read."
        except (_Failed, AttributeError, OSError) as error:
            package = extras.load("ai_edge_litert", "lite", _NEEDS)
            version = getattr(package, "__version__", "")
            operators, note = [], f"LiteRT {version} does not tell the times of operators: {error}."
    return loading, first, later, operators, note


class _Result(NamedTuple):
    """What an operator of the file makes: the operator's code, the tensor's name, and its bytes."""

    code: str
    name: str
    bytes: int


def _with_sizes(
    path: str, inputs: Any, batch: int
) -> tuple[bytes, list[str], list[Any], list[_Result]]:
    """The model with sizes for those left open; names, shapes and dtypes of its inputs; its operators' results."""
    schema = extras.load("ai_edge_litert.schema_py_generated", "lite", _NEEDS)
    flatbuffers = extras.load("flatbuffers", "lite", _NEEDS)
    data = Path(path).read_bytes()
    if data[4:8] != b"TFL3":
        raise DataLossError(f"{path} is no .tflite file.")
    try:
        return _sized(schema, flatbuffers, data, inputs, batch)
    except InvalidArgumentError:
        raise
    except Exception as error:  # of any kind: the tables of a damaged file lead anywhere
        raise DataLossError(f"{path} is a damaged .tflite file: {error!r}.") from error


def _sized(
    schema: Any, flatbuffers: Any, data: bytes, inputs: Any, batch: int
) -> tuple[bytes, list[str], list[Any], list[_Result]]:
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(data, 0))
    main = model.subgraphs[0]
    keys = {
        m.tensorIndex: _text(m.name)
        for s in model.signatureDefs or []
        if s.subgraphIndex == 0
        for m in s.inputs
    }
    names = [keys.get(i, _text(main.tensors[i].name)) for i in main.inputs]
    if inputs is not None:
        if set(inputs) != set(names):
            raise InvalidArgumentError(f"The model takes {sorted(names)}, got {sorted(inputs)}.")
        batch = next((len(np.asarray(a)) for a in inputs.values() if np.ndim(a)), batch)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.shapeSignature is not None and len(tensor.shapeSignature):
                tensor.shape = [batch if d == -1 else int(d) for d in tensor.shapeSignature]
                tensor.shapeSignature = None
    kinds = {v: k.lower() for k, v in vars(schema.TensorType).items() if not k.startswith("_")}
    found = [main.tensors[i] for i in main.inputs]
    shapes = [([] if t.shape is None else [int(d) for d in t.shape], kinds[t.type]) for t in found]
    builder = flatbuffers.Builder(len(data) + 1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output()), names, shapes, _results(model, schema, kinds)


def _results(model: Any, schema: Any, kinds: Mapping[int, str]) -> list[_Result]:
    codes = {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_")}
    main, found = model.subgraphs[0], []
    for operator in main.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        made = [main.tensors[i] for i in operator.outputs]
        sizes = [_size(t, kinds) for t in made]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        found.append(_Result(codes.get(number, ""), _text(made[0].name) if made else "", sum(sizes)))  # fmt: skip
    return found


def _size(tensor: Any, kinds: Mapping[int, str]) -> int:
    shape = [] if tensor.shape is None else [int(d) for d in tensor.shape]
    try:
        return math.prod(shape) * np.dtype(kinds[tensor.type]).itemsize
    except TypeError:
        return 0  # Strings and other values without a size.


# The words by which LiteRT's delegates call operators of the file.
_CALLED = {
    **{"CONV_2D": "Conv", "DEPTHWISE_CONV_2D": "Conv", "TRANSPOSE_CONV": "Deconv"},
    **{"FULLY_CONNECTED": "Fully Connected", "SOFTMAX": "Softmax", "RESHAPE": "Static Reshape"},
    **{"ADD": "Add", "MUL": "Multiply", "SUB": "Subtract", "MAX_POOL_2D": "Max Pool"},
    **{"AVERAGE_POOL_2D": "Average Pool", "LOGISTIC": "Sigmoid", "TANH": "Tanh"},
}
# Kinds that are counted together at last: a convolution with a kernel of one pixel is run as a product.
_GROUPS = (*((word,) for word in dict.fromkeys(_CALLED.values())), ("Conv", "Fully Connected"))


def _with_results(operators: list[Operator], results: list[_Result]) -> list[Operator]:
    """Operators, in the order in which they run, with the names and sizes of what the file says they make.

    Of a kind of which there are not as many as in the file, because some are fused or added, nothing is known.
    """
    found = list(operators)
    for words in _GROUPS:
        made = [result for result in results if _CALLED.get(result.code) in words]
        places = [
            n for n, o in enumerate(operators) if re.search(rf"\b({'|'.join(words)})", o.kind)
        ]
        if len(made) == len(places):
            for place, result in zip(places, made, strict=True):
                own = found[place]
                found[place] = dataclasses.replace(
                    own, name=result.name or own.name, bytes=own.bytes or result.bytes
                )
    return found


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _whole(content: bytes, feed: list[Any], runs: int) -> tuple[float, float, float]:
    """Seconds to load, of the first call, and of one afterwards, by the interpreter: recording operators takes longer."""
    module = extras.load("ai_edge_litert.interpreter", "lite", _NEEDS)
    start = time.perf_counter()
    interpreter = module.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    loading = time.perf_counter() - start
    for about, array in zip(interpreter.get_input_details(), feed, strict=True):
        interpreter.set_tensor(about["index"], array)
    return loading, _timed(interpreter.invoke, 1), _timed(interpreter.invoke, runs)


def _timed(run: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


# ---- the C library -------------------------------------------------------------------------


class _Failed(Exception):
    """A function of the library returned an error."""


class _Layout(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("dims", ctypes.c_int32 * 8),
        ("strides", ctypes.c_uint32 * 8),
    ]


class _Ranked(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("layout", _Layout)]


_Pointer, _Size = ctypes.c_void_p, ctypes.c_size_t
_CPU = 1


class _Library:
    def __init__(self) -> None:
        package = extras.load("ai_edge_litert", "lite", _NEEDS)
        folder = os.path.dirname(package.__file__)
        self._library = ctypes.CDLL(os.path.join(folder, "libLiteRt.so"))
        self._c = ctypes.CDLL(None)
        self._c.strdup.restype = _Pointer

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, f"LiteRt{name}")
        function.restype = ctypes.c_int
        status = function(*arguments)
        if status:
            raise _Failed(f"LiteRt{name} gave the status {status}")

    def free(self, name: str, pointer: Any) -> None:
        """Lets go of an object."""
        function = getattr(self._library, f"LiteRtDestroy{name}")
        function.restype = None
        function(pointer)

    def made(self, name: str, *arguments: Any) -> Any:
        """What a function writes through its last argument."""
        result = _Pointer()
        self.call(name, *arguments, ctypes.byref(result))
        return result

    def text_option(self, name: bytes, value: bytes) -> Any:
        """Options as text, which the library frees."""
        payload = _Pointer(self._c.strdup(value))
        free = ctypes.cast(self._c.free, _Pointer)
        return self.made("CreateOpaqueOptions", name, payload, free)


def _by_library(path: str, feed: list[Any], runs: int, results: list[_Result]) -> list[Operator]:
    library = _Library()
    environment = library.made("CreateEnvironment", 0, None)
    model = library.made("CreateModelFromFile", environment, path.encode())
    options = library.made("CreateOptions")
    library.call("SetOptionsHardwareAccelerators", options, _CPU)
    profiling = library.text_option(b"runtime_options_string", b"enable_profiling = true\n")
    library.call("AddOpaqueOptions", options, profiling)
    compiled = library.made("CreateCompiledModel", environment, model, options)
    profiler = library.made("CompiledModelGetProfiler", compiled)
    graph = library.made("GetModelSubgraph", model, _Size(0))
    inputs = _buffers(library, environment, compiled, graph, "Input")
    outputs = _buffers(library, environment, compiled, graph, "Output")
    if len(inputs) != len(feed):
        raise _Failed(f"the library sees {len(inputs)} inputs, the file has {len(feed)}")
    for buffer, array in zip(inputs, feed, strict=True):
        host = _Pointer()
        library.call("LockTensorBuffer", _Pointer(buffer), ctypes.byref(host), 1)
        ctypes.memmove(host, array.ctypes.data, array.nbytes)
        library.call("UnlockTensorBuffer", _Pointer(buffer))

    def run() -> None:
        library.call(
            "RunCompiledModel", compiled, _Size(0), _Size(len(inputs)), inputs, _Size(len(outputs)), outputs
        )  # fmt: skip

    def phase(count: int) -> list[Operator]:
        library.call("ResetProfiler", profiler)
        library.call("StartProfiler", profiler)
        for _ in range(count):
            run()
        library.call("StopProfiler", profiler)
        text = ctypes.c_char_p()
        library.call("GetProfileSummary", profiler, compiled, ctypes.byref(text))
        return _with_results(_operators((text.value or b"").decode(), count), results)

    begun, operators = phase(1), phase(runs)
    early = {(o.name, o.kind): o.seconds for o in begun}
    for operator in operators:
        operator.first_seconds = early.get((operator.name, operator.kind))
    for buffer in (*inputs, *outputs):
        library.free("TensorBuffer", _Pointer(buffer))
    for name, pointer in (("CompiledModel", compiled), ("Options", options), ("Model", model), ("Environment", environment)):  # fmt: skip
        library.free(name, pointer)
    return sorted(operators, key=lambda o: -o.seconds)


def _buffers(library: _Library, environment: Any, compiled: Any, graph: Any, kind: str) -> Any:
    count = _Size()
    library.call(f"GetNumSubgraph{kind}s", graph, ctypes.byref(count))
    found = (_Pointer * count.value)()
    for i in range(count.value):
        ranked = _Ranked()
        tensor = library.made(f"GetSubgraph{kind}", graph, _Size(i))
        library.call("GetRankedTensorType", tensor, ctypes.byref(ranked))
        needs = library.made(f"GetCompiledModel{kind}BufferRequirements", compiled, _Size(0), _Size(i))  # fmt: skip
        buffer = library.made("CreateManagedTensorBufferFromRequirements", environment, ctypes.byref(ranked), needs)  # fmt: skip
        found[i] = buffer.value
    return found


def _operators(text: str, runs: int) -> list[Operator]:
    """The operators of the library's summary, whose times are rounded but whose shares are not."""
    section = text.split("Top by Computation Time")[0]
    total = _TOTAL.search(text)
    whole = int(total[1]) / 1e6 / runs if total else None
    found = []
    for line in section.splitlines():
        row = _ROW.match(line)
        if row is None:
            continue
        kind, _, _, average, share, memory, calls, name = row.groups()
        # An operator of the first call may be counted again.
        each = max(int(calls) // runs, 1)
        seconds = float(share) / 100 * whole if whole is not None else float(average) / 1e3 * each
        size = int(float(memory) * 1e3) or None
        found.append(Operator(name, kind.removeprefix("Delegate/"), each, seconds, None, size))
    return found
