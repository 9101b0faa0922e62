"""What a checkpoint calls an optimizer's state.

Until TensorFlow 2.10, and in `optimizers.legacy`, the slots are told by variable and name, and the hyperparameters are
variables. Since 2.11, and in Keras 3, there is a list for each kind of slot, in the order of the
variables, and the step and the learning rate have an underscore. Either is read by either.
"""

from __future__ import annotations

from typing import Any

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.core.variables.variable import Variable

# The lists of the slots, by slot; an optimizer may say others by `_list_names`.
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
_NEW_NAMES = {"momentum_cache": "_u_product"}


def in_new_style(optimizer: Any) -> bool:
    """Whether an optimizer's state is written in lists: it is none of those that take variables at any time.

    Args:
      optimizer: the optimizer.
    """
    if optimizer._allow_new_variables:
        return False
    # A class of somebody's that updates variables as optimizers did until 2.10.
    hook = "_resource_apply_dense"
    owner = next((c for c in type(optimizer).__mro__ if hook in vars(c)), None)
    return owner is None or owner.__module__.startswith("meshflow.")


def own_weights(optimizer: Any) -> dict[str, Any]:
    """An optimizer's variables that are no slots, by name; the step is not among them."""
    slots = {id(s) for named in optimizer._slots.values() for s in named.values()}
    known = slots | {id(optimizer._iterations)}
    return {w._shared_name.rsplit("/", 1)[-1]: w for w in optimizer._weights if id(w) not in known}


def by_names(optimizer: Any) -> dict[str, Any]:
    """What an optimizer owns besides slots, as it was until 2.10.

    Args:
      optimizer: the optimizer.
    """
    own = own_weights(optimizer)
    hyper = optimizer._hyper_variables()
    return {**hyper, **own, **optimizer._tracked, "iter": optimizer.iterations}


def in_lists(optimizer: Any) -> dict[str, Any]:
    """What an optimizer owns, as it is since 2.11.

    Args:
      optimizer: the optimizer.
    """
    own = {_NEW_NAMES.get(name, name): w for name, w in own_weights(optimizer).items()}
    rate = optimizer._hyper_variables().get("learning_rate")
    if isinstance(rate, Variable):
        own["_learning_rate"] = rate
    lists = {name: found for name, found in slot_lists(optimizer).items() if found}
    return {"_iterations": optimizer.iterations, **own, **lists, **optimizer._tracked}


def slot_lists(optimizer: Any) -> dict[str, dict[str, Any]]:
    """The lists of an optimizer's slots: the slot of each variable by the variable's number, as text.

    Args:
      optimizer: the optimizer.

    Returns:
      By the lists' names; empty ones before the slots are made.
    """
    names = {**_LISTS, **optimizer._list_names}
    lists: dict[str, dict[str, Any]] = {
        names.get(slot, f"_{slot}s"): {} for slot in optimizer.get_slot_names()
    }
    keys = sorted(optimizer._index_dict, key=optimizer._index_dict.__getitem__)
    wholes = whole_variables(optimizer._owners[key] for key in keys)
    numbers = {id(variable): str(i) for i, variable in enumerate(wholes)}
    for key in keys:
        (owner,) = whole_variables([optimizer._owners[key]])
        for slot, variable in optimizer._slots.get(key, {}).items():
            (whole,) = whole_variables([variable])
            lists[names.get(slot, f"_{slot}s")][numbers[id(owner)]] = whole
    return lists
