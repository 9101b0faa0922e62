"""Write models to files of every format and read them, in TensorFlow as in Meshflow.

In TensorFlow: `python exchange_files.py write FOLDER`, and `python exchange_files.py read FOLDER`,
which reads the files there and writes its results to `KIND.FORMAT.PROGRAM.npz`.
TF_USE_LEGACY_KERAS=1 selects tf-keras instead of Keras 3.
"""

import os
import pathlib
import sys

import exchange_cases as cases
import numpy as np

# Keras 3 drops the optimizer when it writes .h5, which is therefore last.
FORMATS = ("checkpoint", "saved_model", "keras", "weights", "h5")
# Meshflow's files with keras_version=3, for Keras 3 only.
OF_KERAS_3 = ("keras_of_3", "h5_of_3")
NAMES = {
    "checkpoint": "{}.ckpt",
    "saved_model": "{}_saved",
    "h5": "{}.h5",
    "keras": "{}.keras",
    "weights": "{}.weights.h5",
    "keras_of_3": "{}.of_3.keras",
    "h5_of_3": "{}.of_3.h5",
}
# Keras 2 and 3 do not write subclassed models to these files; Keras 2 writes weights.
NOT_WRITTEN = {("subclassed", "h5"), ("subclassed", "h5_of_3")}


def place(folder, kind, form):
    """Return the path of a model's file of a format."""
    return str(pathlib.Path(folder) / NAMES[form].format(kind))


def program(tf):
    """Return the name of the running program, one of three."""
    if "meshflow" in tf.__name__:
        return "meshflow"
    return "tf-keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras3"


def write(tf, model, folder, kind, form):
    """Write a model's file of a format."""
    path = place(folder, kind, form)
    if form == "checkpoint":
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(path)
    elif form == "weights":
        model.save_weights(path)
    elif form == "saved_model" and program(tf) == "keras3":
        model.export(path, verbose=False)
    elif form == "saved_model":
        model.save(path, save_format="tf")
    elif form in OF_KERAS_3:
        model.save(path, keras_version=3)
    else:
        model.save(path)


def fresh(tf, kind):
    """A model that has other numbers than those to be read."""
    model = cases.make_model(tf, kind)
    model.set_weights([v * 0 + 1 if v.dtype.kind == "f" else v for v in model.get_weights()])
    model.compile(tf.keras.optimizers.Adam(0.5, epsilon=1e-2), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def read(tf, folder, kind, form):
    """Return the outputs of a stored model: `y`, and `after` for one more step if the optimizer's
    state was stored."""
    path, found = place(folder, kind, form), {}
    if form == "saved_model":
        return read_saved_model(tf, path, kind)
    if form in ("checkpoint", "weights"):
        model = fresh(tf, kind)
        if form == "weights":
            model.load_weights(path)
        else:
            checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
            checkpoint.read(path).assert_existing_objects_matched()
    else:
        classes = {"Subclassed": cases.subclass(tf.keras.layers, tf.keras)}
        model = tf.keras.models.load_model(path, custom_objects=classes)
    for i, y in enumerate(cases.outputs(tf, model, kind)):
        found[f"y{i}"] = y
    if form != "weights":
        cases.step(tf, model, kind)
        for i, y in enumerate(cases.outputs(tf, model, kind)):
            found[f"after{i}"] = y
    return found


def read_saved_model(tf, path, kind):
    """Return the outputs of the signature, for several rows and for one, and those of the layers if
    they can be restored."""
    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]
    specs = signature.structured_input_signature[1]
    found = {}
    for rows, name in ((None, "y"), (1, "one")):
        named = {}
        given = cases.make_inputs(tf, kind, rows)
        for i, x in enumerate(given if isinstance(given, list) else [given]):
            # A signature of one input may call it anything.
            keys = (
                [k for k in specs if ("zeta", "alpha")[i] in k] if len(specs) > 1 else list(specs)
            )
            named[keys[0]] = x
        values = [np.asarray(tf.cast(y, "float32")) for y in signature(**named).values()]
        # Several outputs are in alphabetical order: "last" before "side", as they were passed.
        for i, y in enumerate(sorted(values, key=lambda y: -y.shape[-1])):
            found[f"{name}{i}"] = y
    if program(tf) == "meshflow":
        classes = {"Subclassed": cases.subclass(tf.keras.layers, tf.keras)}
        model = tf.keras.models.load_model(path, custom_objects=classes)
        for i, y in enumerate(cases.outputs(tf, model, kind)):
            found[f"layers{i}"] = y
    return found


def compute_expected(tf, model, kind):
    """Return the reference values of a reader: outputs now, and after one more step, which is
    executed."""
    found = {f"y{i}": y for i, y in enumerate(cases.outputs(tf, model, kind))}
    cases.step(tf, model, kind)
    return found | {f"after{i}": y for i, y in enumerate(cases.outputs(tf, model, kind))}


def difference(found, wanted):
    """Return the largest difference between read and written values."""

    def base(key):
        number = key.lstrip("abcdefghijklmnopqrstuvwxyz")
        return f"{'after' if key.startswith('after') else 'y'}{number}"

    pairs = [(y, wanted[base(key)]) for key, y in found.items()]
    return max(float(np.abs(a - b[: len(a)]).max()) for a, b in pairs)


def write_all(tf, folder, kinds=cases.KINDS):
    """Return the results of every kind in every format; errors as text."""
    errors = {}
    for kind in kinds:
        done = pathlib.Path(folder) / f"{kind}.npz"
        if done.exists():
            continue
        model = cases.make_model(tf, kind)
        for form in FORMATS + (OF_KERAS_3 if program(tf) == "meshflow" else ()):
            if (kind, form) in NOT_WRITTEN:
                continue
            try:
                write(tf, model, folder, kind, form)
            except Exception as error:  # as the table says
                errors[kind, form] = f"{type(error).__name__}: {error}"
        np.savez(done.with_suffix(".part.npz"), **compute_expected(tf, model, kind))
        done.with_suffix(".part.npz").replace(done)
        print(f"{kind} written", flush=True)
    return errors


def main(task, folder):
    """A task in TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    if task == "write":
        for (kind, form), error in write_all(tf, folder).items():
            print(f"{kind} {form} not written: {error}")
        return
    for kind in cases.KINDS:
        for form in FORMATS + (OF_KERAS_3 if program(tf) == "keras3" else ()):
            if not os.path.exists(
                place(folder, kind, form) + (".index" if form == "checkpoint" else "")
            ):
                continue
            result = f"{folder}/{kind}.{form}.{program(tf)}.npz"
            if os.path.exists(result):
                continue
            try:
                found = read(tf, folder, kind, form)
            except Exception as error:
                found = {"error": np.array(f"{type(error).__name__}: {error}"[:2000])}
            np.savez(result, **found)
        print(f"{kind} read", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
