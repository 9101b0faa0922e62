"""A .tflite file before it is written: tensors, operators and subgraphs, and the writing of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.environment import extras

__all__ = [
    "RESOURCE",
    "Graph",
    "Operator",
    "Quantization",
    "Subgraph",
    "Tensor",
    "copied",
    "schema",
    "written",
]

# The dtype of what stands for a variable.
RESOURCE = np.dtype(object)
# Operators that are there for what they do, not for a result.
_ACTING = {"CALL_ONCE", "ASSIGN_VARIABLE"}

# Buffers from this size on lie outside the flatbuffer, whose offsets end at 2 GB.
_LARGEST = 1 << 31
_VERSION = "1"


def schema() -> Any:
    """The classes of the file format.

    Raises:
      ImportError: without the extra `lite`.
    """
    return extras.load(
        "ai_edge_litert.schema_py_generated",
        "lite",
        "tf.lite needs LiteRT, the package ai-edge-litert",
    )


@dataclasses.dataclass
class Quantization:
    """How integers stand for numbers: `scale * (integer - zero_point)`.

    Attributes:
      scales, zero_points: one, or one for each index of a dimension.
      dimension: that dimension.
    """

    scales: np.ndarray
    zero_points: np.ndarray
    dimension: int = 0


@dataclasses.dataclass(eq=False)
class Tensor:
    """A tensor of a subgraph.

    Attributes:
      shape: sizes; what is no number varies.
      dtype: the element type.
      name: for people and profiles.
      data: the elements of a constant.
      quantization: of integers that stand for numbers.
    """

    shape: tuple[Any, ...]
    dtype: np.dtype
    name: str = ""
    data: np.ndarray | None = None
    quantization: Quantization | None = None


@dataclasses.dataclass(eq=False)
class Operator:
    """An operator of a subgraph.

    Attributes:
      code: the builtin operator's name, or a custom operator's.
      inputs, outputs: tensors; None for an operand that is left out.
      options: fields of its options, with 'kind' their table's name; a custom operator's have none.
      version: of the operator.
      scope: which layer it comes from.
    """

    code: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    version: int = 1
    scope: str = ""


@dataclasses.dataclass(eq=False)
class Subgraph:
    """Operators between inputs and outputs."""

    name: str
    inputs: list[Tensor] = dataclasses.field(default_factory=list)
    outputs: list[Tensor] = dataclasses.field(default_factory=list)
    operators: list[Operator] = dataclasses.field(default_factory=list)

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which the file numbers them."""
        found: dict[Tensor, None] = dict.fromkeys(self.inputs)
        for operator in self.operators:
            found |= dict.fromkeys(t for t in operator.inputs if t is not None)
            found |= dict.fromkeys(operator.outputs)
        return [*(found | dict.fromkeys(self.outputs))]

    def readers(self) -> dict[Tensor, list[Operator]]:
        """The operators that read each tensor."""
        found: dict[Tensor, list[Operator]] = {}
        for operator in self.operators:
            for tensor in operator.inputs:
                if tensor is not None:
                    found.setdefault(tensor, []).append(operator)
        return found

    def makers(self) -> dict[Tensor, Operator]:
        """The operator that makes each tensor."""
        return {t: o for o in self.operators for t in o.outputs}

    def drop_unused(self) -> None:
        """Drops operators whose results nothing reads."""
        needed, kept = set(self.outputs), []
        for operator in reversed(self.operators):
            if operator.code in _ACTING or needed.intersection(operator.outputs):
                kept.append(operator)
                needed.update(t for t in operator.inputs if t is not None)
        self.operators = kept[::-1]


@dataclasses.dataclass(eq=False)
class Graph:
    """A model.

    Attributes:
      subgraphs: those of signatures, and of loops and branches.
      signatures: (name, number of the subgraph, names of inputs, names of outputs).
    """

    subgraphs: list[Subgraph] = dataclasses.field(default_factory=list)
    signatures: list[tuple[str, int, list[str], list[str]]] = dataclasses.field(
        default_factory=list
    )

    def operators(self) -> Iterator[Operator]:
        """All operators."""
        for subgraph in self.subgraphs:
            yield from subgraph.operators


def copied(graph: Graph) -> tuple[Graph, dict[Tensor, Tensor]]:
    """A model of tensors and operators of its own, which may be rewritten, and its tensors by those of the other.

    Args:
      graph: the model; both share the elements of constants.
    """
    tensors = {t: dataclasses.replace(t) for g in graph.subgraphs for t in g.tensors()}
    found = Graph([], list(graph.signatures))
    for subgraph in graph.subgraphs:
        made = Subgraph(subgraph.name)
        made.inputs = [tensors[t] for t in subgraph.inputs]
        made.outputs = [tensors[t] for t in subgraph.outputs]
        for o in subgraph.operators:
            inputs = [None if t is None else tensors[t] for t in o.inputs]
            outputs = [tensors[t] for t in o.outputs]
            made.operators.append(
                dataclasses.replace(o, inputs=inputs, outputs=outputs, options=dict(o.options))
            )
        found.subgraphs.append(made)
    return found, tensors


def written(graph: Graph) -> bytes:
    """The file's content.

    Args:
      graph: the model.

    Raises:
      ValueError: for more than 2 GB.
    """
    return _Writer(graph).content()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self._s = schema()
        self._flatbuffers = extras.load(
            "flatbuffers", "lite", "tf.lite needs the package flatbuffers"
        )
        self._graph = graph
        self._codes: dict[tuple[str, int], int] = {}
        self._buffers: list[Any] = [self._s.BufferT()]
        self._seen: dict[Any, int] = {}

    def content(self) -> bytes:
        size = sum(t.data.nbytes for g in self._graph.subgraphs for t in g.tensors() if t.data is not None)  # fmt: skip
        if size >= _LARGEST:
            raise ValueError(
                f"The model has {size / 1e9:.1f} GB of constants; a .tflite file has at most 2 GB. Quantize its weights."
            )
        model = self._s.ModelT()
        model.version, model.description = 3, "Meshflow"
        model.subgraphs = [self._subgraph(g) for g in self._graph.subgraphs]
        model.signatureDefs = [self._signature(*s) for s in self._graph.signatures]
        model.operatorCodes = [self._code(*key) for key in self._codes]
        metadata = self._s.MetadataT()
        metadata.name = "min_runtime_version"
        metadata.buffer = self._buffer(np.frombuffer(_VERSION.ljust(16, "\0").encode(), np.uint8))
        model.metadata, model.buffers = [metadata], self._buffers
        builder = self._flatbuffers.Builder(1024 + size)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _code(self, name: str, version: int) -> Any:
        code = self._s.OperatorCodeT()
        code.builtinCode = getattr(self._s.BuiltinOperator, name, self._s.BuiltinOperator.CUSTOM)
        if code.builtinCode == self._s.BuiltinOperator.CUSTOM:
            code.customCode = name
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = version
        return code

    def _buffer(self, data: np.ndarray) -> int:
        # A subgraph of a loop reads the same weights again.
        key = hashlib.sha256(data.tobytes()).digest() if data.nbytes > 64 else data.tobytes()
        if key not in self._seen:
            buffer = self._s.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self._seen[key] = len(self._buffers)
            self._buffers.append(buffer)
        return self._seen[key]

    def _signature(self, name: str, place: int, inputs: list[str], outputs: list[str]) -> Any:
        found = self._s.SignatureDefT()
        found.signatureKey, found.subgraphIndex = name, place
        graph = self._graph.subgraphs[place]
        numbers = {t: i for i, t in enumerate(graph.tensors())}

        def maps(names: list[str], tensors: Sequence[Tensor]) -> list[Any]:
            made = []
            for key, tensor in zip(names, tensors, strict=True):
                entry = self._s.TensorMapT()
                entry.name, entry.tensorIndex = key, numbers[tensor]
                made.append(entry)
            return made

        found.inputs, found.outputs = maps(inputs, graph.inputs), maps(outputs, graph.outputs)
        return found

    def _subgraph(self, graph: Subgraph) -> Any:
        tensors = graph.tensors()
        numbers = {t: i for i, t in enumerate(tensors)}
        found = self._s.SubGraphT()
        found.name = graph.name
        found.tensors = [self._tensor(t, i) for i, t in enumerate(tensors)]
        found.inputs = [numbers[t] for t in graph.inputs]
        found.outputs = [numbers[t] for t in graph.outputs]
        found.operators = [self._operator(o, numbers) for o in graph.operators]
        return found

    def _tensor(self, tensor: Tensor, number: int) -> Any:
        found = self._s.TensorT()
        found.name = tensor.name or f"tensor_{number}"
        found.type = getattr(self._s.TensorType, _TYPES[np.dtype(tensor.dtype).name])
        sizes = [int(d) if isinstance(d, (int, np.integer)) else -1 for d in tensor.shape]
        found.shape = [1 if d < 0 else d for d in sizes]
        found.hasRank = True
        if -1 in sizes:
            found.shapeSignature = sizes
        found.buffer = 0 if tensor.data is None else self._buffer(tensor.data)
        if tensor.quantization is not None:
            about = self._s.QuantizationParametersT()
            about.scale = np.asarray(tensor.quantization.scales, np.float32).reshape(-1).tolist()
            about.zeroPoint = np.asarray(tensor.quantization.zero_points).reshape(-1).tolist()
            about.quantizedDimension = tensor.quantization.dimension
            found.quantization = about
        return found

    def _operator(self, operator: Operator, numbers: dict[Tensor, int]) -> Any:
        found = self._s.OperatorT()
        key = operator.code, operator.version
        found.opcodeIndex = self._codes.setdefault(key, len(self._codes))
        found.inputs = [-1 if t is None else numbers[t] for t in operator.inputs]
        found.outputs = [numbers[t] for t in operator.outputs]
        fields = dict(operator.options)
        kind = fields.pop("kind", None)
        if kind is not None:
            options = getattr(self._s, f"{kind}T")()
            for name, value in fields.items():
                assert hasattr(options, name), (kind, name)
                setattr(options, name, value)
            found.builtinOptions = options
            found.builtinOptionsType = getattr(self._s.BuiltinOptions, kind)
        elif fields:
            flexbuffers = extras.load(
                "flatbuffers.flexbuffers", "lite", "tf.lite needs the package flatbuffers"
            )
            found.customOptions = np.frombuffer(flexbuffers.Dumps(fields), np.uint8)
        return found


_TYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int32": "INT32", "uint8": "UINT8", "int64": "INT64",
    "bool": "BOOL", "int16": "INT16", "int8": "INT8", "uint32": "UINT32", "uint16": "UINT16",
    "complex64": "COMPLEX64", "object": "RESOURCE",
}  # fmt: skip
