"""`tf.lite.TFLiteConverter`: models as the content of .tflite files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.functions.concrete_function import Signed
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.dtypes import as_dtype, float32
from meshflow.deployment.programs import (
    Deployable,
    of_concrete_function,
    of_jax_function,
    of_model,
    of_saved_signatures,
)
from meshflow.lite.calibration import Calibrated, ranges
from meshflow.lite.graph import Graph, Tensor, written
from meshflow.lite.integers import BYTES, WORDS, Integers
from meshflow.lite.models import model_of
from meshflow.lite.options import OpsSet, RepresentativeDataset, TargetSpec
from meshflow.lite.quantizing import float16_weights, int8_weights
from meshflow.lite.trained import take_ranges

__all__ = ["TFLiteConverter"]


class TFLiteConverter:
    """Converts a model, made by one of the class methods, for LiteRT (TensorFlow Lite).

    Variables that a function writes are LiteRT's: they keep their values from call to call, of all signatures. The batch size, and other sizes that a signature leaves open, stay open: interpreters resize.

    Args:
      funcs: concrete functions, as `from_concrete_functions` takes them.
      trackable_obj: accepted: functions hold their variables.

    Attributes:
      optimizations: `[tf.lite.Optimize.DEFAULT]` for weights of 8 bits; with a `representative_dataset`
        activations of 8 bits, too; with `target_spec.supported_types = [tf.float16]` weights of 16 bits.
      representative_dataset: a function that gives samples, or a `tf.lite.RepresentativeDataset`. Models that round
        their activations themselves (`tf.quantization.fake_quant_with_min_max_vars`) need none.
      target_spec: a `tf.lite.TargetSpec`. With `supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]` it is
        warned of when anything is left to be computed with floats.
      inference_input_type, inference_output_type: of models in 8 bits: tf.float32, tf.int8 or tf.uint8; of models
        whose activations have 16 bits (`EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8`): tf.float32 or
        tf.int16.
      allow_custom_ops: accepted: there are none.
      experimental_enable_resource_variables: whether functions may write variables; default True.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
      >>> content = tf.lite.TFLiteConverter.from_keras_model(model).convert()  # doctest: +SKIP
      >>> run = tf.lite.Interpreter(model_content=content).get_signature_runner()  # doctest: +SKIP
    """

    def __init__(self, funcs: Sequence[Any], trackable_obj: Any = None) -> None:
        self._signatures: Callable[[], Sequence[Deployable]] = lambda: _of_functions(funcs)
        self.optimizations: Sequence[Any] = []
        self.representative_dataset: Any = None
        self.target_spec = TargetSpec()
        self.inference_input_type: Any = float32
        self.inference_output_type: Any = float32
        self.allow_custom_ops = False
        self.experimental_enable_resource_variables = True
        self.experimental_new_converter = True
        self.experimental_new_quantizer = True
        self.exclude_conversion_metadata = False

    @classmethod
    def _of(cls, signatures: Callable[[], Sequence[Deployable]]) -> TFLiteConverter:
        converter = cls(())
        converter._signatures = signatures
        return converter

    @classmethod
    def from_keras_model(cls, model: Any) -> TFLiteConverter:
        """A converter of what a Keras model predicts.

        Args:
          model: a model that was built or called.
        """
        return cls._of(lambda: [of_model(model)])

    @classmethod
    def from_concrete_functions(cls, funcs: Sequence[Any], trackable_obj: Any = None) -> TFLiteConverter:  # fmt: skip
        """A converter of concrete functions, each a signature.

        Args:
          funcs: a list of what `tf.function(...).get_concrete_function(...)` gives: one is the signature
            'serving_default', several have the names of their functions.
          trackable_obj: accepted: functions hold their variables.

        Raises:
          ValueError: for no function, and for what is no concrete function.
        """
        if not isinstance(funcs, (list, tuple)) or not funcs:
            raise ValueError(
                f"No ConcreteFunction is specified: expected a list of them, got {funcs!r}."
            )
        for function in funcs:
            if not isinstance(function, Signed):
                raise ValueError(
                    f"This function takes in a list of ConcreteFunction, got {function!r}. To get the ConcreteFunction "
                    "from a Function, call get_concrete_function."
                )
        return cls(funcs, trackable_obj)

    @classmethod
    def from_saved_model(
        cls, saved_model_dir: Any, signature_keys: Sequence[str] | None = None, tags: Any = None
    ) -> TFLiteConverter:
        """A converter of signatures of a saved model.

        Args:
          saved_model_dir: the folder, of `Model.save` or `tf.saved_model.save`, here or in TensorFlow.
          signature_keys: names of signatures; default all.
          tags: accepted.

        Raises:
          OSError: when nothing was saved there.
          ValueError: for a signature that is not there.
        """
        del tags
        found = of_saved_signatures(saved_model_dir, signature_keys)
        return cls._of(lambda: found)

    @classmethod
    def experimental_from_jax(
        cls,
        serving_funcs: Sequence[Callable[..., Any]],
        inputs: Sequence[Sequence[tuple[str, Any]]],
    ) -> TFLiteConverter:
        """A converter of functions of JAX, each a signature.

        Args:
          serving_funcs: functions of arrays, with their weights; the first is the signature 'serving_default', others
            have their names.
          inputs: for each function (name, array) pairs of its positional arguments: of the arrays only shapes and
            dtypes count.

        Raises:
          ValueError: for no function, and for other numbers of inputs than of functions.

        Example:
          >>> import jax.numpy as jnp
          >>> import meshflow as tf
          >>> converter = tf.lite.TFLiteConverter.experimental_from_jax(
          ...     [lambda x: jnp.tanh(x)], [[("x", jnp.zeros([1, 4]))]]
          ... )
          >>> content = converter.convert()  # doctest: +SKIP
        """
        if not serving_funcs:
            raise ValueError("No serving func is specified.")
        if not inputs:
            raise ValueError("Input tensors are not specified.")
        if len(inputs) != len(serving_funcs):
            raise ValueError(
                f"Input tensor number {len(inputs)} does not match with serving func number {len(serving_funcs)}."
            )
        names = ["serving_default", *(f.__name__ for f in serving_funcs[1:])]
        parts = list(zip(serving_funcs, inputs, names, strict=True))
        return cls._of(lambda: [of_jax_function(*part) for part in parts])

    def convert(self) -> bytes:
        """The content of a .tflite file.

        Raises:
          UnimplementedError: for an operation that cannot be converted, naming its primitive, its layer and why.
          ValueError: for settings that contradict each other.
          ImportError: without the extra `lite`.
        """
        samples, strict, kind = self._settings()
        graph, trained = self._graph(kind)
        quantized = samples is not None or bool(trained)
        if self.representative_dataset is None and not trained and (strict or "int8" in self._types()):  # fmt: skip
            raise ValueError(
                "representative_dataset is required when specifying operators on integers or INT8 supported types."
            )
        ends = self._ends(quantized, kind)
        if quantized:
            found = ({} if samples is None else ranges(graph, samples)) | trained
            left = Calibrated(graph, found, kind).quantize(*ends)
            if strict and left:
                # TensorFlow's converter leaves them, too, whatever its documentation says.
                warnings.warn(
                    f"tf.lite: {', '.join(left)} have no operators on {kind.dtype.itemsize * 8}-bit integers, which "
                    "target_spec.supported_ops asks for alone: they stay float32.",
                    stacklevel=2,
                )
        elif self.optimizations:
            (float16_weights if "float16" in self._types() else int8_weights)(graph)
        return written(graph)

    def calibrated(self) -> Calibrated:
        """The model of floats, with the ranges that the samples of `representative_dataset` show.

        Raises:
          UnimplementedError, ValueError, ImportError: as `convert`; ValueError also when the settings do not ask for
            integers.
        """
        if not self.optimizations:
            raise ValueError("converter object must set optimizations to lite.Optimize.DEFAULT.")
        if not self.representative_dataset:
            raise ValueError("converter object must set representative_dataset.")
        samples, _, kind = self._settings()
        if samples is None:
            raise ValueError(
                "converter object must not ask for float16 weights (target_spec.supported_types)."
            )
        graph, trained = self._graph(kind)
        return Calibrated(graph, ranges(graph, samples) | trained, kind)

    def _graph(self, kind: Integers) -> tuple[Graph, dict[Tensor, tuple[float, float]]]:
        """The model of floats, and the ranges that it was trained with."""
        signatures = self._signatures()
        if not self.experimental_enable_resource_variables:
            _refuse_writes(signatures)
        graph = model_of(signatures)
        rounds = bool(self.optimizations) and "float16" not in self._types()
        return graph, take_ranges(graph, kind) if rounds else {}

    def _types(self) -> list[str]:
        return [as_dtype(t).name for t in self.target_spec.supported_types]

    def _settings(self) -> tuple[Callable[[], Any] | None, bool, Integers]:
        """(samples or None, whether all must be integers, which)."""
        ops = set(self.target_spec.supported_ops)
        wide = OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8 in ops
        whole = wide or OpsSet.TFLITE_BUILTINS_INT8 in ops
        strict = whole and OpsSet.TFLITE_BUILTINS not in ops
        data, known = self.representative_dataset, {"float16", "float32", "int8"}
        if set(self._types()) - known:
            raise ValueError(
                f"target_spec.supported_types: expected some of {sorted(known)}, got {self._types()}."
            )
        if isinstance(data, RepresentativeDataset):
            data = data.input_gen
        if data is not None and not callable(data):
            raise TypeError(
                f"representative_dataset must be a function that gives an iterable of samples, got {data!r}."
            )
        samples = data if self.optimizations and "float16" not in self._types() else None
        return samples, strict, WORDS if wide else BYTES

    def _ends(self, quantized: bool, kind: Integers) -> tuple[np.dtype, np.dtype]:
        """The dtypes of inputs and outputs."""
        first, second = (as_dtype(t).name for t in (self.inference_input_type, self.inference_output_type))  # fmt: skip
        integers = ["int16"] if kind is WORDS else ["int8", "uint8"]
        allowed = [f"tf.{name}" for name in ("float32", *(integers if quantized else ()))]
        if not {f"tf.{first}", f"tf.{second}"} <= set(allowed):
            which = f"in {allowed}" if quantized else "tf.float32"
            raise ValueError(f"The inference_input_type and inference_output_type must be {which}.")
        return np.dtype(first), np.dtype(second)


def _of_functions(functions: Sequence[Any]) -> list[Deployable]:
    """Signatures: a single one is the default, several have the names of their functions."""
    if len(functions) == 1:
        return [of_concrete_function(functions[0])]
    names: list[str] = []
    for function in functions:
        names.append(function.name if function.name not in names else f"{function.name}_{len(names)}")  # fmt: skip
    return [of_concrete_function(f, n) for f, n in zip(functions, names, strict=True)]


def _refuse_writes(signatures: Sequence[Deployable]) -> None:
    for signature in signatures:
        if signature.traced.writes:
            names = ", ".join(sorted(v.name for v in signature.traced.writes))
            raise UnimplementedError(
                f"tf.lite: {signature.name} writes the variables {names}. Please consider enabling the "
                "`experimental_enable_resource_variables` flag of the converter."
            )
