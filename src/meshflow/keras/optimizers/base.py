"""`Optimizer`: apply gradients to variables.

`minimize` computes gradients and passes them to `apply_gradients`, which filters them, sums them
over replicas, clips and transforms them, and updates each variable with one of the hooks that a
subclass defines, see `UpdateHooks`. The optimizers in this package define a pure `rule` instead,
see `RuleOptimizer`.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Self, Unpack

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.gradients.tape import GradientTape, suspend_tapes
from meshflow.core.runtime.annotations import annotate_scope
from meshflow.core.runtime.context import context, lock_variables
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import UpdateGroup
from meshflow.distribute.replicas.context import run_once, sum_over_replicas
from meshflow.environment.types import PyTree
from meshflow.keras.optimizers.accumulation import GradientAccumulation, check_accumulation_steps
from meshflow.keras.optimizers.clipping import check_clipping, clip_gradients
from meshflow.keras.optimizers.hooks import UpdateHooks, check_gradient_rows, get_device_and_dtype
from meshflow.keras.optimizers.hyperparameters import check_number
from meshflow.keras.optimizers.optimizer_arguments import BaseOptimizerArguments
from meshflow.keras.optimizers.schedules import deserialize as deserialize_schedule
from meshflow.keras.optimizers.state import GradientPairs
from meshflow.keras.optimizers.stateless import StatelessUpdates
from meshflow.ops import array, math

# Threads may share an optimizer. The lock prevents a thread from using a variable before another
# thread has created all its slots.
_building = threading.RLock()


@hide_frames_of_methods
class Optimizer(UpdateHooks, GradientAccumulation, StatelessUpdates):
    """Base class of optimizers.

    Args:
      name: Name of the optimizer.
      gradient_aggregator: Function that sums a list of (gradient, variable) over replicas.
      gradient_transformers: Functions from a list of (gradient, variable) to a new list.
      weight_decay: Fraction of each variable that is subtracted per step, times the learning rate.
      use_ema: Whether to keep an exponential moving average of each variable.
      ema_momentum: Momentum of the moving averages, from 0 to 1.
      ema_overwrite_frequency: Number of steps after which the averages replace the variables.
      gradient_accumulation_steps: Number of steps, at least 2, over which gradients are averaged
        for one update, which `iterations` counts. None updates in each step.
      **kwargs: `learning_rate`, `clipnorm`, `clipvalue`, `global_clipnorm`, `decay`, `lr`; `mesh`
        is the mesh over which the step count is replicated; slots follow their variables.
        `jit_compile` and `is_legacy_optimizer` are accepted and ignored.

    Raises:
      TypeError: If another keyword is passed.
      ValueError: If a value is negative or clip settings exclude each other.

    Example:
      >>> class SignDescent(tf.keras.optimizers.Optimizer):
      ...     def update_step(self, gradient, variable):
      ...         variable.assign_sub(self.learning_rate * tf.sign(gradient))
      >>> v = tf.Variable([1.0, 1.0])
      >>> optimizer = SignDescent("SignDescent", learning_rate=0.5)
      >>> _ = optimizer.apply_gradients([(tf.constant([3.0, -7.0]), v)])
      >>> v.numpy()
      array([0.5, 1.5], dtype=float32)
    """

    _default_learning_rate = 0.001
    _default_decay = 0.0
    # Whether the class computes like TensorFlow's optimizers since 2.11. Their configurations
    # contain every setting but `decay`.
    _since_2_11 = True
    # Whether checkpoints and constraints follow OptimizerV2.
    _is_keras_2 = False

    def __init__(
        self,
        name: str | None = None,
        gradient_aggregator: Callable[[Any], Any] | None = None,
        gradient_transformers: Sequence[Callable[[Any], Any]] | None = None,
        weight_decay: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        gradient_accumulation_steps: int | None = None,
        **kwargs: Unpack[BaseOptimizerArguments],
    ) -> None:
        self._name = name or type(self).__name__
        self.gradient_accumulation_steps = check_accumulation_steps(
            gradient_accumulation_steps, self._name
        )
        self.clipnorm = kwargs.pop("clipnorm", None)
        self.clipvalue = kwargs.pop("clipvalue", None)
        self.global_clipnorm = kwargs.pop("global_clipnorm", None)
        self._initial_decay = float(kwargs.pop("decay", 0.0) or 0.0)
        self._mesh = kwargs.pop("mesh", None)
        kwargs.pop("is_legacy_optimizer", None)
        self.jit_compile = bool(kwargs.pop("jit_compile", True))
        # In Keras 2 the learning rate, and its configuration, belong to subclasses.
        self._configures_rate = "learning_rate" in kwargs
        rate = kwargs.pop("lr", self._default_learning_rate)
        rate = kwargs.pop("learning_rate", rate)
        if kwargs:
            raise TypeError(
                f"Unexpected keyword argument passed to optimizer {self._name}: {', '.join(sorted(kwargs))}. "
                "Allowed kwargs are learning_rate, lr, decay, clipnorm, clipvalue, global_clipnorm, "
                "weight_decay, use_ema, ema_momentum, ema_overwrite_frequency, gradient_accumulation_steps."
            )
        if self._initial_decay < 0:
            raise ValueError(f"decay cannot be less than 0. Received: decay={self._initial_decay}.")
        check_clipping(
            self.clipnorm,
            self.clipvalue,
            self.global_clipnorm,
            gradient_transformers,
            accepts_negative=self._since_2_11,
        )
        self.gradient_aggregator = gradient_aggregator
        self.gradient_transformers = list(gradient_transformers or [])
        numbers = {"weight_decay": weight_decay, "ema_momentum": ema_momentum}
        for key, value in {**numbers, "ema_overwrite_frequency": ema_overwrite_frequency}.items():
            if value is not None:
                check_number(type(self).__name__, key, value)
        self.weight_decay = weight_decay
        if use_ema and not 0 <= ema_momentum <= 1:
            raise ValueError(
                f"`ema_momentum` must be in the range [0, 1]. Received: ema_momentum={ema_momentum}"
            )
        if use_ema and ema_overwrite_frequency is not None and ema_overwrite_frequency < 0:
            raise ValueError(
                f"`ema_overwrite_frequency` must be an integer > 1 or None. Received: ema_overwrite_frequency={ema_overwrite_frequency}"
            )
        self.use_ema, self.ema_momentum = use_ema, ema_momentum
        self.ema_overwrite_frequency = ema_overwrite_frequency
        self._excluded: tuple[list[Variable], list[str]] = ([], [])
        self._hyper: dict[str, Any] = {}
        self._init_state()
        self._set_hyper("learning_rate", rate)
        self._set_hyper("decay", self._initial_decay)

    @property
    def name(self) -> str:
        """Return the optimizer's name."""
        return self._name

    def build(self, var_list: Sequence[Variable]) -> None:
        """Create the slots of variables.

        Args:
          var_list: All variables to be trained.
        """

        def create() -> None:
            with _building:
                self._create_missing_slots(var_list)

        # A replica that runs as Python must not hold the lock while it waits for the others.
        run_once(create)

    def _create_missing_slots(self, var_list: Sequence[Variable]) -> None:
        _ = self.iterations
        new = [v for v in var_list if self._var_key(v) not in self._index_dict]
        for var in new:
            self._owners[self._var_key(var)] = var
            self._index_dict[self._var_key(var)] = len(self._index_dict)
        if not new:
            return
        with init_scope():
            self._create_slots(new)
            for var in new if self.use_ema else ():
                self.add_slot(var, "average", None if var.has_no_value else var.numpy())
        if self.gradient_accumulation_steps:
            self._create_accumulators(new)
        self._run_build_hooks()

    # Subclasses and tests written for Keras call the next two methods.
    def _build_index_dict(self, var_list: Sequence[Variable]) -> None:
        self._owners |= {self._var_key(v): v for v in var_list}
        self._index_dict = {self._var_key(v): i for i, v in enumerate(var_list)}

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        pairs = [(gradient, None) for gradient in grads]
        return [gradient for gradient, _ in clip_gradients(pairs, *self._get_limits())]

    def _create_all_weights(self, var_list: Sequence[Variable]) -> None:
        self.build(var_list)

    # ---- gradients -------------------------------------------------------------------------

    def minimize(
        self,
        loss: Tensor | Callable[[], Tensor],
        var_list: PyTree | Callable[[], PyTree],
        grad_loss: TensorLike | None = None,
        name: str | None = None,
        tape: GradientTape | None = None,
    ) -> Variable:
        """Compute the gradients of a loss and apply them.

        Args:
          loss: A function without arguments, or a tensor recorded on `tape`.
          var_list: Variables, or a function that returns them, which is called after the loss.
          grad_loss: Initial gradient of the loss; default ones.
          name: Ignored.
          tape: The tape that recorded a tensor loss.

        Returns:
          The step count.

        Raises:
          ValueError: If a tensor loss has no tape, or no variable has a gradient.

        Example:
          >>> v = tf.Variable(3.0)
          >>> _ = tf.keras.optimizers.SGD(0.5).minimize(lambda: v * v, [v])
          >>> float(v)
          0.0
        """
        # Subclasses for TensorFlow 2.3 and earlier define the method without `tape`.
        tapes = () if tape is None else (tape,)
        pairs = self._compute_gradients(loss, var_list, grad_loss, *tapes)
        return self.apply_gradients(pairs, name=name)

    def compute_gradients(
        self,
        loss: Tensor | Callable[[], Tensor],
        var_list: PyTree | Callable[[], PyTree],
        tape: GradientTape | None = None,
    ) -> GradientPairs:
        """Compute the gradients of a loss, without applying them.

        Args:
          loss: A function without arguments, or a tensor recorded on `tape`.
          var_list: Variables, or a function that returns them.
          tape: The tape that recorded a tensor loss.

        Returns:
          A list of (gradient, variable).
        """
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self,
        loss: Tensor | Callable[[], Tensor],
        var_list: PyTree | Callable[[], PyTree],
        grad_loss: TensorLike | None = None,
        tape: GradientTape | None = None,
    ) -> GradientPairs:
        if not callable(loss) and tape is None:
            raise ValueError(
                f"`tape` is required when a `Tensor` loss is passed. Received: loss={loss}, tape={tape}."
            )
        tape = GradientTape() if tape is None else tape
        if callable(loss) and not isinstance(loss, Tensor):
            with tape:
                if not callable(var_list):
                    tape.watch(var_list)
                loss = loss()
                if callable(var_list):
                    var_list = var_list()
        variables = nest.flatten(var_list() if callable(var_list) else var_list)
        if tape._recording:
            loss = self._transform_loss(loss)
        else:
            tape._start()
            loss = self._transform_loss(loss)
            tape._stop()
        gradients = self._get_gradients(tape, loss, variables, grad_loss)
        return list(zip(gradients, variables, strict=True))

    def _transform_loss(self, loss: Tensor) -> Tensor:
        return loss

    def _get_gradients(
        self, tape: GradientTape, loss: Tensor, var_list: PyTree, grad_loss: TensorLike = None
    ) -> list[Any]:
        gradients: PyTree = tape.gradient(loss, var_list, grad_loss)
        return gradients

    def get_gradients(self, loss: Tensor, params: Sequence[Variable]) -> list[Tensor]:
        """Raise an error: the method is not available with eager execution. Use `tf.GradientTape`.

        Args:
          loss: Ignored.
          params: Ignored.

        Raises:
          RuntimeError: Always.
        """
        raise RuntimeError(
            "`get_gradients` is not supported with eager execution: use tf.GradientTape."
        )

    def aggregate_gradients(self, grads_and_vars: GradientPairs) -> GradientPairs:
        """Sum gradients over replicas.

        Args:
          grads_and_vars: Pairs (gradient, variable).
        """
        return self._aggregate_gradients(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: GradientPairs) -> GradientPairs:
        if self.gradient_aggregator is not None:
            return self.gradient_aggregator(grads_and_vars)
        return list(sum_over_replicas(grads_and_vars))

    def _transform_unaggregated_gradients(self, grads_and_vars: GradientPairs) -> GradientPairs:
        return grads_and_vars

    def _get_limits(self) -> tuple[float | None, float | None, float | None]:
        """Return the limits of values, of norms and of the norm of all gradients, or None for those without effect."""
        limits = (self.clipvalue, self.clipnorm, self.global_clipnorm)
        if self._since_2_11:
            # Since TensorFlow 2.11, limits that are not positive have no effect, and a limit of norms disables that
            # of values.
            value, norm, global_norm = (
                None if limit is None or limit <= 0 else limit for limit in limits
            )
            return None if norm or global_norm else value, norm, global_norm
        return limits

    def _transform_gradients(self, grads_and_vars: GradientPairs) -> GradientPairs:
        grads_and_vars = clip_gradients(grads_and_vars, *self._get_limits())
        for transform in self.gradient_transformers:
            grads_and_vars = transform(grads_and_vars)
        return grads_and_vars

    @annotate_scope("optimizer")
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Variable:
        """Update variables. Variables that were not passed to `build` get their slots on first use.

        Args:
          grads_and_vars: Pairs (gradient, variable). A gradient of None is skipped with a warning.
          name: Scope of the names of new slots; default the name of the optimizer.
          experimental_aggregate_gradients: Whether to sum gradients over replicas.
          skip_gradients_aggregation: Whether to skip this sum.

        Returns:
          The step count; in a version 1 graph, the operation that updates the variables.

        Raises:
          ValueError: If there is no gradient at all.
          InvalidArgumentError: If a sparse gradient contains a row that its variable lacks.

        Example:
          >>> w = tf.Variable(1.0)
          >>> _ = tf.keras.optimizers.SGD(0.5).apply_gradients([(tf.constant(3.0), w)])
          >>> float(w)
          -0.5
        """
        with suspend_tapes():
            all_pairs = list(grads_and_vars)
            if context.graph is not None and context.trace is None:
                return self._record_update(_filter_gradients(all_pairs), name)
            pairs = check_gradient_rows(_filter_gradients(all_pairs))
            if not pairs:
                return self.iterations
            closure = context.worker_closure
            if closure is not None:
                closure.check_slots(self, [v for _, v in pairs])
            else:
                # As in TensorFlow, variables without a gradient have slots, in the order of the variables.
                _ = self.iterations  # The scope does not apply to the name of the step count.
                with name_scope(name or self._name) if self._slots_in_lists else nullcontext():
                    self.build([v for _, v in (pairs if self._is_keras_2 else all_pairs)])
            pairs = self._transform_unaggregated_gradients(pairs)
            if experimental_aggregate_gradients and not skip_gradients_aggregation:
                pairs = self._aggregate_gradients(pairs)
            if closure is not None and closure.has_server_steps:
                # Parameter servers hold the variables and update them.
                closure.push_gradients(self, self._prepare_server_gradients(pairs))
                if not closure.has_worker_steps:
                    return self.iterations

            def update() -> None:
                with (
                    suspend_tapes(),
                    lock_variables(),
                    nullcontext() if closure is None else closure.worker_step_scope(),
                ):
                    if self.gradient_accumulation_steps:
                        self._accumulate(pairs, self._run_update)
                    else:
                        self._run_update(pairs)

            run_once(update)
        return self.iterations

    def _record_update(self, pairs: GradientPairs, name: str | None) -> Any:
        """Create the state in a graph, and record an operation that updates variables in a session."""
        graph = context.graph
        assert graph is not None
        with graph.control_dependencies(None):
            self.build([v for _, v in pairs])
            with name_scope(self._name):
                # A session initializes the hyperparameters before the first step reads them.
                self._hyper_variables()
        return graph.record_effect(self._apply_in_run, (pairs,), name or self._name)

    def _apply_in_run(self, pairs: GradientPairs) -> None:
        """Update variables while a session runs; the operation has no result."""
        self.apply_gradients(pairs)

    def _prepare_server_gradients(self, pairs: GradientPairs) -> GradientPairs:
        """Prepare gradients for parameter servers, which transform them if they accumulate."""
        if not self.gradient_accumulation_steps:
            return list(self._transform_gradients(pairs))
        servers = {server for _, v in pairs for server in getattr(v, "servers", ())}
        if len(servers) > 1 and (self.global_clipnorm or self.gradient_transformers):
            raise NotImplementedError(
                f"Optimizer {self._name}: gradient_accumulation_steps together with global_clipnorm or "
                "gradient_transformers requires a single parameter server, because each of several servers receives only "
                "part of the gradients. Use servers=1, or clipnorm or clipvalue."
            )
        return pairs

    def _apply_server_gradients(self, pairs: GradientPairs) -> None:
        """Apply gradients from `_prepare_server_gradients` on a parameter server."""
        if self.gradient_accumulation_steps:
            self._accumulate(pairs, self._run_update)
        else:
            self._step(pairs)

    def _run_update(self, pairs: GradientPairs) -> None:
        """Update variables once with gradients that are summed over replicas."""
        if self._adascale is not None:
            self._adascale.update_gain(pairs)
        self._step(list(self._transform_gradients(pairs)))
        if self._adascale is not None:
            self._adascale.advance_steps()

    def _step(self, pairs: GradientPairs) -> None:
        """Change the variables and the step count: the last part of `apply_gradients`."""
        self._apply(pairs)
        self.iterations.assign_add(1)
        if self.use_ema:
            self._update_moving_averages([v for _, v in pairs])

    def apply(
        self, gradients: Sequence[Any], trainable_variables: Sequence[Variable] | None = None
    ) -> Variable:
        """Update variables, with the arguments of Keras 3.

        Args:
          gradients: A list of gradients.
          trainable_variables: Variables of the gradients; default the variables of `build`.

        Returns:
          The step count.
        """
        variables = (
            [self._owners[key] for key in self._index_dict]
            if trainable_variables is None
            else trainable_variables
        )
        return self.apply_gradients(zip(gradients, variables, strict=True))

    def _apply(self, pairs: GradientPairs) -> None:
        state = self._prepare([v for _, v in pairs])
        if self.weight_decay:
            for _, var in pairs:
                if self._has_weight_decay(var):
                    rate = state[get_device_and_dtype(var)]["lr_t"] * float(self.weight_decay)
                    var.assign_sub(var.value() * rate)
        for gradient, var in pairs:
            if isinstance(gradient, IndexedSlices):
                # OptimizerV2 raises an error; later optimizers apply the constraint to the entire
                # variable.
                if var.constraint is not None and self._is_keras_2:
                    raise RuntimeError(
                        f"Cannot use a constraint function on a sparse variable ({var.name})."
                    )
                self._apply_sparse(gradient, var, state)
            else:
                self._apply_dense(convert_to_tensor(gradient, dtype_hint=var.dtype), var, state)
            if var.constraint is not None:
                var.assign(var.constraint(var.value()))

    # ---- weight decay and averages ---------------------------------------------------------

    def exclude_from_weight_decay(
        self, var_list: Sequence[Variable] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exclude variables from weight decay.

        Args:
          var_list: Variables.
          var_names: Regular expressions to search in variable names.

        Raises:
          ValueError: If the optimizer is built.
        """
        if self._index_dict:
            raise ValueError(
                f"`exclude_from_weight_decay()` of optimizer {self._name} was called after it was built. "
                "Call it before `build(variables)` and the first `apply_gradients`."
            )
        self._excluded = (list(var_list or []), list(var_names or []))

    def get_update_group(self, var: Variable) -> UpdateGroup:
        """Return a key of the variables that are updated together.

        Args:
          var: A trained variable.
        """
        return UpdateGroup(is_elementwise=False)

    def _has_weight_decay(self, var: Variable) -> bool:
        excluded, patterns = self._excluded
        if any(var is other for other in excluded):
            return False
        return not any(re.search(p, var.name) for p in patterns)

    def _update_moving_averages(self, variables: list[Variable]) -> None:
        momentum = float(self.ema_momentum)
        for var in variables:
            average = self.get_slot(var, "average")
            average.assign(average.value() * momentum + var.value() * (1.0 - momentum))
        if self.ema_overwrite_frequency:
            frequency = int(self.ema_overwrite_frequency)
            is_due = math.equal(math.floormod(self.iterations.value(), np.int64(frequency)), 0)
            for var in variables:
                var.assign(array.where(is_due, self.get_slot(var, "average").value(), var.value()))

    def finalize_variable_values(self, var_list: Iterable[Variable]) -> None:
        """Replace the values of variables by their moving averages.

        Args:
          var_list: The variables.
        """
        if self.use_ema:
            for var in var_list:
                var.assign(self.get_slot(var, "average").value())

    # ---- configuration ---------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain Python values."""
        config: dict[str, Any] = {"name": self._name}
        # Constructors of user-defined optimizers need not take the arguments that have their
        # defaults.
        is_complete = self._since_2_11 and type(self).__module__.startswith("meshflow.")
        clipping = ("clipnorm", "global_clipnorm", "clipvalue")
        for key in ("weight_decay", *clipping):
            if is_complete or getattr(self, key) is not None:
                config[key] = getattr(self, key)
        if is_complete or self.use_ema:
            for key in ("use_ema", "ema_momentum", "ema_overwrite_frequency"):
                config[key] = getattr(self, key)
        if is_complete:
            config |= {"jit_compile": self.jit_compile, "is_legacy_optimizer": False}
        if self.gradient_accumulation_steps:
            config["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        if self._configures_rate:
            rate = self._serialize_hyperparameter("learning_rate")
            # TensorFlow since 2.11 stores the rate as a float32 and writes this value.
            is_float32 = self._since_2_11 and isinstance(rate, (int, float))
            config["learning_rate"] = np.float32(rate) if is_float32 else rate
        return config

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Create an optimizer from its configuration.

        Args:
          config: The result of `get_config`.
          custom_objects: Further schedules by name.
        """
        config = dict(config)
        if "lr" in config:
            config["learning_rate"] = config.pop("lr")
        if isinstance(config.get("learning_rate"), dict):
            config["learning_rate"] = deserialize_schedule(config["learning_rate"], custom_objects)
        return cls(**config)


def _filter_gradients(grads_and_vars: Iterable[tuple[Any, Variable]]) -> GradientPairs:
    """Return the pairs with a gradient; warn about the others."""
    pairs = [(g, v) for g, v in grads_and_vars]
    filtered = [(g, v) for g, v in pairs if g is not None]
    missing = [v.name for g, v in pairs if g is None]
    if pairs and not filtered:
        raise ValueError(
            f"No gradients provided for any variable: {missing}. Provided `grads_and_vars` is {pairs}."
        )
    if missing:
        warnings.warn(
            f"Gradients do not exist for variables {missing} when minimizing the loss. If you're using `model.compile()`, did you forget to provide a `loss` argument?",
            stacklevel=3,
        )
    return filtered
