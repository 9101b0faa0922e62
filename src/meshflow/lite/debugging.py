"""`tf.lite.experimental.QuantizationDebugger`: how far each operator on integers is from the same on floats."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import IO, Any

import numpy as np

from meshflow.lite.calibration import Calibrated
from meshflow.lite.converter import TFLiteConverter
from meshflow.lite.graph import Operator, written
from meshflow.lite.interpreter import interpreter_module
from meshflow.lite.verifying import VERIFY, float_forms, verify

__all__ = ["QuantizationDebugOptions", "QuantizationDebugger"]

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
    """What a `QuantizationDebugger` measures, and what it leaves in floats.

    Args:
      layer_debug_metrics: {name: function of the differences, an array, that gives a number}, besides
        `num_elements`, `stddev`, `mean_error`, `max_abs_error` and `mean_squared_error`.
      model_debug_metrics: {name: function of (outputs of the float model, outputs of the other), lists of arrays}.
      layer_direct_compare_metrics: {name: function of (floats, integers, scale, zero point)} of each operator's result.
      denylisted_ops: operators that stay in floats, such as ["CONV_2D"].
      denylisted_nodes: names of the results of operators that stay in floats, the `tensor_name`s of
        `QuantizationDebugger.layer_statistics_dump`.
      fully_quantize: whether inputs and outputs are integers, too.

    Raises:
      ValueError: for two metrics of one name.

    Example:
      >>> import meshflow as tf
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
        names = [name for given in metrics for name in given or ()]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"Provided metrics have duplicate keys: {twice}.")
        self.denylisted_ops = denylisted_ops
        self.denylisted_nodes = denylisted_nodes
        self.fully_quantize = fully_quantize


class QuantizationDebugger:
    """Finds the operators by which a model of integers differs from the model of floats.

    Each operator on integers is computed on floats as well, from the same operands, so that its error is its own
    and not that of those before it. Give a converter, or a model that was made so before.

    Args:
      quant_debug_model_path: a file of `get_debug_quantized_model`, or of TensorFlow's.
      quant_debug_model_content: its content, in place of the file.
      float_model_path: a file of the float model, for `model_debug_metrics`.
      float_model_content: its content, in place of the file.
      debug_dataset: a function that gives an iterable of samples: lists of arrays in the order of the inputs.
      debug_options: a `QuantizationDebugOptions`.
      converter: a `tf.lite.TFLiteConverter` with `optimizations` and a `representative_dataset`, in place of models.

    Attributes:
      layer_statistics: {operator: {metric: mean over the samples}}, of `run`.
      model_statistics: {metric: mean over the samples}, of `run`.
      quant_model: the content of the model that is run, when a converter was given.
      float_model: the content of the float model, when a converter and `model_debug_metrics` were given.

    Raises:
      ValueError: for a model without operators that compare, and for a converter that does not ask for integers.
      ImportError: without the extra `lite`.

    Example:
      >>> import meshflow as tf
      >>> def debugged(converter, samples):
      ...     debugger = tf.lite.experimental.QuantizationDebugger(
      ...         converter=converter, debug_dataset=samples
      ...     )
      ...     debugger.run()
      ...     with open("layers.csv", "w") as file:
      ...         debugger.layer_statistics_dump(file)
    """

    def __init__(
        self,
        quant_debug_model_path: str | os.PathLike[str] | None = None,
        quant_debug_model_content: bytes | None = None,
        float_model_path: str | os.PathLike[str] | None = None,
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
        self._calibrated: Calibrated | None = None
        self._float: Any = None
        if converter is not None:
            self._calibrated = converter.calibrated()
            self._convert()
            return
        self._quantized = self._interpreter(quant_debug_model_path, quant_debug_model_content)
        if self._options.model_debug_metrics:
            self._float = self._interpreter(float_model_path, float_model_content)
        self._begin()

    @property
    def options(self) -> QuantizationDebugOptions:
        """What is measured; other options make another model of the converter, and forget the statistics."""
        return self._options

    @options.setter
    def options(self, options: QuantizationDebugOptions) -> None:
        self._options = options
        if self._calibrated is not None:
            self._convert()

    def get_nondebug_quantized_model(self) -> bytes:
        """The content of the model of integers, with what the options leave in floats.

        Raises:
          ValueError: without a converter.
        """
        return self._model(debug=False)

    def get_debug_quantized_model(self) -> bytes:
        """The same with operators that compare.

        Raises:
          ValueError: without a converter.
        """
        return self._model(debug=True)

    def run(self) -> None:
        """Runs the samples, and fills `layer_statistics` and `model_statistics`.

        Raises:
          ValueError: for a sample that is not of the model's inputs.
          TypeError: when `debug_dataset` is no function.
        """
        if not callable(self._samples):
            raise TypeError(
                f"debug_dataset must be a function that gives an iterable of samples, got {self._samples!r}."
            )
        layers: dict[str, dict[str, list[float]]] = {}
        model: dict[str, list[float]] = {}
        for sample in self._samples():
            _invoke(self._quantized, sample)
            for name, found in self._compared().items():
                _append(layers.setdefault(name, {}), found)
            metrics = self._options.model_debug_metrics
            if metrics:
                _invoke(self._float, sample)
                both = _outputs(self._float), _outputs(self._quantized)
                _append(model, {name: metric(*both) for name, metric in metrics.items()})
        self.layer_statistics = {name: _means(found, np.nanmean) for name, found in layers.items()}
        if self._options.model_debug_metrics:
            self.model_statistics = _means(model, np.mean)

    def layer_statistics_dump(self, file: IO[str]) -> None:
        """Writes a table of comma-separated values, a line for each operator.

        Args:
          file: a file that is open for text.
        """
        measured = [*self._layer_metrics(), *(self._options.layer_direct_compare_metrics or ())]
        fields = ["op_name", "tensor_idx", *measured, "scale", "zero_point", "tensor_name"]
        table = csv.DictWriter(file, fields)
        table.writeheader()
        for name, metrics in (self.layer_statistics or {}).items():
            place, other = self._verified[name]["inputs"]
            scale, zero = _scale(self._details[place])
            names = zip(*(self._details[i]["name"] for i in (place, other)), strict=False)
            same = "".join(a for a, b in takewhile(lambda pair: pair[0] == pair[1], names))
            about = {
                "op_name": self._makers[place],
                "tensor_idx": place,
                "scale": scale,
                "zero_point": zero,
                # Both names begin with that of the operator's result.
                "tensor_name": same.removesuffix("/"),
            }
            table.writerow({**metrics, **about})

    # ---- models ------------------------------------------------------------------------------

    def _model(self, debug: bool) -> bytes:
        if self._calibrated is None:
            raise ValueError(
                "No converter found, use this function with the converter option in the constructor."
            )
        made = self._calibrated.copied()
        before = float_forms(made.graph)
        ends = made.kind.dtype if self._options.fully_quantize else np.dtype(np.float32)
        made.quantize(ends, ends, self._denied(made))
        if debug:
            verify(made.graph, before)
        return written(made.graph)

    def _denied(self, model: Calibrated) -> set[Operator]:
        codes = set(self._options.denylisted_ops or ())
        names = set(self._options.denylisted_nodes or ())
        operators = list(model.graph.operators())
        unknown = sorted(names.difference(t.name for o in operators for t in o.outputs))
        if unknown:
            warnings.warn(
                f"denylisted_nodes: no operator of the model gives {', '.join(unknown)}; layer_statistics_dump tells "
                "the names (tensor_name).",
                stacklevel=2,
            )
        return {o for o in operators if o.code in codes or any(t.name in names for t in o.outputs)}

    def _convert(self) -> None:
        assert self._calibrated is not None
        self.quant_model = self.get_debug_quantized_model()
        self._quantized = self._interpreter(None, self.quant_model)
        self._float = None
        if self._options.model_debug_metrics:
            self.float_model = self.float_model or written(self._calibrated.graph)
            self._float = self._interpreter(None, self.float_model)
        self._begin()

    def _interpreter(self, path: Any, content: bytes | None) -> Any:
        module = interpreter_module()
        # Only what the interpreter computes by itself can be read afterwards.
        kept = self._options.layer_direct_compare_metrics is not None
        kinds = module.OpResolverType
        return module.Interpreter(
            None if path is None else os.fspath(path),
            content,
            experimental_op_resolver_type=kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            if kept
            else kinds.AUTO,
            experimental_preserve_all_tensors=kept,
        )

    # ---- what is in them ---------------------------------------------------------------------

    def _begin(self) -> None:
        self.layer_statistics, self.model_statistics = None, None
        operators = self._quantized._get_ops_details()
        self._details = {d["index"]: d for d in self._quantized.get_tensor_details()}
        self._makers = {i: o["op_name"] for o in operators for i in o["outputs"]}
        self._verified = {
            self._details[o["outputs"][0]]["name"]: o for o in operators if o["op_name"] == VERIFY
        }
        if not self._verified:
            raise ValueError(
                "Please check if the quantized model is in debug mode: it has no operators that compare integers "
                "with floats."
            )

    def _layer_metrics(self) -> dict[str, LayerMetric]:
        return {**_LAYER_METRICS, **(self._options.layer_debug_metrics or {})}

    def _compared(self) -> dict[str, dict[str, float]]:
        """The metrics of all operators after a call."""
        found: dict[str, dict[str, float]] = {}
        for name, operator in self._verified.items():
            differences = self._quantized.get_tensor(operator["outputs"][0])
            metrics = self._layer_metrics().items()
            found[name] = {key: metric(differences) for key, metric in metrics}
            direct = self._options.layer_direct_compare_metrics
            if direct:
                place, other = operator["inputs"]
                scale, zero = _scale(self._details[place])
                floats, integers = (self._quantized.get_tensor(i) for i in (other, place))
                found[name] |= {
                    key: metric(floats, integers, scale, zero) for key, metric in direct.items()
                }
        return found


def _scale(details: Mapping[str, Any]) -> tuple[float, int]:
    about = details["quantization_parameters"]
    return about["scales"][0], about["zero_points"][0]


def _is_quantized(details: Mapping[str, Any]) -> bool:
    return np.dtype(details["dtype"]).kind in "iu" and len(details["quantization_parameters"]["scales"]) > 0  # fmt: skip


def _invoke(interpreter: Any, sample: Sequence[Any]) -> None:
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
            scale, zero = _scale(details)
            bounds = np.iinfo(details["dtype"])
            array = np.clip(np.round(array / scale) + zero, bounds.min, bounds.max)
            array = array.astype(details["dtype"])
        interpreter.set_tensor(details["index"], array)
    interpreter.invoke()


def _outputs(interpreter: Any) -> list[np.ndarray]:
    """The results of a call as floats."""
    found = []
    for details in interpreter.get_output_details():
        array = interpreter.get_tensor(details["index"])
        if _is_quantized(details):
            scale, zero = _scale(details)
            array = ((array.astype(np.float32) - zero) * scale).astype(np.float32)
        found.append(array)
    return found


def _append(found: dict[str, list[float]], values: Mapping[str, float]) -> None:
    for key, value in values.items():
        found.setdefault(key, []).append(value)


def _means(found: Mapping[str, list[float]], mean: Callable[[Any], Any]) -> dict[str, float]:
    return {key: mean(values) for key, values in found.items()}
