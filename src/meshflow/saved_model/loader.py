"""`tf.saved_model.load`: restore objects with their variables and functions, without their classes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import jax.export

from meshflow.checkpoint.array_folder import GRAPH_FILE, MANIFEST, ArrayFolder, is_array_folder
from meshflow.checkpoint.object_graph import Trackable
from meshflow.core.runtime.errors import (
    FailedPreconditionError,
    NotFoundError,
)
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.tracing.trace import TensorSlot, list_slots
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable, unsharded_scope
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from meshflow.environment.limits import load_budget_scope
from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.files.listing import measure_folder
from meshflow.files.paths import to_path_string
from meshflow.saved_model.damaged_files import translate_damage
from meshflow.saved_model.host_steps.plan_program import (
    PlanProgram,
    RestoredHostStep,
    RestoredProgramStep,
    unpack_argument,
)
from meshflow.saved_model.host_steps.stages import (
    RestoredPlan,
    SizeGuards,
    StagedProgram,
    StageProgramStep,
    make_step,
)
from meshflow.saved_model.host_steps.text_steps import TextStepsProgram
from meshflow.saved_model.manifest import lookup_tables
from meshflow.saved_model.manifest.assets import load_asset
from meshflow.saved_model.manifest.composite_values import list_component_specs
from meshflow.saved_model.manifest.json_structures import unpack_structure
from meshflow.saved_model.manifest.restored_objects import (
    CallableRestoredObject,
    RestoredObject,
    attach_child,
)
from meshflow.saved_model.options import LoadOptions, normalize_tags
from meshflow.saved_model.programs.foreign_modules import remember_own_program
from meshflow.saved_model.programs.restored_functions import (
    Alternative,
    AlternativeDispatcher,
    RankDispatchProgram,
    RestoredFunction,
    StableHLOProgram,
    make_restored_function,
)
from meshflow.saved_model.programs.restored_signatures import (
    RestoredConcreteFunction,
    RestoredSignature,
    SignatureMap,
)
from meshflow.saved_model.programs.stablehlo import (
    deserialize_program,
    verify_foreign_programs,
)
from meshflow.version import GIT_VERSION, VERSION

# Files that `tf.experimental.tensorrt` adds to a SavedModel when it converts it: its options and the
# converted model.
TENSORRT_FILE, TENSORRT_MODEL = "tensorrt.json", "model.onnx"


def contains_saved_model(export_dir: StrPath) -> bool:
    """Check whether a folder has a SavedModel of `tf.saved_model.save` or `Model.save`.

    Args:
      export_dir: The folder.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     before = tf.saved_model.contains_saved_model(folder)
      ...     tf.saved_model.save(tf.Module(), folder)
      ...     before, tf.saved_model.contains_saved_model(folder)
      (False, True)
    """
    path = to_path_string(export_dir)
    if is_array_folder(path):
        return "saved_model" in ArrayFolder(path).manifest
    return is_tensorflow_saved_model(path)


def is_tensorflow_saved_model(path: str) -> bool:
    """Check whether a folder has a SavedModel that TensorFlow wrote.

    Args:
      path: The folder.
    """
    return not is_array_folder(path) and gfile.exists(gfile.join(path, GRAPH_FILE))


def load(
    export_dir: StrPath,
    tags: str | Iterable[str] | None = None,
    options: LoadOptions | None = None,
    trusted: bool = False,
) -> Any:
    """Load a SavedModel of Meshflow or TensorFlow. Its Python code is not needed.

    A SavedModel of TensorFlow is loaded as a graph. The ops that inference uses are supported; a
    function with another op
    raises an error when it is called.

    Args:
      export_dir: The folder.
      tags: Tags that the graph must have. Default: the serving tag.
      options: A `LoadOptions`.
      trusted: Whether you trust the author of the folder. By default, another process verifies the
        programs that this user did not save before they are used, which takes a few seconds once.

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
      >>> folder, module = tempfile.mkdtemp(), tf.Module()
      >>> module.weight = tf.Variable([1.0, 2.0])
      >>> tf.saved_model.save(module, folder)
      >>> tf.saved_model.load(folder).weight.numpy()
      array([1., 2.], dtype=float32)
    """
    path = to_path_string(export_dir)
    with load_budget_scope(path, lambda: measure_folder(path)):
        root = load_without_tensorrt(path, tags, options, trusted)
    if gfile.exists(gfile.join(path, TENSORRT_FILE)):
        get_public_package().experimental.tensorrt.replace_signature(path, root, trusted)
    return root


def load_without_tensorrt(
    path: str,
    tags: str | Iterable[str] | None = None,
    options: LoadOptions | None = None,
    trusted: bool = False,
) -> Any:
    """Load a SavedModel without the changes of a conversion for TensorRT.

    Args:
      path: The folder.
      tags: As in `load`.
      options: A `LoadOptions`, or None.
      trusted: As in `load`.

    Raises:
      OSError: If there is no SavedModel.
      DataLossError: If a file is damaged. The message names the file.
    """
    with_aliases = options is not None and options.experimental_load_function_aliases
    if is_tensorflow_saved_model(path):
        from meshflow.saved_model.graph.reading import graph_loader  # noqa: PLC0415 - it needs an optional package

        return graph_loader.load(path, tags, with_aliases, trusted)
    try:
        folder = ArrayFolder(path)
    except (NotFoundError, FailedPreconditionError):
        # The path may be a file.
        folder = None
    if folder is None or "saved_model" not in folder.manifest:
        raise OSError(
            f"SavedModel file does not exist at: {path}. Expected a folder written by tf.saved_model.save or "
            "Model.save, with a saved_model.pb or Meshflow's manifest."
        )
    requested = normalize_tags(tags)
    manifest = gfile.join(path, MANIFEST)
    with translate_damage(path, manifest):
        existing = list(folder.manifest["saved_model"].get("tags", ["serve"]))
        has_tags = requested <= set(existing)
    if not has_tags:
        raise ValueError(
            f"{path} has a graph with the tags {existing}, none with all of {list(requested)}."
        )
    with translate_damage(path, manifest):
        return _ManifestLoader(folder, with_aliases, trusted).load_root()


class _ManifestLoader:
    """Loader of the objects and functions that a manifest describes.

    Args:
      folder: Folder of the SavedModel.
      with_aliases: Whether to restore function aliases.
      trusted: Whether the folder's programs need no verification.
    """

    def __init__(self, folder: ArrayFolder, with_aliases: bool, trusted: bool) -> None:
        self._folder, self._with_aliases, self._is_trusted = folder, with_aliases, trusted
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
            with unsharded_scope() if index in shards else nullcontext():
                self._items.append(self._make_object(index, node))
        for index, node in enumerate(nodes):
            if node["kind"] == "shards":
                variables = [self._items[i] for i in node["children"].values()]
                self._items[index] = ShardedVariable(variables, node["name"])

    def _make_object(self, index: int, node: dict[str, Any]) -> Trackable:
        kind = node["kind"]
        if kind == "variable":
            return self._make_variable(node)
        if kind == "asset":
            return load_asset(self._folder.path, node["file"])
        if kind == "table":
            return lookup_tables.create_table(node, self._folder.read_file)
        if kind == "dict":
            return {}
        if kind == "list":
            return []
        if kind in ("function", "shards"):
            return None
        restored_class = CallableRestoredObject if index in self._callable else RestoredObject
        return restored_class(
            name=node.get("name") if str(node.get("name")).isidentifier() else None
        )

    def _make_variable(self, node: dict[str, Any]) -> Variable:
        options: dict[str, Any] = {}
        if "shape" in node:
            options["shape"] = TensorShape(node["shape"])
        if "synchronization" in node:
            options["synchronization"] = VariableSynchronization[node["synchronization"]]
        if "aggregation" in node:
            options["aggregation"] = VariableAggregation[node["aggregation"]]
        value = self._folder.read_file(node["file"])
        return Variable(value, trainable=node["trainable"], name=node["name"], **options)

    def load_root(self) -> Trackable:
        """Load all functions and return the root object."""
        for node, item in zip(self._content["nodes"], self._items, strict=True):
            for name, index in node["children"].items():
                child = self._items[index]
                if child is not None and node["kind"] != "shards":
                    attach_child(item, name, child)
        aliases: dict[str, list[Any]] = {}
        for saved in self._content["functions"]:
            restored = self._make_function(saved)
            attach_child(self._items[saved["owner"]], saved["name"], restored)
            for alias in saved.get("aliases", ()):
                aliases.setdefault(alias, []).append(restored)
        for omitted in self._left_out:
            owner = self._items[omitted["owner"]]
            if isinstance(owner, RestoredObject):
                owner.record_omission(omitted["name"], omitted["why"])
        signatures = {
            name: RestoredSignature(name, self._make_alternative(name, saved))
            for name, saved in self._content["signatures"].items()
        }
        root = self._items[0]
        root.signatures = SignatureMap(signatures)
        root.tensorflow_version, root.tensorflow_git_version = VERSION, GIT_VERSION
        if self._with_aliases:
            root.function_aliases = {a: f if len(f) > 1 else f[0] for a, f in aliases.items()}
        variables = self._content["variables"]
        if variables is not None:
            root._ordered_variables = tuple(self._items[index] for index in variables)
        return root

    def _make_function(self, saved: dict[str, Any]) -> RestoredConcreteFunction | RestoredFunction:
        name, parameters = saved["name"], saved["parameters"]
        alternatives = [self._make_alternative(name, a) for a in saved["alternatives"]]
        if "concrete" in saved:
            return RestoredConcreteFunction(
                saved["concrete"], alternatives[0], [p[0] for p in parameters]
            )
        return make_restored_function(
            AlternativeDispatcher(name, parameters, alternatives, saved.get("keywords", ()))
        )

    def _make_alternative(self, name: str, saved: dict[str, Any]) -> Alternative:
        if "ranks" in saved:
            ranks = [self._make_alternative(name, entry) for entry in saved["ranks"]]
            return Alternative(
                unpack_structure(saved["arguments"]), ranks[0].structure, RankDispatchProgram(ranks)
            )
        structure = unpack_structure(saved["results"])
        if "stages" in saved:
            count = len(saved["stages"]["specs"])
        else:
            count = len(saved["plan"]["values"]) if "plan" in saved else saved["count"]
        slots = [s.index for s in list_slots(structure) if isinstance(s, TensorSlot)]
        if not all(isinstance(i, int) and 0 <= i < count for i in slots):
            raise ValueError(f"{name} has {count} results, and its structure refers to {slots}")
        program: Any
        if "plan" in saved:
            program = self._make_plan(name, structure, saved["plan"])
        elif "stages" in saved:
            program = self._make_staged_program(name, structure, saved["stages"])
        else:
            program = self._make_program(name, saved)
            if "text" in saved:
                program = TextStepsProgram(saved["text"], program)
        arguments = unpack_structure(saved["arguments"])
        if not isinstance(arguments, tuple) or [type(a) for a in arguments] != [tuple, dict]:
            raise ValueError(f"the arguments of {name} are no pair of a tuple and a dictionary")
        if isinstance(program, (PlanProgram, StagedProgram)):
            program.check(len(list_component_specs(arguments)))
        return Alternative(arguments, structure, program)

    def _make_plan(self, name: str, structure: PyTree, saved: dict[str, Any]) -> PlanProgram:
        parts: list[Any] = []
        for step in saved["steps"]:
            if "call" in step:
                first, more = (unpack_argument(step[k], self._items) for k in ("first", "more"))
                parts.append(RestoredHostStep(step["call"], first, more, step["result"]))
            else:
                program = self._make_program(name, step)
                parts.append(RestoredProgramStep(name, program, step["inputs"], step["outputs"]))
        specs = [unpack_structure(s) for s in saved["specs"]]
        return PlanProgram(parts, saved["values"], structure, specs)

    def _make_staged_program(
        self, name: str, structure: PyTree, saved: dict[str, Any]
    ) -> StagedProgram:
        captures, writes = (
            [self._resolve_capture(c) for c in saved[key]] for key in ("captures", "writes")
        )
        specs = [unpack_structure(s) for s in saved["specs"]]
        plan, guards = self._make_stages(name, saved["plan"]), SizeGuards(name, saved["guards"])
        return StagedProgram(plan, guards, structure, specs, captures, writes)

    def _make_stages(self, name: str, saved: dict[str, Any]) -> RestoredPlan:
        steps: list[Any] = []
        for step in saved["steps"]:
            if "kind" in step:
                plans = [self._make_stages(name, plan) for plan in step["plans"]]
                stage = make_step(step["kind"], step["parameters"], plans)
            else:
                stage = StageProgramStep(name, self._make_program(name, step))
            steps.append((stage, step["inputs"], step["outputs"]))
        sizes = {int(index): axes for index, axes in saved["sizes"].items()}
        return RestoredPlan(steps, saved["results"], sizes)

    def _make_program(self, name: str, saved: dict[str, Any]) -> StableHLOProgram:
        structure = unpack_structure(saved["results"])
        program, digest = self._read_program(saved["program"])
        return StableHLOProgram(
            name,
            structure,
            saved["count"],
            program,
            [self._resolve_capture(c) for c in saved["captures"]],
            [self._resolve_capture(w) for w in saved["writes"]],
            digest,
        )

    def _read_program(self, key: str) -> tuple[Callable[[], jax.export.Exported], bytes]:
        """Read a program; return a function that parses it on the first call, and its digest."""
        data = self._folder.read_file(key).tobytes()
        if self._is_trusted:
            remember_own_program(data)
        if data not in self._programs:
            label = f"{self._folder.path}: program {key}"
            self._programs[data] = functools.cache(lambda: self._deserialize_program(data, label))
        return self._programs[data], hashlib.sha256(data).digest()

    def _deserialize_program(self, data: bytes, label: str) -> jax.export.Exported:
        verify_foreign_programs(list(self._programs))
        return deserialize_program(data, label)

    def _resolve_capture(self, saved: dict[str, Any]) -> Variable | ShardedVariable | Tensor:
        if "node" in saved:
            item = self._items[saved["node"]]
            if not isinstance(item, (Variable, ShardedVariable)):
                raise TypeError(f"a function uses {item!r} as a variable")
            return item
        key = saved["constant"]
        if key not in self._constants:
            self._constants[key] = Tensor(self._folder.read_file(key))
        return self._constants[key]
