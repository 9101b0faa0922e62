"""Exponential moving averages of variables."""

import numpy as np
import pytest

import meshflow as tf

tf1 = tf.compat.v1
EMA = tf.train.ExponentialMovingAverage


def test_averages_start_at_the_variables_values():
    v = tf.Variable([10.0, 0.0], name="v")
    ema = EMA(0.75)
    assert ema.average(v) is None and ema.average_name(v) == "v/ExponentialMovingAverage"
    step = tf.function(lambda: ema.apply([v]))
    ema.apply([v])
    for value, wanted in (([20.0, 4.0], [12.5, 1.0]), ([12.5, 1.0], [12.5, 1.0])):
        v.assign(value)
        step()
        np.testing.assert_allclose(ema.average(v), wanted)
    assert not ema.average(v).trainable
    assert ema.variables_to_restore() == {"v/ExponentialMovingAverage": v}


def test_the_decay_is_smaller_in_the_beginning():
    v, steps = tf.Variable(0.0), tf.Variable(1)
    ema = EMA(0.9, num_updates=steps)
    ema.apply([v])
    v.assign(11.0)
    ema.apply([v])
    # (1 + 1) / (10 + 1) of the old average.
    assert float(ema.average(v)) == pytest.approx(9.0)


def test_averages_of_variables_start_with_their_values():
    # Values of TensorFlow 2.15.
    v = tf.Variable(10.0)
    ema = EMA(0.5, zero_debias=True)
    ema.apply([v])
    v.assign(20.0)
    ema.apply([v])
    assert float(ema.average(v)) == 15.0


@pytest.mark.parametrize("corrects,expected", [(False, [2.0, 5.0]), (True, [4.0, 5 / 0.75])])
def test_averages_of_tensors_in_graphs(corrects, expected):
    with tf.Graph().as_default(), tf1.Session() as session:
        v = tf1.get_variable("v", initializer=2.0)
        x = tf1.placeholder(tf.float32, [], name="x")
        ema = EMA(0.5, zero_debias=corrects)
        update = ema.apply([v, x])
        session.run(tf1.global_variables_initializer())
        for value, average in zip([4.0, 8.0], expected):
            session.run(update, {x: value})
            assert session.run([ema.average(v), ema.average(x)]) == pytest.approx([2.0, average])
        assert ema.average(x).name == "x/ExponentialMovingAverage:0"
        assert ema.variables_to_restore()["v/ExponentialMovingAverage"] is v
        assert tf1.moving_average_variables() == [v]


def test_checkpoint_and_refusals(tmp_path):
    v = tf.Variable(1.0)
    ema = EMA(0.5)
    ema.apply([v])
    path = tf.train.Checkpoint(v=v, ema=ema).save(tmp_path / "ckpt")
    ema.average(v).assign(7.0)
    tf.train.Checkpoint(v=v, ema=ema).restore(path).assert_consumed()
    assert float(ema.average(v)) == 1.0
    with pytest.raises(TypeError, match="half, float, or double"):
        ema.apply([tf.Variable(1)])
    with pytest.raises(TypeError, match=r"tf\.Variable"):
        ema.apply([tf.constant(1.0)])
    with pytest.raises(ValueError, match="var_list"):
        ema.apply()


def test_averages_on_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable(10.0)
        ema = EMA(0.25)
    strategy.run(lambda: ema.apply([v]))
    v.assign(20.0)
    strategy.run(lambda: ema.apply([v]))
    assert float(ema.average(v)) == 17.5
