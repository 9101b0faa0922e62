"""`Model.compile`, and the properties of a model that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from meshflow.core.dispatch.symbolic_calls import run_outside_of_graphs
from meshflow.core.functions.concrete_function import FunctionSettings
from meshflow.core.runtime.context import context
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values import nest
from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import int64
from meshflow.core.values.tensor import Tensor
from meshflow.distribute.strategy import Strategy, get_strategy
from meshflow.environment.types import Config, PyTree
from meshflow.keras import losses, optimizers
from meshflow.keras.engine.training.asynchronous_training import AnyHandler
from meshflow.keras.engine.training.callbacks import History
from meshflow.keras.engine.training.compile_utils import LossesContainer, MetricsContainer
from meshflow.keras.engine.training.global_batch import (
    check_metrics,
    check_variables,
    get_current_strategy,
    model_scope,
)
from meshflow.keras.engine.training.trainable_state import TrainableState
from meshflow.keras.engine.training.training_state import Resumption
from meshflow.keras.metrics import Metric
from meshflow.keras.mixed_precision.policy import Policy
from meshflow.keras.optimizers import Optimizer, loss_scale
from meshflow.keras.optimizers.accumulation import set_accumulation_steps
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer, convert_loss_scale


class CompileArguments(TypedDict, total=False):
    """Further arguments of `compile`."""

    pss_evaluation_shards: int | Literal["auto"]
    auto_scale_loss: bool
    distribute: object
    experimental_steps_per_execution: int | None
    sample_weight_mode: object


class CompileMethods(TrainableState):
    """The optimizer, losses and metrics of a model, as `compile` sets them; a base class of `Trainer`."""

    _is_compiled = False

    if TYPE_CHECKING:
        # `Layer` and `Model` provide these properties.
        @property
        def outputs(self) -> PyTree:
            """Return the symbolic outputs, None for a subclassed model."""

        @property
        def output_names(self) -> list[str] | None:
            """Return the names of the outputs, None for a subclassed model."""

        @property
        def name(self) -> str:
            """Return the name of the model."""

        @property
        def dynamic(self) -> bool:
            """Check whether the model or a layer was created with `dynamic=True`."""

        @property
        def dtype_policy(self) -> Policy:
            """Return the dtypes of the weights and of the computation."""

    def _init_training(self) -> None:
        self.optimizer: Optimizer = None  # type: ignore[assignment]
        self.compiled_loss: LossesContainer = None  # type: ignore[assignment]
        self.compiled_metrics: MetricsContainer = None  # type: ignore[assignment]
        self.loss: Any = None
        self.stop_training = False
        self.history: History = None  # type: ignore[assignment]
        # A callback sets this attribute to continue a training that another process started.
        self._resumption: Resumption | None = None
        self._handler: AnyHandler | None = None
        self._is_compiled = False
        self._run_eagerly: bool | None = None
        self._jit_compile: bool | None = None
        self._steps_per_execution = 1
        self._evaluation_shards: int | str = 0
        self._reset_steps()

    def _reset_steps(self) -> None:
        """Discard compiled steps after a change of the model or of its training."""
        self.train_function: Any = None
        self.test_function: Any = None
        self.predict_function: Any = None
        self._steps: dict[str, Any] = {}

    @property
    def steps_per_execution(self) -> Tensor:
        """Number of batches in each call of the compiled step, an int64 scalar; it may be set at any time."""
        return constant(self._steps_per_execution, int64)

    @steps_per_execution.setter
    def steps_per_execution(self, value: int) -> None:
        self._steps_per_execution = int(value)
        self._reset_steps()

    @run_outside_of_graphs
    @hide_frames_of_errors
    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: PyTree = None,
        metrics: PyTree = None,
        loss_weights: PyTree = None,
        weighted_metrics: PyTree = None,
        run_eagerly: bool | None = None,
        steps_per_execution: int | str | None = None,
        jit_compile: bool | None = None,
        gradient_accumulation_steps: int | None = None,
        **kwargs: Unpack[CompileArguments],
    ) -> None:
        """Configure the training of the model.

        Args:
          optimizer: An optimizer, its name, or an optax transformation.
          loss: A loss, its name or function, or these by output.
          metrics: Metrics to report, or these by output; `'accuracy'` chooses the metric by the
            shapes.
          loss_weights: Factors of the losses, by output.
          weighted_metrics: Metrics that receive sample weights.
          run_eagerly: Whether steps run as plain Python.
          steps_per_execution: Number of batches that one call of the compiled program processes.
          jit_compile: Whether XLA may simplify arithmetic as if numbers were real; it always compiles the
            steps.
          gradient_accumulation_steps: Number of batches per update of the weights, which uses the
            mean of their gradients, like the optimizer's argument of this name.
          **kwargs: `pss_evaluation_shards`: under `ParameterServerStrategy`, the number of shares
            into which evaluation splits the data so that each batch is used exactly once, or
            'auto'. `auto_scale_loss` and `sample_weight_mode` are accepted and ignored: sample
            weights may have any shape that fits the losses.

        Raises:
          TypeError: if a keyword is unknown.
          ValueError: if `steps_per_execution` is not positive, if both `run_eagerly` and
            `jit_compile` are set, if `gradient_accumulation_steps` is
            less than 2 or differs from the optimizer's argument, or if the model or a metric was
            created under another strategy than the `ParameterServerStrategy` that is in scope.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
          >>> model.compile("adam", tf.keras.losses.Huber(), metrics=["mae"])
          >>> type(model.optimizer).__name__, model.loss.delta
          ('Adam', 1.0)
        """
        shards = kwargs.pop("pss_evaluation_shards", 0)
        if shards != "auto" and not (isinstance(shards, int) and shards >= 0):
            raise ValueError(
                f"pss_evaluation_shards must be 'auto' or a non-negative integer, got {shards!r}."
            )
        self._evaluation_shards = shards
        steps_per_execution = (
            kwargs.pop("experimental_steps_per_execution", None) or steps_per_execution
        )
        if "target_tensors" in kwargs:
            raise ValueError(
                "`target_tensors` is not supported by compile(): pass the targets to fit() as `y`."
            )
        if cast(Config, kwargs).pop("distribute", None) is not None:
            raise ValueError(
                "`distribute` is not available in compile(): create the model in `strategy.scope()`."
            )
        if run_eagerly and jit_compile:
            raise ValueError("You cannot enable `run_eagerly` and `jit_compile` at the same time.")
        for keyword in ("auto_scale_loss", "cloning", "sample_weight_mode"):
            cast(Config, kwargs).pop(keyword, None)
        if kwargs:
            raise TypeError(f"Invalid keyword argument(s) in `compile()`: {sorted(kwargs)}")
        if steps_per_execution == "auto":
            steps_per_execution = self._steps_per_execution
        elif not steps_per_execution:
            steps_per_execution = None
        if steps_per_execution is not None and int(steps_per_execution) < 1:
            raise ValueError(f"steps_per_execution must be at least 1, got {steps_per_execution}.")
        for identifier in nest.flatten(loss):
            if isinstance(identifier, str):
                # This reports an unknown name now, and not when training starts.
                losses.get(identifier)
        with model_scope(self):
            check_variables(self)
            check_metrics(nest.flatten([metrics, weighted_metrics]))
            self.optimizer = _get_optimizers(
                optimizer, lambda o: wrap_for_policy(self.dtype_policy, optimizers.get(o))
            )
            if gradient_accumulation_steps is not None:
                for part in nest.flatten(self.optimizer):
                    set_accumulation_steps(part, gradient_accumulation_steps)
            if isinstance(loss, LossesContainer):
                self.compiled_loss = loss
            else:
                self.compiled_loss = LossesContainer(loss, loss_weights, self.output_names)
            self.compiled_metrics = MetricsContainer(metrics, weighted_metrics, self.output_names)
            self._strategy_at_compile = get_current_strategy()
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
        self._run_eagerly, self._jit_compile = run_eagerly, jit_compile
        self._steps_per_execution = int(steps_per_execution or 1)
        self._is_compiled = True
        self._record_trainable_state()
        self._reset_steps()

    @property
    def distribute_strategy(self) -> Strategy:
        """Return the strategy in scope when the model was compiled, or the current one."""
        return self.__dict__.get("_strategy_at_compile") or get_strategy()

    def _count_evaluation_shards(self, num_workers: int) -> int:
        """Return the number of shares of evaluation data; 0 if each worker uses its own data."""
        return (
            5 * num_workers if self._evaluation_shards == "auto" else int(self._evaluation_shards)
        )

    @property
    def run_eagerly(self) -> bool:
        """Return whether steps run as plain Python."""
        if self.dynamic and self._run_eagerly is False:
            raise ValueError(
                f"Model {self.name} contains layers that can only run eagerly (`dynamic=True`), so it cannot be "
                "compiled with `run_eagerly=False`."
            )
        return bool(self._run_eagerly) or self.dynamic or FunctionSettings.run_eagerly

    @run_eagerly.setter
    def run_eagerly(self, value: bool) -> None:
        self._run_eagerly = value
        self._reset_steps()

    @property
    def jit_compile(self) -> bool | None:
        """Return the argument `jit_compile` of `compile`, or the value that replaced it."""
        return self._jit_compile

    @jit_compile.setter
    def jit_compile(self, value: bool | None) -> None:
        self._jit_compile = value
        self._reset_steps()

    @property
    def metrics(self) -> Sequence[Metric]:
        """Return the metrics that training reports: the loss, and those of `compile` and the layers."""
        metrics: list[Metric] = []
        if self._is_compiled:
            metrics += self.compiled_loss.metrics
            metrics += self.compiled_metrics.metrics
        metrics += super().metrics
        return list({id(m): m for m in metrics}.values())

    @property
    def metrics_names(self) -> list[str]:
        """Return the names of the metrics, in the order of the values that `evaluate` returns."""
        return [m.name for m in self.metrics]

    @run_outside_of_graphs
    def reset_metrics(self) -> None:
        """Reset the state of all metrics."""
        for metric in self.metrics:
            metric.reset_state()

    def _assert_outside_function(self) -> None:
        if context.trace is not None:
            raise RuntimeError(
                f"A method of model {self.name} that trains, evaluates or predicts is called inside a `tf.function`. Call "
                "the model itself there, or the method outside."
            )

    def _assert_compiled(self) -> None:
        self._assert_outside_function()
        if not self._is_compiled:
            raise RuntimeError(
                f"You must compile your model before training/testing. Use `model.compile(optimizer, loss)` ({self.name})."
            )


def wrap_for_policy(policy: Policy, optimizer: Any) -> Any:
    """Wrap an optimizer in a `LossScaleOptimizer` if the dtype policy needs it, as float16 gradients do."""
    # Policies of TensorFlow 2.1 to 2.3 have a loss scale of their own.
    scale = getattr(policy, "loss_scale", "dynamic" if policy.name == "mixed_float16" else None)
    if scale is None or optimizer is None:
        return optimizer

    if isinstance(optimizer, LossScaleOptimizer) or not hasattr(optimizer, "apply_gradients"):
        return optimizer
    return LossScaleOptimizer(optimizer, **convert_loss_scale(loss_scale.get(scale)))


def _get_optimizers(optimizer: Any, get: Callable[[Any], Any]) -> Any:
    # An optax transformation is a named tuple, so only a list means several optimizers.
    return [get(o) for o in optimizer] if isinstance(optimizer, list) else get(optimizer)
