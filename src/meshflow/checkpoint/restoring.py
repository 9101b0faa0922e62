"""Putting stored values back into objects, also into objects that have no variables yet.

A `Restoration` pairs stored nodes with objects, from the root along equal names. Where a stored child
has no counterpart because a layer is not built, an optimizer has no slots or a module lacks an
attribute, it leaves a hook there and goes on when the variables exist, before their first use. It lives in these hooks
and in its status alone, and refers weakly to what it restores: objects go when their program lets go of them.
"""

from __future__ import annotations

import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from meshflow.checkpoint.assigning import put
from meshflow.checkpoint.containers import Stored, stored_objects
from meshflow.checkpoint.graph import (
    VARIABLE,
    ObjectGraph,
    children,
    is_trackable,
    owner,
    slots_of,
)
from meshflow.checkpoint.graph_message import KERAS_3_WEIGHTS, operations
from meshflow.checkpoint.growing import growing
from meshflow.checkpoint.python_state import PythonState
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.module import Awaited
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable

_log = logging.getLogger("meshflow")
# What waits for a variable does not undo what was restored into it later.
_numbers = itertools.count(1)
_CONTAINERS = (list, tuple, Mapping)
_SHOWN = 20


class Restoration:
    """One restoring of one checkpoint.

    Args:
      folder: the checkpoint.
      root: the object that stored node 0 belongs to.
      skip_slots: whether optimizer slots are left out.
    """

    def __init__(self, folder: Stored, root: Any, skip_slots: bool = False) -> None:
        stored = stored_objects(folder)
        self._begin(folder, root, stored["nodes"], [] if skip_slots else stored["slots"])
        self._skip_slots = skip_slots
        self._visit([(0, root)])

    def _begin(
        self, folder: Stored, root: Any, nodes: list[dict[str, Any]], slots: list[dict[str, Any]]
    ) -> None:
        self.folder, self.nodes, self.slots = folder, nodes, slots
        self._root = reference(root)
        self._skip_slots = False
        self._left_out: set[int] = set()
        # The object of each node; containers may be made anew whenever they are looked at, and have none.
        self._bound: dict[int, Callable[[], Any]] = {}
        # What has been restored, by node or key, and what is waited for: identities of objects that are gone may be new ones'.
        self._restored: dict[tuple[int | str, int], Callable[[], Any]] = {}
        self._hooked: dict[int, Callable[[], Any]] = {}
        self._matched = False
        self._number = next(_numbers)
        self._silent = False

    @property
    def root(self) -> Any:
        """The object that stored node 0 belongs to; None when it is gone."""
        return self._root()

    def _objects(self) -> dict[int, Any]:
        """The objects by node that are still there."""
        found = {position: object_of() for position, object_of in self._bound.items()}
        return {position: item for position, item in found.items() if item is not None}

    def _is_restored(self, place: int | str, item: Any) -> bool:
        before = self._restored.get((place, id(item)))
        return before is not None and before() is item

    def _visit(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Pairs nodes with objects and, from there, children with children."""
        queue = list(pairs)
        seen: set[tuple[int, int]] = set()
        while queue:
            position, item = queue.pop(0)
            if (position, id(item)) in seen:
                continue
            seen.add((position, id(item)))
            whole = owner(item)
            if not self._bind(position, whole):
                continue
            self._restore_value(position, whole)
            wanted = self.nodes[position]["children"]
            own = _known_as(item, wanted, self.nodes)
            if self._skip_slots:
                wanted = self._without_slots(wanted, item)
            wanted = {name: at for name, at in wanted.items() if at != position}
            found = [(wanted[name], own[name]) for name in wanted if name in own]
            self._matched |= bool(found)
            queue.extend(found)
            if len(found) < len(wanted):
                self._wait_for_build(position, item)
                # A `Checkpoint` may go before the object that it was made for.
                if whole is not item:
                    self._wait_for_build(position, whole)
        self._restore_slots()

    def _bind(self, position: int, item: Any) -> bool:
        """Whether a node is an object's: the first one that is found for it has it for good."""
        if isinstance(item, _CONTAINERS):
            return True
        before = self._bound.setdefault(position, reference(item))()
        if before is not None and before is not item:
            _log.warning(
                "%s: %s has been restored into one object, and is not restored into another, which the program has in "
                "the same place: %r and %r.",
                *(self.folder.path, self._paths()[position], before, item),
            )
        return before is item

    def _restore_value(self, position: int, item: Any) -> None:
        values: dict[str, str] = self.nodes[position]["values"]
        if not values or self._is_restored(position, item):
            return
        if isinstance(item, (Variable, ShardedVariable)):
            if VARIABLE not in values:
                return
            self._assign(item, values[VARIABLE])
        elif hasattr(item, "_restore_from_tensors"):
            item._restore_from_tensors(
                {name: Tensor(self.folder.read(key)) for name, key in values.items()}
            )
        else:
            known = [a for a in getattr(item, "_checkpoint_attributes", ()) if a in values]
            if not known:
                return
            item._restore_checkpoint_values(known[0], self._arrays(values[known[0]]))
        self._restored[position, id(item)] = reference(item)

    def _without_slots(self, wanted: dict[str, int], item: Any) -> dict[str, int]:
        """What an optimizer owns besides lists of slots, which are then not missed."""
        lists = getattr(item, "_slot_list_names", ())
        for name in wanted:
            if name in lists or (lists and name == "_variables"):
                self._left_out |= set(self.nodes[wanted[name]]["children"].values())
        return {name: at for name, at in wanted.items() if name not in lists}

    def _arrays(self, key: str) -> dict[str, np.ndarray]:
        """The arrays of an object by what follows its key."""
        endings = [name[len(key) :] for name in self.folder.entries if name.startswith(key)]
        return {e: self.folder.read(key + e) for e in endings if not e.startswith("/")}

    def _assign(self, variable: Variable | ShardedVariable, key: str) -> None:
        if getattr(variable, "_restored_by", 0) > self._number:
            return
        object.__setattr__(variable, "_restored_by", self._number)
        put(self.folder, key, variable)

    def _restore_slots(self) -> None:
        if not self.slots:
            return
        objects = self._objects()
        at = {position: id(item) for position, item in objects.items()}
        slots: dict[tuple[int, int | None, str], Variable | ShardedVariable] = {
            (id(item), id(variable), name): slot
            for item in {id(x): x for x in objects.values()}.values()
            for variable, name, slot in slots_of(item)
        }
        for entry in self.slots:
            optimizer, variable = at.get(entry["optimizer"]), at.get(entry["variable"])
            if optimizer is None:
                continue
            slot = slots.get((optimizer, variable, entry["name"]))
            if slot is None:
                self._wait_for_build(entry["optimizer"], objects[entry["optimizer"]])
            elif not self._is_restored(entry["key"], slot):
                self._assign(slot, entry["key"])
                self._restored[entry["key"], id(slot)] = reference(slot)

    def _wait_for_build(self, position: int, item: Any) -> None:
        """Goes on restoring when an object has made its variables."""
        object_of = reference(item)
        if self._hooked.get(id(item), lambda: None)() is item:
            return

        def go_on() -> None:
            now = object_of()
            if now is not None:
                self._visit([(position, now)])

        if hasattr(item, "_build_hooks"):
            # Those that are called are forgotten: what is still missing then waits again.
            def built() -> None:
                self._hooked.pop(id(object_of()), None)
                go_on()

            item._build_hooks.append(built)
        else:
            unbuilt = getattr(item, "built", True) is False
            if unbuilt:
                _after_build(item, go_on)
            if isinstance(item, Awaited):
                # A layer may also make parts in its first call.
                item._wait_for_attributes(lambda value: self._look_at(object_of(), value, go_on))
            elif not unbuilt:
                return
        self._hooked[id(item)] = object_of

    def _look_at(self, item: Any, value: Any, go_on: Callable[[], None]) -> None:
        """Goes on restoring for an object's new attribute, and for what is put into it later."""
        if type(value) in (list, dict):
            names = [name for name, own in vars(item).items() if own is value]
            for name in names:
                object.__setattr__(item, name, growing(value, go_on))
            if value and names:
                go_on()
        elif is_trackable(value):
            go_on()

    # ---- what is left ----------------------------------------------------------------------

    def go_on(self) -> None:
        """Pairs what has appeared since: variables put into lists and dictionaries give no sign."""
        self._visit([(0, self.root)])

    def unused(self) -> list[str]:
        """Keys of stored values that went nowhere."""
        left = [key for at in self._unused_nodes() for key in self.nodes[at]["values"].values()]
        return left + [entry["key"] for entry in self._unused_slots()]

    def _unused_nodes(self) -> list[int]:
        used = {place for place, _ in self._restored if isinstance(place, int)} | self._left_out
        return [at for at, node in enumerate(self.nodes) if node["values"] and at not in used]

    def _unused_slots(self) -> list[dict[str, Any]]:
        used = {place for place, _ in self._restored if isinstance(place, str)}
        return [entry for entry in self.slots if entry["key"] not in used]

    def unmatched(self) -> list[Any]:
        """What is below the root, has a value, and got none."""
        done = {identity for (_, identity), of in self._restored.items() if of() is not None}
        if self._skip_slots:
            items = self._objects().values()
            done |= {id(slot) for item in items for _, _, slot in slots_of(item)}
        kinds = (Variable, ShardedVariable, PythonState)
        found = map(owner, ObjectGraph(self.root).objects)
        return [x for x in found if isinstance(x, kinds) and id(x) not in done]

    def matched_anything(self) -> bool:
        """Whether any object below the root was paired."""
        return self._matched or not self.nodes[0]["children"]

    def expect_partial(self) -> None:
        """Nothing is logged of values that are left over."""
        self._silent = True

    def _paths(self) -> dict[int, str]:
        """The nodes as attributes of the root."""
        paths, queue = {0: "(root)"}, [0]
        for at in queue:
            for name, child in self.nodes[at]["children"].items():
                if child not in paths:
                    paths[child] = f"{paths[at]}.{name}"
                    queue.append(child)
        return paths

    def __del__(self) -> None:
        if getattr(self, "_silent", True) or sys.is_finalizing():
            return
        nodes, slots = self._unused_nodes(), self._unused_slots()
        if not (nodes or slots):
            return
        paths = self._paths()
        left = [paths.get(at, str(at)) for at in nodes]
        left += [f"{paths.get(slot['variable'])}'s {slot['name']}" for slot in slots]
        _log.warning(
            "Values of the checkpoint %s were not restored, and what could have taken them is gone: %s%s. "
            "`restore(...).expect_partial()` says that this is meant.",
            *(self.folder.path, ", ".join(left[:_SHOWN]), ", ..." * (len(left) > _SHOWN)),
        )


def reference(item: Any) -> Callable[[], Any]:
    """A weak reference to what has one: containers of Python's own are held.

    Args:
      item: any object.
    """
    try:
        return weakref.ref(item)
    except TypeError:
        return lambda: item


def _known_as(item: Any, wanted: dict[str, int], nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """What an object owns, also by the names that other versions of TensorFlow and Keras give it."""
    own = dict(children(item))
    if all(name in own for name in wanted):
        return own
    item = owner(item)
    if hasattr(item, "_checkpoint_aliases"):
        own = {**item._checkpoint_aliases(), **own}
    if hasattr(item, "_own_weights"):
        own |= {f"_{name}": own[name] for name in KERAS_3_WEIGHTS if name in own}
        layers = {str(number): layer for number, layer in operations(item, own).items()}
        if layers:
            layers = _numbered_as_stored(layers, wanted, nodes)
            own = {"_operations": layers, "_functional": {"_operations": layers}, **own}
    return own


def _numbered_as_stored(
    layers: dict[str, Any], wanted: dict[str, int], nodes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Layers by the numbers that a file has of as many: Keras 3 counts functions between them, too."""
    if "_operations" not in wanted:
        return layers
    stored = [name for name in nodes[wanted["_operations"]]["children"] if name.isdigit()]
    if len(stored) != len(layers) or set(stored) == set(layers):
        return layers
    return dict(zip(sorted(stored, key=int), layers.values(), strict=True))


def _after_build(layer: Any, go_on: Callable[[], None]) -> None:
    """Calls a function once, right after a Keras layer's `build`."""
    layer_of = reference(layer)
    own = vars(layer).get("build")

    def build_and_restore(*args: Any, **kwargs: Any) -> Any:
        layer = layer_of()
        layer.__dict__.pop("build", None)
        result = (own or layer.build)(*args, **kwargs)
        go_on()
        return result

    object.__setattr__(layer, "build", build_and_restore)
