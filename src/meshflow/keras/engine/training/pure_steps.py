"""Steps that are pure functions of JAX: `train_step(state, data)`, as Keras 3 has them on JAX.

The state is the values of a model's variables; what the step returns of them is written after it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.keras.engine.training.data_adapter import unpack_x_y_sample_weight

__all__ = ["takes_state", "with_state"]


def takes_state(step: Callable[..., Any]) -> bool:
    """Whether a step is a function (state, data) instead of one of the data alone.

    Args:
      step: a method of a model.
    """
    needed = [
        p.name
        for p in inspect.signature(step).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(needed) == 2 and needed[0] == "state"


def with_state(model: Any, step: Callable[..., Any], kind: str) -> Callable[[Any], Any]:
    """A step of the data alone that gives a pure step the values of variables, and writes what it returns.

    Args:
      model: the compiled model.
      step: a function (state, data) that returns (logs, state), for "predict" (outputs, state). Of "train" the
        state is values of (trainable, non-trainable, the optimizer's, the metrics') variables; of "test" there are
        none of the optimizer, of "predict" neither.
      kind: "train", "test" or "predict".
    """

    @functools.wraps(step)
    def run(data: Any) -> Any:
        _prepare(model, data, kind)
        groups = _variables(model, kind)
        held = [[convert_to_tensor(v) for v in group] for group in groups]
        rows = [convert_to_tensor(x) for x in nest.flatten(data)]
        found: list[Any] = []

        def compute(given: Any, _: Any) -> Any:
            state, arrays = given
            result, new = step(tuple(state), nest.pack_sequence_as(data, arrays))
            _check(model, kind, groups, new)
            flat, tree = jax.tree.flatten(result)
            found[:] = [tree]
            after = [
                [jnp.asarray(value, v.dtype.dtype) for v, value in zip(group, values, strict=True)]
                for group, values in zip(groups, new, strict=True)
            ]
            return [jnp.asarray(leaf) for leaf in flat], after

        flat, after = apply(Op(f"{kind}_step", compute, heavy=True, whole=True), (held, rows))
        for group, values in zip(groups, after, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)
        return jax.tree.unflatten(found[0], flat)

    return run


def _prepare(model: Any, data: Any, kind: str) -> None:
    """Makes the variables that the state is made of."""
    x, y, _ = unpack_x_y_sample_weight(data)
    loss, metrics = model.compiled_loss, model.compiled_metrics
    waiting = [c for c in (loss, metrics) if c is not None and not c.built]
    if not model.built or (waiting and kind != "predict"):
        y_pred = model(x, training=False)
        if kind != "predict":
            for container in waiting:
                container.build(*(y_pred,) if container is loss else (y_pred, y))
    if kind == "train":
        model.optimizer.build(model.trainable_variables)


def _variables(model: Any, kind: str) -> list[list[Any]]:
    groups = [list(model.trainable_variables), list(model.non_trainable_variables)]
    if kind == "train":
        groups.append(list(model.optimizer.variables))
    if kind != "predict":
        # Last, as metrics that are attributes of the model are among its variables too.
        groups.append([v for metric in model.metrics for v in metric.variables])
    return groups


def _check(model: Any, kind: str, groups: list[list[Any]], new: Any) -> None:
    sizes = [len(group) for group in groups]
    if not isinstance(new, (tuple, list)) or [len(values) for values in new] != sizes:
        raise ValueError(
            f"{type(model).__name__}.{kind}_step(state, data) must return its result and a state of {len(sizes)} lists "
            f"with {sizes} values, as it was given. Received: {new}"
        )
