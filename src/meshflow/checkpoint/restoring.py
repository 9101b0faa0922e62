"""Putting stored values back into objects, also into objects that have no variables yet.

A `Restoration` pairs stored nodes with objects, from the root along equal names. Where a stored child
has no counterpart because a layer is not built, an optimizer has no slots or a module lacks an
attribute, it leaves a hook there and goes on when the variables exist, before their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from meshflow.checkpoint.containers import Stored, stored_objects
from meshflow.checkpoint.graph import VARIABLE, ObjectGraph, children, is_trackable, slots_of
from meshflow.checkpoint.graph_message import KERAS_3_WEIGHTS, operations
from meshflow.checkpoint.growing import growing
from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.module import Awaited
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable


class Restoration:
    """One restoring of one checkpoint.

    Args:
      folder: the checkpoint.
      root: the object that stored node 0 belongs to.
      skip_slots: whether optimizer slots are left out.
    """

    def __init__(self, folder: Stored, root: Any, skip_slots: bool = False) -> None:
        self.folder = folder
        self.root = root
        self._skip_slots = skip_slots
        self._left_out: set[int] = set()
        stored = stored_objects(folder)
        self.nodes: list[dict[str, Any]] = stored["nodes"]
        self.slots: list[dict[str, Any]] = [] if skip_slots else stored["slots"]
        self.objects: dict[int, Any] = {}
        self._restored: set[tuple[int | str, int]] = set()
        self._hooked: set[int] = set()
        self._visit([(0, root)])

    def _visit(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Pairs nodes with objects and, from there, children with children."""
        queue = list(pairs)
        seen: set[tuple[int, int]] = set()
        while queue:
            position, item = queue.pop(0)
            if (position, id(item)) in seen:
                continue
            seen.add((position, id(item)))
            self.objects.setdefault(position, item)
            self._restore_value(position, item)
            wanted = self.nodes[position]["children"]
            own = _known_as(item, wanted, self.nodes)
            if self._skip_slots:
                wanted = self._without_slots(wanted, item)
            queue.extend((wanted[name], own[name]) for name in wanted if name in own)
            if any(name not in own for name in wanted):
                self._wait_for_build(position, item)
        self._restore_slots()

    def _restore_value(self, position: int, item: Any) -> None:
        values: dict[str, str] = self.nodes[position]["values"]
        if not values or (position, id(item)) in self._restored:
            return
        if isinstance(item, (Variable, ShardedVariable)):
            if VARIABLE not in values:
                return
            self._assign(item, values[VARIABLE])
        else:
            known = [a for a in getattr(item, "_checkpoint_attributes", ()) if a in values]
            if not known:
                return
            item._restore_checkpoint_values(known[0], self._arrays(values[known[0]]))
        self._restored.add((position, id(item)))

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
        layout = variable.layout
        split = layout is not None and not layout.is_fully_replicated()
        # Each device takes its part from the file, however the array was split when it was saved.
        value = self.folder.open(key) if split else self.folder.lent(key)
        fits = variable.shape.is_compatible_with(value.shape)
        if not fits and getattr(variable, "_of_its_mesh", False):
            # It says something of the devices that it was on, of which there are others now.
            with init_scope():
                variable.assign(np.zeros(variable.shape.as_list(), variable.dtype.dtype))
            return
        if not fits:
            raise ValueError(
                f"Received incompatible tensor with shape {tuple(value.shape)} when attempting to restore variable "
                f"with shape {tuple(variable.shape)} and name {variable.name} (key {key} of {self.folder.path})."
            )
        dtype = variable.dtype.dtype
        kinds = np.dtype(dtype).kind, value.dtype.kind
        if (kinds[0] in "biu" and kinds[1] not in "biu") or (kinds[0] == "O") != (kinds[1] == "O"):
            raise InvalidValueError(
                f"Variable {variable.name} of dtype {variable.dtype.name} cannot hold the stored dtype "
                f"{value.dtype} (key {key} of {self.folder.path})."
            )
        with init_scope():
            if split:
                variable.assign(parts_of(value, layout, dtype))
            elif layout is None and value.dtype == dtype and transfers.is_ours(value):
                variable.assign(Tensor(transfers.to_device(value)))
            else:
                variable.assign(value.astype(dtype, copy=False))

    def _restore_slots(self) -> None:
        if not self.slots:
            return
        at = {position: id(item) for position, item in self.objects.items()}
        slots: dict[tuple[int, int | None, str], Variable | ShardedVariable] = {
            (id(item), id(variable), name): slot
            for item in {id(x): x for x in self.objects.values()}.values()
            for variable, name, slot in slots_of(item)
        }
        for entry in self.slots:
            optimizer, variable = at.get(entry["optimizer"]), at.get(entry["variable"])
            if optimizer is None:
                continue
            slot = slots.get((optimizer, variable, entry["name"]))
            if slot is None:
                self._wait_for_build(entry["optimizer"], self.objects[entry["optimizer"]])
            elif (entry["key"], id(slot)) not in self._restored:
                self._assign(slot, entry["key"])
                self._restored.add((entry["key"], id(slot)))

    def _wait_for_build(self, position: int, item: Any) -> None:
        """Goes on restoring when an object has made its variables."""
        if id(item) in self._hooked:
            return
        go_on = lambda: self._visit([(position, item)])
        if hasattr(item, "_build_hooks"):
            # Those that are called are forgotten: what is still missing then waits again.
            def built() -> None:
                self._hooked.discard(id(item))
                go_on()

            item._build_hooks.append(built)
        else:
            unbuilt = getattr(item, "built", True) is False
            if unbuilt:
                _after_build(item, go_on)
            if isinstance(item, Awaited):
                # A layer may also make parts in its first call.
                item._wait_for_attributes(lambda value: self._look_at(item, value, go_on))
            elif not unbuilt:
                return
        self._hooked.add(id(item))

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
        used_nodes = {p for p, _ in self._restored if isinstance(p, int)} | self._left_out
        used_slots = {k for k, _ in self._restored if isinstance(k, str)}
        left = [
            k for i, n in enumerate(self.nodes) if i not in used_nodes for k in n["values"].values()
        ]
        return left + [e["key"] for e in self.slots if e["key"] not in used_slots]

    def unmatched(self) -> list[Any]:
        """Variables below the root that got no value."""
        done = {identity for _, identity in self._restored}
        if self._skip_slots:
            done |= {id(slot) for item in self.objects.values() for _, _, slot in slots_of(item)}
        graph = ObjectGraph(self.root)
        kinds = (Variable, ShardedVariable)
        return [x for x in graph.objects if isinstance(x, kinds) and id(x) not in done]

    def matched_anything(self) -> bool:
        """Whether any object below the root was paired."""
        return len(self.objects) > 1 or not self.nodes[0]["children"]


def _known_as(item: Any, wanted: dict[str, int], nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """What an object owns, also by the names that other versions of TensorFlow and Keras give it."""
    own = dict(children(item))
    if all(name in own for name in wanted):
        return own
    item = getattr(item, "_checkpoint_root", item)
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


def parts_of(value: np.ndarray, layout: Any, dtype: Any) -> Tensor:
    """A tensor in a layout whose devices take their parts of a host array.

    Args:
      value: the array, which may lie in a file.
      layout: a `Layout`.
      dtype: the tensor's NumPy dtype.
    """
    layout.check(value.shape)
    part = lambda index: np.asarray(value[index]).astype(dtype, copy=False)
    return Tensor(jax.make_array_from_callback(value.shape, layout.sharding(), part))


def _after_build(layer: Any, go_on: Callable[[], None]) -> None:
    """Calls a function once, right after a Keras layer's `build`."""
    build = layer.build

    def build_and_restore(*args: Any, **kwargs: Any) -> Any:
        layer.__dict__.pop("build", None)
        result = build(*args, **kwargs)
        go_on()
        return result

    object.__setattr__(layer, "build", build_and_restore)


class CheckpointLoadStatus:
    """What `Checkpoint.restore` returns: assertions on what was restored.

    Args:
      restoration: the restoring it tells about.
    """

    def __init__(self, restoration: Restoration) -> None:
        self._restoration = restoration

    def assert_consumed(self) -> CheckpointLoadStatus:
        """Asserts that every stored value and every variable found its counterpart.

        Returns:
          The status itself.

        Raises:
          AssertionError: naming what did not.
        """
        self.assert_existing_objects_matched()
        left = self._restoration.unused()
        if left:
            raise AssertionError(
                f"Unresolved objects in checkpoint {self._restoration.folder.path}: {len(left)} stored values have no "
                f"Python object, such as {left[:10]}. Objects that create their variables later are "
                "restored then; call `expect_partial()` if this is meant."
            )
        return self

    def assert_existing_objects_matched(self) -> CheckpointLoadStatus:
        """Asserts that every variable that exists got a stored value.

        Returns:
          The status itself.

        Raises:
          AssertionError: naming the variables that did not.
        """
        self._restoration.go_on()
        missing = self._restoration.unmatched()
        if missing:
            raise AssertionError(
                f"Found {len(missing)} Python objects that were not bound to checkpointed values, likely due to changes "
                f"in the Python program. Showing {min(10, len(missing))} of {len(missing)} unmatched objects: "
                f"{[v.name for v in missing[:10]]}"
            )
        return self

    def assert_nontrivial_match(self) -> CheckpointLoadStatus:
        """Asserts that anything besides the root was matched.

        Returns:
          The status itself.

        Raises:
          AssertionError: when nothing was.
        """
        self._restoration.go_on()
        if not self._restoration.matched_anything():
            raise AssertionError(
                f"Nothing except the root object matched a checkpointed value: {self._restoration.folder.path} holds "
                f"{sorted(self._restoration.nodes[0]['children'])}, the object has {sorted(children(self._restoration.root))}."
            )
        return self

    def expect_partial(self) -> CheckpointLoadStatus:
        """Says that values may be left over.

        Returns:
          The status itself.
        """
        return self

    def initialize_or_restore(self, session: Any = None) -> None:
        """Nothing is left to do.

        Args:
          session: ignored.
        """

    def run_restore_ops(self, session: Any = None) -> None:
        """Nothing is left to do.

        Args:
          session: ignored.
        """


class InitializationOnlyStatus(CheckpointLoadStatus):
    """What `Checkpoint.restore(None)` returns: nothing was restored."""

    def __init__(self) -> None:
        pass

    def _nothing(self, session: Any = None) -> Any:
        raise AssertionError("No checkpoint specified (save_path=None); nothing is being restored.")

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = _nothing
    run_restore_ops = _nothing
