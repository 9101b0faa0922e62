"""`Optimizer`: from gradients to updated variables.

A subclass gives the names of its slots and a pure rule, `update(var, grad, slots, step values)`.
Everything else (clipping, transformers, weight decay, moving averages, slots, serialization) is
here. A whole variable's update is one op, so that a training step stays small.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core import nest
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import Op, apply
from meshflow.core.tape import GradientTape, no_tapes
from meshflow.core.tensor import Tensor
from meshflow.core.trace import init_scope
from meshflow.core.variable import Variable
from meshflow.keras import backend, identify
from meshflow.keras.optimizers.schedules import LearningRateSchedule
from meshflow.keras.optimizers.schedules import deserialize as deserialize_schedule
from meshflow.keras.optimizers.schedules import serialize as serialize_schedule
from meshflow.ops import math


class VariableList(list):
    """A list that may be called: `optimizer.variables` and `optimizer.variables()` both work."""

    def __call__(self) -> VariableList:
        """The list itself."""
        return self


class Optimizer:
    """Base class of optimizers.

    Args:
      name: the optimizer's name.
      gradient_aggregator: function of a list of (gradient, variable) that sums over replicas.
      gradient_transformers: functions from a list of (gradient, variable) to one.
      weight_decay: share of each variable subtracted per step, times the learning rate.
      use_ema: whether a moving average of each variable is kept.
      ema_momentum: its momentum.
      ema_overwrite_frequency: every so many steps the average replaces the variable.
      **kwargs: `learning_rate`, `clipnorm`, `clipvalue`, `global_clipnorm`, `decay`, `lr`,
        `jit_compile`.

    Raises:
      TypeError: for another keyword.
      ValueError: for negative values or clip settings that exclude each other.
    """

    # Names of the slots, and hyperparameters that may change without compiling again.
    slot_names: tuple[str, ...] = ()
    hyper_names: tuple[str, ...] = ()
    _default_learning_rate = 0.001

    def __init__(
        self,
        name: str,
        gradient_aggregator: Callable[[Any], Any] | None = None,
        gradient_transformers: Sequence[Callable[[Any], Any]] | None = None,
        weight_decay: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._name = name
        self.clipnorm = kwargs.pop("clipnorm", None)
        self.clipvalue = kwargs.pop("clipvalue", None)
        self.global_clipnorm = kwargs.pop("global_clipnorm", None)
        self._decay = float(kwargs.pop("decay", 0.0) or 0.0)
        kwargs.pop("jit_compile", None), kwargs.pop("is_legacy_optimizer", None)
        rate = kwargs.pop("lr", None)
        rate = kwargs.pop(
            "learning_rate", rate if rate is not None else self._default_learning_rate
        )
        if kwargs:
            raise TypeError(
                f"{name} got unexpected keyword argument(s): {sorted(kwargs)}. Allowed are learning_rate, lr, decay, clipnorm, clipvalue, global_clipnorm."
            )
        for key in ("clipnorm", "clipvalue", "global_clipnorm"):
            value = getattr(self, key)
            if value is not None and value < 0:
                raise ValueError(f"Expected {key} >= 0, received: {value}")
        if self._decay < 0:
            raise ValueError(f"decay cannot be less than 0. Received: decay={self._decay}.")
        if self.clipnorm is not None and self.global_clipnorm is not None:
            raise ValueError(
                f"Cannot accept both `clipnorm` and `global_clipnorm`. Received: clipnorm={self.clipnorm}, global_clipnorm={self.global_clipnorm}."
            )
        if gradient_transformers and any(
            getattr(self, k) is not None for k in ("clipnorm", "clipvalue", "global_clipnorm")
        ):
            raise ValueError(
                "`gradient_transformers` and clipping (`clipnorm`, `clipvalue`, `global_clipnorm`) cannot be set both: put the clipping into a transformer."
            )
        self.gradient_aggregator = gradient_aggregator
        self.gradient_transformers = list(gradient_transformers or [])
        self.weight_decay = weight_decay
        if use_ema and not 0 <= ema_momentum <= 1:
            raise ValueError(
                f"`ema_momentum` must be in the range [0, 1]. Received: ema_momentum={ema_momentum}"
            )
        self.use_ema, self.ema_momentum, self.ema_overwrite_frequency = (
            use_ema,
            ema_momentum,
            ema_overwrite_frequency,
        )
        self._hyper: dict[str, Any] = {}
        self._iterations: Variable | None = None
        self._slots: dict[int, dict[str, Variable]] = {}
        self._slot_order: list[Variable] = []
        self._owners: dict[int, Variable] = {}
        self._extra: list[Variable] = []
        self._excluded: tuple[set[int], list[str]] = (set(), [])
        self._built_for: set[int] | None = None
        self._set_hyper("learning_rate", rate)

    # ---- hyperparameters -------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The optimizer's name."""
        return self._name

    def _set_hyper(self, name: str, value: Any) -> None:
        """Sets a hyperparameter: a number, tensor, function, or schedule."""
        if isinstance(value, LearningRateSchedule) or (
            callable(value) and not isinstance(value, (Tensor, Variable))
        ):
            self._hyper[name] = value
            return
        known = self._hyper.get(name)
        if isinstance(value, Variable):
            self._hyper[name] = value
        elif isinstance(known, Variable):
            known.assign(np.asarray(convert_to_tensor(value).numpy(), np.float32))
        else:
            self._hyper[name] = value

    def _get_hyper(self, name: str, dtype: Any = None) -> Any:
        """The present value: a variable, or what the function gives."""
        value = self._hyper[name]
        if isinstance(value, LearningRateSchedule):
            result = value
        elif callable(value) and not isinstance(value, (Tensor, Variable)):
            result = convert_to_tensor(value())
        else:
            if not isinstance(value, Variable):
                with init_scope():
                    start = value.numpy() if isinstance(value, Tensor) else value
                    value = self._hyper[name] = Variable(
                        np.float32(start), trainable=False, name=name
                    )
            result = value
        return (
            math.cast(result, dtype)
            if dtype is not None and not isinstance(result, LearningRateSchedule)
            else result
        )

    def __getattribute__(self, name: str) -> Any:
        if name in ("learning_rate", "lr"):
            return self._get_hyper("learning_rate")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("learning_rate", "lr"):
            self._set_hyper("learning_rate", value)
        elif name in type(self).hyper_names and "_hyper" in self.__dict__:
            self._set_hyper(name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        hyper = self.__dict__.get("_hyper", {})
        if name in hyper:
            return self._get_hyper(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def iterations(self) -> Variable:
        """Number of steps taken, an int64 variable."""
        if self._iterations is None:
            with init_scope():
                self._iterations = Variable(np.int64(0), trainable=False, name="iter")
        return self._iterations

    @iterations.setter
    def iterations(self, variable: Variable) -> None:
        if self._iterations is not None:
            raise RuntimeError(
                "Cannot set `iterations` to a new Variable after the Optimizer weights have been created."
            )
        self._iterations = variable

    def _decayed_lr(self, dtype: Any = "float32") -> Any:
        """The learning rate of this step, with schedule and `decay`."""
        rate = self._get_hyper("learning_rate")
        if isinstance(rate, LearningRateSchedule):
            rate = convert_to_tensor(rate(self.iterations.value()), dtype_hint="float32")
        rate = math.cast(rate, dtype)
        if self._decay:
            rate = rate / (1.0 + self._decay * math.cast(self.iterations.value(), dtype))
        return rate

    # ---- slots -----------------------------------------------------------------------------

    def add_slot(
        self, var: Variable, slot_name: str, initializer: Any = "zeros", shape: Any = None
    ) -> Variable:
        """Makes (or finds) a variable that goes with a trained variable.

        Args:
          var: the trained variable.
          slot_name: the slot's name.
          initializer: an initializer, its name, or an array.
          shape: its shape; default that of `var`.
        """
        from meshflow.keras import initializers

        slots = self._slots.setdefault(id(var), {})
        if slot_name not in slots:
            self._owners[id(var)] = var
            sizes = tuple(var.shape if shape is None else shape)
            with init_scope():
                value = (
                    initializers.get(initializer)(sizes, dtype=var.dtype)
                    if isinstance(initializer, str) or callable(initializer)
                    else initializer
                )
                slot = Variable(
                    value, trainable=False, name=f"{var._shared_name}/{slot_name}", dtype=var.dtype
                )
            slot._layout = getattr(var, "_layout", None)
            slots[slot_name] = slot
            self._slot_order.append(slot)
        return slots[slot_name]

    def get_slot(self, var: Variable, slot_name: str) -> Variable:
        """A slot made before.

        Raises:
          KeyError: when there is none.
        """
        return self._slots[id(var)][slot_name]

    def get_slot_names(self) -> list[str]:
        """Names of the slots."""
        return list(self.slot_names)

    def add_variable(
        self, shape: Any, dtype: Any = None, initializer: Any = "zeros", name: str | None = None
    ) -> Variable:
        """Makes a variable of the optimizer's own."""
        from meshflow.keras import initializers

        with init_scope():
            made = Variable(
                initializers.get(initializer)(tuple(shape), dtype=dtype), trainable=False, name=name
            )
        self._extra.append(made)
        return made

    add_weight = add_variable

    def add_variable_from_reference(
        self,
        model_variable: Variable,
        variable_name: str,
        shape: Any = None,
        initial_value: Any = None,
    ) -> Variable:
        """Makes a variable like a model's, as `add_slot` does."""
        return self.add_slot(
            model_variable,
            variable_name,
            "zeros" if initial_value is None else initial_value,
            shape,
        )

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            for name in self.slot_names:
                self.add_slot(var, name, self._slot_initializer(name))

    def _slot_initializer(self, name: str) -> Any:
        return "zeros"

    def _create_all_weights(self, var_list: Sequence[Variable]) -> None:
        self.build(var_list)

    def build(self, var_list: Sequence[Variable]) -> None:
        """Makes the slots of variables.

        Args:
          var_list: the variables to be trained.
        """
        _ = self.iterations
        self._create_slots(var_list)
        if self.use_ema:
            for var in var_list:
                self.add_slot(var, "average", var.numpy() if not _tracing() else _eager_value(var))
        if self._built_for is None:
            self._built_for = {id(v) for v in var_list}
        for var in var_list:
            self._owners[id(var)] = var

    @property
    def weights(self) -> list[Variable]:
        """The state: the step number, then slots."""
        return VariableList(
            [
                *([self._iterations] if self._iterations is not None else []),
                *self._slot_order,
                *self._extra,
            ]
        )

    @property
    def variables(self) -> VariableList:
        """The state; may be called as well."""
        return VariableList(self.weights)

    def get_weights(self) -> list[np.ndarray]:
        """Values of the state."""
        return [np.asarray(w.numpy()) for w in self.weights]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the state.

        Raises:
          ValueError: when number or shapes differ.
        """
        own = self.weights
        if len(own) != len(weights):
            raise ValueError(
                f"You called `set_weights(weights)` on optimizer {self._name} with a weight list of length {len(weights)}, but the optimizer was expecting {len(own)} weights."
            )
        for variable, value in zip(own, weights, strict=True):
            if tuple(np.shape(value)) != tuple(variable.shape):
                raise ValueError(
                    f"Optimizer weight shape {tuple(variable.shape)} not compatible with provided weight shape {tuple(np.shape(value))} ({variable.name})."
                )
            variable.assign(np.asarray(value).astype(variable.dtype.dtype))

    # ---- gradients -------------------------------------------------------------------------

    def minimize(
        self,
        loss: Any,
        var_list: Any,
        grad_loss: Any = None,
        name: str | None = None,
        tape: Any = None,
    ) -> Any:
        """Computes gradients of a loss and applies them.

        Args:
          loss: a function without arguments, or a tensor recorded on `tape`.
          var_list: variables, or a function that gives them.
          grad_loss: gradient of the loss to start from.
          name: ignored.
          tape: the tape that recorded a tensor loss.

        Returns:
          The step number.

        Raises:
          ValueError: for a tensor loss without a tape.
        """
        pairs = self._compute_gradients(loss, var_list, grad_loss, tape)
        return self.apply_gradients(pairs, name=name)

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: Any = None
    ) -> list[tuple[Any, Variable]]:
        """Gradients of a loss; arguments as in `minimize`."""
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Variable]]:
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

    def _transform_loss(self, loss: Any) -> Any:
        return loss

    def _get_gradients(
        self, tape: GradientTape, loss: Any, var_list: Any, grad_loss: Any = None
    ) -> Any:
        return tape.gradient(loss, var_list, grad_loss)

    def get_gradients(self, loss: Any, params: Any) -> Any:
        """Not available with eager execution; use `tf.GradientTape`."""
        raise RuntimeError(
            "`get_gradients` is not supported with eager execution: use tf.GradientTape."
        )

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Gradients summed over replicas."""
        return self._aggregate_gradients(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return (
            grads_and_vars
            if self.gradient_aggregator is None
            else self.gradient_aggregator(grads_and_vars)
        )

    def _transform_unaggregated_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        if self.clipvalue is not None:
            limit = float(self.clipvalue)
            grads_and_vars = [(math.clip_by_value(g, -limit, limit), v) for g, v in grads_and_vars]
        if self.clipnorm is not None:
            grads_and_vars = [
                (math.clip_by_norm(g, float(self.clipnorm)), v) for g, v in grads_and_vars
            ]
        if self.global_clipnorm is not None:
            gradients, _ = math.clip_by_global_norm(
                [g for g, _ in grads_and_vars], float(self.global_clipnorm)
            )
            grads_and_vars = list(zip(gradients, [v for _, v in grads_and_vars], strict=True))
        for transform in self.gradient_transformers:
            grads_and_vars = transform(grads_and_vars)
        return grads_and_vars

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Updates variables.

        Args:
          grads_and_vars: pairs (gradient, variable); None gradients are left out with a warning.
          name: ignored.
          experimental_aggregate_gradients: False leaves out the sum over replicas.
          skip_gradients_aggregation: True leaves it out too.

        Returns:
          The step number.

        Raises:
          ValueError: when there is no gradient at all, or for variables that the optimizer was not
            built with.
        """
        with no_tapes():
            pairs = _filter(list(grads_and_vars))
            variables = [v for _, v in pairs]
            self._check_known(variables)
            self.build(variables)
            pairs = self._transform_unaggregated_gradients(pairs)
            if experimental_aggregate_gradients and not skip_gradients_aggregation:
                pairs = self._aggregate_gradients(pairs)
            pairs = self._transform_gradients(pairs)
            self._apply(pairs)
            self.iterations.assign_add(1)
            if self.use_ema:
                self._update_averages(variables)
        return self.iterations

    apply = apply_gradients

    def _check_known(self, variables: list[Variable]) -> None:
        if self._built_for is None:
            return
        unknown = [
            v for v in variables if id(v) not in self._owners and id(v) not in self._built_for
        ]
        if unknown and self._slot_order and not self._allow_new_variables:
            raise ValueError(
                f"The optimizer {self._name} cannot recognize variables {[v.name for v in unknown]}. This usually means "
                "you are trying to call the optimizer to update different parts of the model separately, or to reuse it "
                "for another model. Please call `optimizer.build(variables)` with the full list of trainable variables "
                "before the training loop, or create a new optimizer."
            )

    _allow_new_variables = False

    def _apply(self, pairs: list[tuple[Any, Variable]]) -> None:
        state: dict[tuple[str, str], dict[str, Any]] = {}
        for gradient, var in pairs:
            if self.weight_decay and self._decays(var):
                rate = self._decayed_lr(var.dtype)
                var.assign_sub(var.value() * (rate * float(self.weight_decay)))
            if hasattr(gradient, "indices") and hasattr(gradient, "values"):
                self._apply_sparse(gradient, var, state)
            else:
                self._resource_apply_dense(
                    convert_to_tensor(gradient, dtype_hint=var.dtype), var, state
                )
            if var.constraint is not None:
                var.assign(var.constraint(var.value()))

    def _apply_sparse(self, gradient: Any, var: Variable, state: Any) -> None:
        if var.constraint is not None:
            raise RuntimeError(
                f"Cannot use a constraint function on a sparse variable ({var.name})."
            )
        custom = type(self)._resource_apply_sparse is not Optimizer._resource_apply_sparse
        if custom:
            self._resource_apply_sparse(gradient.values, var, gradient.indices, state)
        else:
            self._resource_apply_dense(convert_to_tensor(gradient), var, state)

    def _resource_apply_dense(self, grad: Any, var: Variable, apply_state: Any = None) -> Any:
        """Updates one variable; subclasses of users override this or `update_step`."""
        if type(self).update_step is not Optimizer.update_step:
            return self.update_step(grad, var)
        key = ("", var.dtype.name)
        state = apply_state if apply_state is not None else {}
        if key not in state:
            state[key] = self._step_values(var.dtype)
        values = state[key]
        slots = [self._slots[id(var)][n] for n in self.slot_names]
        names = tuple(values)
        outputs = apply(
            self._update_op(),
            (var.value(), grad, [s.value() for s in slots], [values[n] for n in names]),
            (names, *self._rule_settings()),
        )
        var._write(outputs[0])
        for slot, value in zip(slots, outputs[1:], strict=True):
            slot._write(value)
        return None

    def _resource_apply_sparse(
        self, grad: Any, var: Variable, indices: Any, apply_state: Any = None
    ) -> Any:
        """Updates rows of one variable; by default done as a dense update."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def update_step(self, gradient: Any, variable: Variable) -> Any:
        """Updates one variable; the hook of Keras 2.11 and later."""
        return self._resource_apply_dense(gradient, variable)

    def _update_op(self) -> Op:
        cls = type(self)
        if "_op" not in cls.__dict__:
            cls._op = Op(f"{cls.__name__}_update", cls._call_rule, differentiable=False)  # type: ignore[attr-defined]
        return cls._op  # type: ignore[attr-defined]

    @classmethod
    def _call_rule(cls, operands: Any, static: Any) -> Any:
        var, grad, slots, values = operands
        names, *settings = static
        return [
            r.astype(var.dtype)
            for r in cls.rule(
                var, grad.astype(var.dtype), slots, dict(zip(names, values, strict=True)), *settings
            )
        ]

    @staticmethod
    def rule(var: Any, grad: Any, slots: Any, values: dict[str, Any], *settings: Any) -> list[Any]:
        """The update: new value of the variable, then of each slot. Pure, on arrays."""
        raise NotImplementedError(
            "Optimizer subclasses define `rule`, `_resource_apply_dense` or `update_step`."
        )

    def _step_values(self, dtype: Any) -> dict[str, Any]:
        """Scalars of this step that the rule needs."""
        values = {
            "lr": self._decayed_lr(dtype),
            "step": math.cast(self.iterations.value(), dtype) + 1.0,
        }
        for name in self.hyper_names:
            values[name] = self._get_hyper(name, dtype)
        return values

    def _rule_settings(self) -> tuple[Any, ...]:
        """Fixed settings of the rule."""
        return ()

    # ---- weight decay and averages ---------------------------------------------------------

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Leaves variables out of weight decay.

        Args:
          var_list: variables.
          var_names: parts of variable names.
        """
        self._excluded = ({id(v) for v in var_list or []}, list(var_names or []))

    def _decays(self, var: Variable) -> bool:
        import re

        ids, patterns = self._excluded
        return id(var) not in ids and not any(re.search(p, var.name) for p in patterns)

    def _update_averages(self, variables: list[Variable]) -> None:
        momentum = float(self.ema_momentum)
        from meshflow.ops.array import where

        for var in variables:
            average = self.get_slot(var, "average")
            average.assign(average.value() * momentum + var.value() * (1.0 - momentum))
        if self.ema_overwrite_frequency:
            due = math.equal(
                math.floormod(self.iterations.value(), int(self.ema_overwrite_frequency)), 0
            )
            for var in variables:
                var.assign(where(due, self.get_slot(var, "average").value(), var.value()))

    def finalize_variable_values(self, var_list: Any) -> None:
        """Puts the moving averages into the variables.

        Args:
          var_list: the variables.
        """
        if self.use_ema:
            for var in var_list:
                var.assign(self.get_slot(var, "average").value())

    # ---- configuration ---------------------------------------------------------------------

    def _serialize_hyperparameter(self, name: str) -> Any:
        value = self._hyper[name]
        if isinstance(value, LearningRateSchedule):
            return serialize_schedule(value)
        if isinstance(value, (Variable, Tensor)):
            return float(value.numpy())
        return value() if callable(value) else value

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config: dict[str, Any] = {
            "name": self._name,
            "learning_rate": self._serialize_hyperparameter("learning_rate"),
        }
        for key in ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay"):
            if getattr(self, key) is not None:
                config[key] = getattr(self, key)
        if self._decay:
            config["decay"] = self._decay
        if self.use_ema:
            config |= {
                "use_ema": True,
                "ema_momentum": self.ema_momentum,
                "ema_overwrite_frequency": self.ema_overwrite_frequency,
            }
        for name in self.hyper_names:
            config[name] = self._serialize_hyperparameter(name)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The optimizer with a configuration."""
        config = dict(config)
        rate = config.get("learning_rate")
        if isinstance(rate, dict):
            config["learning_rate"] = deserialize_schedule(rate, custom_objects)
        return cls(**config)


def _tracing() -> bool:
    from meshflow.core.context import context

    return context.trace is not None


def _eager_value(var: Variable) -> Any:
    with init_scope():
        return var.numpy()


def _filter(pairs: list[tuple[Any, Variable]]) -> list[tuple[Any, Variable]]:
    """Pairs with a gradient; complains about the others."""
    if not pairs:
        return []
    kept = [(g, v) for g, v in pairs if g is not None]
    missing = [v.name for g, v in pairs if g is None]
    if not kept:
        raise ValueError(
            f"No gradients provided for any variable: {missing}. Provided `grads_and_vars` is {pairs}."
        )
    if missing:
        warnings.warn(
            f"Gradients do not exist for variables {missing} when minimizing the loss. If you're using `model.compile()`, did you forget to provide a `loss` argument?",
            stacklevel=3,
        )
    return kept


_ = (jnp, backend, identify)
