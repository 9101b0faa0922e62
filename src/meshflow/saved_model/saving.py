"""`tf.saved_model.save`: an object's variables, its structure, and its functions as programs.

The folder holds one array a file, as a checkpoint's does, and a manifest. A function is saved for each
signature it was traced for, or for its `input_signature`. An object can name further functions by
`_saved_functions()`: {name: [(function, args, kwargs), ...]}, and signatures by `_saved_signatures()`.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from meshflow.checkpoint.graph import VARIABLE, ObjectGraph, stored
from meshflow.checkpoint.graph_message import GRAPH
from meshflow.checkpoint.storage import GRAPH_FILE, Bundled, write_folder
from meshflow.checkpoint.wire import Attribute, Node, write_graph
from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable
from meshflow.files.paths import text
from meshflow.lookup.table import Table
from meshflow.saved_model.assets import Asset
from meshflow.saved_model.calls import (
    argument_names,
    as_dictionary,
    call_of,
    calls_of,
    fits,
    for_any_batch,
    functions_of,
    is_for_any_size,
    is_symbolic,
    parameters_of,
    specs_of,
    with_rank,
)
from meshflow.saved_model.plans import packed_argument
from meshflow.saved_model.programs import (
    Program,
    exported,
    known_sizes,
    serialized,
    traced_for_export,
)
from meshflow.saved_model.recording import ByRank, HostStep, Plan, Recorded, recorded
from meshflow.saved_model.restored import Restored
from meshflow.saved_model.structures import Unsaved, packed
from meshflow.saved_model.tables import described
from meshflow.saved_model.text import TextCall

__all__ = ["SERVING", "content", "save"]

SERVING = "serving_default"
# What others look for in models that TensorFlow loaded, such as layers made of them.
_COLLECTIONS = ("variables", "trainable_variables", "non_trainable_variables")
# Those that functions of tensors of unknown rank are saved for.
_RANKS = (1, 2, 3, 4, 5, 0)
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
      ValueError: when the object or a signature is none.
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
        {GRAPH_FILE: what.graph, **what.files},
    )


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
    if isinstance(obj, (Function, Signed)) or not hasattr(obj, "__dict__"):
        raise ValueError(
            f"tf.saved_model.save: expected a trackable object such as a tf.Module, got {obj!r}. Put functions "
            "into attributes of a tf.Module."
        )
    writer = _Writer(obj, files or {})
    writer.functions_of_objects()
    writer.signatures(signatures)
    made = Content(writer.arrays, {"saved_model": writer.manifest}, files=writer.files)
    gradients = getattr(options, "experimental_custom_gradients", True)
    writer.for_tensorflow(made, gradients, getattr(options, "extra_tags", None) or ())
    return made


class _Writer:
    def __init__(self, root: Any, files: Mapping[int, str]) -> None:
        self._root, self._files = root, files
        self._graph = ObjectGraph(root)
        # Variables that no object owns.
        self._others: list[Variable] = []
        self._places = {id(item): i for i, item in enumerate(self._graph.objects)}
        self._constants: dict[int, tuple[str, Any]] = {}
        # What is saved, for TensorFlow: functions with their owners, names and parameters; signatures by name.
        self._functions: list[tuple[int, str, list[Any], list[Program | Plan]]] = []
        self._signatures: dict[str, Program | Plan | ByRank] = {}
        self._entries: dict[int, dict[str, Any]] = {}
        self._made: dict[int, Any] = {}
        self._stored_programs: dict[bytes, str] = {}
        # By what runs forwards.
        self._serialized_programs: dict[bytes, list[tuple[Program, bytes]]] = {}
        self.arrays: dict[str, tuple[str, Any]] = {}
        # Assets, by their names in the folder.
        self.files: dict[str, bytes] = {}
        for node, item in list(zip(self._graph.nodes, self._graph.objects, strict=True)):
            if isinstance(item, tuple):
                # Loaded as a list: the fields of named tuples are in checkpoints alone.
                own = node["children"].items()
                node["children"] = {name: child for name, child in own if name.isdigit()}
            self._add_resources(node["children"], item)
        nodes = [
            {"children": node["children"], **self._describe(item, number)}
            for number, (node, item) in enumerate(
                zip(self._graph.nodes, self._graph.objects, strict=True)
            )
        ]
        self.manifest: dict[str, Any] = {
            "version": 1,
            "nodes": nodes,
            "variables": self._places_of(getattr(root, "variables", ())),
            "functions": [],
            "signatures": {},
        }

    def _add_resources(self, children: dict[str, int], item: Any) -> None:
        """Adds what checkpoints do not hold: an object's tables and files, and the shards of a table of numbers."""
        for name, child in getattr(item, "__dict__", {}).items():
            if (
                isinstance(child, (Asset, Table))
                and name not in children
                and not name.startswith("_")
            ):
                self._add_child(children, name, child, name)
        if isinstance(item, ShardedVariable):
            for i, shard in enumerate(item.variables):
                self._add_child(children, str(i), shard)

    def _add_child(self, children: dict[str, int], name: str, child: Any, path: str = "") -> None:
        if id(child) not in self._places:
            self._places[id(child)] = len(self._graph.objects)
            self._graph.objects.append(child)
            self._graph.nodes.append({"path": path, "children": {}, "values": {}})
        children[name] = self._places[id(child)]

    def _places_of(self, variables: Any) -> list[int] | None:
        """The object's own variables in their order; it may hold others, such as an optimizer's."""
        if not isinstance(variables, (list, tuple)):
            return None
        return [self._places[id(v)] for v in variables if id(v) in self._places]

    def _describe(self, item: Any, number: int) -> dict[str, Any]:
        if isinstance(item, Variable):
            key = self._files.get(id(item))
            if key is None:
                key = f"variable_{number:05d}"
                self.arrays[key] = (item.name, stored(item))
            about = {"name": item._shared_name, "trainable": item.trainable}
            return {"kind": "variable", "file": key, **about}
        if isinstance(item, ShardedVariable):
            return {"kind": "shards", "name": item.name}
        if isinstance(item, Function) or hasattr(item, "get_concrete_function"):
            return {"kind": "function"}
        if isinstance(item, Table):
            return self._describe_table(item, number)
        if isinstance(item, Asset):
            return {"kind": "asset", "file": self._add_file(item)}
        if isinstance(item, Mapping):
            return {"kind": "dict"}
        if isinstance(item, (list, tuple)):
            return {"kind": "list"}
        kind: dict[str, Any] = {"kind": "object", "class": type(item).__name__}
        if isinstance(getattr(item, "_name", None), str):
            kind["name"] = item._name
        return kind

    def _add_file(self, asset: Asset) -> str:
        """Copies a file; gives its name in the folder."""
        content, name = asset.content(), os.path.basename(asset.path)
        stem, ending = os.path.splitext(name)
        for number in itertools.count(1):
            if self.files.setdefault(f"assets/{name}", content) == content:
                return name
            name = f"{stem}_{number}{ending}"
        raise AssertionError

    def _describe_table(self, table: Table, number: int) -> dict[str, Any]:
        about = described(table)
        for part in ("keys", "values", "default"):
            array = about.pop(part, None)
            if array is not None:
                about[part] = key = f"table_{part}_{number:05d}"
                self.arrays[key] = (key, array)
        return {"kind": "table", **about}

    # ---- functions -------------------------------------------------------------------------

    def functions_of_objects(self) -> None:
        """Saves the functions of all objects; those that cannot be saved are left out, which is logged."""
        for number, item in enumerate(list(self._graph.objects)):
            for name, function in functions_of(item):
                self._add_function(number, name, function)
            if number == 0 and hasattr(item, "_saved_functions"):
                for name, calls in item._saved_functions().items():
                    self._add_function(number, name, calls[0][0], calls)

    def _add_function(self, owner: int, name: str, function: Any, calls: Any = None) -> None:
        alternatives: list[Any] = []
        for call, args, kwargs in calls_of(function) if calls is None else calls:
            try:
                alternatives += self._programs(name, call, args, kwargs)
            except (UnimplementedError, Unsaved) as error:
                found = self._for_sizes_met(name, function, call, (args, kwargs))
                alternatives.extend(found)
                what = "saved for the sizes it was called with only" if found else "not saved"
                _log.warning("tf.saved_model.save: function %s is %s: %s", name, what, error)
        if alternatives:
            python = getattr(function, "python_function", function)
            parameters = parameters_of(python)
            self.manifest["functions"].append(
                {
                    "owner": owner,
                    "name": name,
                    "parameters": [[p, *map(packed, default)] for p, *default in parameters],
                    "alternatives": alternatives,
                }
            )
            programs = [self._made[id(entry)] for entry in alternatives]
            self._functions.append((owner, name, parameters, programs))

    def _programs(self, name: str, call: Any, args: Any, kwargs: Any) -> list[dict[str, Any]]:
        """The program of a signature; of one without ranks, a program for each rank that the function takes."""
        if all(s.shape.rank is not None for s in specs_of(args, kwargs)):
            return [self._program(name, call, args, kwargs)]
        return list(self._by_rank(name, call, args, kwargs).values())

    def _by_rank(self, name: str, call: Any, args: Any, kwargs: Any) -> dict[int, Any]:
        """The programs of a signature without ranks, by rank."""
        found, why = {}, None
        for rank in _RANKS:
            try:
                specs = nest.map_structure(with_rank(rank), (args, kwargs))
                found[rank] = self._program(name, call, *specs)
            except Unsaved:
                raise
            except Exception as error:  # of any kind: the function may not be made for the rank
                why = error
        if not found:
            raise UnimplementedError(f"{name} can be traced for no rank: {why}") from why
        return found

    def _for_sizes_met(self, name: str, function: Any, call: Any, general: Any) -> list[Any]:
        """Programs for the sizes of earlier calls: for any batch where that is possible."""
        found, seen = [], []
        for concrete in function._cache.values() if isinstance(function, Function) else ():
            signature = concrete.structured_input_signature
            if is_symbolic(signature) or not fits(concrete, general):
                continue
            for sizes in (nest.map_structure(for_any_batch, signature), signature):
                if sizes in seen:
                    break
                try:
                    found.append(self._program(name, call, *sizes))
                    seen.append(sizes)
                    break
                except (UnimplementedError, Unsaved):
                    continue
        return found

    def _program(self, name: str, call: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        structure = packed((args, kwargs))
        try:
            entry, program = self._traced(name, call, args, kwargs)
        except (UnimplementedError, ImportError, Unsaved):
            raise
        except Exception as error:
            if not is_for_any_size(args, kwargs):
                raise
            raise UnimplementedError(
                f"{name} cannot be traced for any size of {specs_of(args, kwargs)}, as it asks for a size while "
                f"it is traced ({type(error).__name__}: {str(error).splitlines()[0]}). Use the tensor's "
                "`shape` instead of tf.shape, or give all sizes."
            ) from error
        entry["arguments"] = structure
        self._made[id(entry)] = program
        return entry

    def _traced(self, name: str, call: Any, args: Any, kwargs: Any) -> tuple[Any, Program | Plan]:
        """A function's description, and what it does."""
        if isinstance(call, TextCall):
            rest = nest.map_structure(_without_text, (args, kwargs))
            traced = traced_for_export(call.rest, (call.specs, *rest[0]), rest[1])
            entry, program = self._stored(Program(name, (args, kwargs), traced, exported(traced)))
            entry["text"] = program.steps = call.steps
            return entry, program
        if _has_text(args, kwargs):
            return self._planned(name, args, kwargs, recorded(name, call, args, kwargs))
        try:
            traced = traced_for_export(call, args, kwargs)
            return self._stored(Program(name, (args, kwargs), traced, exported(traced)))
        except Exception as error:
            # Perhaps strings or tables are met on the way.
            try:
                plan = recorded(name, call, args, kwargs)
            except Exception:
                raise error from None
            if not any(isinstance(step, HostStep) for step in plan.steps):
                raise
            return self._planned(name, args, kwargs, plan)

    def _stored(self, program: Program) -> tuple[dict[str, Any], Program]:
        """Keeps a program, once for all that are the same; gives its description."""
        traced, data = program.traced, self._serialized(program)
        key = self._stored_programs.setdefault(data, f"program_{len(self._stored_programs):05d}")
        self.arrays[key] = (key, np.frombuffer(data, np.uint8))
        entry = {
            "results": packed(traced.structure),
            "count": traced.count,
            "program": key,
            "captures": [self._capture(c) for c in traced.captures],
            "writes": [self._capture(v) for v in traced.writes],
        }
        return entry, program

    def _serialized(self, program: Program) -> bytes:
        """A program's bytes. Its gradient takes longest, which programs that are the same share."""
        alike = self._serialized_programs.setdefault(program.exported.mlir_module_serialized, [])
        for other, data in alike:
            if program.is_like(other):
                return data
        alike.append((program, serialized(program.exported)))
        return alike[-1][1]

    def _planned(
        self, name: str, args: Any, kwargs: Any, plan: Recorded
    ) -> tuple[dict[str, Any], Plan]:
        """Keeps a function of strings and tables; gives its description."""
        steps: list[dict[str, Any]] = []
        parts: list[Any] = []
        for step in plan.steps:
            if isinstance(step, HostStep):
                put = lambda value: packed_argument(value, self._object)
                about = {"call": step.name, "first": put(step.first), "more": put(step.more)}
                steps.append({**about, "result": step.result})
                parts.append(step)
                continue
            specs = [
                TensorSpec(a.shape, a.dtype)
                for a in step.traced.closed.in_avals[: len(step.inputs)]
            ]
            part = Program(
                f"{name}_{len(steps)}", (tuple(specs), {}), step.traced, exported(step.traced)
            )
            entry, part = self._stored(part)
            steps.append({**entry, "inputs": step.inputs, "outputs": step.outputs})
            parts.append((step, part))
        specs = [TensorSpec(known_sizes(s.shape), s.dtype) for s in plan.specs]
        about = {"steps": steps, "values": plan.results, "specs": [packed(s) for s in specs]}
        entry = {"results": packed(plan.structure), "plan": about}
        return entry, Plan(name, (args, kwargs), plan, parts)

    def _capture(self, capture: Any) -> Any:
        if isinstance(capture, Variable):
            return {"node": self._object(capture)}
        if id(capture) not in self._constants:
            key = f"constant_{len(self._constants):05d}"
            self._constants[id(capture)] = key, capture
            self.arrays[key] = (key, np.asarray(capture._value))
        return {"constant": self._constants[id(capture)][0]}

    def _object(self, item: Any) -> int:
        """Its number among the nodes; variables and tables that no object owns (of random numbers) get one too."""
        place = self._places.get(id(item))
        if place is None:
            place = self._places[id(item)] = len(self.manifest["nodes"])
            self._others.append(item)
            self.manifest["nodes"].append({"children": {}, **self._describe(item, place)})
        return place

    # ---- TensorFlow's part -----------------------------------------------------------------

    def for_tensorflow(self, made: Content, gradients: bool, tags: Iterable[str]) -> None:
        """Adds what TensorFlow needs to load it."""
        try:
            from meshflow.saved_model.graph.writer import GraphWriter  # noqa: PLC0415 - it needs an optional package
        except ImportError as error:
            _log.warning("tf.saved_model.save: TensorFlow cannot load what is saved: %s", error)
            return
        nodes, objects = self._all_nodes()
        made.objects = objects
        keys = {}
        for number, node in enumerate(nodes):
            path = self._graph.nodes[number]["path"] if number < len(self._graph.nodes) else ""
            made.nodes.append(Node(dict(node["children"])))
            if node["kind"] != "variable":
                continue
            key = f"{path or node['file']}/.ATTRIBUTES/{VARIABLE}"
            if getattr(objects[number], "save_as_bf16", False):
                # TensorFlow restores it as what it is.
                made.arrays[node["file"]] = (node["name"], objects[number]._value)
            keys[number] = made.keys[node["file"]] = key
            made.nodes[-1].attributes.append(Attribute(VARIABLE, node["name"], key))
        writer = GraphWriter(nodes, objects, keys, gradients, list(tags))
        for function in self._functions:
            writer.add_function(*function)
        if hasattr(self._root, "_saved_functions"):
            writer.add_keras_call()
        for name, program in self._signatures.items():
            writer.add_signature(name, program)
        made.graph = writer.finish()

    def _all_nodes(self) -> tuple[list[dict[str, Any]], list[Any]]:
        """The objects, with those that only functions know: constants are variables that nobody trains."""
        nodes = [dict(node) for node in self.manifest["nodes"]]
        objects = [*self._graph.objects, *self._others]
        hidden = list(range(len(self._graph.objects), len(nodes)))
        for key, constant in self._constants.values():
            hidden.append(len(nodes))
            objects.append(constant)
            about = {"kind": "variable", "file": key, "name": key, "trainable": False}
            nodes.append({"children": {}, **about})
        if hidden:
            nodes[0]["children"] = {**nodes[0]["children"], "_captures": len(nodes)}
            named = {str(i): number for i, number in enumerate(hidden)}
            nodes.append({"children": named, "kind": "object"})
            objects.append(None)
        for name in _COLLECTIONS:
            own = self._places_of(getattr(self._root, name, None))
            if own is not None and name not in nodes[0]["children"]:
                nodes[0]["children"] = {**nodes[0]["children"], name: len(nodes)}
                parts = {str(i): number for i, number in enumerate(own)}
                nodes.append({"children": parts, "kind": "list"})
                objects.append(None)
        return nodes, objects

    # ---- signatures ------------------------------------------------------------------------

    def signatures(self, given: Any) -> None:
        """Saves the signatures, under their names."""
        if given is None:
            for name, function in self._default_signatures().items():
                try:
                    self._add_signature(name, function)
                except (UnimplementedError, Unsaved) as error:
                    _log.warning("tf.saved_model.save: no signature %s is saved: %s", name, error)
            return
        if not isinstance(given, Mapping):
            given = {SERVING: given}
        for name, function in given.items():
            if not isinstance(name, str):
                raise TypeError(
                    f"tf.saved_model.save: names of signatures must be strings, got {name!r}."
                )
            try:
                self._add_signature(name, function)
            except Unsaved as error:
                raise ValueError(
                    f"tf.saved_model.save: signature {name!r} takes or returns {error}."
                ) from None

    def _add_signature(self, name: str, function: Any) -> None:
        # A function that has several names is traced once.
        entry = self._entries.get(id(function)) or self._signature(name, function)
        self._entries[id(function)] = self.manifest["signatures"][name] = entry
        self._signatures[name] = self._made[id(entry)]

    def _default_signatures(self) -> dict[str, Any]:
        if hasattr(self._root, "_saved_signatures"):
            return self._root._saved_signatures()
        if isinstance(self._root, Restored):
            return self._root.signatures
        own = [f for _, f in functions_of(self._root) if len(list(calls_of(f))) == 1]
        saved = [f for f in self.manifest["functions"] if f["owner"] == 0]
        if len(own) != 1 or len(saved) != 1:
            return {}
        arguments = [s for s in nest.flatten(next(calls_of(own[0]))[1:]) if s is not None]
        return {SERVING: own[0]} if all(isinstance(s, TensorSpec) for s in arguments) else {}

    def _signature(self, name: str, function: Any) -> dict[str, Any]:
        calls = list(calls_of(function)) if hasattr(function, "get_concrete_function") else []
        if isinstance(function, Signed):
            calls = [call_of(function)]
        if isinstance(function, tuple):
            calls = [function]
        if len(calls) != 1:
            raise ValueError(
                f"tf.saved_model.save: signature {name!r} must be a tf.function with an input_signature, or a "
                f"concrete function, got {function!r} with {len(calls)} signatures."
            )
        call, args, kwargs = calls[0]
        specs = nest.flatten((args, kwargs))
        if not all(isinstance(s, TensorSpec) for s in specs):
            raise ValueError(
                f"tf.saved_model.save: the arguments of signature {name!r} must be tensors, got {specs}."
            )
        names = argument_names(args, kwargs, function)

        def by_name(**tensors: Any) -> Any:
            ordered = [tensors[n] for n in names]
            positional, named = nest.pack_sequence_as((args, kwargs), ordered)
            return as_dictionary(call(*positional, **named))

        named_specs = {
            n: TensorSpec(s.shape, s.dtype, n) for n, s in zip(names, specs, strict=True)
        }
        named_call: Any = by_name
        if isinstance(call, TextCall):
            named_call = _with_names(call, names, (args, kwargs))
        if any(s.shape.rank is None for s in specs):
            return self._signature_by_rank(name, named_call, named_specs)
        return self._program(name, named_call, (), named_specs)

    def _signature_by_rank(self, name: str, call: Any, specs: dict[str, Any]) -> dict[str, Any]:
        """A signature of tensors of unknown rank: a program for each."""
        found = self._by_rank(name, call, (), specs)
        entry = {"arguments": packed(((), specs)), "ranks": list(found.values())}
        programs = {rank: self._made[id(one)] for rank, one in found.items()}
        self._made[id(entry)] = ByRank(name, ((), specs), programs)
        return entry


def _has_text(args: Any, kwargs: Any) -> bool:
    return any(s.dtype.name == "string" for s in specs_of(args, kwargs))


def _without_text(leaf: Any) -> Any:
    return None if isinstance(leaf, TensorSpec) and leaf.dtype.name == "string" else leaf


def _with_names(call: TextCall, names: list[str], structure: Any) -> TextCall:
    """A function of strings that takes its tensors by name, and gives them so."""
    order = sorted(names)

    def rest(results: Any, **tensors: Any) -> Any:
        positional, named = nest.pack_sequence_as(structure, [tensors[n] for n in names])
        return as_dictionary(call.rest(results, *positional, **named))

    steps = [(order.index(names[at]), steps) for at, steps in call.steps]
    return TextCall(steps, call.specs, rest, rest)
