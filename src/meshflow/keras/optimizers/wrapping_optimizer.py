"""`WrappingOptimizer`: an optimizer around another one, which owns all state of the variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from meshflow.core.gradients.tape import GradientTape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import UpdateGroup
from meshflow.distribute.parallel.stage_buffers import StageBuffer
from meshflow.environment.types import PyTree
from meshflow.keras import registry
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.schedules import LearningRateSchedule
from meshflow.keras.optimizers.state import GradientPairs, VariableList


def check_inner_optimizer(optimizer: object) -> None:
    """Check that an object can be wrapped.

    Args:
      optimizer: The object.

    Raises:
      TypeError: If it is no optimizer.
    """
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(
            f'"inner_optimizer" must be an instance of `tf.keras.optimizers.Optimizer`, but got: {optimizer!r}.'
        )


class CheckpointNode:
    """Node of a checkpoint that has children but no value."""

    def __init__(self, **children: Any) -> None:
        self._children = children

    def _checkpoint_children(self) -> dict[str, Any]:
        return self._children


class WrappingOptimizer(Optimizer):
    """Base class of optimizers around another one, to which they delegate by default.

    Subclasses must set `_optimizer` before any other attribute.
    """

    # Attributes of the wrapper; all others belong to the inner optimizer.
    _OWN_ATTRIBUTES: frozenset[str] = frozenset(("_optimizer",))
    # Settings of every optimizer. They and the hyperparameters are read and set through the
    # wrapper.
    _SHARED_ATTRIBUTES = frozenset(
        (
            *("clipnorm", "clipvalue", "global_clipnorm", "gradient_aggregator"),
            *("gradient_transformers", "weight_decay", "use_ema", "ema_momentum"),
            *("ema_overwrite_frequency", "iterations", "learning_rate", "lr"),
            "gradient_accumulation_steps",
        )
    )

    def _is_inner(self, name: str) -> bool:
        """Check whether an attribute belongs to the inner optimizer."""
        if name in self._OWN_ATTRIBUTES or "_optimizer" not in self.__dict__:
            return False
        hypers = getattr(self._optimizer, "_hyper", {})
        return name in self._SHARED_ATTRIBUTES or name in hypers or name.startswith("_")

    def __getattr__(self, name: str) -> Any:
        if self._is_inner(name):
            return getattr(self._optimizer, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        is_property = isinstance(getattr(type(self), name, None), property)
        if self._is_inner(name) and (name in self._SHARED_ATTRIBUTES or not is_property):
            setattr(self._optimizer, name, value)
        else:
            object.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *getattr(self._optimizer, "_hyper", {})})

    @property
    def inner_optimizer(self) -> Optimizer:
        """Return the wrapped optimizer."""
        return self._optimizer

    def _transform_loss(self, loss: Tensor) -> Tensor:
        return self._optimizer._transform_loss(loss)

    def _get_gradients(
        self, tape: GradientTape, loss: Tensor, var_list: PyTree, grad_loss: TensorLike = None
    ) -> list[Any]:
        return self._optimizer._get_gradients(tape, loss, var_list, grad_loss)

    def _aggregate_gradients(self, grads_and_vars: GradientPairs) -> GradientPairs:
        return self._optimizer._aggregate_gradients(grads_and_vars)

    # ---- delegation to the inner optimizer --------------------------------------------------

    def build(self, var_list: Sequence[Variable]) -> None:
        """Create the inner optimizer's slots.

        Args:
          var_list: All variables to be trained.
        """
        self._optimizer.build(var_list)

    def get_update_group(self, var: Variable) -> UpdateGroup:
        """Return the inner optimizer's key of the variables that are updated together.

        Args:
          var: A trained variable.
        """
        return self._optimizer.get_update_group(var)

    def place_slots(self, buffer: StageBuffer) -> None:
        """Move the inner optimizer's slots of the weights in a buffer into buffers.

        Args:
          buffer: The buffer.
        """
        self._optimizer.place_slots(buffer)

    def get_slot_names(self) -> list[str]:
        """Return the names of the inner optimizer's slots."""
        return self._optimizer.get_slot_names()

    def get_slot(self, var: Variable, slot_name: str) -> Variable:
        """Return a slot of the inner optimizer.

        Args:
          var: The trained variable.
          slot_name: Name of the slot.
        """
        return self._optimizer.get_slot(var, slot_name)

    def add_slot(
        self, var: Variable, slot_name: str, initializer: TensorLike = "zeros", shape: Any = None
    ) -> Variable:
        """Create a slot of the inner optimizer; see `Optimizer.add_slot`."""
        return self._optimizer.add_slot(var, slot_name, initializer, shape)

    def finalize_variable_values(self, var_list: Iterable[Variable]) -> None:
        """Replace the values of variables by their moving averages.

        Args:
          var_list: The variables.
        """
        self._optimizer.finalize_variable_values(var_list)

    @property
    def name(self) -> str:
        """Return the inner optimizer's name."""
        return self._optimizer.name

    # `__setattr__` sets these properties on the inner optimizer.
    @property  # type: ignore[misc]
    def iterations(self) -> Variable:
        """Return the number of steps, including skipped ones, an int64 variable."""
        return self._optimizer.iterations

    @property  # type: ignore[misc]
    def learning_rate(self) -> Variable:
        """Return the inner optimizer's learning rate."""
        return self._optimizer.learning_rate

    lr = learning_rate

    @property  # type: ignore[misc]
    def _learning_rate(self) -> Variable | LearningRateSchedule:
        return self._optimizer._learning_rate

    @property
    def weights(self) -> VariableList:
        """Return the inner optimizer's state, to which checkpoints add the loss scale."""
        return VariableList(self._optimizer.weights)

    def _checkpoint_children(self) -> dict[str, Any]:
        # The inner optimizer's children are also the wrapper's, so that either can restore a
        # checkpoint of the other.
        return {**self._optimizer._checkpoint_children(), **self._own_children()}

    def _checkpoint_aliases(self) -> dict[str, Any]:
        return {**self._optimizer._checkpoint_aliases(), **self._own_children()}

    def _own_children(self) -> dict[str, Any]:
        """Return the objects of the wrapper that checkpoints save."""
        return {"base_optimizer": self._optimizer}

    @property
    def _slots_in_lists(self) -> bool:
        return self._optimizer._slots_in_lists

    @property
    def _slot_list_names(self) -> tuple[str, ...]:
        return self._optimizer._slot_list_names

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Create an optimizer from its configuration.

        Args:
          config: The result of `get_config`.
          custom_objects: Further classes by name.
        """
        config = dict(config)
        inner = config.pop("inner_optimizer")
        if isinstance(inner, dict):
            inner = registry.OPTIMIZERS.deserialize(inner, custom_objects)
        return cls(inner, **config)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The variables' keys belong to the inner optimizer, so `Optimizer.__setstate__` does not
        # apply.
        self.__dict__.update(state)
