"""`RuleOptimizer`: an optimizer that is defined by a pure function of arrays.

A subclass defines the names of its slots and `rule(var, grad, slots, values, *settings)`. The
update of one variable is one op, so a training step has few equations and traces quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from meshflow.core.dispatch.dispatch import apply_and_translate
from meshflow.core.dispatch.operation import Op
from meshflow.core.functions.concrete_function import copy_shared_buffers
from meshflow.core.runtime.context import context, variable_lock
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import UpdateGroup
from meshflow.environment.types import overridable
from meshflow.keras.optimizers import row_updates
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.hooks import ApplyState
from meshflow.kernels import array_updates
from meshflow.ops import math
from meshflow.placement.layout import UNSHARDED, Layout

# Values of a variable's slots, and scalars of a step by name.
Slots: TypeAlias = Sequence[Array]
Scalars: TypeAlias = dict[str, Array]


def _update_rows_in_place(
    op: Op,
    static: tuple[Any, ...],
    state: list[Variable],
    grad: Tensor,
    indices: Tensor,
    scalars: Sequence[TensorLike],
) -> list[Tensor]:
    """Update rows eagerly in the buffers of the variables, without a copy of the table."""
    grad, indices = convert_to_tensor(grad), convert_to_tensor(indices)
    with variable_lock:
        copy_shared_buffers(state)
        outputs = op.get_donating(static, (0, 3))(
            state[0]._value,
            grad.array,
            indices.array,
            [s._value for s in state[1:]],
            [convert_to_tensor(s).array for s in scalars],
        )
    return [Tensor(o) for o in outputs]


def _gather_rows(grad: Tensor, indices: Tensor, var: Variable) -> tuple[Tensor, Tensor]:
    """Gather the rows of a gradient on all devices of a mesh, if they are smaller than the sum of full gradients.

    Devices have the rows of their examples. Without this, XLA adds them to each split array separately, and sums the
    arrays over all devices.
    """
    layout, count = var.layout, indices.shape[0]
    num_rows = var.shape[0]
    if count is None or (2 * count >= num_rows and count * layout.num_shards(0) >= 2 * num_rows):
        return grad, indices
    rest = layout.sharding_specs[1:]
    rows = Layout([UNSHARDED, *rest], layout.mesh)
    return rows.constrain(grad), Layout.replicated(layout.mesh, 1).constrain(indices)


class RuleOptimizer(Optimizer):
    """Base class of the optimizers in this package; it takes the arguments of `Optimizer`."""

    # Fixed settings that the rule takes after `values`, in this order; configurations contain them.
    setting_names: tuple[str, ...] = ()
    # Settings in the configuration after the hyperparameters, in this order, where they differ
    # from `setting_names`.
    _configured_names: tuple[str, ...] = ()
    # Op of the class, created by its first update.
    _op: Op
    # Whether the rule computes each element from the elements of its operands at the same index.
    _is_elementwise = True
    # Update mode for gradients of some rows (`IndexedSlices`): see `_update_by_rows`.
    _by_rows = "all"

    @staticmethod
    @overridable
    def rule(var: Array, grad: Array, slots: Slots, values: Scalars, *settings: Any) -> list[Array]:
        """Compute the update of one variable, as a pure function of arrays.

        Args:
          var: Value of the variable.
          grad: Gradient, of the same shape and dtype.
          slots: Values of the slots, in the order of `slot_names`.
          values: Scalars of this step: `lr_t`, `step` (from 1), and the hyperparameters.
          *settings: Values of `setting_names`.

        Returns:
          New values of the variable and of each slot.
        """
        raise NotImplementedError("Subclasses of RuleOptimizer must define `rule`.")

    @staticmethod
    @overridable
    def update_slots(grad: Array, slots: Slots, values: Scalars, *settings: Any) -> list[Array]:
        """Compute new slots that are averages of gradients; arguments as for `rule`."""
        raise NotImplementedError("Optimizers with averages by rows must define `update_slots`.")

    @staticmethod
    @overridable
    def update_variable(
        var: Array, grad: Any, slots: Slots, values: Scalars, *settings: Any
    ) -> Array:
        """Compute the new variable from the new slots; arguments as for `rule`."""
        raise NotImplementedError("Optimizers with averages by rows must define `update_variable`.")

    def _rule_settings(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.setting_names)

    def get_update_group(self, var: Variable) -> UpdateGroup:
        """Return a key of the variables that are updated together.

        Args:
          var: A trained variable.
        """
        # Subclasses of users can override any step of the update.
        is_own = type(self).__module__.startswith("meshflow.")
        transforms = self.gradient_transformers or self.gradient_aggregator or self.clipnorm
        if not is_own or transforms or var.constraint is not None or not self._is_elementwise:
            return super().get_update_group(var)
        return UpdateGroup(True, bool(self.weight_decay) and self._has_weight_decay(var))

    def _get_slot_names(self, var: Variable) -> tuple[str, ...]:
        return self.slot_names

    def _prepare_local(self, var_device: str, var_dtype: DType, apply_state: ApplyState) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        values = apply_state[var_device, var_dtype]
        values["step"] = math.cast(self.iterations.value(), var_dtype) + 1.0
        for name in self.hyper_names:
            values[name] = self._get_hyper(name, var_dtype)

    def _resource_apply_dense(
        self, grad: Tensor, var: Variable, apply_state: ApplyState | None = None
    ) -> None:
        self._run_rule(grad, None, var, apply_state)

    def _resource_apply_sparse(
        self, grad: Tensor, var: Variable, indices: Tensor, apply_state: ApplyState | None = None
    ) -> None:
        self._run_rule(grad, indices, var, apply_state)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, var: Variable, indices: Tensor, **kwargs: Any
    ) -> None:
        if type(self)._resource_apply_sparse is not RuleOptimizer._resource_apply_sparse:
            super()._resource_apply_sparse_duplicate_indices(grad, var, indices, **kwargs)
        else:
            self._run_rule(grad, indices, var, kwargs.get("apply_state"))

    def _run_rule(
        self, grad: Tensor, indices: Tensor | None, var: Variable, apply_state: ApplyState | None
    ) -> None:
        if indices is not None and context.trace is not None and var.layout is not None:
            grad, indices = _gather_rows(grad, indices, var)
        key = var.device, var.dtype.base_dtype
        values = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        slots = self._get_slots(var)
        var = var.handle
        names = tuple(values)
        # Other threads still use the old values of lent variables, for example workers of a
        # parameter server.
        lent = tuple(v._is_lent for v in (var, *slots))
        static = names, self._by_rows, lent, *self._rule_settings()
        scalars = [values[n] for n in names]
        lazy_context = context.trace or context.place_output or context.worker_closure
        if indices is not None and lazy_context is None:
            outputs = _update_rows_in_place(
                self._update_op(), static, [var, *slots], grad, indices, scalars
            )
        else:
            state = [s.value() for s in slots]
            operands = var.value(), grad, indices, state, scalars
            outputs = apply_and_translate(self._update_op(), operands, static)
        for variable, value in zip([var, *slots], outputs, strict=True):
            variable._train(value)

    def _get_slots(self, var: Variable) -> list[Variable]:
        return [self.get_slot(var, name) for name in self._get_slot_names(var)]

    def _get_row_updated_variables(self, var: Variable) -> list[Variable]:
        settings = self.weight_decay, self.use_ema, self.gradient_accumulation_steps
        changes_all_rows = any(settings) or self.gradient_transformers
        rows_only = self._by_rows in ("rows", "sum") and not (changes_all_rows or var.constraint)
        has_hook = type(self)._resource_apply_sparse is not RuleOptimizer._resource_apply_sparse
        return [var, *self._get_slots(var)] if rows_only and not has_hook else []

    @classmethod
    def _update_op(cls) -> Op:
        if "_op" not in cls.__dict__:
            # Variables of one shape share a trace of the rule. Its equations are inlined into the
            # program.
            rule = jax.jit(cls._call_rule, static_argnums=1, inline=True)
            cls._op = Op(f"{cls.__name__}_update", rule, differentiable=False)
        return cls._op

    @classmethod
    def _call_rule(cls, operands: Any, static: tuple[Any, ...]) -> list[Array]:
        var, grad, indices, slots, values = operands
        names, by_rows, lent, *settings = static
        grad = grad.astype(var.dtype)
        arguments = dict(zip(names, values, strict=True)), *settings
        if indices is not None:
            new = cls._update_by_rows(by_rows, var, grad, indices, slots, arguments)
        elif any(lent):
            rule = lambda arrays, grad: cls.rule(arrays[0], grad, arrays[1:], *arguments)
            new = array_updates.update_arrays(rule, [var, *slots], grad, lent)
        else:
            new = cls.rule(var, grad, slots, *arguments)
        return [x.astype(var.dtype) for x in new]

    @classmethod
    def _update_by_rows(
        cls,
        mode: str,
        var: Array,
        grad: Array,
        indices: Array,
        slots: Slots,
        arguments: tuple[Any, ...],
    ) -> list[Array]:
        """Compute the update for a gradient of some rows in one of TensorFlow's modes.

        "all": update everything, with a zero gradient for the other rows. "sum": add each row's
        step to the variable. "rows": update those rows of the variable and of the slots.
        "averages": decay all rows of the slots, then update the entire variable. "averages, rows":
        decay all rows of the slots, then update those rows of the variable.
        """
        if mode == "sum":
            steps = cls.rule(jnp.zeros((), var.dtype), grad, slots, *arguments)[0]
            return [var.at[indices].add(steps)]

        def update_all() -> list[Array]:
            new = cls.rule(var, jnp.zeros_like(var).at[indices].add(grad), slots, *arguments)
            count = {"all": 0, "averages": 0, "averages, rows": 1, "rows": len(new)}[mode]
            pairs = zip(new[:count], [var, *slots], strict=False)
            updated = [row_updates.select_rows(indices, n, o) for n, o in pairs]
            return [x.astype(var.dtype) for x in (*updated, *new[count:])]

        def update_some() -> list[Array]:
            new = cls._update_some_rows(mode, var, grad, indices, slots, arguments)
            return [x.astype(var.dtype) for x in new]

        if mode == "all":
            return update_all()
        # With indices of most rows it is faster to compute all of them. The running program decides this for a symbolic
        # size, because a comparison here would be a guard of the trace.
        if jax.export.is_symbolic_dim(indices.shape[0]):
            condition = jnp.asarray(2 * indices.shape[0]) >= var.shape[0]
            return list(jax.lax.cond(condition, update_all, update_some))
        return update_all() if var.shape[0] <= 2 * indices.shape[0] else update_some()

    @classmethod
    def _update_some_rows(
        cls,
        mode: str,
        var: Array,
        grad: Array,
        indices: Array,
        slots: Slots,
        arguments: tuple[Any, ...],
    ) -> list[Array]:
        """Compute the update by `_update_by_rows` for indices of few rows."""
        if mode == "rows":
            rule = lambda arrays, total: cls.rule(arrays[0], total, arrays[1:], *arguments)
            return row_updates.update_rows(rule, [var, *slots], grad, indices)
        unique, total = row_updates.sum_duplicate_rows(grad, indices, var.shape[0])
        averages = lambda grad, slots: cls.update_slots(grad, slots, *arguments)
        slots = row_updates.update_averages(averages, slots, unique, total)
        if mode == "averages":
            return [cls.update_variable(var, None, slots, *arguments), *slots]
        slot_rows = [row_updates.take_rows(s, unique) for s in slots]
        new_rows = cls.update_variable(
            row_updates.take_rows(var, unique), total, slot_rows, *arguments
        )
        return [row_updates.replace_rows(var, unique, new_rows), *slots]

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain Python values."""
        config = super().get_config()
        # TensorFlow's optimizers since 2.11 reject `decay`.
        if not self._since_2_11 or self._initial_decay != self._default_decay:
            config["decay"] = self._initial_decay
        for name in self.hyper_names:
            config[name] = self._serialize_hyperparameter(name)
        names = self._configured_names or self.setting_names
        return config | {name: getattr(self, name) for name in names}
