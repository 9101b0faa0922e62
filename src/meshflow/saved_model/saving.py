"""`tf.saved_model.save`: an object's variables, its structure, and its functions as programs.

The folder holds one array a file, as a checkpoint's does, and a manifest. A function is saved for each
signature it was traced for, or for its `input_signature`. An object can name further functions by
`_saved_functions()`: {name: [(function, args, kwargs), ...]}, and signatures by `_saved_signatures()`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import jax
import numpy as np

from meshflow.checkpoint.bundle import index_file
from meshflow.checkpoint.graph import VARIABLE
from meshflow.checkpoint.graph_message import GRAPH
from meshflow.checkpoint.storage import GRAPH_FILE, VARIABLES, Bundled, write_folder
from meshflow.checkpoint.wire import Attribute, Node, write_graph
from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import Function
from meshflow.core.runtime.context import context
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.saved_model.concretes import SignatureMap
from meshflow.saved_model.fingerprint import FINGERPRINT_FILE, written
from meshflow.saved_model.objects import SavedObjects
from meshflow.saved_model.options import SaveOptions
from meshflow.saved_model.stored_functions import StoredFunctions
from meshflow.saved_model.stored_signatures import SERVING, StoredSignatures

__all__ = ["SERVE_TAG", "SERVING", "content", "save"]

# Of the graph of what is saved here.
SERVE_TAG = "serve"
_log = logging.getLogger("meshflow")


def save(obj: Any, export_dir: Any, signatures: Any = None, options: Any = None) -> None:
    """Saves an object with its variables and functions, to be loaded without its Python code.

    Args:
      obj: a `tf.Module`, Keras model or layer, `tf.train.Checkpoint`, or other object with variables.
      export_dir: the folder; one that is there is replaced.
      signatures: a function, or functions by name, that take tensors by name and return tensors or a
        dictionary of them; made by `tf.function` with an `input_signature`, or concrete functions. Default: a
        Keras model's prediction, or the object's only traced `tf.function`.
      options: a `SaveOptions`.

    Raises:
      ValueError: when the object or a signature is none, or the object has an attribute `signatures`.
      AssertionError: inside a `tf.function`.
      UnimplementedError: when a signature cannot be saved, saying why.
      ImportError: without the package flatbuffers (the extra `export`).

    Example:
      >>> import tempfile
      >>> import meshflow as tf
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
    write(export_dir, content(obj, signatures, options=options))


@dataclasses.dataclass
class Content:
    """What is written into a folder.

    Attributes:
      arrays: name and value by the array's key in the manifest.
      manifest: further entries of the manifest.
      keys: where arrays lie in TensorFlow's bundle, by their keys in the manifest; those that are missing go by those.
      nodes: the graph of objects that TensorFlow restores the bundle by.
      graph: TensorFlow's description of all, or None where it is not written.
      objects: those of the nodes; None for what has none here.
      files: further files for TensorFlow, by name.
    """

    arrays: dict[str, tuple[str, Any]]
    manifest: dict[str, Any]
    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    nodes: list[Node] = dataclasses.field(default_factory=list)
    graph: bytes | None = None
    objects: list[Any] = dataclasses.field(default_factory=list)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)


def write(path: Any, what: Content) -> None:
    """Writes a SavedModel, completely or not at all.

    Args:
      path: the folder; one that is there is replaced.
      what: what `content` gave.
    """
    apart = any(
        isinstance(v, jax.Array) and not v.is_fully_addressable for _, v in what.arrays.values()
    )
    if what.graph is None or apart:
        write_folder(text(path), what.arrays, what.manifest, files=what.files)
        return
    programs = {key for key in what.arrays if key.startswith("program_")}
    bundle = {key: what.keys.get(key, key) for key in what.arrays if key not in programs}
    graph = np.array(write_graph(what.nodes), object)
    write_folder(
        text(path),
        what.arrays,
        what.manifest,
        Bundled(bundle, {GRAPH: graph}),
        {GRAPH_FILE: what.graph, FINGERPRINT_FILE: _fingerprint, **what.files},
    )


def _fingerprint(folder: str) -> bytes:
    """The fingerprint of a folder with TensorFlow's part, as the content of its file."""
    from meshflow.saved_model.graph.fingerprints import fingerprint_of  # noqa: PLC0415 - it needs an optional package

    with gfile.GFile(gfile.join(folder, GRAPH_FILE), "rb") as file:
        model = file.read()
    with gfile.GFile(index_file(gfile.join(folder, VARIABLES, VARIABLES)), "rb") as file:
        return written(fingerprint_of(model, file.read()))


def content(
    obj: Any, signatures: Any = None, files: Mapping[int, str] | None = None, options: Any = None
) -> Content:
    """What `save` writes.

    Args:
      obj: the object.
      signatures: as in `save`.
      files: keys of variables that somebody else writes into the same folder, by the variables' identities.
      options: a `SaveOptions`, or None.
    """
    if context.trace is not None:
        raise AssertionError(
            "tf.saved_model.save is not supported inside a traced @tf.function. Move the call to the outer "
            "eagerly-executed context."
        )
    if isinstance(obj, (Function, Signed, FunctionType, type)) or not hasattr(obj, "__dict__"):
        raise ValueError(
            f"tf.saved_model.save: expected a trackable object such as a tf.Module, got {obj!r}. Put functions "
            "into attributes of a tf.Module."
        )
    if not isinstance(vars(obj).get("signatures", SignatureMap({})), SignatureMap):
        raise ValueError(
            f"tf.saved_model.save: {obj!r} has an attribute 'signatures', a name that is reserved for what is loaded. "
            "Delete it by del obj.signatures, and give signatures as an argument."
        )
    options = SaveOptions() if options is None else options
    parts = _parts(obj, signatures, files or {}, options)
    if parts[0].have_grown:
        # Functions made variables when they were traced: now they are all there.
        parts = _parts(obj, signatures, files or {}, options)
    return _together(*parts, options)


_Parts = tuple[SavedObjects, StoredFunctions, StoredSignatures]


def _parts(obj: Any, signatures: Any, files: Mapping[int, str], options: SaveOptions) -> _Parts:
    """The objects, their functions, and the signatures."""
    objects = SavedObjects(obj, files)
    functions = StoredFunctions(objects, options.function_aliases)
    functions.add_all()
    stored = StoredSignatures(objects, functions)
    stored.add(signatures)
    return objects, functions, stored


def _together(
    objects: SavedObjects,
    functions: StoredFunctions,
    signatures: StoredSignatures,
    options: SaveOptions,
) -> Content:
    """What is written of objects, functions and signatures."""
    tags = sorted({SERVE_TAG, *(options.extra_tags or ())})
    manifest = {
        "version": 1,
        "tags": tags,
        "nodes": objects.nodes,
        "variables": objects.places_of(getattr(objects.root, "variables", ())),
        "functions": functions.entries,
        "left_out": functions.left_out,
        "signatures": signatures.entries,
    }
    made = Content(objects.arrays, {"saved_model": manifest}, files=objects.files)
    try:
        from meshflow.saved_model.graph.writer import GraphWriter  # noqa: PLC0415 - it needs an optional package
    except ImportError as error:
        _log.warning("tf.saved_model.save: TensorFlow cannot load what is saved: %s", error)
        return made
    nodes, made.objects = objects.with_hidden()
    keys = _add_keys(made, objects, nodes)
    writer = GraphWriter(nodes, made.objects, keys, options.experimental_custom_gradients, tags)
    for function in functions.saved:
        writer.add_function(function)
    if hasattr(objects.root, "_saved_functions"):
        writer.add_keras_call()
    for name, program in signatures.programs.items():
        writer.add_signature(name, program)
    made.graph = writer.finish()
    return made


def _add_keys(made: Content, objects: SavedObjects, nodes: list[dict[str, Any]]) -> dict[int, str]:
    """Adds how TensorFlow restores variables; gives the keys of their arrays by the numbers of their nodes."""
    keys = {}
    for number, node in enumerate(nodes):
        path = objects.graph.nodes[number]["path"] if number < len(objects.graph.nodes) else ""
        made.nodes.append(Node(dict(node["children"])))
        if node["kind"] != "variable":
            continue
        key = f"{path or node['file']}/.ATTRIBUTES/{VARIABLE}"
        if getattr(made.objects[number], "save_as_bf16", False):
            # TensorFlow restores it as what it is.
            made.arrays[node["file"]] = (node["name"], made.objects[number]._value)
        keys[number] = made.keys[node["file"]] = key
        made.nodes[-1].attributes.append(Attribute(VARIABLE, node["name"], key))
    return keys
