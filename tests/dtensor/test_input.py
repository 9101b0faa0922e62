"""`DTensorDataset`: batches on a mesh, in the dataset's order."""

import collections

import numpy as np
import pytest
from jax._src import compiler

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

U = UNSHARDED


@pytest.fixture
def mesh():
    return dtensor.create_mesh([("batch", 2), ("width", 2)])


@pytest.fixture
def data():
    x = np.arange(7 * 4 * 3, dtype=np.float32).reshape(7, 4, 3)
    return x, np.arange(7)


def test_batches_are_placed_in_mesh_order(mesh, data):
    x, y = data
    layouts = (Layout(["batch", "width", U], mesh), Layout(["batch"], mesh))
    batches = dtensor.DTensorDataset(
        tf.data.Dataset.from_tensor_slices(data),
        mesh=mesh,
        layouts=layouts,
        global_batch_size=2,
        batch_dim="batch",
        prefetch=2,
    )
    assert len(batches) == 3 == batches.cardinality() and not batches.infinite
    assert batches.element_spec == (
        tf.TensorSpec([2, 4, 3], tf.float32),
        tf.TensorSpec([2], tf.int64),
    )
    for _ in range(2):
        found = list(batches)
        np.testing.assert_array_equal(np.concatenate([b[0].numpy() for b in found]), x[:6])
        np.testing.assert_array_equal(np.concatenate([b[1].numpy() for b in found]), y[:6])
    dtensor.check_layout(found[0][0], layouts[0])
    assert dtensor.unpack(found[0][0])[1].shape == (1, 2, 3)
    iterator = iter(batches)
    assert iterator.get_next()[0].shape == (2, 4, 3)
    list(iterator)
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()


def test_batches_of_replicas_are_put_together(mesh):
    dataset = tf.data.Dataset.range(8).batch(2, drop_remainder=True)
    make = lambda size: dtensor.DTensorDataset(
        dataset,
        mesh=mesh,
        layouts=Layout(["batch"], mesh),
        global_batch_size=size,
        dataset_already_batched=True,
        batch_dim="batch",
    )
    assert [b.numpy().tolist() for b in make(4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="got 2 but expected 4"):
        make(8)


def test_bad_input_is_named(mesh, data):
    def make(layouts, size=2, batch_dim="batch", dataset=None, **options):
        dataset = tf.data.Dataset.from_tensor_slices(data) if dataset is None else dataset
        return dtensor.DTensorDataset(
            dataset,
            mesh=mesh,
            layouts=layouts,
            global_batch_size=size,
            batch_dim=batch_dim,
            **options,
        )

    good = (Layout(["batch", U, U], mesh), Layout(["batch"], mesh))
    with pytest.raises(ValueError, match="structure"):
        make(good[0])
    with pytest.raises(
        ValueError, match="at least one layout did not contain it: that of component 1"
    ):
        make((good[0], Layout([U], mesh)))
    with pytest.raises(ValueError, match="component 0 splits the batch over 'batch'"):
        make(good, batch_dim=None)
    with pytest.raises(ValueError, match="Expected layout with rank 3 for component 0"):
        make((Layout(["batch", U], mesh), good[1]))
    with pytest.raises(ValueError, match="does not divide into the 2 parts of mesh dimension"):
        make(good, size=3)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="Axis 2 of the batch component 0 has size 3"
    ):
        make((Layout(["batch", U, "width"], mesh), good[1]))
    with pytest.raises(ValueError, match="not a dimension name"):
        make(good, batch_dim="batches")
    with pytest.raises(ValueError, match="Ensure drop_remainder=True when batching"):
        ragged = tf.data.Dataset.range(5).batch(2)
        make(Layout(["batch"], mesh), dataset=ragged, dataset_already_batched=True)
    other = dtensor.create_mesh([("batch", 4)])
    with pytest.raises(ValueError, match="component 0 has a layout on"):
        make((Layout(["batch", U, U], other), Layout(["batch"], other)))
    with pytest.raises(NotImplementedError, match=r"tf\.data service"):
        make(good, tf_data_service_config=("address", "job"))
    with pytest.raises(TypeError, match=r"expects a tf\.data\.Dataset"):
        make(good, dataset=[1, 2])


def test_fit_accepts_layouts_of_datasets(monkeypatch):
    mesh = dtensor.create_mesh([("batch", 2), ("height", 2)])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 8, 8, 1)).astype("float32")
    y = rng.normal(size=12).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    layouts = (Layout(["batch", "height", U, U], mesh), Layout(["batch"], mesh))
    sharded = dtensor.DTensorDataset(
        dataset, mesh=mesh, layouts=layouts, global_batch_size=4, batch_dim="batch"
    )
    seen, programs = [], collections.Counter()
    compiled = compiler.compile_or_get_cached

    def counted(backend, module, *args, **kwargs):
        programs[module.operation.attributes["sym_name"].value] += 1
        return compiled(backend, module, *args, **kwargs)

    def train(batches, layout_map, steps):
        tf.keras.backend.reset_uids()
        tf.random.set_seed(1)
        with layout_map.scope():
            model = tf.keras.Sequential(
                [
                    tf.keras.layers.Conv2D(2, 3, activation="relu", input_shape=(8, 8, 1)),
                    tf.keras.layers.GlobalAveragePooling2D(),
                    tf.keras.layers.Dense(1),
                ]
            )
        model.compile("sgd", "mse", steps_per_execution=steps)
        monkeypatch.setattr(compiler, "compile_or_get_cached", counted)
        history = model.fit(batches, epochs=2, verbose=0).history["loss"]
        monkeypatch.undo()
        seen.append(model)
        return history

    LayoutMap = tf.keras.dtensor.experimental.LayoutMap
    expected = train(dataset.batch(4), LayoutMap(), 1)
    for steps in (1, 2):
        programs.clear()
        np.testing.assert_allclose(train(sharded, LayoutMap(mesh=mesh), steps), expected, rtol=1e-5)
        # Counters and totals, which have no layout, must not compile the program again for their
        # second placement.
        wanted = {"jit_train_step": 1} | ({"jit_train_step_loop": 1} if steps > 1 else {})
        assert {n: k for n, k in programs.items() if "train_step" in n} == wanted
    assert len(seen[-1].layers[0].kernel._value.sharding.device_set) == 4
