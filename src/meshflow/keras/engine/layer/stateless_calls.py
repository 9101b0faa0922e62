"""Layers as pure functions of their variables: Keras 3's `stateless_call`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.functions.stateless import call_stateless

__all__ = ["StatelessCalls"]


class StatelessCalls:
    """The methods of layers that read and write no variables but those they are given."""

    def stateless_call(
        self: Any,
        trainable_variables: Sequence[Any],
        non_trainable_variables: Sequence[Any],
        *args: Any,
        return_losses: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Calls the layer as if its variables held these values.

        With arrays of JAX it is a function that `jax.jit`, `jax.grad` and `jax.vmap` transform.

        Args:
          trainable_variables: a value for each of `trainable_variables`.
          non_trainable_variables: a value for each of `non_trainable_variables`.
          *args: arguments of the call.
          return_losses: whether the layer's losses are returned too.
          **kwargs: named arguments of the call.

        Returns:
          (outputs, new values of the non-trainable variables), and with `return_losses` the losses.

        Raises:
          ValueError: when the layer has no variables yet, or there are more or fewer values.

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
        trained, others = self.trainable_variables, self.non_trainable_variables
        for name, variables, values in (
            ("trainable_variables", trained, trainable_variables),
            ("non_trainable_variables", others, non_trainable_variables),
        ):
            if len(variables) != len(values):
                raise ValueError(
                    f"Argument `{name}` must be a list of tensors corresponding 1:1 to {type(self).__name__}().{name}. "
                    f"Received list with length {len(values)}, but expected {len(variables)} variables."
                )

        def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            outputs = self(*args, **kwargs)
            return outputs, list(self.losses) if return_losses else []

        (outputs, losses), new = call_stateless(
            call,
            [*trained, *others],
            [*trainable_variables, *non_trainable_variables],
            args,
            kwargs,
        )
        after = new[len(trained) :]
        return (outputs, after, losses) if return_losses else (outputs, after)
