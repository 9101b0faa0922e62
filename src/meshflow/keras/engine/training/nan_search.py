"""The search for the step, op and rows that cause the first NaN of a training.

The values of all variables that a step writes are kept at a step, and the batches since. Every few
steps one program checks these values and the losses. If they are not finite, the steps are repeated
from there, with a check after each one. The step that fails is traced with labels, and
`passes.nan_origin` finds the equation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.environment.types import Array, PyTree
from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers
from meshflow.keras.engine.training import training_steps
from meshflow.keras.engine.training.data_adapter import unpack_x_y_sample_weight
from meshflow.keras.engine.training.op_labels import OpLabels, SourceLine
from meshflow.keras.engine.training.step import CompiledStep, as_tensors, is_remote
from meshflow.passes.nan_origin import NaNOrigin, find_origin, has_non_finite

# Number of steps between two checks, and the bytes of batches that are kept meanwhile. If the steps take less than
# `_SHORT_SECONDS` together, the number doubles, up to `_MAX_SHORT_STEPS`.
_MAX_STEPS, _MIN_STEPS, _MAX_BYTES = 256, 4, 1 << 28
_MAX_SHORT_STEPS, _SHORT_SECONDS = 8192, 1.0
# NumPy checks variables on the host of up to this size faster than a program.
_MAX_HOST_BYTES = 1 << 20
_MAX_LISTED_ROWS = 16


@dataclass
class NaNReport:
    """The first NaN or infinity of a training.

    Attributes:
      step: Index of the step in this call of `fit`, from 0.
      epoch: Index of the epoch, from 0.
      batch: Index of the batch in the epoch, from 0.
      layer: Name of the layer, or "loss", "metrics" or "optimizer"; None if it is unknown.
      op: Name of the op; None if the value is in the data or in a variable, or unknown.
      is_gradient: Whether the value is in the gradient of the op.
      source: The line of the user's program that calls the op; for a layer or loss of Meshflow its
        own line.
      rows: Indices of the examples in the batch that lead to the value; None if unknown.
      location: The part of the batch or the variable that has the value, if no op computes it.
      value: "NaN" or "infinity".
      details: Further lines: the operands of the op, and how the value spreads.
    """

    step: int
    epoch: int
    batch: int
    layer: str | None = None
    op: str | None = None
    is_gradient: bool = False
    source: SourceLine | None = None
    rows: list[int] | None = None
    location: str | None = None
    value: str = "NaN"
    details: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"First {self.value} at step {self.step} (epoch {self.epoch}, batch {self.batch} of the epoch, counted from 0)"
        ]
        if self.layer is not None:
            lines.append(f"  layer: {self.layer}")
        if self.op is not None:
            lines.append(f"  op: {'gradient of ' if self.is_gradient else ''}{self.op}")
        if self.location is not None:
            lines.append(f"  in: {self.location}")
        if self.source is not None:
            lines.append(f"  line: {self.source}")
        if self.rows is not None:
            listed = ", ".join(map(str, self.rows[:_MAX_LISTED_ROWS]))
            more = len(self.rows) - _MAX_LISTED_ROWS
            lines.append(
                f"  rows of the batch: {listed}" + (f" and {more} more" if more > 0 else "")
            )
        return "\n".join([*lines, *(f"  {line}" for line in self.details)])


class NaNSearch:
    """Runs the steps of a training, and searches for the first NaN if there is one.

    Args:
      model: The model.
      run: Function that runs a list of batches.
      on_report: Function that receives the report.
    """

    def __init__(
        self,
        model: Any,
        run: Callable[[Sequence[Any]], Any],
        on_report: Callable[[NaNReport], None],
    ) -> None:
        self._model, self._run, self._on_report = model, run, on_report
        self._batches: list[PyTree] = []
        self._results: list[Any] = []
        # Index of the first kept step. Among the kept steps, index of the first one of each epoch, with its epoch and
        # batch.
        self._first_step = 0
        self._starts: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._num_programs = -1
        # The variables that steps write or only read, and their values before the first kept step.
        self._variables: list[Any] = []
        self._read_variables: list[Any] = []
        self._values: list[Any] = []
        self._constants: list[Any] = []
        self._finite_before: np.ndarray = np.zeros(0, bool)
        # Index of a variable that sums the losses of an epoch; if there is none, the losses are kept.
        self._loss_index: int | None = None
        self._interval = self._max_steps = _MAX_STEPS
        self._start_time = 0.0
        self._is_new_epoch = False
        self._last_result: Any = None
        self._is_done = False

    def begin_epoch(self, epoch: int) -> None:
        """Record the index of the epoch that starts."""
        self._starts.append((len(self._batches), epoch, 0))
        self._is_new_epoch = True

    def run(self, batches: Sequence[PyTree]) -> PyTree:
        """Run the steps of one or several batches."""
        if self._is_done:
            return self._run(batches)
        if self._is_new_epoch or not 0 < len(self._batches) < self._interval:
            is_due = bool(self._batches) and self._is_due()
            if is_due and self.check():
                return self._last_result
            if is_due or not self._batches:
                self._save_state(batches[0])
        self._batches.extend(batches)
        result = self._last_result = self._run(batches)
        if self._loss_index is None:
            self._results.append(result)
        return result

    def _is_due(self) -> bool:
        """Check whether there are enough steps, or a callback changed a variable that they only read."""
        self._is_new_epoch = False
        values = _get_values(self._read_variables)
        is_new = any(a is not b for a, b in zip(values, self._constants, strict=True))
        return is_new or len(self._batches) >= self._interval

    def check(self) -> bool:
        """Check the steps since the last check; if they are not finite, search and report.

        Returns:
          Whether a NaN was found.
        """
        if self._is_done or not self._batches:
            return False
        losses = [loss for r in self._results if (loss := _get_loss(r)) is not None]
        if not self._has_new_nan(losses):
            return False
        self._is_done = True
        self._on_report(self._search())
        return True

    # ---- state -------------------------------------------------------------------------------

    def _save_state(self, batch: PyTree) -> None:
        """Keep the values of the variables before the step of a batch."""
        step = self._find_step(batch)
        programs = [] if step is None else step.list_programs()
        if len(programs) != self._num_programs or not programs:
            self._num_programs = len(programs)
            self._find_variables(programs, batch)
        self._constants = _get_values(self._read_variables)
        self._values = _get_values(self._variables)
        count, now = len(self._batches), time.monotonic()
        if count and now - self._start_time < _SHORT_SECONDS:
            self._max_steps = min(2 * self._max_steps, _MAX_SHORT_STEPS)
        self._start_time = now
        self._first_step += count
        self._starts = [(0, *self._get_position(count))]
        self._batches, self._results = [], []
        size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(batch))
        self._interval = max(_MIN_STEPS, min(self._max_steps, _MAX_BYTES // max(size, 1)))

    def _get_position(self, index: int) -> tuple[int, int]:
        """Return the epoch and batch of a kept step."""
        first, epoch, batch = next(s for s in reversed(self._starts) if s[0] <= index)
        return epoch, batch + index - first

    def _find_variables(self, programs: Sequence[TracedFunction], batch: PyTree) -> None:
        """Find the variables that steps write, and those that they only read."""
        model = self._model
        written = {id(v): v for program in programs for v in program.writes}
        read = {id(c): c for program in programs for c in program.captures}
        if not programs:
            if not model.built:
                model(as_tensors(unpack_x_y_sample_weight(batch)[0]), training=False)
            if hasattr(model.optimizer, "build"):
                model.optimizer.build(model.trainable_variables)
            variables = [*model.variables, *getattr(model.optimizer, "variables", ())]
            variables += [v for metric in model.metrics for v in metric.variables]
            written = {id(v): v for v in variables}
        self._variables = list(written.values())
        self._read_variables = [c for key, c in read.items() if key not in written]
        metrics = {id(v) for metric in model.metrics for v in metric.variables}
        total = self._find_loss_total() if programs else None
        self._loss_index = next((i for i, v in enumerate(self._variables) if v is total), None)
        self._finite_before, _ = _check_values(_get_values(self._variables))
        self._finite_before &= [id(v) not in metrics for v in self._variables]

    def _find_loss_total(self) -> Variable | None:
        """Return the variable that sums the losses of an epoch in the steps of `Model`, or None."""
        model = self._model
        own_methods = any(
            getattr(type(model), name).__module__ != training_steps.__name__
            for name in ("train_step", "compute_metrics")
        )
        losses = model.compiled_loss
        metrics = [] if own_methods or losses is None else losses.metrics
        return next((variable for metric in metrics[:1] for variable in metric.variables), None)

    def _find_step(self, batch: PyTree) -> CompiledStep | None:
        """Return the compiled step, traced for a batch, or None if the model runs op by op."""
        step = self._model._get_step("train")
        compiled = getattr(step, "compiled", step)
        if not isinstance(compiled, CompiledStep):
            return None
        if not compiled.list_programs():
            # Tracing creates the variables.
            captured = _capture_batch(step, compiled, batch)
            try:
                compiled.prepare(captured)
            except Exception:
                return None  # The step itself reports the error, or runs op by op.
        return compiled

    def _has_new_nan(self, losses: Sequence[Any]) -> bool:
        """Check whether a loss, or a variable that was finite, is not finite now."""
        is_finite, are_losses_finite = _check_values(_get_values(self._variables), losses)
        if self._loss_index is not None:
            are_losses_finite = bool(is_finite[self._loss_index])
        return not are_losses_finite or bool((self._finite_before & ~is_finite).any())

    # ---- search ------------------------------------------------------------------------------

    def _search(self) -> NaNReport:
        current = _get_values(self._read_variables)
        _set_values(self._read_variables, self._constants)
        try:
            return self._repeat_steps()
        finally:
            _set_values(self._read_variables, current)

    def _restore(self, values: list[Any]) -> None:
        _set_values(self._variables, values)
        if not self._num_programs:
            # Without a program, metrics may have been created after the values were kept.
            self._model.reset_metrics()

    def _repeat_steps(self) -> NaNReport:
        """Repeat the steps since the kept state, and describe the first one that fails."""
        self._restore(self._values)
        for index, batch in enumerate(self._batches):
            before = _get_values(self._variables)
            loss = _get_loss(self._run([batch]))
            results = [] if loss is None else [loss]
            are_finite, is_finite = _check_values(_get_values(self._variables), results)
            failed = np.flatnonzero(self._finite_before & ~are_finite)
            if is_finite and not failed.size:
                continue
            self._restore(before)
            report = NaNReport(self._first_step + index, *self._get_position(index))
            try:
                self._explain(report, batch, [self._variables[i] for i in failed], is_finite)
            except Exception as error:
                report.details.append(f"The op could not be found: {type(error).__name__}: {error}")
            self._restore(before)
            return report
        last = len(self._batches) - 1
        report = NaNReport(self._first_step + last, *self._get_position(last))
        report.details.append(
            f"Repeating the steps from {self._first_step} did not lead to a NaN: they depend on state outside of the model."
        )
        return report

    def _explain(
        self, report: NaNReport, batch: PyTree, failed: list[Any], is_loss_finite: bool
    ) -> None:
        """Find the equation, and describe it in a report."""
        step = self._model._get_step("train")
        compiled = getattr(step, "compiled", step)
        if not isinstance(compiled, CompiledStep):
            step = self._model._make_step("train")
            compiled = getattr(step, "compiled", step)
        captured = _capture_batch(step, compiled, batch)
        labels = OpLabels()
        with labels.record():
            traced, operands = compiled.trace_again(captured)
        failed_ids = {id(v) for v in failed}
        results = list(range(traced.num_results))
        writes = [
            traced.num_results + i for i, v in enumerate(traced.writes) if id(v) in failed_ids
        ]
        outputs = writes if is_loss_finite else results
        origin = find_origin(traced.closed_jaxpr, operands, outputs)
        if origin is None:
            origin = find_origin(traced.closed_jaxpr, operands, [*results, *writes])
        if origin is None:
            return
        size = _get_batch_size(captured)
        self._describe(report, origin, labels, size, is_loss_finite)
        if origin.operand is not None:
            names = [*_name_leaves(captured), *(_name_capture(c) for c in traced.captures)]
            report.location = names[origin.operand]
            if origin.operand >= len(jax.tree.leaves(captured)):
                report.rows = None

    def _describe(
        self,
        report: NaNReport,
        origin: NaNOrigin,
        labels: OpLabels,
        size: int,
        is_loss_finite: bool,
    ) -> None:
        has_nan = any(np.isnan(o).any() for o in map(_to_float, origin.outputs))
        report.value = "NaN" if has_nan else "infinity"
        report.rows = _find_rows(origin.outputs, size) or _find_rows(origin.inputs, size)
        if origin.equation is not None:
            label, is_gradient = labels.find(origin.scopes)
            # Factors of a gradient may be computed together with the op.
            report.is_gradient = is_gradient or is_loss_finite
            scope = origin.scopes[-1] if label is None else label.scope
            report.layer = self._find_layer(scope)
            if report.layer == "optimizer":
                report.is_gradient = False
            report.op = origin.equation.primitive.name if label is None else label.name
            report.source = None if label is None else label.source
            if origin.iteration is not None:
                report.details.append(f"iteration of the loop: {origin.iteration}")
            for kind, values in (("operand", origin.inputs), ("result", origin.outputs)):
                report.details += [f"{kind}: {_describe_array(v)}" for v in values]
        if origin.consequence is not None:
            label, is_gradient = labels.find(origin.consequence.scopes)
            if label is not None:
                name = ("the gradient of " if is_gradient else "") + label.name
                report.details.append(f"the infinity becomes NaN in {name}, {label.source}")

    def _find_layer(self, scope: str) -> str | None:
        """Return the innermost layer among the scopes of an op, or the part of the step."""
        names = {layer.name for layer in flatten_layers(self._model)}
        parts = scope.split("/")
        found = next((part for part in reversed(parts) if part in names), None)
        if found is None or found == self._model.name:
            others = [p for p in parts if p in ("loss", "metrics", "optimizer")]
            return others[-1] if others else found
        return found


def _get_values(variables: Sequence[Any]) -> list[Any]:
    """Return the arrays of variables; a step copies them before it reuses their memory."""
    return [variable._value for variable in variables]


def _set_values(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable._value = value


def _check_values(values: list[Any], losses: Sequence[Any] = ()) -> tuple[np.ndarray, bool]:
    """Return whether each value is finite, and whether all losses of steps are."""
    floats = [i for i, v in enumerate(values) if jnp.issubdtype(v.dtype, jnp.inexact)]
    arrays = [values[i] for i in floats]
    is_finite = np.ones(len(values), bool)
    if sum(a.nbytes for a in arrays) <= _MAX_HOST_BYTES and not any(map(is_remote, arrays)):
        is_finite[floats] = [np.isfinite(np.asarray(a)).all() for a in arrays]
        numbers = [np.asarray(loss).reshape(-1) for loss in losses]
        return is_finite, not numbers or bool(np.isfinite(np.concatenate(numbers)).all())
    are_losses_finite = True
    for start in range(0, len(losses) or 1, _MAX_STEPS):
        part = losses[start : start + _MAX_STEPS] or [np.float32(0.0)]
        # A fixed number of losses does not require several programs.
        count = 1 if len(losses) <= 1 else _MAX_STEPS
        padded = [*part, *[part[-1]] * (count - len(part))]
        *flags, flag = np.asarray(_find_non_finite([] if start else arrays, padded))
        are_losses_finite &= not flag
        if not start:
            is_finite[floats] = ~np.array(flags, bool)
    return is_finite, are_losses_finite


@jax.jit
def _find_non_finite(values: list[Any], losses: list[Any]) -> Array:
    """Return for each value, and for the losses together, whether it is not finite."""
    flags = [has_non_finite(value) for value in values]
    return jnp.stack([*flags, jnp.stack([has_non_finite(jnp.asarray(x)) for x in losses]).any()])


def _get_loss(result: PyTree) -> Array | None:
    """Return the loss among the results of a step, all its metrics if there is none, or None."""
    if not isinstance(result, dict):
        return None
    values = [result["loss"]] if "loss" in result else list(result.values())
    arrays = [v.array if isinstance(v, Tensor) else v for v in values]
    arrays = [a for a in arrays if np.ndim(a) == 0 and not isinstance(a, (str, bytes))]
    return arrays[0] if len(arrays) == 1 else (np.stack(arrays) if arrays else None)


def _capture_batch(step: Any, compiled: CompiledStep, batch: PyTree) -> PyTree:
    """Return the batch that the compiled part of a step receives."""
    if step is compiled:
        return batch
    captured: list[PyTree] = []

    def intercept(inner: PyTree) -> dict[str, Any]:
        captured.append(inner)
        return {}

    compiled.intercept = intercept
    try:
        step(batch)
    finally:
        compiled.intercept = None
    return captured[0]


def _get_batch_size(batch: PyTree) -> int:
    sizes = [leaf.shape[0] for leaf in jax.tree.leaves(batch) if getattr(leaf, "ndim", 0)]
    return sizes[0] if sizes else 0


def _to_float(array: np.ndarray) -> np.ndarray:
    is_float = jnp.issubdtype(array.dtype, jnp.inexact)
    if not is_float:
        return np.zeros(array.shape, np.float32)
    return array if array.dtype.kind in "fc" else array.astype(np.float32)


def _find_rows(arrays: Sequence[np.ndarray], size: int) -> list[int] | None:
    """Return the rows of the batch with a NaN or an infinity in one of several arrays."""
    rows: set[int] = set()
    for array in map(_to_float, arrays):
        # Layers may merge the batch with a second axis.
        if size and array.ndim and array.shape[0] and array.shape[0] % size == 0:
            bad = ~np.isfinite(array).reshape(size, -1).all(axis=1)
            rows.update(np.flatnonzero(bad).tolist())
    return sorted(rows) or None


def _describe_array(array: np.ndarray) -> str:
    text = f"{array.dtype.name}{list(array.shape)}"
    values = _to_float(array)
    if not jnp.issubdtype(array.dtype, jnp.inexact) or not array.size or values.dtype.kind == "c":
        return text
    finite = values[np.isfinite(values)]
    parts = [f"from {finite.min():.6g} to {finite.max():.6g}"] if finite.size else []
    for name, count in (("NaN", np.isnan(values).sum()), ("infinite", np.isinf(values).sum())):
        if count:
            parts.append(f"{count} of {array.size} {name}")
    return f"{text}, {', '.join(parts)}"


def _name_leaves(batch: PyTree) -> list[str]:
    """Return the names of the arrays of a batch."""
    labels = ("x", "y", "sample_weight")
    parts = batch if isinstance(batch, tuple) and len(batch) <= len(labels) else (batch,)
    return [
        f"the data, {labels[path[0].idx]}{jax.tree_util.keystr(path[1:])}"
        for path, _ in jax.tree_util.tree_leaves_with_path(parts)
    ]


def _name_capture(capture: Tensor | Variable) -> str:
    return (
        f"the variable {get_full_name(capture)}" if isinstance(capture, Variable) else "a constant"
    )
