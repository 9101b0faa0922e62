"""`RuleOptimizer`: an optimizer that is a pure function of arrays.

A subclass gives the names of its slots and `rule(var, grad, slots, values, *settings)`. The update of
one variable is one op, so that a training step stays small and traces quickly.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch import apply
from meshflow.core.operation import Op
from meshflow.core.variable import Variable
from meshflow.keras.optimizers.base import Optimizer
from meshflow.ops import math


class RuleOptimizer(Optimizer):
    """Base class of the optimizers of this package; arguments as `Optimizer`."""

    # Fixed settings that the rule takes after `values`, in this order; also in the configuration.
    setting_names: tuple[str, ...] = ()
    # One op for each class, made by its first update.
    _op: Op
    # What a gradient of some rows leaves alone in the other rows: nothing, the variable, or all.
    _sparse_keeps = "nothing"

    @staticmethod
    def rule(var: Any, grad: Any, slots: Any, values: dict[str, Any], *settings: Any) -> list[Any]:
        """The update, pure, on arrays.

        Args:
          var: the variable's value.
          grad: the gradient, of the same shape and dtype.
          slots: values of the slots, in the order of `slot_names`.
          values: scalars of this step: `lr_t`, `step` (from 1), and the hyperparameters.
          *settings: the values of `setting_names`.

        Returns:
          New values of the variable and of each slot.
        """
        raise NotImplementedError("Subclasses of RuleOptimizer define `rule`.")

    def _rule_settings(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.setting_names)

    def _slot_names_of(self, var: Variable) -> tuple[str, ...]:
        return self.slot_names

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        values = apply_state[var_device, var_dtype]
        values["step"] = math.cast(self.iterations.value(), var_dtype) + 1.0
        for name in self.hyper_names:
            values[name] = self._get_hyper(name, var_dtype)

    def _resource_apply_dense(self, grad: Any, var: Variable, apply_state: Any = None) -> Any:
        self._run_rule(grad, None, var, apply_state)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Any, var: Variable, indices: Any, **kwargs: Any
    ) -> Any:
        if type(self)._resource_apply_sparse is not Optimizer._resource_apply_sparse:
            return super()._resource_apply_sparse_duplicate_indices(grad, var, indices, **kwargs)
        return self._run_rule(grad, indices, var, kwargs.get("apply_state"))

    def _run_rule(self, grad: Any, indices: Any, var: Variable, apply_state: Any) -> None:
        key = var.device, var.dtype.base_dtype
        values = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        slots = [self.get_slot(var, name) for name in self._slot_names_of(var)]
        names = tuple(values)
        outputs = apply(
            self._update_op(),
            (var.value(), grad, indices, [s.value() for s in slots], [values[n] for n in names]),
            (names, self._sparse_keeps, *self._rule_settings()),
        )
        for variable, value in zip([var, *slots], outputs, strict=True):
            variable._write(value)

    @classmethod
    def _update_op(cls) -> Op:
        if "_op" not in cls.__dict__:
            cls._op = Op(f"{cls.__name__}_update", cls._call_rule, differentiable=False)
        return cls._op

    @classmethod
    def _call_rule(cls, operands: Any, static: Any) -> Any:
        var, grad, indices, slots, values = operands
        names, sparse_keeps, *settings = static
        grad = grad.astype(var.dtype)
        if indices is not None:
            grad = jnp.zeros_like(var).at[indices].add(grad)
        named = dict(zip(names, values, strict=True))
        new = [x.astype(var.dtype) for x in cls.rule(var, grad, slots, named, *settings)]
        if indices is not None and sparse_keeps != "nothing":
            hit = jnp.zeros(var.shape[:1], bool).at[indices].set(True)
            hit = hit.reshape(-1, *[1] * (var.ndim - 1))
            kept = len(new) if sparse_keeps == "all" else 1
            old = [var, *slots]
            new = [jnp.where(hit, n, o) for n, o in zip(new, old[:kept], strict=False)] + new[kept:]
        return new

    def get_config(self) -> dict[str, Any]:
        """The configuration: what the constructor takes, as plain Python values."""
        config = {**super().get_config(), "decay": self._initial_decay}
        for name in self.hyper_names:
            config[name] = self._serialize_hyperparameter(name)
        return config | {name: getattr(self, name) for name in self.setting_names}
