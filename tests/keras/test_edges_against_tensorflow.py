"""Results of tf-keras 2.15 for unusual arguments of losses, metrics, optimizers and recurrent layers."""

import numpy as np
import pytest

import meshflow as tf


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_huber_loss_has_the_default_dtype(dtype):
    assert tf.keras.losses.huber(tf.ones([2], dtype), tf.zeros([2], dtype)).dtype == tf.float32


@pytest.mark.parametrize("metric", [tf.keras.metrics.Precision, tf.keras.metrics.TruePositives])
def test_metrics_accept_logits(metric):
    assert metric()([0.0, 1.0], [-3.0, 3.0]).numpy() == 1.0


@pytest.mark.parametrize("limit", ["clipnorm", "clipvalue", "global_clipnorm"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_limits_that_are_not_positive_have_no_effect(limit, value):
    variable = tf.Variable([1.0])
    optimizer = tf.keras.optimizers.SGD(0.5, **{limit: value})
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    assert variable.numpy().tolist() == [0.5]


@pytest.mark.parametrize("flag", [-100, "yes", 0.5, np.bool_(True)])
def test_flags_of_recurrent_layers_may_have_any_true_value(flag):
    layer = tf.keras.layers.LSTM(4, return_sequences=flag, go_backwards=flag)
    assert layer(np.ones((2, 3, 1), np.float32)).shape == [2, 3, 4]
