"""Functions of `tf.compat.v1.saved_model` that use a session: they load signatures into a graph, and save parts of a graph.

A loaded signature is an operation of the graph: its inputs are placeholders, and its outputs have the names in the
`SignatureDef`. Other tensors of a saved graph have no counterpart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import NotAvailableError, NotFoundError
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.execution import Run, sort_operations, suspend_recording
from meshflow.legacy.graph.graph import Graph
from meshflow.legacy.graph.operations import Operation, SymbolicTensor
from meshflow.legacy.graph.sessions import Session
from meshflow.saved_model.graph.format.messages import MetaGraphDef, SavedModel

__all__ = [
    "SavedModelBuilder",
    "load",
    "main_op",
    "main_op_with_restore",
    "parse_saved_model",
    "simple_save",
]

# File with the names of a graph's tensors; loaders of TensorFlow ignore this folder.
_NAMES_FILE = os.path.join("assets.extra", "graph_signatures.pb")


def load(
    sess: Session,
    tags: str | Iterable[str],
    export_dir: StrPath,
    import_scope: str | None = None,
    **saver_kwargs: object,
) -> MetaGraphDef:
    """Load the signatures of a SavedModel into the graph of a session.

    The variables of the model have their values already, and initializers do not change them.

    Args:
      sess: The session.
      tags: Tags that the graph must have.
      export_dir: The folder.
      import_scope: Scope of the names of the new operations.
      **saver_kwargs: Ignored.

    Returns:
      A `MetaGraphDef` with the signatures. `signature_def[key].inputs[name].name` is the name of a placeholder.

    Raises:
      OSError: If there is no SavedModel.
      RuntimeError: If no graph has the tags.

    Example:
      >>> import tempfile
      >>> folder, v1 = tempfile.mkdtemp() + "/model", tf.compat.v1
      >>> with tf.Graph().as_default(), v1.Session() as session:
      ...     x = v1.placeholder(tf.float32, [None], name="x")
      ...     v1.saved_model.simple_save(session, folder, {"x": x}, {"y": tf.multiply(x, 2.0, name="y")})
      >>> with tf.Graph().as_default(), v1.Session() as session:
      ...     _ = v1.saved_model.load(session, ["serve"], folder)
      ...     session.run("y:0", {"x:0": [1.0, 2.0]})
      array([2., 4.], dtype=float32)
    """
    with suspend_recording():
        try:
            model = tf.saved_model.load(export_dir, tags)
        except ValueError as error:
            raise RuntimeError(f"MetaGraphDef not found: {error}") from error
    graph, result = sess.graph, _read_signatures(os.fspath(export_dir))
    prefix = f"{import_scope}/" if import_scope else ""
    with graph.as_default(), graph.control_dependencies(None):
        loader = _SignatureLoader(graph, prefix)
        for variable in getattr(model, "variables", ()):
            loader.add_variable(variable)
        for key, definition in result.signature_def.items():
            # A signature of TensorFlow's own objects, such as that of the initialization, has no function here.
            if key in model.signatures:
                loader.add_signature(model.signatures[key], definition)
    return result


def _read_signatures(folder: str) -> MetaGraphDef:
    names = gfile.join(folder, _NAMES_FILE)
    if gfile.exists(names):
        return MetaGraphDef.FromString(_read(names))
    return parse_saved_model(folder).meta_graphs[0]


def parse_saved_model(export_dir: StrPath) -> SavedModel:
    """Return the message in the file `saved_model.pb` of a folder.

    Raises:
      OSError: If there is no such file.
    """
    path = gfile.join(export_dir, "saved_model.pb")
    if not gfile.exists(path):
        raise OSError(f"SavedModel file does not exist at: {path}. Check the path of the folder.")
    return SavedModel.FromString(_read(path))


def _read(path: str) -> bytes:
    with gfile.GFile(path, "rb") as file:
        return file.read()


class _SignatureLoader:
    """Adds signatures to a graph, and writes the names of the new tensors into their definitions."""

    def __init__(self, graph: Graph, prefix: str) -> None:
        self._graph, self._prefix = graph, prefix
        # New tensors by their names in the SavedModel; signatures may share them.
        self._tensors: dict[str, SymbolicTensor] = {}

    def add_variable(self, variable: Variable) -> None:
        """Add an operation with the value of a variable."""
        name = self._name_operation(variable.name.partition(":")[0])
        operation = Operation(
            self._graph, name, "VarHandleOp", lambda run: [variable.read_value()], ()
        )
        self._tensors[variable.name] = operation.add_output(
            TensorSpec(variable.shape, variable.dtype)
        )

    def add_signature(self, function: Callable[..., Any], definition: PyTree) -> None:
        """Add the placeholders of a signature, and the operations of its outputs."""
        specs: Mapping[str, Any] = function.structured_input_signature[1]  # type: ignore[attr-defined]
        inputs = {}
        for key, spec in specs.items():
            name = definition.inputs[key].name
            if name not in self._tensors:
                full_name = self._prefix + name.partition(":")[0] + "/"
                if key in definition.defaults:
                    value = tf.make_ndarray(definition.defaults[key])
                    placeholder = tf.compat.v1.placeholder_with_default(
                        value, spec.shape, full_name
                    )
                else:
                    placeholder = self._graph.make_placeholder(spec.dtype, spec.shape, full_name)
                self._tensors[name] = placeholder
            inputs[key] = self._tensors[name]
            definition.inputs[key].name = self._get_name(inputs[key])
        values = self._graph.record(function, (), inputs, name="saved_signature")
        groups: dict[str, dict[int, str]] = {}
        for key, info in definition.outputs.items():
            operation_name, _, index = info.name.partition(":")
            if info.name not in self._tensors:
                groups.setdefault(operation_name, {})[int(index or 0)] = key
        for operation_name, keys in groups.items():
            self._add_outputs(operation_name, keys, values)
        for info in definition.outputs.values():
            info.name = self._get_name(self._tensors[info.name])

    def _add_outputs(
        self, name: str, keys: Mapping[int, str], values: Mapping[str, SymbolicTensor]
    ) -> None:
        """Add an operation with outputs of the indices `keys`; other outputs repeat the first one."""
        first = values[keys[min(keys)]]
        results = [values[keys[i]] if i in keys else first for i in range(max(keys) + 1)]

        def compute(run: Run) -> Sequence[Any]:
            return [run.find(t) for t in results]

        operation = Operation(
            self._graph, self._name_operation(name), "PartitionedCall", compute, results
        )
        for index, tensor in enumerate(results):
            self._tensors[f"{name}:{index}"] = operation.add_output(
                TensorSpec(tensor.shape, tensor.dtype)
            )

    def _get_name(self, tensor: SymbolicTensor) -> str:
        """Return the name of a tensor for a definition, without the scope of the import, as in TensorFlow."""
        return tensor.name.removeprefix(self._prefix)

    def _name_operation(self, name: str) -> str:
        return self._graph.name_operation(f"{self._prefix}{name}/")


class SavedModelBuilder:
    """Saves parts of a graph as the signatures of a SavedModel.

    Args:
      export_dir: A folder that does not exist, or is empty.

    Raises:
      AssertionError: If the folder contains files.
    """

    def __init__(self, export_dir: StrPath) -> None:
        self._folder = os.fspath(export_dir)
        if gfile.exists(self._folder) and gfile.listdir(self._folder):
            raise AssertionError(
                f"Export directory {self._folder} already exists, and isn't empty. Please choose a different export "
                "directory, or delete all the contents of the specified directory."
            )
        self._is_saved = False

    def add_meta_graph_and_variables(
        self,
        sess: Session,
        tags: Iterable[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_list: Sequence[object] | None = None,
        clear_devices: bool = False,
        init_op: object = None,
        train_op: object = None,
        strip_default_attrs: bool = False,
        saver: object = None,
        **kwargs: object,
    ) -> None:
        """Write signatures of the session's graph, and the values of its variables.

        Args:
          sess: The session.
          tags: Tags of the graph; `"serve"` is added.
          signature_def_map: `SignatureDef`s by key, with names of tensors of the graph.
          assets_list: None or empty.
          clear_devices: Ignored, like the following arguments: tables are saved with their contents.
          init_op: Ignored.
          train_op: Ignored.
          strip_default_attrs: Ignored.
          saver: Ignored.
          **kwargs: Arguments of earlier versions, which are ignored.

        Raises:
          AssertionError: If a graph has been added already.
          NotAvailableError: If there are assets.
          KeyError: If the graph has no tensor of a name.
        """
        if self._is_saved:
            raise AssertionError(
                "Variables and assets have already been saved. A SavedModel of Meshflow has one graph."
            )
        if assets_list:
            raise NotAvailableError(
                "SavedModelBuilder: assets of graphs are not available; use tf.saved_model.save with a tf.saved_model.Asset."
            )
        module, names = tf.Module(), MetaGraphDef()
        signatures = {}
        with sess.graph.use_session(sess):
            # The attribute keeps the variables under their names.
            module.graph_variables = sess.graph.list_variables()
            for key, definition in (signature_def_map or {}).items():
                names.signature_def[key].CopyFrom(definition)
                signatures[key] = _make_signature(sess.graph, definition)
            options = tf.saved_model.SaveOptions(extra_tags=list(tags))
            tf.saved_model.save(module, self._folder, signatures or None, options)
        path = gfile.join(self._folder, _NAMES_FILE)
        gfile.makedirs(os.path.dirname(path))
        with gfile.GFile(path, "wb") as file:
            file.write(names.SerializeToString())
        self._is_saved = True

    def add_meta_graph(self, tags: Iterable[str], *args: object, **kwargs: object) -> None:
        """Raise an error: a SavedModel of Meshflow has one graph."""
        if not self._is_saved:
            raise AssertionError(
                "Graph state including variables and assets has not been saved yet. Please invoke "
                "`add_meta_graph_and_variables()` first."
            )
        raise NotAvailableError(
            f"SavedModelBuilder.add_meta_graph: a SavedModel of Meshflow has one graph, so that with the tags "
            f"{list(tags)} needs another folder."
        )

    def save(self, as_text: bool = False, experimental_debug_stripper: bool = False) -> str:
        """Return the path of the file, which is written with the graph.

        Raises:
          NotFoundError: If no graph has been added.
        """
        if not self._is_saved:
            raise NotFoundError("SavedModelBuilder.save: call add_meta_graph_and_variables first.")
        return gfile.join(self._folder, "saved_model.pb")


def _make_signature(graph: Graph, definition: PyTree) -> Callable[..., Any]:
    """Return a function from the inputs of a signature to its outputs."""
    inputs, outputs = (
        {key: graph.get_tensor_by_name(info.name) for key, info in infos.items()}
        for infos in (definition.inputs, definition.outputs)
    )

    def call(**values: PyTree) -> dict[str, Any]:
        run = Run({id(inputs[key]): value for key, value in values.items()})
        run.execute(sort_operations([t.op for t in outputs.values()], run.values))
        return {key: run.find(tensor) for key, tensor in outputs.items()}

    specs = {key: TensorSpec(t.shape, t.dtype, key) for key, t in inputs.items()}
    return tf.function(call, autograph=False).get_concrete_function(**specs)


def simple_save(
    session: Session,
    export_dir: StrPath,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    legacy_init_op: object = None,
) -> None:
    """Save the signature `serving_default` of a graph.

    Args:
      session: The session.
      export_dir: A folder that does not exist, or is empty.
      inputs: Tensors of the graph by name.
      outputs: Tensors of the graph by name.
      legacy_init_op: Ignored: tables are saved with their contents.
    """
    build = tf.compat.v1.saved_model.predict_signature_def
    key = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    builder = SavedModelBuilder(export_dir)
    builder.add_meta_graph_and_variables(session, ["serve"], {key: build(inputs, outputs)})
    builder.save()


def main_op() -> Operation:
    """Return an operation of the default graph that initializes all variables and tables."""
    v1 = tf.compat.v1
    initializers = (
        "global_variables_initializer",
        "local_variables_initializer",
        "tables_initializer",
    )
    return tf.group(*(getattr(v1, name)() for name in initializers), name="main_op")


def main_op_with_restore(restore_op_name: str) -> Operation:
    """Return an operation like `main_op` that another one follows, by its name."""
    graph = tf.compat.v1.get_default_graph()
    with graph.control_dependencies([main_op()]):
        return tf.group(graph.get_operation_by_name(restore_op_name), name="main_op_with_restore")
