"""Maps in worker processes, for Python functions that are limited by the speed of a processor."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import AbortedError, InvalidValueError
from meshflow.core.values import nest
from meshflow.data import structure
from meshflow.data.arguments import IntLike, integer
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, ahead
from meshflow.data.execution.resumable import Failed
from meshflow.data.node import DatasetNode
from meshflow.data.sources import seed_of
from meshflow.data.transformations import Unary
from meshflow.environment import extras
from meshflow.environment.types import PyTree

__all__ = ["map_with_workers"]

_PROGRAM = Path(__file__).with_name("worker_main.py")


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
      >>> import meshflow as tf
      >>> words = tf.data.Dataset.from_tensor_slices([b"one", b"three"])
      >>> lengths = words.apply(tf.data.experimental.map_with_workers(lambda w: len(w), 1))
      >>> [int(n) for n in lengths]
      [3, 5]
    """
    count = (os.cpu_count() or 1) if num_workers is None else integer(num_workers, "num_workers")
    if count < 1:
        raise InvalidValueError(f"num_workers must be at least 1, got {count}.")
    cloudpickle = extras.load(
        "cloudpickle", "workers", "map_with_workers needs the package cloudpickle"
    )
    packed = cloudpickle.dumps(map_func)
    return lambda dataset: WorkerMap(dataset, packed, count, output_signature)


class _Worker:
    """A worker process that computes a function.

    Args:
      function: The pickled function.
    """

    def __init__(self, function: bytes) -> None:
        local, remote = socket.socketpair()
        read_end, write_end = os.pipe()
        limits = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(remote.fileno()), str(read_end)],
                pass_fds=(remote.fileno(), read_end),
                env={**limits, **os.environ, "JAX_PLATFORMS": "cpu"},
            )
        finally:
            remote.close()
            os.close(read_end)
        self._follows = write_end
        self.connection: Any = connection.Connection(local.detach())
        # This is the index of the element that the worker is computing.
        self.number: int | None = None
        try:
            self.connection.send_bytes(pickle.dumps(sys.path))
            self.connection.send_bytes(function)
        except OSError:
            raise self.death() from None

    def start(self, index: int, seed: int, arguments: tuple[Any, ...]) -> None:
        """Send an element to the worker."""
        self.number = index
        try:
            self.connection.send_bytes(pickle.dumps((index, seed, arguments), 5))
        except OSError:
            raise self.death() from None

    def result(self) -> Any:
        """Receive the result; errors and the death of the worker are returned as failures."""
        try:
            message = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return Failed(self.death())
        self.number = None
        return Failed(_raised(*message)) if len(message) == 3 else message[1]

    def death(self) -> AbortedError:
        """Return the error for a dead worker."""
        code = self.process.wait()
        ending = f"exited with status {code}"
        if code < 0:
            ending = f"was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            ending += " (the system does so when memory runs out: use fewer workers)"
        context = "" if self.number is None else f" while it computed element {self.number}"
        return AbortedError(
            f"Worker process {self.process.pid} of map_with_workers {ending}{context}."
        )

    def stop(self) -> None:
        """Terminate the process."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._follows)


def _raised(index: int, error: BaseException | None, text: str) -> BaseException:
    """Return the error of a function with a note that contains the element and the traceback."""
    if error is None:
        error = RuntimeError("An exception in a worker process of map_with_workers:\n" + text)
        text = ""
    if index < 0:
        error.add_note("(while a worker process loaded the function)\n" + text)
    else:
        error.add_note(f"(in a worker process, for element {index})\n{text}")
    return error


class WorkerMap(Unary):
    """A function of every element, computed by worker processes.

    Args:
      parent: The dataset.
      function: The pickled function.
      workers: Number of processes.
      spec: Spec of the results, or None.
    """

    reshuffles = True
    _apart = True

    def __init__(self, parent: DatasetNode, function: bytes, workers: int, spec: PyTree) -> None:
        super().__init__(parent)
        self._function, self._workers, self._own_spec = function, workers, spec
        self._unpack = type(parent.element_spec) is tuple
        self._words = seed_of(None)
        self.epoch = 0

    def seed(self) -> list[int]:
        """Return the words of the seed."""
        return self._words

    def _known_spec(self) -> PyTree:
        return self._own_spec

    def _why_not_vectorized(self) -> str:
        return f"it runs in {self._workers} worker processes"

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        # A thread keeps the workers busy between two requests of the consumer.
        return ahead(self._computed(epoch), 2 * self._workers)

    def _computed(self, epoch: Epoch) -> Iterator[Any]:
        seed = int(epoch.generator(self).integers(1 << 32))
        elements = self._parent._elements(epoch)
        workers: list[_Worker] = []
        results_by_index: dict[int, Any] = {}
        num_started = num_yielded = 0
        is_exhausted = False
        try:
            while True:
                idle = [w for w in workers if w.number is None]
                while not is_exhausted and num_started - num_yielded < 4 * self._workers:
                    if not idle and len(workers) == self._workers:
                        break
                    element = next(elements, None)
                    if element is None:
                        is_exhausted = True
                        break
                    if not idle:
                        workers.append(_Worker(self._function))
                        idle.append(workers[-1])
                    idle.pop().start(
                        num_started, (seed + num_started) % (1 << 32), self._arguments(element)
                    )
                    num_started += 1
                if num_yielded in results_by_index:
                    result = results_by_index.pop(num_yielded)
                    if type(result) is Failed and isinstance(result.error, AbortedError):
                        raise result.error
                    num_yielded += 1
                    yield (
                        result if type(result) is Failed else self._checked(result, num_yielded - 1)
                    )
                    continue
                if num_yielded == num_started:
                    return
                busy = {w.connection: w for w in workers if w.number is not None}
                for ready in connection.wait(list(busy)):
                    worker = busy[ready]
                    index = worker.number
                    assert index is not None
                    results_by_index[index] = worker.result()
                    if worker.number is not None:
                        # The worker is dead. The error is raised when the element of the worker
                        # would be yielded.
                        workers.remove(worker)
                        worker.stop()
        finally:
            for worker in workers:
                worker.stop()
            elements.close()

    def _arguments(self, element: PyTree) -> PyTree:
        arguments = structure.normalize(element, lambda a: a[()])
        return arguments if self._unpack else (arguments,)

    def _checked(self, result: PyTree, index: int) -> PyTree:
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
            if structure.dtype_of(array) is not spec.dtype or not spec.shape.is_compatible_with(
                np.shape(array)
            ):
                raise TypeError(
                    f"The function of map_with_workers returned {structure.dtype_of(array).name} of shape "
                    f"{np.shape(array)} for element {index}, but output_signature is {spec}."
                )
        return arrays
