"""The progress bar of training, with the output format of Keras."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from meshflow.core.values.tensor import Tensor, TensorLike

_is_interactive = [True]


def enable_interactive_logging() -> None:
    """Print the progress of training to the standard output, which is the default.

    Example:
      >>> tf.keras.utils.enable_interactive_logging()
      >>> tf.keras.utils.is_interactive_logging_enabled()
      True
    """
    _is_interactive[0] = True


def disable_interactive_logging() -> None:
    """Write the progress of training to the logger 'meshflow' instead of the standard output.

    Example:
      >>> tf.keras.utils.disable_interactive_logging()
      >>> tf.keras.utils.is_interactive_logging_enabled()
      False
      >>> tf.keras.utils.enable_interactive_logging()
    """
    _is_interactive[0] = False


def is_interactive_logging_enabled() -> bool:
    """Check whether the progress of training is printed to the standard output.

    Example:
      >>> tf.keras.utils.is_interactive_logging_enabled()
      True
    """
    return _is_interactive[0]


def print_line(text: str) -> None:
    """Print or log a line of progress."""
    if _is_interactive[0]:
        print(text)
    else:
        logging.getLogger("meshflow").info(text)


class Progbar:
    """Progress bar in a line of text: ` 12/100 [==>...] - ETA: 3s - loss: 0.1`.

    If the standard output is not a terminal, only the first and the last step are shown.

    Args:
      target: Number of steps, or None if it is not known.
      width: Width of the bar in characters.
      verbose: 0 for no output, 1 for a bar, 2 for one line at the end.
      interval: Minimum time between two updates of the output, in seconds.
      stateful_metrics: Names of metrics to show without averaging.
      unit_name: 'step' or 'sample'.

    Example:
      >>> bar = tf.keras.utils.Progbar(10, verbose=2)
      >>> for step in range(10):
      ...     bar.update(step + 1, [("loss", 0.5)])  # doctest: +ELLIPSIS
      10/10 - 0s - loss: 0.5000 - ...s/epoch - ...s/step
    """

    def __init__(
        self,
        target: int | None,
        width: int = 30,
        verbose: int = 1,
        interval: float = 0.05,
        stateful_metrics: Iterable[str] | None = None,
        unit_name: str = "step",
    ) -> None:
        self.target, self.width, self.verbose, self.interval = target, width, verbose, interval
        self.stateful_metrics = set(stateful_metrics or [])
        self.unit_name = unit_name
        self._dynamic = hasattr(sys.stdout, "isatty") and sys.stdout.isatty()
        self._values: dict[str, list[Any]] = {}
        self._seen = 0
        self._start = time.time()
        self._last_draw_time = 0.0
        self._line_length = 0

    def update(
        self,
        current: int,
        values: Iterable[tuple[str, TensorLike]] | None = None,
        finalize: bool | None = None,
    ) -> None:
        """Set the number of completed steps, and show it.

        Args:
          current: Number of completed steps.
          values: Pairs (name, value). Values are averaged over steps, except those of stateful metrics.
          finalize: Whether this is the last update. Default: whether `current` reaches the target.
        """
        finalize = (
            (self.target is not None and current >= self.target) if finalize is None else finalize
        )
        for name, value in values or []:
            if name in self.stateful_metrics:
                self._values[name] = [value, 1]
            else:
                steps = max(current - self._seen, 1)
                total, count = self._values.get(name, [0.0, 0])
                self._values[name] = [total + _to_number(value) * steps, count + steps]
        self._seen = current
        now = time.time()
        if self.verbose == 0 or (self.verbose == 2 and not finalize):
            return
        if not finalize and (not self._dynamic or now - self._last_draw_time < self.interval):
            return
        self._last_draw_time = now
        self._draw(current, now, finalize)

    def add(self, n: int, values: Iterable[tuple[str, TensorLike]] | None = None) -> None:
        """Add completed steps.

        Args:
          n: Number of steps to add.
          values: Pairs (name, value), as in `update`.
        """
        self.update(self._seen + n, values)

    def _draw(self, current: int, now: float, finalize: bool) -> None:
        elapsed = now - self._start
        step_time = elapsed / max(current, 1)
        bar = (
            self._format_bar(current)
            if self.verbose == 1
            else f"{current}/{self.target if self.target is not None else current}"
        )
        if finalize:
            timing = f" - {_format_duration(elapsed)}" + (
                f" {_format_step_time(step_time)}/{self.unit_name}" if self.verbose == 1 else ""
            )
        elif self.target is not None:
            timing = f" - ETA: {_format_eta(step_time * (self.target - current))}"
        else:
            timing = (
                f" - {_format_duration(elapsed)} {_format_step_time(step_time)}/{self.unit_name}"
            )
        info = "".join(
            f" - {name}: {_format_average(total, count)}"
            for name, (total, count) in self._values.items()
        )
        line = bar + timing + info
        if self.verbose == 2:
            line += f" - {_format_step_time(elapsed)}/epoch - {_format_step_time(step_time)}/{self.unit_name}"
        if not _is_interactive[0]:
            print_line(line)
            return
        if self._dynamic and self.verbose == 1:
            sys.stdout.write("\r" + line.ljust(self._line_length))
        else:
            sys.stdout.write(line)
        self._line_length = len(line)
        if finalize:
            sys.stdout.write("\n")
        sys.stdout.flush()

    def _format_bar(self, current: int) -> str:
        if self.target is None:
            return f"{current:7d}/Unknown"
        digits = len(str(self.target))
        done = int(self.width * current / max(self.target, 1))
        arrow = "=" * max(done - 1, 0) + ("=" if current >= self.target else ">") if done else ""
        return f"{current:{digits}d}/{self.target} [{arrow}{'.' * (self.width - done)}]"


def _to_number(value: TensorLike) -> float:
    if isinstance(value, Tensor):
        value = value.numpy()
    return float(np.mean(value))


def _format_average(total: TensorLike, count: int) -> str:
    value = _to_number(total) / max(count, 1)
    return f"{value:.4f}" if abs(value) > 1e-3 or value == 0 else f"{value:.4e}"


def _format_duration(seconds: float) -> str:
    return f"{seconds:.0f}s"


def _format_step_time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.0f}s"
    return f"{seconds * 1e3:.0f}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}us"


def _format_eta(seconds: float) -> str:
    if seconds > 3600:
        return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d}"
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}" if seconds > 60 else f"{int(seconds)}s"
