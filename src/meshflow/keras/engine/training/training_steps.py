"""The computation of one training, test or predict step, and its compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.dispatch.tiers import RunForecast
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.stateless import call_stateless, is_traced_by_jax
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.annotations import annotate_scope
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree, overridable
from meshflow.keras.engine.training.compile_utils import LossesContainer, MetricsContainer
from meshflow.keras.engine.training.data_adapter import unpack_x_y_sample_weight
from meshflow.keras.engine.training.global_batch import (
    place_step,
    warn_about_unused_layouts,
    weight_creation_scope,
)
from meshflow.keras.engine.training.host_preprocessing import HostPreprocessingStep, needs_host
from meshflow.keras.engine.training.pure_steps import bind_state, takes_state
from meshflow.keras.engine.training.region_step import (
    ModelProgram,
    compute_loss_and_gradients,
    count_gradient_loops,
    delegates_gradients,
    evaluate_batch,
    find_gradient_strategy,
    predict_batch,
    warn_about_own_gradients,
)
from meshflow.keras.engine.training.step import CompiledStep, as_tensors
from meshflow.keras.engine.training.step_counters import StepCounterMethods
from meshflow.keras.metrics import Metric
from meshflow.keras.optimizers import Optimizer


class TrainingSteps(StepCounterMethods):
    """The steps of a model, which users may override; a base class of `Trainer`."""

    optimizer: Optimizer
    loss: PyTree
    compiled_loss: LossesContainer
    compiled_metrics: MetricsContainer
    train_function: Any
    test_function: Any
    predict_function: Any
    _steps: dict[str, Any]
    built: bool
    _steps_per_execution: int

    if TYPE_CHECKING:
        # `Trainer` and `Layer` provide these members.
        @property
        def name(self) -> str:
            """Return the name of the model."""

        @property
        def losses(self) -> list[Tensor]:
            """Return the scalar losses of `add_loss` and of regularizers."""

        @property
        def metrics(self) -> Sequence[Metric]:
            """Return all metrics, including those of layers."""

        @property
        def run_eagerly(self) -> bool:
            """Check whether steps run as plain Python."""

        @property
        def trainable_variables(self) -> list[Variable]:
            """Return the variables that the optimizer updates."""

        def _clear_losses(self) -> None: ...

        def _forget_loss_values(self) -> None: ...

        _jit_compile: bool | None

        def _flatten_layers(
            self, recursive: bool = ..., include_self: bool = ...
        ) -> Iterator[Any]: ...

        def _compiled_trainable_scope(self, kind: str) -> AbstractContextManager[None]:
            """Train the layers that were trainable when the model was compiled."""

    @overridable
    def train_step(self, data: PyTree) -> dict[str, Any]:
        """Run one training step on a batch.

        Args:
          data: A tensor, or a tuple (x,), (x, y) or (x, y, sample_weight).

        Returns:
          Metric values by name.

        Example:
          >>> class Doubled(tf.keras.Sequential):
          ...     def train_step(self, data):
          ...         x, y = data
          ...         return super().train_step((2.0 * x, y))
          >>> model = Doubled([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.compile("sgd", "mse")
          >>> model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), verbose=0).history["loss"]
          [4.0]
        """
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        strategy = find_gradient_strategy(self, (x, y))
        if strategy is not None:
            y_pred, pairs = compute_loss_and_gradients(self, strategy, x, y, sample_weight)
            self.optimizer.apply_gradients(pairs)
        else:
            with GradientTape() as tape:
                y_pred = self(x, training=True)  # type: ignore[operator]
                loss = self.compute_loss(x, y, y_pred, sample_weight)
            self._validate_loss(y, loss)
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        optimizer_logs: dict[str, Any] = getattr(self.optimizer, "_get_extra_logs", dict)()
        return {**self.compute_metrics(x, y, y_pred, sample_weight), **optimizer_logs}

    def _validate_loss(self, y: PyTree, loss: Tensor | None) -> None:
        if loss is not None:
            return
        if self.compiled_loss is not None and self.loss and y is None:
            raise InvalidValueError(
                "Target data is missing. Your model was compiled with "
                f"loss={self.loss}, and therefore expects target data to be provided in `fit()`."
            )
        raise ValueError(
            "No loss found. You may have forgotten to provide a `loss` argument in the `compile()` method."
        )

    @overridable
    def compute_loss(
        self,
        x: PyTree = None,
        y: PyTree = None,
        y_pred: PyTree = None,
        sample_weight: PyTree = None,
    ) -> Tensor:
        """Compute the loss that training minimizes: the losses of `compile` and of the layers.

        Args:
          x: Inputs, which the default implementation ignores.
          y: Targets.
          y_pred: The model's outputs.
          sample_weight: Weights per example.

        Returns:
          A scalar tensor, or None if the model has no loss.
        """
        del x
        container = self.compiled_loss
        if container._user_losses is not None and y is None and not self.losses:
            return None  # type: ignore[return-value]

        def call(y: PyTree, y_pred: PyTree, sample_weight: PyTree) -> Any:
            return container(y, y_pred, sample_weight, regularization_losses=self.losses)

        if not is_traced_by_jax((y, y_pred, sample_weight)):
            return call(y, y_pred, sample_weight)
        if not container.built:
            container.build(y_pred)
        # A pure function of JAX must not update the running means.
        means = [v for metric in container.metrics for v in metric.variables]
        return call_stateless(call, means, means, (y, y_pred, sample_weight))[0]

    @annotate_scope("metrics")
    @overridable
    def compute_metrics(
        self, x: PyTree, y: PyTree, y_pred: PyTree, sample_weight: PyTree
    ) -> dict[str, Any]:
        """Update the metrics of `compile`, and return the values of all metrics.

        Args:
          x: Inputs, which the default implementation ignores.
          y: Targets.
          y_pred: The model's outputs.
          sample_weight: Weights per example.

        Returns:
          Metric values by name.
        """
        del x
        if y is not None:
            self.compiled_metrics.update_state(y, y_pred, sample_weight)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the values of all metrics by name."""
        values: dict[str, Any] = {}
        for metric in self.metrics:
            result = metric.result()
            values.update(result if isinstance(result, dict) else {metric.name: result})
        return values

    @overridable
    def test_step(self, data: PyTree) -> dict[str, Any]:
        """Run one evaluation step on a batch.

        Args:
          data: A tensor, or a tuple (x,), (x, y) or (x, y, sample_weight).

        Returns:
          Metric values by name.
        """
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = evaluate_batch(self, x, y, sample_weight)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    @overridable
    def predict_step(self, data: PyTree) -> PyTree:
        """Return the model's outputs for a batch.

        Args:
          data: A tensor, or a tuple (x,), (x, y) or (x, y, sample_weight).
        """
        x, _, _ = unpack_x_y_sample_weight(data)
        return predict_batch(self, x)

    def _make_loss_program(self) -> ModelProgram:
        """Return the forward pass and loss that strategies and planners trace."""
        return ModelProgram(self)

    def _count_gradient_loops(self, batch: tuple[PyTree, ...]) -> int | None:
        """Count the loops over micro-batches in which a `train_step` that computes gradients itself runs.

        Returns:
          The number; 0 if micro-batches cannot compute the step, and None if it delegates loss and gradients to Keras, as
          options that split the loss require.
        """
        data = tuple(part for n, part in enumerate(batch) if any(v is not None for v in batch[n:]))
        argument = _unpack_single_input(data)
        is_overridden = getattr(self.train_step, "__func__", None) is not TrainingSteps.train_step
        if not is_overridden or delegates_gradients(self, argument):
            return None
        return count_gradient_loops(self, argument)

    # ---- compiled steps --------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # A copy, and a model from a pickle, compile their own steps.
        state: dict[str, Any] = {**super().__getstate__(), "_steps": {}}  # type: ignore[dict-item]
        state.pop("_step_counters", None)
        # A running training belongs to this object, and not to its copy.
        state |= dict.fromkeys({"_handler", "_resumption", "_compiled_trainable"} & set(state))
        return state | dict.fromkeys(("train_function", "test_function", "predict_function"))

    def _get_step(self, kind: str) -> Callable[[PyTree], Any]:
        """Return the step as a function of host arrays: compiled, or plain Python in eager mode."""
        if self.run_eagerly:
            function = self._get_step_function(kind)
            is_first = True

            def run(batch: PyTree) -> Any:
                nonlocal is_first
                with weight_creation_scope(self), self._compiled_trainable_scope(kind):
                    result = function(_unpack_single_input(as_tensors(batch)))
                if is_first:
                    is_first = False
                    warn_about_unused_layouts(self)
                return result

            return run
        return self._get_cached(kind, lambda: self._make_step(kind))

    def _set_forecast(self, kind: str, forecast: RunForecast | None) -> None:
        """Tell the compiled step of a kind how often it will run."""
        step = self._steps.get(kind)
        step = getattr(step, "compiled", step)
        if isinstance(step, CompiledStep):
            if forecast is not None and not self._has_built_layers():
                # The first trace builds layers, for the sizes of a batch.
                forecast = forecast._replace(last_batch_size=None, element_shapes=None)
            step.forecast = forecast

    def _has_built_layers(self) -> bool:
        """Check whether the model is built, or all layers of a model with its own steps are."""
        layers = list(self._flatten_layers(include_self=False))
        return self.built or (bool(layers) and all(layer.built for layer in layers))

    def _get_step_function(self, kind: str) -> Callable[[PyTree], Any]:
        step = getattr(self, f"{kind}_step")
        if takes_state(step):
            step = bind_state(self, step, kind)
        return warn_about_own_gradients(self, step) if kind == "train" else step

    def _make_step(self, kind: str) -> HostPreprocessingStep | CompiledStep:
        """Create a compiled step that is not cached."""
        function, name = self._wrap_traced_step(self._get_step_function(kind), kind), f"{kind}_step"
        if needs_host(self):
            hosted = HostPreprocessingStep(self, function, name)
            place_step(self, hosted.compiled)
            return hosted
        step = CompiledStep(function, name, self.name)
        step.allows_simplification = bool(self._jit_compile)
        return place_step(self, step)

    def _get_cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a value that is cached until the next call of `compile`."""
        if name not in self._steps:
            self._steps[name] = make()
        return self._steps[name]

    def _find_traced_step(self, kind: str) -> ConcreteFunction | None:
        """Return the traced step of a kind, or None if it was not traced."""
        step = self._steps.get(kind)
        step = getattr(step, "compiled", step)
        return step.find_trace() if isinstance(step, CompiledStep) else None

    def _wrap_traced_step(
        self, function: Callable[[PyTree], Any], kind: str
    ) -> Callable[[PyTree], Any]:
        """Wrap a step so that placeholders replace the tensors of its trace in `losses`."""

        def run(batch: PyTree) -> Any:
            has_layouts = self.built
            self._clear_losses()
            try:
                with self._compiled_trainable_scope(kind):
                    return convert_if_enabled(function)(_unpack_single_input(batch))
            finally:
                self._forget_loss_values()
                if not has_layouts and self._has_built_layers():
                    # The first call has created the weights, and with them their layouts.
                    warn_about_unused_layouts(self)

        return run

    def _make_runner(self, kind: str) -> Callable[[Sequence[Any]], Any]:
        """Return a function that runs one or several batches and returns the last result."""
        override = getattr(self, f"make_{kind}_function")
        if getattr(override, "__func__", None) is not getattr(
            TrainingSteps, f"make_{kind}_function"
        ):
            function = override()
            return lambda batches: function(
                iter([_unpack_single_input(as_tensors(b)) for b in batches])
            )
        self._make_function(kind, force=False)
        step, counter = self._get_step(kind), self._step_counters[kind]
        runs_many = isinstance(step, CompiledStep) and self._steps_per_execution > 1
        attribute = f"{kind}_function"

        def run(batches: Sequence[Any]) -> Any:
            result = None
            assigned = getattr(self, attribute)
            if assigned is not None and not isinstance(assigned, _StepFunction):
                # The program, for example a callback, has assigned its own function.
                return assigned(iter([_unpack_single_input(as_tensors(b)) for b in batches]))
            if runs_many:
                result = step.run_many(batches)  # type: ignore[attr-defined]
            else:
                for batch in batches:
                    result = step(batch)
            counter.add(len(batches))
            return result

        return run

    def _count_steps(self, kind: str) -> Callable[[PyTree], Any]:
        """Return a step that counts its calls, or one that calls the program's own function."""
        function = getattr(self, f"make_{kind}_function")()
        if isinstance(function, _StepFunction):
            return self._make_counted_step(kind)
        return lambda batch: function(iter([_unpack_single_input(as_tensors(batch))]))

    def _make_counted_step(self, kind: str) -> Callable[[PyTree], Any]:
        step, counter = self._get_step(kind), self._step_counters[kind]

        def run(batch: PyTree) -> Any:
            result = step(batch)
            counter.add(1)
            return result

        return run

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Return a function that takes an iterator of batches and runs one training step.

        Args:
          force: Whether to create the function again.
        """
        return self._make_function("train", force)

    def make_test_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Return a function that takes an iterator of batches and runs one evaluation step.

        Args:
          force: Whether to create the function again.
        """
        return self._make_function("test", force)

    def make_predict_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Return a function that takes an iterator of batches and runs one prediction step.

        Args:
          force: Whether to create the function again.
        """
        return self._make_function("predict", force)

    def _make_function(self, kind: str, force: bool) -> Callable[[Iterator[Any]], Any]:
        name = f"{kind}_function"
        if getattr(self, name) is None or force:
            if force or name in self._steps:
                # As in Keras, programs call this method or set the attribute to None after a change of the model.
                self._steps.pop(kind, None)
            self._steps[name] = _StepFunction(self._make_counted_step(kind))
            setattr(self, name, self._steps[name])
        function: Callable[[Iterator[Any]], Any] = getattr(self, name)
        return function


class _StepFunction:
    """A step that takes an iterator of batches; functions of the program are not of this class."""

    def __init__(self, run: Callable[[PyTree], Any]) -> None:
        self._run = run

    def __call__(self, iterator: Iterator[Any]) -> Any:
        return self._run(_to_host(next(iterator)))


def _unpack_single_input(batch: PyTree) -> PyTree:
    """Return a batch as steps receive it: a single input tensor without a tuple around it."""
    is_single = isinstance(batch, tuple) and len(batch) == 1 and not nest.is_nested(batch[0])
    return batch[0] if is_single else batch


def _to_host(batch: PyTree) -> PyTree:
    return nest.map_structure(lambda v: v.array if isinstance(v, Tensor) else v, batch)
