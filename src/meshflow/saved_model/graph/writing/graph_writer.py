"""Writing of `saved_model.pb`: TensorFlow's graph, functions, objects and signatures."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.values import nest
from meshflow.core.values.composite import is_composite_spec
from meshflow.core.values.dtypes import as_dtype, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.saved_model.graph.format import messages
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.nodes import (
    add_node,
    make_shape,
    make_string_list,
    make_tensor,
    make_type_list,
    parse_dtype_enum,
    to_dtype_enum,
    write_shape,
)
from meshflow.saved_model.graph.format.structured_values import (
    encode_structure,
    get_sizes,
    write_argument_spec,
    write_structure,
)
from meshflow.saved_model.graph.writing import program_functions
from meshflow.saved_model.graph.writing.program_functions import ExportedProgram, WrittenFunction
from meshflow.saved_model.graph.writing.table_nodes import add_table
from meshflow.saved_model.host_steps.plan import (
    FunctionPlan,
    HostStep,
    ProgramsByRank,
    SavedProgram,
    StagedFunction,
)
from meshflow.saved_model.manifest.composite_values import list_component_specs
from meshflow.saved_model.manifest.json_structures import UnsavableError
from meshflow.saved_model.programs.stablehlo import NO_GRADIENT
from meshflow.saved_model.saving.function_saver import SavedFunction

_log = logging.getLogger("meshflow")
# The graphs conform to this version of TensorFlow and of its graph format.
_TENSORFLOW_VERSION, _GRAPH_PRODUCER = "2.21.0", 2286
_PREDICT_METHOD = "tensorflow/serving/predict"
_INIT_SIGNATURE = "__saved_model_init_op"
_KERAS_CHILD, _KERAS_CALL = "keras_api", "call_and_return_conditional_losses"
_CONTAINER_IDENTIFIERS = {"list": "trackable_list_wrapper", "dict": "trackable_dict_wrapper"}


class GraphWriter:
    """Writer of a `SavedModel` message.

    Args:
      nodes: Kind and children of each object, as in the manifest.
      objects: The objects, or None for nodes without an object.
      keys: Keys of the variables' arrays in the checkpoint, by the index of the object.
      gradients: Whether functions can be trained further.
      tags: Tags of the graph.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        objects: Sequence[Any],
        keys: Mapping[int, str],
        gradients: bool = True,
        tags: Sequence[str] = ("serve",),
    ) -> None:
        self._gradients = gradients
        self._keys = keys
        self.model = messages.SavedModel(saved_model_schema_version=1)
        self._meta = self.model.meta_graphs.add()
        info = self._meta.meta_info_def
        info.tags.extend(tags)
        info.tensorflow_version = _TENSORFLOW_VERSION
        info.stripped_default_attrs = True
        self._graph = self._meta.graph_def
        self._graph.versions.producer = _GRAPH_PRODUCER
        self._objects = self._meta.object_graph_def
        self._count = 0
        self._object_indices: dict[int, int] = {}
        # Functions of the root object by name, with each program and the function that it was
        # written as.
        self._root_functions: dict[
            str, tuple[SavedFunction, list[tuple[SavedProgram, WrittenFunction]]]
        ] = {}
        self._kinds = [node["kind"] for node in nodes]
        tables: list[tuple[int, Any]] = []
        for index, (node, item) in enumerate(zip(nodes, objects, strict=True)):
            proto = self._objects.nodes.add()
            for name, child in node["children"].items():
                proto.children.add(node_id=child, local_name=name)
            if node["kind"] == "variable":
                self._add_variable(proto, index, item, node)
            elif node["kind"] == "asset":
                self._add_asset(proto, index, item, node["file"])
            elif node["kind"] == "table":
                tables.append((index, item))
            elif node["kind"] != "function":
                _set_user_object(
                    proto, _CONTAINER_IDENTIFIERS.get(node["kind"], "_generic_user_object")
                )
        # These nodes run before the first call where only the graph is used, without the objects.
        self._init_nodes: list[str] = []
        for index, item in tables:
            self._add_table(index, item)
        self._signatures = self._add_object(0, "signatures")
        _set_user_object(self._objects.nodes[self._signatures], "signature_map")

    def _add_object(self, owner: int | None = None, name: str = "") -> int:
        self._objects.nodes.add()
        index = len(self._objects.nodes) - 1
        if owner is not None:
            self._objects.nodes[owner].children.add(node_id=index, local_name=name)
        return index

    def _add_variable(
        self, proto: Message, index: int, item: Variable, node: Mapping[str, Any]
    ) -> None:
        self._object_indices[id(item)] = index
        saved = proto.variable
        saved.dtype = to_dtype_enum(item.dtype)
        write_shape(saved.shape, get_sizes(item.shape))
        saved.trainable = bool(node["trainable"])
        if "synchronization" in node:
            saved.synchronization = item.synchronization.value
        if "aggregation" in node:
            saved.aggregation = item.aggregation.value
        saved.name = node["name"]
        add_node(
            self._graph.node,
            f"variable_{index}",
            "VarHandleOp",
            dtype=parse_dtype_enum(saved.dtype),
            shape=make_shape(get_sizes(item.shape)),
            shared_name=f"variable_{index}".encode(),
            container=b"",
            allowed_devices=make_string_list([]),
        )

    def _add_asset(self, proto: Message, index: int, item: object, file: str) -> None:
        self._object_indices[id(item)] = index
        proto.asset.asset_file_def_index = len(self._meta.asset_file_def)
        path = np.array(f"assets/{file}".encode(), object)
        name = f"variable_{index}"
        add_node(self._graph.node, name, "Const", dtype=string, value=make_tensor(path))
        info = self._meta.asset_file_def.add(filename=file)
        info.tensor_info.name = f"{name}:0"

    def _add_table(self, index: int, table: Any) -> None:
        """Add a table as a resource, with functions that create, fill and destroy it."""
        # A vocabulary table is saved as the hash table that it contains.
        inner = getattr(table, "static_table", table)
        self._object_indices[id(table)] = self._object_indices[id(inner)] = index
        proto = self._objects.nodes[index]
        if inner is None:
            _set_user_object(proto, "_generic_user_object")
            return
        proto.resource.SetInParent()
        names = {
            k: self._make_function_name(f"table{k}")
            for k in ("_create_resource", "_initialize", "_destroy_resource")
        }
        handle = f"variable_{index}"
        table_functions, filled = add_table(self._graph, names, inner, handle)
        self._init_nodes.append(filled)
        for key, (function, bound, dtype) in table_functions.items():
            concrete = messages.SavedConcreteFunction(bound_inputs=[index] * bound)
            write_structure(concrete.canonicalized_input_signature, ((), {}))
            spec = concrete.output_signature.tensor_spec_value
            spec.dtype = dtype
            spec.shape.SetInParent()
            self._objects.concrete_functions[function].CopyFrom(concrete)
            child = self._objects.nodes[self._add_object(index, key)].function
            child.concrete_functions.append(function)
            write_argument_spec(child.function_spec, [], {})

    def _get_object_index(self, capture: object) -> int:
        return self._object_indices[id(capture)]

    def _make_function_name(self, name: str) -> str:
        self._count += 1
        ascii_name = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        return f"__inference_{ascii_name}_{self._count}"

    # ---- functions -------------------------------------------------------------------------

    def add_function(self, function: SavedFunction) -> None:
        """Add a function that is an attribute, a method or an element of an object."""
        written = []
        for program in function.programs:
            if not _check_writable(f"function {function.name}", program):
                continue
            try:
                written.append((program, self._add_program(program, self._gradients)))
            except UnsavableError as error:
                _log_omission(f"function {function.name}", error)
        if function.programs and not written:
            return
        for alias in function.aliases:
            for _, w in written:
                self._meta.meta_info_def.function_aliases[w.name] = alias
        if function.concrete:
            self._write_concrete(function, *written[0])
            return
        self._write_function(function, [w for _, w in written])
        if function.owner == 0:
            self._root_functions[function.name] = function, written

    def _write_function(self, function: SavedFunction, written: Sequence[WrittenFunction]) -> None:
        proto = self._get_function_object(function.owner, function.name).function
        proto.concrete_functions.extend(w.name for w in written)
        keyword_names = {k for p in function.programs for k in p.arguments[1]}
        keywords: dict[str, list[Any]] = {
            k: [] for k in sorted(keyword_names - {p[0] for p in function.parameters})
        }
        keywords |= {name: [default] for name, default in function.keywords}
        takes_more = any(len(p.arguments[0]) > len(function.parameters) for p in function.programs)
        write_argument_spec(proto.function_spec, function.parameters, keywords, takes_more)
        if not written:
            proto.SetInParent()

    def _write_concrete(
        self, function: SavedFunction, program: SavedProgram, written: WrittenFunction
    ) -> None:
        args, kwargs = program.arguments
        parameters = [(p[0], a) for p, a in zip(function.parameters, args, strict=False)]
        parameters += [(f"args_{i}", args[i]) for i in range(len(parameters), len(args))]
        index = self._add_object(function.owner, function.name)
        bare = self._objects.nodes[index].bare_concrete_function
        bare.concrete_function_name = written.name
        for name, argument in (*parameters, *sorted(kwargs.items())):
            leaves = [s for s in nest.flatten(argument) if isinstance(s, TensorSpec)]
            bare.argument_keywords.extend(s.name or name for s in leaves)
        bare.allowed_positional_arguments = len(bare.argument_keywords)
        write_argument_spec(
            bare.function_spec, [[name] for name, _ in parameters], {key: [] for key in kwargs}
        )

    def add_keras_call(self) -> None:
        """Add the call of the root object with losses, as tf.keras requires it for unknown classes."""
        if "__call__" not in self._root_functions:
            return
        function, written = self._root_functions["__call__"]
        wrappers = []
        for program, inner in written:
            outer = program_functions.add_wrapper(
                self._graph.library,
                self._make_function_name("call_with_losses"),
                inner,
                differentiable=True,
            )
            self._describe_function(outer, program.arguments, (program.result_specs, []))
            wrappers.append(outer)
        if wrappers:
            index = self._add_object(0, _KERAS_CHILD)
            keras_call = dataclasses.replace(function, owner=index, name=_KERAS_CALL)
            self._write_function(keras_call, wrappers)

    def _get_function_object(self, owner: int, name: str) -> Message:
        for child in self._objects.nodes[owner].children:
            if child.local_name == name and self._is_function(child.node_id):
                return self._objects.nodes[child.node_id]
        return self._objects.nodes[self._add_object(owner, name)]

    def _is_function(self, index: int) -> bool:
        return index < len(self._kinds) and self._kinds[index] == "function"

    def _add_program(self, program: SavedProgram, trainable: bool) -> WrittenFunction:
        """Add a program as a concrete function, with its gradient if it has one."""
        if isinstance(program, ProgramsByRank):
            return self._add_rank_dispatch(program)
        if isinstance(program, FunctionPlan):
            return self._add_plan(program, trainable)
        if isinstance(program, StagedFunction):
            raise UnsavableError(program.explain_incompatibility())
        if trainable and program_functions.is_trainable(program):
            try:
                return self._add_concrete(program, True)
            except NO_GRADIENT as error:
                _log.info("tf.saved_model.save: %s has no gradient: %s", program.name, error)
        return self._add_concrete(program, False)

    def _add_rank_dispatch(self, program: ProgramsByRank) -> WrittenFunction:
        """Add a concrete function of tensors of unknown rank."""
        library, num_functions = self._graph.library, len(self._graph.library.function)
        try:
            ranked = {rank: self._add_program(p, False) for rank, p in program.programs.items()}
            name = self._make_function_name(program.name)
            written = program_functions.add_rank_dispatch(
                library,
                name,
                program,
                ranked,
                lambda: self._make_function_name(f"{program.name}_rank"),
            )
            self._describe_function(written, program.arguments, program.result_specs)
        except Exception:
            del library.function[num_functions:]
            raise
        return written

    def _add_plan(self, plan: FunctionPlan, trainable: bool) -> WrittenFunction:
        """Add a concrete function of strings and tables."""
        parts = [
            self._add_program(p[1], trainable) for p in plan.parts if not isinstance(p, HostStep)
        ]
        library, num_functions = self._graph.library, len(self._graph.library.function)
        try:
            name = self._make_function_name(plan.name)
            written = program_functions.add_plan(library, name, plan, self._get_object_index, parts)
            self._describe_function(written, plan.arguments, plan.result_specs)
        except Exception:
            del library.function[num_functions:]
            raise
        return written

    def _add_concrete(self, program: ExportedProgram, trainable: bool) -> WrittenFunction:
        library, name = self._graph.library, self._make_function_name(program.name)
        gradient = f"CustomGradient-{name}" if trainable else None
        num_functions = len(library.function)
        try:
            written = program_functions.add_program(
                library, name, program, self._get_object_index, gradient
            )
            self._describe_function(written, program.arguments, program.result_specs)
            if gradient:
                self._add_gradient(gradient, program, written)
        except Exception:
            # A failure must not leave incomplete functions in the graph.
            del library.function[num_functions:]
            self._objects.concrete_functions.pop(name, None)
            raise
        return written

    def _add_gradient(
        self, registered: str, program: ExportedProgram, written: WrittenFunction
    ) -> None:
        library = self._graph.library
        name = self._make_function_name(f"{program.name}_gradient")
        function, captured, (arguments, result) = program_functions.add_gradient(
            library, name, program, written
        )
        captured_ids = []
        for tensor in captured:
            captured_ids.append(self._add_object())
            proto = self._objects.nodes[captured_ids[-1]].captured_tensor
            proto.name, proto.concrete_function = tensor, written.name
        self._describe_function(WrittenFunction(function, captured_ids, []), arguments, result)
        library.registered_gradients.add(gradient_func=name, registered_op_type=registered)

    def _describe_function(
        self, written: WrittenFunction, arguments: PyTree, result: PyTree
    ) -> None:
        concrete = messages.SavedConcreteFunction(bound_inputs=written.bound_inputs)
        write_structure(
            concrete.canonicalized_input_signature, (tuple(arguments[0]), dict(arguments[1]))
        )
        write_structure(concrete.output_signature, result)
        self._objects.concrete_functions[written.name].CopyFrom(concrete)

    # ---- signatures ------------------------------------------------------------------------

    def add_signature(self, name: str, program: SavedProgram) -> None:
        """Add a signature, which maps tensors by name to tensors by name.

        Args:
          name: Name of the signature.
          program: Program with the arguments ((), specs by name), and a dictionary as result.
        """
        if not _check_writable(f"signature {name}", program):
            return
        inner = self._add_program(program, False)
        written = program_functions.add_wrapper(
            self._graph.library, self._make_function_name(f"signature_wrapper_{name}"), inner
        )
        self._describe_function(written, program.arguments, program.result_specs)
        self._add_signature(name, program, written)

    def _add_signature(self, name: str, program: SavedProgram, written: WrittenFunction) -> None:
        names = sorted(program.arguments[1])
        index = self._add_object(self._signatures, name)
        bare = self._objects.nodes[index].bare_concrete_function
        bare.concrete_function_name = written.name
        bare.argument_keywords.extend(names)
        bare.allowed_positional_arguments = len(names)
        write_argument_spec(bare.function_spec, [], {name: [] for name in names})
        definition = self._meta.signature_def[name]
        definition.method_name = _PREDICT_METHOD
        inputs = []
        for i, key in enumerate(names):
            spec = program.arguments[1][key]
            inputs.append(
                add_node(
                    self._graph.node,
                    f"{name}_input_{i}",
                    "Placeholder",
                    dtype=as_dtype(spec.dtype),
                    shape=make_shape(None if spec.shape.rank is None else list(spec.shape)),
                )
            )
            _set_tensor_info(definition.inputs[key], iter([f"{inputs[-1]}:0"]), spec)
        inputs += [f"variable_{n}" for n in written.bound_inputs]
        call = program_functions.add_call(
            self._graph.node, f"{name}_call", written.definition, inputs, written.outs
        )
        results = (f"{call}:{i}" for i in itertools.count())
        for key, spec in sorted(program.result_specs.items()):
            _set_tensor_info(definition.outputs[key], results, spec)

    # ---- saving and restoring --------------------------------------------------------------

    def finish(self) -> bytes:
        """Add the ops that save and restore variables where only the graph is used.

        Returns:
          The serialized message.
        """
        graph = self._graph.node
        for index, proto in enumerate(self._objects.nodes):
            if proto.WhichOneof("kind") is None:
                _set_user_object(self._objects.nodes[index], "_generic_user_object")
        indices = list(self._keys)
        dtypes = [self._objects.nodes[n].variable.dtype for n in indices]
        add_node(graph, "saver_filename", "Placeholder", dtype=string, shape=make_shape(()))
        keys = np.array([self._keys[n].encode() for n in indices], object)
        for key, value in (("names", keys), ("slices", np.array([b""] * len(indices), object))):
            add_node(graph, f"saver_{key}", "Const", dtype=string, value=make_tensor(value))
        files = ["saver_filename", "saver_names", "saver_slices"]
        assigned, saved = [], []
        if indices:
            add_node(graph, "restore", "RestoreV2", files, dtypes=make_type_list(dtypes))
            for i, (index, dtype) in enumerate(zip(indices, dtypes, strict=True)):
                handle = f"variable_{index}"
                add_node(
                    graph,
                    f"assign_{index}",
                    "AssignVariableOp",
                    [handle, f"restore:{i}"],
                    dtype=parse_dtype_enum(dtype),
                    validate_shape=False,
                )
                add_node(
                    graph,
                    f"read_{index}",
                    "ReadVariableOp",
                    [handle],
                    dtype=parse_dtype_enum(dtype),
                )
            assigned = [f"^assign_{n}" for n in indices]
            reads = [f"read_{n}" for n in indices]
            saved = [
                "^"
                + add_node(graph, "save", "SaveV2", files + reads, dtypes=make_type_list(dtypes))
            ]
        add_node(graph, "restore_all", "NoOp", assigned)
        add_node(graph, "saved", "Identity", ["saver_filename", *saved], T=string)
        saver = self._meta.saver_def
        saver.filename_tensor_name, saver.save_tensor_name = "saver_filename:0", "saved:0"
        saver.restore_op_name, saver.version = "restore_all", 2
        init = self._meta.signature_def[_INIT_SIGNATURE].outputs[_INIT_SIGNATURE]
        init.name = add_node(graph, "initialize", "NoOp", [f"^{n}" for n in self._init_nodes])
        init.tensor_shape.unknown_rank = True
        return self.model.SerializeToString(deterministic=True)


def _check_writable(name: str, program: SavedProgram) -> bool:
    """Check whether TensorFlow can run a program, with a warning if it cannot."""
    reason = program.explain_incompatibility()
    if reason is not None:
        _log_omission(name, reason)
    return reason is None


def _log_omission(name: str, reason: str | Exception) -> None:
    _log.warning(
        "tf.saved_model.save: %s is saved for Meshflow, not for TensorFlow: %s", name, reason
    )


def _set_user_object(proto: Message, identifier: str) -> None:
    user_object = proto.user_object
    user_object.identifier = identifier
    user_object.version.producer = user_object.version.min_consumer = 1


def _set_tensor_info(proto: Message, names: Iterator[str], spec: PyTree) -> None:
    """Describe an argument or a result, given an iterator of the names of its tensors."""
    if isinstance(spec, SparseTensorSpec):
        coo = proto.coo_sparse
        coo.indices_tensor_name, coo.values_tensor_name = next(names), next(names)
        coo.dense_shape_tensor_name = next(names)
        proto.dtype = to_dtype_enum(spec.dtype)
        write_shape(proto.tensor_shape, None if spec.shape.rank is None else list(spec.shape))
        return
    if is_composite_spec(spec):
        composite = proto.composite_tensor
        composite.type_spec = encode_structure(spec).type_spec_value.SerializeToString()
        for part in list_component_specs(spec):
            _set_tensor_info(composite.components.add(), names, part)
        return
    proto.name = next(names)
    proto.dtype = to_dtype_enum(spec.dtype)
    write_shape(proto.tensor_shape, None if spec.shape.rank is None else list(spec.shape))
