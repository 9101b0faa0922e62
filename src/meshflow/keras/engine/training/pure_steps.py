"""Steps that are pure functions of JAX: `train_step(state, data)`, as in Keras 3 on JAX.

The state consists of the values of a model's variables. The variables are updated with the state
that the step returns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.environment.types import PyTree
from meshflow.keras.engine.training.data_adapter import unpack_x_y_sample_weight

if TYPE_CHECKING:
    from meshflow.core.variables.variable import Variable


def takes_state(step: Callable[..., Any]) -> bool:
    """Check whether a step is a function of (state, data) instead of data.

    Args:
      step: A method of a model.
    """
    required = [
        p.name
        for p in inspect.signature(step).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(required) == 2 and required[0] == "state"


def bind_state(model: Any, step: Callable[..., Any], kind: str) -> Callable[[PyTree], Any]:
    """Convert a pure step to a function of data that reads and updates the model's variables.

    Args:
      model: The compiled model.
      step: Function of (state, data) that returns (logs, state), or (outputs, state) for "predict".
        For "train", the state holds the values of the (trainable, non-trainable, optimizer's,
        metrics') variables; for "test", those of the optimizer are missing; for "predict", those of
        the metrics, too.
      kind: "train", "test" or "predict".
    """

    @functools.wraps(step)
    def run(data: PyTree) -> PyTree:
        _build_variables(model, data, kind)
        groups = _group_variables(model, kind)
        state = [[convert_to_tensor(v) for v in group] for group in groups]
        rows = [convert_to_tensor(x) for x in nest.flatten(data)]
        structures: list[Any] = []

        def compute(operands: PyTree, _: Any) -> PyTree:
            values, arrays = operands
            result, new_state = step(tuple(values), nest.pack_sequence_as(data, arrays))
            _check_state(model, kind, groups, new_state)
            flat, structure = jax.tree.flatten(result)
            structures[:] = [structure]
            updates = [
                [jnp.asarray(value, v.dtype.dtype) for v, value in zip(group, new, strict=True)]
                for group, new in zip(groups, new_state, strict=True)
            ]
            return [jnp.asarray(leaf) for leaf in flat], updates

        flat, updates = apply(
            Op(f"{kind}_step", compute, heavy=True, is_opaque=True), (state, rows)
        )
        for group, new_values in zip(groups, updates, strict=True):
            for variable, value in zip(group, new_values, strict=True):
                variable.assign(value)
        return jax.tree.unflatten(structures[0], flat)

    return run


def _build_variables(model: Any, data: PyTree, kind: str) -> None:
    """Create the variables that the state consists of."""
    x, y, _ = unpack_x_y_sample_weight(data)
    loss, metrics = model.compiled_loss, model.compiled_metrics
    unbuilt = [c for c in (loss, metrics) if c is not None and not c.built]
    if not model.built or (unbuilt and kind != "predict"):
        y_pred = model(x, training=False)
        if kind != "predict":
            for container in unbuilt:
                container.build(*(y_pred,) if container is loss else (y_pred, y))
    if kind == "train":
        model.optimizer.build(model.trainable_variables)


def _group_variables(model: Any, kind: str) -> list[list[Variable]]:
    groups = [list(model.trainable_variables), list(model.non_trainable_variables)]
    if kind == "train":
        groups.append(list(model.optimizer.variables))
    if kind != "predict":
        # Metrics are last, because metrics that are attributes of the model are among its
        # variables, too.
        groups.append([v for metric in model.metrics for v in metric.variables])
    return groups


def _check_state(model: Any, kind: str, groups: list[list[Variable]], new_state: PyTree) -> None:
    sizes = [len(group) for group in groups]
    if not isinstance(new_state, (tuple, list)) or [len(values) for values in new_state] != sizes:
        raise ValueError(
            f"{type(model).__name__}.{kind}_step(state, data) must return its result and a state of {len(sizes)} lists "
            f"with {sizes} values, like its argument `state`. Received: {new_state}"
        )
