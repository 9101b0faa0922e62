"""Optimizers of `tf.compat.v1.train`, eagerly and in functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.eager import executing_eagerly
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.module import Module
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import UpdateGroup
from meshflow.distribute.parallel.stage_buffers import StageBuffer
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph
from meshflow.raw_ops.training import apply_formula

__all__ = [
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "FtrlOptimizer",
    "GradientDescentOptimizer",
    "MomentumOptimizer",
    "Optimizer",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "RMSPropOptimizer",
]

_Hyper = float | Tensor | Callable[[], Any]
_Gradients = Iterable[tuple[Tensor | IndexedSlices | None, Variable]]


class Optimizer:
    """Base class of TensorFlow 1's optimizers.

    A subclass creates slots in `_create_slots`, and updates variables in `_resource_apply_dense` and
    `_resource_apply_sparse`.

    Args:
      use_locking: Ignored.
      name: Name of the optimizer.

    Raises:
      ValueError: If the name is empty.

    Example:
      >>> x = tf.Variable(3.0)
      >>> optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.25)
      >>> _ = optimizer.minimize(lambda: x * x)
      >>> float(x)
      1.5
    """

    GATE_NONE, GATE_OP, GATE_GRAPH = 0, 1, 2

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        self._use_locking, self._name = use_locking, name
        self._slots: dict[Any, dict[str, Variable]] = {}
        self._owners: dict[Any, Variable] = {}
        # The graph of the variables that were last updated, or None in eager execution.
        self._graph: object = None
        # Variables by their names and graphs.
        self._non_slot_dict: dict[tuple[str, object], Variable] = {}

    def as_keras_optimizer(self) -> TFOptimizer:
        """Return an optimizer for Keras models, which updates variables by this one."""
        return TFOptimizer(self)

    def get_name(self) -> str:
        """Return the name of the optimizer."""
        return self._name

    def minimize(
        self,
        loss: PyTree,
        global_step: Variable | None = None,
        var_list: Sequence[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: TensorLike | None = None,
    ) -> Tensor:
        """Compute gradients and apply them.

        Args:
          loss: Function without arguments that returns the loss; in a `tf.function` also a tensor.
          global_step: Variable that is incremented.
          var_list: Variables. Default: the trainable variables that the loss reads.
          gate_gradients: Ignored.
          aggregation_method: Ignored.
          colocate_gradients_with_ops: Ignored.
          name: Ignored.
          grad_loss: Factor of the gradients, of the shape of the loss.

        Raises:
          ValueError: If no variable has a gradient.
        """
        pairs = self.compute_gradients(loss, var_list, grad_loss=grad_loss)
        if all(gradient is None for gradient, _ in pairs):
            raise ValueError(
                "No gradients provided for any variable, check your graph for ops that do not support gradients, "
                f"between variables {[v.name for _, v in pairs]} and loss {loss}."
            )
        return self.apply_gradients(pairs, global_step)

    def compute_gradients(
        self,
        loss: PyTree,
        var_list: Sequence[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: TensorLike | None = None,
    ) -> list[tuple[Any, Variable]]:
        """Return pairs of gradients and variables; arguments as in `minimize`.

        Raises:
          RuntimeError: If `loss` is a tensor outside of functions.
        """
        if callable(loss) and has_explicit_graph():
            loss = loss()
        if callable(loss):
            with tf.GradientTape() as tape:
                if var_list is not None:
                    tape.watch(var_list)
                loss = loss()
            variables = list(
                tape.watched_variables() if var_list is None else tf.nest.flatten(var_list)
            )
            return list(zip(tape.gradient(loss, variables, grad_loss), variables, strict=True))
        if executing_eagerly():
            raise RuntimeError(
                "`loss` passed to Optimizer.compute_gradients should be a function when eager execution is enabled."
            )
        if var_list is None and has_explicit_graph():
            var_list = get_default_graph().get_collection("trainable_variables")
            if not var_list:
                raise ValueError("No variables to optimize.")
        if var_list is None:
            raise ValueError(
                f"{self._name}.compute_gradients: pass var_list, or a function as loss."
            )
        variables = list(tf.nest.flatten(var_list))
        return list(zip(tf.gradients(loss, variables, grad_loss), variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: _Gradients,
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Update variables.

        Args:
          grads_and_vars: Pairs of gradients and variables; a gradient may be None.
          global_step: Variable that is incremented.
          name: Name of the operation in a graph.

        Raises:
          ValueError: If there are no pairs, or no pair has a gradient.
          RuntimeError: If the gradient of a variable with a constraint is sparse.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError("No variables provided.")
        self._graph = getattr(pairs[0][1], "graph", None)
        present = [(g, v) for g, v in pairs if g is not None]
        if not present:
            raise ValueError(
                f"No gradients provided for any variable: {[v.name for _, v in pairs]}."
            )
        if has_explicit_graph():
            graph = get_default_graph()
            with graph.control_dependencies(None):
                self._create_slots([v for _, v in present])
            train_op = graph.record_effect(
                self._apply_in_run, (present, global_step), name or self._name
            )
            graph.add_to_collection("train_op", train_op)
            return train_op  # type: ignore[return-value]
        if (
            tf.distribute.get_strategy().num_replicas_in_sync > 1
            and not tf.distribute.in_cross_replica_context()
        ):
            replica = tf.distribute.get_replica_context()
            sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, [g for g, _ in present])
            present = [(g, v) for g, (_, v) in zip(sums, present, strict=True)]
        with init_scope():
            self._create_slots([v for _, v in present])
        self._prepare()
        for gradient, variable in present:
            constraint = variable.constraint
            if isinstance(gradient, IndexedSlices):
                if constraint is not None:
                    raise RuntimeError(
                        f"Cannot use a constraint function on a sparse variable: {variable.name}. Its gradient is "
                        "tf.IndexedSlices; convert it by tf.convert_to_tensor."
                    )
                self._resource_apply_sparse_duplicate_indices(
                    gradient.values, variable, gradient.indices
                )
            else:
                self._resource_apply_dense(convert_to_tensor(gradient), variable)
                if constraint is not None:
                    variable.assign(constraint(variable))
        self._finish([], self._name)
        return tf.no_op() if global_step is None else global_step.assign_add(1)  # type: ignore[return-value]

    def _apply_in_run(self, pairs: _Gradients, global_step: Variable | None) -> None:
        """Update variables while a session runs; the operation has no result."""
        self.apply_gradients(pairs, global_step)

    def _get_graph(self) -> object:
        """Return the current graph; while a session runs, that of the variables; None in eager execution."""
        return get_default_graph() if has_explicit_graph() else self._graph

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Return a slot of a variable, or None."""
        return self._slots.get(var.ref(), {}).get(name)

    def get_slot_names(self) -> list[str]:
        """Return the sorted names of the slots."""
        return sorted({name for named in self._slots.values() for name in named})

    def variables(self) -> list[Variable]:
        """Return the variables of the optimizer's state in the current graph."""
        slots = [slot for named in self._slots.values() for slot in named.values()]
        found = [*self._non_slot_dict.values(), *slots]
        graph = self._get_graph()
        return sorted(
            [v for v in found if getattr(v, "graph", None) is graph], key=lambda v: v.name
        )

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        """Create the slots of variables; subclasses override it."""

    def _prepare(self) -> None:
        """Prepare an update, for example convert hyperparameters; subclasses override it."""

    def _finish(self, update_ops: list[Any], name_scope: str) -> object:
        """Finish an update, for example change the powers of decays; subclasses override it."""

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> object:
        """Update a variable by a dense gradient; subclasses override it."""
        raise NotImplementedError(f"{type(self).__name__} needs the method _resource_apply_dense.")

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> object:
        """Update rows of a variable, each of them once; subclasses override it."""
        raise NotImplementedError(f"{type(self).__name__} needs the method _resource_apply_sparse.")

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, handle: Variable, indices: Tensor
    ) -> object:
        """Update rows of a variable, after the gradients of each row are summed."""
        rows, positions = tf.unique(indices)
        sums = tf.math.unsorted_segment_sum(grad, positions, tf.shape(rows)[0])
        return self._resource_apply_sparse(sums, handle, rows)

    def _call_if_callable(self, param: PyTree) -> PyTree:
        """Return the value of a hyperparameter, which may be a function."""
        return param() if callable(param) else param

    def _get_or_make_slot(
        self, var: Variable, val: TensorLike, slot_name: str, op_name: str
    ) -> Variable:
        """Return a slot, and create it with an initial value if necessary."""
        named = self._slots.setdefault(var.ref(), {})
        self._owners[var.ref()] = var
        if slot_name not in named:
            name = f"{var.name.partition(':')[0]}/{op_name}"
            named[slot_name] = tf.Variable(val, trainable=False, name=name)
        return named[slot_name]

    def _get_or_make_slot_with_initializer(
        self,
        var: Variable,
        initializer: Callable[..., TensorLike],
        shape: ShapeLike,
        dtype: DTypeLike,
        slot_name: str,
        op_name: str,
    ) -> Variable:
        """Return a slot, and create it by an initializer if necessary."""
        return self._get_or_make_slot(var, initializer(shape, dtype=dtype), slot_name, op_name)

    def _zeros_slot(self, var: Variable, slot_name: str, op_name: str) -> Variable:
        """Return a slot, and create it with zeros if necessary."""
        return self._get_or_make_slot(var, tf.zeros(var.shape, var.dtype), slot_name, op_name)

    def _create_non_slot_variable(
        self, initial_value: TensorLike, name: str, colocate_with: object
    ) -> Variable:
        """Return a variable of the optimizer, and create it if necessary."""
        key = name, self._get_graph()
        if key not in self._non_slot_dict:
            self._non_slot_dict[key] = tf.Variable(initial_value, trainable=False, name=name)
        return self._non_slot_dict[key]

    def _get_non_slot_variable(self, name: str, graph: object = None) -> Variable | None:
        """Return a variable of the optimizer, or None."""
        return self._non_slot_dict.get((name, graph or self._get_graph()))

    def _checkpoint_children(self) -> dict[str, Any]:
        """Return the objects that a checkpoint saves, except slots."""
        graph = self._get_graph()
        return {name: v for (name, owner), v in self._non_slot_dict.items() if owner is graph}


class TFOptimizer(Module):
    """Keras optimizer that updates variables by an optimizer of TensorFlow 1.

    Args:
      optimizer: The optimizer.
      iterations: Variable that counts the steps.
    """

    # Slots exist only for variables with gradients.
    _is_keras_2 = True

    def __init__(self, optimizer: Optimizer, iterations: Variable | None = None) -> None:
        super().__init__()
        self.optimizer = optimizer
        if iterations is None:
            iterations = tf.Variable(0, trainable=False, dtype=tf.int64, name="iterations")
        self.iterations = iterations

    def minimize(
        self,
        loss: PyTree,
        var_list: Sequence[Variable],
        grad_loss: TensorLike | None = None,
        tape: GradientTape | None = None,
    ) -> None:
        """Compute gradients and apply them.

        Args:
          loss: The loss that the tape recorded; without a tape, a function that returns it.
          var_list: Variables.
          grad_loss: Factor of the gradients, of the shape of the loss.
          tape: The tape.
        """
        if tape is None:
            self.apply_gradients(
                self.optimizer.compute_gradients(loss, var_list, grad_loss=grad_loss)
            )
        else:
            gradients = tape.gradient(loss, list(var_list), grad_loss)
            self.apply_gradients(zip(gradients, var_list, strict=True))

    def apply_gradients(self, grads_and_vars: _Gradients) -> None:
        """Update variables, and count the step.

        Args:
          grads_and_vars: Pairs of gradients and variables; a gradient may be None.
        """
        self.optimizer.apply_gradients(grads_and_vars, global_step=self.iterations)

    def build(self, var_list: Sequence[Variable]) -> None:
        """Create the slots.

        Args:
          var_list: All variables to be trained.
        """
        with init_scope():
            self.optimizer._create_slots(var_list)

    def get_update_group(self, var: Variable) -> UpdateGroup:
        """Return a key of the variables that are updated together.

        Args:
          var: A trained variable.
        """
        return UpdateGroup(is_elementwise=False)

    def place_slots(self, buffer: StageBuffer) -> None:
        """Move the slots of the weights in a buffer into buffers.

        Args:
          buffer: The buffer.
        """
        buffer.combine_named_slots([self.optimizer._slots.get(v.ref(), {}) for v in buffer.members])

    def get_config(self) -> NoReturn:
        """Raise `NotImplementedError`: optimizers of TensorFlow 1 have no configuration."""
        raise NotImplementedError(
            f"{type(self.optimizer).__name__} has no configuration. Use an optimizer of tf.keras.optimizers."
        )


def _is_float_tensor(value: object) -> bool:
    return isinstance(value, (Tensor, Variable)) and value.dtype.is_floating


class _FormulaOptimizer(Optimizer):
    """Optimizer of a formula of TensorFlow's training ops.

    Attributes:
      _op, _sparse_op: Names of the formulas for dense gradients and for rows.
      _slot_values: Initial value of each slot, by its argument of the op.
      _slot_names: Names of slots that differ from the arguments.
    """

    _op = ""
    _slot_values: dict[str, float] = {}
    _slot_names: dict[str, str] = {}

    def __init__(self, use_locking: bool, name: str, **hyper: _Hyper) -> None:
        super().__init__(use_locking, name)
        self._hyper = hyper

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            for argument, value in self._slot_values.items():
                slot = self._slot_names.get(argument, argument)
                self._get_or_make_slot(
                    var, tf.fill(var.shape, tf.cast(value, var.dtype)), slot, self._name
                )

    def _prepare(self) -> None:
        self._values = {name: self._call_if_callable(value) for name, value in self._hyper.items()}

    def _list_arguments(self, grad: Tensor, handle: Variable) -> dict[str, Any]:
        slots = {a: self.get_slot(handle, self._slot_names.get(a, a)) for a in self._slot_values}
        name = "delta" if self._op.endswith("GradientDescent") else "grad"
        # Variables, such as the powers of decays, may have another dtype than this variable.
        values = {
            key: tf.cast(value, handle.dtype) if _is_float_tensor(value) else value
            for key, value in self._values.items()
        }
        return {"var": handle, **slots, **values, name: grad}

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> None:
        apply_formula(self._op, **self._list_arguments(grad, handle))

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> None:
        apply_formula(self._op, indices, **self._list_arguments(grad, handle))


class GradientDescentOptimizer(_FormulaOptimizer):
    """Gradient descent: `w = w - lr * g`."""

    _op = "GradientDescent"

    def __init__(
        self, learning_rate: _Hyper, use_locking: bool = False, name: str = "GradientDescent"
    ) -> None:
        super().__init__(use_locking, name, alpha=learning_rate)


class MomentumOptimizer(_FormulaOptimizer):
    """Momentum: `a = momentum * a + g; w = w - lr * a`."""

    _op, _slot_values, _slot_names = "Momentum", {"accum": 0.0}, {"accum": "momentum"}

    def __init__(
        self,
        learning_rate: _Hyper,
        momentum: _Hyper,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            use_locking, name, lr=learning_rate, momentum=momentum, use_nesterov=use_nesterov
        )


class AdamOptimizer(_FormulaOptimizer):
    """Adam, with one pair of decay powers for all variables."""

    _op, _slot_values = "Adam", {"m": 0.0, "v": 0.0}

    def __init__(
        self,
        learning_rate: _Hyper = 0.001,
        beta1: _Hyper = 0.9,
        beta2: _Hyper = 0.999,
        epsilon: _Hyper = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(
            use_locking, name, lr=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon
        )

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for name in ("beta1", "beta2"):
            self._create_non_slot_variable(
                self._call_if_callable(self._hyper[name]), f"{name}_power", var_list
            )
        super()._create_slots(var_list)

    def _get_beta_accumulators(self) -> tuple[Variable | None, Variable | None]:
        """Return the powers of the decays."""
        return self._get_non_slot_variable("beta1_power"), self._get_non_slot_variable(
            "beta2_power"
        )

    def _prepare(self) -> None:
        super()._prepare()
        self._values["beta1_power"], self._values["beta2_power"] = self._get_beta_accumulators()

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> None:
        # The averages of all rows decay, so all rows move.
        dense = tf.scatter_nd(tf.expand_dims(indices, -1), grad, tf.shape(handle, indices.dtype))
        self._resource_apply_dense(dense, handle)

    def _finish(self, update_ops: list[Any], name_scope: str) -> None:
        for name in ("beta1", "beta2"):
            power = self._get_non_slot_variable(f"{name}_power")
            assert power is not None
            power.assign(power * tf.cast(self._values[name], power.dtype))


class AdagradOptimizer(_FormulaOptimizer):
    """Adagrad: `a = a + g * g; w = w - lr * g / sqrt(a)`."""

    _op, _slot_names = "Adagrad", {"accum": "accumulator"}

    def __init__(
        self,
        learning_rate: _Hyper,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(
                f"initial_accumulator_value must be positive: {initial_accumulator_value}"
            )
        super().__init__(use_locking, name, lr=learning_rate)
        self._slot_values = {"accum": initial_accumulator_value}


class AdagradDAOptimizer(_FormulaOptimizer):
    """Adagrad with dual averaging, for sparse linear models."""

    _op = "AdagradDA"

    def __init__(
        self,
        learning_rate: _Hyper,
        global_step: Variable | Tensor,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        if initial_gradient_squared_accumulator_value <= 0.0:
            raise ValueError(
                "initial_gradient_squared_accumulator_value must be positive: "
                f"{initial_gradient_squared_accumulator_value}"
            )
        strengths = {"l1": l1_regularization_strength, "l2": l2_regularization_strength}
        super().__init__(use_locking, name, lr=learning_rate, **strengths)
        self._global_step = global_step
        self._slot_values = {
            "gradient_accumulator": 0.0,
            "gradient_squared_accumulator": initial_gradient_squared_accumulator_value,
        }

    def _prepare(self) -> None:
        super()._prepare()
        self._values["global_step"] = self._global_step + 1


class AdadeltaOptimizer(_FormulaOptimizer):
    """Adadelta: steps in the units of the variables."""

    _op, _slot_values = "Adadelta", {"accum": 0.0, "accum_update": 0.0}

    def __init__(
        self,
        learning_rate: _Hyper = 0.001,
        rho: _Hyper = 0.95,
        epsilon: _Hyper = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate, rho=rho, epsilon=epsilon)


class FtrlOptimizer(_FormulaOptimizer):
    """FTRL, with regularization that sets weights to 0."""

    _op = "Ftrl"

    def __init__(
        self,
        learning_rate: _Hyper,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float | None = None,
    ) -> None:
        for label, value in [
            ("initial_accumulator_value", initial_accumulator_value),
            ("l1_regularization_strength", l1_regularization_strength),
            ("l2_regularization_strength", l2_regularization_strength),
            ("l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength),
            ("-learning_rate_power", -learning_rate_power),
        ]:
            if value < 0.0:
                raise ValueError(f"{label} {value} needs to be positive or zero")
        super().__init__(
            use_locking,
            name,
            lr=learning_rate,
            lr_power=learning_rate_power,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
        )
        self._beta = beta or 0.0
        if l2_shrinkage_regularization_strength > 0:
            self._hyper["l2_shrinkage"] = l2_shrinkage_regularization_strength
        self._slot_values = {"accum": initial_accumulator_value, "linear": 0.0}

    def _prepare(self) -> None:
        super()._prepare()
        self._values["l2"] = self._values["l2"] + self._beta / (2.0 * self._values["lr"])


class ProximalAdagradOptimizer(_FormulaOptimizer):
    """Adagrad with proximal regularization."""

    _op, _slot_names = "ProximalAdagrad", {"accum": "accumulator"}

    def __init__(
        self,
        learning_rate: _Hyper,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(
                f"initial_accumulator_value must be positive: {initial_accumulator_value}"
            )
        strengths = {"l1": l1_regularization_strength, "l2": l2_regularization_strength}
        super().__init__(use_locking, name, lr=learning_rate, **strengths)
        self._slot_values = {"accum": initial_accumulator_value}


class ProximalGradientDescentOptimizer(_FormulaOptimizer):
    """Gradient descent with proximal regularization."""

    _op = "ProximalGradientDescent"

    def __init__(
        self,
        learning_rate: _Hyper,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        strengths = {"l1": l1_regularization_strength, "l2": l2_regularization_strength}
        super().__init__(use_locking, name, alpha=learning_rate, **strengths)


class RMSPropOptimizer(_FormulaOptimizer):
    """RMSProp, with epsilon under the root, and momentum of the scaled steps."""

    _slot_names = {"ms": "rms", "mom": "momentum"}

    def __init__(
        self,
        learning_rate: _Hyper,
        decay: _Hyper = 0.9,
        momentum: _Hyper = 0.0,
        epsilon: _Hyper = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(
            use_locking, name, lr=learning_rate, rho=decay, momentum=momentum, epsilon=epsilon
        )
        self._op = "CenteredRMSProp" if centered else "RMSProp"
        self._slot_values = {"ms": 1.0, **({"mg": 0.0} if centered else {}), "mom": 0.0}
