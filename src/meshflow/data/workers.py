"""Maps whose functions run in processes of their own, for Python that keeps a processor busy."""

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
from meshflow.data.arguments import integer
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, ahead
from meshflow.data.execution.resumable import Failed
from meshflow.data.sources import seed_of
from meshflow.data.transformations import Unary
from meshflow.environment import extras

__all__ = ["map_with_workers"]

_PROGRAM = Path(__file__).with_name("worker_main.py")


def map_with_workers(
    map_func: Callable[..., Any], num_workers: Any = None, output_signature: Any = None
) -> Callable[[Dataset], Dataset]:
    """A function to `apply` that maps elements in worker processes, in order.

    For functions that spend their time in Python, which threads cannot run side by side. Like that
    of `tf.numpy_function`, the function gets NumPy arrays (scalars as NumPy numbers and bytes), and
    gives arrays. Workers are fresh Python processes; the function is sent to them by cloudpickle, with
    what it refers to, so it may be a lambda or come from a notebook. Before each element the seeds
    of `random` and `numpy.random` are set from the pass and the element's number: results depend
    on `tf.random.set_seed` only, not on the workers.

    Args:
      map_func: from the parts of an element to a new element.
      num_workers: how many processes; default as many as there are processors.
      output_signature: the spec of the results; by default the ranks and dtypes of the first.

    Raises:
      AbortedError: while iterating, when a worker is killed, naming signal and element.
      ImportError: without the package cloudpickle.

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
    """A process that computes a function."""

    def __init__(self, function: bytes) -> None:
        here, there = socket.socketpair()
        alive, follows = os.pipe()
        limits = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(there.fileno()), str(alive)],
                pass_fds=(there.fileno(), alive),
                env={**limits, **os.environ, "JAX_PLATFORMS": "cpu"},
            )
        finally:
            there.close()
            os.close(alive)
        self._follows = follows
        self.connection: Any = connection.Connection(here.detach())
        # Number of the element it computes.
        self.number: int | None = None
        try:
            self.connection.send_bytes(pickle.dumps(sys.path))
            self.connection.send_bytes(function)
        except OSError:
            raise self.death() from None

    def start(self, number: int, seed: int, arguments: Any) -> None:
        """Gives it an element."""
        self.number = number
        try:
            self.connection.send_bytes(pickle.dumps((number, seed, arguments), 5))
        except OSError:
            raise self.death() from None

    def result(self) -> Any:
        """What it computed; an exception that its function raised, or of its own death, is returned."""
        try:
            message = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return Failed(self.death())
        self.number = None
        return Failed(_raised(*message)) if len(message) == 3 else message[1]

    def death(self) -> AbortedError:
        """The error for a worker that is dead."""
        code = self.process.wait()
        how = f"exited with status {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += " (the system does so when memory runs out: use fewer workers)"
        doing = "" if self.number is None else f" while it computed element {self.number}"
        return AbortedError(f"Worker process {self.process.pid} of map_with_workers {how}{doing}.")

    def stop(self) -> None:
        """Ends it."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._follows)


def _raised(number: int, error: BaseException | None, text: str) -> BaseException:
    """The error of a function, with where it happened."""
    if error is None:
        error = RuntimeError("An exception in a worker process of map_with_workers:\n" + text)
        text = ""
    if number < 0:
        error.add_note("(while a worker process loaded the function)\n" + text)
    else:
        error.add_note(f"(in a worker process, for element {number})\n{text}")
    return error


class WorkerMap(Unary):
    """A function of every element, in worker processes.

    Args:
      parent: the dataset.
      function: the pickled function.
      workers: how many processes.
      spec: the spec of the results, or None.
    """

    reshuffles = True
    _apart = True

    def __init__(self, parent: Dataset, function: bytes, workers: int, spec: Any) -> None:
        super().__init__(parent)
        self._function, self._workers, self._own_spec = function, workers, spec
        self._unpack = type(parent.element_spec) is tuple
        self._words = seed_of(None)
        self.epoch = 0

    def seed(self) -> list[int]:
        """The words of the seed."""
        return self._words

    def _known_spec(self) -> Any:
        return self._own_spec

    def _why_not_vectorized(self) -> str:
        return f"it runs in {self._workers} worker processes"

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        # A thread keeps the workers busy while nobody asks for elements.
        return ahead(self._computed(epoch), 2 * self._workers)

    def _computed(self, epoch: Epoch) -> Iterator[Any]:
        seed = int(epoch.generator(self).integers(1 << 32))
        elements = self._parent._elements(epoch)
        workers: list[_Worker] = []
        done: dict[int, Any] = {}
        started = given = 0
        ended = False
        try:
            while True:
                idle = [w for w in workers if w.number is None]
                while not ended and started - given < 4 * self._workers:
                    if not idle and len(workers) == self._workers:
                        break
                    element = next(elements, None)
                    if element is None:
                        ended = True
                        break
                    if not idle:
                        workers.append(_Worker(self._function))
                        idle.append(workers[-1])
                    idle.pop().start(
                        started, (seed + started) % (1 << 32), self._arguments(element)
                    )
                    started += 1
                if given in done:
                    result = done.pop(given)
                    if type(result) is Failed and isinstance(result.error, AbortedError):
                        raise result.error
                    given += 1
                    yield result if type(result) is Failed else self._checked(result, given - 1)
                    continue
                if given == started:
                    return
                busy = {w.connection: w for w in workers if w.number is not None}
                for ready in connection.wait(list(busy)):
                    worker = busy[ready]
                    number = worker.number
                    assert number is not None
                    done[number] = worker.result()
                    if worker.number is not None:
                        # It is dead, which is told when its element's turn comes.
                        workers.remove(worker)
                        worker.stop()
        finally:
            for worker in workers:
                worker.stop()
            elements.close()

    def _arguments(self, element: Any) -> Any:
        arguments = structure.normalize(element, lambda a: a[()])
        return arguments if self._unpack else (arguments,)

    def _checked(self, result: Any, number: int) -> Any:
        arrays = structure.to_arrays(result)
        if self._own_spec is None:
            return arrays
        try:
            nest.assert_same_structure(self._own_spec, arrays)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"The function of map_with_workers returned another structure than output_signature "
                f"{self._own_spec} for element {number}: {error}"
            ) from None
        for spec, array in zip(nest.flatten(self._own_spec), nest.flatten(arrays), strict=True):
            if structure.dtype_of(array) is not spec.dtype or not spec.shape.is_compatible_with(
                np.shape(array)
            ):
                raise TypeError(
                    f"The function of map_with_workers returned {structure.dtype_of(array).name} of shape "
                    f"{np.shape(array)} for element {number}, output_signature says {spec}."
                )
        return arrays
