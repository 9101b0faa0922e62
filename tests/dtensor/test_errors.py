"""Test that errors name values that do not fit on a mesh."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import MATCH, UNSHARDED, Layout

U = UNSHARDED
DIFFERENT = (
    r"are on different meshes: .*float32\[4\].* on the mesh \(x=2\) of CPU:0, CPU:1; .*CPU:2"
)


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])


@pytest.fixture
def other():
    return dtensor.create_mesh([("x", 2)], devices=["CPU:2", "CPU:3"])


def make_ones(mesh, shape=(4,)):
    return dtensor.copy_to_mesh(tf.ones(shape), Layout.batch_sharded(mesh, "x", len(shape)))


def test_tensors_on_different_meshes(mesh, other):
    a, b = make_ones(mesh), make_ones(other)
    v = dtensor.DVariable(a, name="weight")
    for call in (
        lambda: a + b,
        lambda: tf.concat([a, b], 0),
        lambda: v * b,
        lambda: tf.tensordot(a, b, 1),
    ):
        with pytest.raises(ValueError, match=DIFFERENT):
            call()
        with tf.GradientTape() as tape:
            tape.watch(a)
            with pytest.raises(tf.errors.InvalidArgumentError, match=DIFFERENT):
                call()
    with pytest.raises(ValueError, match=r"argument 0 float32\[4\] on .*; weight float32\[4\] on"):
        tf.function(lambda t: t + v)(b)
    with pytest.raises(ValueError, match=r"dtensor\.relayout or dtensor\.copy_to_mesh"):
        tf.function(lambda p, q: p * q)(a, b)
    # A tensor moves when it is asked to.
    np.testing.assert_array_equal((a + dtensor.relayout(b, Layout(["x"], mesh))).numpy(), 2.0)


def test_weights_on_different_meshes(mesh, other):
    layer = tf.keras.layers.Dense(
        4, kernel_layout=Layout([U, "x"], mesh), bias_layout=Layout(["x"], other)
    )
    model = tf.keras.Sequential([tf.keras.Input((4,)), layer])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"train_step: .*dense.*/kernel.*; .*dense.*/bias"):
        model.fit(np.ones([2, 4]), np.ones([2, 4]), verbose=0)


def test_layouts_that_do_not_fit(mesh):
    a = make_ones(mesh)
    with pytest.raises(ValueError, match=r"batch: .* the mesh has the dimensions \['x'\]"):
        Layout.batch_sharded(mesh, "batch", 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Rank mismatch: .* has 1 axes"):
        dtensor.relayout(a, Layout([MATCH, U], mesh))
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"Axis 1 .* size 5, .* into the 2 parts of mesh dimension 'x'.*Pad it with tf\.pad",
    ):
        dtensor.copy_to_mesh(tf.ones([4, 5]), Layout([U, "x"], mesh))
    with pytest.raises(ValueError, match=r"expected a dtensor\.Layout"):
        dtensor.relayout(a, "x")
    with pytest.raises(ValueError, match="axis 3 of a layout of rank 1"):
        Layout(["x"], mesh).num_shards(3)
    with pytest.raises(ValueError, match="not a valid Mesh"):
        Layout(["x"], "mesh")
