"""Loading of SavedModels that TensorFlow wrote: variables, objects, functions and signatures."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from meshflow.checkpoint.bundle import Bundle, is_bundle
from meshflow.checkpoint.graph import VARIABLE
from meshflow.checkpoint.graph_message import GRAPH
from meshflow.checkpoint.storage import GRAPH_FILE, VARIABLES
from meshflow.checkpoint.wire import read_graph
from meshflow.core.runtime.errors import DataLossError, NotFoundError, UnimplementedError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from meshflow.files import gfile
from meshflow.saved_model.assets import Asset, file_of
from meshflow.saved_model.concretes import RestoredConcrete, Signature, SignatureMap
from meshflow.saved_model.functions import Alternative, Choice, restored_function
from meshflow.saved_model.graph.attributes import Node, reference, sizes
from meshflow.saved_model.graph.frozen import ImportedGraph, WrappedFunction
from meshflow.saved_model.graph.interpreter import Library, Run
from meshflow.saved_model.graph.messages import DecodeError, Message, SavedModel
from meshflow.saved_model.graph.ops.text import Table
from meshflow.saved_model.graph.parts import VARIABLE_OPS, part_of_graph
from meshflow.saved_model.graph.programs import GraphProgram, known, slots_of
from meshflow.saved_model.graph.structured import taken
from meshflow.saved_model.options import tags_of
from meshflow.saved_model.restored import CallableRestored, Restored, put_child
from meshflow.saved_model.structures import packed

__all__ = ["has_graph", "load", "meta_graph"]

_log = logging.getLogger("meshflow")
_CONTAINERS: dict[str, Callable[[], Any]] = {
    "trackable_list_wrapper": list,
    "trackable_tuple_wrapper": list,
    "trackable_dict_wrapper": dict,
}
# Only these ops, which create and fill tables, may run while a model is loaded.
_FILLING = frozenset(
    ("Const", "Identity", "NoOp", "Cast", "AddV2", "PartitionedCall", "StatefulPartitionedCall")
    + ("HashTableV2", "MutableHashTableV2", "LookupTableImportV2", "InitializeTableV2")
    + ("InitializeTableFromTextFileV2", "LookupTableSizeV2")
)
_INIT = "__saved_model_init_op"
# A function's name in the graph is its Python name between a common prefix and a number.
_COUNTED = re.compile(r"^__(?:inference|forward)_(.*?)(?:_\d+)?$")


def has_graph(path: str) -> bool:
    """Check whether a folder has a `saved_model.pb`, written by TensorFlow or by Meshflow."""
    return gfile.exists(gfile.join(path, GRAPH_FILE))


def meta_graph(path: str, tags: str | Iterable[str] | None = None) -> Message:
    """Read the graph of a SavedModel.

    Args:
      path: Folder of the model.
      tags: Tags that the graph must have, or None for the graph with the tag "serve", or the only
        graph.

    Raises:
      DataLossError: If the file is damaged. The error names the file.
      ValueError: If no graph has the tags.
    """
    file = gfile.join(path, GRAPH_FILE)
    with gfile.GFile(file, "rb") as opened:
        data = opened.read()
    try:
        graphs = list(SavedModel.FromString(data).meta_graphs)
    except DecodeError as error:
        raise DataLossError(f"{file} is damaged: {error}.") from None
    if not graphs:
        raise DataLossError(f"{file} is damaged: it contains no graph.")
    required = tags_of(tags or "serve")
    matching = [g for g in graphs if required <= set(g.meta_info_def.tags)]
    if not matching and (tags or len(graphs) > 1):
        available = [sorted(g.meta_info_def.tags) for g in graphs]
        raise ValueError(
            f"{file} has graphs with the tags {available}, none with all of {list(required)}."
        )
    return (matching or graphs)[0]


def load(
    path: str, tags: str | Iterable[str] | None = None, with_aliases: bool = False
) -> Restored:
    """Load a SavedModel that TensorFlow wrote.

    Args:
      path: Folder of the model.
      tags: Tags of the graph, as for `read_meta_graph`.
      with_aliases: Whether to set `function_aliases`.

    Returns:
      Object with the variables, objects and functions of the saved object as attributes, and
      `signatures`.

    Raises:
      DataLossError: If a file is damaged. The error names the file.
      UnimplementedError: If the model contains a variable of an unsupported type.
    """
    meta = meta_graph(path, tags)
    reader_type = _Reader if meta.object_graph_def.nodes else _SignatureReader
    try:
        reader = reader_type(path, meta)
        root = reader.root()
        root.tensorflow_version = meta.meta_info_def.tensorflow_version
        root.tensorflow_git_version = meta.meta_info_def.tensorflow_git_version
        if with_aliases:
            root.function_aliases = reader.function_aliases()
        return root
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, (DataLossError, UnimplementedError, NotFoundError)):
            raise
        raise DataLossError(f"{path}/{GRAPH_FILE} is damaged: {error!r}.") from error


class _SignatureReader:
    """Loader for any SavedModel: a graph with signatures, and variables by name."""

    def __init__(self, path: str, meta: Message) -> None:
        self._path, self._meta = path, meta
        parts = (meta.graph_def, meta.object_graph_def)
        data = b"".join(part.SerializeToString(deterministic=True) for part in parts)
        self._digest = hashlib.sha256(data).digest()
        prefix = gfile.join(path, VARIABLES, VARIABLES)
        self._bundle = Bundle(prefix) if is_bundle(prefix) else None
        self._library = Library(meta.graph_def.library.function)
        self._nodes = {n.name: Node(n) for n in meta.graph_def.node}
        self._variables: dict[str, Variable] = {}

    def root(self) -> Restored:
        """Create the object with signatures, variables and the graph."""
        for node in self._nodes.values():
            if node.op in VARIABLE_OPS and self._name_of(node) in (self._bundle or ()):
                self._named_variable(node)
        root = Restored(name=None)
        root.signatures = SignatureMap(
            {
                name: self._main_signature(name, definition)
                for name, definition in self._meta.signature_def.items()
                if name != _INIT and definition.outputs
            }
        )
        root._ordered = tuple(self._variables.values())
        graph = ImportedGraph(self._named_variable)
        graph.take(self._meta.graph_def, "")
        root.graph, root.prune = graph, WrappedFunction(graph).prune
        return root

    def function_aliases(self) -> dict[str, Any]:
        """Return functions by their aliases."""
        return {}

    def _main_signature(self, name: str, definition: Message) -> Signature:
        """Create a signature from nodes of the main graph."""
        names = sorted(definition.inputs)
        specs = {n: _spec(definition.inputs[n], n) for n in names}
        outs = {n: _spec(definition.outputs[n], n) for n in sorted(definition.outputs)}
        fed = [reference(definition.inputs[n].name)[0] for n in names]
        fetched = [reference(definition.outputs[n].name)[::2] for n in outs]
        program = part_of_graph(
            name,
            self._library,
            self._nodes,
            fed,
            fetched,
            self._named_variable,
            *slots_of(outs),
        )
        return Signature(name, Alternative(((), specs), slots_of(outs)[0], program))

    def _name_of(self, node: Node) -> str:
        return node.text("shared_name") or node.name

    def _named_variable(self, node: Node) -> Variable:
        name = self._name_of(node)
        if name not in self._variables:
            self._variables[name] = Variable(self._value(name), name=name)
        return self._variables[name]

    def _value(self, key: str) -> np.ndarray:
        if self._bundle is None or key not in self._bundle:
            raise DataLossError(f"{self._path}/{VARIABLES} has no value of the variable {key}.")
        return self._bundle.read(key)


class _Reader(_SignatureReader):
    """Loader for a SavedModel of TensorFlow 2, which contains an object graph."""

    def __init__(self, path: str, meta: Message) -> None:
        super().__init__(path, meta)
        self._objects = meta.object_graph_def
        self._keys = self._keys_of_nodes()
        self._items: list[Any] = [None] * len(self._objects.nodes)
        # Reasons for which functions are omitted, by the names of the functions.
        self._left_out: dict[str, str] = {}
        for index, proto in enumerate(self._objects.nodes):
            self._items[index] = self._make(index, proto)
        for index, proto in enumerate(self._objects.nodes):
            if proto.WhichOneof("kind") == "resource":
                self._fill_table(index, proto)

    def _keys_of_nodes(self) -> dict[int, dict[str, str]]:
        """Return the checkpoint keys of each object's values, by attribute.

        The object graph of the checkpoint is searched from the root in parallel, by the names of
        the children.
        """
        if self._bundle is None or GRAPH not in self._bundle:
            return {}
        stored = read_graph(self._bundle.read(GRAPH).item())
        keys: dict[int, dict[str, str]] = {}
        checkpoint_ids, queue = {0: 0}, deque([0])
        while queue:
            index = queue.popleft()
            node = stored[checkpoint_ids[index]]
            keys[index] = {a.name: a.key for a in node.attributes}
            proto = self._objects.nodes[index]
            for child in proto.children:
                if child.local_name in node.children and child.node_id not in checkpoint_ids:
                    checkpoint_ids[child.node_id] = node.children[child.local_name]
                    queue.append(child.node_id)
            slots = {(s.variable, s.name): s.node for s in node.slots}
            for slot in proto.slot_variables:
                checkpoint_id = slots.get(
                    (checkpoint_ids.get(slot.original_variable_node_id, -1), slot.slot_name)
                )
                if checkpoint_id is not None and slot.slot_variable_node_id not in checkpoint_ids:
                    checkpoint_ids[slot.slot_variable_node_id] = checkpoint_id
                    queue.append(slot.slot_variable_node_id)
        return keys

    # ---- objects ---------------------------------------------------------------------------

    def _make(self, index: int, proto: Message) -> Any:
        kind = proto.WhichOneof("kind")
        if kind == "variable":
            return self._variable(index, proto.variable)
        if kind == "constant":
            return Tensor(self._nodes[proto.constant.operation]["value"])
        if kind == "asset":
            asset = self._meta.asset_file_def[proto.asset.asset_file_def_index]
            return Asset(file_of(self._path, asset.filename))
        if kind == "resource":
            return self._new_resource(proto)
        if kind in ("function", "bare_concrete_function", "captured_tensor"):
            return None
        make_container = _CONTAINERS.get(proto.user_object.identifier)
        if make_container is not None:
            return make_container()
        is_callable = self._child(proto, "__call__") is not None
        return (CallableRestored if is_callable else Restored)(name=None)

    def _variable(self, index: int, saved: Message) -> Variable:
        key = self._keys.get(index, {}).get(VARIABLE)
        if key is None:
            key = saved.name
        value = self._value(key)
        if as_dtype(saved.dtype).as_numpy_dtype != value.dtype and not value.dtype.hasobject:
            raise DataLossError(
                f"{self._path}: variable {saved.name} has the dtype {as_dtype(saved.dtype).name}, but its value in the "
                f"checkpoint has {value.dtype}."
            )
        shape = TensorShape(sizes(saved.shape))
        return Variable(
            value,
            trainable=saved.trainable,
            name=saved.name or f"variable_{index}",
            synchronization=VariableSynchronization(saved.synchronization),
            aggregation=VariableAggregation(saved.aggregation),
            shape=None if shape.is_fully_defined() else shape,
        )

    def _child(self, proto: Message, name: str) -> Message | None:
        for child in proto.children:
            if child.local_name == name:
                return self._objects.nodes[child.node_id]
        return None

    def _new_resource(self, proto: Message) -> Any:
        create = self._child(proto, "_create_resource")
        results = self._run_once(create) if create is not None else []
        return results[0] if results else None

    def _fill_table(self, index: int, proto: Message) -> None:
        fill = self._child(proto, "_initialize")
        if fill is not None:
            self._run_once(fill)
        table, keys = self._items[index], self._keys.get(index, {})
        stored = [k for k in keys.values() if k.endswith("-keys")]
        if isinstance(table, Table) and stored and self._bundle is not None:
            values = self._bundle.read(f"{stored[0].removesuffix('-keys')}-values")
            table.insert(self._bundle.read(stored[0]), values)

    def _run_once(self, proto: Message) -> list[Any]:
        """Run a function without arguments that creates or fills a table."""
        name = proto.bare_concrete_function.concrete_function_name or next(
            iter(proto.function.concrete_functions), ""
        )
        function_ = self._library[name]
        captured = [self._captured(n) for n in self._objects.concrete_functions[name].bound_inputs]
        return Run(self._library, [], host=True, only=_FILLING).call(function_, captured)

    def _captured(self, index: int) -> Any:
        item = self._items[index]
        if isinstance(item, Asset):
            item = item.asset_path
        return known(item) if isinstance(item, Tensor) else item

    def root(self) -> Restored:
        """Create the root object with all its children and signatures."""
        for index, proto in enumerate(self._objects.nodes):
            item = self._items[index]
            if item is None or isinstance(item, (Variable, Tensor, Table)):
                continue
            for child in proto.children:
                self._put(item, child.local_name, child.node_id)
        root = self._items[0]
        signatures = self._child(self._objects.nodes[0], "signatures")
        signature_map = {}
        for child in signatures.children if signatures is not None else ():
            proto = self._objects.nodes[child.node_id].bare_concrete_function
            alternative = self._alternative(child.local_name, proto.concrete_function_name)
            if alternative is not None:
                signature_map[child.local_name] = Signature(child.local_name, alternative)
        root.signatures = SignatureMap(signature_map)
        return root

    def function_aliases(self) -> dict[str, Any]:
        """Return functions by their aliases."""
        aliases, functions = self._meta.meta_info_def.function_aliases, {}
        for proto in self._objects.nodes:
            for name in proto.function.concrete_functions:
                if name in aliases and aliases[name] not in functions:
                    functions[aliases[name]] = self._function(aliases[name], proto.function)
        return functions

    def _put(self, item: Any, name: str, index: int) -> None:
        proto = self._objects.nodes[index]
        kind, child = proto.WhichOneof("kind"), self._items[index]
        if kind == "function":
            child = self._function(name, proto.function)
        elif kind == "bare_concrete_function":
            bare = proto.bare_concrete_function
            child = self._concrete(name, bare.concrete_function_name, bare.function_spec)
        if child is None and name in self._left_out and isinstance(item, Restored):
            item.note_left_out(name, self._left_out[name])
        elif child is not None and name != "signatures":
            put_child(item, name, child)

    # ---- functions -------------------------------------------------------------------------

    def _function(self, name: str, proto: Message) -> Callable[..., Any] | None:
        results = [self._alternative(name, n) for n in proto.concrete_functions]
        alternatives = [a for a in results if a is not None]
        if not alternatives and proto.concrete_functions:
            return None
        parameters, keywords = _parameters(proto.function_spec)
        return restored_function(Choice(name, parameters, alternatives, keywords))

    def _concrete(
        self, name: str, concrete: str, spec: Message | None = None
    ) -> RestoredConcrete | None:
        alternative = self._alternative(name, concrete)
        if alternative is None:
            return None
        python_name = _COUNTED.sub(r"\1", concrete)
        parameters = _parameters(spec)[0] if spec is not None else []
        return RestoredConcrete(python_name, alternative, [p[0] for p in parameters])

    def _alternative(self, name: str, concrete: str) -> Alternative | None:
        saved = self._objects.concrete_functions[concrete]
        try:
            arguments = taken(saved.canonicalized_input_signature)
            result = taken(saved.output_signature)
        except DataLossError as error:
            # Private functions, such as the step of `adapt`, which takes an iterator, are internal to Keras.
            level = logging.DEBUG if name.startswith("_") else logging.WARNING
            _log.log(level, "%s: function %s is left out: %s", self._path, name, error)
            self._left_out[name] = str(error)
            return None
        captured = [self._captured(n) for n in saved.bound_inputs]
        library = self._library

        def body(run: Run, values: list[Any]) -> list[Any]:
            return run.call(library[concrete], values)

        slots, specs = slots_of(result)
        host = library.needs_host(library[concrete].nodes.values())
        digest = self._digest + concrete.encode()
        program = GraphProgram(name, library, body, captured, slots, specs, host, digest)
        return Alternative(arguments, slots, program)


def _spec(info: Message, name: str) -> TensorSpec:
    return TensorSpec(sizes(info.tensor_shape), as_dtype(info.dtype), name)


def _parameters(spec: Message) -> tuple[list[Any], list[Any]]:
    """Return positional and keyword-only parameters, as [name] or [name, default]."""
    fields = {pair.key: taken(pair.value) for pair in spec.fullargspec.named_tuple_value.values}
    names, defaults = list(fields.get("args") or ()), list(fields.get("defaults") or ())
    parameters: list[Any] = [[n] for n in names]
    for parameter, default in zip(reversed(parameters), reversed(defaults), strict=False):
        parameter.append(packed(default))
    if spec.is_method or names[:1] == ["self"]:
        parameters = parameters[1:]
    keyword_defaults = fields.get("kwonlydefaults") or {}
    return parameters, [[name, packed(default)] for name, default in keyword_defaults.items()]
