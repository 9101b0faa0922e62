"""`compile`: how a model is to be trained, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshflow.core.functions.concrete_function import Settings
from meshflow.core.values import nest
from meshflow.distribute.strategy import get_strategy
from meshflow.keras import losses, optimizers
from meshflow.keras.engine.training.compile_utils import LossesContainer, MetricsContainer
from meshflow.keras.engine.training.data_adapter import DataHandler
from meshflow.keras.engine.training.global_batch import (
    check_metrics,
    check_variables,
    current_strategy,
    own_scope,
)
from meshflow.keras.engine.training.training_state import Resumption
from meshflow.keras.engine.training.training_steps import TrainingSteps
from meshflow.keras.mixed_precision.policy import Policy
from meshflow.keras.optimizers import loss_scale
from meshflow.keras.optimizers.accumulation import accumulate_over
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer, scale_settings


class Compiling(TrainingSteps):
    """What `Trainer` knows from `compile`: optimizer, losses, metrics; a base class of it."""

    _is_compiled = False

    if TYPE_CHECKING:
        # What `Layer` and `Model` give it.
        @property
        def outputs(self) -> Any: ...
        @property
        def output_names(self) -> list[str] | None: ...
        @property
        def name(self) -> str: ...
        @property
        def dynamic(self) -> bool: ...
        @property
        def dtype_policy(self) -> Policy: ...

    def _init_training(self) -> None:
        self.optimizer: Any = None
        self.compiled_loss: LossesContainer | None = None
        self.compiled_metrics: MetricsContainer | None = None
        self.loss: Any = None
        self.stop_training = False
        self.history: Any = None
        # Set by a callback when training goes on where an earlier process was.
        self._resumption: Resumption | None = None
        self._handler: DataHandler | None = None
        self._is_compiled = False
        self._run_eagerly: bool | None = None
        self._steps_per_execution = 1
        self._evaluation_shards: Any = 0
        self._reset_compiled()

    def _reset_compiled(self) -> None:
        """Forgets compiled steps: the model or how it is trained has changed."""
        self.train_function: Any = None
        self.test_function: Any = None
        self.predict_function: Any = None
        self._steps: dict[str, Any] = {}

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool | None = None,
        steps_per_execution: int | str | None = None,
        jit_compile: bool | None = None,
        gradient_accumulation_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Sets how the model is trained.

        Args:
          optimizer: an optimizer, its name, or an optax transformation.
          loss: a loss, its name or function, or these by output.
          metrics: metrics to report, or these by output; `'accuracy'` picks the kind by shape.
          loss_weights: factors of the losses by output.
          weighted_metrics: metrics that take sample weights.
          run_eagerly: whether steps run as plain Python.
          steps_per_execution: how many batches one call of the compiled program processes.
          jit_compile: accepted; steps are always compiled by XLA.
          gradient_accumulation_steps: weights are updated every so many batches, by the average of their
            gradients, as with the optimizer's argument of this name.
          **kwargs: `pss_evaluation_shards`: under `ParameterServerStrategy`, into how many shares data are divided so
            that evaluation sees each batch exactly once, or 'auto'; `auto_scale_loss` and `sample_weight_mode` are accepted:
            weights of any shape that fits the losses are used.

        Raises:
          TypeError: for an unknown keyword.
          ValueError: when `steps_per_execution` is not positive, or `gradient_accumulation_steps` is below 2 or
            not what the optimizer was made with; for a model or metrics of another strategy than a
            `ParameterServerStrategy` whose scope is open.

        Example:
          >>> import meshflow as tf
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
          >>> model.compile("adam", tf.keras.losses.Huber(), metrics=["mae"])
          >>> type(model.optimizer).__name__, model.loss.delta
          ('Adam', 1.0)
        """
        shards = kwargs.pop("pss_evaluation_shards", 0)
        if shards != "auto" and not (isinstance(shards, int) and shards >= 0):
            raise ValueError(
                f"pss_evaluation_shards must be 'auto' or a number of at least 0, got {shards!r}."
            )
        self._evaluation_shards = shards
        for accepted in (
            "auto_scale_loss",
            "distribute",
            "experimental_steps_per_execution",
            "sample_weight_mode",
        ):
            value = kwargs.pop(accepted, None)
            if accepted == "experimental_steps_per_execution" and value:
                steps_per_execution = value
        if kwargs:
            raise TypeError(f"Invalid keyword argument(s) in `compile()`: {sorted(kwargs)}")
        if steps_per_execution == "auto":
            steps_per_execution = None
        if steps_per_execution is not None and int(steps_per_execution) < 1:
            raise ValueError(f"steps_per_execution must be at least 1, got {steps_per_execution}.")
        for name in nest.flatten(loss):
            if isinstance(name, str):
                losses.get(name)  # an unknown name is an error now, not when training starts
        with own_scope(self):
            check_variables(self)
            check_metrics(nest.flatten([metrics, weighted_metrics]))
            self.optimizer = _get_optimizers(
                optimizer, lambda o: scaled_for(self.dtype_policy, optimizers.get(o))
            )
            if gradient_accumulation_steps is not None:
                for one in nest.flatten(self.optimizer):
                    accumulate_over(one, gradient_accumulation_steps)
            if isinstance(loss, LossesContainer):
                self.compiled_loss = loss
            else:
                self.compiled_loss = LossesContainer(loss, loss_weights, self.output_names)
            self.compiled_metrics = MetricsContainer(metrics, weighted_metrics, self.output_names)
            self._strategy_at_compile = current_strategy()
        self.loss = loss if loss is not None else {}
        self._compile_arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "metrics": metrics,
            "loss_weights": loss_weights,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
        }
        self._run_eagerly = run_eagerly
        self._steps_per_execution = int(steps_per_execution or 1)
        self._is_compiled = True
        self._reset_compiled()

    @property
    def distribute_strategy(self) -> Any:
        """The strategy in whose scope the model was compiled, or the one in force."""
        return self.__dict__.get("_strategy_at_compile") or get_strategy()

    def _exact_shards(self, workers: int) -> int:
        """Into how many shares workers divide evaluation data; 0 where each takes its own."""
        return 5 * workers if self._evaluation_shards == "auto" else int(self._evaluation_shards)

    @property
    def run_eagerly(self) -> bool:
        """Whether steps run as plain Python."""
        if self.dynamic and self._run_eagerly is False:
            raise ValueError(
                f"Model {self.name} contains layers that can only run eagerly (`dynamic=True`), so it cannot be "
                "compiled with `run_eagerly=False`."
            )
        return bool(self._run_eagerly) or self.dynamic or Settings.run_eagerly

    @run_eagerly.setter
    def run_eagerly(self, value: bool) -> None:
        self._run_eagerly = value
        self._reset_compiled()

    @property
    def metrics(self) -> list[Any]:
        """Metrics that training reports: the loss, those of `compile`, those of the layers."""
        collected: list[Any] = []
        if self._is_compiled:
            collected += self.compiled_loss.metrics  # type: ignore[union-attr]
            collected += self.compiled_metrics.metrics  # type: ignore[union-attr]
        collected += super().metrics
        return list({id(m): m for m in collected}.values())

    @property
    def metrics_names(self) -> list[str]:
        """Names of the metrics, in the order `evaluate` returns their values."""
        return [m.name for m in self.metrics]

    def reset_metrics(self) -> None:
        """Starts all metrics again."""
        for metric in self.metrics:
            metric.reset_state()

    def _assert_compiled(self) -> None:
        if not self._is_compiled:
            raise RuntimeError(
                f"You must compile your model before training/testing. Use `model.compile(optimizer, loss)` ({self.name})."
            )


def scaled_for(policy: Any, optimizer: Any) -> Any:
    """An optimizer as a policy needs it: float16 gradients need a scaled loss."""
    # Policies of TensorFlow 2.1-2.3 hold a loss scale themselves.
    scale = getattr(policy, "loss_scale", "dynamic" if policy.name == "mixed_float16" else None)
    if scale is None or optimizer is None:
        return optimizer

    if isinstance(optimizer, LossScaleOptimizer) or not hasattr(optimizer, "apply_gradients"):
        return optimizer
    return LossScaleOptimizer(optimizer, **scale_settings(loss_scale.get(scale)))


def _get_optimizers(optimizer: Any, get: Callable[[Any], Any]) -> Any:
    # An optax transformation is a named tuple; only a list means several optimizers.
    return [get(o) for o in optimizer] if isinstance(optimizer, list) else get(optimizer)
