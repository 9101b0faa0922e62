"""Callbacks that average metrics, send events to a server, or save the model of an evaluator."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from meshflow.environment.types import Logs, StrPath
from meshflow.keras.callbacks.monitoring import ModelCheckpoint
from meshflow.keras.engine.training.callbacks import Callback

_log = logging.getLogger("meshflow")
# Seconds until a server must have responded.
_TIMEOUT_SECONDS = 10.0


class BaseLogger(Callback):
    """Callback that replaces the metrics of an epoch by their averages over its batches.

    Args:
      stateful_metrics: Names of metrics that are not averaged.
    """

    def __init__(self, stateful_metrics: Iterable[str] | None = None) -> None:
        super().__init__()
        self.stateful_metrics = set(stateful_metrics or [])
        self.seen, self.totals = 0, dict[str, float]()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Start new averages."""
        self.seen, self.totals = 0, {}

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Add the metrics of a batch."""
        values: Mapping[str, Any] = logs or {}
        size = values.get("size", 0)
        num_steps = values.get("num_steps", 1)
        self.seen += size * num_steps
        for name, value in values.items():
            if name in self.stateful_metrics:
                self.totals[name] = value
            else:
                self.totals[name] = self.totals.get(name, 0.0) + value * size

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the averages to the logs."""
        for name in (self.params or {}).get("metrics", ()) if logs is not None else ():
            if name in self.totals:
                is_stateful = name in self.stateful_metrics
                logs[name] = (
                    self.totals[name] if is_stateful else self.totals[name] / max(self.seen, 1)
                )


class RemoteMonitor(Callback):
    """Callback that sends the metrics of each epoch to a server, by HTTP POST.

    Args:
      root: Address of the server.
      path: Path of the requests.
      field: Name of the form field with the JSON text.
      headers: Headers of the requests.
      send_as_json: Whether the body is JSON instead of a form.
    """

    def __init__(
        self,
        root: str = "http://localhost:9000",
        path: str = "/publish/epoch/end/",
        field: str = "data",
        headers: Mapping[str, str] | None = None,
        send_as_json: bool = False,
    ) -> None:
        super().__init__()
        self.root, self.path, self.field = root, path, field
        self.headers, self.send_as_json = headers, send_as_json

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Send the metrics; a failure is logged and does not stop the training."""
        text = json.dumps(
            {"epoch": epoch, **{n: np.asarray(v).item() for n, v in (logs or {}).items()}}
        )
        headers = dict(self.headers or {})
        if self.send_as_json:
            body, kind = text, "application/json"
        else:
            body, kind = (
                urllib.parse.urlencode({self.field: text}),
                "application/x-www-form-urlencoded",
            )
        headers.setdefault("Content-Type", kind)
        request = urllib.request.Request(self.root + self.path, body.encode(), headers)
        try:
            urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS).close()
        except (urllib.error.URLError, OSError) as error:
            _log.warning("RemoteMonitor: could not reach %s: %s", self.root, error)


class SidecarEvaluatorModelExport(ModelCheckpoint):
    """Callback of a `SidecarEvaluator` that saves the best model when an evaluation ends.

    Args:
      export_filepath: Path of the model.
      checkpoint_filepath: Ignored: the evaluator has restored the checkpoint.
      **kwargs: Arguments of `ModelCheckpoint`.
    """

    def __init__(
        self, export_filepath: StrPath, checkpoint_filepath: StrPath, **kwargs: Any
    ) -> None:
        super().__init__(export_filepath, save_best_only=True, **kwargs)
        self.checkpoint_filepath = checkpoint_filepath

    def on_test_begin(self, logs: Logs = None) -> None:
        """Start an evaluation."""
        self._epoch += 1

    def on_test_end(self, logs: Logs = None) -> None:
        """Save the model if its metrics have improved."""
        self.on_epoch_end(
            self._epoch - 1, {f"val_{n}": v for n, v in (logs or {}).items()} | dict(logs or {})
        )
