"""Graph of a .tflite file before serialization: tensors, operators and subgraphs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from meshflow.deployment.equations import DimSize
from meshflow.environment import optional_packages

# Element type of the handle of a variable.
RESOURCE = np.dtype(object)
# Operators with side effects, which are kept without consumers of their results.
_SIDE_EFFECT_OPERATORS = {"CALL_ONCE", "ASSIGN_VARIABLE"}

# FlatBuffers have offsets of at most 2 GiB.
_MAX_BYTES = 1 << 31
_MIN_RUNTIME_VERSION = "1"


def load_schema() -> ModuleType:
    """Import the generated classes of the file format.

    Raises:
      ImportError: if the extra `lite` is not installed.
    """
    return optional_packages.import_extra(
        "ai_edge_litert.schema_py_generated",
        "lite",
        "tf.lite needs LiteRT, the package ai-edge-litert",
    )


@dataclasses.dataclass
class Quantization:
    """Mapping of integers to real values: `scale * (integer - zero_point)`.

    Attributes:
      scales, zero_points: one value, or one for each index of a dimension.
      dimension: that dimension.
    """

    scales: np.ndarray
    zero_points: np.ndarray
    dimension: int = 0


@dataclasses.dataclass(eq=False)
class LiteTensor:
    """Tensor of a subgraph.

    Attributes:
      shape: sizes; symbolic sizes are dynamic.
      dtype: element type.
      name: name in profiles.
      data: elements of a constant.
      quantization: mapping of quantized integers to real values.
    """

    shape: tuple[DimSize, ...]
    dtype: np.dtype
    name: str = ""
    data: np.ndarray | None = None
    quantization: Quantization | None = None


@dataclasses.dataclass(eq=False)
class LiteOperator:
    """Operator of a subgraph.

    Attributes:
      code: name of the builtin or custom operator.
      inputs, outputs: tensors; None for an optional operand that is absent.
      options: fields of its options, with the name of their FlatBuffers table as 'kind'; the
        options
        of a custom operator have no table.
      version: version of the operator.
      scope: layer from which it was converted.
    """

    code: str
    inputs: list[LiteTensor | None]
    outputs: list[LiteTensor]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    version: int = 1
    scope: str = ""


@dataclasses.dataclass(eq=False)
class Subgraph:
    """Operators in topological order, with inputs and outputs."""

    name: str
    inputs: list[LiteTensor] = dataclasses.field(default_factory=list)
    outputs: list[LiteTensor] = dataclasses.field(default_factory=list)
    operators: list[LiteOperator] = dataclasses.field(default_factory=list)

    def list_tensors(self) -> list[LiteTensor]:
        """Return all tensors, in the order of their indices in the file."""
        found: dict[LiteTensor, None] = dict.fromkeys(self.inputs)
        for operator in self.operators:
            found |= dict.fromkeys(t for t in operator.inputs if t is not None)
            found |= dict.fromkeys(operator.outputs)
        return [*(found | dict.fromkeys(self.outputs))]

    def find_consumers(self) -> dict[LiteTensor, list[LiteOperator]]:
        """Return the operators that read each tensor."""
        found: dict[LiteTensor, list[LiteOperator]] = {}
        for operator in self.operators:
            for tensor in operator.inputs:
                if tensor is not None:
                    found.setdefault(tensor, []).append(operator)
        return found

    def find_producers(self) -> dict[LiteTensor, LiteOperator]:
        """Return the operator that computes each tensor."""
        return {t: o for o in self.operators for t in o.outputs}

    def remove_unused_operators(self) -> None:
        """Remove operators without consumers (dead-code elimination)."""
        needed, used = set(self.outputs), []
        for operator in reversed(self.operators):
            if operator.code in _SIDE_EFFECT_OPERATORS or needed.intersection(operator.outputs):
                used.append(operator)
                needed.update(t for t in operator.inputs if t is not None)
        self.operators = used[::-1]


@dataclasses.dataclass(eq=False)
class LiteModel:
    """Model of several subgraphs.

    Attributes:
      subgraphs: subgraphs of signatures, and of loops and branches.
      signatures: for each signature its name, the index of its subgraph, and the names of its
        inputs
        and outputs.
    """

    subgraphs: list[Subgraph] = dataclasses.field(default_factory=list)
    signatures: list[tuple[str, int, list[str], list[str]]] = dataclasses.field(
        default_factory=list
    )

    def iterate_operators(self) -> Iterator[LiteOperator]:
        """Iterate over the operators of all subgraphs."""
        for subgraph in self.subgraphs:
            yield from subgraph.operators


def copy_graph(graph: LiteModel) -> tuple[LiteModel, dict[LiteTensor, LiteTensor]]:
    """Copy a graph, so that it can be rewritten; the elements of constants are shared.

    Returns:
      The copy, and its tensors by the tensors of `graph`.
    """
    tensors = {t: dataclasses.replace(t) for g in graph.subgraphs for t in g.list_tensors()}
    result = LiteModel([], list(graph.signatures))
    for subgraph in graph.subgraphs:
        copy = Subgraph(subgraph.name)
        copy.inputs = [tensors[t] for t in subgraph.inputs]
        copy.outputs = [tensors[t] for t in subgraph.outputs]
        for o in subgraph.operators:
            inputs = [None if t is None else tensors[t] for t in o.inputs]
            outputs = [tensors[t] for t in o.outputs]
            copy.operators.append(
                dataclasses.replace(o, inputs=inputs, outputs=outputs, options=dict(o.options))
            )
        result.subgraphs.append(copy)
    return result, tensors


def serialize(graph: LiteModel) -> bytes:
    """Return the content of the .tflite file of a graph.

    Raises:
      ValueError: if the constants have 2 GiB or more.
    """
    return _GraphSerializer(graph).serialize()


class _GraphSerializer:
    def __init__(self, graph: LiteModel) -> None:
        self._schema = load_schema()
        self._flatbuffers = optional_packages.import_extra(
            "flatbuffers", "lite", "tf.lite needs the package flatbuffers"
        )
        self._graph = graph
        self._codes: dict[tuple[str, int], int] = {}
        self._buffers: list[Any] = [self._schema.BufferT()]
        self._buffer_indices: dict[Any, int] = {}

    def serialize(self) -> bytes:
        size = sum(t.data.nbytes for g in self._graph.subgraphs for t in g.list_tensors() if t.data is not None)  # fmt: skip
        if size >= _MAX_BYTES:
            raise ValueError(
                f"The model has {size / 1e9:.1f} GB of constants; a .tflite file has at most 2 GB. Quantize its weights."
            )
        model = self._schema.ModelT()
        model.version, model.description = 3, "Meshflow"
        model.subgraphs = [self._make_subgraph(g) for g in self._graph.subgraphs]
        model.signatureDefs = [self._make_signature(*s) for s in self._graph.signatures]
        model.operatorCodes = [self._make_operator_code(*key) for key in self._codes]
        metadata = self._schema.MetadataT()
        metadata.name = "min_runtime_version"
        metadata.buffer = self._add_buffer(
            np.frombuffer(_MIN_RUNTIME_VERSION.ljust(16, "\0").encode(), np.uint8)
        )
        model.metadata, model.buffers = [metadata], self._buffers
        builder = self._flatbuffers.Builder(1024 + size)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _make_operator_code(self, name: str, version: int) -> Any:
        code = self._schema.OperatorCodeT()
        code.builtinCode = getattr(
            self._schema.BuiltinOperator, name, self._schema.BuiltinOperator.CUSTOM
        )
        if code.builtinCode == self._schema.BuiltinOperator.CUSTOM:
            code.customCode = name
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = version
        return code

    def _add_buffer(self, data: np.ndarray) -> int:
        # Equal constants, such as weights that the subgraph of a loop reads too, share a buffer.
        key = hashlib.sha256(data.tobytes()).digest() if data.nbytes > 64 else data.tobytes()
        if key not in self._buffer_indices:
            buffer = self._schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self._buffer_indices[key] = len(self._buffers)
            self._buffers.append(buffer)
        return self._buffer_indices[key]

    def _make_signature(self, name: str, index: int, inputs: list[str], outputs: list[str]) -> Any:
        signature = self._schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = name, index
        graph = self._graph.subgraphs[index]
        indices = {t: i for i, t in enumerate(graph.list_tensors())}

        def make_maps(names: list[str], tensors: Sequence[LiteTensor]) -> list[Any]:
            entries = [self._schema.TensorMapT() for _ in names]
            for entry, key, tensor in zip(entries, names, tensors, strict=True):
                entry.name, entry.tensorIndex = key, indices[tensor]
            return entries

        signature.inputs = make_maps(inputs, graph.inputs)
        signature.outputs = make_maps(outputs, graph.outputs)
        return signature

    def _make_subgraph(self, graph: Subgraph) -> Any:
        tensors = graph.list_tensors()
        indices = {t: i for i, t in enumerate(tensors)}
        subgraph = self._schema.SubGraphT()
        subgraph.name = graph.name
        subgraph.tensors = [self._make_tensor(t, i) for i, t in enumerate(tensors)]
        subgraph.inputs = [indices[t] for t in graph.inputs]
        subgraph.outputs = [indices[t] for t in graph.outputs]
        subgraph.operators = [self._make_operator(o, indices) for o in graph.operators]
        return subgraph

    def _make_tensor(self, tensor: LiteTensor, index: int) -> Any:
        result = self._schema.TensorT()
        result.name = tensor.name or f"tensor_{index}"
        result.type = getattr(self._schema.TensorType, _TENSOR_TYPES[np.dtype(tensor.dtype).name])
        sizes = [int(d) if isinstance(d, (int, np.integer)) else -1 for d in tensor.shape]
        result.shape = [1 if d < 0 else d for d in sizes]
        result.hasRank = True
        if -1 in sizes:
            result.shapeSignature = sizes
        result.buffer = 0 if tensor.data is None else self._add_buffer(tensor.data)
        if tensor.quantization is not None:
            parameters = self._schema.QuantizationParametersT()
            parameters.scale = (
                np.asarray(tensor.quantization.scales, np.float32).reshape(-1).tolist()
            )
            parameters.zeroPoint = np.asarray(tensor.quantization.zero_points).reshape(-1).tolist()
            parameters.quantizedDimension = tensor.quantization.dimension
            result.quantization = parameters
        return result

    def _make_operator(self, operator: LiteOperator, indices: dict[LiteTensor, int]) -> Any:
        result = self._schema.OperatorT()
        key = operator.code, operator.version
        result.opcodeIndex = self._codes.setdefault(key, len(self._codes))
        result.inputs = [-1 if t is None else indices[t] for t in operator.inputs]
        result.outputs = [indices[t] for t in operator.outputs]
        fields = dict(operator.options)
        table = fields.pop("kind", None)
        if table is not None:
            options = getattr(self._schema, f"{table}T")()
            for name, value in fields.items():
                assert hasattr(options, name), (table, name)
                setattr(options, name, value)
            result.builtinOptions = options
            result.builtinOptionsType = getattr(self._schema.BuiltinOptions, table)
        elif fields:
            flexbuffers = optional_packages.import_extra(
                "flatbuffers.flexbuffers", "lite", "tf.lite needs the package flatbuffers"
            )
            result.customOptions = np.frombuffer(flexbuffers.Dumps(fields), np.uint8)
        return result


_TENSOR_TYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int32": "INT32", "uint8": "UINT8", "int64": "INT64",
    "bool": "BOOL", "int16": "INT16", "int8": "INT8", "uint32": "UINT32", "uint16": "UINT16",
    "complex64": "COMPLEX64", "object": "RESOURCE",
}  # fmt: skip
