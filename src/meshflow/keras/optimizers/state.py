"""State of an optimizer: the step count, the slots of each trained variable, and its own variables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from meshflow.core.dispatch.symbolic_calls import run_outside_of_graphs
from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.sharded_variable import ShardedVariable, unsharded_scope
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.core.variables.variable_creation import variable_creator_scope
from meshflow.distribute.parallel.stage_buffers import StageBuffer, get_storage
from meshflow.distribute.strategy import get_strategy, has_strategy
from meshflow.keras import initializers
from meshflow.keras.optimizers.checkpoint_children import (
    ACCUMULATOR,
    get_list_children,
    get_named_children,
    get_slot_lists,
    get_slot_positions,
    get_variable_name,
    has_slot_lists,
)
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh

_log = logging.getLogger("meshflow")
_T = TypeVar("_T")
# Pairs of a gradient (a tensor, `IndexedSlices` or None) and its variable.
GradientPairs: TypeAlias = list[tuple[Any, Variable]]
Initializer: TypeAlias = str | Callable[..., TensorLike]


class VariableList(list):
    """List that can be called: `optimizer.variables` and `optimizer.variables()` are equal."""

    def __call__(self) -> VariableList:
        """Return the list itself."""
        return self


def _as_list(_: None, values: Iterable[Any]) -> Any:
    return list(values)


# JAX transformations see a plain list.
jax.tree_util.register_pytree_node(VariableList, lambda held: (tuple(held), None), _as_list)

# Strategies that host variables, by the optimizers created in their scopes. Copies of an optimizer
# do not inherit the strategy.
_host_strategies = IdentityWeakDict()


class OptimizerState:
    """Variables of an optimizer; a base class of `Optimizer`."""

    # Names of the slots that every trained variable gets.
    slot_names: tuple[str, ...] = ()
    # Names of the slot lists in checkpoints, where they differ from the default ones.
    _list_names: dict[str, str] = {}
    # Names of the slots in the names of their variables, where they differ from the default ones.
    _variable_names: dict[str, str] = {}
    # Slots that `weights` contains one after another, instead of interleaved by variable, since 2.11.
    _separate_slots: tuple[str, ...] = ()
    _name: str
    _is_keras_2: bool
    _mesh: Mesh | None = None

    def _init_state(self) -> None:
        if has_strategy() and get_strategy().hosts_variables:
            _host_strategies[self] = get_strategy()
        self._iterations: Variable | None = None
        self._slots: dict[int, dict[str, Variable]] = {}
        # References to the trained variables keep their ids from being reused.
        self._owners: dict[int, Variable] = {}
        self._weights: list[Variable] = []
        self._index_dict: dict[int, int] = {}
        # Hooks that run after variables were created. A checkpoint restored early waits here for
        # them.
        self._build_hooks: list[Callable[[], None]] = []
        self._tracked: dict[str, Any] = {}

    @contextmanager
    def _hosting_scope(self) -> Iterator[None]:
        """Create variables under the strategy of the optimizer's creation."""
        host = _host_strategies.get(self)
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
        """Return the objects that checkpoints save, with TensorFlow's names for this class."""
        return get_list_children(self) if self._slots_in_lists else get_named_children(self)

    def _checkpoint_aliases(self) -> dict[str, Any]:
        """Return the objects that checkpoints save, with the names of other versions."""
        return get_named_children(self) if self._slots_in_lists else get_list_children(self)

    @property
    def _slots_in_lists(self) -> bool:
        return has_slot_lists(self)

    @property
    def _slot_list_names(self) -> tuple[str, ...]:
        return tuple(get_slot_lists(self))

    def _track_trackable(self, trackable: _T, name: str, overwrite: bool = False) -> _T:
        """Add an object to the optimizer's checkpoints, as TensorFlow's optimizers do."""
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
        """Return the number of steps taken, an int64 variable."""
        if self._iterations is None:
            with init_scope(), self._hosting_scope():
                name = "iteration" if self._slots_in_lists else f"{self._name}/iter"
                self._iterations = Variable(np.int64(0), trainable=False, name=name)
            self._iterations._counts_steps = True
            if self._mesh is not None:
                self._iterations.layout = Layout.replicated(self._mesh, 0)
            self._weights.insert(0, self._iterations)
        return self._iterations

    @iterations.setter
    def iterations(self, variable: Variable) -> None:
        if variable is self._iterations:
            return
        if self._iterations is not None:
            raise RuntimeError(
                "Cannot set `iterations` to a new Variable after the Optimizer weights have been created."
            )
        self._iterations = variable
        variable._counts_steps = True
        self._weights.insert(0, variable)

    def _var_key(self, variable: Variable) -> int:
        """Return the key of a variable in `_index_dict` and in the slots."""
        return id(variable)

    def add_slot(
        self, var: Variable, slot_name: str, initializer: TensorLike = "zeros", shape: Any = None
    ) -> Variable:
        """Return a slot of a trained variable; create it if it does not exist.

        Args:
          var: The trained variable.
          slot_name: Name of the slot.
          initializer: An initializer, its name, a tensor or an array.
          shape: Shape of the slot; default the shape of `var`.

        Returns:
          The slot, of the dtype of `var`.
        """
        if isinstance(var, StageBuffer):
            return self.get_slot(var, slot_name)
        slots = self._slots.setdefault(self._var_key(var), {})
        if slot_name not in slots:
            self._owners[self._var_key(var)] = var
            with init_scope(), self._hosting_scope(), unsharded_scope(), var._colocation_scope():
                sizes = tuple(var.shape if shape is None else shape)
                slot = Variable(
                    jax.ShapeDtypeStruct(sizes, var.dtype.dtype)
                    if var.has_no_value
                    else _make_initial_value(initializer, sizes, var.dtype),
                    trainable=False,
                    name=self._name_slot(get_full_name(var), slot_name),
                    dtype=var.dtype,
                )
            if slot.shape == var.shape:
                # Some strategies shard a slot over more devices than its variable.
                slot.layout = getattr(var, "_slot_layout", None) or var.layout
                store = getattr(var, "_slot_store", None)
                if store is not None:
                    slot._move_to_file(store)
            slots[slot_name] = slot
            self._weights.append(slot)
            self._combine_shard_slots(var, slot_name)
        return slots[slot_name]

    def _name_slot(self, variable_name: str, slot_name: str) -> str:
        if not self._slots_in_lists:
            return f"{self._name}/{variable_name}/{slot_name}"
        return f"{get_variable_name(self, slot_name)}/{variable_name}"

    def _combine_shard_slots(self, var: Variable, slot_name: str) -> None:
        """Combine the slots of a table's shards into one sharded variable, when all of them exist."""
        table = getattr(var, "_shard_of", None)
        if table is None:
            return
        shard_slots = [
            self._slots.get(self._var_key(v), {}).get(slot_name) for v in table.variables
        ]
        slots = [slot for slot in shard_slots if slot is not None]
        is_complete = len(slots) == len(shard_slots)
        if is_complete and all(
            s.shape == v.shape for s, v in zip(slots, table.variables, strict=True)
        ):
            ShardedVariable(slots, self._name_slot(table.name, slot_name))

    def get_slot(self, var: Variable, slot_name: str) -> Variable:
        """Return an existing slot.

        Args:
          var: The trained variable.
          slot_name: Name of the slot.

        Raises:
          KeyError: If the slot does not exist.
        """
        if isinstance(var, StageBuffer):
            return get_storage(self.get_slot(var.members[0], slot_name))
        try:
            return self._slots[self._var_key(var)][slot_name]
        except KeyError:
            raise KeyError(
                f"Optimizer {self._name} has no slot {slot_name!r} for variable {var.name}. The first "
                "`apply_gradients`, or `build(variables)`, creates the slots."
            ) from None

    def place_slots(self, buffer: StageBuffer) -> None:
        """Move the slots of the weights in a buffer into buffers.

        Args:
          buffer: The buffer.
        """
        # A one is a valid value of all slots, also of those that a rule divides by. Sums of
        # gradients are zero, so that they do not change a norm.
        slots = [self._slots.get(self._var_key(v), {}) for v in buffer.members]
        buffer.combine_named_slots(slots, {ACCUMULATOR: 0.0})

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots; before they exist, the names of the slots to be created."""
        names = {name: None for slots in self._slots.values() for name in slots}
        return list(names) or list(self.slot_names)

    def add_weight(
        self,
        name: str | Iterable[int] | None = None,
        shape: Any = None,
        dtype: DTypeLike | None = None,
        initializer: Initializer = "zeros",
        trainable: bool | None = None,
        **kwargs: Any,
    ) -> Variable:
        """Create a variable of the optimizer that belongs to no trained variable.

        Args:
          name: Name of the variable. A shape is accepted here, too (the argument order of Keras 3).
          shape: Shape; default a scalar.
          dtype: Dtype; default float32.
          initializer: An initializer or its name.
          trainable: Ignored, since optimizer state is never trained.
          **kwargs: `synchronization` and `aggregation`, accepted and ignored.
        """
        del trainable, kwargs
        if name is not None and not isinstance(name, str):
            name, shape = shape if isinstance(shape, str) else None, name
        name = name or "Variable"
        with init_scope(), self._hosting_scope():
            variable = Variable(
                _make_initial_value(
                    initializer, () if shape is None else shape, dtype or "float32"
                ),
                trainable=False,
                name=name if self._slots_in_lists else f"{self._name}/{name}",
            )
        self._weights.append(variable)
        return variable

    def add_variable(
        self,
        shape: Iterable[int],
        dtype: DTypeLike | None = None,
        initializer: Initializer = "zeros",
        name: str | None = None,
    ) -> Variable:
        """Create a variable as `add_weight` does, with another order of arguments."""
        return self.add_weight(name or "Variable", shape, dtype, initializer)

    def add_variable_from_reference(
        self,
        model_variable: Variable,
        variable_name: str | None = None,
        shape: Iterable[int] | None = None,
        initial_value: TensorLike | None = None,
        name: str | None = None,
        initializer: Initializer = "zeros",
    ) -> Variable:
        """Create a slot of a model's variable, as `add_slot` does.

        Args:
          model_variable: The trained variable.
          variable_name: Name of the slot.
          shape: Shape; default the shape of the trained variable.
          initial_value: Initial value; default zeros.
          name: Keras 3's name of `variable_name`.
          initializer: Initializer that is used without `initial_value`.
        """
        start = initializer if initial_value is None else initial_value
        return self.add_slot(model_variable, variable_name or name or "slot", start, shape)

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        # The slots are ordered by name, then by variable: the order in Keras 2's weight lists and
        # files.
        for name in self.slot_names:
            for var in var_list:
                self.add_slot(var, name, self._slot_initializer(name))

    def _slot_initializer(self, name: str) -> Initializer:
        return "zeros"

    @contextmanager
    def slots_scope(
        self, trained: Sequence[Variable], frozen: Sequence[Variable]
    ) -> Iterator[None]:
        """Limit the state to the slots of a model's variables, in the order of the arguments.

        Args:
          trained: The variables that the model trains. They get slots if others have them.
          frozen: Other variables of the model.
        """
        if self._slots:
            self.build(trained)
        all_keys = [self._var_key(v) for v in [*trained, *frozen]] if self._index_dict else []
        keys = list(dict.fromkeys(key for key in all_keys if key in self._index_dict))
        if not keys or keys == list(self._index_dict):
            yield
            return
        slots = {key: self._slots[key] for key in keys if key in self._slots}
        ordered = [
            named[name]
            for name in self.get_slot_names()
            for named in slots.values()
            if name in named
        ]
        slot_ids = {id(slot) for named in self._slots.values() for slot in named.values()}
        own = [w for w in self._weights if id(w) not in slot_ids]
        saved = self._index_dict, self._slots, self._weights
        self._index_dict = {key: index for index, key in enumerate(keys)}
        self._slots, self._weights = slots, [*own, *ordered]
        try:
            yield
        finally:
            self._index_dict, self._slots, self._weights = saved

    def build(self, var_list: Sequence[Variable]) -> None:
        """Create the slots of variables."""

    @property
    def weights(self) -> VariableList:
        """Return the state: the step count, then the slots.

        The slots of optimizers since 2.11 are ordered by variable, those of `legacy` by name.
        """
        if not self._slots_in_lists:
            return VariableList(self._weights)
        positions = {id(self.iterations): (-1, 0, 0), **get_slot_positions(self)}
        last = (len(self._separate_slots) + 2, 0, 0)
        return VariableList(sorted(self._weights, key=lambda w: positions.get(id(w), last)))

    @property
    def variables(self) -> VariableList:
        """Return the state, as a list that can also be called."""
        return VariableList(self.weights)

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of the state."""
        return [np.asarray(w.numpy()) for w in self.weights]

    @run_outside_of_graphs
    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of the state.

        Args:
          weights: Arrays in the order of the property `weights`.

        Raises:
          ValueError: If the optimizer is not built, or the number of arrays or a shape differs.
        """
        if len(weights) and not self._index_dict and not self._is_keras_2:
            raise ValueError(
                f"You are calling `set_weights` on optimizer {self._name}, which has not been built. Call "
                "`optimizer.build(variables)` or `optimizer.apply_gradients` first."
            )
        self._assign_weights(weights)

    def _assign_weights(self, weights: Sequence[Any]) -> None:
        own = self.weights
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

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Write the values of the state to a dictionary.

        Args:
          store: Arrays by name; the names are indices in `variables`.
        """
        store.update({str(i): value for i, value in enumerate(self.get_weights())})

    def load_own_variables(self, store: Mapping[str, np.ndarray]) -> None:
        """Read the values that `save_own_variables` wrote; if their number differs, log a warning instead.

        Args:
          store: Arrays by name.
        """
        count = len(self.weights)
        if len(store) == count:
            self._assign_weights([store[str(i)] for i in range(count)])
            return
        _log.warning(
            "Skipping variable loading for optimizer %r, because it has %d variables whereas the saved optimizer has %d. "
            "Build the optimizer for the same variables first.",
            self._name,
            count,
            len(store),
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The variables of a copied or unpickled optimizer have other ids.
        self.__dict__.update(state)
        keys = {key: self._var_key(var) for key, var in state["_owners"].items()}
        for name in ("_slots", "_owners", "_index_dict"):
            self.__dict__[name] = {keys[key]: value for key, value in state[name].items()}


def _make_initial_value(initializer: Any, shape: Iterable[int], dtype: DTypeLike) -> TensorLike:
    if isinstance(initializer, Variable):
        return np.array(initializer._value)
    if isinstance(initializer, str) or (
        callable(initializer) and not hasattr(initializer, "numpy")
    ):
        return initializers.get(initializer)(tuple(shape), dtype=dtype)
    return initializer
