"""What one step of training, testing and prediction does, and how it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.functions.stateless import call_stateless, traced_by_jax
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.annotations import scoped
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras.engine.training.compile_utils import LossesContainer, MetricsContainer
from meshflow.keras.engine.training.data_adapter import unpack_x_y_sample_weight
from meshflow.keras.engine.training.global_batch import on_devices
from meshflow.keras.engine.training.host_preprocessing import HostedStep, needs_host
from meshflow.keras.engine.training.pure_steps import takes_state, with_state
from meshflow.keras.engine.training.region_step import (
    ModelProgram,
    checked,
    differentiating,
    evaluated,
    leaves_gradients,
    loss_and_gradients,
    predicted,
)
from meshflow.keras.engine.training.step import CompiledStep, as_tensors


class TrainingSteps:
    """The steps of a model, which users may override; a base class of `Trainer`."""

    optimizer: Any
    loss: Any
    compiled_loss: LossesContainer | None
    compiled_metrics: MetricsContainer | None
    train_function: Any
    test_function: Any
    predict_function: Any
    _steps: dict[str, Any]
    _steps_per_execution: int

    if TYPE_CHECKING:
        # What `Trainer` and `Layer` give it.
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        @property
        def losses(self) -> list[Any]: ...
        @property
        def metrics(self) -> list[Any]: ...
        @property
        def run_eagerly(self) -> bool: ...
        @property
        def trainable_variables(self) -> list[Variable]: ...
        def _clear_losses(self) -> None: ...

    def train_step(self, data: Any) -> dict[str, Any]:
        """One training step on one batch.

        Args:
          data: a tensor, or a tuple (x,), (x, y) or (x, y, sample_weight).

        Returns:
          Metric values by name.

        Example:
          >>> import meshflow as tf
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
        strategy = differentiating(self)
        if strategy is not None:
            y_pred, pairs = loss_and_gradients(self, strategy, x, y, sample_weight)
            self.optimizer.apply_gradients(pairs)
        else:
            with GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred, sample_weight)
            self._validate_loss(y, loss)
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        shown: dict[str, Any] = getattr(self.optimizer, "_shown", dict)()
        return {**self.compute_metrics(x, y, y_pred, sample_weight), **shown}

    def _validate_loss(self, y: Any, loss: Any) -> None:
        if loss is not None:
            return
        if self.compiled_loss is not None and self.loss and y is None:
            raise TypeError(
                "Target data is missing. Your model was compiled with "
                f"loss={self.loss}, and therefore expects target data to be provided in `fit()`."
            )
        raise ValueError(
            "No loss found. You may have forgotten to provide a `loss` argument in the `compile()` method."
        )

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        """The loss that training minimizes: the compiled losses and all `losses` of layers.

        Args:
          x: inputs, unused here.
          y: targets.
          y_pred: the model's outputs.
          sample_weight: weights per example.

        Returns:
          A scalar tensor, or None when there is no loss at all.
        """
        del x
        container: LossesContainer = self.compiled_loss  # type: ignore[assignment]
        if container._user_losses is not None and y is None and not self.losses:
            return None

        def call(y: Any, y_pred: Any, sample_weight: Any) -> Any:
            return container(y, y_pred, sample_weight, regularization_losses=self.losses)

        if not traced_by_jax((y, y_pred, sample_weight)):
            return call(y, y_pred, sample_weight)
        if not container.built:
            container.build(y_pred)
        # The running means stay as they are.
        means = [v for metric in container.metrics for v in metric.variables]
        return call_stateless(call, means, means, (y, y_pred, sample_weight))[0]

    @scoped("metrics")
    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> dict[str, Any]:
        """Updates the compiled metrics and returns the values of all metrics by name.

        Args:
          x: inputs, unused here.
          y: targets.
          y_pred: the model's outputs.
          sample_weight: weights per example.
        """
        del x
        if y is not None:
            self.compiled_metrics.update_state(y, y_pred, sample_weight)  # type: ignore[union-attr]
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict[str, Any]:
        """Values of all metrics by name."""
        values: dict[str, Any] = {}
        for metric in self.metrics:
            result = metric.result()
            values.update(result if isinstance(result, dict) else {metric.name: result})
        return values

    def test_step(self, data: Any) -> dict[str, Any]:
        """One evaluation step on one batch; arguments and result as in `train_step`."""
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = evaluated(self, x, y, sample_weight)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def predict_step(self, data: Any) -> Any:
        """One prediction step: the model's outputs for one batch."""
        x, _, _ = unpack_x_y_sample_weight(data)
        return predicted(self, x)

    def _loss_program(self) -> ModelProgram:
        """The forward pass and loss, as strategies and planners trace them."""
        return ModelProgram(self)

    def _leaves_gradients(self, batch: tuple[Any, ...]) -> bool:
        """Whether `train_step` has Keras compute loss and gradients, as options that divide the loss need."""
        own = getattr(self.train_step, "__func__", None) is not TrainingSteps.train_step
        given = tuple(part for n, part in enumerate(batch) if any(v is not None for v in batch[n:]))
        return not own or leaves_gradients(self, _data(given))

    # ---- compiled steps --------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # A copy, or what is read from a pickle, compiles its own steps.
        state: dict[str, Any] = {**super().__getstate__(), "_steps": {}}  # type: ignore[dict-item]
        # Training that runs is this one's.
        state |= dict.fromkeys({"_handler", "_resumption"} & set(state))
        return state | dict.fromkeys(("train_function", "test_function", "predict_function"))

    def _step(self, kind: str) -> Callable[[Any], Any]:
        """The step as a function of host arrays: compiled, or plain Python when run eagerly."""
        if self.run_eagerly:
            function = self._step_function(kind)
            return lambda batch: function(_data(as_tensors(batch)))
        return self._kept_step(kind, lambda: self._new_step(kind))

    def _step_function(self, kind: str) -> Callable[[Any], Any]:
        step = getattr(self, f"{kind}_step")
        if takes_state(step):
            step = with_state(self, step, kind)
        return checked(self, step) if kind == "train" else step

    def _new_step(self, kind: str) -> Any:
        """A step that compiles itself, apart from those that are kept."""
        function, name = self._clean(self._step_function(kind)), f"{kind}_step"
        if needs_host(self):
            hosted = HostedStep(self, function, name)
            on_devices(self, hosted.compiled)
            return hosted
        return on_devices(self, CompiledStep(function, name))

    def _kept_step(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that lasts until the model is compiled again."""
        if name not in self._steps:
            self._steps[name] = make()
        return self._steps[name]

    def _clean(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The step without traces left in `losses` after it."""

        def run(batch: Any) -> Any:
            try:
                return convert_if_enabled(function)(_data(batch))
            finally:
                self._clear_losses()

        return run

    def _runner(self, kind: str) -> Callable[[list[Any]], Any]:
        """Runs one or several batches and returns the last result."""
        override = getattr(self, f"make_{kind}_function")
        if getattr(override, "__func__", None) is not getattr(
            TrainingSteps, f"make_{kind}_function"
        ):
            function = override()
            return lambda batches: function(iter([_data(as_tensors(b)) for b in batches]))
        step = self._step(kind)
        if isinstance(step, CompiledStep) and self._steps_per_execution > 1:
            return step.run_many

        def run(batches: list[Any]) -> Any:
            result = None
            for batch in batches:
                result = step(batch)
            return result

        return run

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """A function that takes an iterator of batches and runs one training step.

        Args:
          force: whether to make it anew.
        """
        if self.train_function is None or force:
            step = self._step("train")
            self.train_function = lambda iterator: step(_host(next(iterator)))
        return self.train_function

    def make_test_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Like `make_train_function`, for evaluation."""
        if self.test_function is None or force:
            step = self._step("test")
            self.test_function = lambda iterator: step(_host(next(iterator)))
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Callable[[Iterator[Any]], Any]:
        """Like `make_train_function`, for prediction."""
        if self.predict_function is None or force:
            step = self._step("predict")
            self.predict_function = lambda iterator: step(_host(next(iterator)))
        return self.predict_function


def _data(batch: Any) -> Any:
    """A batch as steps see it: inputs that are alone, and one tensor, come without a tuple."""
    alone = isinstance(batch, tuple) and len(batch) == 1 and not nest.is_nested(batch[0])
    return batch[0] if alone else batch


def _host(batch: Any) -> Any:
    return nest.map_structure(lambda v: v._value if isinstance(v, Tensor) else v, batch)
