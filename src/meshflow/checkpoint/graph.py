"""The graph of objects that a checkpoint saves: what an object owns, by name.

Names are TensorFlow's: attributes, positions in lists, fields of named tuples, keys of dictionaries, `layer-0` and
`layer_with_weights-0` for the layers of a model, so that listings of a checkpoint look familiar.
An object can say itself what it owns by `_checkpoint_children()`, and keep values that are no variable's
by `_checkpoint_values()`, which gives arrays by the endings of their keys, and `_restore_checkpoint_values(attribute,
arrays)`. The first attribute in its `_checkpoint_attributes` is the name it writes them under, all are what it reads.
Programs do it as they do with TensorFlow: `_serialize_to_tensors()` gives tensors by their attributes,
`_restore_from_tensors(tensors)` takes them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.checkpoint.slices import Parts
from meshflow.core.variables.module import Module
from meshflow.core.variables.sharded_variable import ShardedVariable, whole_variables
from meshflow.core.variables.variable import Variable

VARIABLE = "VARIABLE_VALUE"
STATE = "py_state"

# Attributes of Keras' layers, models and metrics that repeat or only refer to what is saved.
_INTERNAL = frozenset(
    (
        *("_own_weights", "_regularized", "_losses", "_own_metrics", "_inbound_nodes", "_layers"),
        *("_input_spec", "_untracked", "_weights", "compiled_loss", "compiled_metrics", "history"),
        *("_extras", "_compile_arguments", "loss", "train_function", "test_function"),
    )
)


def is_trackable(value: Any) -> bool:
    """Whether a checkpoint can hold an object.

    Args:
      value: any object.

    Returns:
      True for variables, modules, layers, models, metrics, optimizers, generators, checkpoints,
      functions made by `tf.function`, and lists, tuples and dictionaries.
    """
    if isinstance(value, (Variable, ShardedVariable, Module, list, tuple, Mapping)):
        return True
    if isinstance(value, type):
        return False
    return (
        hasattr(value, "_checkpoint_children")
        or hasattr(value, "_checkpoint_values")
        or getattr(value, "_is_metric", False)
        or hasattr(value, "get_concrete_function")
        or _ours_with_variables(value)
    )


def owner(value: Any) -> Any:
    """Whose value and children an object stands for: the root that a `Checkpoint` was made for, otherwise its own.

    Args:
      value: any object.
    """
    root = getattr(value, "_checkpoint_root", None)
    return value if root is None else root


def _ours_with_variables(value: Any) -> bool:
    return type(value).__module__.startswith("meshflow.") and any(
        isinstance(x, Variable) for x in getattr(value, "__dict__", {}).values()
    )


def children(value: Any) -> dict[str, Any]:
    """The objects that one owns directly.

    Args:
      value: a trackable object.

    Returns:
      Trackable objects by name.
    """
    if isinstance(value, (Variable, ShardedVariable)):
        return {}
    if hasattr(value, "_checkpoint_children"):
        return value._checkpoint_children()
    if isinstance(value, Mapping):
        found: Any = ((str(k), v) for k, v in value.items())
    elif isinstance(value, (list, tuple)):
        fields = zip(getattr(value, "_fields", ()), value, strict=False)
        found = (*fields, *((str(i), v) for i, v in enumerate(value)))
    else:
        found = _attributes(value)
    return {name: child for name, child in found if _worth_saving(child)}


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    layered = hasattr(value, "_own_weights")
    if layered and (getattr(value, "_graph", None) is not None or hasattr(value, "add")):
        yield from _layers(value)
    attributes = getattr(value, "__dict__", {})
    keras = layered or getattr(value, "_is_metric", False)
    for name, child in attributes.items():
        if not (keras and name in _INTERNAL):
            yield name, child
    # Weights that no attribute refers to go by their own names.
    known = {id(child) for child in attributes.values()}
    for weight in whole_variables(
        (value._own_weights if layered else getattr(value, "_weights", [])) if keras else []
    ):
        if id(weight) not in known:
            yield weight._shared_name.rsplit("/", 1)[-1], weight


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    weighted = 0
    # Before all layers are built one cannot tell which have weights; their positions do then.
    built = all(layer.built for layer in model.layers)
    for index, layer in enumerate(model.layers):
        if built and layer.weights:
            yield f"layer_with_weights-{weighted}", layer
            weighted += 1
        yield f"layer-{index}", layer


def _worth_saving(value: Any, depth: int = 0) -> bool:
    """Whether something is trackable; containers are when they hold something that is."""
    if isinstance(value, (list, tuple)):
        # Long lists of plain data are common: the first element tells.
        plain = not value or isinstance(value[0], (int, float, str, bytes))
        return not plain and depth < 8 and any(_worth_saving(x, depth + 1) for x in value)
    if isinstance(value, Mapping):
        return depth < 8 and any(_worth_saving(x, depth + 1) for x in value.values())
    return is_trackable(value)


def escaped(name: str) -> str:
    """A name as a part of a key: `/` separates parts.

    Args:
      name: the name of a child.
    """
    return name.replace(".", "..").replace("/", ".S")


class ObjectGraph:
    """All objects that can be reached from one, breadth first.

    Args:
      root: the object to start at.

    Attributes:
      nodes: for each object its children's positions by name, its path, and the keys of its values by attribute.
      objects: the objects, in the same order.
    """

    def __init__(self, root: Any) -> None:
        self.objects: list[Any] = [root]
        self.nodes: list[dict[str, Any]] = [{"path": "", "children": {}, "values": {}}]
        self._positions = {id(root): 0}
        queue = deque([0])
        while queue:
            position = queue.popleft()
            node = self.nodes[position]
            for name, child in children(self.objects[position]).items():
                if id(child) not in self._positions:
                    self._positions[id(child)] = len(self.objects)
                    queue.append(len(self.objects))
                    prefix = f"{node['path']}/" if node["path"] else ""
                    self.objects.append(child)
                    self.nodes.append(
                        {"path": prefix + escaped(name), "children": {}, "values": {}}
                    )
                node["children"][name] = self._positions[id(child)]

    def values(self) -> Iterator[tuple[str, Any, Any]]:
        """Key, array and object of all that has a value; marks the nodes with their keys."""
        for node, item in zip(self.nodes, map(owner, self.objects), strict=True):
            for kind, arrays in _values(item).items():
                key = node["values"][kind] = f"{node['path']}/.ATTRIBUTES/{kind}"
                for ending, array in arrays.items():
                    yield key + ending, array, item

    def slots(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Descriptions and arrays of the slots of variables in the graph, of optimizers that name them by the variables."""
        for position, item in enumerate(map(owner, self.objects)):
            if getattr(item, "_slots_in_lists", False):
                continue  # they are children
            for variable, name, slot in slots_of(item):
                at = self._positions.get(id(variable))
                if at is None:
                    continue
                path = f"{self.nodes[at]['path']}/.OPTIMIZER_SLOT/{self.nodes[position]['path']}"
                key = f"{path}/{escaped(name)}/.ATTRIBUTES/{VARIABLE}"
                about = {"optimizer": position, "variable": at, "name": name, "key": key}
                yield {**about, "full_name": full_name(slot)}, stored(slot)


def _values(item: Any) -> dict[str, dict[str, Any]]:
    """Arrays by attribute and the ending of the key."""
    if isinstance(item, (Variable, ShardedVariable)):
        return {VARIABLE: {"": stored(item)}}
    if hasattr(item, "_serialize_to_tensors"):
        tensors = item._serialize_to_tensors()
        return {escaped(name): {"": _array(tensor)} for name, tensor in tensors.items()}
    if hasattr(item, "_checkpoint_values"):
        arrays = item._checkpoint_values()
        return {item._checkpoint_attributes[0]: arrays} if arrays else {}
    return {}


def _array(tensor: Any) -> Any:
    return stored(tensor) if isinstance(tensor, Variable) else np.asarray(tensor)


def full_name(variable: Variable | ShardedVariable) -> str:
    """A variable's name without what follows a colon.

    Args:
      variable: the variable.
    """
    return variable.name.partition(":")[0]


def stored(variable: Variable | ShardedVariable) -> Any:
    """What a checkpoint keeps of a variable.

    Args:
      variable: the variable.

    Returns:
      Its array, which may lie in a file; `Parts` of one in shards.
    """
    if isinstance(variable, ShardedVariable):
        parts, first = [], 0
        for shard in variable.variables:
            value = stored(shard)
            whole = ((0, -1),) * (value.ndim - 1)
            parts.append((((first, len(value)), *whole), value))
            first += len(value)
        return Parts((first, *parts[0][1].shape[1:]), parts)
    value = variable._value
    if getattr(variable, "save_as_bf16", False) and value.dtype == np.float32:
        value = variable._current().astype(jnp.bfloat16)
    return value


def slots_of(value: Any) -> Iterator[tuple[Any, str, Any]]:
    """Variable, slot name and slot of each slot of an optimizer; nothing for other objects.

    Args:
      value: any object.
    """
    if hasattr(value, "get_slot") and hasattr(value, "_owners"):
        found = set()
        for key, slots in value._slots.items():
            for name, slot in slots.items():
                # The slots of a table's shards are a table too.
                variable, whole = (whole_variables([x])[0] for x in (value._owners[key], slot))
                if id(whole) not in found:
                    found.add(id(whole))
                    yield variable, name, whole
