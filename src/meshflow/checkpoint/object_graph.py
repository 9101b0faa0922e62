"""Graph of the objects that a checkpoint saves, with the names under which objects own each other.

Names are TensorFlow's, so listings of a checkpoint look familiar: attributes, indices of lists,
fields of named tuples, keys of
dictionaries, and `layer-0` and `layer_with_weights-0` for the layers of a model.

An object can define its children by `_checkpoint_children()`, and values that are not variables by
two methods:
`_checkpoint_values()` returns arrays by the suffix of their keys, and
`_restore_checkpoint_values(attribute, arrays)` restores
them. `_checkpoint_attributes` lists the attribute names that it can read; it writes under the first
of them.
Classes of users can define `_serialize_to_tensors()`, which returns tensors by attribute name, and
`_restore_from_tensors(tensors)`, or `_gather_saveables_for_checkpoint()`, as in TensorFlow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from meshflow.checkpoint.slices import ArrayParts
from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.module import ObservableAttributes
from meshflow.core.variables.sharded_variable import ShardedVariable, merge_shards
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.environment.types import Array
from meshflow.placement.file_store import FileArray

# An object that a checkpoint can save, see `is_trackable`. Such objects have no common base class.
Trackable: TypeAlias = Any

VARIABLE_VALUE = "VARIABLE_VALUE"
PYTHON_STATE = "py_state"

# Attributes of Keras layers, models and metrics that duplicate or only refer to objects that are
# saved otherwise.
_UNSAVED_KERAS_ATTRIBUTES = frozenset(
    (
        *("_own_weights", "_regularized", "_losses", "_own_metrics", "_inbound_nodes", "_layers"),
        *("_input_spec", "_untracked", "_weights", "compiled_loss", "compiled_metrics", "history"),
        *("_compile_arguments", "loss", "train_function", "test_function"),
    )
)


def is_trackable(value: object) -> bool:
    """Check whether a checkpoint can save an object.

    Args:
      value: Any object.

    Returns:
      True for variables, modules, layers, models, metrics, optimizers, generators, checkpoints,
      functions made by
      `tf.function`, and lists, tuples and dictionaries.
    """
    if isinstance(value, (Variable, ShardedVariable, ObservableAttributes, list, tuple, Mapping)):
        return True
    if isinstance(value, type):
        return False
    return (
        hasattr(value, "_checkpoint_children")
        or hasattr(value, "_checkpoint_values")
        or getattr(value, "_is_metric", False)
        or hasattr(value, "get_concrete_function")
        or _is_meshflow_object_with_variables(value)
    )


def resolve_root(value: Trackable) -> Trackable:
    """Return the root of a `Checkpoint` that was created for one, otherwise the object itself.

    Values and children of the root are saved as those of the checkpoint.

    Args:
      value: Any object.
    """
    root = getattr(value, "_checkpoint_root", None)
    return value if root is None else root


def _is_meshflow_object_with_variables(value: object) -> bool:
    return type(value).__module__.startswith("meshflow.") and any(
        isinstance(x, Variable) for x in getattr(value, "__dict__", {}).values()
    )


def list_children(value: Trackable) -> dict[str, Trackable]:
    """Return the objects that an object owns directly.

    Args:
      value: Trackable object.

    Returns:
      Trackable objects by name.
    """
    if isinstance(value, (Variable, ShardedVariable)):
        return {}
    if hasattr(value, "_checkpoint_children"):
        return value._checkpoint_children()
    if isinstance(value, Mapping):
        named_children: Iterable[tuple[str, Trackable]] = ((str(k), v) for k, v in value.items())
    elif isinstance(value, (list, tuple)):
        fields = zip(getattr(value, "_fields", ()), value, strict=False)
        named_children = (*fields, *((str(i), v) for i, v in enumerate(value)))
    else:
        named_children = _iterate_attributes(value)
    return {name: child for name, child in named_children if _should_save(child)}


def is_sequential(value: object) -> bool:
    """Check whether an object is a `Sequential` model; other objects may have an attribute `add`, such as a layer."""
    return hasattr(type(value), "add") and hasattr(type(value), "layers")


def _iterate_attributes(value: Trackable) -> Iterator[tuple[str, Trackable]]:
    is_layer = hasattr(value, "_own_weights")
    if is_layer and (getattr(value, "_graph", None) is not None or is_sequential(value)):
        yield from _iterate_layers(value)
    attributes = getattr(value, "__dict__", {})
    tracked_names = getattr(value, "_tracked_names", None)
    if tracked_names is not None:
        attributes = {name: attributes[name] for name in attributes if name in tracked_names}
    is_keras = is_layer or getattr(value, "_is_metric", False)
    for name, child in attributes.items():
        if not (is_keras and name in _UNSAVED_KERAS_ATTRIBUTES):
            yield name, child
    # Weights that no attribute refers to are saved under their own names.
    attribute_ids = {id(child) for child in attributes.values()}
    for weight in merge_shards(
        (value._own_weights if is_layer else getattr(value, "_weights", [])) if is_keras else []
    ):
        if id(weight) not in attribute_ids:
            yield get_full_name(weight).rsplit("/", 1)[-1], weight


def _iterate_layers(model: Trackable) -> Iterator[tuple[str, Trackable]]:
    num_weighted = 0
    # Until all layers are built, the layers with weights are unknown; only the names by position
    # are used then.
    all_built = all(layer.built for layer in model.layers)
    for index, layer in enumerate(model.layers):
        if all_built and layer.weights:
            yield f"layer_with_weights-{num_weighted}", layer
            num_weighted += 1
        yield f"layer-{index}", layer


def _should_save(value: object, depth: int = 0) -> bool:
    """Check whether an object is trackable. A container must hold a trackable object."""
    if isinstance(value, (list, tuple)):
        # Long lists of plain data are common, so only the first element is checked for being plain.
        is_plain = not value or isinstance(value[0], (int, float, str, bytes))
        return not is_plain and depth < 8 and any(_should_save(x, depth + 1) for x in value)
    if isinstance(value, Mapping):
        return depth < 8 and any(_should_save(x, depth + 1) for x in value.values())
    return is_trackable(value)


def escape_name(name: str) -> str:
    """Escape a name as one part of a key, where `/` separates the parts.

    Args:
      name: Name of a child.
    """
    return name.replace(".", "..").replace("/", ".S")


class ObjectGraph:
    """All objects that can be reached from a root, in breadth-first order.

    Args:
      root: Object to start from.

    Attributes:
      objects: The objects.
      nodes: For each object a dictionary with the indices of its children by name, its path, and
        the keys of its values by
        attribute.
    """

    def __init__(self, root: Trackable) -> None:
        self.objects: list[Any] = [root]
        self.nodes: list[dict[str, Any]] = [{"path": "", "children": {}, "values": {}}]
        self._indices = {id(root): 0}
        index_queue = deque([0])
        while index_queue:
            index = index_queue.popleft()
            node = self.nodes[index]
            for name, child in list_children(self.objects[index]).items():
                if id(child) not in self._indices:
                    self._indices[id(child)] = len(self.objects)
                    index_queue.append(len(self.objects))
                    prefix = f"{node['path']}/" if node["path"] else ""
                    self.objects.append(child)
                    self.nodes.append(
                        {"path": prefix + escape_name(name), "children": {}, "values": {}}
                    )
                node["children"][name] = self._indices[id(child)]

    def iterate_values(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield key, array and object of each value, and record the keys in the nodes."""
        for node, item in zip(self.nodes, map(resolve_root, self.objects), strict=True):
            for attribute, arrays in _get_values(item).items():
                key = node["values"][attribute] = f"{node['path']}/.ATTRIBUTES/{attribute}"
                for suffix, array in arrays.items():
                    yield key + suffix, array, item

    def iterate_slots(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield the description and the array of each optimizer slot of a variable in the graph.

        Optimizers that own their slots as children are skipped.
        """
        for optimizer, item in enumerate(map(resolve_root, self.objects)):
            if getattr(item, "_slots_in_lists", False):
                continue  # The slots are children of the optimizer.
            for variable, name, slot in iterate_optimizer_slots(item):
                variable_index = self._indices.get(id(variable))
                if variable_index is None:
                    continue
                variable_path = self.nodes[variable_index]["path"]
                path = f"{variable_path}/.OPTIMIZER_SLOT/{self.nodes[optimizer]['path']}"
                description = {
                    "optimizer": optimizer,
                    "variable": variable_index,
                    "name": name,
                    "key": f"{path}/{escape_name(name)}/.ATTRIBUTES/{VARIABLE_VALUE}",
                    "full_name": get_full_name(slot),
                }
                yield description, get_stored_value(slot)


def _get_values(item: Trackable) -> dict[str, dict[str, Any]]:
    """Return the arrays of an object by attribute and suffix of the key."""
    if isinstance(item, (Variable, ShardedVariable)):
        return {VARIABLE_VALUE: {"": get_stored_value(item)}}
    if hasattr(item, "_serialize_to_tensors"):
        tensors = item._serialize_to_tensors()
        return {escape_name(name): {"": to_array(tensor)} for name, tensor in tensors.items()}
    if hasattr(item, "_gather_saveables_for_checkpoint"):
        return {
            name: {spec.name.removeprefix(name): to_array(spec.tensor) for spec in saveable.specs}
            for name, saveable in create_saveables(item).items()
        }
    if hasattr(item, "_checkpoint_values"):
        arrays = item._checkpoint_values()
        return {item._checkpoint_attributes[0]: arrays} if arrays else {}
    return {}


def create_saveables(item: Trackable, name: str | None = None) -> dict[str, Any]:
    """Return the `SaveableObject`s of an object of the user, by attribute.

    Args:
      item: The object.
      name: Start of the names of values. Default: the attribute.
    """
    factories = item._gather_saveables_for_checkpoint()
    return {
        attribute: factory(name=name or attribute) if callable(factory) else factory
        for attribute, factory in factories.items()
    }


def to_array(tensor: TensorLike) -> Array | FileArray:
    """Return the array of a tensor or variable as a checkpoint stores it.

    Args:
      tensor: The tensor or variable.
    """
    return tensor._value if isinstance(tensor, Variable) else np.asarray(tensor)


def get_stored_value(variable: Variable | ShardedVariable) -> Array | FileArray | ArrayParts:
    """Return the value of a variable as a checkpoint stores it.

    Args:
      variable: The variable.

    Returns:
      The array of the variable, which may be in a file. For a `ShardedVariable`, `ArrayParts` of
      its shards. A float32 variable
      with `save_as_bf16` is converted to bfloat16.
    """
    if isinstance(variable, ShardedVariable):
        parts, offset = [], 0
        for shard in variable.variables:
            value = get_stored_value(shard)
            assert not isinstance(value, ArrayParts)
            full_extents = ((0, -1),) * (value.ndim - 1)
            parts.append((((offset, value.shape[0]), *full_extents), value))
            offset += value.shape[0]
        return ArrayParts((offset, *parts[0][1].shape[1:]), parts)
    # A variable of a graph without a value raises an error.
    value = variable._value if getattr(variable, "is_set", True) else variable.numpy()
    if getattr(variable, "save_as_bf16", False) and value.dtype == np.float32:
        value = variable._current().astype(jnp.bfloat16)
    return value


def iterate_optimizer_slots(value: Trackable) -> Iterator[tuple[Any, str, Any]]:
    """Yield variable, slot name and slot of each slot of an optimizer; nothing for other objects.

    Args:
      value: Any object.
    """
    if hasattr(value, "get_slot") and hasattr(value, "_owners"):
        slot_ids = set()
        for key, slots in value._slots.items():
            for name, slot in slots.items():
                # The slots of the shards of a variable form a `ShardedVariable`, too.
                variable, full_slot = (merge_shards([x])[0] for x in (value._owners[key], slot))
                if id(full_slot) not in slot_ids:
                    slot_ids.add(id(full_slot))
                    yield variable, name, full_slot
