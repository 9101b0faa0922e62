"""Optimizers as pure functions of their variables: Keras 3's `stateless_apply`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.functions.stateless import call_stateless


class StatelessUpdates:
    """Method of optimizers that takes and returns the values of variables."""

    def stateless_apply(
        self: Any,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Compute updated values instead of updating variables.

        With arrays of JAX, `jax.jit` can transform this function.

        Args:
          optimizer_variables: A value for each of `variables`.
          grads: The gradients.
          trainable_variables: A value for each variable that the optimizer was built for.

        Returns:
          (new values of the trained variables, new values of the optimizer's variables).

        Raises:
          ValueError: If the optimizer has not been built.

        Example:
          >>> import jax.numpy as jnp, meshflow as tf
          >>> optimizer, v = tf.keras.optimizers.SGD(0.5), tf.Variable([1.0])
          >>> optimizer.build([v])
          >>> state = [jnp.asarray(s) for s in optimizer.variables]
          >>> new, state = optimizer.stateless_apply(state, [jnp.ones(1)], [jnp.ones(1)])
          >>> new[0].tolist(), v.numpy().tolist()
          ([0.5], [1.0])
        """
        trained = list(self._owners.values())
        if not trained:
            raise ValueError(
                f"To call `stateless_apply`, {type(self).__name__} must be built (i.e. its variables must have been created). "
                "You can build it via `optimizer.build(trainable_variables)`."
            )
        if len(trained) != len(trainable_variables):
            raise ValueError(
                f"Argument `trainable_variables` must be a list of tensors corresponding 1:1 to the {len(trained)} variables "
                f"that {type(self).__name__} was built for. Received list with length {len(trainable_variables)}."
            )
        own = list(self.variables)

        def apply(gradients: Sequence[Any]) -> None:
            self.apply_gradients(zip(gradients, trained, strict=True))

        _, new = call_stateless(
            apply, [*trained, *own], [*trainable_variables, *optimizer_variables], (list(grads),)
        )
        return new[: len(trained)], new[len(trained) :]
