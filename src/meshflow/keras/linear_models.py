"""`tf.keras.experimental` and `tf.keras.models.experimental`: linear, wide and deep, and sharpness-aware models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config, PyTree
from meshflow.keras import activations, initializers, layers, registry, regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.models.model import Model
from meshflow.keras.utils import unpack_x_y_sample_weight
from meshflow.ops import array, math
from meshflow.ops import linalg as linear_algebra


class LinearModel(Model):
    """Sum of a linear function of each input and of a bias.

    Args:
      units: Size of the output.
      activation: Function of the sum.
      use_bias: Whether there is a bias.
      kernel_initializer: Initializer of the kernels.
      bias_initializer: Initializer of the bias.
      kernel_regularizer: Regularizer of the kernels.
      bias_regularizer: Regularizer of the bias.
      **kwargs: Arguments of `Model`.

    Example:
      >>> model = tf.keras.experimental.LinearModel(kernel_initializer="ones")
      >>> model({"a": tf.ones([2, 1]), "b": tf.ones([2, 3])}).numpy().ravel()
      array([4., 4.], dtype=float32)
    """

    def __init__(
        self,
        units: int = 1,
        activation: object = None,
        use_bias: bool = True,
        kernel_initializer: object = "zeros",
        bias_initializer: object = "zeros",
        kernel_regularizer: object = None,
        bias_regularizer: object = None,
        **kwargs: Any,
    ) -> None:
        self.units, self.use_bias = units, use_bias
        self.activation = activations.get(activation)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        super().__init__(**kwargs)
        self.dense_layers: Any = None

    def _make_dense(self, name: str | None = None) -> Layer:
        return layers.Dense(
            self.units,
            use_bias=False,
            kernel_initializer=self.kernel_initializer,
            kernel_regularizer=self.kernel_regularizer,
            name=name,
        )

    def build(self, input_shape: PyTree) -> None:
        """Create a kernel for each input."""
        if isinstance(input_shape, Mapping):
            self.dense_layers = {name: self._make_dense(name) for name in sorted(input_shape)}
            shapes = [(self.dense_layers[name], input_shape[name]) for name in sorted(input_shape)]
        else:
            nested = isinstance(input_shape, (list, tuple)) and isinstance(
                input_shape[0], (list, tuple)
            )
            inputs = list(input_shape) if nested else [input_shape]
            self.dense_layers = [self._make_dense() for _ in inputs]
            shapes = list(zip(self.dense_layers, inputs, strict=True))
        for layer, shape in shapes:
            layer.build(shape)
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
            )
        self.built = True

    def call(self, inputs: PyTree) -> Tensor:
        """Compute the sum."""
        if isinstance(self.dense_layers, Mapping):
            outputs = [self.dense_layers[name](inputs[name]) for name in sorted(self.dense_layers)]
        else:
            values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            outputs = [layer(value) for layer, value in zip(self.dense_layers, values, strict=True)]
        result = math.add_n(outputs)
        if self.use_bias:
            result = result + self.bias
        return result if self.activation is None else self.activation(result)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "bias_initializer": initializers.serialize(self.bias_initializer),
            "kernel_regularizer": regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": regularizers.serialize(self.bias_regularizer),
        }


class WideDeepModel(Model):
    """Sum of a linear and of a deep model, each with its own optimizer.

    Args:
      linear_model: Linear model.
      dnn_model: Deep model.
      activation: Function of the sum.
      **kwargs: Arguments of `Model`.

    Example:
      >>> model = tf.keras.experimental.WideDeepModel(
      ...     tf.keras.experimental.LinearModel(), tf.keras.Sequential([tf.keras.layers.Dense(1)]))
      >>> model.compile(["sgd", "adam"], "mse")
      >>> history = model.fit([tf.ones([4, 2]), tf.ones([4, 3])], tf.ones([4, 1]), verbose=0)
      >>> sorted(history.history)
      ['loss']
    """

    def __init__(
        self, linear_model: Model, dnn_model: Model, activation: object = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.linear_model, self.dnn_model = linear_model, dnn_model
        self.activation = activations.get(activation)

    def call(self, inputs: PyTree, training: object = None) -> Tensor:
        """Compute the sum."""
        if isinstance(inputs, (tuple, list)) and len(inputs) == 2:
            linear_inputs, dnn_inputs = inputs
        else:
            linear_inputs = dnn_inputs = inputs
        result = self.linear_model(linear_inputs) + self.dnn_model(dnn_inputs, training=training)
        return result if self.activation is None else self.activation(result)

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        """Configure the training.

        Args:
          optimizer: One optimizer, or a list of those of the linear and of the deep model.
          *args: Other arguments of `Model.compile`.
          **kwargs: Other arguments of `Model.compile`.
        """
        pair = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        super().compile(pair[0], *args, **kwargs)
        self._dnn_optimizer = registry.OPTIMIZERS.get(pair[1]) if len(pair) > 1 else None

    def train_step(self, data: PyTree) -> dict[str, Any]:
        """Train on one batch."""
        if self._dnn_optimizer is None:
            return super().train_step(data)
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        with GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
        parts = [self.linear_model.trainable_variables, self.dnn_model.trainable_variables]
        gradients = tape.gradient(loss, parts)
        for optimizer, values, variables in zip(
            (self.optimizer, self._dnn_optimizer), gradients, parts, strict=True
        ):
            optimizer.apply_gradients(zip(values, variables, strict=True))
        return self.compute_metrics(x, y, y_pred, sample_weight)


class SharpnessAwareMinimization(Model):
    """Model that trains at the worst point in a neighborhood of its weights.

    Each step computes the gradients at `w + rho * g / norm(g)`.

    Args:
      model: The model.
      rho: Radius of the neighborhood.
      num_batch_splits: Number of parts of a batch with their own neighborhood points, or None.
      name: Name of the model.

    References:
      Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", 2020.
    """

    def __init__(
        self,
        model: Model,
        rho: float = 0.05,
        num_batch_splits: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.model, self.rho, self.num_batch_splits = model, rho, num_batch_splits

    def call(self, inputs: PyTree) -> PyTree:
        """Call the model."""
        return self.model(inputs)

    def train_step(self, data: PyTree) -> dict[str, Any]:
        """Train on one batch."""
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        count = self.num_batch_splits or 1
        parts = (
            list(zip(array.split(x, count), array.split(y, count), strict=True))
            if count > 1
            else [(x, y)]
        )
        totals: list[Any] = []
        outputs = []
        for x_part, y_part in parts:
            gradients = self._compute_gradients(
                x_part, y_part, sample_weight if count == 1 else None
            )[0]
            scale = self.rho / (linear_algebra.global_norm(gradients) + 1e-12)
            steps = [g * scale for g in gradients]
            variables = self.model.trainable_variables
            for variable, step in zip(variables, steps, strict=True):
                variable.assign_add(step)
            moved, y_pred = self._compute_gradients(
                x_part, y_part, sample_weight if count == 1 else None
            )
            totals = [a + b for a, b in zip(totals, moved, strict=True)] if totals else moved
            for variable, step in zip(variables, steps, strict=True):
                variable.assign_sub(step)
            outputs.append(y_pred)
        self.optimizer.apply_gradients(zip(totals, self.model.trainable_variables, strict=True))
        return self.compute_metrics(x, y, array.concat(outputs, 0), sample_weight)

    def _compute_gradients(
        self, x: PyTree, y: PyTree, sample_weight: PyTree
    ) -> tuple[list[Any], Tensor]:
        with GradientTape() as tape:
            y_pred = self(x)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
        return tape.gradient(loss, self.model.trainable_variables), y_pred

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            "model": self.model,
            "rho": self.rho,
            "num_batch_splits": self.num_batch_splits,
            "name": self.name,
        }


class SequenceFeatures(Layer):
    """Layer of sequence columns, which are not available.

    Raises:
      NotAvailableError: Always.
    """

    def __init__(
        self, feature_columns: Any, trainable: bool = True, name: str | None = None, **kwargs: Any
    ) -> None:
        raise NotAvailableError(
            "tf.keras.experimental.SequenceFeatures: feature columns of sequences are not available. Use "
            "tf.keras.layers.TextVectorization, StringLookup and Embedding."
        )
