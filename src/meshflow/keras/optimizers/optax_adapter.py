"""Any optax gradient transformation as a Keras optimizer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment import extras
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.hooks import densified

__all__ = ["OptaxOptimizer"]


class OptaxOptimizer(Optimizer):
    """Applies an optax transformation; its state is kept in variables.

    The learning rate is inside the transformation, so `learning_rate` here has no effect.

    Args:
      transformation: an optax `GradientTransformation`.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`, such as clipping.

    Example:
      >>> import meshflow as tf, optax
      >>> v = tf.Variable(1.0)
      >>> opt = tf.keras.optimizers.get(optax.sgd(0.5))
      >>> _ = opt.apply_gradients([(tf.constant(1.0), v)])
      >>> float(v)
      0.5
    """

    def __init__(self, transformation: Any, name: str = "optax", **kwargs: Any) -> None:
        if kwargs.get("weight_decay") is not None or kwargs.get("use_ema"):
            raise ValueError(
                "OptaxOptimizer: put weight decay and moving averages into the transformation "
                "(optax.add_decayed_weights, optax.ema)."
            )
        super().__init__(name, **kwargs)
        self.transformation = transformation
        self._state: list[Variable] | None = None
        self._tree: Any = None
        self._op = Op("optax_update", self._update)

    def build(self, var_list: Any) -> None:
        """Makes the transformation's state for variables.

        Args:
          var_list: all variables to be trained; the transformation sees them together.

        Raises:
          ValueError: when it was built for other variables before.
        """
        _ = self.iterations
        if self._state is None:
            with init_scope():
                values = [jax.numpy.asarray(v._value) for v in var_list]
                leaves, self._tree = jax.tree.flatten(self.transformation.init(values))
                self._state = [
                    Variable(np.asarray(x), trainable=False, name=f"{self._name}/state_{i}")
                    for i, x in enumerate(leaves)
                ]
            self._weights.extend(self._state)
            self._owners = {self._var_key(v): v for v in var_list}
            self._index_dict = {key: i for i, key in enumerate(self._owners)}
            self._run_build_hooks()
        elif [self._var_key(v) for v in var_list] != list(self._index_dict):
            raise ValueError(
                f"The optimizer {self._name} was built for other variables than {[v.name for v in var_list]}: an optax "
                "transformation updates all of them together. Create a new optimizer."
            )

    def _update(self, operands: Any, _: Any) -> Any:
        optax = extras.load("optax", "optax", "OptaxOptimizer needs optax")
        values, gradients, leaves = operands
        state = jax.tree.unflatten(self._tree, leaves)
        updates, state = self.transformation.update(gradients, state, values)
        return [*optax.apply_updates(values, updates), *jax.tree.leaves(state)]

    def _apply(self, pairs: Any) -> None:
        variables = [v for _, v in pairs]
        gradients = [
            densified(g, v) if isinstance(g, IndexedSlices) else convert_to_tensor(g)
            for g, v in pairs
        ]
        state: list[Variable] = self._state  # type: ignore[assignment]
        outputs = apply(
            self._op,
            ([v.value() for v in variables], gradients, [s.value() for s in state]),
        )
        for variable, value in zip([*variables, *state], outputs, strict=True):
            variable._train(value)
        for variable in variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable.value()))

    def get_config(self) -> dict[str, Any]:
        """Not available: an optax transformation has no configuration.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError(
            "An optax transformation cannot be serialized; pass it again after loading the model."
        )
