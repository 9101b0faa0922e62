"""`tf.saved_model.save`: save an object's variables, structure, and functions as programs.

The folder has one file for each array, like a checkpoint, and a manifest. A function is saved for
each signature for which it was
traced, or for its `input_signature`. An object can define further functions by
`_saved_functions()`, which returns
{name: [(function, args, kwargs), ...]}, and signatures by `_saved_signatures()`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import jax
import numpy as np

from meshflow.checkpoint.array_folder import GRAPH_FILE, VARIABLES, BundleContents, write_folder
from meshflow.checkpoint.bundle import get_index_path
from meshflow.checkpoint.bundle_messages import ObjectAttribute, ObjectNode, encode_graph
from meshflow.checkpoint.object_graph import VARIABLE_VALUE, Trackable
from meshflow.checkpoint.object_graph_message import GRAPH_KEY
from meshflow.core.functions.function import Function
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.context import context
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string
from meshflow.saved_model.manifest.fingerprint import FINGERPRINT_FILE, encode_fingerprint
from meshflow.saved_model.manifest.saved_objects import SavedObjects
from meshflow.saved_model.options import SaveOptions
from meshflow.saved_model.programs.restored_signatures import SignatureMap
from meshflow.saved_model.saving.function_saver import FunctionSaver
from meshflow.saved_model.saving.signature_saver import SignatureSaver

# Tag of the saved graph.
SERVE_TAG = "serve"
_log = logging.getLogger("meshflow")


def save(
    obj: Trackable,
    export_dir: StrPath,
    signatures: Any = None,
    options: SaveOptions | None = None,
) -> None:
    """Save an object with its variables and functions, to be loaded without its Python code.

    Args:
      obj: A `tf.Module`, Keras model or layer, `tf.train.Checkpoint`, or another object with
        variables.
      export_dir: Folder. An existing SavedModel is replaced.
      signatures: A function or a dictionary of functions by name. Each takes tensors by name and
        returns tensors or a dictionary of
        tensors. It must be a `tf.function` with an `input_signature`, or a concrete function.
        Default: the prediction of
        a Keras model, or the object's only traced `tf.function`.
      options: A `SaveOptions`.

    Raises:
      ValueError: If the object or a signature cannot be saved, or if the object has an attribute
        `signatures`.
      AssertionError: If called inside a `tf.function`.
      UnimplementedError: If a signature cannot be saved. The message states the reason.
      ImportError: If the package flatbuffers (the extra `export`) is not installed.

    Example:
      >>> import tempfile
      >>> class Scale(tf.Module):
      ...     def __init__(self):
      ...         self.factor = tf.Variable(2.0)
      ...
      ...     @tf.function(input_signature=[tf.TensorSpec([None])])
      ...     def __call__(self, x):
      ...         return x * self.factor
      >>> folder = tempfile.mkdtemp()
      >>> tf.saved_model.save(Scale(), folder)
      >>> tf.saved_model.load(folder)([1.0, 2.0]).numpy()
      array([2., 4.], dtype=float32)
    """
    write_content(export_dir, make_content(obj, signatures, options=options))


@dataclasses.dataclass
class SavedModelContent:
    """Content of the folder of a SavedModel.

    Attributes:
      arrays: Name and value of each array, by key in the manifest.
      manifest: Further entries of the manifest.
      keys: Keys of arrays in TensorFlow's bundle, by key in the manifest. Missing keys are the same
        in both.
      nodes: Object graph by which TensorFlow restores the bundle.
      graph: TensorFlow's `SavedModel` message, or None if it is not written.
      objects: Object of each node, or None.
      files: Further files by name.
    """

    arrays: dict[str, tuple[str, Any]]
    manifest: dict[str, Any]
    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    nodes: list[ObjectNode] = dataclasses.field(default_factory=list)
    graph: bytes | None = None
    objects: list[Any] = dataclasses.field(default_factory=list)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)


def write_content(path: StrPath, content: SavedModelContent) -> None:
    """Write a SavedModel, completely or not at all.

    Args:
      path: Folder. An existing SavedModel is replaced.
      content: Result of `make_content`.
    """
    is_distributed = any(
        isinstance(v, jax.Array) and not v.is_fully_addressable for _, v in content.arrays.values()
    )
    if content.graph is None or is_distributed:
        write_folder(to_path_string(path), content.arrays, content.manifest, files=content.files)
        return
    programs = {key for key in content.arrays if key.startswith("program_")}
    keys = {key: content.keys.get(key, key) for key in content.arrays if key not in programs}
    graph = np.array(encode_graph(content.nodes), object)
    write_folder(
        to_path_string(path),
        content.arrays,
        content.manifest,
        BundleContents(keys, {GRAPH_KEY: graph}),
        {GRAPH_FILE: content.graph, FINGERPRINT_FILE: _make_fingerprint, **content.files},
    )


def _make_fingerprint(folder: str) -> bytes:
    """Compute the fingerprint of a written SavedModel and encode it as a file."""
    from meshflow.saved_model.graph.format.graph_fingerprints import compute_fingerprint  # noqa: PLC0415 - it needs an optional package

    with gfile.GFile(gfile.join(folder, GRAPH_FILE), "rb") as file:
        model = file.read()
    with gfile.GFile(get_index_path(gfile.join(folder, VARIABLES, VARIABLES)), "rb") as file:
        return encode_fingerprint(compute_fingerprint(model, file.read()))


def make_content(
    obj: Trackable,
    signatures: Any = None,
    files: Mapping[int, str] | None = None,
    options: SaveOptions | None = None,
) -> SavedModelContent:
    """Return the content of a SavedModel.

    Args:
      obj: Object to save.
      signatures: As in `save`.
      files: Keys of variables that the caller writes to the same folder, by the variables' ids.
      options: A `SaveOptions`, or None.
    """
    if context.trace is not None:
        raise AssertionError(
            "tf.saved_model.save is not supported inside a traced @tf.function. Move the call to the outer "
            "eagerly-executed context."
        )
    if isinstance(obj, (Function, SignedFunction, FunctionType, type)) or not hasattr(
        obj, "__dict__"
    ):
        raise ValueError(
            f"tf.saved_model.save: expected a trackable object such as a tf.Module, got {obj!r}. Assign functions "
            "to attributes of a tf.Module."
        )
    if not isinstance(vars(obj).get("signatures", SignatureMap({})), SignatureMap):
        raise ValueError(
            f"tf.saved_model.save: {obj!r} has an attribute 'signatures', a name that is reserved for loaded objects. "
            "Delete it by del obj.signatures, and pass signatures as an argument."
        )
    options = SaveOptions() if options is None else options
    parts = _collect_parts(obj, signatures, files or {}, options)
    if parts[0].has_new_objects:
        # Tracing the functions created variables. The second pass saves them, too.
        parts = _collect_parts(obj, signatures, files or {}, options)
    return _assemble_content(*parts, options)


_Parts = tuple[SavedObjects, FunctionSaver, SignatureSaver]


def _collect_parts(
    obj: Trackable, signatures: Any, files: Mapping[int, str], options: SaveOptions
) -> _Parts:
    """Collect the objects, their functions, and the signatures."""
    objects = SavedObjects(obj, files)
    functions = FunctionSaver(objects, options.function_aliases)
    functions.add_all()
    signature_saver = SignatureSaver(objects, functions)
    signature_saver.add(signatures)
    return objects, functions, signature_saver


def _assemble_content(
    objects: SavedObjects,
    functions: FunctionSaver,
    signatures: SignatureSaver,
    options: SaveOptions,
) -> SavedModelContent:
    """Assemble the content of the folder."""
    tags = sorted({SERVE_TAG, *(options.extra_tags or ())})
    manifest = {
        "version": 1,
        "tags": tags,
        "nodes": objects.nodes,
        "variables": objects.get_indices(getattr(objects.root, "variables", ())),
        "functions": functions.entries,
        "left_out": functions.left_out,
        "signatures": signatures.entries,
    }
    content = SavedModelContent(objects.arrays, {"saved_model": manifest}, files=objects.files)
    try:
        from meshflow.saved_model.graph.writing.graph_writer import GraphWriter  # noqa: PLC0415 - it needs an optional package
    except ImportError as error:
        _log.warning(
            "tf.saved_model.save: TensorFlow will not be able to load the model: %s", error
        )
        return content
    nodes, content.objects = objects.list_tensorflow_nodes()
    keys = _add_checkpoint_nodes(content, objects, nodes)
    writer = GraphWriter(nodes, content.objects, keys, options.experimental_custom_gradients, tags)
    for function in functions.saved:
        writer.add_function(function)
    if hasattr(objects.root, "_saved_functions"):
        writer.add_keras_call()
    for name, program in signatures.programs.items():
        writer.add_signature(name, program)
    content.graph = writer.finish()
    return content


def _add_checkpoint_nodes(
    content: SavedModelContent, objects: SavedObjects, nodes: list[dict[str, Any]]
) -> dict[int, str]:
    """Add the nodes by which TensorFlow restores variables; return array keys by node index."""
    keys = {}
    for index, node in enumerate(nodes):
        path = objects.graph.nodes[index]["path"] if index < len(objects.graph.nodes) else ""
        content.nodes.append(ObjectNode(dict(node["children"])))
        if node["kind"] != "variable":
            continue
        key = f"{path or node['file']}/.ATTRIBUTES/{VARIABLE_VALUE}"
        if getattr(content.objects[index], "save_as_bf16", False):
            # TensorFlow restores the variable in its own dtype.
            content.arrays[node["file"]] = (node["name"], content.objects[index]._value)
        keys[index] = content.keys[node["file"]] = key
        content.nodes[-1].attributes.append(ObjectAttribute(VARIABLE_VALUE, node["name"], key))
    return keys
