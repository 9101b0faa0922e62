"""Maps in worker processes, for Python functions that are limited by the speed of a processor."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from multiprocessing import connection
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import AbortedError, InvalidValueError
from meshflow.core.runtime.worker_process import WorkerProcess
from meshflow.core.values import nest
from meshflow.data import structure
from meshflow.data.arguments import IntLike, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, prefetch
from meshflow.data.execution.failures import Failure
from meshflow.data.node import DatasetNode
from meshflow.data.sources import make_seed_words
from meshflow.data.transformations import Unary
from meshflow.environment import optional_packages
from meshflow.environment.types import PyTree

__all__ = ["map_with_workers"]


def map_with_workers(
    map_func: Callable[..., Any],
    num_workers: IntLike | None = None,
    output_signature: PyTree = None,
) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that maps elements in worker processes, in order.

    It is meant for functions that spend their time in Python code, which threads cannot run in
    parallel. As for `tf.numpy_function`, the function receives NumPy arrays (scalars as NumPy
    scalars and bytes) and returns arrays. Workers are new Python processes; cloudpickle sends them
    the function with the objects that it refers to, so the function can be a lambda or be defined
    in a notebook. Before each element, the seeds of `random` and `numpy.random` are set from the
    pass and the index of the element: results depend on `tf.random.set_seed`, but not on the
    workers.

    Args:
      map_func: Function from the components of an element to a new element.
      num_workers: Number of processes, by default the number of processors.
      output_signature: Spec of the results, by default the ranks and dtypes of the first one.

    Raises:
      AbortedError: While iterating, if a worker is killed; the message names the signal and the
        element.
      ImportError: If the package cloudpickle is not installed.

    Example:
      >>> words = tf.data.Dataset.from_tensor_slices([b"one", b"three"])
      >>> lengths = words.apply(tf.data.experimental.map_with_workers(lambda w: len(w), 1))
      >>> [int(n) for n in lengths]
      [3, 5]
    """
    count = (os.cpu_count() or 1) if num_workers is None else to_int(num_workers, "num_workers")
    if count < 1:
        raise InvalidValueError(f"num_workers must be at least 1, got {count}.")
    cloudpickle = optional_packages.import_extra(
        "cloudpickle", "workers", "map_with_workers needs the package cloudpickle"
    )
    packed = cloudpickle.dumps(map_func)
    return lambda dataset: WorkerMap(dataset, packed, count, output_signature)


class WorkerMap(Unary):
    """A function of every element, computed by worker processes.

    Args:
      parent: The dataset.
      function: The pickled function.
      workers: Number of processes.
      spec: Spec of the results, or None.
    """

    reshuffles = True
    runs_parents_in_thread = True

    def __init__(self, parent: DatasetNode, function: bytes, workers: int, spec: PyTree) -> None:
        super().__init__(parent)
        self._function, self._workers, self._own_spec = function, workers, spec
        self._unpack = type(parent.element_spec) is tuple
        self._words = make_seed_words(None)
        self.epoch = 0

    def get_seed_words(self) -> list[int]:
        """Return the words of the seed."""
        return self._words

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def explain_fallback(self) -> str:
        return f"it runs in {self._workers} worker processes"

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        # A thread keeps the workers busy between two requests of the consumer.
        return prefetch(self._iter_results(epoch), 2 * self._workers)

    def _iter_results(self, epoch: Epoch) -> Iterator[Any]:
        seed = int(epoch.create_generator(self).integers(1 << 32))
        elements = self.parent.iter_elements(epoch)
        workers: list[WorkerProcess] = []
        results_by_index: dict[int, Any] = {}
        num_started = num_yielded = 0
        is_exhausted = False
        try:
            while True:
                idle = [w for w in workers if w.index is None]
                while not is_exhausted and num_started - num_yielded < 4 * self._workers:
                    if not idle and len(workers) == self._workers:
                        break
                    element = next(elements, None)
                    if element is None:
                        is_exhausted = True
                        break
                    if not idle:
                        workers.append(WorkerProcess(self._function, "map_with_workers"))
                        idle.append(workers[-1])
                    idle.pop().start(
                        num_started, (seed + num_started) % (1 << 32), self._make_arguments(element)
                    )
                    num_started += 1
                if num_yielded in results_by_index:
                    result = results_by_index.pop(num_yielded)
                    if type(result) is Failure and isinstance(result.error, AbortedError):
                        raise result.error
                    num_yielded += 1
                    yield (
                        result
                        if type(result) is Failure
                        else self._check_result(result, num_yielded - 1)
                    )
                    continue
                if num_yielded == num_started:
                    return
                busy = {w.connection: w for w in workers if w.index is not None}
                for ready in connection.wait(list(busy)):
                    worker = busy[ready]
                    index = worker.index
                    assert index is not None
                    try:
                        results_by_index[index] = worker.receive_result()
                    except BaseException as error:
                        results_by_index[index] = Failure(error)
                    if worker.index is not None:
                        # The worker is dead. The error is raised when the element of the worker
                        # would be yielded.
                        workers.remove(worker)
                        worker.stop()
        finally:
            for worker in workers:
                worker.stop()
            elements.close()

    def _make_arguments(self, element: PyTree) -> PyTree:
        arguments = structure.map_leaves(element, lambda a: a[()])
        return arguments if self._unpack else (arguments,)

    def _check_result(self, result: PyTree, index: int) -> PyTree:
        arrays = structure.to_arrays(result)
        if self._own_spec is None:
            return arrays
        try:
            nest.assert_same_structure(self._own_spec, arrays)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"The function of map_with_workers returned another structure than output_signature "
                f"{self._own_spec} for element {index}: {error}"
            ) from None
        for spec, array in zip(nest.flatten(self._own_spec), nest.flatten(arrays), strict=True):
            if structure.infer_dtype(array) is not spec.dtype or not spec.shape.is_compatible_with(
                np.shape(array)
            ):
                raise TypeError(
                    f"The function of map_with_workers returned {structure.infer_dtype(array).name} of shape "
                    f"{np.shape(array)} for element {index}, but output_signature is {spec}."
                )
        return arrays
