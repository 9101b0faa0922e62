"""`TensorBoard`: event files with the metrics, weights and profiles of a training."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from contextlib import ExitStack
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from meshflow import summary
from meshflow.core.runtime.errors import AlreadyExistsError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64
from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Logs, StrPath
from meshflow.files import gfile
from meshflow.keras.callbacks.verdict import finish_profile, parse_profile_batch
from meshflow.keras.engine.training.callbacks import Callback, convert_logs
from meshflow.keras.engine.training.progress_bar import print_line
from meshflow.keras.optimizers.schedules import LearningRateSchedule
from meshflow.profiler import sessions
from meshflow.profiler.report import Report
from meshflow.profiler.terminal import format_line
from meshflow.summary.recording import make_metadata
from meshflow.summary.writers import StepLike, SummaryWriter

_log = logging.getLogger("meshflow")


class TensorBoardArguments(TypedDict, total=False):
    """Former arguments of `TensorBoard`, which are ignored."""

    write_grads: bool
    embeddings_layer_names: object
    embeddings_data: object
    batch_size: int


class TensorBoard(Callback):
    """Callback that writes event files to `log_dir/train` and `log_dir/validation`.

    The names of metrics are 'epoch_loss' and so on for epochs, 'batch_loss' for batches, and
    'evaluation_loss_vs_iterations' for evaluations. Unless `update_freq` is 'epoch', `tf.summary`
    in the code of the model writes to the same files.

    Args:
      log_dir: Directory.
      histogram_freq: Number of epochs between histograms of weights; 0 for none.
      write_graph: Whether to write the configuration of the model and the graph of its training
        step, which TensorBoard draws.
      write_images: Whether to write weights also as images.
      write_steps_per_second: Whether to write the speed.
      update_freq: 'epoch', 'batch', or the number of batches between metrics.
      profile_batch: Batch to profile, or the first and last of several; 0 for none. The profile has
        a page that shows where the time is spent, and `fit` prints a summary.
      embeddings_freq: Number of epochs between snapshots of embeddings for TensorBoard's projector;
        0 for none.
      embeddings_metadata: File with a label for each row of the embeddings, or a dictionary from
        names of layers to such files.
      **kwargs: Arguments of earlier versions, which have no effect: `write_grads`, `batch_size`,
        and so on.

    Raises:
      ValueError: If `profile_batch` or `update_freq` is invalid, or an argument is unknown.

    Example:
      >>> import tempfile, os
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> folder = tempfile.mkdtemp()
      >>> _ = model.fit(tf.ones([8, 2]), tf.ones([8, 1]), verbose=0,
      ...     callbacks=[tf.keras.callbacks.TensorBoard(folder)])
      >>> os.listdir(folder)
      ['train']
    """

    # Metrics of a batch are read only when they are written.
    _supports_tf_logs = True

    def __init__(
        self,
        log_dir: StrPath = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: Literal["epoch", "batch"] | int = "epoch",
        profile_batch: int | str | tuple[int, int] = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: object = None,
        **kwargs: Unpack[TensorBoardArguments],
    ) -> None:
        super().__init__()
        known = {"write_grads", "embeddings_layer_names", "embeddings_data", "batch_size"}
        if unknown := set(kwargs) - known:
            raise ValueError(f"Unrecognized arguments in `TensorBoard` Callback: {sorted(unknown)}")
        self.embeddings_freq, self.embeddings_metadata = embeddings_freq, embeddings_metadata
        self._has_graph = False
        self.log_dir = os.fspath(log_dir)
        self.histogram_freq, self.write_images = histogram_freq, write_images
        self.write_graph, self.write_steps_per_second = write_graph, write_steps_per_second
        self.update_freq = 1 if update_freq == "batch" else update_freq
        if self.update_freq != "epoch" and not isinstance(self.update_freq, int):
            raise ValueError(
                f"TensorBoard: update_freq must be 'epoch', 'batch' or an integer, got {update_freq!r}."
            )
        self._first_batch, self._last_batch = parse_profile_batch(profile_batch)
        self._writers: dict[str, SummaryWriter] = {}
        self._training_scopes, self._evaluation_scopes = ExitStack(), ExitStack()
        self._is_tracing = self._is_profiling = False
        self._report: Report | None = None
        # Number of trained batches; compiled code that writes summaries reads this variable, too. Classes of programs
        # may replace `set_model`.
        self._step = Variable(0, trainable=False, dtype=int64, name="tensorboard_step")
        if self.update_freq != "epoch" or self._first_batch or write_steps_per_second:
            # The batch hooks only exist when needed, because training does not wait for steps
            # without them.
            setattr(self, "on_train_batch_begin", self._begin_batch)
            setattr(self, "on_train_batch_end", self._end_batch)

    def set_model(self, model: Any) -> None:
        """Open new files for a model and write its configuration."""
        super().set_model(model)
        self._close_writers()
        self._has_graph = False
        if self.write_graph:
            self._write_configuration()
        if self.embeddings_freq:
            self._write_projector_configuration()

    def _write_configuration(self) -> None:
        with self._get_writer("train").as_default():
            keras_model_summary("keras", self.model, step=0)

    def _write_step_graph(self) -> None:
        """Write the graph of the training step after it was traced."""
        concrete = self.model._find_traced_step("train")
        if concrete is not None and not self._has_graph:
            with self._get_writer("train").as_default():
                summary.graph(concrete.graph)
        self._has_graph = True

    def _list_embeddings(self) -> dict[str, Any]:
        """Return the layers with an embedding matrix, by the names of their files."""
        layers = [
            layer
            for layer in self.model._flatten_layers()
            # A layer of a subclassed model may have no matrix yet.
            if hasattr(layer, "embeddings_initializer")
            or isinstance(getattr(layer, "embeddings", None), Variable)
        ]
        return {f"{layer.name.replace('/', '_')}.tsv": layer for layer in layers}

    def _write_projector_configuration(self) -> None:
        """Write the configuration of TensorBoard's projector, which reads a text file for each layer."""
        lines, metadata = [], self.embeddings_metadata
        remaining = dict(metadata) if isinstance(metadata, dict) else {}
        for file, layer in self._list_embeddings().items():
            path = remaining.pop(layer.name, None) if isinstance(metadata, dict) else metadata
            fields = {"tensor_name": layer.name, "tensor_path": file, "metadata_path": path}
            lines += ["embeddings {"]
            lines += [
                f"  {k}: {json.dumps(os.fspath(v))}" for k, v in fields.items() if v is not None
            ]
            lines += ["}"]
        if remaining:
            raise ValueError(
                "Unrecognized `Embedding` layer names passed to `keras.callbacks.TensorBoard` callback in "
                f"`embeddings_metadata`: {sorted(remaining)}"
            )
        self._write_text("projector_config.pbtxt", "\n".join(lines) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        gfile.makedirs(self.log_dir)
        with gfile.GFile(os.path.join(self.log_dir, name), "w") as file:
            file.write(text)

    def _write_embeddings(self, epoch: int) -> None:
        """Write a checkpoint as TensorFlow does, and the text files, which need no TensorFlow."""
        self.model.save_weights(
            os.path.join(self.log_dir, "train", f"keras_embedding.ckpt-{epoch}")
        )
        for file, layer in self._list_embeddings().items():
            text = io.StringIO()
            np.savetxt(text, np.asarray(layer.embeddings), "%.6g", "\t")
            self._write_text(file, text.getvalue())

    def _get_writer(self, kind: str) -> SummaryWriter:
        if kind not in self._writers:
            folder = os.path.join(self.log_dir, kind)
            self._writers[kind] = summary.create_file_writer(folder)
        return self._writers[kind]

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write_scalars(self, kind: str, values: dict[str, Any], step: int) -> None:
        if values:
            with self._get_writer(kind).as_default():
                for name, value in values.items():
                    summary.scalar(name, value, step=step)

    # ---- training ------------------------------------------------------------------------------

    def on_train_begin(self, logs: Logs = None) -> None:
        """Write summaries of the model's code to the training file, unless only epochs count."""
        self._step.assign(0)
        self._report = None
        if self.update_freq != "epoch":
            frequency = self.update_freq
            self._training_scopes.enter_context(self._get_writer("train").as_default(self._step))
            self._training_scopes.enter_context(
                summary.record_if(lambda: self._step % frequency == 0)
            )

    def on_train_end(self, logs: Logs = None) -> None:
        """Close the files."""
        self._training_scopes.close()
        if self._is_tracing:
            self._stop_trace(int(self._step.numpy()))
        if self._report is not None:
            print_line(format_line(self._report))
        self._close_writers()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Start to measure the speed of an epoch."""
        self._epoch_start = time.time(), int(self._step.numpy())

    def _begin_batch(self, batch: int, logs: Logs = None) -> None:
        self._batch_start = time.time()
        if self._first_batch and int(self._step.numpy()) + 1 == self._first_batch:
            summary.trace_on()
            self._is_tracing = True
            try:
                sessions.start(self.log_dir)
                self._is_profiling = True
            except AlreadyExistsError as error:
                _log.error("TensorBoard: failed to start the profiler: %s", error)

    def _end_batch(self, batch: int, logs: Logs = None) -> None:
        self._step.assign_add(1)
        step = int(self._step.numpy())
        if self._is_tracing and step >= self._last_batch:
            self._stop_trace(step)
        if self.update_freq == "epoch" or step % self.update_freq:
            return
        values = {f"batch_{name}": value for name, value in (convert_logs(logs) or {}).items()}
        if self.write_steps_per_second:
            values["batch_steps_per_second"] = 1 / max(time.time() - self._batch_start, 1e-9)
        self._write_scalars("train", values, step)

    def _stop_trace(self, step: int) -> None:
        """Write the profile, and the graphs of the functions that the profiled batches called."""
        if self._is_profiling:
            self._report = finish_profile(self.model, self.log_dir)
        with self._get_writer("train").as_default(), summary.record_if(True):
            summary.trace_export(f"batch_{step}", step=step)
        self._is_profiling = self._is_tracing = False

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write the metrics of an epoch, and histograms of weights."""
        logs = dict(logs or {})
        training = {f"epoch_{n}": v for n, v in logs.items() if not n.startswith("val_")}
        rate = getattr(self.model.optimizer, "_learning_rate", None)
        if isinstance(rate, LearningRateSchedule):
            training["epoch_learning_rate"] = rate(self.model.optimizer.iterations)
        if self.write_steps_per_second:
            start, step = self._epoch_start
            speed = (int(self._step.numpy()) - step) / max(time.time() - start, 1e-9)
            training["epoch_steps_per_second"] = speed
        validation = {f"epoch_{n[4:]}": v for n, v in logs.items() if n.startswith("val_")}
        with summary.record_if(True):
            self._write_scalars("train", training, epoch)
            self._write_scalars("validation", validation, epoch)
            if self.write_graph and not self._has_graph:
                self._write_step_graph()
            if self.embeddings_freq and epoch % self.embeddings_freq == 0:
                self._write_embeddings(epoch)
            if self.histogram_freq and epoch % self.histogram_freq == 0:
                self._write_weights(epoch)

    def _write_weights(self, epoch: int) -> None:
        with self._get_writer("train").as_default():
            for layer in self.model.layers:
                for weight in layer.weights:
                    name = weight.name.replace(":", "_")
                    summary.histogram(f"{name}/histogram", weight, step=epoch)
                    images = _to_images(weight.numpy()) if self.write_images else None
                    if images is not None:
                        summary.image(f"{name}/image", images, step=epoch)

    # ---- evaluation ----------------------------------------------------------------------------

    def on_test_begin(self, logs: Logs = None) -> None:
        """Write summaries of the model's code to the validation file."""
        self._evaluation_scopes = ExitStack()
        if self.update_freq != "epoch":
            self._evaluation_scopes.enter_context(
                self._get_writer("validation").as_default(self._step)
            )

    def on_test_end(self, logs: Logs = None) -> None:
        """Write the metrics of an evaluation against the number of training steps."""
        self._evaluation_scopes.close()
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None and hasattr(optimizer, "iterations"):
            values = {f"evaluation_{n}_vs_iterations": v for n, v in (logs or {}).items()}
            with summary.record_if(True):
                self._write_scalars("validation", values, int(optimizer.iterations.numpy()))


def keras_model_summary(name: str, data: Any, step: StepLike = None) -> TensorLike:
    """Write the configuration of a model, which TensorBoard draws.

    Args:
      name: Tag of the summary.
      data: The model.
      step: Training step; default `tf.summary.experimental.get_step()`.

    Returns:
      Whether the summary was written; False for a model without a configuration.
    """
    try:
        config = data.to_json()
    except Exception as error:
        if not isinstance(error, NotImplementedError):
            _log.warning("Model failed to serialize as JSON. Ignoring... %s", error)
        return False
    metadata = make_metadata("graph_keras_model", content=b"1")
    return summary.write(name, convert_to_tensor(config), step=step, metadata=metadata)


def _to_images(weight: np.ndarray) -> np.ndarray | None:
    """Convert a weight to images with values in [0, 1]; None for an unsuitable shape."""
    array = np.squeeze(np.asarray(weight, np.float32))
    if array.ndim == 1:
        array = array[None, :, None, None]
    elif array.ndim == 2:
        # The longer axis is horizontal.
        array = array.T if array.shape[0] > array.shape[1] else array
        array = array[None, :, :, None]
    elif array.ndim == 3:
        # Each channel of a 1D kernel is an image.
        array = np.transpose(array, [2, 0, 1])[..., None]
    else:
        return None if array.ndim != 4 or array.shape[-1] not in (1, 3, 4) else array
    low, high = array.min(), array.max()
    return (array - low) / (high - low) if high > low else np.zeros_like(array)
