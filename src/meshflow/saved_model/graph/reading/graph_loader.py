"""Loading of SavedModels that TensorFlow wrote: variables, objects, functions and signatures."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np

from meshflow.checkpoint.array_folder import GRAPH_FILE, VARIABLES
from meshflow.checkpoint.bundle import BundleReader, is_bundle
from meshflow.checkpoint.bundle_messages import decode_graph
from meshflow.checkpoint.object_graph import VARIABLE_VALUE
from meshflow.checkpoint.object_graph_message import GRAPH_KEY
from meshflow.core.runtime.errors import DataLossError
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
from meshflow.files.contained_files import check_contained
from meshflow.saved_model.damaged_files import translate_damage
from meshflow.saved_model.graph.format.messages import DecodeError, Message, SavedModel
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    parse_reference,
    parse_shape,
)
from meshflow.saved_model.graph.format.structured_values import read_structure
from meshflow.saved_model.graph.ops.strings import HostTable
from meshflow.saved_model.graph.reading.graph_programs import (
    GraphProgram,
    make_result_slots,
    to_static_array,
)
from meshflow.saved_model.graph.reading.imported_graphs import ImportedGraph, WrappedFunction
from meshflow.saved_model.graph.reading.interpreter import FunctionLibrary, GraphRun
from meshflow.saved_model.graph.reading.subgraphs import VARIABLE_OPS, extract_subgraph
from meshflow.saved_model.manifest.assets import Asset, load_asset
from meshflow.saved_model.manifest.json_structures import pack_structure
from meshflow.saved_model.manifest.restored_objects import (
    CallableRestoredObject,
    RestoredObject,
    attach_child,
)
from meshflow.saved_model.options import normalize_tags
from meshflow.saved_model.programs.foreign_modules import remember_own_program
from meshflow.saved_model.programs.restored_functions import (
    Alternative,
    AlternativeDispatcher,
    make_restored_function,
)
from meshflow.saved_model.programs.restored_signatures import (
    RestoredConcreteFunction,
    RestoredSignature,
    SignatureMap,
)

_log = logging.getLogger("meshflow")
_CONTAINER_TYPES: dict[str, Callable[[], Any]] = {
    "trackable_list_wrapper": list,
    "trackable_tuple_wrapper": list,
    "trackable_dict_wrapper": dict,
}
# Only these ops, which create and fill tables, may run while a model is loaded.
_TABLE_INIT_OPS = frozenset(
    ("Const", "Identity", "NoOp", "Cast", "AddV2", "PartitionedCall", "StatefulPartitionedCall")
    + ("HashTableV2", "MutableHashTableV2", "LookupTableImportV2", "InitializeTableV2")
    + ("InitializeTableFromTextFileV2", "LookupTableSizeV2")
)
_INIT_SIGNATURE = "__saved_model_init_op"
# A function's name in the graph is its Python name between a common prefix and a number.
_GENERATED_NAME = re.compile(r"^__(?:inference|forward)_(.*?)(?:_\d+)?$")


def has_graph(path: str) -> bool:
    """Check whether a folder has a `saved_model.pb`, written by TensorFlow or by Meshflow."""
    return gfile.exists(gfile.join(path, GRAPH_FILE))


def read_meta_graph(path: str, tags: str | Iterable[str] | None = None) -> Message:
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
    with gfile.GFile(check_contained(file, path), "rb") as opened:
        data = opened.read()
    try:
        graphs = list(SavedModel.FromString(data).meta_graphs)
    except DecodeError as error:
        raise DataLossError(f"{file} is damaged: {error}.") from None
    if not graphs:
        raise DataLossError(f"{file} is damaged: it contains no graph.")
    required = normalize_tags(tags or "serve")
    matching = [g for g in graphs if required <= set(g.meta_info_def.tags)]
    if not matching and (tags or len(graphs) > 1):
        available = [sorted(g.meta_info_def.tags) for g in graphs]
        raise ValueError(
            f"{file} has graphs with the tags {available}, none with all of {list(required)}."
        )
    return (matching or graphs)[0]


def load(
    path: str,
    tags: str | Iterable[str] | None = None,
    with_aliases: bool = False,
    trusted: bool = False,
) -> RestoredObject:
    """Load a SavedModel that TensorFlow wrote.

    Args:
      path: Folder of the model.
      tags: Tags of the graph, as for `read_meta_graph`.
      with_aliases: Whether to set `function_aliases`.
      trusted: Whether the StableHLO programs of the graph need no verification.

    Returns:
      Object with the variables, objects and functions of the saved object as attributes, and
      `signatures`.

    Raises:
      DataLossError: If a file is damaged. The error names the file.
      UnimplementedError: If the model contains a variable of an unsupported type.
    """
    meta = read_meta_graph(path, tags)
    if trusted:
        graph = meta.graph_def
        for node in chain(graph.node, *(f.node_def for f in graph.library.function)):
            if node.op == "XlaCallModule":
                remember_own_program(node.attr["module"].s)
    reader_type = _ObjectGraphLoader if meta.object_graph_def.nodes else _SignatureLoader
    with translate_damage(path, gfile.join(path, GRAPH_FILE)):
        reader = reader_type(path, meta)
        root = reader.load_root()
        root.tensorflow_version = meta.meta_info_def.tensorflow_version
        root.tensorflow_git_version = meta.meta_info_def.tensorflow_git_version
        if with_aliases:
            root.function_aliases = reader.load_function_aliases()
        return root


class _SignatureLoader:
    """Loader for any SavedModel: a graph with signatures, and variables by name."""

    def __init__(self, path: str, meta: Message) -> None:
        self._path, self._meta = path, meta
        parts = (meta.graph_def, meta.object_graph_def)
        data = b"".join(part.SerializeToString(deterministic=True) for part in parts)
        self._digest = hashlib.sha256(data).digest()
        prefix = gfile.join(path, VARIABLES, VARIABLES)
        self._bundle = BundleReader(prefix, path) if is_bundle(prefix) else None
        self._library = FunctionLibrary(
            meta.graph_def.library.function, gfile.join(path, GRAPH_FILE)
        )
        self._nodes = {n.name: GraphNode(n) for n in meta.graph_def.node}
        self._variables: dict[str, Variable] = {}

    def load_root(self) -> RestoredObject:
        """Create the object with signatures, variables and the graph."""
        for node in self._nodes.values():
            if node.op in VARIABLE_OPS and self._get_variable_name(node) in (self._bundle or ()):
                self._get_variable(node)
        root = RestoredObject(name=None)
        root.signatures = SignatureMap(
            {
                name: self._make_signature(name, definition)
                for name, definition in self._meta.signature_def.items()
                if name != _INIT_SIGNATURE and definition.outputs
            }
        )
        root._ordered_variables = tuple(self._variables.values())
        graph = ImportedGraph(self._get_variable)
        graph.load_definition(self._meta.graph_def, "")
        root.graph, root.prune = graph, WrappedFunction(graph).prune
        return root

    def load_function_aliases(self) -> dict[str, Any]:
        """Return functions by their aliases."""
        return {}

    def _make_signature(self, name: str, definition: Message) -> RestoredSignature:
        """Create a signature from nodes of the main graph."""
        names = sorted(definition.inputs)
        specs = {n: _make_spec(definition.inputs[n], n) for n in names}
        outs = {n: _make_spec(definition.outputs[n], n) for n in sorted(definition.outputs)}
        fed = [parse_reference(definition.inputs[n].name)[0] for n in names]
        fetched = [parse_reference(definition.outputs[n].name)[::2] for n in outs]
        program = extract_subgraph(
            name,
            self._library,
            self._nodes,
            fed,
            fetched,
            self._get_variable,
            *make_result_slots(outs),
        )
        return RestoredSignature(
            name, Alternative(((), specs), make_result_slots(outs)[0], program)
        )

    def _get_variable_name(self, node: GraphNode) -> str:
        return node.text("shared_name") or node.name

    def _get_variable(self, node: GraphNode) -> Variable:
        name = self._get_variable_name(node)
        if name not in self._variables:
            self._variables[name] = Variable(self._read_value(name), name=name)
        return self._variables[name]

    def _read_value(self, key: str) -> np.ndarray:
        if self._bundle is None or key not in self._bundle:
            raise DataLossError(f"{self._path}/{VARIABLES} has no value of the variable {key}.")
        return self._bundle.read(key)


class _ObjectGraphLoader(_SignatureLoader):
    """Loader for a SavedModel of TensorFlow 2, which contains an object graph."""

    def __init__(self, path: str, meta: Message) -> None:
        super().__init__(path, meta)
        self._objects = meta.object_graph_def
        self._keys = self._map_checkpoint_keys()
        self._items: list[Any] = [None] * len(self._objects.nodes)
        # Reasons for which functions are omitted, by the names of the functions.
        self._omission_reasons: dict[str, str] = {}
        for index, proto in enumerate(self._objects.nodes):
            self._items[index] = self._make_object(index, proto)
        for index, proto in enumerate(self._objects.nodes):
            if proto.WhichOneof("kind") == "resource":
                self._fill_table(index, proto)

    def _map_checkpoint_keys(self) -> dict[int, dict[str, str]]:
        """Return the checkpoint keys of each object's values, by attribute.

        The object graph of the checkpoint is searched from the root in parallel, by the names of
        the children.
        """
        if self._bundle is None or GRAPH_KEY not in self._bundle:
            return {}
        stored = decode_graph(self._bundle.read(GRAPH_KEY).item())
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

    def _make_object(self, index: int, proto: Message) -> Any:
        kind = proto.WhichOneof("kind")
        if kind == "variable":
            return self._make_variable(index, proto.variable)
        if kind == "constant":
            return Tensor(self._nodes[proto.constant.operation]["value"])
        if kind == "asset":
            asset = self._meta.asset_file_def[proto.asset.asset_file_def_index]
            return load_asset(self._path, asset.filename)
        if kind == "resource":
            return self._create_resource(proto)
        if kind in ("function", "bare_concrete_function", "captured_tensor"):
            return None
        make_container = _CONTAINER_TYPES.get(proto.user_object.identifier)
        if make_container is not None:
            return make_container()
        is_callable = self._get_child(proto, "__call__") is not None
        return (CallableRestoredObject if is_callable else RestoredObject)(name=None)

    def _make_variable(self, index: int, saved: Message) -> Variable:
        key = self._keys.get(index, {}).get(VARIABLE_VALUE)
        if key is None:
            key = saved.name
        value = self._read_value(key)
        if as_dtype(saved.dtype).as_numpy_dtype != value.dtype and not value.dtype.hasobject:
            raise DataLossError(
                f"{self._path}: variable {saved.name} has the dtype {as_dtype(saved.dtype).name}, but its value in the "
                f"checkpoint has {value.dtype}."
            )
        shape = TensorShape(parse_shape(saved.shape))
        return Variable(
            value,
            trainable=saved.trainable,
            name=saved.name or f"variable_{index}",
            synchronization=VariableSynchronization(saved.synchronization),
            aggregation=VariableAggregation(saved.aggregation),
            shape=None if shape.is_fully_defined() else shape,
        )

    def _get_child(self, proto: Message, name: str) -> Message | None:
        for child in proto.children:
            if child.local_name == name:
                return self._objects.nodes[child.node_id]
        return None

    def _create_resource(self, proto: Message) -> Any:
        create = self._get_child(proto, "_create_resource")
        results = self._run_initializer(create) if create is not None else []
        return results[0] if results else None

    def _fill_table(self, index: int, proto: Message) -> None:
        fill = self._get_child(proto, "_initialize")
        if fill is not None:
            self._run_initializer(fill)
        table, keys = self._items[index], self._keys.get(index, {})
        stored = [k for k in keys.values() if k.endswith("-keys")]
        if isinstance(table, HostTable) and stored and self._bundle is not None:
            values = self._bundle.read(f"{stored[0].removesuffix('-keys')}-values")
            table.insert(self._bundle.read(stored[0]), values)

    def _run_initializer(self, proto: Message) -> list[Any]:
        """Run a function without arguments that creates or fills a table."""
        name = proto.bare_concrete_function.concrete_function_name or next(
            iter(proto.function.concrete_functions), ""
        )
        function_ = self._library[name]
        captured = [
            self._resolve_capture(n) for n in self._objects.concrete_functions[name].bound_inputs
        ]
        return GraphRun(self._library, [], host=True, only=_TABLE_INIT_OPS).call(
            function_, captured
        )

    def _resolve_capture(self, index: int) -> Any:
        item = self._items[index]
        if isinstance(item, Asset):
            item = item.asset_path
        return to_static_array(item) if isinstance(item, Tensor) else item

    def load_root(self) -> RestoredObject:
        """Create the root object with all its children and signatures."""
        for index, proto in enumerate(self._objects.nodes):
            item = self._items[index]
            if item is None or isinstance(item, (Variable, Tensor, HostTable)):
                continue
            for child in proto.children:
                self._attach_child(item, child.local_name, child.node_id)
        root = self._items[0]
        signatures = self._get_child(self._objects.nodes[0], "signatures")
        signature_map = {}
        for child in signatures.children if signatures is not None else ():
            proto = self._objects.nodes[child.node_id].bare_concrete_function
            alternative = self._make_alternative(child.local_name, proto.concrete_function_name)
            if alternative is not None:
                signature_map[child.local_name] = RestoredSignature(child.local_name, alternative)
        root.signatures = SignatureMap(signature_map)
        return root

    def load_function_aliases(self) -> dict[str, Any]:
        """Return functions by their aliases."""
        aliases, functions = self._meta.meta_info_def.function_aliases, {}
        for proto in self._objects.nodes:
            for name in proto.function.concrete_functions:
                if name in aliases and aliases[name] not in functions:
                    functions[aliases[name]] = self._make_function(aliases[name], proto.function)
        return functions

    def _attach_child(self, item: Any, name: str, index: int) -> None:
        proto = self._objects.nodes[index]
        kind, child = proto.WhichOneof("kind"), self._items[index]
        if kind == "function":
            child = self._make_function(name, proto.function)
        elif kind == "bare_concrete_function":
            bare = proto.bare_concrete_function
            child = self._make_concrete_function(
                name, bare.concrete_function_name, bare.function_spec
            )
        if child is None and name in self._omission_reasons and isinstance(item, RestoredObject):
            item.record_omission(name, self._omission_reasons[name])
        elif child is not None and name != "signatures":
            attach_child(item, name, child)

    # ---- functions -------------------------------------------------------------------------

    def _make_function(self, name: str, proto: Message) -> Callable[..., Any] | None:
        results = [self._make_alternative(name, n) for n in proto.concrete_functions]
        alternatives = [a for a in results if a is not None]
        if not alternatives and proto.concrete_functions:
            return None
        parameters, keywords = _parse_parameters(proto.function_spec)
        return make_restored_function(
            AlternativeDispatcher(name, parameters, alternatives, keywords)
        )

    def _make_concrete_function(
        self, name: str, concrete: str, spec: Message | None = None
    ) -> RestoredConcreteFunction | None:
        alternative = self._make_alternative(name, concrete)
        if alternative is None:
            return None
        python_name = _GENERATED_NAME.sub(r"\1", concrete)
        parameters = _parse_parameters(spec)[0] if spec is not None else []
        return RestoredConcreteFunction(python_name, alternative, [p[0] for p in parameters])

    def _make_alternative(self, name: str, concrete: str) -> Alternative | None:
        saved = self._objects.concrete_functions[concrete]
        try:
            arguments = read_structure(saved.canonicalized_input_signature)
            result = read_structure(saved.output_signature)
        except DataLossError as error:
            # Private functions, such as the step of `adapt`, which takes an iterator, are internal to Keras.
            level = logging.DEBUG if name.startswith("_") else logging.WARNING
            _log.log(level, "%s: function %s is left out: %s", self._path, name, error)
            self._omission_reasons[name] = str(error)
            return None
        captured = [self._resolve_capture(n) for n in saved.bound_inputs]
        library = self._library

        def body(run: GraphRun, values: list[Any]) -> list[Any]:
            return run.call(library[concrete], values)

        slots, specs = make_result_slots(result)
        host = library.needs_host(library[concrete].nodes.values())
        digest = self._digest + concrete.encode()
        program = GraphProgram(name, library, body, captured, slots, specs, host, digest)
        return Alternative(arguments, slots, program)


def _make_spec(info: Message, name: str) -> TensorSpec:
    return TensorSpec(parse_shape(info.tensor_shape), as_dtype(info.dtype), name)


def _parse_parameters(spec: Message) -> tuple[list[Any], list[Any]]:
    """Return positional and keyword-only parameters, as [name] or [name, default]."""
    fields = {
        pair.key: read_structure(pair.value) for pair in spec.fullargspec.named_tuple_value.values
    }
    names, defaults = list(fields.get("args") or ()), list(fields.get("defaults") or ())
    parameters: list[Any] = [[n] for n in names]
    for parameter, default in zip(reversed(parameters), reversed(defaults), strict=False):
        parameter.append(pack_structure(default))
    if spec.is_method or names[:1] == ["self"]:
        parameters = parameters[1:]
    keyword_defaults = fields.get("kwonlydefaults") or {}
    return parameters, [
        [name, pack_structure(default)] for name, default in keyword_defaults.items()
    ]
