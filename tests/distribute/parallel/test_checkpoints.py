"""Test that files of every option are read under every other: variables are complete and named."""

import contextlib

import numpy as np
import pytest

import meshflow as tf
from distribute.parallel.training import data, mesh, mlp, trained

OPTIONS = {
    "one device": None,
    "zero 3": ({"data": 4}, "batch:data", {"zero": 3, "micro_batches": 2}),
    "zero 1, tensors": ({"data": 2, "model": 2}, "batch:data, hidden:model", {"zero": 1}),
    "zero 3 in a node": (
        {"node": 2, "data": 2},
        "batch:node+data",
        {"zero": 3, "zero_over": "data"},
    ),
    "stages, offloaded": (
        {"stage": 2, "data": 2},
        "batch:data",
        {
            "pipeline": "stage",
            "micro_batches": 2,
            "zero": 3,
            "offload": ("optimizer", "parameters"),
        },
    ),
}


def make_model(name):
    if OPTIONS[name] is None:
        return None
    sizes, rules, options = OPTIONS[name]
    return tf.distribute.MeshStrategy(mesh(**sizes), rules, **options)


def goes_on(model):
    x, y = data()
    return model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a checkpoint, a weights file and a saved model of each option after some steps, and
    their continued losses."""
    folder = tmp_path_factory.mktemp("files")
    curves = {}
    for name in OPTIONS:
        model, _ = trained(mlp, make_model(name), steps=2)
        path = folder / name.replace(" ", "_")
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(path / "checkpoint"))
        model.save(path / "model.keras")
        curves[name] = goes_on(model)
    return folder, curves


@pytest.mark.parametrize("reader", OPTIONS)
def test_checkpoints_of_every_option_are_restored_under_every_other(files, reader):
    folder, curves = files
    model, _ = trained(mlp, make_model(reader), steps=2)
    for writer in OPTIONS:
        path = folder / writer.replace(" ", "_")
        status = tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(
            str(path / "checkpoint")
        )
        status.assert_consumed()
        np.testing.assert_allclose(goes_on(model), curves[writer], rtol=2e-6, err_msg=writer)


def test_saved_models_load_under_other_options(files):
    folder, curves = files
    strategy = make_model("zero 3")
    for writer in ("one device", "zero 3 in a node"):
        for scope in (strategy.scope(), contextlib.nullcontext()):
            with scope:
                model = tf.keras.models.load_model(
                    folder / writer.replace(" ", "_") / "model.keras"
                )
            np.testing.assert_allclose(goes_on(model), curves[writer], rtol=1e-6)
    assert model.layers[0].kernel.layout is None


def test_training_is_taken_up_again(tmp_path):
    """By the next process with other options, where the last one was."""

    class Stopped(Exception):
        pass

    class Stop(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise Stopped

    backup = tf.keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(Stopped):
        trained(mlp, make_model("zero 3"), steps=8, fit={"callbacks": [backup, Stop()]})
    backup = tf.keras.callbacks.BackupAndRestore(tmp_path)
    _, rest = trained(mlp, make_model("zero 1, tensors"), steps=8, fit={"callbacks": [backup]})
    np.testing.assert_allclose(rest["loss"], trained(mlp, steps=8)[1]["loss"][2:], rtol=1e-5)
