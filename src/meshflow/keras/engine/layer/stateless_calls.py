"""Layers as pure functions of their variables: `stateless_call` of Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.functions.stateless import call_stateless
from meshflow.environment.types import PyTree


class StatelessCalls:
    """Method of `Layer` that neither reads nor writes the values of its variables."""

    def stateless_call(
        self: Any,
        trainable_variables: Sequence[PyTree],
        non_trainable_variables: Sequence[PyTree],
        *args: Any,
        return_losses: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Call the layer as if its variables had the given values.

        With JAX arrays, `jax.jit`, `jax.grad` and `jax.vmap` can transform this function.

        Args:
          trainable_variables: A value for each of `trainable_variables`.
          non_trainable_variables: A value for each of `non_trainable_variables`.
          *args: Positional arguments of the call.
          return_losses: Whether to return the losses of the layer as well.
          **kwargs: Keyword arguments of the call.

        Returns:
          (outputs, new values of the non-trainable variables), followed by the losses if
          `return_losses` is True.

        Raises:
          ValueError: If the layer is not built, or if the number of values differs from the number
            of variables.

        Example:
          >>> import jax, jax.numpy as jnp, meshflow as tf
          >>> layer = tf.keras.layers.Dense(1, kernel_initializer="ones")
          >>> layer.build([None, 2])
          >>> def loss(weights, x):
          ...     y, _ = layer.stateless_call(weights, [], x)
          ...     return jnp.sum(y)
          >>> weights = [jnp.asarray(v) for v in layer.trainable_variables]
          >>> jax.grad(loss)(weights, jnp.ones([3, 2]))[0].tolist()
          [[3.0], [3.0]]
        """
        if not self.built:
            raise ValueError(
                f"To call stateless_call, {type(self).__name__} must be built (i.e. its variables must have been "
                "already created). You can build it by calling it on some data."
            )
        trainable, non_trainable = self.trainable_variables, self.non_trainable_variables
        for name, variables, values in (
            ("trainable_variables", trainable, trainable_variables),
            ("non_trainable_variables", non_trainable, non_trainable_variables),
        ):
            if len(variables) != len(values):
                raise ValueError(
                    f"Argument `{name}` must be a list of tensors corresponding 1:1 to {type(self).__name__}().{name}. "
                    f"Received list with length {len(values)}, but expected {len(variables)} variables."
                )

        def call(*args: Any, **kwargs: Any) -> tuple[PyTree, list[Any]]:
            outputs = self(*args, **kwargs)
            return outputs, list(self.losses) if return_losses else []

        (outputs, losses), new_values = call_stateless(
            call,
            [*trainable, *non_trainable],
            [*trainable_variables, *non_trainable_variables],
            args,
            kwargs,
        )
        updated = new_values[len(trainable) :]
        return (outputs, updated, losses) if return_losses else (outputs, updated)
