"""`OptaxOptimizer`: an optax gradient transformation as a Keras optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.stage_buffers import StageBuffer
from meshflow.distribute.replicas.context import sum_over_replicas
from meshflow.environment import optional_packages
from meshflow.environment.types import ArrayLike, PyTree
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.hooks import densify_gradient
from meshflow.keras.optimizers.state import GradientPairs
from meshflow.ops import math


class OptaxOptimizer(Optimizer):
    """Optimizer that applies an optax transformation, with its state in variables.

    The transformation contains the learning rate, so the attribute `learning_rate` has no effect.
    Transformations that also require the loss (`value`) or the gradients (`grad`), such as
    `optax.contrib.reduce_on_plateau` and `optax.polyak_sgd`, receive those of `minimize`, and so of
    `fit`. Line searches, which require the loss function itself, are rejected, and
    `optax.contrib.dpsgd` works only in loops that compute the gradients of each example. With
    `optax.lookahead`, variables contain the fast values.

    Args:
      transformation: An optax `GradientTransformation`.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`, for example clipping.

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
                "OptaxOptimizer: `weight_decay` and `use_ema` are not available. Add them to the transformation "
                "(optax.add_decayed_weights, optax.ema)."
            )
        super().__init__(name, **kwargs)
        self.transformation = transformation
        self._state: list[Variable] | None = None
        self._tree: Any = None
        # The loss of the gradients that are applied next, for transformations that require it.
        self._loss: Any = None
        # PRNG implementation of each leaf that is a random key, by leaf index.
        self._generators: dict[int, Any] = {}
        self._op = Op("optax_update", self._update)

    def _get_gradients(
        self, tape: GradientTape, loss: Tensor, var_list: PyTree, grad_loss: TensorLike = None
    ) -> list[Any]:
        if _takes_extra_arguments(self.transformation):
            ((self._loss, _),) = sum_over_replicas([(math.reduce_sum(loss), None)])
        return super()._get_gradients(tape, loss, var_list, grad_loss)

    def build(self, var_list: Sequence[Variable]) -> None:
        """Create the transformation's state for variables.

        Args:
          var_list: All variables to be trained; the transformation updates them together.

        Raises:
          ValueError: If the optimizer was built for other variables before.
        """
        _ = self.iterations
        if self._state is None:
            with init_scope():
                values = [jax.numpy.asarray(v._value) for v in var_list]
                leaves, self._tree = jax.tree.flatten(
                    _add_slow_values(self.transformation.init(values), values)
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
                f"The optimizer {self._name} was built for other variables than {[v.name for v in var_list]}, but an optax "
                "transformation updates all variables together. Create a new optimizer."
            )

    def place_slots(self, buffer: StageBuffer) -> None:
        """Move the parts of the state that belong to the weights in a buffer into buffers.

        Args:
          buffer: The buffer.
        """
        state: list[Variable] = self._state  # type: ignore[assignment]
        lists: dict[Any, dict[int, Variable]] = {}
        paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self._tree, state))
        for (*path, index), slot in paths:
            if isinstance(index, jax.tree_util.SequenceKey):
                lists.setdefault(tuple(path), {})[index.idx] = slot
        for slots in lists.values():
            own = [slots.get(self._index_dict[self._var_key(v)]) for v in buffer.members]
            for slot, v in zip(own, buffer.members, strict=True):
                if slot is not None and slot.layout is None:
                    slot.layout = getattr(v, "_slot_layout", None) or v.layout
            buffer.combine_slots(own)

    def _update(self, operands: tuple[Any, ...], _: None) -> list[jax.Array]:
        optax = optional_packages.import_extra("optax", "optax", "OptaxOptimizer needs optax")
        values, gradients, leaves, loss = operands
        leaves = list(leaves)
        for i, key_impl in self._generators.items():
            leaves[i] = jax.random.wrap_key_data(leaves[i], impl=key_impl)
        state, slow = jax.tree.unflatten(self._tree, leaves)
        parameters = values if slow is None else optax.LookaheadParams(values, slow)
        updates, state = self._transform(gradients, state, parameters, loss)
        parameters = optax.apply_updates(parameters, updates)
        values, slow = (parameters, None) if slow is None else (parameters.fast, parameters.slow)
        new_leaves = jax.tree.leaves((state, slow))
        return [*values, *(jax.random.key_data(x) if _is_key(x) else x for x in new_leaves)]

    def _transform(
        self, gradients: PyTree, state: PyTree, values: PyTree, loss: list[jax.Array]
    ) -> tuple[PyTree, PyTree]:
        """Run the transformation on gradients, with the loss if the transformation requires it."""
        update = self.transformation.update
        message = ""
        for arguments in ({}, {"value": loss[0], "grad": gradients}) if loss else ({},):
            try:
                return update(gradients, state, values, **arguments)
            except TypeError as error:
                message = str(error)
                if "required keyword-only argument" not in message:
                    raise
        raise NotImplementedError(
            f"{self._name}: the optax transformation requires arguments that are not available. `fit` and `minimize` pass "
            f"it `value` and `grad`, `apply_gradients` neither: {message}."
        )

    def _apply(self, pairs: GradientPairs) -> None:
        variables = [v for _, v in pairs]
        gradients = [
            densify_gradient(g, v) if isinstance(g, IndexedSlices) else convert_to_tensor(g)
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
        """Raise an error: an optax transformation has no configuration.

        Raises:
          NotImplementedError: Always.
        """
        raise NotImplementedError(
            "An optax transformation cannot be serialized; pass it again after loading the model."
        )


def _add_slow_values(
    state: PyTree, values: list[jax.Array]
) -> tuple[PyTree, list[jax.Array] | None]:
    """Add the slow values of `optax.lookahead`, initially equal to the fast ones, to a state."""
    optax = optional_packages.import_extra("optax", "optax", "OptaxOptimizer needs optax")
    # The slow values are copies, because the variables own the fast ones.
    return state, [v.copy() for v in values] if isinstance(state, optax.LookaheadState) else None


def _takes_extra_arguments(transformation: object) -> bool:
    """Check whether a transformation's update takes more than gradients, state and parameters."""
    optax = optional_packages.import_extra("optax", "optax", "OptaxOptimizer needs optax")
    return isinstance(transformation, optax.GradientTransformationExtraArgs)


def _is_key(leaf: ArrayLike) -> bool:
    return bool(jax.dtypes.issubdtype(jax.numpy.result_type(leaf), jax.dtypes.prng_key))
