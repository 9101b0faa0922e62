"""The state of an optimizer: the step number, slots of each trained variable, and own variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.identity import IdentityWeakDict
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.sharded_variable import ShardedVariable, kept_whole
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_creation import variable_creator_scope
from meshflow.distribute.strategy import get_strategy, has_strategy
from meshflow.keras import initializers
from meshflow.keras.optimizers.layouts import by_names, in_lists, in_new_style, slot_lists
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh


class VariableList(list):
    """A list that may be called: `optimizer.variables` and `optimizer.variables()` both work."""

    def __call__(self) -> VariableList:
        """The list itself."""
        return self


def _as_list(_: None, values: Any) -> Any:
    return list(values)


# For functions that JAX transforms it is a list.
jax.tree_util.register_pytree_node(VariableList, lambda held: (tuple(held), None), _as_list)

# The strategies in whose scopes optimizers were made, if these host variables; no part of what copies have.
_hosts = IdentityWeakDict()


class State:
    """Where an optimizer keeps its variables; a base class of `Optimizer`."""

    # Names of the slots that every trained variable gets.
    slot_names: tuple[str, ...] = ()
    # Names of the lists in which checkpoints keep slots, where they are not the usual ones.
    _list_names: dict[str, str] = {}
    _name: str
    _mesh: Mesh | None = None

    def _init_state(self) -> None:
        if has_strategy() and get_strategy().hosts_variables:
            _hosts[self] = get_strategy()
        self._iterations: Variable | None = None
        self._slots: dict[int, dict[str, Variable]] = {}
        # The variables themselves, so that their ids stay theirs.
        self._owners: dict[int, Variable] = {}
        self._weights: list[Variable] = []
        self._index_dict: dict[int, int] = {}
        # Called when variables have been made; a checkpoint restored early waits for them here.
        self._build_hooks: list[Any] = []
        self._tracked: dict[str, Any] = {}

    @contextmanager
    def _own_scope(self) -> Iterator[None]:
        """Variables made inside are hosted as those of the scope that the optimizer was made in."""
        host = _hosts.get(self)
        if host is None or has_strategy():
            yield
            return
        with variable_creator_scope(host._create_variable):
            yield

    def _run_build_hooks(self) -> None:
        hooks, self._build_hooks = self._build_hooks, []
        for hook in hooks:
            hook()

    def _checkpoint_children(self) -> dict[str, Any]:
        """What a checkpoint saves, by the names that TensorFlow gives it for an optimizer of this class."""
        return in_lists(self) if self._slots_in_lists else by_names(self)

    def _checkpoint_aliases(self) -> dict[str, Any]:
        """The same by the names that optimizers of other versions have."""
        return by_names(self) if self._slots_in_lists else in_lists(self)

    @property
    def _slots_in_lists(self) -> bool:
        return in_new_style(self)

    @property
    def _slot_list_names(self) -> tuple[str, ...]:
        return tuple(slot_lists(self))

    def _track_trackable(self, trackable: Any, name: str, overwrite: bool = False) -> Any:
        """Makes something a part of the optimizer's checkpoints, as TensorFlow's optimizers do."""
        if name in self._tracked and not overwrite and self._tracked[name] is not trackable:
            raise ValueError(
                f"Called Trackable._track_trackable() with name='{name}', but a Trackable with this name "
                "is already declared as a dependency. Pass overwrite=True to replace it."
            )
        self._tracked[name] = trackable
        return trackable

    def _hyper_variables(self) -> dict[str, Variable]:
        return {}

    @property
    def iterations(self) -> Variable:
        """Number of steps taken, an int64 variable."""
        if self._iterations is None:
            with init_scope(), self._own_scope():
                name = f"{self._name}/iter"
                self._iterations = Variable(np.int64(0), trainable=False, name=name)
            if self._mesh is not None:
                self._iterations._layout = Layout.replicated(self._mesh, 0)
            self._weights.insert(0, self._iterations)
        return self._iterations

    @iterations.setter
    def iterations(self, variable: Variable) -> None:
        if self._iterations is not None:
            raise RuntimeError(
                "Cannot set `iterations` to a new Variable after the Optimizer weights have been created."
            )
        self._iterations = variable
        self._weights.insert(0, variable)

    def _var_key(self, variable: Variable) -> int:
        """What `_index_dict` and the slots know a variable by."""
        return id(variable)

    def add_slot(
        self, var: Variable, slot_name: str, initializer: Any = "zeros", shape: Any = None
    ) -> Variable:
        """Makes (or finds) a variable that goes with a trained variable.

        Args:
          var: the trained variable.
          slot_name: the slot's name.
          initializer: an initializer, its name, a tensor or an array.
          shape: its shape; default that of `var`.

        Returns:
          The slot, of the trained variable's dtype.
        """
        slots = self._slots.setdefault(self._var_key(var), {})
        if slot_name not in slots:
            self._owners[self._var_key(var)] = var
            with init_scope(), self._own_scope(), kept_whole(), var._beside():
                sizes = var.shape if shape is None else shape
                slot = Variable(
                    jax.ShapeDtypeStruct(tuple(sizes), var.dtype.dtype)
                    if var.has_no_value
                    else _initial(initializer, sizes, var.dtype),
                    trainable=False,
                    name=f"{self._name}/{var._shared_name}/{slot_name}",
                    dtype=var.dtype,
                )
            if slot.shape == var.shape:
                # Some strategies split a slot further than its variable.
                slot._layout = getattr(var, "_slot_layout", None) or getattr(var, "_layout", None)
                store = getattr(var, "_slot_store", None)
                if store is not None:
                    slot._hold(store)
            slots[slot_name] = slot
            self._weights.append(slot)
            self._join_slots(var, slot_name)
        return slots[slot_name]

    def _join_slots(self, var: Variable, slot_name: str) -> None:
        """Makes one table of the slots of a table's shards, when all of them are there."""
        table = getattr(var, "_shard_of", None)
        if table is None:
            return
        known = [self._slots.get(self._var_key(v), {}).get(slot_name) for v in table.variables]
        made = [slot for slot in known if slot is not None]
        whole = len(made) == len(known)
        if whole and all(s.shape == v.shape for s, v in zip(made, table.variables, strict=True)):
            ShardedVariable(made, f"{self._name}/{table.name}/{slot_name}")

    def get_slot(self, var: Variable, slot_name: str) -> Variable:
        """A slot made before.

        Args:
          var: the trained variable.
          slot_name: the slot's name.

        Raises:
          KeyError: when there is none.
        """
        try:
            return self._slots[self._var_key(var)][slot_name]
        except KeyError:
            raise KeyError(
                f"Optimizer {self._name} has no slot {slot_name!r} for variable {var.name}; slots "
                "are made by the first `apply_gradients` or by `build(variables)`."
            ) from None

    def get_slot_names(self) -> list[str]:
        """Names of the slots made so far; before that, of those that will be made."""
        found = {name: None for slots in self._slots.values() for name in slots}
        return list(found) or list(self.slot_names)

    def add_weight(
        self,
        name: Any = None,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = "zeros",
        trainable: bool | None = None,
        **kwargs: Any,
    ) -> Variable:
        """Makes a variable of the optimizer's own.

        Args:
          name: its name; a shape here is taken for one (Keras 3's order).
          shape: its shape; default a scalar.
          dtype: its dtype; default float32.
          initializer: an initializer or its name.
          trainable: ignored; optimizer state is never trained.
          **kwargs: `synchronization` and `aggregation`, accepted and ignored.
        """
        del trainable, kwargs
        if name is not None and not isinstance(name, str):
            name, shape = shape if isinstance(shape, str) else None, name
        with init_scope(), self._own_scope():
            made = Variable(
                _initial(initializer, () if shape is None else shape, dtype or "float32"),
                trainable=False,
                name=f"{self._name}/{name or 'Variable'}",
            )
        self._weights.append(made)
        return made

    def add_variable(
        self, shape: Any, dtype: Any = None, initializer: Any = "zeros", name: str | None = None
    ) -> Variable:
        """Makes a variable of the optimizer's own; arguments as in `add_weight`."""
        return self.add_weight(name or "Variable", shape, dtype, initializer)

    def add_variable_from_reference(
        self,
        model_variable: Variable,
        variable_name: str | None = None,
        shape: Any = None,
        initial_value: Any = None,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> Variable:
        """Makes a variable like a model's, as `add_slot` does.

        Args:
          model_variable: the trained variable.
          variable_name: the slot's name.
          shape: its shape; default that of the trained variable.
          initial_value: start value; default zeros.
          name: Keras 3's word for `variable_name`.
          initializer: used without `initial_value`.
        """
        start = initializer if initial_value is None else initial_value
        return self.add_slot(model_variable, variable_name or name or "slot", start, shape)

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        # A slot of all variables, then the next: the order of Keras 2's weight lists and files.
        for name in self.slot_names:
            for var in var_list:
                self.add_slot(var, name, self._slot_initializer(name))

    def _slot_initializer(self, name: str) -> Any:
        return "zeros"

    @property
    def weights(self) -> VariableList:
        """The state: the step number, then slots in the order they were made."""
        return VariableList(self._weights)

    @property
    def variables(self) -> VariableList:
        """The state; may be called as well."""
        return VariableList(self.weights)

    def get_weights(self) -> list[np.ndarray]:
        """Values of the state."""
        return [np.asarray(w.numpy()) for w in self.weights]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the state.

        Args:
          weights: arrays in the order of `weights`.

        Raises:
          ValueError: when number or shapes differ.
        """
        own = self.weights
        if not own and len(weights):
            raise ValueError(
                f"You are calling `set_weights` on optimizer {self._name}, which has not been built. Call "
                "`optimizer.build(variables)` or `optimizer.apply_gradients` first."
            )
        if len(own) != len(weights):
            raise ValueError(
                f"You called `set_weights(weights)` on optimizer {self._name} with a weight list of length {len(weights)}, but the optimizer was expecting {len(own)} weights."
            )
        for variable, value in zip(own, weights, strict=True):
            if tuple(np.shape(value)) != tuple(variable.shape):
                raise ValueError(
                    f"Optimizer weight shape {tuple(variable.shape)} not compatible with provided weight shape {tuple(np.shape(value))} ({variable.name})."
                )
        for variable, value in zip(own, weights, strict=True):
            variable.assign(np.asarray(value).astype(variable.dtype.dtype))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In a copy, and in what is read from a pickle, the variables have other ids.
        self.__dict__.update(state)
        keys = {key: self._var_key(var) for key, var in state["_owners"].items()}
        for name in ("_slots", "_owners", "_index_dict"):
            self.__dict__[name] = {keys[key]: value for key, value in state[name].items()}


def _initial(initializer: Any, shape: Any, dtype: Any) -> Any:
    if isinstance(initializer, Variable):
        return np.array(initializer._value)
    if isinstance(initializer, str) or (
        callable(initializer) and not hasattr(initializer, "numpy")
    ):
        return initializers.get(initializer)(tuple(shape), dtype=dtype)
    return initializer
