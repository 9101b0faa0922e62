"""Restoring of stored values into objects, also into objects that have no variables yet.

A `Restoration` pairs the stored nodes with objects, starting from the root and following equal
names. A stored child may have no
counterpart because a layer is not built, an optimizer has no slots or a module lacks an attribute.
The restoration then
leaves a hook there and continues once the variables exist, before they are used. Only these hooks
and the status
refer to the restoration, and it refers weakly to the objects, so it does not extend their lives.
"""

from __future__ import annotations

import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from meshflow.checkpoint.assignment import assign_stored_value
from meshflow.checkpoint.formats import StoredCheckpoint, read_object_graph
from meshflow.checkpoint.object_graph import (
    VARIABLE_VALUE,
    ObjectGraph,
    Trackable,
    create_saveables,
    is_trackable,
    iterate_optimizer_slots,
    list_children,
    resolve_root,
)
from meshflow.checkpoint.object_graph_message import KERAS_3_WEIGHTS, number_layers
from meshflow.checkpoint.observed_containers import observe_additions
from meshflow.checkpoint.python_state import PythonState
from meshflow.core.runtime.context import context
from meshflow.core.runtime.eager import use_session
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.module import ObservableAttributes
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable, get_full_name

_log = logging.getLogger("meshflow")
# Later restorations have larger numbers: a pending restoration must not overwrite a value that a
# later one restored.
_restoration_numbers = itertools.count(1)
_CONTAINERS = (list, tuple, Mapping)
_MAX_LISTED = 20


class Restoration:
    """Restoration of one checkpoint.

    Args:
      checkpoint: Opened checkpoint.
      root: Object that corresponds to stored node 0.
      skip_slots: Whether to skip the slots of optimizers.
    """

    def __init__(
        self, checkpoint: StoredCheckpoint, root: Trackable, skip_slots: bool = False
    ) -> None:
        graph = read_object_graph(checkpoint)
        self._initialize(checkpoint, root, graph["nodes"], [] if skip_slots else graph["slots"])
        self._skip_slots = skip_slots
        self._match_children([(0, root)])

    def _initialize(
        self,
        checkpoint: StoredCheckpoint,
        root: Trackable,
        nodes: list[dict[str, Any]],
        slots: list[dict[str, Any]],
    ) -> None:
        self.checkpoint, self.nodes, self.slots = checkpoint, nodes, slots
        self._root = make_weak_reference(root)
        self._skip_slots = False
        self._skipped_nodes: set[int] = set()
        # The object of each node. Containers are not recorded, because a new one may be created on
        # each access.
        self._node_objects: dict[int, Callable[[], Any]] = {}
        # Restored objects (by node or key, and id), and objects with a pending hook (by id). The
        # references detect that an id is reused.
        self._restored: dict[tuple[int | str, int], Callable[[], Any]] = {}
        self._pending: dict[int, Callable[[], Any]] = {}
        self._has_matches = False
        self._number = next(_restoration_numbers)
        # In a graph of version 1, the assignments of values by node or key, which a session runs later.
        self.graph = context.graph if context.trace is None else None
        self.deferred: dict[int | str, Callable[[], object]] = {}
        self._is_partial_expected = False

    @property
    def root(self) -> Trackable:
        """Return the object that corresponds to stored node 0, or None if it was garbage-collected."""
        return self._root()

    def _get_live_objects(self) -> dict[int, Any]:
        """Return the existing objects by node."""
        objects = {index: get_object() for index, get_object in self._node_objects.items()}
        return {index: item for index, item in objects.items() if item is not None}

    def _is_restored(self, node_or_key: int | str, item: Trackable) -> bool:
        get_restored = self._restored.get((node_or_key, id(item)))
        return get_restored is not None and get_restored() is item

    def _match_children(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Match nodes with objects and, from there, children with children."""
        # Each entry has the innermost node and object around it that is not a container.
        queue = [(index, item, (index, item)) for index, item in pairs]
        seen: set[tuple[int, int]] = set()
        while queue:
            index, item, owner = queue.pop(0)
            if (index, id(item)) in seen:
                continue
            seen.add((index, id(item)))
            root = resolve_root(item)
            if not self._bind(index, root):
                continue
            self._restore_value(index, root)
            stored_children = self.nodes[index]["children"]
            children_by_name = _list_children_with_aliases(item, stored_children, self.nodes)
            if self._skip_slots:
                stored_children = self._skip_slot_lists(stored_children, item)
            stored_children = {
                name: child for name, child in stored_children.items() if child != index
            }
            if hasattr(owner[1], "_slot_list_names") and isinstance(item, dict):
                children_by_name = _match_slots(stored_children, children_by_name, self.nodes)
            matches = [
                (stored_children[name], children_by_name[name])
                for name in stored_children
                if name in children_by_name
            ]
            self._has_matches |= bool(matches)
            if not isinstance(item, _CONTAINERS):
                owner = index, item
            queue.extend((child, value, owner) for child, value in matches)
            if len(matches) < len(stored_children):
                # The slots of an optimizer are in lists, to which it adds slots of new variables.
                self._resume_after_build(*owner)
                # The `Checkpoint` may be garbage-collected before its root.
                if root is not item:
                    self._resume_after_build(index, root)
        self._restore_slots()

    def _bind(self, index: int, item: Trackable) -> bool:
        """Bind a node to the first object found for it; return whether `item` is this object."""
        if isinstance(item, _CONTAINERS):
            return True
        bound = self._node_objects.setdefault(index, make_weak_reference(item))()
        if bound is not None and bound is not item:
            _log.warning(
                "%s: %s has already been restored into %r, so it is not restored into %r, another "
                "object of the program at the same path.",
                *(self.checkpoint.path, self._get_paths()[index], bound, item),
            )
        return bound is item

    def _restore_value(self, index: int, item: Trackable) -> None:
        values: dict[str, str] = self.nodes[index]["values"]
        if not values or self._is_restored(index, item):
            return
        if isinstance(item, (Variable, ShardedVariable)):
            if VARIABLE_VALUE not in values:
                return
            self._assign(item, values[VARIABLE_VALUE])
        elif hasattr(item, "_restore_from_tensors") or hasattr(
            item, "_gather_saveables_for_checkpoint"
        ):
            self._run_or_defer(index, lambda: self._restore_tensors(item, values))
        else:
            attributes = [a for a in getattr(item, "_checkpoint_attributes", ()) if a in values]
            if not attributes:
                return
            item._restore_checkpoint_values(attributes[0], self._read_arrays(values[attributes[0]]))
        self._restored[index, id(item)] = make_weak_reference(item)

    def _restore_tensors(self, item: Trackable, values: dict[str, str]) -> None:
        """Restore an object that assigns its stored values itself."""
        if hasattr(item, "_restore_from_tensors"):
            item._restore_from_tensors(
                {name: Tensor(self.checkpoint.read(key)) for name, key in values.items()}
            )
            return
        for name, saveable in create_saveables(item).items():
            if name in values:
                arrays = self._read_arrays(values[name])
                tensors = [Tensor(arrays[s.name.removeprefix(name)]) for s in saveable.specs]
                saveable.restore(tensors, None)

    def _run_or_defer(self, node_or_key: int | str, restore: Callable[[], object]) -> None:
        """Restore a value now or, in a graph of version 1, when a session runs the restoration."""
        if self.graph is None:
            restore()
        else:
            self.deferred[node_or_key] = restore

    def run_deferred(self, session: object = None, initializes: bool = False) -> None:
        """Run the restoration of values of variables in a graph of version 1.

        Args:
          session: The session with the values. Default: the default one.
          initializes: Whether other variables below the root get their initial values.
        """
        if self.graph is None:
            return
        self.resume()
        with use_session(self.graph, session):
            if initializes:
                initialize_variables(self.list_unmatched_objects())
            for restore in self.deferred.values():
                restore()

    def _skip_slot_lists(self, stored_children: dict[str, int], item: Trackable) -> dict[str, int]:
        """Return the stored children of an optimizer except lists of slots, which are skipped."""
        slot_lists = getattr(item, "_slot_list_names", ())
        for name in stored_children:
            if name in slot_lists or (slot_lists and name == "_variables"):
                self._skipped_nodes |= set(self.nodes[stored_children[name]]["children"].values())
        return {name: child for name, child in stored_children.items() if name not in slot_lists}

    def _read_arrays(self, key: str) -> dict[str, np.ndarray]:
        """Read the arrays of an object, by the suffix after its key."""
        suffixes = [name[len(key) :] for name in self.checkpoint.entries if name.startswith(key)]
        return {s: self.checkpoint.read(key + s) for s in suffixes if not s.startswith("/")}

    def _assign(self, variable: Variable | ShardedVariable, key: str) -> None:
        if getattr(variable, "_restored_by", 0) > self._number:
            return
        object.__setattr__(variable, "_restored_by", self._number)
        self._run_or_defer(key, lambda: assign_stored_value(self.checkpoint, key, variable))

    def _restore_slots(self) -> None:
        if not self.slots:
            return
        objects = self._get_live_objects()
        object_ids = {index: id(item) for index, item in objects.items()}
        slots: dict[tuple[int, int | None, str], Variable | ShardedVariable] = {
            (id(item), id(variable), name): slot
            for item in {id(x): x for x in objects.values()}.values()
            for variable, name, slot in iterate_optimizer_slots(item)
        }
        for entry in self.slots:
            optimizer = object_ids.get(entry["optimizer"])
            if optimizer is None:
                continue
            variable = object_ids.get(entry["variable"])
            slot = slots.get((optimizer, variable, entry["name"]))
            if slot is None:
                self._resume_after_build(entry["optimizer"], objects[entry["optimizer"]])
            elif not self._is_restored(entry["key"], slot):
                self._assign(slot, entry["key"])
                self._restored[entry["key"], id(slot)] = make_weak_reference(slot)

    def _resume_after_build(self, index: int, item: Trackable) -> None:
        """Continue restoring once an object has created its variables."""
        get_object = make_weak_reference(item)
        if self._pending.get(id(item), lambda: None)() is item:
            return

        def resume() -> None:
            current = get_object()
            if current is not None:
                self._match_children([(index, current)])

        if hasattr(item, "_build_hooks"):
            # Each hook is called once. Objects that are still missing then add a hook again.
            def resume_after_build() -> None:
                self._pending.pop(id(get_object()), None)
                resume()

            item._build_hooks.append(resume_after_build)
        else:
            is_unbuilt = getattr(item, "built", True) is False
            if is_unbuilt:
                _call_after_build(item, resume)
            if isinstance(item, ObservableAttributes):
                # A layer may also create sublayers in its first call.
                item._observe_attributes(
                    lambda value: self._handle_new_attribute(get_object(), value, resume)
                )
            elif not is_unbuilt:
                return
        self._pending[id(item)] = get_object

    def _handle_new_attribute(
        self, item: Trackable, value: Any, resume: Callable[[], None]
    ) -> None:
        """Continue restoring for a new attribute, and for elements that are added to it later."""
        if type(value) in (list, dict):
            names = [name for name, attribute in vars(item).items() if attribute is value]
            for name in names:
                object.__setattr__(item, name, observe_additions(value, resume))
            if value and names:
                resume()
        elif is_trackable(value):
            resume()

    # ---- Remaining values and objects ----------------------------------------------------

    def resume(self) -> None:
        """Match objects that appeared since the last time.

        Variables in plain lists and dictionaries do not trigger a hook.
        """
        self._match_children([(0, self.root)])

    def list_unused_keys(self) -> list[str]:
        """Return the keys of stored values that were not restored."""
        keys = [
            key for node in self._list_unused_nodes() for key in self.nodes[node]["values"].values()
        ]
        return keys + [entry["key"] for entry in self._list_unused_slots()]

    def _list_unused_nodes(self) -> list[int]:
        used = {node for node, _ in self._restored if isinstance(node, int)} | self._skipped_nodes
        return [i for i, node in enumerate(self.nodes) if node["values"] and i not in used]

    def _list_unused_slots(self) -> list[dict[str, Any]]:
        used = {key for key, _ in self._restored if isinstance(key, str)}
        return [entry for entry in self.slots if entry["key"] not in used]

    def list_unmatched_objects(self) -> list[Any]:
        """Return the variables and Python states below the root that got no value."""
        restored_ids = {
            identity for (_, identity), get_item in self._restored.items() if get_item() is not None
        }
        if self._skip_slots:
            items = self._get_live_objects().values()
            restored_ids |= {
                id(slot) for item in items for _, _, slot in iterate_optimizer_slots(item)
            }
        value_types = (Variable, ShardedVariable, PythonState)
        objects = map(resolve_root, ObjectGraph(self.root).objects)
        return [x for x in objects if isinstance(x, value_types) and id(x) not in restored_ids]

    def has_matches(self) -> bool:
        """Check whether any object below the root was matched."""
        return self._has_matches or not self.nodes[0]["children"]

    def expect_partial(self) -> None:
        """Suppress the warning about stored values that were not restored."""
        self._is_partial_expected = True

    def _get_paths(self) -> dict[int, str]:
        """Return the path of each node as attributes of the root."""
        paths, queue = {0: "(root)"}, [0]
        for index in queue:
            for name, child in self.nodes[index]["children"].items():
                if child not in paths:
                    paths[child] = f"{paths[index]}.{name}"
                    queue.append(child)
        return paths

    def __del__(self) -> None:
        if getattr(self, "_is_partial_expected", True) or sys.is_finalizing():
            return
        nodes, slots = self._list_unused_nodes(), self._list_unused_slots()
        if not (nodes or slots):
            return
        paths = self._get_paths()
        missing = [paths.get(index, str(index)) for index in nodes]
        missing += [f"{paths.get(slot['variable'])}'s {slot['name']}" for slot in slots]
        _log.warning(
            "Values of the checkpoint %s were not restored, and the objects that could have received "
            "them were deleted: %s%s. Call `restore(...).expect_partial()` if this is intended.",
            *(
                self.checkpoint.path,
                ", ".join(missing[:_MAX_LISTED]),
                ", ..." * (len(missing) > _MAX_LISTED),
            ),
        )


def initialize_variables(objects: Iterable[Any]) -> None:
    """Set the initial values of variables of a graph of version 1.

    Args:
      objects: Variables, and other objects, which are skipped.
    """
    for item in objects:
        if hasattr(item, "set_initial_value"):
            item.set_initial_value()


def make_weak_reference(item: Trackable) -> Callable[[], Trackable]:
    """Return a weak reference to an object, or a strong one if weak ones are not supported.

    Args:
      item: Any object, for example one of Python's containers.
    """
    try:
        return weakref.ref(item)
    except TypeError:
        return lambda: item


def _list_children_with_aliases(
    item: Trackable, stored_children: dict[str, int], nodes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the children of an object, also by the names in other versions of TensorFlow and Keras."""
    named_children = dict(list_children(item))
    if all(name in named_children for name in stored_children):
        return named_children
    item = resolve_root(item)
    look_up = getattr(type(item), "_lookup_dependency", ObservableAttributes._lookup_dependency)
    if look_up is not ObservableAttributes._lookup_dependency:
        # A class of a library may create the objects that it has not yet.
        found = {
            name: look_up(item, name) for name in stored_children if name not in named_children
        }
        named_children |= {name: child for name, child in found.items() if child is not None}
    if hasattr(item, "_checkpoint_aliases"):
        named_children = {**item._checkpoint_aliases(), **named_children}
    if hasattr(item, "_own_weights"):
        named_children |= {
            f"_{name}": named_children[name] for name in KERAS_3_WEIGHTS if name in named_children
        }
        layers = {str(i): layer for i, layer in number_layers(item, named_children).items()}
        if layers:
            layers = _renumber_layers(layers, stored_children, nodes)
            named_children = {
                "_operations": layers,
                "_functional": {"_operations": layers},
                **named_children,
            }
    return named_children


def _match_slots(
    stored_children: dict[str, int], slots: dict[str, Any], nodes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the slots in a list of an optimizer by their stored indices.

    The indices follow the order in which variables were first trained, which differs from the
    stored one if layers were unfrozen in between. The names of the slots identify them then.
    """
    stored_names = {name: nodes[child].get("full_name") for name, child in stored_children.items()}
    by_full_name = {get_full_name(slot): slot for slot in slots.values()}
    known = set(stored_names.values())
    are_unique = len(by_full_name) == len(slots) and len(known) == len(stored_names)
    if not are_unique or not (known <= set(by_full_name) or set(by_full_name) <= known):
        return slots
    return {
        name: by_full_name[full_name]
        for name, full_name in stored_names.items()
        if full_name in by_full_name
    }


def _renumber_layers(
    layers: dict[str, Any], stored_children: dict[str, int], nodes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Replace the numbers of layers by those in the file if their counts are equal.

    Keras 3 also counts the functions between the layers.
    """
    if "_operations" not in stored_children:
        return layers
    names = nodes[stored_children["_operations"]]["children"]
    numbers = [name for name in names if name.isdigit()]
    if len(numbers) != len(layers) or set(numbers) == set(layers):
        return layers
    return dict(zip(sorted(numbers, key=int), layers.values(), strict=True))


def _call_after_build(layer: Trackable, resume: Callable[[], None]) -> None:
    """Call a function once, right after the `build` of a Keras layer."""
    get_layer = make_weak_reference(layer)
    layer_build = vars(layer).get("build")

    def build_and_restore(*args: Any, **kwargs: Any) -> object:
        layer = get_layer()
        layer.__dict__.pop("build", None)
        result = (layer_build or layer.build)(*args, **kwargs)
        resume()
        return result

    object.__setattr__(layer, "build", build_and_restore)
