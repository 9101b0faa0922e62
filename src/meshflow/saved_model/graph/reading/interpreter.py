"""Interpreter of functions of TensorFlow's graphs.

Only ops that have an entry in a table of this package are run. Values are arrays. NumPy arrays have
known values while a program is traced, so they determine shapes; JAX arrays may be tracers. Strings
and tables exist on the host only: a traced function that needs them raises `HostRequired`, and is
run op by op instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.runtime import errors
from meshflow.core.values.shapes import TensorShape
from meshflow.environment.types import Array
from meshflow.ops import debugging
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    HostRequired,
    SymbolicSizes,
    as_sizes_array,
    as_static_ints,
    is_string_array,
    parse_reference,
)
from meshflow.saved_model.graph.ops import control_flow
from meshflow.saved_model.graph.ops.algebra import ALGEBRA_OPS
from meshflow.saved_model.graph.ops.arrays import ARRAY_OPS
from meshflow.saved_model.graph.ops.composite_functions import (
    COMPOSITE_FUNCTION_OPS,
    COMPOSITE_FUNCTION_OUTPUTS,
)
from meshflow.saved_model.graph.ops.composites import (
    COMPOSITE_OPS,
    COMPOSITE_OUTPUTS,
    HOST_COMPOSITE_OPS,
)
from meshflow.saved_model.graph.ops.example_parsing import EXAMPLE_OPS, get_first_output_index
from meshflow.saved_model.graph.ops.gradients import GRADIENT_OPS, UPDATE_OPS
from meshflow.saved_model.graph.ops.host_ops import HOST_OPS
from meshflow.saved_model.graph.ops.images import IMAGE_OPS
from meshflow.saved_model.graph.ops.networks import NETWORK_OPS
from meshflow.saved_model.graph.ops.recurrent import RECURRENT_OPS, RECURRENT_OUTPUTS
from meshflow.saved_model.graph.ops.strings import STRING_OPS, HostTable
from meshflow.saved_model.graph.ops.tensor_lists import TENSOR_LIST_OPS
from meshflow.saved_model.graph.ops.xla_call_module import MODULE_OPS

ARRAY_FUNCTION_OPS: dict[str, Callable[..., Any]] = {
    **ARRAY_OPS,
    **ALGEBRA_OPS,
    **NETWORK_OPS,
    **RECURRENT_OPS,
    **GRADIENT_OPS,
    **IMAGE_OPS,
    **TENSOR_LIST_OPS,
    **MODULE_OPS,
    **COMPOSITE_OPS,
}
# These ops run on the host only.
HOST_ONLY_OPS: dict[str, Callable[..., Any]] = {
    **STRING_OPS,
    **HOST_OPS,
    **HOST_COMPOSITE_OPS,
    **COMPOSITE_FUNCTION_OPS,
}
# The size of the results of these ops depends on values, so only the host can run them.
_DYNAMIC_SIZE_OPS = frozenset(("Where",))
_CALL_OPS = ("PartitionedCall", "StatefulPartitionedCall")
# Names of the outputs of ops with several outputs, in their order.
_OUTPUT_NAMES = {
    **COMPOSITE_OUTPUTS,
    **COMPOSITE_FUNCTION_OUTPUTS,
    **RECURRENT_OUTPUTS,
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2"),
    ),
    "TopKV2": ("values", "indices"),
    "StringSplitV2": ("indices", "values", "shape"),
    **dict.fromkeys(
        ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"), ("y", "idx", "count")
    ),
    "StringSplit": ("indices", "values", "shape"),
    "StringNGrams": ("ngrams", "ngrams_splits"),
    "UnicodeDecode": ("row_splits", "char_values"),
    "UnicodeDecodeWithOffsets": ("row_splits", "char_values", "char_to_byte_starts"),
    "DenseToDenseSetOperation": ("result_indices", "result_values", "result_shape"),
    "Svd": ("s", "u", "v"),
    "Qr": ("q", "r"),
    "SelfAdjointEigV2": ("e", "v"),
    "LogMatrixDeterminant": ("sign", "log_abs_determinant"),
    "MaxPoolWithArgmax": ("output", "argmax"),
    "NonMaxSuppressionV4": ("selected_indices", "valid_outputs"),
    "NonMaxSuppressionV5": ("selected_indices", "selected_scores", "valid_outputs"),
    "CombinedNonMaxSuppression": (
        "nmsed_boxes",
        "nmsed_scores",
        "nmsed_classes",
        "valid_detections",
    ),
    "CTCGreedyDecoder": (
        "decoded_indices",
        "decoded_values",
        "decoded_shape",
        "log_probability",
    ),
    "DecodeWav": ("audio", "sample_rate"),
    "BroadcastGradientArgs": ("r0", "r1"),
    "FusedBatchNormGradV3": ("x_backprop", "scale_backprop", "offset_backprop"),
    "SoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "SparseSoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "LookupTableExportV2": ("keys", "values"),
    "TensorListPopBack": ("output_handle", "tensor"),
    "TensorListConcatV2": ("tensor", "lengths"),
}
# Attributes with the number of tensors of each output before the last one.
OUTPUT_COUNTS = {"SparseSplit": "num_split", "RaggedTensorFromVariant": "output_ragged_rank"}
_RESERVE_SPACE_3 = "reserve_space_3"


# Errors of JAX if an op needs the value of a traced array.
_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class RandomKeyRequired(BaseException):
    """Signal that a traced function draws random numbers, so that it needs a key as an argument."""


class VariableRef:
    """Reference to a variable.

    Args:
      index: Index of the variable among those of a run.
    """

    def __init__(self, index: int) -> None:
        self.index = index


class GraphFunction:
    """Function of a library.

    Args:
      proto: Its `FunctionDef`.

    Attributes:
      name: Name of the function.
      arguments, results: Names of its arguments, and references to the outputs that are its
        results.
      nodes: Nodes by name.
      control_outputs: Names of the nodes that must run even if no result depends on them.
    """

    def __init__(self, proto: Message) -> None:
        self.name = proto.signature.name
        self.arguments = [a.name for a in proto.signature.input_arg]
        self.dtypes = [a.type for a in proto.signature.input_arg]
        self.nodes = {n.name: GraphNode(n) for n in proto.node_def}
        self.results = [parse_reference(proto.ret[a.name]) for a in proto.signature.output_arg]
        self.control_outputs = list(proto.control_ret.values())

    def find_unchanged(self) -> dict[int, int]:
        """Return the index of the argument by the index of each result that is an argument."""
        indices = {name: i for i, name in enumerate(self.arguments)}
        unchanged = {}
        for i, (name, _, _) in enumerate(self.results):
            while name in self.nodes and self.nodes[name].op == "Identity":
                name = self.nodes[name].inputs[0][0]
            if name in indices:
                unchanged[i] = indices[name]
        return unchanged


def _list_called_functions(node: GraphNode) -> list[str]:
    """Return the names of the functions that a node calls."""
    if node.op in _CALL_OPS:
        return [node["f"]]
    if node.op in ("While", "StatelessWhile"):
        return [node["cond"], node["body"]]
    if node.op in ("If", "StatelessIf"):
        return [node["then_branch"], node["else_branch"]]
    return list(node["branches"]) if node.op in ("Case", "StatelessCase") else []


class FunctionLibrary:
    """Functions of a graph, by name.

    Args:
      protos: Their `FunctionDef`s.
      source: File of the graph, or an empty string.
    """

    def __init__(self, protos: Iterable[Message], source: str = "") -> None:
        self.source = source
        self._protos = {p.signature.name: p for p in protos}
        self._functions: dict[str, GraphFunction] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._protos

    def needs_host(self, nodes: Iterable[GraphNode]) -> bool:
        """Check whether nodes, or functions that they call, contain ops that only the host can run."""
        pending, seen = list(nodes), set[str]()
        while pending:
            node = pending.pop()
            if node.op in HOST_ONLY_OPS or node.op in _DYNAMIC_SIZE_OPS:
                return True
            for name in _list_called_functions(node):
                if name in self and name not in seen:
                    seen.add(name)
                    pending += self[name].nodes.values()
        return False

    def __getitem__(self, name: str) -> GraphFunction:
        """Return a function.

        Raises:
          DataLossError: If the graph has no such function.
        """
        if name not in self._functions:
            if name not in self._protos:
                raise errors.DataLossError(f"the graph has no function {name!r}, which it calls.")
            self._functions[name] = GraphFunction(self._protos[name])
        return self._functions[name]


class GraphRun:
    """One execution of functions of a graph, eager or traced.

    Args:
      library: The functions.
      values: Values of the variables.
      host: Whether strings and tables may be used.
      key: Key data for random numbers, or None if there is none.
      only: Ops that may run. Default: all supported ops.

    Attributes:
      values: Current value of each variable, by its index.
      written: Indices of the variables that were assigned to, as keys in their order.
    """

    def __init__(
        self,
        library: FunctionLibrary,
        values: Sequence[Any],
        host: bool = False,
        key: jax.Array | None = None,
        only: frozenset[str] | None = None,
    ) -> None:
        self.library, self._only = library, only
        self._key, self._num_keys = key, 0
        self.values = dict(enumerate(values))
        self.written: dict[int, None] = {}
        self.host = host
        self._depth = 0
        self._resources: dict[str, Any] = {}

    def call(self, function: GraphFunction, arguments: Sequence[Any]) -> list[Any]:
        """Run a function and return its results.

        Args:
          function: The function.
          arguments: Arrays, `VariableRef`s and `HostTable`s.
        """
        if len(arguments) != len(function.arguments):
            raise errors.DataLossError(
                f"function {function.name} takes {len(function.arguments)} arguments, got {len(arguments)}."
            )
        self._depth += 1
        if self._depth > 100:
            raise errors.DataLossError(f"function {function.name} calls itself without end.")
        found: dict[str, Any] = {n: [v] for n, v in zip(function.arguments, arguments, strict=True)}
        targets = [name for name, _, _ in function.results] + function.control_outputs
        try:
            self.evaluate(function.nodes, found, targets, function.name)
        finally:
            self._depth -= 1
        return [self._get_output(function.nodes, found, result) for result in function.results]

    def evaluate(
        self,
        nodes: Mapping[str, GraphNode],
        found: dict[str, Any],
        targets: Iterable[str],
        where: str,
    ) -> None:
        """Run nodes, and the nodes that they depend on.

        Args:
          nodes: Nodes of a graph by name.
          found: Outputs by the names of nodes. The outputs of the nodes that run are added.
          targets: Names of the nodes to run.
          where: Name of the graph, for errors.
        """
        pending = list(targets)
        opened: set[str] = set()
        while pending:
            name = pending[-1]
            if name in found:
                pending.pop()
                continue
            node = nodes.get(name)
            if node is None:
                raise errors.DataLossError(
                    f"{where} has no node {name!r}, which another node requires."
                )
            missing = [n for n in node.control_inputs if n not in found and n in nodes]
            missing += [n for n, _, _ in node.inputs if n not in found]
            if not missing:
                pending.pop()
                inputs = [self._get_output(nodes, found, reference) for reference in node.inputs]
                found[name] = self._run_node(node, inputs, where)
                continue
            if name in opened:
                raise errors.UnimplementedError(
                    f"{where}: node {name} of op {node.op} depends on its own result. Loops of TensorFlow 1 are not supported."
                )
            opened.add(name)
            pending += missing

    def _get_output(
        self,
        nodes: Mapping[str, GraphNode],
        found: Mapping[str, Any],
        reference: tuple[str, str, int],
    ) -> Any:
        name, output, index = reference
        values = found[name]
        if output and name in nodes:
            op = nodes[name].op
            names = _OUTPUT_NAMES.get(op, ())
            index = 5 if output == _RESERVE_SPACE_3 else index
            if output in names:
                count = nodes[name][OUTPUT_COUNTS[op]] if op in OUTPUT_COUNTS else 1
                index += names.index(output) * count
            if nodes[name].op in EXAMPLE_OPS:
                index += get_first_output_index(nodes[name], output)
        try:
            return values[index]
        except IndexError:
            raise errors.DataLossError(f"node {name} has no output {output}:{index}.") from None

    def _run_node(self, node: GraphNode, inputs: list[Any], where: str) -> list[Any]:
        try:
            value = self._run_op(node, inputs)
        except (errors.OpError, RecursionError, MemoryError):
            raise
        except _VALUE_ERRORS:
            raise HostRequired from None
        except Exception as error:
            raise errors.InvalidArgumentError(
                f"{where}: node {node.name} of op {node.op}: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error
        if isinstance(value, (list, tuple)):
            return list(value)
        return [value]

    def _run_op(self, node: GraphNode, inputs: list[Any]) -> Any:
        op = node.op
        if self._only is not None and op not in self._only:
            raise errors.UnimplementedError(
                f"node {node.name}: op {op} may not run while tables are initialized."
            )
        if op in ARRAY_FUNCTION_OPS:
            if any(map(requires_host, inputs)):
                inputs = self._to_host_inputs(inputs)
            value = ARRAY_FUNCTION_OPS[op](node, *inputs)
            if any(isinstance(v, SymbolicSizes) for v in inputs):
                return (
                    [_restore_sizes(v) for v in value]
                    if isinstance(value, list)
                    else _restore_sizes(value)
                )
            return value
        if op == "Const":
            return node["value"]
        if op in _CALL_OPS:
            return self.call(self.library[node["f"]], inputs)
        if op in control_flow.CONTROL_FLOW_OPS:
            return control_flow.CONTROL_FLOW_OPS[op](self, node, inputs)
        if op in _STATEFUL_OPS:
            return _STATEFUL_OPS[op](self, node, *inputs)
        if op in HOST_ONLY_OPS:
            self._check_host(inputs)
            if op in ("HashTableV2", "MutableHashTableV2", "MutableHashTableOfTensorsV2"):
                return self._get_table(node, inputs)
            return HOST_ONLY_OPS[op](node, *inputs)
        raise errors.UnimplementedError(
            f"node {node.name}: TensorFlow's op {op} is not supported, so functions that need it cannot be run."
        )

    def _to_host_inputs(self, inputs: list[Any]) -> list[Any]:
        """Convert the inputs of an op that moves strings to NumPy arrays."""
        self._check_host(inputs)
        return [np.asarray(v) if isinstance(v, jax.Array) else v for v in inputs]

    def _check_host(self, inputs: list[Any]) -> None:
        """Raise `HostRequired` if the run or an input is traced."""
        if not self.host or any(isinstance(v, jax.core.Tracer) for v in inputs):
            raise HostRequired

    def _get_table(self, node: GraphNode, inputs: list[Any]) -> HostTable:
        key = node.text("shared_name") or node.name
        if key not in self._resources:
            self._resources[key] = STRING_OPS[node.op](node, *inputs)
        return self._resources[key]

    def draw_key(self) -> jax.Array:
        """Return the key for the next random numbers."""
        if self._key is None:
            raise RandomKeyRequired
        self._num_keys += 1
        return jax.random.fold_in(jax.random.wrap_key_data(self._key), self._num_keys)

    # ---- variables -------------------------------------------------------------------------

    def read(self, variable: object) -> Array:
        """Return the value of a variable."""
        if not isinstance(variable, VariableRef):
            raise errors.DataLossError("the input of an op that reads a variable is not a variable")
        return self.values[variable.index]

    def write(self, variable: object, value: Array) -> None:
        """Assign a value to a variable."""
        if not isinstance(variable, VariableRef):
            raise errors.DataLossError(
                "the input of an op that assigns to a variable is not a variable"
            )
        self.values[variable.index] = jnp.asarray(value)
        self.written[variable.index] = None


def _read_variable(run: GraphRun, node: GraphNode, variable: object) -> Array:
    return run.read(variable)


def _gather_rows(run: GraphRun, node: GraphNode, variable: object, indices: Array) -> Array:
    return ARRAY_OPS["GatherV2"](node, run.read(variable), indices)


def _assign_variable(run: GraphRun, node: GraphNode, variable: object, value: Array) -> list[Any]:
    run.write(variable, value)
    return []


def _make_assign_add(sign: int) -> Callable[..., Any]:
    def assign(run: GraphRun, node: GraphNode, variable: object, value: Array) -> list[Any]:
        old = run.read(variable)
        run.write(variable, old + value if sign > 0 else old - value)
        return []

    return assign


def _make_random_op(draw: Callable[..., Any]) -> Callable[..., Any]:
    def run_op(run: GraphRun, node: GraphNode, shape: Array) -> Array:
        return draw(run.draw_key(), tuple(as_static_ints(shape)), node.dtype("dtype"))

    return run_op


def _draw_integers(run: GraphRun, node: GraphNode, shape: Array, low: Array, high: Array) -> Array:
    return jax.random.randint(run.draw_key(), tuple(as_static_ints(shape)), low, high, low.dtype)


def _check_assertion(run: GraphRun, node: GraphNode, condition: Any, *data: Any) -> list[Any]:
    debugging.assert_arrays(condition, None, data, node["summarize"])
    return []


def _check_numerics(run: GraphRun, node: GraphNode, value: Any) -> Any:
    message = debugging.NumericsMessage(node.text("message"))
    debugging.assert_arrays(jnp.isfinite(value), message, [value])
    return value


def _check_shape(run: GraphRun, node: GraphNode, value: Any) -> Any:
    expected = TensorShape(node["shape"])
    if not expected.is_compatible_with(np.shape(value)):
        raise errors.InvalidValueError(
            f"node {node.name}: expected a tensor of shape {expected}, got {TensorShape(np.shape(value))}."
        )
    return value


_STATEFUL_OPS: dict[str, Callable[..., Any]] = {
    "RandomUniform": _make_random_op(jax.random.uniform),
    "RandomStandardNormal": _make_random_op(jax.random.normal),
    "TruncatedNormal": _make_random_op(lambda k, s, d: jax.random.truncated_normal(k, -2, 2, s, d)),
    "RandomUniformInt": _draw_integers,
    **UPDATE_OPS,
    "ReadVariableOp": _read_variable,
    "ResourceGather": _gather_rows,
    "AssignVariableOp": _assign_variable,
    "AssignAddVariableOp": _make_assign_add(1),
    "AssignSubVariableOp": _make_assign_add(-1),
    "VariableShape": lambda run, node, v: np.array(np.shape(run.read(v)), node.dtype("out_type")),
    "DisableCopyOnRead": lambda run, node, variable: [],
    "NoOp": lambda run, node, *inputs: [],
    "Assert": _check_assertion,
    "CheckNumerics": _check_numerics,
    "CheckNumericsV2": _check_numerics,
    "EnsureShape": _check_shape,
}


def _restore_sizes(value: Any) -> Any:
    """Convert the result of an op on `SymbolicSizes` to sizes."""
    if is_symbolic_dim(value) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
        return as_sizes_array(value, np.int32)
    return value


def list_output_names(op: str) -> tuple[str, ...]:
    """Return the names of the outputs of an op with several outputs, or an empty tuple."""
    return tuple(_OUTPUT_NAMES.get(op, ()))


def list_supported_ops() -> list[str]:
    """Return the sorted names of all ops that can be run."""
    return sorted(
        {
            *ARRAY_FUNCTION_OPS,
            *_CALL_OPS,
            *control_flow.CONTROL_FLOW_OPS,
            *_STATEFUL_OPS,
            *HOST_ONLY_OPS,
            "Const",
        }
    )


def requires_host(value: object) -> bool:
    """Check whether a value can exist on the host only."""
    return isinstance(value, HostTable) or is_string_array(value)
