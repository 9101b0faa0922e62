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
from meshflow.distribute.replicas.context import sum_over_replicas
from meshflow.environment import extras
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.hooks import densified
from meshflow.ops import math

__all__ = ["OptaxOptimizer"]


class OptaxOptimizer(Optimizer):
    """Applies an optax transformation; its state is kept in variables.

    The learning rate is inside the transformation, so `learning_rate` here has no effect. Transformations that ask
    for the loss (`value`) or the gradients (`grad`) besides, as `optax.contrib.reduce_on_plateau` and `optax.polyak_sgd`,
    are given those of `minimize`, and so of `fit`; line searches, which ask for the function itself, are refused, and
    `optax.contrib.dpsgd` is for loops that compute the gradients of each example. With `optax.lookahead` variables
    hold the fast values.

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
        # The loss of the gradients that come next, where the transformation asks for such things.
        self._loss: Any = None
        # The kind of generator whose state a leaf is, by the leaf's place.
        self._generators: dict[int, Any] = {}
        self._op = Op("optax_update", self._update)

    def _get_gradients(self, tape: Any, loss: Any, var_list: Any, grad_loss: Any = None) -> Any:
        if _takes_more(self.transformation):
            ((self._loss, _),) = sum_over_replicas([(math.reduce_sum(loss), None)])
        return super()._get_gradients(tape, loss, var_list, grad_loss)

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
                leaves, self._tree = jax.tree.flatten(
                    _with_slow(self.transformation.init(values), values)
                )
                for i, leaf in enumerate(leaves):
                    if _is_key(leaf):
                        self._generators[i] = jax.random.key_impl(leaf)
                        leaves[i] = jax.random.key_data(leaf)
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
        values, gradients, leaves, loss = operands
        leaves = list(leaves)
        for i, kind in self._generators.items():
            leaves[i] = jax.random.wrap_key_data(leaves[i], impl=kind)
        state, slow = jax.tree.unflatten(self._tree, leaves)
        held = values if slow is None else optax.LookaheadParams(values, slow)
        updates, state = self._transformed(gradients, state, held, loss)
        held = optax.apply_updates(held, updates)
        values, slow = (held, None) if slow is None else (held.fast, held.slow)
        after = jax.tree.leaves((state, slow))
        return [*values, *(jax.random.key_data(x) if _is_key(x) else x for x in after)]

    def _transformed(self, gradients: Any, state: Any, values: Any, loss: list[Any]) -> Any:
        """What the transformation makes of gradients, with the loss if it does not go without."""
        update = self.transformation.update
        missing = ""
        for more in ({}, {"value": loss[0], "grad": gradients}) if loss else ({},):
            try:
                return update(gradients, state, values, **more)
            except TypeError as error:
                missing = str(error)
                if "required keyword-only argument" not in missing:
                    raise
        raise NotImplementedError(
            f"{self._name}: the optax transformation asks for more than gradients, and `value` and `grad` are what "
            f"`fit` and `minimize` can give it, `apply_gradients` none: {missing}."
        )

    def _apply(self, pairs: Any) -> None:
        variables = [v for _, v in pairs]
        gradients = [
            densified(g, v) if isinstance(g, IndexedSlices) else convert_to_tensor(g)
            for g, v in pairs
        ]
        state: list[Variable] = self._state  # type: ignore[assignment]
        loss, self._loss = [] if self._loss is None else [self._loss], None
        values = [v.value() for v in variables]
        outputs = apply(self._op, (values, gradients, [s.value() for s in state], loss))
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


def _with_slow(state: Any, values: Any) -> tuple[Any, Any]:
    """A transformation's state, and for `optax.lookahead` the slow values, which begin as the fast ones."""
    optax = extras.load("optax", "optax", "OptaxOptimizer needs optax")
    # Copies, as the values are the variables' own.
    return state, [v.copy() for v in values] if isinstance(state, optax.LookaheadState) else None


def _takes_more(transformation: Any) -> bool:
    """Whether a transformation's update takes more than gradients, state and parameters."""
    optax = extras.load("optax", "optax", "OptaxOptimizer needs optax")
    return isinstance(transformation, optax.GradientTransformationExtraArgs)


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(jax.numpy.result_type(leaf), jax.dtypes.prng_key))
