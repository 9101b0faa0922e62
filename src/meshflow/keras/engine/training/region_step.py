"""Training steps under strategies that compute loss and gradients themselves, on each device."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.tracing.trace import trace
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import constant, convert_registered
from meshflow.core.values.dtypes import float32, float64, string
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable, VariableAggregation
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.program import CompressionState, RegionResult, UpdateGroup
from meshflow.distribute.parallel.stage_buffers import StageBuffer, get_storage
from meshflow.distribute.parallel.step_region import count_step_loops
from meshflow.distribute.parallel.step_shares import StepNotSplitError
from meshflow.distribute.replicas.shares import BatchShares, current_shares, rematerialization_scope
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers
from meshflow.keras.engine.training.global_batch import find_strategy
from meshflow.keras.engine.training.host_preprocessing import get_host_values, runs_on_host
from meshflow.keras.engine.training.share_losses import is_defined_by_user, scale_user_loss
from meshflow.ops import math

__all__ = [
    "ModelProgram",
    "compute_loss_and_gradients",
    "count_gradient_loops",
    "delegates_gradients",
    "evaluate_batch",
    "find_gradient_strategy",
    "predict_batch",
    "warn_about_own_gradients",
]

_OWN_STEP_ADVICE = (
    "Override compute_loss(x, y, y_pred, sample_weight) instead, or call super().train_step(data)"
)
_is_probing: ContextVar[bool] = ContextVar("asked", default=False)
# Models that need values in Python, so that a strategy computes their steps by layouts only; models
# about which a warning was issued.
_layout_models: weakref.WeakSet[Any] = weakref.WeakSet()
_warned_models: weakref.WeakSet[Any] = weakref.WeakSet()
# Models with a training step of their own that delegates the gradients to Keras, and the reasons for
# which the steps of others are not computed in shares of a batch.
_delegating_models: weakref.WeakSet[Any] = weakref.WeakSet()
_reasons: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class GradientStrategy(Protocol):
    """A strategy that computes loss and gradients itself, such as `MeshStrategy`."""

    options: ParallelOptions

    def compute_gradients(
        self, program: ModelProgram, x: PyTree, y: PyTree, sample_weight: PyTree
    ) -> RegionResult: ...
    def compute_predictions(
        self, program: ModelProgram, x: PyTree, y: PyTree, sample_weight: PyTree
    ) -> RegionResult: ...


class _GradientsDelegated(BaseException):
    """Signal that a training step delegates its gradients to Keras, which ends the trace of a probe."""


def delegates_gradients(model: Any, batch: PyTree) -> bool:
    """Check, by tracing it, whether a user-defined `train_step` delegates loss and gradients to Keras.

    Args:
      model: A compiled model; its variables need no values.
      batch: Argument of the step, with arrays, tensors or specs as leaves.
    """
    try:
        _probe(model, convert_if_enabled(model.train_step), batch)
    except _GradientsDelegated:
        return True
    return False


class _MicroBatches:
    """Options of a strategy with two micro-batches on one device, for a trace that does not run."""

    options = ParallelOptions(micro_batches=2)
    batch_dimensions = zero_dimensions = ()
    scratch = mesh = None


def count_gradient_loops(model: Any, batch: PyTree) -> int:
    """Count the loops over micro-batches in which a `train_step` with gradients of its own runs, by tracing it.

    Args:
      model: A compiled model; its variables need no values.
      batch: Argument of the step, with arrays, tensors or specs as leaves.

    Returns:
      The number, or 0 if micro-batches cannot compute the step.
    """
    strategy: Any = _MicroBatches()
    found = 0

    def run(data: PyTree) -> None:
        nonlocal found
        states, step = _make_share_step(model, model.train_step)
        found = count_step_loops(strategy, step, data, states.list_written)

    return found if _probe(model, run, batch) else 0


def _probe(model: Any, function: Callable[[PyTree], object], batch: PyTree) -> bool:
    """Trace a function of a batch, and return whether it has neither failed nor delegated its gradients."""
    specs = [TensorSpec(tuple(v.shape), v.dtype) for v in nest.flatten(batch) if v is not None]

    def run(*rows: Any) -> PyTree:
        supply = iter(rows)
        return function(nest.map_structure(lambda v: None if v is None else next(supply), batch))

    token = _is_probing.set(True)
    try:
        trace(run, tuple(specs), name="asked", isolated=True)
    except Exception:
        # The step's own errors appear when it runs.
        return False
    finally:
        _is_probing.reset(token)
        model._clear_losses()
    return True


def find_gradient_strategy(model: Any, batch: PyTree = None) -> GradientStrategy | None:
    """Return the model's strategy if it computes the gradients of a batch, otherwise None."""
    if _is_probing.get():
        raise _GradientsDelegated
    if model in _layout_models:
        return None
    strategy: Any = find_strategy(model)
    needs_shares = _measures_shares(model) and getattr(strategy, "divides_batches", False)
    computes_gradients = needs_shares or getattr(strategy, "computes_gradients", False)
    if not computes_gradients:
        return None
    leaves, host = nest.flatten(batch), get_host_values()
    used = leaves if host is None else [*leaves, *nest.flatten(host.values)]
    composite = next((v for v in used if isinstance(v, CompositeTensor)), None)
    if composite is not None:
        _warn_about_options(
            model,
            strategy,
            f"a batch of {model.name!r} contains a {type(composite).__name__}, the rows of which have different sizes",
            "Pad the rows to one length (to_tensor, tf.keras.utils.pad_sequences)",
        )
        return None
    has_text = any(getattr(v, "dtype", None) is string for v in leaves)
    if has_text and host is None:
        layer = next((v.name for v in flatten_layers(model) if runs_on_host(v)), model.name)
        _warn_about_options(
            model,
            strategy,
            f"the layer {layer!r} of {model.name!r} computes with strings, which no device can, in the middle of the model",
            "Call the layer in the dataset's map, or make a functional or Sequential model, the host part of which runs first",
        )
        return None
    return strategy


def _measures_shares(model: Any) -> bool:
    """Check whether the model's optimizer uses the gradient norms of the shares of a batch."""
    return getattr(getattr(model, "optimizer", None), "_needs_share_norms", False)


class ModelProgram:
    """A model's forward pass and loss for a share of a batch; see `LossProgram`.

    Args:
      model: A compiled model.
      training: Whether its layers run in training mode.

    Attributes:
      metrics: The running means that the recorded values of the loss belong to, in order; known
        once `compute_loss` was traced.
    """

    def __init__(self, model: Any, training: bool = True) -> None:
        self.model = model
        self.optimizer: Any = getattr(model, "optimizer", None)
        self.training = training
        self.metrics: list[Any] = []
        self.needs_gradient_norms = training and _measures_shares(model)
        self._host = get_host_values()

    @property
    def variables(self) -> Sequence[Variable]:
        """Return the variables to differentiate by.

        A model that is built by its first call has none before that call.
        """
        return self.model.trainable_variables

    def bind_inputs(self, x: PyTree) -> PyTree:
        """Return inputs for `run` with the results of the host part, which are split by rows, too."""
        return x if self._host is None else (self._host.values, x)

    def run(self, x: PyTree, y: PyTree, sample_weight: PyTree) -> tuple[Any, list[Any], PyTree]:
        """Compute the loss, the recorded values, and the predictions with masks; see `LossProgram`.

        Args:
          x: Inputs of `bind_inputs`.
          y: Targets.
          sample_weight: Weights of the examples.
        """
        scope: AbstractContextManager[None] = nullcontext()
        if self._host is not None:
            values, x = x
            scope = self._host.part.substitute_values(values, x)
        try:
            with scope:
                y_pred = self.forward(x)
            loss, noted = self.compute_loss(x, y, y_pred, sample_weight)
        finally:
            # The collected losses are tensors of this trace.
            self.model._clear_losses()
        masks = [getattr(p, "_keras_mask", None) for p in nest.flatten(y_pred)]
        return loss, noted, (y_pred, masks)

    def get_update_group(self, variable: Variable) -> UpdateGroup | None:
        """Return a key of the weights that the optimizer updates together; see `LossProgram`."""
        find_group = getattr(self.optimizer, "get_update_group", lambda _: None)
        return find_group(variable)

    def add_slot(self, variable: Variable, name: str, shape: ShapeLike) -> Variable:
        """Add a slot to a variable; see `LossProgram`."""
        # The optimizer's own slots precede added ones.
        self.optimizer.build(self.variables)
        return self.optimizer.add_slot(variable, name, shape=shape)

    def restore_slots(self) -> None:
        """Restore the values of added slots; see `LossProgram`."""
        self.optimizer._run_build_hooks()

    def get_compression_state(self) -> CompressionState:
        """Return the optimizer's state for compressed gradients; see `LossProgram`."""
        optimizer = self.optimizer
        unit_loss = constant(1.0)
        scale = getattr(optimizer, "_transform_loss", lambda loss: loss)(unit_loss)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        settings = (
            inner._get_compression_settings() if hasattr(inner, "_get_compression_settings") else {}
        )
        return CompressionState(
            optimizer.iterations.value(), None if scale is unit_loss else scale, **settings
        )

    def forward(self, x: PyTree) -> PyTree:
        """Return the model's predictions."""
        return self.model(x, training=self.training)

    def compute_loss(
        self, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree
    ) -> tuple[Any, list[Any]]:
        """Compute the loss, as the optimizer scales it, and the values to report."""
        shares = current_shares()
        assert isinstance(shares, BatchShares)
        shares.metric_values.clear()
        loss = self.model.compute_loss(x, y, y_pred, sample_weight)
        self.model._validate_loss(y, loss)
        compute_loss = type(self.model).compute_loss
        if is_defined_by_user(compute_loss) and not loss.ndim:
            loss = scale_user_loss(
                self.model.compute_loss,
                (x, y, y_pred, sample_weight),
                loss,
                shares,
                f"{type(self.model).__name__}.compute_loss",
            )
        if loss.ndim:
            # A loss per example counts as the sum of its elements, as for a gradient tape.
            loss = math.reduce_sum(loss) * shares.sum_factor
        self.metrics = [metric for metric, _ in shares.metric_values]
        recorded = [
            math.reduce_mean(
                math.cast(value, float64 if getattr(value, "dtype", None) is float64 else float32)
            )
            for _, value in shares.metric_values
        ]
        scale_loss = getattr(self.model.optimizer, "_transform_loss", lambda given: given)
        return scale_loss(loss), recorded


def compute_loss_and_gradients(
    model: Any, strategy: GradientStrategy, x: PyTree, y: PyTree, sample_weight: PyTree
) -> tuple[PyTree, list[tuple[Any, Variable]]]:
    """Compute the gradients of a global batch by a strategy, and update the running means of the loss.

    Args:
      model: The compiled model.
      strategy: The strategy.
      x: Inputs.
      y: Targets.
      sample_weight: Weights of the examples.

    Returns:
      The predictions, and (gradient, variable) pairs.
    """
    _GradientCalls.count += 1
    program = ModelProgram(model)
    with _fall_back_if_value_needed(model, strategy):
        result = strategy.compute_gradients(program, program.bind_inputs(x), y, sample_weight)
    y_pred = _collect_predictions(program, result, x)
    unscale = getattr(model.optimizer, "get_unscaled_gradients", lambda gradients: gradients)
    if result.squared_norms is not None:
        (squares,) = unscale(unscale([result.squared_norms]))
        model.optimizer._set_share_norms(squares, result.num_shares)
    variables = program.variables if result.variables is None else result.variables
    _place_slots(model.optimizer, program, result)
    return y_pred, list(zip(unscale(result.gradients), variables, strict=True))


def _place_slots(optimizer: Any, program: ModelProgram, result: RegionResult) -> None:
    """Move the slots of resident weights to the devices of their stages."""
    storages = {id(v): v for v in map(get_storage, result.variables or ())}
    buffers = [v for v in storages.values() if isinstance(v, StageBuffer)]
    if not buffers:
        return
    pairs = zip(result.gradients, result.variables or (), strict=True)
    unused = {id(v) for gradient, v in pairs if gradient is None and optimizer._is_keras_2}
    # Slots have the order of the weights.
    optimizer.build([v for v in program.variables if id(v) not in unused])
    for buffer in buffers:
        optimizer.place_slots(buffer)


@contextmanager
def _fall_back_if_value_needed(model: Any, strategy: GradientStrategy) -> Iterator[None]:
    """Compute a model by layouts from now on if its Python needs values of a split batch."""
    try:
        yield
    except ValueNeededError as error:
        _layout_models.add(model)
        _warn_about_options(
            model,
            strategy,
            f"{model.name!r} needs a value of the batch in Python ({error})",
            "Use ops of tf there",
        )
        raise


class _OptimizerProgram(ModelProgram):
    """The state of one of the optimizers of a model, and the variables that it updates."""

    def __init__(self, model: Any, optimizer: Any, variables: list[Variable]) -> None:
        super().__init__(model)
        self.optimizer, self._variables = optimizer, variables

    @property
    def variables(self) -> Sequence[Variable]:
        return self._variables


def _divide_by_optimizers(model: Any, variables: Sequence[Variable]) -> list[_OptimizerProgram]:
    """Divide variables by the optimizers among a model's attributes, and in their collections, that update them."""
    owners: dict[int, Any] = {}
    for optimizer in model._flatten(False, lambda leaf: hasattr(leaf, "apply_gradients")):
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        owners = {id(v): optimizer for v in getattr(inner, "_owners", {}).values()} | owners
    found: dict[int, tuple[Any, list[Variable]]] = {}
    for variable in variables:
        owner = owners.get(id(variable), model.optimizer)
        found.setdefault(id(owner), (owner, []))[1].append(variable)
    return [_OptimizerProgram(model, owner, owned) for owner, owned in found.values()]


class _PredictionProgram(ModelProgram):
    """A model's forward pass with a loss of zero."""

    def compute_loss(
        self, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree
    ) -> tuple[Any, list[Any]]:
        return constant(0.0), []


def evaluate_batch(model: Any, x: PyTree, y: PyTree, sample_weight: PyTree) -> PyTree:
    """Predict a global batch, and update the running means of the loss.

    Args:
      model: The compiled model.
      x: Inputs.
      y: Targets.
      sample_weight: Weights of the examples.
    """
    strategy = find_gradient_strategy(model, (x, y))
    if y is None or strategy is None or not getattr(strategy, "computes_predictions", False):
        y_pred = predict_batch(model, x)
        model.compute_loss(x, y, y_pred, sample_weight)
        return y_pred
    program = ModelProgram(model, training=False)
    with _fall_back_if_value_needed(model, strategy):
        result = strategy.compute_predictions(program, program.bind_inputs(x), y, sample_weight)
    return _collect_predictions(program, result, x)


def predict_batch(model: Any, x: PyTree) -> PyTree:
    """Predict a global batch."""
    strategy = find_gradient_strategy(model, x)
    if strategy is None or not getattr(strategy, "computes_predictions", False):
        return nest.map_structure(convert_registered, model(x, training=False))
    program = _PredictionProgram(model, training=False)
    with _fall_back_if_value_needed(model, strategy):
        result = strategy.compute_predictions(program, program.bind_inputs(x), None, None)
    return _collect_predictions(program, result, x)


def _collect_predictions(program: ModelProgram, result: RegionResult, x: PyTree) -> PyTree:
    """Return the predictions with their masks, and update the running means with the recorded values."""
    y_pred, masks = result.predictions
    for prediction, mask in zip(nest.flatten(y_pred), masks, strict=True):
        if mask is not None:
            prediction._keras_mask = mask
    rows = nest.flatten(x)[0].shape[0]
    for metric, value in zip(program.metrics, result.metric_values, strict=True):
        metric.update_state(value, sample_weight=rows)
    return y_pred


class _GradientCalls:
    """Counter of the calls of `compute_loss_and_gradients`."""

    count = 0


class _LayerStates:
    """Recorder of the states of layers that only their calls update while a step is traced.

    The model's own variables, such as counters and moving averages, are those of the step.

    Args:
      model: The model.
    """

    def __init__(self, model: Any) -> None:
        self._labels: Any = None
        self._states = [
            v
            for layer in flatten_layers(model, include_self=False)
            for v in layer._non_trainable_weights
            if v.aggregation is not VariableAggregation.SUM
        ]
        self._is_inside = False
        self._values: dict[int, Any] = {}
        self._by_layers: set[int] = set()
        self._by_step: set[int] = set()

    def list_written(self) -> list[Variable]:
        """Return the states that calls of layers have updated, and the step itself has not."""
        written = self._by_layers - self._by_step
        return [v for v in self._states if id(v) in written]

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record updates in the current trace while the context is open."""
        saved, context.label_layer = context.label_layer, self
        self._trace: Any = context.trace
        self._values.clear()
        self._labels = saved
        try:
            yield
            self._note_updates(self._by_step)
        finally:
            context.label_layer = saved

    @contextmanager
    def __call__(self, layer: Any, whole: bool = False) -> Iterator[None]:
        """Open the scope in which a layer computes."""
        with nullcontext() if self._labels is None else self._labels(layer, whole):
            if self._is_inside or context.trace is not self._trace:
                yield
                return
            self._note_updates(self._by_step)
            self._is_inside = True
            try:
                yield
            finally:
                self._is_inside = False
            self._note_updates(self._by_layers)

    def _note_updates(self, found: set[int]) -> None:
        """Add the states that have been updated since the last call of this method."""
        for state in self._states:
            if id(state) in self._trace.writes:
                value = self._trace.read(state)
                if value is not self._values.get(id(state)):
                    self._values[id(state)] = value
                    found.add(id(state))


def _make_share_step(
    model: Any, step: Callable[[PyTree], PyTree]
) -> tuple[_LayerStates, Callable[[PyTree], PyTree]]:
    """Return the recorder of the states that a step updates by layers, and the step to trace.

    If the model has a host part, the argument of this step contains the results of that part, too.
    """
    states, host = _LayerStates(model), get_host_values()

    def run(batch: PyTree) -> PyTree:
        scope: AbstractContextManager[None] = nullcontext()
        if host is not None:
            values, batch = batch
            scope = host.part.substitute_values(
                values, batch[0] if isinstance(batch, tuple) else batch
            )
        try:
            with scope, states.record():
                return convert_if_enabled(step)(batch)
        finally:
            model._clear_losses()

    return states, run


def _run_in_shares(model: Any, step: Callable[[PyTree], Any], data: PyTree) -> tuple[bool, Any]:
    """Run a step that computes gradients itself in shares of the batch, if options request it.

    Returns:
      Whether the step has run, and its result.
    """
    is_own = is_defined_by_user(step) and model not in _delegating_models
    strategy: Any = find_gradient_strategy(model, data) if is_own and context.trace else None
    has_shares = getattr(getattr(strategy, "options", None), "splits_own_steps", False)
    if not has_shares or strategy.scratch is not None:
        return False, None

    host = get_host_values()
    rows = data if host is None else (host.values, data)
    states, run = _make_share_step(model, step)
    token = _is_probing.set(True)
    try:
        result, reason = strategy.run_step(
            run, rows, states.list_written, model, functools.partial(_divide_by_optimizers, model)
        )
        if reason is not None:
            _reasons[model] = reason
        is_pipelined = strategy.options.pipeline is not None and reason is None
        _warn_about_options(
            model, strategy, _get_reason(model), _OWN_STEP_ADVICE, True, True, is_pipelined
        )
        return True, result
    except _GradientsDelegated:
        _delegating_models.add(model)
    except Exception as error:
        # An error of the step itself appears when it runs without shares.
        _reasons[model] = (
            str(error)
            if isinstance(error, StepNotSplitError)
            else f"failed for a share of a batch ({error})"
        )
    finally:
        _is_probing.reset(token)
    return False, None


def warn_about_own_gradients(model: Any, step: Callable[[PyTree], Any]) -> Callable[[PyTree], Any]:
    """Wrap a training step so that it warns about options without effect on gradients of its own.

    A compiled step with such gradients is computed in shares of the batch, if options request it and the step
    allows it. Otherwise XLA partitions the step by the layouts of the weights, as it does a custom training loop.
    """

    @functools.wraps(step)
    def run(data: PyTree) -> Any:
        before, had_fallen_back = _GradientCalls.count, model in _layout_models
        is_done, result = _run_in_shares(model, step, data)
        if is_done:
            return result
        own_strategy: Any = find_strategy(model)
        # Layers that need values run op by op, and cannot be traced for rematerialization.
        is_traced = context.trace is not None and getattr(own_strategy, "computes_gradients", False)
        scope = rematerialization_scope(own_strategy) if is_traced else nullcontext()
        try:
            with scope:
                result = convert_if_enabled(step)(data)
        except ValueNeededError:
            if context.trace is not None or had_fallen_back or model not in _layout_models:
                # A compiled step runs again, op by op.
                raise
            result = step(data)
        strategy = find_gradient_strategy(model, data)
        if strategy is not None and _GradientCalls.count == before:
            _warn_about_options(
                model,
                strategy,
                _get_reason(model),
                _OWN_STEP_ADVICE,
                is_compiled=context.trace is not None,
            )
        return result

    return run


def _get_reason(model: Any) -> str:
    """Return the reason for which options have no effect on a step with gradients of its own."""
    detail = f" and {_reasons[model]}" if model in _reasons else ""
    return f"{type(model).__name__}.train_step computes gradients itself{detail}"


def _warn_about_options(
    model: Any,
    strategy: GradientStrategy,
    reason: str,
    advice: str,
    is_compiled: bool = False,
    has_shares: bool = False,
    has_pipeline: bool = False,
) -> None:
    """Warn once that options have no effect, because the strategy does not compute the gradients of a model."""
    options = strategy.options.get_loss_options(is_compiled, has_shares, has_pipeline)
    if options and model not in _warned_models:
        _warned_models.add(model)
        warnings.warn(
            f"MeshStrategy: {reason}, so the options {options} have no effect: they split the loss. The step is "
            f"partitioned by the layouts of the weights only, as a custom training loop. {advice}.",
            stacklevel=2,
        )
