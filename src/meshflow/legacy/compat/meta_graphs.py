"""`tf.compat.v1.train.import_meta_graph`: graphs with their variables and collections."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf import text_format

from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.files.paths import get_parent, to_path_string
from meshflow.io import write_graph
from meshflow.legacy.compat.saver import Saver
from meshflow.legacy.graph.definitions import import_graph_def
from meshflow.legacy.graph.graph import Graph, get_default_graph, has_explicit_graph
from meshflow.legacy.graph.operations import Operation, SymbolicTensor
from meshflow.legacy.graph.variables import GraphVariable, ImportedVariable
from meshflow.saved_model.graph.format.messages import Message, MetaGraphDef, VariableDef
from meshflow.version import KERAS_VERSION

__all__ = ["export_meta_graph", "import_meta_graph"]


def export_meta_graph(
    filename: StrPath | None = None,
    meta_info_def: Message | None = None,
    graph_def: Message | None = None,
    saver_def: Message | None = None,
    collection_list: Iterable[str] | None = None,
    as_text: bool = False,
    graph: Graph | None = None,
    **kwargs: PyTree,
) -> Message:
    """Return a description of a graph with its collections, and write it to a file.

    Tools can show it, but the nodes of Meshflow's own operations lack arguments, so that only imported nodes run after
    `import_meta_graph`. Use `tf.compat.v1.saved_model` to store a graph that other programs run.

    Args:
      filename: Path of the file.
      meta_info_def: A `MetaInfoDef` to copy.
      graph_def: Nodes instead of those of the graph.
      saver_def: A `SaverDef` to copy.
      collection_list: Names of the collections. Default: all.
      as_text: Whether the file has text instead of binary data.
      graph: The graph. Default: the default graph.
      **kwargs: Ignored.

    Raises:
      RuntimeError: In eager execution.

    Example:
      >>> with tf.Graph().as_default() as graph:
      ...     tf.compat.v1.add_to_collection("results", tf.constant(1.0, name="x"))
      >>> dict(export_meta_graph(graph=graph).collection_def)["results"].node_list.value
      ['x:0']
    """
    graph = graph or _require_graph()
    meta = MetaGraphDef()
    meta.graph_def.CopyFrom(graph_def or graph.as_graph_def())
    if saver_def is not None:
        meta.saver_def.CopyFrom(saver_def)
    if meta_info_def is not None:
        meta.meta_info_def.CopyFrom(meta_info_def)
    meta.meta_info_def.tensorflow_version = KERAS_VERSION
    for name in graph.get_all_collection_keys() if collection_list is None else collection_list:
        for item in graph.get_collection(name):
            if isinstance(item, GraphVariable):
                meta.collection_def[name].bytes_list.value.append(_describe_variable(item))
            elif isinstance(item, (SymbolicTensor, Operation)):
                meta.collection_def[name].node_list.value.append(item.name)
            elif isinstance(item, (str, bytes)):
                data = item.encode() if isinstance(item, str) else item
                meta.collection_def[name].bytes_list.value.append(data)
            elif isinstance(item, int):
                meta.collection_def[name].int64_list.value.append(item)
            elif isinstance(item, float):
                meta.collection_def[name].float_list.value.append(item)
    if filename is not None:
        path = to_path_string(filename)
        write_graph(meta, get_parent(path) or ".", os.path.basename(path), as_text)
    return meta


def _require_graph() -> Graph:
    """Return the default graph of version 1."""
    if not has_explicit_graph():
        raise RuntimeError(
            "Exporting/importing meta graphs is not supported when eager execution is enabled. No graph exists when eager "
            "execution is enabled."
        )
    return get_default_graph()


def _describe_variable(variable: GraphVariable) -> bytes:
    data: bytes = VariableDef(
        variable_name=variable.name,
        initializer_name=variable.initializer.name,
        initial_value_name=variable.initial_value.name,
        is_resource=True,
        trainable=variable.trainable,
    ).SerializeToString()
    return data


def import_meta_graph(
    meta_graph_or_file: Message | StrPath,
    clear_devices: bool = False,
    import_scope: str | None = None,
    **kwargs: PyTree,
) -> Saver | None:
    """Add a graph that TensorFlow 1 wrote, such as `model.ckpt.meta`, with its variables and collections.

    Its operations compute results, gradients and updates of the variables, so that training can continue. Conditions and
    loops of TensorFlow 1 (`Switch`, `NextIteration`) do not run.

    Args:
      meta_graph_or_file: A `MetaGraphDef` or the path of a file with one, as binary data or text.
      clear_devices: Ignored: devices of operations have no effect.
      import_scope: Prefix of names.
      **kwargs: `input_map`: tensors that replace outputs of nodes, by their names.

    Returns:
      A `Saver` that restores the variables, or None if the graph has none.

    Raises:
      OSError: If the file does not exist, or contains no `MetaGraphDef`.
      RuntimeError: In eager execution.
      ValueError: If names of nodes exist already in the graph.

    Example:
      >>> meta = MetaGraphDef()
      >>> with tf.Graph().as_default() as graph:
      ...     _ = tf.constant([1.0, 2.0], name="x")
      >>> meta.graph_def.CopyFrom(graph.as_graph_def())
      >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      ...     _ = tf.compat.v1.train.import_meta_graph(meta, import_scope="old")
      ...     session.run("old/x:0")
      array([1., 2.], dtype=float32)
    """
    source: Any = meta_graph_or_file
    meta = source if hasattr(source, "graph_def") else _read(to_path_string(source))
    graph, prefix = _require_graph(), f"{import_scope}/" if import_scope else ""
    known = {id(v) for v in graph.list_variables()}
    import_graph_def(graph, meta.graph_def, name=import_scope or "", **kwargs)
    added = {v.op.name: v for v in graph.list_variables() if id(v) not in known}
    _add_collections(graph, meta, prefix, added)
    saved = [v for v in graph.get_collection("variables") if id(v) not in known]
    # The names in the checkpoint have no scope.
    names = {v.op.name.removeprefix(prefix): v for v in saved or added.values()}
    return Saver(names) if names else None


def _read(path: str) -> Message:
    if not gfile.exists(path):
        raise OSError(f"File {path} does not exist.")
    with gfile.GFile(path, "rb") as file:
        data = file.read()
    try:
        return MetaGraphDef.FromString(data)
    except Exception as error:
        with contextlib.suppress(text_format.ParseError, UnicodeDecodeError):
            return text_format.Parse(data.decode(), MetaGraphDef())
        raise OSError(f"Cannot parse file {path}: {error}. Expected a MetaGraphDef.") from error


def _add_collections(
    graph: Graph, meta: Message, prefix: str, variables: dict[str, ImportedVariable]
) -> None:
    """Add the collections of a file to a graph; contexts of control flow and queue runners have no equivalent."""

    def find(name: str) -> Any:
        return graph.as_graph_element(prefix + name) if name else None

    def find_variable(data: bytes) -> ImportedVariable | bytes | None:
        try:
            definition = VariableDef.FromString(data)
        except Exception:
            return data  # A text.
        variable = variables.get(prefix + definition.variable_name.removesuffix(":0"))
        if variable is not None:
            variable._initializer = find(definition.initializer_name)
            variable._initial_value = find(definition.initial_value_name)
        return variable

    converters: dict[str, Callable[[Any], Any]] = {"node_list": find, "bytes_list": find_variable}
    for name, collection in sorted(meta.collection_def.items()):
        kind = collection.WhichOneof("kind")
        for value in getattr(collection, kind).value if kind else ():
            item = converters.get(kind, lambda number: number)(value)
            if item is not None:
                graph.add_to_collection(name, item)
