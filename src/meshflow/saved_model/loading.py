"""`tf.saved_model.load`: restore objects with their variables and functions, without their classes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import jax.export

from meshflow.checkpoint.graph import Trackable
from meshflow.checkpoint.storage import GRAPH_FILE, Folder, is_checkpoint
from meshflow.core.runtime.errors import DataLossError, FailedPreconditionError, NotFoundError
from meshflow.core.runtime.import_paths import public_face
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable, kept_whole
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.saved_model import tables
from meshflow.saved_model.assets import Asset, file_of
from meshflow.saved_model.concretes import RestoredConcrete, Signature, SignatureMap
from meshflow.saved_model.functions import (
    Alternative,
    ByRank,
    Choice,
    RestoredFunction,
    StableProgram,
    restored_function,
)
from meshflow.saved_model.options import LoadOptions, tags_of
from meshflow.saved_model.plans import HostPart, PlanProgram, ProgramPart, unpacked_argument
from meshflow.saved_model.programs import loaded
from meshflow.saved_model.restored import CallableRestored, Restored, put_child
from meshflow.saved_model.structures import unpacked
from meshflow.saved_model.text import TextProgram
from meshflow.version import GIT_VERSION, VERSION

__all__ = [
    "TENSORRT_FILE",
    "TENSORRT_MODEL",
    "contains_saved_model",
    "is_tensorflows",
    "load",
    "load_as_saved",
]

# Files that `tf.experimental.tensorrt` adds to a SavedModel when it converts it: its options and the
# converted model.
TENSORRT_FILE, TENSORRT_MODEL = "tensorrt.json", "model.onnx"


def contains_saved_model(export_dir: StrPath) -> bool:
    """Check whether a folder has a SavedModel of `tf.saved_model.save` or `Model.save`.

    Args:
      export_dir: The folder.

    Example:
      >>> import meshflow as tf
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     before = tf.saved_model.contains_saved_model(folder)
      ...     tf.saved_model.save(tf.Module(), folder)
      ...     before, tf.saved_model.contains_saved_model(folder)
      (False, True)
    """
    path = text(export_dir)
    if is_checkpoint(path):
        return "saved_model" in Folder(path).manifest
    return is_tensorflows(path)


def is_tensorflows(path: str) -> bool:
    """Check whether a folder has a SavedModel that TensorFlow wrote.

    Args:
      path: The folder.
    """
    return not is_checkpoint(path) and gfile.exists(gfile.join(path, GRAPH_FILE))


def load(
    export_dir: StrPath,
    tags: str | Iterable[str] | None = None,
    options: LoadOptions | None = None,
) -> Any:
    """Load a SavedModel of Meshflow or TensorFlow. Its Python code is not needed.

    A SavedModel of TensorFlow is loaded as a graph. The ops that inference uses are supported; a
    function with another op
    raises an error when it is called.

    Args:
      export_dir: The folder.
      tags: Tags that the graph must have. Default: the serving tag.
      options: A `LoadOptions`.

    Returns:
      An object with the variables, objects and functions of the saved object as attributes, and
      `signatures`.

    Raises:
      OSError: If there is no SavedModel.
      ValueError: If no graph has the tags.
      DataLossError: If a file is damaged. The message names the file.
      ImportError: If TensorFlow wrote the folder and the package protobuf is not installed.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> folder, module = tempfile.mkdtemp(), tf.Module()
      >>> module.weight = tf.Variable([1.0, 2.0])
      >>> tf.saved_model.save(module, folder)
      >>> tf.saved_model.load(folder).weight.numpy()
      array([1., 2.], dtype=float32)
    """
    path = text(export_dir)
    root = load_as_saved(path, tags, options)
    if gfile.exists(gfile.join(path, TENSORRT_FILE)):
        public_face().experimental.tensorrt.replace_signature(path, root)
    return root


def load_as_saved(
    path: str, tags: str | Iterable[str] | None = None, options: LoadOptions | None = None
) -> Any:
    """Load a SavedModel without the changes of a conversion for TensorRT.

    Args:
      path: The folder.
      tags: As in `load`.
      options: A `LoadOptions`, or None.

    Raises:
      OSError: If there is no SavedModel.
      DataLossError: If a file is damaged. The message names the file.
    """
    with_aliases = options is not None and options.experimental_load_function_aliases
    if is_tensorflows(path):
        from meshflow.saved_model.graph import loading  # noqa: PLC0415 - it needs an optional package

        return loading.load(path, tags, with_aliases)
    try:
        folder = Folder(path)
    except (NotFoundError, FailedPreconditionError):
        # The path may be a file.
        folder = None
    if folder is None or "saved_model" not in folder.manifest:
        raise OSError(
            f"SavedModel file does not exist at: {path}. Expected a folder written by tf.saved_model.save or "
            "Model.save, with a saved_model.pb or Meshflow's manifest."
        )
    try:
        requested = tags_of(tags)
        existing = folder.manifest["saved_model"].get("tags", ["serve"])
        if not requested <= set(existing):
            raise ValueError(
                f"{path} has a graph with the tags {existing}, none with all of {list(requested)}."
            )
        return _Reader(folder, with_aliases).root()
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataLossError(f"{path}: the manifest is damaged: {error!r}.") from error


class _Reader:
    """Loader of the objects and functions that a manifest describes.

    Args:
      folder: Folder of the SavedModel.
      with_aliases: Whether to restore function aliases.
    """

    def __init__(self, folder: Folder, with_aliases: bool) -> None:
        self._folder, self._with_aliases = folder, with_aliases
        self._content = folder.manifest["saved_model"]
        self._constants: dict[str, Tensor] = {}
        self._programs: dict[bytes, Callable[[], Any]] = {}
        nodes = self._content["nodes"]
        if "tags" not in self._content:
            # In SavedModels of earlier versions, the `__call__` of an object that was loaded and
            # saved again has another name.
            for saved in self._content["functions"]:
                saved["name"] = "__call__" if saved["name"] == "_call" else saved["name"]
        self._callable = {i for i, n in enumerate(nodes) if "__call__" in n["children"]}
        self._left_out = self._content.get("left_out", ())
        named = [*self._content["functions"], *self._left_out]
        self._callable |= {f["owner"] for f in named if f["name"] == "__call__"}
        shards = {p for n in nodes if n["kind"] == "shards" for p in n["children"].values()}
        self._items: list[Trackable] = []
        for index, node in enumerate(nodes):
            # Programs take the shards of a variable as separate captures, so a shard must not be
            # sharded again.
            with kept_whole() if index in shards else nullcontext():
                self._items.append(self._make(index, node))
        for index, node in enumerate(nodes):
            if node["kind"] == "shards":
                variables = [self._items[i] for i in node["children"].values()]
                self._items[index] = ShardedVariable(variables, node["name"])

    def _make(self, index: int, node: dict[str, Any]) -> Trackable:
        kind = node["kind"]
        if kind == "variable":
            return self._variable(node)
        if kind == "asset":
            return Asset(file_of(self._folder.path, node["file"]))
        if kind == "table":
            return tables.made(node, self._folder.read_file)
        if kind == "dict":
            return {}
        if kind == "list":
            return []
        if kind in ("function", "shards"):
            return None
        restored_class = CallableRestored if index in self._callable else Restored
        return restored_class(
            name=node.get("name") if str(node.get("name")).isidentifier() else None
        )

    def _variable(self, node: dict[str, Any]) -> Variable:
        options: dict[str, Any] = {}
        if "shape" in node:
            options["shape"] = TensorShape(node["shape"])
        if "synchronization" in node:
            options["synchronization"] = VariableSynchronization[node["synchronization"]]
        if "aggregation" in node:
            options["aggregation"] = VariableAggregation[node["aggregation"]]
        value = self._folder.read_file(node["file"])
        return Variable(value, trainable=node["trainable"], name=node["name"], **options)

    def root(self) -> Trackable:
        """Load all functions and return the root object."""
        for node, item in zip(self._content["nodes"], self._items, strict=True):
            for name, index in node["children"].items():
                child = self._items[index]
                if child is not None and node["kind"] != "shards":
                    put_child(item, name, child)
        aliases: dict[str, list[Any]] = {}
        for saved in self._content["functions"]:
            restored = self._function(saved)
            put_child(self._items[saved["owner"]], saved["name"], restored)
            for alias in saved.get("aliases", ()):
                aliases.setdefault(alias, []).append(restored)
        for omitted in self._left_out:
            owner = self._items[omitted["owner"]]
            if isinstance(owner, Restored):
                owner.note_left_out(omitted["name"], omitted["why"])
        signatures = {
            name: Signature(name, self._alternative(name, saved))
            for name, saved in self._content["signatures"].items()
        }
        root = self._items[0]
        root.signatures = SignatureMap(signatures)
        root.tensorflow_version, root.tensorflow_git_version = VERSION, GIT_VERSION
        if self._with_aliases:
            root.function_aliases = {a: f if len(f) > 1 else f[0] for a, f in aliases.items()}
        variables = self._content["variables"]
        if variables is not None:
            root._ordered = tuple(self._items[index] for index in variables)
        return root

    def _function(self, saved: dict[str, Any]) -> RestoredConcrete | RestoredFunction:
        name, parameters = saved["name"], saved["parameters"]
        alternatives = [self._alternative(name, a) for a in saved["alternatives"]]
        if "concrete" in saved:
            return RestoredConcrete(saved["concrete"], alternatives[0], [p[0] for p in parameters])
        return restored_function(Choice(name, parameters, alternatives, saved.get("keywords", ())))

    def _alternative(self, name: str, saved: dict[str, Any]) -> Alternative:
        if "ranks" in saved:
            ranks = [self._alternative(name, entry) for entry in saved["ranks"]]
            return Alternative(unpacked(saved["arguments"]), ranks[0].structure, ByRank(ranks))
        structure = unpacked(saved["results"])
        program: Any
        if "plan" in saved:
            program = self._plan(name, structure, saved["plan"])
        else:
            program = self._stable(name, saved)
            if "text" in saved:
                program = TextProgram(saved["text"], program)
        return Alternative(unpacked(saved["arguments"]), structure, program)

    def _plan(self, name: str, structure: PyTree, saved: dict[str, Any]) -> PlanProgram:
        parts: list[Any] = []
        for step in saved["steps"]:
            if "call" in step:
                first, more = (unpacked_argument(step[k], self._items) for k in ("first", "more"))
                parts.append(HostPart(step["call"], first, more, step["result"]))
            else:
                program = self._stable(name, step)
                parts.append(ProgramPart(name, program, step["inputs"], step["outputs"]))
        specs = [unpacked(s) for s in saved["specs"]]
        return PlanProgram(parts, saved["values"], structure, specs)

    def _stable(self, name: str, saved: dict[str, Any]) -> StableProgram:
        structure = unpacked(saved["results"])
        program, digest = self._program(saved["program"])
        return StableProgram(
            name,
            structure,
            saved["count"],
            program,
            [self._capture(c) for c in saved["captures"]],
            [self._capture(w) for w in saved["writes"]],
            digest,
        )

    def _program(self, key: str) -> tuple[Callable[[], jax.export.Exported], bytes]:
        """Read a program; return a function that parses it on the first call, and its digest."""
        data = self._folder.read_file(key).tobytes()
        if data not in self._programs:
            self._programs[data] = functools.cache(lambda: loaded(data))
        return self._programs[data], hashlib.sha256(data).digest()

    def _capture(self, saved: dict[str, Any]) -> Variable | Tensor:
        if "node" in saved:
            return self._items[saved["node"]]
        key = saved["constant"]
        if key not in self._constants:
            self._constants[key] = Tensor(self._folder.read_file(key))
        return self._constants[key]
