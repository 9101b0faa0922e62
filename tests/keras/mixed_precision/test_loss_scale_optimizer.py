"""Test loss scaling: changes of the scale, skipped steps, and saving."""

import copy

import numpy as np
import pytest

import meshflow as tf

pytestmark = pytest.mark.nan_expected

mixed_precision = tf.keras.mixed_precision
SGD = tf.keras.optimizers.SGD


@pytest.fixture(autouse=True)
def float32_again():
    yield
    mixed_precision.set_global_policy("float32")


def step(optimizer, variable, gradient):
    """Run one step with a specified gradient."""
    optimizer.get_scaled_loss(tf.constant(1.0))
    scaled = [tf.constant(gradient) * optimizer.loss_scale]
    gradients = optimizer.get_unscaled_gradients(scaled)
    optimizer.apply_gradients(zip(gradients, [variable], strict=True))


@pytest.mark.parametrize("compiled", [False, True])
def test_scale_doubles_and_halves(compiled):
    optimizer = mixed_precision.LossScaleOptimizer(
        SGD(1.0), initial_scale=8, dynamic_growth_steps=3
    )
    v = tf.Variable(0.0)
    run = tf.function(step) if compiled else step
    seen = []
    for gradient in (
        1,
        1,
        1,
        1,
        np.inf,
        1,
        np.nan,
        1,
        1,
        1,
        np.inf,
        np.inf,
        np.inf,
        np.inf,
        np.inf,
    ):
        run(optimizer, v, tf.constant(gradient, tf.float32))
        seen.append((float(optimizer.loss_scale), int(optimizer.dynamic_counter), float(v)))
    # Three good steps double it, each bad one halves it, never below 1.
    assert [s for s, _, _ in seen] == [8, 8, 16, 16, 8, 8, 4, 4, 4, 8, 4, 2, 1, 1, 1]
    assert [c for _, c, _ in seen] == [1, 2, 0, 1, 0, 1, 0, 1, 2, 0, 0, 0, 0, 0, 0]
    assert seen[-1][2] == -8.0
    assert int(optimizer.iterations) == 15 and int(optimizer.skipped_steps) == 7


def test_scale_does_not_grow_to_infinity():
    optimizer = mixed_precision.LossScaleOptimizer(
        SGD(1.0), initial_scale=2.0**127, dynamic_growth_steps=1
    )
    v = tf.Variable(0.0)
    optimizer._warned.update(("scaled", "unscaled"))
    optimizer.apply_gradients([(tf.constant(1.0), v)])
    assert float(optimizer.loss_scale) == 2.0**127


@pytest.mark.parametrize("compiled", [False, True])
def test_a_skipped_step_changes_no_state(compiled):
    inner = tf.keras.optimizers.Adam(0.1, use_ema=True, clipnorm=1.0)
    optimizer = mixed_precision.LossScaleOptimizer(inner)
    v, w = tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])

    def run(bad):
        optimizer._warned.update(("scaled", "unscaled"))
        optimizer.apply_gradients([(tf.ones([2]), v), (tf.fill([1, 1], bad), w)])

    run = tf.function(run) if compiled else run
    run(tf.constant(1.0))
    state = [x for x in (v, w, *inner.variables) if x is not inner.iterations]
    before = [x.numpy() for x in state]
    run(tf.constant(np.nan, tf.float32))
    for x, value in zip(state, before, strict=True):
        np.testing.assert_array_equal(x.numpy(), value)
    assert int(optimizer.iterations) == 2 and int(optimizer.skipped_steps) == 1
    run(tf.constant(1.0))
    assert all(np.isfinite(x.numpy()).all() for x in state)
    assert not np.array_equal(v.numpy(), before[0])


def test_overflow_of_a_huge_scale_recovers():
    mixed_precision.set_global_policy("mixed_float16")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,), dtype="mixed_float16")])
    optimizer = mixed_precision.LossScaleOptimizer(SGD(0.01), initial_scale=2.0**30)
    model.compile(optimizer, "mse")
    x = np.ones((8, 3), "float32")
    model.fit(x, np.ones((8, 1)), epochs=40, verbose=0)
    assert float(optimizer.loss_scale) <= 2.0**16 and int(optimizer.skipped_steps) >= 10
    assert model.evaluate(x, np.ones((8, 1)), verbose=0) < 1.0
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_fixed_scale():
    optimizer = mixed_precision.LossScaleOptimizer(SGD(1.0), dynamic=False, initial_scale=4)
    v = tf.Variable(1.0)
    step(optimizer, v, 0.5)
    assert float(v) == 0.5 and float(optimizer.loss_scale) == 4
    step(optimizer, v, np.inf)
    assert float(v) == 0.5 and float(optimizer.loss_scale) == 4
    assert optimizer.dynamic_counter is None and optimizer.dynamic_growth_steps is None


def test_scaling_and_unscaling():
    optimizer = mixed_precision.LossScaleOptimizer(SGD(), initial_scale=4)
    assert float(optimizer.get_scaled_loss(tf.constant(3.0, tf.float16))) == 12
    assert float(optimizer.get_scaled_loss(lambda: tf.constant(3.0))()) == 12
    slices = tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([1]), tf.constant([3, 1]))
    one, none, sparse = optimizer.get_unscaled_gradients([tf.constant(2.0), None, slices])
    assert float(one) == 0.5 and none is None and sparse.values.numpy().tolist() == [[2.0]]


def test_minimize_and_keras_3_steps_agree_with_the_plain_optimizer():
    start = np.array([1.0, -2.0], "float32")
    plain, scaled, three = (tf.Variable(start) for _ in range(3))
    inner = SGD(0.1, momentum=0.9)
    first = mixed_precision.LossScaleOptimizer(SGD(0.1, momentum=0.9))
    second = mixed_precision.LossScaleOptimizer(SGD(0.1, momentum=0.9))
    for _ in range(3):
        inner.minimize(lambda: tf.reduce_sum(plain**2), [plain])
        first.minimize(lambda: tf.reduce_sum(scaled**2), [scaled])
        with tf.GradientTape() as tape:
            loss = second.scale_loss(tf.reduce_sum(three**2))
        second.apply(tape.gradient(loss, [three]), [three])
    np.testing.assert_array_equal(plain.numpy(), scaled.numpy())
    np.testing.assert_array_equal(plain.numpy(), three.numpy())


def test_compile_wraps_under_mixed_float16_only():
    for policy, wrapped in (("mixed_float16", True), ("mixed_bfloat16", False), ("float32", False)):
        mixed_precision.set_global_policy(policy)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
        assert isinstance(model.optimizer, mixed_precision.LossScaleOptimizer) is wrapped
    mixed_precision.set_global_policy("mixed_float16")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    own = mixed_precision.LossScaleOptimizer(SGD(), initial_scale=2)
    model.compile(own, "mse")
    assert model.optimizer is own


def test_hyperparameters_belong_to_the_inner_optimizer():
    optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.5, beta_1=0.8))
    assert float(optimizer.learning_rate) == 0.5 and optimizer.lr is optimizer.learning_rate
    optimizer.learning_rate = 0.25
    assert float(optimizer.inner_optimizer.learning_rate) == 0.25
    assert float(optimizer.beta_1) == pytest.approx(0.8)
    assert optimizer.iterations is optimizer.inner_optimizer.iterations
    assert isinstance(optimizer, tf.keras.optimizers.Optimizer)
    # Attributes that are not hyperparameters are separate.
    with pytest.raises(
        AttributeError, match="'LossScaleOptimizerV3' object has no attribute 'amsgrad'"
    ):
        _ = optimizer.amsgrad
    optimizer.amsgrad = True
    assert optimizer.amsgrad and not optimizer.inner_optimizer.amsgrad
    with pytest.raises(AttributeError):
        optimizer.loss_scale = 2.0
    assert "beta_1" in dir(optimizer) and "amsgrad" in dir(optimizer.inner_optimizer)


def test_weights_belong_to_the_inner_optimizer():
    optimizer = mixed_precision.LossScaleOptimizer(SGD(0.5), initial_scale=16)
    v = tf.Variable(1.0)
    step(optimizer, v, 1.0)
    assert [int(w) for w in optimizer.get_weights()] == [1]
    optimizer.set_weights([np.array(5)])
    assert int(optimizer.iterations) == 5


def test_configuration_and_checkpoint(tmp_path):
    optimizer = mixed_precision.LossScaleOptimizer(SGD(0.5), initial_scale=16)
    config = tf.keras.optimizers.serialize(optimizer)
    again = tf.keras.optimizers.deserialize(config)
    assert again.get_config() == optimizer.get_config()
    assert copy.deepcopy(optimizer).get_config() == optimizer.get_config()
    v = tf.Variable(1.0)
    step(optimizer, v, np.inf)
    path = tf.train.Checkpoint(optimizer=optimizer, v=v).save(tmp_path / "ckpt")
    tf.train.Checkpoint(optimizer=again, v=v).restore(path)
    assert float(again.loss_scale) == 8 and int(again.skipped_steps) == 1
    assert int(again.iterations) == 1


@pytest.mark.parametrize("scaled_first", [True, False])
def test_checkpoints_fit_with_and_without_loss_scaling(tmp_path, scaled_first):
    def make(scaled):
        inner = SGD(0.5, momentum=0.5)
        inner.extra = tf.Variable(0.0)
        inner._track_trackable(inner.extra, "extra")
        wrapped = mixed_precision.LossScaleOptimizer(inner) if scaled else inner
        return wrapped, inner, tf.Variable(1.0)

    first, inner, v = make(scaled_first)
    first.minimize(lambda: 2.0 * v, [v])
    inner.extra.assign(3.0)
    path = tf.train.Checkpoint(optimizer=first, v=v).save(tmp_path / "ckpt")
    second, other, w = make(not scaled_first)
    tf.train.Checkpoint(optimizer=second, v=w).restore(path).assert_nontrivial_match()
    assert int(second.iterations) == 1 and float(other.extra) == 3.0
    second.minimize(lambda: 2.0 * w, [w])
    first.minimize(lambda: 2.0 * v, [v])
    assert float(w) == float(v)


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
def test_saved_with_the_model(tmp_path, suffix):
    mixed_precision.set_global_policy("mixed_float16")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile(mixed_precision.LossScaleOptimizer(SGD(), initial_scale=2.0**20), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=3, verbose=0)
    model.save(tmp_path / f"model{suffix}")
    again = tf.keras.models.load_model(tmp_path / f"model{suffix}")
    assert float(again.optimizer.loss_scale) == float(model.optimizer.loss_scale)
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations)
    assert again.layers[0].dtype_policy.name == "mixed_float16"


def test_bad_arguments():
    make = mixed_precision.LossScaleOptimizer
    with pytest.raises(TypeError, match="cannot wrap another LossScaleOptimizer"):
        make(make(SGD()))
    with pytest.raises(TypeError, match='"inner_optimizer" must be an instance'):
        make("sgd")
    wrapped = SGD()
    make(wrapped)
    with pytest.raises(ValueError, match="already wrapped by a LossScaleOptimizer"):
        make(wrapped)
    with pytest.raises(TypeError, match=r'"dynamic" argument .* must be a bool, but got: 3'):
        make(SGD(), dynamic=3)
    with pytest.raises(ValueError, match='"initial_scale" must be specified'):
        make(SGD(), dynamic=False)
    with pytest.raises(ValueError, match='"dynamic_growth_steps" must be None'):
        make(SGD(), dynamic=False, initial_scale=2, dynamic_growth_steps=3)


def test_forgotten_scaling_is_reported_once(caplog):
    optimizer = mixed_precision.LossScaleOptimizer(SGD())
    v = tf.Variable(1.0)
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant(1.0), v)])
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "You forgot to call LossScaleOptimizer.get_scaled_loss() and "
        "LossScaleOptimizer.get_unscaled_gradients() before"
    )


def test_names_of_tensorflow_2_1():
    old = mixed_precision.experimental
    old.set_policy("mixed_float16")
    policy = old.global_policy()
    assert policy.name == "mixed_float16" and float(policy.loss_scale()) == 2.0**15
    layer = tf.keras.layers.Dense(2)
    assert old.get_layer_policy(layer).compute_dtype == "float16"
    optimizer = old.LossScaleOptimizer(SGD(0.5), "dynamic")
    assert optimizer.dynamic and optimizer.initial_scale == 2.0**15
    assert not old.LossScaleOptimizer(SGD(), 8.0).dynamic
    config = {
        "optimizer": tf.keras.optimizers.serialize(SGD(0.5)),
        "loss_scale": {"class_name": "FixedLossScale", "config": {"loss_scale_value": 8.0}},
    }
    again = old.LossScaleOptimizer.from_config(config)
    assert float(again.loss_scale) == 8 and float(again.learning_rate) == 0.5
    config["loss_scale"] = {"class_name": "DynamicLossScale", "config": {"multiplier": 4.0}}
    with pytest.raises(ValueError, match=r"multiplier is not 2\. Got DynamicLossScale"):
        mixed_precision.LossScaleOptimizer.from_config(config)
    policy = old.Policy("mixed_float16", loss_scale=None)
    assert repr(policy) == '<PolicyV1 "mixed_float16", loss_scale=None>' and not policy.loss_scale


def test_loss_scales_of_tensorflow_2_1_that_do_not_fit_are_refused():
    old = mixed_precision.experimental
    scales = tf.mixed_precision.experimental
    with pytest.raises(ValueError, match=r"multiplier must be 2\. Got: DynamicLossScale"):
        old.LossScaleOptimizer(SGD(), scales.DynamicLossScale(multiplier=4))

    class Own(scales.LossScale):
        pass

    with pytest.raises(TypeError, match=r"not a FixedLossScale or a DynamicLossScale.*Own"):
        old.LossScaleOptimizer(SGD(), Own())
    assert scales.FixedLossScale(8.0).update([tf.constant(float("nan"))]) == (None, True)
