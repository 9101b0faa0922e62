"""`tf.lite.experimental.QuantizationDebugger`: errors of each quantized operator."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import IO, Any

import numpy as np

from meshflow.environment.types import StrPath
from meshflow.lite.calibration import CalibratedModel
from meshflow.lite.converter import TFLiteConverter
from meshflow.lite.graph import LiteOperator, serialize
from meshflow.lite.interpreter import load_interpreter_module
from meshflow.lite.verification import VERIFY, add_verification, copy_operators

LayerMetric = Callable[[np.ndarray], float]
ModelMetric = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float]
DirectMetric = Callable[[np.ndarray, np.ndarray, float, int], float]

_LAYER_METRICS: dict[str, LayerMetric] = {
    "num_elements": lambda differences: differences.size,
    "stddev": np.std,
    "mean_error": np.average,
    "max_abs_error": lambda differences: np.max(np.abs(differences)),
    "mean_squared_error": lambda differences: np.average(differences**2),
}


class QuantizationDebugOptions:
    """Options of a `QuantizationDebugger`.

    Args:
      layer_debug_metrics: {name: function of an array of differences that returns a number}, added
        to
        `num_elements`, `stddev`, `mean_error`, `max_abs_error` and `mean_squared_error`.
      model_debug_metrics: {name: function of (float outputs, quantized outputs), lists of arrays}.
      layer_direct_compare_metrics: {name: function of (floats, integers, scale, zero point)} of the
        result of each operator.
      denylisted_ops: operators that remain in float32, such as ["CONV_2D"].
      denylisted_nodes: names of the results of operators that remain in float32, as `tensor_name`
        in
        `QuantizationDebugger.layer_statistics_dump`.
      fully_quantize: whether inputs and outputs are integers, too.

    Raises:
      ValueError: if two metrics have the same name.

    Example:
      >>> options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=["SOFTMAX"])
      >>> options.fully_quantize
      False
    """

    def __init__(
        self,
        layer_debug_metrics: Mapping[str, LayerMetric] | None = None,
        model_debug_metrics: Mapping[str, ModelMetric] | None = None,
        layer_direct_compare_metrics: Mapping[str, DirectMetric] | None = None,
        denylisted_ops: list[str] | None = None,
        denylisted_nodes: list[str] | None = None,
        fully_quantize: bool = False,
    ) -> None:
        self.layer_debug_metrics = layer_debug_metrics
        self.model_debug_metrics = model_debug_metrics
        self.layer_direct_compare_metrics = layer_direct_compare_metrics
        metrics = (layer_debug_metrics, model_debug_metrics, layer_direct_compare_metrics)
        names = [name for group in metrics for name in group or ()]
        duplicates = sorted({n for n in names if names.count(n) > 1})
        if duplicates:
            raise ValueError(f"Provided metrics have duplicate keys: {duplicates}.")
        self.denylisted_ops = denylisted_ops
        self.denylisted_nodes = denylisted_nodes
        self.fully_quantize = fully_quantize


class QuantizationDebugger:
    """Measurement of the error of each operator of a quantized model.

    Each quantized operator also runs on floats with the same operands, so that its error excludes
    the
    errors of the operators before it. Pass a converter, or a debug model that was created before.

    Args:
      quant_debug_model_path: file of a `get_debug_quantized_model`, here or in TensorFlow.
      quant_debug_model_content: content of the file, instead of a path.
      float_model_path: file of the float model, for `model_debug_metrics`.
      float_model_content: content of the file, instead of a path.
      debug_dataset: function that returns an iterable of samples: lists of arrays in the order of
        the
        inputs.
      debug_options: a `QuantizationDebugOptions`.
      converter: a `tf.lite.TFLiteConverter` with `optimizations` and a `representative_dataset`,
        instead of models.

    Attributes:
      layer_statistics: {operator: {metric: mean over the samples}} after `run`.
      model_statistics: {metric: mean over the samples} after `run`.
      quant_model: content of the debug model, if a converter was passed.
      float_model: content of the float model, if a converter and `model_debug_metrics` were passed.

    Raises:
      ValueError: if the model has no comparison operators, or the converter requests no integers.
      ImportError: if the extra `lite` is not installed.

    Example:
      >>> def dump_errors(converter, samples):
      ...     debugger = tf.lite.experimental.QuantizationDebugger(
      ...         converter=converter, debug_dataset=samples
      ...     )
      ...     debugger.run()
      ...     with open("layers.csv", "w") as file:
      ...         debugger.layer_statistics_dump(file)
    """

    def __init__(
        self,
        quant_debug_model_path: StrPath | None = None,
        quant_debug_model_content: bytes | None = None,
        float_model_path: StrPath | None = None,
        float_model_content: bytes | None = None,
        debug_dataset: Callable[[], Iterable[Sequence[Any]]] | None = None,
        debug_options: QuantizationDebugOptions | None = None,
        converter: TFLiteConverter | None = None,
    ) -> None:
        self._samples = debug_dataset
        self._options = debug_options or QuantizationDebugOptions()
        self.converter = converter
        self.layer_statistics: dict[str, dict[str, float]] | None = None
        self.model_statistics: dict[str, float] | None = None
        self.float_model: bytes | None = None
        self.quant_model: bytes | None = None
        self._calibrated: CalibratedModel | None = None
        self._float: Any = None
        if converter is not None:
            self._calibrated = converter.calibrate()
            self._convert_model()
            return
        self._quantized = self._make_interpreter(quant_debug_model_path, quant_debug_model_content)
        if self._options.model_debug_metrics:
            self._float = self._make_interpreter(float_model_path, float_model_content)
        self._read_operators()

    @property
    def options(self) -> QuantizationDebugOptions:
        """Return the options; new options convert again and reset the statistics."""
        return self._options

    @options.setter
    def options(self, options: QuantizationDebugOptions) -> None:
        self._options = options
        if self._calibrated is not None:
            self._convert_model()

    def get_nondebug_quantized_model(self) -> bytes:
        """Return the content of the quantized model, with denylisted operators in float32.

        Raises:
          ValueError: if no converter was passed.
        """
        return self._serialize_model(debug=False)

    def get_debug_quantized_model(self) -> bytes:
        """Return the content of the quantized model with comparison operators.

        Raises:
          ValueError: if no converter was passed.
        """
        return self._serialize_model(debug=True)

    def run(self) -> None:
        """Run the samples, and compute `layer_statistics` and `model_statistics`.

        Raises:
          ValueError: if a sample does not match the inputs of the model.
          TypeError: if `debug_dataset` is not a function.
        """
        if not callable(self._samples):
            raise TypeError(
                f"debug_dataset must be a function that returns an iterable of samples, got {self._samples!r}."
            )
        layers: dict[str, dict[str, list[float]]] = {}
        model: dict[str, list[float]] = {}
        for sample in self._samples():
            _invoke_interpreter(self._quantized, sample)
            for name, values in self._compute_metrics().items():
                _append_values(layers.setdefault(name, {}), values)
            metrics = self._options.model_debug_metrics
            if metrics:
                _invoke_interpreter(self._float, sample)
                outputs = _get_float_outputs(self._float), _get_float_outputs(self._quantized)
                _append_values(model, {name: metric(*outputs) for name, metric in metrics.items()})
        self.layer_statistics = {name: _compute_means(v, np.nanmean) for name, v in layers.items()}
        if self._options.model_debug_metrics:
            self.model_statistics = _compute_means(model, np.mean)

    def layer_statistics_dump(self, file: IO[str]) -> None:
        """Write the statistics as comma-separated values, one line for each operator.

        Args:
          file: a file that is open for text.
        """
        measured = [*self._get_layer_metrics(), *(self._options.layer_direct_compare_metrics or ())]
        fields = ["op_name", "tensor_idx", *measured, "scale", "zero_point", "tensor_name"]
        table = csv.DictWriter(file, fields)
        table.writeheader()
        for name, metrics in (self.layer_statistics or {}).items():
            quantized, output = self._comparisons[name]["inputs"]
            scale, zero = _get_scale(self._details[quantized])
            names = zip(*(self._details[i]["name"] for i in (quantized, output)), strict=False)
            prefix = "".join(a for a, b in takewhile(lambda pair: pair[0] == pair[1], names))
            columns = {
                "op_name": self._producer_names[quantized],
                "tensor_idx": quantized,
                "scale": scale,
                "zero_point": zero,
                # The name of the operator's result is the common prefix of both names.
                "tensor_name": prefix.removesuffix("/"),
            }
            table.writerow({**metrics, **columns})

    # ---- models ------------------------------------------------------------------------------

    def _serialize_model(self, debug: bool) -> bytes:
        if self._calibrated is None:
            raise ValueError(
                "No converter found, use this function with the converter option in the constructor."
            )
        model = self._calibrated.copy()
        float_operators = copy_operators(model.graph)
        dtype = model.kind.dtype if self._options.fully_quantize else np.dtype(np.float32)
        model.quantize(dtype, dtype, self._find_denylisted_operators(model))
        if debug:
            add_verification(model.graph, float_operators)
        return serialize(model.graph)

    def _find_denylisted_operators(self, model: CalibratedModel) -> set[LiteOperator]:
        codes = set(self._options.denylisted_ops or ())
        names = set(self._options.denylisted_nodes or ())
        operators = list(model.graph.iterate_operators())
        unknown = sorted(names.difference(t.name for o in operators for t in o.outputs))
        if unknown:
            warnings.warn(
                f"denylisted_nodes: no operator of the model produces {', '.join(unknown)}; see the names (tensor_name) in "
                "layer_statistics_dump.",
                stacklevel=2,
            )
        return {o for o in operators if o.code in codes or any(t.name in names for t in o.outputs)}

    def _convert_model(self) -> None:
        assert self._calibrated is not None
        self.quant_model = self.get_debug_quantized_model()
        self._quantized = self._make_interpreter(None, self.quant_model)
        self._float = None
        if self._options.model_debug_metrics:
            self.float_model = self.float_model or serialize(self._calibrated.graph)
            self._float = self._make_interpreter(None, self.float_model)
        self._read_operators()

    def _make_interpreter(self, path: StrPath | None, content: bytes | None) -> Any:
        module = load_interpreter_module()
        # Tensors can be read afterwards only if no delegate computes them.
        preserves = self._options.layer_direct_compare_metrics is not None
        resolvers = module.OpResolverType
        return module.Interpreter(
            None if path is None else os.fspath(path),
            content,
            experimental_op_resolver_type=resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            if preserves
            else resolvers.AUTO,
            experimental_preserve_all_tensors=preserves,
        )

    # ---- statistics --------------------------------------------------------------------------

    def _read_operators(self) -> None:
        self.layer_statistics, self.model_statistics = None, None
        operators = self._quantized._get_ops_details()
        self._details = {d["index"]: d for d in self._quantized.get_tensor_details()}
        self._producer_names = {i: o["op_name"] for o in operators for i in o["outputs"]}
        self._comparisons = {
            self._details[o["outputs"][0]]["name"]: o for o in operators if o["op_name"] == VERIFY
        }
        if not self._comparisons:
            raise ValueError(
                "Please check if the quantized model is in debug mode: it has no operators that compare integers "
                "with floats."
            )

    def _get_layer_metrics(self) -> dict[str, LayerMetric]:
        return {**_LAYER_METRICS, **(self._options.layer_debug_metrics or {})}

    def _compute_metrics(self) -> dict[str, dict[str, float]]:
        """Return the metrics of all operators after a call."""
        results: dict[str, dict[str, float]] = {}
        for name, operator in self._comparisons.items():
            differences = self._quantized.get_tensor(operator["outputs"][0])
            metrics = self._get_layer_metrics().items()
            results[name] = {key: metric(differences) for key, metric in metrics}
            direct = self._options.layer_direct_compare_metrics
            if direct:
                quantized, output = operator["inputs"]
                scale, zero = _get_scale(self._details[quantized])
                floats, integers = (self._quantized.get_tensor(i) for i in (output, quantized))
                results[name] |= {
                    key: metric(floats, integers, scale, zero) for key, metric in direct.items()
                }
        return results


def _get_scale(details: Mapping[str, Any]) -> tuple[float, int]:
    quantization = details["quantization_parameters"]
    return quantization["scales"][0], quantization["zero_points"][0]


def _is_quantized(details: Mapping[str, Any]) -> bool:
    return np.dtype(details["dtype"]).kind in "iu" and len(details["quantization_parameters"]["scales"]) > 0  # fmt: skip


def _invoke_interpreter(interpreter: Any, sample: Sequence[Any]) -> None:
    inputs = interpreter.get_input_details()
    if len(inputs) != len(sample):
        raise ValueError(
            f"Number of inputs provided ({len(sample)}) does not match number of inputs to the model ({len(inputs)})."
        )
    arrays = [np.asarray(a) for a in sample]
    for details, array in zip(inputs, arrays, strict=True):
        interpreter.resize_tensor_input(details["index"], array.shape)
    interpreter.allocate_tensors()
    for details, array in zip(inputs, arrays, strict=True):
        if array.dtype == np.float32 and _is_quantized(details):
            scale, zero = _get_scale(details)
            bounds = np.iinfo(details["dtype"])
            array = np.clip(np.round(array / scale) + zero, bounds.min, bounds.max)
            array = array.astype(details["dtype"])
        interpreter.set_tensor(details["index"], array)
    interpreter.invoke()


def _get_float_outputs(interpreter: Any) -> list[np.ndarray]:
    """Return the outputs of a call as floats."""
    arrays = []
    for details in interpreter.get_output_details():
        array = interpreter.get_tensor(details["index"])
        if _is_quantized(details):
            scale, zero = _get_scale(details)
            array = ((array.astype(np.float32) - zero) * scale).astype(np.float32)
        arrays.append(array)
    return arrays


def _append_values(lists: dict[str, list[float]], values: Mapping[str, float]) -> None:
    for key, value in values.items():
        lists.setdefault(key, []).append(value)


def _compute_means(
    lists: Mapping[str, list[float]], mean: Callable[[Any], Any]
) -> dict[str, float]:
    return {key: mean(values) for key, values in lists.items()}
