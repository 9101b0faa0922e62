"""The ranges of a model's activations, from samples of its input, and the model of integers that they allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from meshflow.lite.graph import Graph, Operator, Subgraph, Tensor, copied, written
from meshflow.lite.integers import BYTES, Integers, quantize, with_integer_ends
from meshflow.lite.interpreter import interpreter_module
from meshflow.lite.quantizing import int8_weights

__all__ = ["Calibrated", "ranges"]


@dataclasses.dataclass
class Calibrated:
    """A model of floats, and what it takes to make it one of integers.

    Attributes:
      graph: the model.
      ranges: of its tensors.
      kind: of which integers it is to be.
    """

    graph: Graph
    ranges: dict[Tensor, tuple[float, float]]
    kind: Integers = BYTES

    def copied(self) -> Calibrated:
        """The same with a graph of its own."""
        graph, tensors = copied(self.graph)
        return Calibrated(graph, {tensors[t]: r for t, r in self.ranges.items()}, self.kind)

    def quantize(self, inputs: Any, outputs: Any, denied: Collection[Operator] = ()) -> list[str]:
        """Makes the graph compute in integers.

        Args:
          inputs, outputs: dtypes of what goes in and comes out: float32 or integers.
          denied: operators that stay as they are.

        Returns:
          The codes of operators on floats that are left.
        """
        left = quantize(self.graph, self.ranges, self.kind, denied)
        int8_weights(self.graph, denied)
        with_integer_ends(self.graph, self.ranges, inputs, outputs, self.kind)
        return left


def ranges(graph: Graph, samples: Callable[[], Iterable[Any]]) -> dict[Tensor, tuple[float, float]]:
    """The least and the greatest element of each float tensor of the signatures' subgraphs.

    Args:
      graph: a float model.
      samples: gives an iterable of samples: a list of arrays in the order of the inputs, a dictionary of them by
        name, or (signature, dictionary).

    Raises:
      ValueError: when there is no sample, or one does not fit the inputs.
    """
    module = interpreter_module()
    interpreter = module.Interpreter(
        model_content=written(graph),
        experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    found: dict[Tensor, tuple[float, float]] = {}
    count = 0
    for sample in samples():
        number, arrays = _arrays(graph, sample)
        _run(interpreter, graph, number, arrays)
        subgraph = graph.subgraphs[number]
        idle = _idle(subgraph)
        for place, tensor in enumerate(subgraph.tensors()):
            if tensor.dtype == np.float32 and tensor.data is None and tensor not in idle:
                values = interpreter.get_tensor(place, number)
                low, high = found.get(tensor, (0.0, 0.0))
                if np.isinf(values).any():
                    raise ValueError(
                        f"representative_dataset: a sample makes {tensor.name} infinite, so that it has no range."
                    )
                if values.size:
                    found[tensor] = min(low, float(values.min())), max(high, float(values.max()))
        count += 1
    if not count:
        raise ValueError(
            "representative_dataset gave no samples: it must be a function that gives at least one, such as "
            "lambda: ([x[None]] for x in images[:100])."
        )
    return found


def _idle(subgraph: Subgraph) -> set[Tensor]:
    """Results of loops and branches that nobody reads: they are given no memory."""
    results = {t for o in subgraph.operators if o.code in ("WHILE", "IF") for t in o.outputs}
    return results.difference(subgraph.outputs, *(o.inputs for o in subgraph.operators))


def _arrays(graph: Graph, sample: Any) -> tuple[int, list[np.ndarray]]:
    name = None
    if isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], str):
        name, sample = sample
    names = {s[0]: s for s in graph.signatures}
    if name is not None and name not in names:
        raise ValueError(
            f"representative_dataset names the signature {name!r}, there are {sorted(names)}."
        )
    _, number, inputs, _ = graph.signatures[0] if name is None else names[name]
    if isinstance(sample, Mapping):
        if not set(inputs) <= set(sample):
            raise ValueError(
                f"representative_dataset: a sample has the inputs {sorted(sample)}, expected {inputs}."
            )
        sample = [sample[key] for key in inputs]
    elif not isinstance(sample, (list, tuple)):
        sample = [sample]
    tensors = graph.subgraphs[number].inputs
    if len(sample) != len(tensors):
        raise ValueError(
            f"representative_dataset: a sample has {len(sample)} arrays, the model takes {len(tensors)}."
        )
    arrays = [np.asarray(a, t.dtype) for a, t in zip(sample, tensors, strict=True)]
    for key, array, tensor in zip(inputs, arrays, tensors, strict=True):
        fits = array.ndim == len(tensor.shape) and all(
            # Any number of rows.
            i == 0 or n == d or not isinstance(d, int)
            for i, (n, d) in enumerate(zip(array.shape, tensor.shape, strict=True))
        )
        if not fits:
            raise ValueError(
                f"representative_dataset: a sample of input {key} has shape {list(array.shape)}, expected "
                f"{[d if isinstance(d, int) else None for d in tensor.shape]}: samples have a batch dimension."
            )
    return number, arrays


def _run(interpreter: Any, graph: Graph, number: int, arrays: list[np.ndarray]) -> None:
    name = next(s[0] for s in graph.signatures if s[1] == number)
    runner = interpreter.get_signature_runner(name)
    keys = next(s[2] for s in graph.signatures if s[1] == number)
    runner(**dict(zip(keys, arrays, strict=True)))
