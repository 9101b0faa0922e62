"""Dense layers over any dimensions, given by an einsum equation."""

from __future__ import annotations

import re
from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras import activations, constraints, initializers, regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.float8_products import product
from meshflow.keras.layers.core import weight_config
from meshflow.ops.linalg import einsum

__all__ = ["EinsumDense"]

_Sizes = list[int | None]


class EinsumDense(Layer):
    """`activation(einsum(equation, inputs, kernel) + bias)`.

    Args:
      equation: such as 'abc,cd->abd', '...x,xy->...y' or 'ab...,bc->ac...'.
      output_shape: sizes of the output without the batch and without what `...` stands for; None for
        a size that is the input's.
      activation: activation function.
      bias_axes: letters of the output's dimensions that the bias has; None for no bias.
      kernel_initializer: initializer of the kernel, whose shape follows from the equation.
      bias_initializer: initializer of the bias.
      kernel_regularizer: penalty on the kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: projection of the kernel.
      bias_constraint: projection of the bias.
      **kwargs: arguments of `Layer`.

    Input shape:
      What the part of `equation` before the comma says; its '...' may stand for more dimensions.

    Output shape:
      What stands behind its arrow: `output_shape` with the batch in front.

    Raises:
      ValueError: when the layer is built, for an equation of another form, or sizes that do not fit.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.EinsumDense("abc,cd->abd", (None, 64), bias_axes="d")
      >>> layer(tf.ones([2, 32, 128])).shape, layer.kernel.shape, layer.bias.shape
      (TensorShape([2, 32, 64]), TensorShape([128, 64]), TensorShape([64]))
    """

    _weights_with_layouts: tuple[str, ...] = ("kernel", "bias")

    def __init__(
        self,
        equation: str,
        output_shape: Any,
        activation: Any = None,
        bias_axes: str | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.equation = equation
        sizes = [output_shape] if isinstance(output_shape, int) else list(output_shape)
        self.partial_output_shape: _Sizes = sizes
        self.bias_axes = bias_axes
        self.activation = activations.get(activation)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.bias_constraint = constraints.get(bias_constraint)
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any) -> None:
        """Creates kernel and bias."""
        kernel, bias, output = _shapes(
            self.equation,
            self.bias_axes,
            TensorShape(input_shape).as_list(),
            self.partial_output_shape,
        )
        self.full_output_shape = output
        for name, shape in (("kernel", kernel), ("bias", bias)):
            if shape is None:
                continue
            weight = self.add_weight(
                name,
                shape,
                initializer=getattr(self, f"{name}_initializer"),
                regularizer=getattr(self, f"{name}_regularizer"),
                constraint=getattr(self, f"{name}_constraint"),
            )
            setattr(self, name, weight)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        outputs = product(
            self, lambda x, w: einsum(self.equation, x, w), inputs, self.kernel.value()
        )
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """Shape of the output."""
        sizes = TensorShape(input_shape).as_list()
        return TensorShape(_shapes(self.equation, None, sizes, self.partial_output_shape)[2])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "output_shape": list(self.partial_output_shape),
            "equation": self.equation,
            "activation": activations.serialize(self.activation),
            "bias_axes": self.bias_axes,
            **weight_config(self, "kernel", "bias", activity=True),
        }


def _shapes(
    equation: str, bias_axes: str | None, inputs: _Sizes, outputs: _Sizes
) -> tuple[list[Any], list[Any] | None, _Sizes]:
    """Shapes of the kernel, of the bias or None, and of the output.

    Raises:
      ValueError: naming the letter that does not fit.
    """
    found = re.fullmatch(
        r"(\.{3})?([a-zA-Z]+)(\.{3})?,([a-zA-Z]+)->(\.{3})?([a-zA-Z]+)(\.{3})?",
        equation.replace(" ", ""),
    )
    if (
        found is None
        or (found[1], found[3]) != (found[5], found[7])
        or None not in (found[1], found[3])
    ):
        raise ValueError(
            f"Invalid einsum equation '{equation}'. Equations must be in the form [X],[Y]->[Z], "
            "...[X],[Y]->...[Z], or [X]...,[Y]->[Z]...."
        )
    leading, trailing = found[1] is not None, found[3] is not None
    left, right, result = found[2], found[4], found[6]
    hidden = len(inputs) - len(left)
    if hidden < 0 or (hidden and not (leading or trailing)):
        raise ValueError(
            f"The input of shape {tuple(inputs)} does not have the {len(left)} dimensions of the equation '{equation}'."
        )
    if leading:
        output = [*inputs[:hidden], *outputs]
    else:
        output = [inputs[0], *outputs, *inputs[len(left) :]]
    expected = len(result) + hidden
    if len(output) < expected:
        raise ValueError(
            f"output_shape {tuple(outputs)} has too few sizes for the output '{result}' of the equation '{equation}'."
        )
    given = dict(zip(left, inputs[hidden if leading else 0 :], strict=False))
    made = dict(zip(result, output[hidden if leading else 0 :], strict=False))
    for letter, size in made.items():
        if letter in given and size is not None and size != given[letter]:
            raise ValueError(
                f"Input shape and output shape do not match at shared dimension '{letter}'. Input shape is "
                f"{given[letter]}, and output shape is {size}."
            )
        if letter not in left and letter not in right:
            raise ValueError(
                f"Dimension '{letter}' was specified in the output '{result}' but has no corresponding dim in the "
                f"input spec '{left}' or weight spec '{right}'"
            )
    for letter in right:
        if letter not in given and letter not in made:
            raise ValueError(
                f"Weight dimension '{letter}' did not have a match in either the input spec '{left}' or the output "
                f"spec '{result}'. For this layer, the weight must be fully specified."
            )
    kernel = [given[letter] if letter in given else made[letter] for letter in right]
    if bias_axes is None:
        return kernel, None, output
    for letter in bias_axes:
        if letter not in result:
            raise ValueError(
                f"Bias dimension '{letter}' was requested, but is not part of the output spec '{result}'"
            )
    first = min(result.index(letter) for letter in bias_axes)
    sizes = {letter: given[letter] if size is None else size for letter, size in made.items()}
    bias = [sizes[letter] if letter in bias_axes else 1 for letter in result[first:]]
    return kernel, bias + [1] * (hidden if trailing else 0), output
