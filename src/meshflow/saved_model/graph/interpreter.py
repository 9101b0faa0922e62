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
from meshflow.environment.types import Array
from meshflow.saved_model.graph import control
from meshflow.saved_model.graph.attributes import (
    HostNeeded,
    Node,
    Sizes,
    as_sizes,
    is_words,
    numbers,
    reference,
)
from meshflow.saved_model.graph.messages import Message
from meshflow.saved_model.graph.ops.algebra import ALGEBRA
from meshflow.saved_model.graph.ops.arrays import ARRAYS
from meshflow.saved_model.graph.ops.examples import EXAMPLES, first_output
from meshflow.saved_model.graph.ops.gradients import GRADIENTS, UPDATES
from meshflow.saved_model.graph.ops.images import IMAGES
from meshflow.saved_model.graph.ops.lists import LISTS
from meshflow.saved_model.graph.ops.modules import MODULES
from meshflow.saved_model.graph.ops.networks import NETWORKS
from meshflow.saved_model.graph.ops.records import RECORDS
from meshflow.saved_model.graph.ops.text import TEXT, Table

__all__ = ["GraphFunction", "HostNeeded", "Library", "RandomNeeded", "Run", "Stored", "known_ops"]

_PURE: dict[str, Callable[..., Any]] = {
    **ARRAYS,
    **ALGEBRA,
    **NETWORKS,
    **GRADIENTS,
    **IMAGES,
    **LISTS,
    **MODULES,
}
# These ops run on the host only.
_HOST: dict[str, Callable[..., Any]] = {**TEXT, **RECORDS}
# The size of the results of these ops depends on values, so only the host can run them.
_OPEN_ENDED = frozenset(("Where",))
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Names of the outputs of ops with several outputs, in their order.
_OUTPUTS = {
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
}
_FUSED_THIRD = "reserve_space_3"


class RandomNeeded(BaseException):
    """Signal that a traced function draws random numbers, so that it needs a key as an argument."""


class Stored:
    """Reference to a variable.

    Args:
      index: Index of the variable among those of a run.
    """

    def __init__(self, index: int) -> None:
        self.number = index


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
        self.kinds = [a.type for a in proto.signature.input_arg]
        self.nodes = {n.name: Node(n) for n in proto.node_def}
        self.results = [reference(proto.ret[a.name]) for a in proto.signature.output_arg]
        self.last = list(proto.control_ret.values())

    def unchanged(self) -> dict[int, int]:
        """Return the index of the argument by the index of each result that is an argument."""
        indices = {name: i for i, name in enumerate(self.arguments)}
        unchanged = {}
        for i, (name, _, _) in enumerate(self.results):
            while name in self.nodes and self.nodes[name].op == "Identity":
                name = self.nodes[name].inputs[0][0]
            if name in indices:
                unchanged[i] = indices[name]
        return unchanged


def _functions_of(node: Node) -> list[str]:
    """Return the names of the functions that a node calls."""
    if node.op in _CALLS:
        return [node["f"]]
    if node.op in ("While", "StatelessWhile"):
        return [node["cond"], node["body"]]
    if node.op in ("If", "StatelessIf"):
        return [node["then_branch"], node["else_branch"]]
    return list(node["branches"]) if node.op in ("Case", "StatelessCase") else []


class Library:
    """Functions of a graph, by name.

    Args:
      protos: Their `FunctionDef`s.
    """

    def __init__(self, protos: Iterable[Message]) -> None:
        self._protos = {p.signature.name: p for p in protos}
        self._made: dict[str, GraphFunction] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._protos

    def needs_host(self, nodes: Iterable[Node]) -> bool:
        """Check whether nodes, or functions that they call, contain ops that only the host can run."""
        pending, seen = list(nodes), set[str]()
        while pending:
            node = pending.pop()
            if node.op in _HOST or node.op in _OPEN_ENDED:
                return True
            for name in _functions_of(node):
                if name in self and name not in seen:
                    seen.add(name)
                    pending += self[name].nodes.values()
        return False

    def __getitem__(self, name: str) -> GraphFunction:
        """Return a function.

        Raises:
          DataLossError: If the graph has no such function.
        """
        if name not in self._made:
            if name not in self._protos:
                raise errors.DataLossError(f"the graph has no function {name!r}, which it calls.")
            self._made[name] = GraphFunction(self._protos[name])
        return self._made[name]


class Run:
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
        library: Library,
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
        targets = [name for name, _, _ in function.results] + function.last
        try:
            self.evaluate(function.nodes, found, targets, function.name)
        finally:
            self._depth -= 1
        return [self._output(function.nodes, found, result) for result in function.results]

    def evaluate(
        self, nodes: Mapping[str, Node], found: dict[str, Any], targets: Iterable[str], where: str
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
            missing = [n for n in node.before if n not in found and n in nodes]
            missing += [n for n, _, _ in node.inputs if n not in found]
            if not missing:
                pending.pop()
                inputs = [self._output(nodes, found, reference) for reference in node.inputs]
                found[name] = self._outputs(node, inputs, where)
                continue
            if name in opened:
                raise errors.UnimplementedError(
                    f"{where}: node {name} of op {node.op} depends on its own result. Loops of TensorFlow 1 are not supported."
                )
            opened.add(name)
            pending += missing

    def _output(
        self, nodes: Mapping[str, Node], found: Mapping[str, Any], reference: tuple[str, str, int]
    ) -> Any:
        name, output, index = reference
        values = found[name]
        if output and name in nodes:
            names = _OUTPUTS.get(nodes[name].op, ())
            index = 5 if output == _FUSED_THIRD else index
            index = names.index(output) if output in names else index
            if nodes[name].op in EXAMPLES:
                index += first_output(nodes[name], output)
        try:
            return values[index]
        except IndexError:
            raise errors.DataLossError(f"node {name} has no output {output}:{index}.") from None

    def _outputs(self, node: Node, inputs: list[Any], where: str) -> list[Any]:
        try:
            value = self._apply(node, inputs)
        except (errors.OpError, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise errors.InvalidArgumentError(
                f"{where}: node {node.name} of op {node.op}: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error
        if isinstance(value, (list, tuple)):
            return list(value)
        return [value]

    def _apply(self, node: Node, inputs: list[Any]) -> Any:
        op = node.op
        if self._only is not None and op not in self._only:
            raise errors.UnimplementedError(
                f"node {node.name}: op {op} may not run while tables are initialized."
            )
        if op in _PURE:
            if any(map(is_text, inputs)):
                inputs = self._with_text(inputs)
            value = _PURE[op](node, *inputs)
            if any(isinstance(v, Sizes) for v in inputs):
                return (
                    [_sizes_again(v) for v in value]
                    if isinstance(value, list)
                    else _sizes_again(value)
                )
            return value
        if op == "Const":
            return node["value"]
        if op in _CALLS:
            return self.call(self.library[node["f"]], inputs)
        if op in control.CONTROL:
            return control.CONTROL[op](self, node, inputs)
        if op in _STATE:
            return _STATE[op](self, node, *inputs)
        if op in _HOST:
            self._check_host(inputs)
            if op in ("HashTableV2", "MutableHashTableV2", "MutableHashTableOfTensorsV2"):
                return self._table(node, inputs)
            return _HOST[op](node, *inputs)
        raise errors.UnimplementedError(
            f"node {node.name}: TensorFlow's op {op} is not supported, so functions that need it cannot be run."
        )

    def _with_text(self, inputs: list[Any]) -> list[Any]:
        """Convert the inputs of an op that moves strings to NumPy arrays."""
        self._check_host(inputs)
        return [np.asarray(v) if isinstance(v, jax.Array) else v for v in inputs]

    def _check_host(self, inputs: list[Any]) -> None:
        """Raise `HostRequired` if the run or an input is traced."""
        if not self.host or any(isinstance(v, jax.core.Tracer) for v in inputs):
            raise HostNeeded

    def _table(self, node: Node, inputs: list[Any]) -> Table:
        key = node.text("shared_name") or node.name
        if key not in self._resources:
            self._resources[key] = TEXT[node.op](node, *inputs)
        return self._resources[key]

    def key(self) -> jax.Array:
        """Return the key for the next random numbers."""
        if self._key is None:
            raise RandomNeeded
        self._num_keys += 1
        return jax.random.fold_in(jax.random.wrap_key_data(self._key), self._num_keys)

    # ---- variables -------------------------------------------------------------------------

    def read(self, variable: object) -> Array:
        """Return the value of a variable."""
        if not isinstance(variable, Stored):
            raise errors.DataLossError("the input of an op that reads a variable is not a variable")
        return self.values[variable.number]

    def write(self, variable: object, value: Array) -> None:
        """Assign a value to a variable."""
        if not isinstance(variable, Stored):
            raise errors.DataLossError(
                "the input of an op that assigns to a variable is not a variable"
            )
        self.values[variable.number] = jnp.asarray(value)
        self.written[variable.number] = None


def _read(run: Run, node: Node, variable: object) -> Array:
    return run.read(variable)


def _rows(run: Run, node: Node, variable: object, indices: Array) -> Array:
    return ARRAYS["GatherV2"](node, run.read(variable), indices)


def _write(run: Run, node: Node, variable: object, value: Array) -> list[Any]:
    run.write(variable, value)
    return []


def _add(sign: int) -> Callable[..., Any]:
    def assign(run: Run, node: Node, variable: object, value: Array) -> list[Any]:
        old = run.read(variable)
        run.write(variable, old + value if sign > 0 else old - value)
        return []

    return assign


def _random(draw: Callable[..., Any]) -> Callable[..., Any]:
    def run_op(run: Run, node: Node, shape: Array) -> Array:
        return draw(run.key(), tuple(numbers(shape)), node.dtype("dtype"))

    return run_op


def _random_integers(run: Run, node: Node, shape: Array, low: Array, high: Array) -> Array:
    return jax.random.randint(run.key(), tuple(numbers(shape)), low, high, low.dtype)


_STATE: dict[str, Callable[..., Any]] = {
    "RandomUniform": _random(jax.random.uniform),
    "RandomStandardNormal": _random(jax.random.normal),
    "TruncatedNormal": _random(lambda k, s, d: jax.random.truncated_normal(k, -2, 2, s, d)),
    "RandomUniformInt": _random_integers,
    **UPDATES,
    "ReadVariableOp": _read,
    "ResourceGather": _rows,
    "AssignVariableOp": _write,
    "AssignAddVariableOp": _add(1),
    "AssignSubVariableOp": _add(-1),
    "VariableShape": lambda run, node, v: np.array(np.shape(run.read(v)), node.dtype("out_type")),
    "DisableCopyOnRead": lambda run, node, variable: [],
    "NoOp": lambda run, node, *inputs: [],
    "Assert": lambda run, node, *inputs: [],
}


def _sizes_again(value: Any) -> Any:
    """Convert the result of an op on `SymbolicSizes` to sizes."""
    if is_symbolic_dim(value) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
        return as_sizes(value, np.int32)
    return value


def known_ops() -> list[str]:
    """Return the sorted names of all ops that can be run."""
    return sorted({*_PURE, *_CALLS, *control.CONTROL, *_STATE, *_HOST, "Const"})


def is_text(value: object) -> bool:
    """Check whether a value can exist on the host only."""
    return isinstance(value, Table) or is_words(value)
