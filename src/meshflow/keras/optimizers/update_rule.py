"""`RuleOptimizer`: an optimizer that is a pure function of arrays.

A subclass gives the names of its slots and `rule(var, grad, slots, values, *settings)`. The update of
one variable is one op, so that a training step stays small and traces quickly.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.functions.concrete_function import keep_shared
from meshflow.core.runtime.context import context, writing
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras.optimizers import rows
from meshflow.keras.optimizers.base import Optimizer
from meshflow.kernels import renewals
from meshflow.ops import math


def _in_place(
    op: Op, static: Any, state: list[Variable], grad: Any, indices: Any, scalars: Any
) -> list[Tensor]:
    """Runs an update of rows eagerly, in the buffers of the variables: a table is not copied for a few rows."""
    grad, indices = convert_to_tensor(grad), convert_to_tensor(indices)
    with writing:
        keep_shared(state)
        outputs = op.donating(static, (0, 3))(
            state[0]._value,
            grad._value,
            indices._value,
            [s._value for s in state[1:]],
            [convert_to_tensor(s)._value for s in scalars],
        )
    return [Tensor(o) for o in outputs]


class RuleOptimizer(Optimizer):
    """Base class of the optimizers of this package; arguments as `Optimizer`."""

    # Fixed settings that the rule takes after `values`, in this order; also in the configuration.
    setting_names: tuple[str, ...] = ()
    # What configurations have besides hyperparameters, in this order, where these are not just the settings.
    _configured_names: tuple[str, ...] = ()
    # One op for each class, made by its first update.
    _op: Op
    # What a gradient of some rows does: see `_updated_by_rows`.
    _by_rows = "all"

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

    @staticmethod
    def averages(grad: Any, slots: Any, values: dict[str, Any], *settings: Any) -> list[Any]:
        """The slots' part of a rule with slots that are averages of gradients; arguments as for `rule`."""
        raise NotImplementedError("Optimizers that update averages by rows define `averages`.")

    @staticmethod
    def moved(var: Any, grad: Any, slots: Any, values: dict[str, Any], *settings: Any) -> Any:
        """The variable's part of such a rule, from the new slots; arguments as for `rule`."""
        raise NotImplementedError("Optimizers that update averages by rows define `moved`.")

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
        slots = self._slots_of(var)
        names = tuple(values)
        # Of which others have the old value, as workers have a parameter server's.
        kept = tuple(v._is_lent for v in (var, *slots))
        static = names, self._by_rows, kept, *self._rule_settings()
        scalars = [values[n] for n in names]
        elsewhere = context.trace or context.placing or context.closure
        if indices is not None and elsewhere is None:
            outputs = _in_place(self._update_op(), static, [var, *slots], grad, indices, scalars)
        else:
            state = [s.value() for s in slots]
            outputs = apply(self._update_op(), (var.value(), grad, indices, state, scalars), static)
        for variable, value in zip([var, *slots], outputs, strict=True):
            variable._train(value)

    def _slots_of(self, var: Variable) -> list[Variable]:
        return [self.get_slot(var, name) for name in self._slot_names_of(var)]

    def _changed_by_rows(self, var: Variable) -> list[Variable]:
        all_rows = self.weight_decay, self.use_ema, self.gradient_accumulation_steps
        others = any(all_rows) or self.gradient_transformers
        rows_only = self._by_rows in ("rows", "sum") and not (others or var.constraint)
        own = type(self)._resource_apply_sparse is not Optimizer._resource_apply_sparse
        return [var, *self._slots_of(var)] if rows_only and not own else []

    @classmethod
    def _update_op(cls) -> Op:
        if "_op" not in cls.__dict__:
            # Variables of one shape share a trace of the rule, whose operations go into the program as they are.
            rule = jax.jit(cls._call_rule, static_argnums=1, inline=True)
            cls._op = Op(f"{cls.__name__}_update", rule, differentiable=False)
        return cls._op

    @classmethod
    def _call_rule(cls, operands: Any, static: Any) -> Any:
        var, grad, indices, slots, values = operands
        names, by_rows, kept, *settings = static
        grad = grad.astype(var.dtype)
        rest = dict(zip(names, values, strict=True)), *settings
        if indices is not None:
            new = cls._updated_by_rows(by_rows, var, grad, indices, slots, rest)
        elif any(kept):
            rule = lambda arrays, grad: cls.rule(arrays[0], grad, arrays[1:], *rest)
            new = renewals.renewed(rule, [var, *slots], grad, kept)
        else:
            new = cls.rule(var, grad, slots, *rest)
        return [x.astype(var.dtype) for x in new]

    @classmethod
    def _updated_by_rows(
        cls, kind: str, var: Any, grad: Any, indices: Any, slots: Any, rest: Any
    ) -> Any:
        """The update by a gradient of some rows, as TensorFlow does it: of one of these kinds.

        "all": everything, with a gradient of zero for the other rows. "sum": what each row adds to the variable.
        "rows": those rows of the variable and of the slots. "averages": the slots, of which all rows decay, and
        then all of the variable. "averages, rows": the slots likewise, and then those rows of the variable.
        """
        if kind == "sum":
            return [var.at[indices].add(cls.rule(jnp.zeros((), var.dtype), grad, slots, *rest)[0])]
        whole = var.shape[0] <= 2 * indices.shape[0]
        if kind == "all" or whole:
            # With numbers for most of the rows it is faster to compute all of them.
            new = cls.rule(var, jnp.zeros_like(var).at[indices].add(grad), slots, *rest)
            kept = {"all": 0, "averages": 0, "averages, rows": 1, "rows": len(new)}[kind]
            pairs = zip(new[:kept], [var, *slots], strict=False)
            return [*(rows.chosen(indices, n, o) for n, o in pairs), *new[kept:]]
        if kind == "rows":
            rule = lambda arrays, total: cls.rule(arrays[0], total, arrays[1:], *rest)
            return rows.updated_rows(rule, [var, *slots], grad, indices)
        numbers, total = rows.summed(grad, indices, var.shape[0])
        averages = lambda grad, slots: cls.averages(grad, slots, *rest)
        slots = rows.updated_averages(averages, slots, numbers, total)
        if kind == "averages":
            return [cls.moved(var, None, slots, *rest), *slots]
        picked = [rows.taken(s, numbers) for s in slots]
        own = cls.moved(rows.taken(var, numbers), total, picked, *rest)
        return [rows.replaced(var, numbers, own), *slots]

    def get_config(self) -> dict[str, Any]:
        """The configuration: what the constructor takes, as plain Python values."""
        config = super().get_config()
        # TensorFlow's optimizers since 2.11 refuse it.
        if not self._since_2_11 or self._initial_decay != self._default_decay:
            config["decay"] = self._initial_decay
        for name in self.hyper_names:
            config[name] = self._serialize_hyperparameter(name)
        names = self._configured_names or self.setting_names
        return config | {name: getattr(self, name) for name in names}
