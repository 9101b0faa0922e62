"""Update of one variable by the hooks of subclasses, in the styles of three Keras versions.

The hooks are `_resource_apply_dense(grad, var, apply_state)` (Keras 2),
`update_step(gradient, variable)` (2.11), and `update_step(gradient, variable, learning_rate)`
(Keras 3).
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.bounds_checks import check_indices
from meshflow.core.runtime.context import context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import overridable
from meshflow.keras.optimizers.hyperparameters import Hyperparameters
from meshflow.keras.optimizers.row_updates import sum_duplicate_rows
from meshflow.ops import math

# Scalars of a step (learning rate, hyperparameters, ...) by name, for each device and dtype.
ApplyState: TypeAlias = dict[Any, dict[str, Any]]


class UpdateHooks(Hyperparameters):
    """Methods of `Optimizer` that update one variable; a base class of it."""

    # User-defined optimizers pass this attribute to `assign`.
    _use_locking = True

    def _create_hypers(self) -> None:
        """Do nothing: the hyperparameters exist. Optimizers that wrap another one call this method."""

    def _prepare(self, var_list: Sequence[Variable]) -> ApplyState:
        """Compute the scalars of this step, once for each device and dtype."""
        state: ApplyState = {}
        for var in var_list:
            key = get_device_and_dtype(var)
            if key not in state:
                state[key] = {}
                self._prepare_local(*key, state)
        return state

    def _prepare_local(self, var_device: str, var_dtype: DType, apply_state: ApplyState) -> None:
        apply_state[var_device, var_dtype]["lr_t"] = self._decayed_lr(var_dtype)

    def _fallback_apply_state(self, var_device: str, var_dtype: DType) -> dict[str, Any]:
        """Compute the scalars for a hook that was called without them."""
        state: ApplyState = {(var_device, var_dtype): {}}
        self._prepare_local(var_device, var_dtype, state)
        return state[var_device, var_dtype]

    def _apply_dense(self, grad: Tensor, var: Variable, state: Any) -> None:
        cls = type(self)
        hook: Callable[..., None]
        extra: tuple[Any, ...]
        if cls.update_step is UpdateHooks.update_step:
            hook = self._resource_apply_dense
            extra = (state,) if _accepts(cls._resource_apply_dense, "apply_state", 3) else ()
        else:
            hook = self.update_step
            takes_rate = _accepts(cls.update_step, "learning_rate", 3)
            extra = (state[get_device_and_dtype(var)]["lr_t"],) if takes_rate else ()
        hook(grad, var, *extra)

    def _apply_sparse(self, gradient: IndexedSlices, var: Variable, state: Any) -> None:
        cls = type(self)
        if cls.update_step is not UpdateHooks.update_step:
            self._apply_dense(densify_gradient(gradient, var), var, state)
            return
        hook = cls._resource_apply_sparse_duplicate_indices
        extra = {"apply_state": state} if _accepts(hook, "apply_state", 4) else {}
        self._resource_apply_sparse_duplicate_indices(
            gradient.values, var, gradient.indices, **extra
        )

    # Optimizers that wrap another one read the names of the parameters of its hooks.
    @property
    def _dense_apply_args(self) -> list[str]:
        return inspect.getfullargspec(self._resource_apply_dense).args

    @property
    def _sparse_apply_args(self) -> list[str]:
        return inspect.getfullargspec(self._resource_apply_sparse).args

    @overridable
    def _resource_apply_dense(
        self, grad: Tensor, var: Variable, apply_state: ApplyState | None = None
    ) -> Any:
        """Update one variable; subclasses of users override this method or `update_step`."""
        raise NotImplementedError(
            f"{type(self).__name__} must define `_resource_apply_dense` or `update_step`."
        )

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, var: Variable, indices: Tensor, **kwargs: Any
    ) -> Any:
        """Update rows of one variable with indices that may repeat."""
        cls = type(self)
        if cls._resource_apply_sparse is UpdateHooks._resource_apply_sparse:
            slices = IndexedSlices(grad, indices)
            return self._apply_dense(densify_gradient(slices, var), var, kwargs.get("apply_state"))
        if not _accepts(cls._resource_apply_sparse, "apply_state", 4):
            kwargs = {}
        return self._resource_apply_sparse(*_sum_duplicates(grad, var, indices), **kwargs)

    @overridable
    def _resource_apply_sparse(
        self, grad: Tensor, var: Variable, indices: Tensor, apply_state: ApplyState | None = None
    ) -> Any:
        """Update rows of one variable; without this hook gradients are made dense."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def _get_row_updated_variables(self, var: Variable) -> list[Variable]:
        """Return the variable and its slots if updates by rows change those rows only, else []."""
        return []

    def _resource_scatter_add(self, x: Variable, i: Tensor, v: Tensor) -> Tensor:
        return x.scatter_add(IndexedSlices(v, i)).value()

    def _resource_scatter_update(self, x: Variable, i: Tensor, v: Tensor) -> Tensor:
        return x.scatter_update(IndexedSlices(v, i)).value()

    @overridable
    def update_step(self, gradient: Tensor, variable: Variable) -> Any:
        """Update one variable; the hook of Keras 2.11 and later.

        Args:
          gradient: The gradient.
          variable: The variable.
        """
        self._apply_dense(gradient, variable, self._prepare([variable]))


def get_device_and_dtype(var: Variable) -> tuple[str, DType]:
    """Return the key of a step's scalars for a variable: its device and dtype."""
    return var.device, var.dtype.base_dtype


# Signatures of methods; the cache does not keep the methods alive.
_accepts_cache: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, bool]] = (
    weakref.WeakKeyDictionary()
)


def _accepts(function: Callable[..., Any], name: str, position: int) -> bool:
    """Check whether a method takes an argument by name or as positional argument `position`."""
    answers = _accepts_cache.setdefault(function, {})
    if (name, position) not in answers:
        answers[name, position] = _inspect_accepts(function, name, position)
    return answers[name, position]


def _inspect_accepts(function: Callable[..., Any], name: str, position: int) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    kinds = {p.kind for p in parameters}
    by_keyword = name in {p.name for p in parameters} or inspect.Parameter.VAR_KEYWORD in kinds
    positional = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return by_keyword or len(positional) > position or inspect.Parameter.VAR_POSITIONAL in kinds


def check_gradient_rows(pairs: Iterable[tuple[Any, Variable]]) -> list[tuple[Any, Variable]]:
    """Check that the rows of sparse gradients are rows of their variables; return the pairs."""
    checked = []
    for gradient, var in pairs:
        if isinstance(gradient, IndexedSlices):
            indices = check_indices(gradient.indices, var.shape[0], False, allows_padding=True)
            if indices is not gradient.indices:
                indices._skips_bounds_check = True
                gradient = IndexedSlices(gradient.values, indices, gradient.dense_shape)
        checked.append((gradient, var))
    return checked


def densify_gradient(slices: IndexedSlices, var: Variable) -> Tensor:
    """Convert a gradient of some rows to a dense tensor of the variable's shape."""
    return convert_to_tensor(IndexedSlices(slices.values, slices.indices, list(var.shape)))


def _sum_duplicates(
    grad: Tensor, var: Variable, indices: Tensor
) -> tuple[Tensor, Variable, Tensor]:
    """Sum the rows with equal indices; return the sums, the variable and the unique indices."""
    if context.trace is None:
        unique, position = np.unique(indices.numpy(), return_inverse=True)
        segments = convert_to_tensor(position.astype(np.int32).reshape(-1))
        return (
            math.unsorted_segment_sum(grad, segments, len(unique)),
            var,
            convert_to_tensor(unique),
        )
    # The number of unique indices is unknown in a trace. The unused ones are past the end of the
    # variable, where writes have no effect.
    unique_indices, total = apply(_SUM_ROWS, (convert_to_tensor(grad), indices), (var.shape[0],))
    unique_indices._skips_bounds_check = True
    return total, var, unique_indices


_SUM_ROWS = Op(
    "sum_rows",
    lambda operands, static: sum_duplicate_rows(*operands, *static),
    differentiable=False,
)
