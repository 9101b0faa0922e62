"""Options of a conversion."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

from meshflow.core.values.dtypes import DTypeLike


class OpsSet(enum.Enum):
    """Set of operators that a model may use."""

    TFLITE_BUILTINS = "TFLITE_BUILTINS"
    SELECT_TF_OPS = "SELECT_TF_OPS"
    TFLITE_BUILTINS_INT8 = "TFLITE_BUILTINS_INT8"
    EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8 = (
        "EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8"
    )
    EXPERIMENTAL_STABLEHLO_OPS = "EXPERIMENTAL_STABLEHLO_OPS"

    def __str__(self) -> str:
        return str(self.value)


class Optimize(enum.Enum):
    """Optimization of a conversion; all members mean `DEFAULT`."""

    DEFAULT = "DEFAULT"
    OPTIMIZE_FOR_SIZE = "OPTIMIZE_FOR_SIZE"
    OPTIMIZE_FOR_LATENCY = "OPTIMIZE_FOR_LATENCY"
    EXPERIMENTAL_SPARSITY = "EXPERIMENTAL_SPARSITY"

    def __str__(self) -> str:
        return str(self.value)


class RepresentativeDataset:
    """Samples for the calibration of activations.

    Args:
      input_gen: function that returns an iterable of samples: lists of arrays in the order of the
        inputs, dictionaries of arrays by name, or (signature, dictionary).

    Example:
      >>> data = tf.lite.RepresentativeDataset(lambda: iter([[[1.0]]]))
      >>> list(data.input_gen())
      [[[1.0]]]
    """

    def __init__(self, input_gen: Callable[[], Iterable[Any]]) -> None:
        self.input_gen = input_gen


class TargetSpec:
    """Operators and dtypes of the device that runs the model.

    Args:
      supported_ops: members of `OpsSet`.
      supported_types: dtypes: `[tf.float16]` for weights of 16 bits, or `[tf.int8]`.
      experimental_select_user_tf_ops: ignored.
      experimental_supported_backends: ignored.
    """

    def __init__(
        self,
        supported_ops: Iterable[OpsSet] | None = None,
        supported_types: Iterable[DTypeLike] | None = None,
        experimental_select_user_tf_ops: object = None,
        experimental_supported_backends: object = None,
    ) -> None:
        self.supported_ops: Iterable[OpsSet] = (
            {OpsSet.TFLITE_BUILTINS} if supported_ops is None else supported_ops
        )
        self.supported_types: Iterable[DTypeLike] = (
            set() if supported_types is None else supported_types
        )
        self.experimental_select_user_tf_ops = experimental_select_user_tf_ops
        self.experimental_supported_backends = experimental_supported_backends
