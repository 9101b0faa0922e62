import copy
import os

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow import train
from meshflow.keras import layers, optimizers

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X[:, :1]


def model(built=True):
    shape = {"input_shape": (3,)} if built else {}
    return tf.keras.Sequential(
        [layers.Dense(4, **shape), layers.BatchNormalization(), layers.Dense(1)]
    )


def train_model(built=True, optimizer=None):
    m = model(built)
    m.compile(optimizer or optimizers.Adam(0.01), "mse")
    m.fit(X, Y, verbose=0, shuffle=False)
    return m


def test_values_are_found_through_attributes_lists_and_dictionaries(tmp_path):
    def objects():
        module = tf.Module()
        module.weights = [tf.Variable([1.0, 2.0]), {"a/b": tf.Variable(3)}]
        return train.Checkpoint(
            step=tf.Variable(7, dtype=tf.int64), module=module, more=[tf.Variable(True)]
        )

    saved, other = objects(), objects()
    saved.step.assign(9)
    saved.module.weights[1]["a/b"].assign(5)
    path = saved.save(tmp_path / "ckpt")
    assert path == str(tmp_path / "ckpt-1")
    other.restore(path).assert_consumed()
    assert int(other.step) == 9 and int(other.module.weights[1]["a/b"]) == 5
    assert int(other.save_counter) == 1 and other.save(tmp_path / "ckpt").endswith("ckpt-2")


def test_keys_are_tensorflows(tmp_path):
    m = train_model(optimizer=optimizers.legacy.Adam(0.01))
    path = train.Checkpoint(model=m, optimizer=m.optimizer).save(tmp_path / "ckpt")
    assert sorted(os.listdir(tmp_path)) == [
        *("checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index")
    ]
    listed = dict(train.list_variables(tmp_path))
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert listed["model/layer_with_weights-0/kernel" + value] == [3, 4]
    assert listed["model/layer_with_weights-0/kernel/.OPTIMIZER_SLOT/optimizer/m" + value] == [3, 4]
    assert listed["model/layer_with_weights-1/moving_mean" + value] == [4]
    assert {
        k + value
        for k in ("optimizer/iter", "optimizer/beta_1", "optimizer/learning_rate", "save_counter")
    } <= set(listed)
    m = train_model()
    newer = train.Checkpoint(model=m, optimizer=m.optimizer).write(tmp_path / "newer")
    listed = dict(train.list_variables(newer))
    assert listed["optimizer/_velocities/0" + value] == [3, 4]
    assert {"optimizer/_iterations" + value, "optimizer/_learning_rate" + value} <= set(listed)
    assert not any("SLOT" in key or "beta_1" in key for key in listed)
    reader = train.load_checkpoint(path)
    assert reader.has_tensor("optimizer/iter" + value) and not reader.has_tensor("x")
    assert reader.get_variable_to_dtype_map()["optimizer/iter" + value] is tf.int64
    assert train.load_variable(path, "optimizer/iter") == 1
    with pytest.raises(tf.errors.NotFoundError, match="Key x not found"):
        reader.get_tensor("x")


@pytest.mark.parametrize("built", [True, False])
def test_training_resumes_from_a_checkpoint(tmp_path, built):
    m = train_model(built)
    path = train.Checkpoint(model=m).save(tmp_path / "ckpt")
    m.fit(X, Y, verbose=0, shuffle=False, epochs=2)
    other = model(built)
    other.compile(optimizers.Adam(0.5), "mse")
    status = train.Checkpoint(model=other).restore(path)
    if not built:
        with pytest.raises(AssertionError, match="Unresolved object"):
            status.assert_consumed()
    other.fit(X, Y, verbose=0, shuffle=False, epochs=2)
    status.assert_consumed()
    assert float(other.optimizer.learning_rate) == pytest.approx(0.01)
    for a, b in zip(other.get_weights(), m.get_weights(), strict=True):
        assert_close(a, b, 1e-6)


def test_custom_loop_restores_before_variables_exist(tmp_path):
    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = [layers.Dense(2), layers.Dense(1)]

        def call(self, x):
            for layer in self.hidden:
                x = layer(x)
            return x

    def step(net, optimizer):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(X) ** 2)
        optimizer.minimize(loss, net.trainable_variables, tape=tape)

    net, optimizer = Net(), optimizers.SGD(0.1, momentum=0.9)
    compiled = tf.function(step)
    compiled(net, optimizer)
    path = train.Checkpoint(net=net, optimizer=optimizer).save(tmp_path / "c")
    compiled(net, optimizer)
    other, again = Net(), optimizers.SGD(0.1, momentum=0.9)
    status = train.Checkpoint(net=other, optimizer=again).restore(path)
    tf.function(step)(other, again)
    status.assert_consumed()
    assert int(again.iterations) == 2
    assert_close(other.hidden[0].kernel, net.hidden[0].kernel.numpy())


def test_variables_created_later_are_matched_on_request(tmp_path):
    class Lazy(tf.Module):
        def __call__(self):
            if not hasattr(self, "w"):
                self.w = tf.Variable(1.0)
            return self.w.value()

    saved, other = Lazy(), Lazy()
    saved()
    saved.w.assign(4.0)
    path = train.Checkpoint(m=saved).write(tmp_path / "c")
    status = train.Checkpoint(m=other).read(path)
    other()
    status.assert_consumed()
    assert float(other()) == 4


def test_status_assertions(tmp_path):
    path = train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable(2.0)).write(tmp_path / "c")
    a = tf.Variable(0.0)
    status = train.Checkpoint(a=a).restore(path)
    assert float(a) == 1
    status.assert_existing_objects_matched().assert_nontrivial_match().expect_partial()
    with pytest.raises(AssertionError, match=r"b/\.ATTRIBUTES"):
        status.assert_consumed()
    with pytest.raises(AssertionError, match=r"1 Python objects .* \['new:0'\]"):
        train.Checkpoint(a=a, c=tf.Variable(0.0, name="new")).restore(
            path
        ).assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="Nothing except the root"):
        train.Checkpoint(z=a).restore(path).assert_nontrivial_match()
    nothing = train.Checkpoint(a=a).restore(None)
    nothing.expect_partial()
    with pytest.raises(AssertionError, match="No checkpoint specified"):
        nothing.assert_consumed()


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"expecting step to be a trackable object .* got 3"):
        train.Checkpoint(step=3)
    path = train.Checkpoint(v=tf.Variable([1.0, 2.0])).save(tmp_path / "ckpt")
    with pytest.raises(ValueError, match=r"shape \(2,\).*shape \(3,\) and name wide:0"):
        train.Checkpoint(v=tf.Variable([1.0, 2.0, 3.0], name="wide")).restore(path)
    with pytest.raises(tf.errors.NotFoundError, match=r"(?s)nowhere.*'-1'"):
        train.Checkpoint(v=tf.Variable(1.0)).restore(tmp_path / "nowhere")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"v:0 of dtype int32 .*stored dtype float32"
    ):
        train.Checkpoint(v=tf.Variable([1, 2], name="v")).restore(path)
    data = tmp_path / "ckpt-1.data-00000-of-00001"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(tf.errors.DataLossError, match=r"data-00000-of-00001 is truncated"):
        train.load_checkpoint(path)
    data.unlink()
    with pytest.raises(tf.errors.DataLossError, match=r"data-00000-of-00001 is missing"):
        train.Checkpoint(v=tf.Variable([1.0, 2.0])).restore(path)
    data.write_bytes(whole)
    index = tmp_path / "ckpt-1.index"
    content = index.read_bytes()
    for damaged in (content[:-1], content[1:], b"", b"tea", content.replace(b"v/", b"w/")):
        index.write_bytes(damaged)
        with pytest.raises(tf.errors.DataLossError, match=r"ckpt-1\.index"):
            train.load_checkpoint(path)


def test_silent_corruption_is_detected(tmp_path):
    path = train.Checkpoint(v=tf.Variable(np.arange(8.0))).write(tmp_path / "c")
    file = tmp_path / "c.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    with pytest.raises(tf.errors.DataLossError, match="checksum"):
        train.load_checkpoint(path).get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE")


def test_dtypes_survive(tmp_path):
    for dtype in ("bfloat16", "float16", "float64", "int8", "uint32", "complex64", "bool"):
        for value in (1, [0, 1]):
            v = tf.Variable(tf.cast(value, dtype))
            path = train.Checkpoint(v=v).write(tmp_path / "c")
            other = tf.Variable(tf.zeros_like(v))
            train.Checkpoint(v=other).read(path).assert_consumed()
            assert other.numpy().dtype == v.numpy().dtype and np.all(other.numpy() == v.numpy())


def test_a_killed_program_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    v = tf.Variable(1.0)
    checkpoint = train.Checkpoint(v=v)
    path = checkpoint.write(tmp_path / "c")
    v.assign(2.0)
    real, calls = os.replace, []

    def killed(source, target):
        calls.append(target)
        if len(calls) == fatal:
            raise KeyboardInterrupt
        real(source, target)

    for fatal in (1, 2, 3):
        calls.clear()
        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.write(tmp_path / "c")
        monkeypatch.setattr(os, "replace", real)
        checkpoint.read(path)
        assert float(v) == 1
    v.assign(3.0)
    checkpoint.write(path)
    v.assign(0.0)
    checkpoint.read(path)
    assert float(v) == 3 and len(os.listdir(tmp_path)) == 1 + int(
        next(tmp_path.glob("c.data*")).name[-5:]
    )


def test_root_and_shared_objects(tmp_path):
    m = model()
    train.Checkpoint(m, extra=tf.Variable(2.0)).write(tmp_path / "c")
    other = model()
    train.Checkpoint(other).read(tmp_path / "c").assert_existing_objects_matched()
    assert_close(other.get_weights()[0], m.get_weights()[0])
    shared = tf.Variable(1.0)
    train.Checkpoint(a=shared, b=shared).write(tmp_path / "d")
    assert len(train.list_variables(tmp_path / "d")) == 2  # the graph of objects is one
    b = tf.Variable(0.0)
    train.Checkpoint(b=b).read(tmp_path / "d")
    assert float(b) == 1


def test_python_state_and_metrics_and_options(tmp_path):
    class Position(train.experimental.PythonState):
        value = "start"

        def serialize(self):
            return self.value

        def deserialize(self, string_value):
            self.value = string_value

    position, metric = Position(), tf.keras.metrics.Mean()
    position.value = "chapter 3"
    metric.update_state([1.0, 3.0])
    written = []
    options = train.CheckpointOptions(experimental_write_callbacks=[written.append])
    path = train.Checkpoint(p=position, m=metric).write(tmp_path / "c", options)
    other, mean = Position(), tf.keras.metrics.Mean()
    train.Checkpoint(p=other, m=mean).read(path).assert_consumed()
    assert other.value == b"chapter 3" and float(mean.result()) == 2 and written == [path]
    m = train_model()
    path = train.Checkpoint(model=m).write(tmp_path / "m")
    fresh = train_model()
    skip = train.CheckpointOptions(experimental_skip_slot_variables=True)
    train.Checkpoint(model=fresh).read(path, skip).assert_consumed()


def test_a_function_that_writes_runs_op_by_op(tmp_path, caplog):
    checkpoint = train.Checkpoint(v=tf.Variable(1.0))

    @tf.function
    def doubles_and_writes(path):
        checkpoint.v.assign(checkpoint.v * 2.0)
        return checkpoint.write(path)

    for expected in (2, 4):
        path = doubles_and_writes(tf.constant(str(tmp_path / "c")))
        assert float(train.load_variable(path, "v")) == expected
    assert "writes files" in caplog.text
    with pytest.raises(NotImplementedError, match="numbered inside"):
        tf.function(lambda: checkpoint.save(tmp_path / "c"))()


def test_attributes_set_after_restore_get_stored_values(tmp_path):
    def module(value=None):
        made = tf.Module()
        if value is not None:
            made.inner = tf.Module()
            made.inner.v = tf.Variable(value)
        return made

    path = tf.train.Checkpoint(module=module(7.0), v=tf.Variable(3.0)).write(str(tmp_path / "ckpt"))
    later = tf.train.Checkpoint(module=module())
    status = later.read(path)
    with pytest.raises(AssertionError, match="Unresolved"):
        status.assert_consumed()
    later.v = tf.Variable(0.0)
    later.module.inner = tf.Module()
    later.module.inner.v = tf.Variable(0.0)
    later.module.note = "no value"
    assert later.v.numpy() == 3 and later.module.inner.v.numpy() == 7
    status.assert_consumed()


def test_generators(tmp_path):
    generator = tf.random.Generator.from_seed(1)
    path = tf.train.Checkpoint(generator=generator).write(str(tmp_path / "ckpt"))
    expected = generator.normal([3]).numpy()
    other = tf.random.Generator.from_seed(2)
    tf.train.Checkpoint(generator=other).read(path).assert_consumed()
    assert (other.normal([3]).numpy() == expected).all()


def test_strings(tmp_path):
    texts = [[b"a", b"", b"\x00\xff\x00"], ["é".encode(), b"\n", b"x" * 1000]]
    saved = train.Checkpoint(many=tf.Variable(texts), one=tf.Variable("one"))
    path = saved.write(str(tmp_path / "ckpt"))
    fresh = train.Checkpoint(many=tf.Variable([[""] * 3] * 2), one=tf.Variable(""))
    fresh.read(path).assert_consumed()
    assert fresh.many.numpy().tolist() == texts and fresh.one.numpy() == b"one"
    assert dict(train.list_variables(path))["one/.ATTRIBUTES/VARIABLE_VALUE"] == []
    assert (
        train.load_checkpoint(path).get_variable_to_dtype_map()["many/.ATTRIBUTES/VARIABLE_VALUE"]
        == tf.string
    )
    with pytest.raises(ValueError, match="cannot hold the stored dtype"):
        train.Checkpoint(many=tf.Variable(tf.zeros([2, 3]))).read(path)


def test_corrupt_strings_are_detected(tmp_path):
    path = train.Checkpoint(v=tf.Variable(["abc", "de"])).write(str(tmp_path / "ckpt"))
    file = tmp_path / "ckpt.data-00000-of-00001"
    content = file.read_bytes()
    start = content.index(b"abc") - 6
    for place, message in (start + 6, "checksum"), (start + 3, "checksum"), (start, "do not end"):
        damaged = bytearray(content)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(tf.errors.DataLossError, match=message):
            train.Checkpoint(v=tf.Variable(["", ""])).read(path)


def test_items_added_to_containers_later_are_restored(tmp_path):
    saved = tf.train.Checkpoint(
        listed=[tf.Variable(1.0), tf.Variable(2.0)], named={"a": tf.Variable(3.0)}
    )
    path = saved.save(tmp_path / "ckpt")
    later = tf.train.Checkpoint()
    status = later.restore(path)
    later.listed = []
    first, second, named = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0.0)
    later.listed.append(first)
    assert float(first) == 1.0 and later.listed == [first]
    later.listed += [second]
    later.named = {}
    later.named["a"] = named
    assert (float(second), float(named)) == (2.0, 3.0)
    status.assert_existing_objects_matched()
    whole = tf.train.Checkpoint()
    whole.restore(path)
    whole.listed = [tf.Variable(0.0)]
    assert float(whole.listed[0]) == 1.0
    assert type(copy.deepcopy(later.listed)) is list


def test_nested_containers_are_restored_when_filled(tmp_path):
    saved = tf.train.Checkpoint(
        listed=[[tf.Variable(1.0)], {"x": tf.Variable(2.0)}],
        named={"a": {"b": [tf.Variable(3.0)]}, "c": [tf.Variable(4.0)]},
    )
    later = tf.train.Checkpoint()
    status = later.restore(saved.save(tmp_path / "ckpt"))
    later.listed, later.named = [[]], {"a": {}}
    later.listed[0].append(tf.Variable(0.0))
    later.listed.append({})
    later.listed[1]["x"] = tf.Variable(0.0)
    later.named["a"].update(b=[])
    later.named["a"]["b"] += [tf.Variable(0.0)]
    later.named |= {"d": 5}
    later.named.setdefault("c", []).insert(0, tf.Variable(0.0))
    found = [
        later.listed[0][0],
        later.listed[1]["x"],
        later.named["a"]["b"][0],
        later.named["c"][0],
    ]
    assert [float(v) for v in found] == [1.0, 2.0, 3.0, 4.0]
    later.listed[2:] = [[5], 6]
    assert later.listed[2:] == [[5], 6]
    status.assert_consumed()
