"""`tf.keras.utils.SequenceEnqueuer` and its relatives: threads that prepare batches."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from meshflow.environment.types import PyTree
from meshflow.keras.utils.arrays import Sequence

# Seconds between checks whether an enqueuer was stopped.
_POLL_SECONDS = 0.1


class SequenceEnqueuer:
    """Base class of threads that prepare batches.

    Args:
      sequence: `Sequence` or generator of batches.
      use_multiprocessing: Ignored: a thread prepares the batches.
    """

    def __init__(self, sequence: Any, use_multiprocessing: bool = False) -> None:
        self.sequence, self.use_multiprocessing = sequence, use_multiprocessing
        self.queue: queue.Queue[tuple[PyTree, BaseException | None]] | None = None
        self.stop_signal: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def is_running(self) -> bool:
        """Return whether the thread was started and not stopped."""
        return self.stop_signal is not None and not self.stop_signal.is_set()

    def start(self, workers: int = 1, max_queue_size: int = 10) -> None:
        """Start the thread.

        Args:
          workers: Ignored.
          max_queue_size: Largest number of batches that are prepared in advance.
        """
        self.queue, self.stop_signal = queue.Queue(max_queue_size), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """Stop the thread and wait for it.

        Args:
          timeout: Largest number of seconds to wait.
        """
        if self.stop_signal is not None and self._thread is not None:
            self.stop_signal.set()
            self._thread.join(timeout)

    def _iterate(self) -> Iterator[PyTree]:
        """Yield batches; subclasses define it."""
        raise NotImplementedError

    def _put(self, batch: PyTree, error: BaseException | None = None) -> None:
        assert self.queue is not None
        while self.is_running():
            try:
                return self.queue.put((batch, error), timeout=_POLL_SECONDS)
            except queue.Full:
                continue

    def _run(self) -> None:
        try:
            for batch in self._iterate():
                if not self.is_running():
                    return
                self._put(batch)
            self._put(None, StopIteration())
        except Exception as error:
            self._put(None, error)

    def get(self) -> Iterator[PyTree]:
        """Yield the batches that the thread has prepared."""
        assert self.queue is not None, "call start before get"
        while self.is_running():
            try:
                batch, error = self.queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(error, StopIteration):
                return
            if error is not None:
                self.stop()
                raise error
            yield batch


class OrderedEnqueuer(SequenceEnqueuer):
    """Thread that prepares the batches of a `Sequence`, epoch after epoch.

    Args:
      sequence: The `Sequence`.
      use_multiprocessing: Ignored.
      shuffle: Whether the order of the batches is random.

    Example:
      >>> class Numbers(tf.keras.utils.Sequence):
      ...     def __len__(self):
      ...         return 3
      ...     def __getitem__(self, index):
      ...         return index
      >>> enqueuer = tf.keras.utils.OrderedEnqueuer(Numbers())
      >>> enqueuer.start()
      >>> batches = enqueuer.get()
      >>> [next(batches) for _ in range(4)]
      [0, 1, 2, 0]
      >>> enqueuer.stop()
    """

    sequence: Sequence

    def __init__(
        self, sequence: Sequence, use_multiprocessing: bool = False, shuffle: bool = False
    ) -> None:
        super().__init__(sequence, use_multiprocessing)
        self.shuffle = shuffle

    def _iterate(self) -> Iterator[PyTree]:
        while True:
            order = list(range(len(self.sequence)))
            if self.shuffle:
                random.shuffle(order)
            for index in order:
                yield self.sequence[index]
            self.sequence.on_epoch_end()


class GeneratorEnqueuer(SequenceEnqueuer):
    """Thread that prepares the batches of a generator.

    Args:
      generator: The generator.
      use_multiprocessing: Ignored.
      random_seed: Ignored.
    """

    def __init__(
        self, generator: Any, use_multiprocessing: bool = False, random_seed: int | None = None
    ) -> None:
        super().__init__(generator, use_multiprocessing)
        self.random_seed = random_seed

    def _iterate(self) -> Iterator[PyTree]:
        yield from self.sequence


class TimedThread:
    """Thread that calls `on_interval` periodically, from `start` until `stop`.

    Args:
      interval: Seconds between two calls.
      **kwargs: Arguments of `threading.Thread`.
    """

    def __init__(self, interval: float, **kwargs: Any) -> None:
        self.interval, self.daemon = interval, kwargs.pop("daemon", False)
        self.thread_kwargs = kwargs
        self.thread: threading.Thread | None = None
        self.thread_stop_event: threading.Event | None = None

    def _call_on_interval(self) -> None:
        assert self.thread_stop_event is not None
        while not self.thread_stop_event.is_set():
            self.on_interval()
            self.thread_stop_event.wait(self.interval)

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self.is_alive():
            return
        self.thread_stop_event = threading.Event()
        target: Callable[[], None] = self._call_on_interval
        self.thread = threading.Thread(target=target, daemon=self.daemon, **self.thread_kwargs)
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread after the current call."""
        if self.thread_stop_event is not None:
            self.thread_stop_event.set()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self.thread is not None and self.thread.is_alive()

    def on_interval(self) -> None:
        """Do something; subclasses define it."""
        raise NotImplementedError("Runs every x interval seconds.")

    def __enter__(self) -> TimedThread:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()
