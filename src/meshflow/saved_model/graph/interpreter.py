"""Runs functions of TensorFlow's graphs: a node's op is looked up in one table, and nothing else is run.

Values are arrays. Those of NumPy are known while a program is traced, so shapes are numbers; others are JAX's,
which may stand for what a program computes. Strings and tables exist on the host only: `HostNeeded` says
that a function has them, and it is then run op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.runtime import errors
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
# What exists on the host only.
_HOST: dict[str, Callable[..., Any]] = {**TEXT, **RECORDS}
# How many results these have, the host finds out.
_OPEN_ENDED = frozenset(("Where",))
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Names of outputs, in their order, of ops that have several.
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
    """A function that is traced needs random numbers, and so a key."""


class Stored:
    """A variable that a graph refers to.

    Args:
      number: which it is among the variables of a run.
    """

    def __init__(self, number: int) -> None:
        self.number = number


class GraphFunction:
    """A function of a library.

    Args:
      proto: its `FunctionDef`.

    Attributes:
      name: its name.
      arguments, results: names of its arguments, and the outputs that are its results.
      nodes: its nodes by name.
      last: names of the nodes that run though no result needs them.
    """

    def __init__(self, proto: Any) -> None:
        self.name = proto.signature.name
        self.arguments = [a.name for a in proto.signature.input_arg]
        self.kinds = [a.type for a in proto.signature.input_arg]
        self.nodes = {n.name: Node(n) for n in proto.node_def}
        self.results = [reference(proto.ret[a.name]) for a in proto.signature.output_arg]
        self.last = list(proto.control_ret.values())

    def unchanged(self) -> dict[int, int]:
        """Results that are an argument as it came: the argument's number by the result's."""
        places = {name: i for i, name in enumerate(self.arguments)}
        found = {}
        for i, (name, _, _) in enumerate(self.results):
            while name in self.nodes and self.nodes[name].op == "Identity":
                name = self.nodes[name].inputs[0][0]
            if name in places:
                found[i] = places[name]
        return found


def _functions_of(node: Node) -> list[str]:
    """Names of the functions that a node calls."""
    if node.op in _CALLS:
        return [node["f"]]
    if node.op in ("While", "StatelessWhile"):
        return [node["cond"], node["body"]]
    if node.op in ("If", "StatelessIf"):
        return [node["then_branch"], node["else_branch"]]
    return list(node["branches"]) if node.op in ("Case", "StatelessCase") else []


class Library:
    """The functions of a graph.

    Args:
      protos: their `FunctionDef`s.
    """

    def __init__(self, protos: Iterable[Any]) -> None:
        self._protos = {p.signature.name: p for p in protos}
        self._made: dict[str, GraphFunction] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._protos

    def needs_host(self, nodes: Iterable[Node]) -> bool:
        """Whether nodes, or functions that they call, have ops that no compiled program has.

        Args:
          nodes: the nodes.
        """
        waiting, seen = list(nodes), set[str]()
        while waiting:
            node = waiting.pop()
            if node.op in _HOST or node.op in _OPEN_ENDED:
                return True
            for name in _functions_of(node):
                if name in self and name not in seen:
                    seen.add(name)
                    waiting += self[name].nodes.values()
        return False

    def __getitem__(self, name: str) -> GraphFunction:
        """A function by its name.

        Raises:
          DataLossError: when there is none.
        """
        if name not in self._made:
            if name not in self._protos:
                raise errors.DataLossError(f"the graph has no function {name!r}, which it calls.")
            self._made[name] = GraphFunction(self._protos[name])
        return self._made[name]


class Run:
    """One run of functions, which may be a trace.

    Args:
      library: the functions.
      values: the variables' values, by their numbers.
      host: whether strings and tables may be used.
      key: what random numbers are drawn by, or None.
      only: the ops that may be run; default all that are known.

    Attributes:
      values: the values now.
      written: numbers of the variables that were written.
    """

    def __init__(
        self,
        library: Library,
        values: Sequence[Any],
        host: bool = False,
        key: Any = None,
        only: frozenset[str] | None = None,
    ) -> None:
        self.library, self._only = library, only
        self._key, self._drawn = key, 0
        self.values = dict(enumerate(values))
        self.written: dict[int, None] = {}
        self.host = host
        self._depth = 0
        self._resources: dict[str, Any] = {}

    def call(self, function: GraphFunction, arguments: Sequence[Any]) -> list[Any]:
        """The results of a function.

        Args:
          function: the function.
          arguments: arrays, `Stored` variables, `Table`s.
        """
        if len(arguments) != len(function.arguments):
            raise errors.DataLossError(
                f"function {function.name} takes {len(function.arguments)} arguments, got {len(arguments)}."
            )
        self._depth += 1
        if self._depth > 100:
            raise errors.DataLossError(f"function {function.name} calls itself without end.")
        found: dict[str, Any] = {n: [v] for n, v in zip(function.arguments, arguments, strict=True)}
        wanted = [name for name, _, _ in function.results] + function.last
        try:
            self.evaluate(function.nodes, found, wanted, function.name)
        finally:
            self._depth -= 1
        return [self._output(function.nodes, found, place) for place in function.results]

    def evaluate(
        self, nodes: Mapping[str, Node], found: dict[str, Any], wanted: Iterable[str], where: str
    ) -> None:
        """Runs nodes with those that they need.

        Args:
          nodes: the nodes of a graph by name.
          found: outputs by the names of nodes, to which those that run are added.
          wanted: names of nodes.
          where: the graph's name, for errors.
        """
        waiting = list(wanted)
        opened: set[str] = set()
        while waiting:
            name = waiting[-1]
            if name in found:
                waiting.pop()
                continue
            node = nodes.get(name)
            if node is None:
                raise errors.DataLossError(
                    f"{where} has no node {name!r}, which another one needs."
                )
            missing = [n for n in node.before if n not in found and n in nodes]
            missing += [n for n, _, _ in node.inputs if n not in found]
            if not missing:
                waiting.pop()
                inputs = [self._output(nodes, found, place) for place in node.inputs]
                found[name] = self._outputs(node, inputs, where)
                continue
            if name in opened:
                raise errors.UnimplementedError(
                    f"{where}: node {name} of op {node.op} needs its own result: loops of TensorFlow 1 cannot be read."
                )
            opened.add(name)
            waiting += missing

    def _output(self, nodes: Mapping[str, Node], found: Mapping[str, Any], place: Any) -> Any:
        name, output, index = place
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
            raise errors.UnimplementedError(f"node {node.name}: op {op} does not fill a table.")
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
            f"node {node.name}: TensorFlow's op {op} is not known here, so what needs it cannot be run."
        )

    def _with_text(self, inputs: list[Any]) -> list[Any]:
        """What an op takes that moves strings, by NumPy."""
        self._check_host(inputs)
        return [np.asarray(v) if isinstance(v, jax.Array) else v for v in inputs]

    def _check_host(self, inputs: list[Any]) -> None:
        """The host has what it works with while nothing is traced."""
        if not self.host or any(isinstance(v, jax.core.Tracer) for v in inputs):
            raise HostNeeded

    def _table(self, node: Node, inputs: list[Any]) -> Any:
        key = node.text("shared_name") or node.name
        if key not in self._resources:
            self._resources[key] = TEXT[node.op](node, *inputs)
        return self._resources[key]

    def key(self) -> Any:
        """The key of the next random numbers."""
        if self._key is None:
            raise RandomNeeded
        self._drawn += 1
        return jax.random.fold_in(jax.random.wrap_key_data(self._key), self._drawn)

    # ---- variables -------------------------------------------------------------------------

    def read(self, variable: Any) -> Any:
        """A variable's value."""
        if not isinstance(variable, Stored):
            raise errors.DataLossError("what is read is no variable")
        return self.values[variable.number]

    def write(self, variable: Any, value: Any) -> None:
        """Gives a variable a value."""
        if not isinstance(variable, Stored):
            raise errors.DataLossError("what is written is no variable")
        self.values[variable.number] = jnp.asarray(value)
        self.written[variable.number] = None


def _read(run: Run, node: Node, variable: Any) -> Any:
    return run.read(variable)


def _rows(run: Run, node: Node, variable: Any, indices: Any) -> Any:
    return ARRAYS["GatherV2"](node, run.read(variable), indices)


def _write(run: Run, node: Node, variable: Any, value: Any) -> list[Any]:
    run.write(variable, value)
    return []


def _add(sign: int) -> Callable[..., Any]:
    def run_it(run: Run, node: Node, variable: Any, value: Any) -> list[Any]:
        old = run.read(variable)
        run.write(variable, old + value if sign > 0 else old - value)
        return []

    return run_it


def _random(draw: Callable[..., Any]) -> Callable[..., Any]:
    def run_it(run: Run, node: Node, shape: Any) -> Any:
        return draw(run.key(), tuple(numbers(shape)), node.dtype("dtype"))

    return run_it


def _random_integers(run: Run, node: Node, shape: Any, low: Any, high: Any) -> Any:
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
    """What an op made of sizes, which NumPy gives as an array of objects or the object itself."""
    if is_symbolic_dim(value) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
        return as_sizes(value, np.int32)
    return value


def known_ops() -> list[str]:
    """Names of all ops that can be run."""
    return sorted({*_PURE, *_CALLS, *control.CONTROL, *_STATE, *_HOST, "Const"})


def is_text(value: Any) -> bool:
    """Whether a value exists on the host only."""
    return isinstance(value, Table) or is_words(value)
