"""`WrappingOptimizer`: an optimizer around another one, which keeps all that goes with variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.gradients.tape import GradientTape
from meshflow.core.variables.variable import Variable
from meshflow.keras import registry
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.state import VariableList

__all__ = ["Children", "WrappingOptimizer", "check_inner"]


def check_inner(optimizer: Any) -> None:
    """Checks that something can be wrapped.

    Args:
      optimizer: the optimizer.

    Raises:
      TypeError: when it is none.
    """
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(
            f'"inner_optimizer" must be an instance of `tf.keras.optimizers.Optimizer`, but got: {optimizer!r}.'
        )


class Children:
    """A node of a checkpoint without a value of its own."""

    def __init__(self, **children: Any) -> None:
        self._children = children

    def _checkpoint_children(self) -> dict[str, Any]:
        return self._children


class WrappingOptimizer(Optimizer):
    """Base class of optimizers around another: whatever is not said here is the inner optimizer's.

    Subclasses set `_optimizer` before anything else.
    """

    # Attributes of this object itself.
    _OWN: frozenset[str] = frozenset(("_optimizer",))
    # Settings of every optimizer; with the hyperparameters, what is read and set through this one.
    _SHARED = frozenset(
        (
            *("clipnorm", "clipvalue", "global_clipnorm", "gradient_aggregator"),
            *("gradient_transformers", "weight_decay", "use_ema", "ema_momentum"),
            *("ema_overwrite_frequency", "iterations", "learning_rate", "lr"),
            "gradient_accumulation_steps",
        )
    )

    def _is_inner(self, name: str) -> bool:
        """Whether an attribute is the inner optimizer's."""
        if name in self._OWN or "_optimizer" not in self.__dict__:
            return False
        hypers = getattr(self._optimizer, "_hyper", {})
        return name in self._SHARED or name in hypers or name.startswith("_")

    def __getattr__(self, name: str) -> Any:
        if self._is_inner(name):
            return getattr(self._optimizer, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        own_property = isinstance(getattr(type(self), name, None), property)
        if self._is_inner(name) and (name in self._SHARED or not own_property):
            setattr(self._optimizer, name, value)
        else:
            object.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *getattr(self._optimizer, "_hyper", {})})

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer inside."""
        return self._optimizer

    def _transform_loss(self, loss: Any) -> Any:
        return self._optimizer._transform_loss(loss)

    def _get_gradients(
        self, tape: GradientTape, loss: Any, var_list: Any, grad_loss: Any = None
    ) -> Any:
        return self._optimizer._get_gradients(tape, loss, var_list, grad_loss)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return self._optimizer._aggregate_gradients(grads_and_vars)

    # ---- what the inner optimizer does -----------------------------------------------------

    def build(self, var_list: Sequence[Variable]) -> None:
        """Makes the inner optimizer's slots.

        Args:
          var_list: the variables to be trained.
        """
        self._optimizer.build(var_list)

    def get_slot_names(self) -> list[str]:
        """Names of the inner optimizer's slots."""
        return self._optimizer.get_slot_names()

    def get_slot(self, var: Variable, slot_name: str) -> Variable:
        """A slot of the inner optimizer.

        Args:
          var: the trained variable.
          slot_name: the slot's name.
        """
        return self._optimizer.get_slot(var, slot_name)

    def add_slot(
        self, var: Variable, slot_name: str, initializer: Any = "zeros", shape: Any = None
    ) -> Variable:
        """Makes a slot of the inner optimizer; see `Optimizer.add_slot`."""
        return self._optimizer.add_slot(var, slot_name, initializer, shape)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Puts the moving averages into the variables.

        Args:
          var_list: the variables.
        """
        self._optimizer.finalize_variable_values(var_list)

    @property
    def name(self) -> str:
        """The inner optimizer's name."""
        return self._optimizer.name

    # Setting these goes to the inner optimizer, by `__setattr__`.
    @property  # type: ignore[misc]
    def iterations(self) -> Variable:
        """Number of steps, skipped ones included, an int64 variable."""
        return self._optimizer.iterations

    @property  # type: ignore[misc]
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self._optimizer.learning_rate

    lr = _learning_rate = learning_rate

    @property
    def weights(self) -> VariableList:
        """The inner optimizer's state. Checkpoints and saved models hold the scale too."""
        return VariableList(self._optimizer.weights)

    def _checkpoint_children(self) -> dict[str, Any]:
        # The inner optimizer's parts are also this one's, so that a checkpoint of either fits the other.
        return {**self._optimizer._checkpoint_children(), **self._own_children()}

    def _checkpoint_aliases(self) -> dict[str, Any]:
        return {**self._optimizer._checkpoint_aliases(), **self._own_children()}

    def _own_children(self) -> dict[str, Any]:
        """What checkpoints save of this object itself."""
        return {"base_optimizer": self._optimizer}

    @property
    def _slots_in_lists(self) -> bool:
        return self._optimizer._slots_in_lists

    @property
    def _slot_list_names(self) -> tuple[str, ...]:
        return self._optimizer._slot_list_names

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The optimizer with a configuration.

        Args:
          config: what `get_config` gave.
          custom_objects: further classes by name.
        """
        config = dict(config)
        inner = config.pop("inner_optimizer")
        if isinstance(inner, dict):
            inner = registry.OPTIMIZERS.deserialize(inner, custom_objects)
        return cls(inner, **config)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # What goes with variables is the inner optimizer's.
        self.__dict__.update(state)
