"""Test the cached structure of models; first runs compile and search no more than necessary."""

import copy
import pickle
import textwrap

import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.core.runtime import transfers
from meshflow.keras.engine.layer import tracking

Dense = tf.keras.layers.Dense


@pytest.fixture
def walks(monkeypatch):
    """A list that grows by the owner of each walk over attributes."""
    found, make = [], tracking.Tracker.__init__

    def counted(tracker, owner):
        found.append(owner)
        make(tracker, owner)

    monkeypatch.setattr(tracking.Tracker, "__init__", counted)
    return found


class Blocks(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.head = Dense(2)
        self.blocks = [Dense(2)]
        self.named = {"one": [Dense(2)]}
        self.sizes = [1, 2, 3]
        self.seen = 0

    def call(self, x):
        self.seen += 1
        for block in (*self.blocks, *(b for group in self.named.values() for b in group)):
            x = block(x)
        return self.head(x)


def built():
    model = Blocks()
    model(np.ones((1, 2), "float32"))
    assert len(model.weights) == 6
    return model


def sublayers(model):
    """Return the result of a new walk over the model."""
    return tracking.Tracker(model).layers


def test_a_warm_fit_walks_little(walks):
    model = tf.keras.Sequential([tf.keras.Input((4,)), *[Dense(4) for _ in range(31)]])
    model.compile("sgd", "mse")
    x = np.zeros((8, 4), "float32")
    model.fit(x, x, batch_size=4, verbose=0)
    walks.clear()
    model.fit(x, x, batch_size=4, verbose=0)
    assert len(walks) <= 40
    walks.clear()
    model(x)
    assert not walks


def test_plain_attributes_do_not_make_a_model_look_again(walks):
    model = built()
    walks.clear()
    model(np.ones((1, 2), "float32"))
    model.sizes.append(4)
    assert len(model.weights) == 6 and model.seen == 2
    assert not walks


@pytest.mark.parametrize(
    "change",
    [
        lambda model, new: setattr(model, "more", new),
        lambda model, new: setattr(model, "head", new),
        lambda model, new: setattr(model, "seen", new),
        lambda model, new: delattr(model, "head"),
        lambda model, new: setattr(model, "head", None),
        lambda model, new: model.blocks.append(new),
        lambda model, new: model.blocks.__setitem__(0, new),
        lambda model, new: model.blocks.clear(),
        lambda model, new: model.sizes.__setitem__(slice(None), [new]),
        lambda model, new: model.named.update(two=[new]),
        lambda model, new: model.named["one"].append(new),
        lambda model, new: model.named.pop("one"),
    ],
)
def test_attribute_changes_invalidate_the_cache(change):
    model, new = built(), Dense(2)
    new.build((None, 2))
    before = model.layers
    change(model, new)
    assert [id(layer) for layer in model.layers] == [id(layer) for layer in sublayers(model)]
    assert [id(layer) for layer in model.layers] != [id(layer) for layer in before]
    assert {id(w) for w in model.weights} == {
        id(w) for layer in model.layers for w in layer.weights
    }


def test_weights_added_and_frozen_later_are_found():
    layer = Dense(2)
    layer.build((None, 2))
    assert len(layer.trainable_weights) == 2
    added = layer.add_weight("scale", ())
    assert layer.trainable_weights[-1] is added
    layer.offset = tf.Variable(1.0, trainable=False)
    assert layer.non_trainable_weights[0] is layer.offset
    layer.trainable = False
    assert not layer.trainable_weights and len(layer.weights) == 4
    layer.trainable = True
    layer.bias._trainable = False
    assert len(layer.trainable_weights) == 2


def test_later_variables_of_modules_are_found():
    layer, module = tf.keras.layers.Layer(), tf.Module()
    layer.part = module
    assert layer.weights == []
    module.late = tf.Variable(1.0)
    assert layer.weights[0] is module.late


def test_metrics_of_a_layer_are_found():
    layer = tf.keras.layers.Layer()
    assert layer.metrics == []
    layer.mean = tf.keras.metrics.Mean()
    assert layer.metrics == [layer.mean]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_find_their_own_layers(copied):
    layer = Dense(2)
    layer.build((None, 2))
    layer.inner = Dense(3)
    layer.inner.build((None, 2))
    assert len(layer.weights) == 4
    other = copied(layer)
    assert other.inner is not layer.inner and other.inner in sublayers(other)
    mine = {id(w) for w in layer.weights}
    assert len(other.weights) == 4 and mine.isdisjoint(id(w) for w in other.weights)
    other.inner = Dense(1)
    assert len(other.weights) == 2 and len(layer.weights) == 4


def test_shallow_copy_finds_its_own_layers():
    layer = Dense(2)
    layer.inner = Dense(3)
    assert layer.submodules == (layer.inner,) and layer._tracked.layers == [layer.inner]
    other = copy.copy(layer)
    other.__dict__.update(layer.__dict__)
    other.__dict__["inner"] = Dense(4)
    assert other._tracked.layers == [other.inner]


def test_cache_is_not_tracked_by_modules():
    layer = Dense(2)
    assert layer.weights == []
    assert all(not isinstance(leaf, tracking.Tracker) for leaf in layer._flatten())
    assert all(not isinstance(value, tracking.Tracker) for value in layer.__getstate__().values())


def test_changing_the_list_of_layers_changes_no_model():
    model = Blocks()
    model.layers.clear()
    assert len(model.layers) == 3


def test_the_first_fit_calls_few_functions():
    # In a separate process without earlier traces or caches.
    script = """
        import os, sys
        import numpy as np
        import meshflow as tf
        keras = tf.keras
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu")])
        model.add(keras.layers.Dense(10))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        folder, count, total = os.path.dirname(tf.__file__), 0, 0
        def see(frame, event, _):
            global count, total
            total += event == "call"
            count += event == "call" and frame.f_code.co_filename.startswith(folder)
        sys.setprofile(see)
        model.fit(np.zeros((64, 64), "float32"), np.zeros(64, "int32"), batch_size=32, verbose=0)
        sys.setprofile(None)
        print(count, total)
    """
    code, output = forked.run(textwrap.dedent(script))
    assert code == 0, output
    count, total = map(int, output.split()[-2:])
    # Most of the time is spent in the other functions, which are JAX's.
    assert 0 < count <= 14_150 and total <= 55_000


def residual(layers):
    """Build a small residual network with as many weight shapes as a large one."""
    x = inputs = tf.keras.Input((8, 8, 3))
    for filters in (5, 6, 7):
        y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(y))
        x = layers.ReLU()(layers.Add()([layers.Conv2D(filters, 1)(x), y]))
    return tf.keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def test_a_first_fit_compiles_few_programs(programs, compile_tier):
    model = residual(tf.keras.layers)
    assert programs == []
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(np.zeros((8, 8, 8, 3), "float32"), np.zeros(8, "int32"), batch_size=4, verbose=0)
    assert 1 <= len(programs) <= 2
    assert "jit(train_step)" in programs


def test_variables_are_created_read_and_written_without_programs(programs):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(7, 11)).astype("float32")
    variable = tf.Variable(values)
    again = tf.Variable(tf.constant(values))
    twin = copy.deepcopy(variable)
    variable.assign(np.ones((7, 11), "float32"))
    assert programs == []
    np.testing.assert_array_equal(again.numpy(), values)
    np.testing.assert_array_equal(twin.numpy(), values)
    np.testing.assert_array_equal(variable.numpy(), np.ones((7, 11)))


def test_variables_do_not_share_memory_with_initial_values():
    # Arrays with XLA's alignment, which are used without a copy.
    transfers = np.zeros(4096 + 16, "float32")
    start = -transfers.ctypes.data % 64 // 4
    values = transfers[start : start + 4096]
    variable, constant = tf.Variable(values), tf.constant(values)
    other = tf.Variable(constant)
    assigned = tf.Variable(np.ones(4096, "float32"))
    assigned.assign(values)
    values[:] = 5.0
    for x in (variable, constant, other, assigned):
        assert not np.asarray(x).any()
    add = tf.function(lambda: other.assign_add(tf.ones(4096)))
    add()
    add()
    assert not np.asarray(constant).any() and (other.numpy() == 2.0).all()


def test_tensor_read_before_a_step_keeps_its_value(programs):
    variable = tf.Variable(np.zeros((13, 5), "float32"))
    add = tf.function(lambda: variable.assign_add(tf.ones((13, 5))))
    add()
    first = variable.value()
    programs.clear()
    add()
    assert programs == []
    assert (first.numpy() == 1.0).all() and (variable.numpy() == 2.0).all()


@pytest.mark.skipif(len(tf.config.list_logical_devices("CPU")) < 2, reason="needs two devices")
def test_arrays_on_several_devices_are_copied_in_place():
    mesh = tf.experimental.dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])
    layout = tf.experimental.dtensor.Layout(["batch", "unsharded"], mesh)
    values = np.arange(8, dtype="float32").reshape(4, 2)
    tensor = tf.experimental.dtensor.relayout(tf.constant(values), layout)
    copied = transfers.duplicate(tensor._value)
    assert copied.sharding == tensor._value.sharding
    tensor._value.delete()
    np.testing.assert_array_equal(np.asarray(copied), values)
