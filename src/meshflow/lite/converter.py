"""`tf.lite.TFLiteConverter`: conversion of models to the content of .tflite files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.dtypes import DTypeLike, as_dtype, float32
from meshflow.deployment.deployable_function import (
    DeployableFunction,
    trace_concrete_function,
    trace_jax_function,
    trace_model,
    trace_saved_signatures,
)
from meshflow.environment.types import StrPath
from meshflow.lite.calibration import CalibratedModel, measure_ranges
from meshflow.lite.graph import LiteModel, LiteTensor, serialize
from meshflow.lite.integer_quantization import INT8, INT16, IntegerTypes
from meshflow.lite.model_builder import build_model
from meshflow.lite.options import OpsSet, RepresentativeDataset, TargetSpec
from meshflow.lite.trained_ranges import extract_trained_ranges
from meshflow.lite.weight_quantization import quantize_weights_to_float16, quantize_weights_to_int8


class TFLiteConverter:
    """Converter of models for LiteRT (TensorFlow Lite), created by one of the class methods.

    Variables that a function writes become LiteRT resources: they keep their values between the
    calls
    of all signatures. Unknown sizes of a signature, such as the batch size, remain unknown:
    interpreters resize their inputs.

    Args:
      funcs: concrete functions, as in `from_concrete_functions`.
      trackable_obj: ignored, because functions hold their variables.

    Attributes:
      optimizations: `[tf.lite.Optimize.DEFAULT]` for weights of 8 bits; with a
        `representative_dataset` also for activations of 8 bits; with
        `target_spec.supported_types = [tf.float16]` for weights of 16 bits.
      representative_dataset: a function that returns samples, or a `tf.lite.RepresentativeDataset`.
        Models of quantization-aware training (`tf.quantization.fake_quant_with_min_max_vars`) need
        none.
      target_spec: a `tf.lite.TargetSpec`. With
        `supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]`, operators that remain in float32
        cause a warning.
      inference_input_type, inference_output_type: tf.float32, tf.int8 or tf.uint8 for models in 8
        bits; tf.float32 or tf.int16 for models with activations of 16 bits
        (`EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8`).
      allow_custom_ops: ignored, because no conversion uses custom operators.
      experimental_enable_resource_variables: whether functions may write variables; default True.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
      >>> content = tf.lite.TFLiteConverter.from_keras_model(model).convert()  # doctest: +SKIP
      >>> run = tf.lite.Interpreter(model_content=content).get_signature_runner()  # doctest: +SKIP
    """

    def __init__(self, funcs: Sequence[SignedFunction], trackable_obj: object = None) -> None:
        self._signatures: Callable[[], Sequence[DeployableFunction]] = lambda: _trace_functions(
            funcs
        )
        self.optimizations: Sequence[Any] = []
        self.representative_dataset: Any = None
        self.target_spec = TargetSpec()
        self.inference_input_type: DTypeLike = float32
        self.inference_output_type: DTypeLike = float32
        self.allow_custom_ops = False
        self.experimental_enable_resource_variables = True
        self.experimental_new_converter = True
        self.experimental_new_quantizer = True
        self.exclude_conversion_metadata = False

    @classmethod
    def _from_signatures(
        cls, signatures: Callable[[], Sequence[DeployableFunction]]
    ) -> TFLiteConverter:
        converter = cls(())
        converter._signatures = signatures
        return converter

    @classmethod
    def from_keras_model(cls, model: Any) -> TFLiteConverter:
        """Create a converter of the prediction of a Keras model.

        Args:
          model: a model that is built or was called.
        """
        return cls._from_signatures(lambda: [trace_model(model)])

    @classmethod
    def from_concrete_functions(cls, funcs: Sequence[SignedFunction], trackable_obj: object = None) -> TFLiteConverter:  # fmt: skip
        """Create a converter of concrete functions, one for each signature.

        Args:
          funcs: a list of results of `tf.function(...).get_concrete_function(...)`. A single
            function
            is the signature 'serving_default'; several have the names of their functions.
          trackable_obj: ignored, because functions hold their variables.

        Raises:
          ValueError: if the list is empty or contains an object that is not a concrete function.
        """
        if not isinstance(funcs, (list, tuple)) or not funcs:
            raise ValueError(
                f"No ConcreteFunction is specified: expected a list of them, got {funcs!r}."
            )
        for function in funcs:
            if not isinstance(function, SignedFunction):
                raise ValueError(
                    f"This function takes in a list of ConcreteFunction, got {function!r}. To get the ConcreteFunction "
                    "from a Function, call get_concrete_function."
                )
        return cls(funcs, trackable_obj)

    @classmethod
    def from_saved_model(
        cls,
        saved_model_dir: StrPath,
        signature_keys: Sequence[str] | None = None,
        tags: object = None,
    ) -> TFLiteConverter:
        """Create a converter of signatures of a saved model.

        Args:
          saved_model_dir: folder written by `Model.save` or `tf.saved_model.save`, here or in
            TensorFlow.
          signature_keys: names of signatures; default all.
          tags: ignored.

        Raises:
          OSError: if the folder contains no saved model.
          ValueError: if a signature does not exist.
        """
        del tags
        signatures = trace_saved_signatures(saved_model_dir, signature_keys)
        return cls._from_signatures(lambda: signatures)

    @classmethod
    def experimental_from_jax(
        cls,
        serving_funcs: Sequence[Callable[..., Any]],
        inputs: Sequence[Sequence[tuple[str, Any]]],
    ) -> TFLiteConverter:
        """Create a converter of functions of JAX arrays, one for each signature.

        Args:
          serving_funcs: functions that hold their weights; the first one is the signature
            'serving_default', others have their own names.
          inputs: for each function, (name, array) pairs of its positional arguments; only the
            shapes
            and dtypes of the arrays matter.

        Raises:
          ValueError: if there are no functions, or their number differs from that of `inputs`.

        Example:
          >>> import jax.numpy as jnp
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
        return cls._from_signatures(lambda: [trace_jax_function(*part) for part in parts])

    def convert(self) -> bytes:
        """Convert the signatures to the content of a .tflite file.

        Raises:
          UnimplementedError: if an operation cannot be converted; names its primitive and its
            layer.
          ValueError: if options contradict each other.
          ImportError: if the extra `lite` is not installed.
        """
        samples, strict, kind = self._check_options()
        graph, trained = self._build_float_model(kind)
        quantized = samples is not None or bool(trained)
        if self.representative_dataset is None and not trained and (strict or "int8" in self._get_type_names()):  # fmt: skip
            raise ValueError(
                "representative_dataset is required when specifying operators on integers or INT8 supported types."
            )
        dtypes = self._get_input_output_dtypes(quantized, kind)
        if quantized:
            result = ({} if samples is None else measure_ranges(graph, samples)) | trained
            remaining = CalibratedModel(graph, result, kind).quantize(*dtypes)
            if strict and remaining:
                # TensorFlow's converter leaves them in float32 too, although its documentation
                # excludes it.
                warnings.warn(
                    f"tf.lite: {', '.join(remaining)} have no operators on {kind.dtype.itemsize * 8}-bit integers, the "
                    "only ones that target_spec.supported_ops allows: they remain in float32.",
                    stacklevel=2,
                )
        elif self.optimizations:
            (
                quantize_weights_to_float16
                if "float16" in self._get_type_names()
                else quantize_weights_to_int8
            )(graph)
        return serialize(graph)

    def calibrate(self) -> CalibratedModel:
        """Convert to a float model, and measure its ranges on the `representative_dataset`.

        Raises:
          UnimplementedError, ImportError: as `convert`.
          ValueError: as `convert`, or if the options do not request integers.
        """
        if not self.optimizations:
            raise ValueError("converter object must set optimizations to lite.Optimize.DEFAULT.")
        if not self.representative_dataset:
            raise ValueError("converter object must set representative_dataset.")
        samples, _, kind = self._check_options()
        if samples is None:
            raise ValueError(
                "converter object must not request float16 weights (target_spec.supported_types)."
            )
        graph, trained = self._build_float_model(kind)
        return CalibratedModel(graph, measure_ranges(graph, samples) | trained, kind)

    def _build_float_model(
        self, kind: IntegerTypes
    ) -> tuple[LiteModel, dict[LiteTensor, tuple[float, float]]]:
        """Return the float model and the ranges of quantization-aware training."""
        signatures = self._signatures()
        if not self.experimental_enable_resource_variables:
            _check_no_writes(signatures)
        graph = build_model(signatures)
        rounds = bool(self.optimizations) and "float16" not in self._get_type_names()
        return graph, extract_trained_ranges(graph, kind) if rounds else {}

    def _get_type_names(self) -> list[str]:
        return [as_dtype(t).name for t in self.target_spec.supported_types]

    def _check_options(self) -> tuple[Callable[[], Any] | None, bool, IntegerTypes]:
        """Return the samples, whether all operators must be quantized, and the integer types."""
        ops = set(self.target_spec.supported_ops)
        has_int16 = OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8 in ops
        has_integers = has_int16 or OpsSet.TFLITE_BUILTINS_INT8 in ops
        strict = has_integers and OpsSet.TFLITE_BUILTINS not in ops
        dataset, supported = self.representative_dataset, {"float16", "float32", "int8"}
        if set(self._get_type_names()) - supported:
            raise ValueError(
                f"target_spec.supported_types: expected some of {sorted(supported)}, got {self._get_type_names()}."
            )
        if isinstance(dataset, RepresentativeDataset):
            dataset = dataset.input_gen
        if dataset is not None and not callable(dataset):
            raise TypeError(
                f"representative_dataset must be a function that returns an iterable of samples, got {dataset!r}."
            )
        samples = (
            dataset if self.optimizations and "float16" not in self._get_type_names() else None
        )
        return samples, strict, INT16 if has_int16 else INT8

    def _get_input_output_dtypes(
        self, quantized: bool, kind: IntegerTypes
    ) -> tuple[np.dtype, np.dtype]:
        """Check the dtypes of inputs and outputs and return them."""
        first, second = (as_dtype(t).name for t in (self.inference_input_type, self.inference_output_type))  # fmt: skip
        integers = ["int16"] if kind is INT16 else ["int8", "uint8"]
        allowed = [f"tf.{name}" for name in ("float32", *(integers if quantized else ()))]
        if not {f"tf.{first}", f"tf.{second}"} <= set(allowed):
            expected = f"in {allowed}" if quantized else "tf.float32"
            raise ValueError(
                f"The inference_input_type and inference_output_type must be {expected}."
            )
        return np.dtype(first), np.dtype(second)


def _trace_functions(functions: Sequence[SignedFunction]) -> list[DeployableFunction]:
    """Trace signatures: a single one is the default, several have the names of their functions."""
    if len(functions) == 1:
        return [trace_concrete_function(functions[0])]
    names: list[str] = []
    for function in functions:
        names.append(function.name if function.name not in names else f"{function.name}_{len(names)}")  # fmt: skip
    return [trace_concrete_function(f, n) for f, n in zip(functions, names, strict=True)]


def _check_no_writes(signatures: Sequence[DeployableFunction]) -> None:
    for signature in signatures:
        if signature.traced.writes:
            names = ", ".join(sorted(v.name for v in signature.traced.writes))
            raise UnimplementedError(
                f"tf.lite: {signature.name} writes the variables {names}. Please consider enabling the "
                "`experimental_enable_resource_variables` flag of the converter."
            )
