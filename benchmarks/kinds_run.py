"""Run one case of kinds.py in this process: `kinds_run.py LIBRARY CASE SETTINGS`. Prints one JSON object.

CPU seconds begin after the import of the library and the creation of the data.
"""

import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
import warnings

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"
warnings.simplefilter("ignore")

import kinds_models as models  # noqa: E402
import numpy as np  # noqa: E402
from journeys import Programs, cpu_seconds  # noqa: E402

NUM_LENGTHS, NUM_TOKENS = 60, 20


def read_peak_mb():
    """Return the peak resident memory of this process in MB."""
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) / 1024


class Meter:
    """CPU seconds, programs and peak memory since a moment."""

    def __init__(self, programs):
        self._programs = programs
        self._start = cpu_seconds()

    def read(self):
        return {
            "cpu_s": cpu_seconds() - self._start,
            "programs": len(self._programs.names),
            "peak_mb": read_peak_mb(),
        }


def run_texts(tf, name, tiny, options, meter):
    """Fit one epoch of batches that all have different lengths."""
    vocabulary, width, batch = (100, 8, 4) if tiny else (2000, 64, 16)
    model = models.make_text_model(tf, name, vocabulary, width)
    models.seed_weights(model)
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.arange(10, 10 + (6 if tiny else NUM_LENGTHS)))
    batches = [models.make_texts(batch, length, vocabulary) for length in lengths]
    integers = lambda *shape: tf.TensorSpec(shape, tf.int32)
    signature = integers(None, None), integers(None)
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    model.compile("adam", models.make_class_loss(tf), metrics=["accuracy"], **options)
    first = meter()
    history = model.fit(data, verbose=0).history
    return first.read() | {"loss": history["loss"][-1], "is_deterministic": True}


def run_saved(tf, name, tiny, options, meter):
    """Load a SavedModel of a text model, and call its signature or function for all lengths."""
    name, call = name.split()
    vocabulary, width, batch = (100, 8, 4) if tiny else (2000, 64, 4)
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.arange(10, 10 + (6 if tiny else NUM_LENGTHS)))
    texts = [rng.integers(1, vocabulary, (batch, n)).astype("int32") for n in lengths]
    with tempfile.TemporaryDirectory() as folder:
        # Another process saves the model, so that this one has not traced it.
        settings = {"model": name, "sizes": (vocabulary, width), "folder": folder}
        command = [sys.executable, __file__, sys.argv[1], "save:", json.dumps(settings)]
        subprocess.run(command, check=True, capture_output=True)
        first = meter()
        loaded = tf.saved_model.load(folder)
        calls = meter()
        run = loaded
        if call == "signature":
            signature = loaded.signatures["serving_default"]
            run = lambda x: next(iter(signature(x).values()))
        for text in texts:
            logits = run(tf.constant(text)).numpy()
        result = first.read() | {"calls_cpu_s": calls.read()["cpu_s"]}
    return result | {"loss": float(np.abs(logits).max()), "is_deterministic": True}


def save_model(tf, settings):
    """Save a text model."""
    model = models.make_text_model(tf, settings["model"], *settings["sizes"])
    models.seed_weights(model)
    tf.saved_model.save(model, settings["folder"])


def run_decoding(tf, name, tiny, options, meter):
    """Generate tokens, each from all earlier ones, by `call`, `predict`, `function` or `signature`."""
    sizes = (50, 16, 1, 64) if tiny else (1000, 128, 4, 64)
    model = models.make_decoder(tf, *sizes)
    models.seed_weights(model)
    text = np.random.default_rng(0).integers(0, sizes[0], (1, 5)).astype("int32")
    first = meter()
    if name == "call":
        run = model
    elif name == "predict":
        run = lambda x: model.predict(x, verbose=0)
    elif name == "function":
        run = tf.function(model, **options)
    else:
        signature = [tf.TensorSpec((1, None), tf.int32)]
        run = tf.function(lambda x: model(x), input_signature=signature, **options)
    for _ in range(5 if tiny else NUM_TOKENS):
        argument = text if name == "predict" else tf.constant(text)
        logits = np.asarray(run(argument))[0, -1]
        text = np.append(text, [[logits.argmax()]], 1).astype("int32")
    return first.read() | {"loss": float(logits.max()), "is_deterministic": True}


def run_notebook(tf, name, tiny, options, meter):
    """Run all cells of the notebook, which are always small."""
    import kinds_notebook

    found, first = {}, meter()
    for title, run in list(kinds_notebook.CELLS.items()):
        cell = meter()
        loss = float(run(tf, options))
        found[title] = cell.read() | {"loss": loss}
    wrong = [title for title, values in found.items() if not np.isfinite(values["loss"])]
    if wrong:
        raise ValueError(f"losses are not finite: {wrong}")
    return first.read() | {"cells": found}


def run_fit(tf, name, tiny, options, meter):
    """Build, compile and fit for some steps and a partial one; then fit until steps are steady."""
    make = (models.KINDS | models.CHAINS)[name]
    tf.keras.utils.set_random_seed(0)
    first = meter()
    task = make(tf, tiny)
    if task.is_deterministic:
        models.seed_weights(task.model)
    task.model.compile("adam", task.loss, **options)
    fit = lambda x, y, **settings: task.model.fit(
        x, y, batch_size=task.batch, shuffle=False, verbose=0, **settings
    )
    loss = fit(task.x, task.y).history["loss"][-1]
    if not np.isfinite(loss):
        raise ValueError(f"the loss is {loss}")
    result = first.read() | {"loss": float(loss), "is_deterministic": task.is_deterministic}
    full = models.STEPS * task.batch
    cut = lambda data: None if data is None else tf.nest.map_structure(lambda a: a[:full], data)
    epochs = EpochTimes(2 if tiny else 8, 0.0 if tiny else 2.0)

    class Times(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.begin()

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epochs.end()

    fit(cut(task.x), cut(task.y), epochs=1000, callbacks=[Times()])
    return result | {
        "step_ms": epochs.compute_median() / models.STEPS * 1e3,
        "total_cpu_s": first.read()["cpu_s"],
        "total_programs": first.read()["programs"],
        "total_peak_mb": read_peak_mb(),
    }


class EpochTimes:
    """Measure the seconds of epochs, until enough epochs have run for long enough."""

    def __init__(self, min_epochs, min_seconds):
        self._min_epochs, self._min_seconds = min_epochs, min_seconds
        self._seconds = []

    def begin(self):
        self._start = time.perf_counter()

    def end(self):
        self._seconds.append(time.perf_counter() - self._start)
        steady = self._get_steady()
        return len(steady) >= self._min_epochs and sum(steady) >= self._min_seconds

    def _get_steady(self):
        # Programs are compiled in the first epochs.
        return self._seconds[2:]

    def compute_median(self):
        return statistics.median(self._get_steady())


class SteadyFit:
    """Times of training steps and predictions of a model that is ready."""

    def __init__(self, tf, name, precision, settings, options):
        self._seconds = settings["seconds"]
        if precision == "bfloat16":
            tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
        tf.keras.utils.set_random_seed(0)
        task = models.KINDS[name](tf, settings["tiny"])
        if settings["batch"]:
            task = self._resize(task, settings["batch"], tf.nest)
        self.is_deterministic = task.is_deterministic
        if task.is_deterministic:
            models.seed_weights(task.model)
        task.model.compile("adam", task.loss, **options)
        self._task, self._nest = task, tf.nest
        steady = self
        self._steps = self._predictions = models.STEPS

        class Times(tf.keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                steady._begin = time.perf_counter()

            def on_epoch_end(self, epoch, logs=None):
                steady._epoch_ms = (time.perf_counter() - steady._begin) * 1e3

        self._callbacks = [Times()]
        self.loss = self._fit(models.STEPS)
        # Programs are compiled in the first calls, and buffers are reused later.
        for _ in range(5):
            self.measure()

    @staticmethod
    def _resize(task, batch, nest):
        """Return the task with batches of another size, from repeated examples."""
        rows = models.STEPS * batch
        resize = lambda data: nest.map_structure(lambda a: np.resize(a, (rows, *a.shape[1:])), data)
        data = {name: getattr(task, name) for name in ("x", "y", "samples")}
        data = {name: None if value is None else resize(value) for name, value in data.items()}
        return task._replace(batch=batch, **data)

    def _count(self, milliseconds):
        """Return how many calls of this duration a round has."""
        wanted = 1e3 * self._seconds / milliseconds / models.STEPS
        return int(min(max(wanted, 1), 256)) * models.STEPS

    def _take(self, data, steps):
        full, repeats = models.STEPS * self._task.batch, steps // models.STEPS
        repeat = lambda a: np.concatenate([a[:full]] * repeats)
        return None if data is None else self._nest.map_structure(repeat, data)

    def _fit(self, steps):
        x, y = (self._take(data, steps) for data in (self._task.x, self._task.y))
        history = self._task.model.fit(
            x, y, self._task.batch, shuffle=False, verbose=0, callbacks=self._callbacks
        )
        return float(np.mean(history.history["loss"][-1]))

    def _predict(self, steps):
        """Return the milliseconds of a step."""
        task = self._task
        samples = self._take(task.x if task.samples is None else task.samples, steps)
        begin = time.perf_counter()
        task.model.predict(samples, task.batch, verbose=0)
        return (time.perf_counter() - begin) / steps * 1e3

    def measure(self):
        # After a pause, caches and pages are not those of a steady state.
        self._fit(models.STEPS)
        self._fit(self._steps)
        self._predict(models.STEPS)
        step = self._epoch_ms / self._steps
        prediction = self._predict(self._predictions)
        self._steps, self._predictions = self._count(step), self._count(prediction)
        return {"step_ms": step, "predict_ms": prediction}


RUNS = {
    "text": run_texts,
    "saved": run_saved,
    "decode": run_decoding,
    "notebook": run_notebook,
    "chains": run_fit,
    "first": run_fit,
}


def import_keras_on_jax():
    """Return a module with the names of TensorFlow that models of layers use."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    nest = types.SimpleNamespace(map_structure=keras.tree.map_structure)
    version = keras.__version__
    return types.SimpleNamespace(
        keras=keras, nest=nest, range=keras.ops.arange, __version__=version
    )


def main():
    library, case, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    logging.disable(logging.WARNING)
    row, name = case.split(":")
    # The cost of a chain is measured on one core.
    cores = 1 if row == "chains" else settings.get("cores")
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    start = cpu_seconds()
    options = {"jit_compile": True} if library == "tensorflow jit" else {}
    if library.startswith("tensorflow"):
        import tensorflow as tf
    elif library == "keras jax":
        tf = import_keras_on_jax()
    else:
        import meshflow as tf

        logging.disable(logging.NOTSET)
    programs = Programs()
    tf.keras.Sequential  # noqa: B018  Keras is imported at its first use.
    imported = cpu_seconds() - start
    if row == "save":
        save_model(tf, settings)
        return
    if row == "steady":
        steady = SteadyFit(tf, *name.split(",")[:2], settings, options)
        ready = {"loss": steady.loss, "is_deterministic": steady.is_deterministic}
        print(json.dumps(ready | {"version": tf.__version__}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(steady.measure()), flush=True)
        return
    result = RUNS[row](tf, name, settings["tiny"], options, lambda: Meter(programs))
    print(json.dumps(result | {"import_cpu_s": imported, "version": tf.__version__}))


if __name__ == "__main__":
    main()
