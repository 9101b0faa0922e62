"""Calibration: ranges of activations, measured on samples, by which a model is quantized."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from meshflow.lite.graph import LiteModel, LiteOperator, LiteTensor, Subgraph, copy_graph, serialize
from meshflow.lite.integer_quantization import (
    INT8,
    IntegerTypes,
    quantize_graph,
    quantize_inputs_and_outputs,
)
from meshflow.lite.interpreter import load_interpreter_module
from meshflow.lite.weight_quantization import quantize_weights_to_int8


@dataclasses.dataclass
class CalibratedModel:
    """Float model with the ranges of its tensors.

    Attributes:
      graph: the model.
      ranges: minimum and maximum of each tensor.
      kind: the integer types to quantize to.
    """

    graph: LiteModel
    ranges: dict[LiteTensor, tuple[float, float]]
    kind: IntegerTypes = INT8

    def copy(self) -> CalibratedModel:
        """Return a copy with its own graph."""
        graph, tensors = copy_graph(self.graph)
        return CalibratedModel(graph, {tensors[t]: r for t, r in self.ranges.items()}, self.kind)

    def quantize(
        self, inputs: DTypeLike, outputs: DTypeLike, denied: Collection[LiteOperator] = ()
    ) -> list[str]:
        """Quantize the graph in place.

        Args:
          inputs: dtype of the inputs, float32 or integers.
          outputs: dtype of the outputs, float32 or integers.
          denied: operators that remain in float32.

        Returns:
          The codes of the operators that remain in float32.
        """
        left = quantize_graph(self.graph, self.ranges, self.kind, denied)
        quantize_weights_to_int8(self.graph, denied)
        quantize_inputs_and_outputs(self.graph, self.ranges, inputs, outputs, self.kind)
        return left


def measure_ranges(
    graph: LiteModel, samples: Callable[[], Iterable[Any]]
) -> dict[LiteTensor, tuple[float, float]]:
    """Measure the minimum and maximum of each float tensor of the signatures' subgraphs.

    Args:
      graph: a float model.
      samples: function that returns an iterable of samples: lists of arrays in the order of the
        inputs, dictionaries of arrays by name, or (signature, dictionary).

    Raises:
      ValueError: if there is no sample, or one does not match the inputs.
    """
    module = load_interpreter_module()
    interpreter = module.Interpreter(
        model_content=serialize(graph),
        experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    result: dict[LiteTensor, tuple[float, float]] = {}
    count = 0
    for sample in samples():
        index, arrays = _prepare_arrays(graph, sample)
        _run_signature(interpreter, graph, index, arrays)
        subgraph = graph.subgraphs[index]
        unread = _find_unread_results(subgraph)
        for position, tensor in enumerate(subgraph.list_tensors()):
            if tensor.dtype == np.float32 and tensor.data is None and tensor not in unread:
                values = interpreter.get_tensor(position, index)
                low, high = result.get(tensor, (0.0, 0.0))
                if np.isinf(values).any():
                    raise ValueError(
                        f"representative_dataset: a sample makes {tensor.name} infinite, so that it has no range."
                    )
                if values.size:
                    result[tensor] = (min(low, float(values.min())), max(high, float(values.max())))
        count += 1
    if not count:
        raise ValueError(
            "representative_dataset gave no samples: it must be a function that returns at least one, such as "
            "lambda: ([x[None]] for x in images[:100])."
        )
    return result


def _find_unread_results(subgraph: Subgraph) -> set[LiteTensor]:
    """Return unread results of loops and branches, for which LiteRT allocates no memory."""
    results = {t for o in subgraph.operators if o.code in ("WHILE", "IF") for t in o.outputs}
    return results.difference(subgraph.outputs, *(o.inputs for o in subgraph.operators))


def _prepare_arrays(graph: LiteModel, sample: Any) -> tuple[int, list[np.ndarray]]:
    name = None
    if isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], str):
        name, sample = sample
    names = {s[0]: s for s in graph.signatures}
    if name is not None and name not in names:
        raise ValueError(
            f"representative_dataset names the signature {name!r}, there are {sorted(names)}."
        )
    _, index, inputs, _ = graph.signatures[0] if name is None else names[name]
    if isinstance(sample, Mapping):
        if not set(inputs) <= set(sample):
            raise ValueError(
                f"representative_dataset: a sample has the inputs {sorted(sample)}, expected {inputs}."
            )
        sample = [sample[key] for key in inputs]
    elif not isinstance(sample, (list, tuple)):
        sample = [sample]
    tensors = graph.subgraphs[index].inputs
    if len(sample) != len(tensors):
        raise ValueError(
            f"representative_dataset: a sample has {len(sample)} arrays, the model takes {len(tensors)}."
        )
    arrays = [np.asarray(a, t.dtype) for a, t in zip(sample, tensors, strict=True)]
    for key, array, tensor in zip(inputs, arrays, tensors, strict=True):
        matches = array.ndim == len(tensor.shape) and all(
            # The batch size is not checked.
            i == 0 or n == d or not isinstance(d, int)
            for i, (n, d) in enumerate(zip(array.shape, tensor.shape, strict=True))
        )
        if not matches:
            raise ValueError(
                f"representative_dataset: a sample of input {key} has shape {list(array.shape)}, expected "
                f"{[d if isinstance(d, int) else None for d in tensor.shape]}: samples have a batch dimension."
            )
    return index, arrays


def _run_signature(
    interpreter: Any, graph: LiteModel, index: int, arrays: list[np.ndarray]
) -> None:
    name, keys = next((s[0], s[2]) for s in graph.signatures if s[1] == index)
    runner = interpreter.get_signature_runner(name)
    runner(**dict(zip(keys, arrays, strict=True)))
