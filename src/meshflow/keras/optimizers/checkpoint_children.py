"""Names of an optimizer's state in checkpoints.

Until TensorFlow 2.10, and in `optimizers.legacy`, a slot is identified by its variable and its
name, and the hyperparameters are variables. Since 2.11, and in Keras 3, there is one list for each
slot name, in the order of the variables, and the names of the step count and the learning rate
start with an underscore. Optimizers of either style read the checkpoints of the other.
"""

from __future__ import annotations

from typing import Any

from meshflow.core.variables.sharded_variable import merge_shards
from meshflow.core.variables.variable import Variable, get_full_name

# Names of the slot lists, by slot name; an optimizer overrides them with `_list_names`.
_LISTS = {
    "accum_grad": "_accumulated_grads",
    "accum_var": "_accumulated_delta_vars",
    "accumulator": "_accumulators",
    "average": "_model_variables_moving_average",
    "c": "_c",
    "gradient_accumulator": "_accumulated_gradients",
    "linear": "_linears",
    "m": "_momentums",
    "mg": "_average_gradients",
    "momentum": "momentums",
    "r": "_r",
    "rms": "_velocities",
    "v": "_velocities",
    "vhat": "_velocity_hats",
}
_LIST_NAMES = frozenset(_LISTS.values())
# Slot of gradients that are accumulated over several steps.
ACCUMULATOR = "gradient_accumulator"
# Slots that optimizers of every class may have. They precede the others in `weights`.
_LEADING_SLOTS = ("average", ACCUMULATOR)
# Names of slots in the names of their variables since 2.11, if they differ.
_VARIABLE_NAMES = {
    "accum_grad": "accumulated_grad",
    "accum_var": "accumulated_delta_var",
    "mg": "average_gradient",
    "rms": "velocity",
}
_LIST_STYLE_NAMES = {"momentum_cache": "_u_product"}


def has_slot_lists(optimizer: Any) -> bool:
    """Check whether checkpoints contain an optimizer's slots as lists, the style since 2.11."""
    return not optimizer._is_keras_2 and not _defines_old_hook(type(optimizer))


def _defines_old_hook(cls: type) -> bool:
    """Check whether a user's class updates variables with the hook of optimizers until 2.10."""
    hook = "_resource_apply_dense"
    owner = next((c for c in cls.__mro__ if hook in vars(c)), None)
    return owner is not None and not owner.__module__.startswith("meshflow.")


def get_own_weights(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's variables by name, except slots and the step count."""
    slots = {id(s) for named in optimizer._slots.values() for s in named.values()}
    excluded = slots | {id(optimizer._iterations)}
    return {
        get_full_name(w).rsplit("/", 1)[-1]: w for w in optimizer._weights if id(w) not in excluded
    }


def get_named_children(optimizer: Any) -> dict[str, Any]:
    """Return the objects that a checkpoint saves in addition to slots, as until 2.10."""
    own = get_own_weights(optimizer)
    hyper = optimizer._hyper_variables()
    return {**hyper, **own, **optimizer._tracked, "iter": optimizer.iterations}


def get_list_children(optimizer: Any) -> dict[str, Any]:
    """Return the objects that a checkpoint saves, with the names since 2.11."""
    own = {_LIST_STYLE_NAMES.get(name, name): w for name, w in get_own_weights(optimizer).items()}
    rate = optimizer._hyper_variables().get("learning_rate")
    if isinstance(rate, Variable):
        own["_learning_rate"] = rate
    lists = {name: slots for name, slots in get_slot_lists(optimizer).items() if slots}
    return {"_iterations": optimizer.iterations, **own, **lists, **optimizer._tracked}


def get_list_name(optimizer: Any, slot: str) -> str:
    """Return the name of the list of a slot."""
    return {**_LISTS, **optimizer._list_names}.get(slot, f"_{slot}s")


def get_variable_name(optimizer: Any, slot: str) -> str:
    """Return the name of a slot in the names of its variables since 2.11."""
    return {**_VARIABLE_NAMES, **optimizer._variable_names}.get(slot, slot)


def list_interleaved_slots(optimizer: Any) -> list[str]:
    """Return the slots that are ordered by variable, then by slot, in `weights` since 2.11."""
    return [name for name in optimizer.slot_names if name not in optimizer._separate_slots]


def get_slot_positions(optimizer: Any) -> dict[int, tuple[int, int, int]]:
    """Return the sort keys of an optimizer's slots in `weights` since 2.11, by the id of the slot.

    Slots of other names, which only classes of users and some strategies have, follow these slots.
    """
    groups = [_LEADING_SLOTS, list_interleaved_slots(optimizer)]
    groups += [(name,) for name in optimizer._separate_slots]
    places = {name: (i, j) for i, group in enumerate(groups) for j, name in enumerate(group)}
    return {
        id(slot): (places[name][0], index, places[name][1])
        for key, index in optimizer._index_dict.items()
        for name, slot in optimizer._slots.get(key, {}).items()
        if name in places
    }


class SlotList(list[Variable]):
    """The slots of a name in the order of the variables, as optimizers have them since 2.11."""

    @property
    def _storage(self) -> SlotList:
        return self


def find_slot_list(optimizer: Any, name: str) -> SlotList | None:
    """Return the slots that an attribute since 2.11, such as `_momentums`, contains; None for other names."""
    if name not in _LIST_NAMES and name not in optimizer._list_names.values():
        return None
    if not optimizer.__dict__.get("_slots") or not has_slot_lists(optimizer):
        return None
    slots = get_slot_lists(optimizer).get(name)
    return None if slots is None else SlotList(slots.values())


def get_slot_lists(optimizer: Any) -> dict[str, dict[str, Any]]:
    """Return the slot lists of an optimizer by name; they are empty before the slots exist.

    Each list is a dictionary from the variable's index, as a string, to its slot.
    """
    lists: dict[str, dict[str, Any]] = {
        get_list_name(optimizer, slot): {} for slot in optimizer.get_slot_names()
    }
    order, owner_by_key = optimizer._index_dict, optimizer._owners
    keys = sorted(order, key=order.__getitem__)
    owners = merge_shards(owner_by_key[key] for key in keys)
    indices = {id(variable): str(i) for i, variable in enumerate(owners)}
    for key in keys:
        (owner,) = merge_shards([owner_by_key[key]])
        for slot, variable in optimizer._slots.get(key, {}).items():
            (slot_variable,) = merge_shards([variable])
            lists[get_list_name(optimizer, slot)][indices[id(owner)]] = slot_variable
    return lists
