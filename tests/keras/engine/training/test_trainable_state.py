"""Layers that are frozen or unfrozen after `compile`, and optimizers that receive new variables."""

import itertools

import numpy as np
import pytest

import meshflow as tf
from helpers import combine

X = np.linspace(-1, 1, 8, dtype="float32").reshape(4, 2)
Y = X.sum(1, keepdims=True)


def make_net(value=0.1):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(2, activation="tanh", input_shape=(2,), name="body"),
            tf.keras.layers.Dense(1, name="head"),
        ]
    )
    model.set_weights([np.full(w.shape, value, "float32") for w in model.get_weights()])
    return model


def update(optimizer, model, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - Y) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


# The first element of each weight of two models after four alternating steps, in TensorFlow 2.21
# after `optimizer.build` for both models.
ALTERNATED = {
    "Adam": [0.284189, -0.057515, 0.282847, -0.057522, 0.352589, 0.047669, 0.351932, 0.049622],
    "SGD": [0.136009, 0.093677, 0.163026, 0.055977, 0.26263, 0.170984, 0.300035, 0.099411],
    "RMSprop": [0.696912, 0.099038, 0.709843, 0.085097, 0.721776, 0.147928, 0.788433, 0.077087],
    "Nadam": [0.303158, 0.002268, 0.306079, -0.007077, 0.395184, 0.018548, 0.403322, 0.034901],
}


@pytest.mark.parametrize(("name", "mode"), combine(ALTERNATED, ["eager", "function", "train_step"]))
def test_one_optimizer_trains_two_models(name, mode):
    models = make_net(0.1), make_net(0.2)
    optimizer = getattr(tf.keras.optimizers, name)(0.1)

    class Alternation(tf.keras.Model):
        def train_step(self, data):
            for model in models:
                update(self.optimizer, model, data)
            return {}

    if mode == "train_step":
        trainer = Alternation()
        trainer.compile(optimizer)
        trainer.fit(X, batch_size=4, epochs=2, shuffle=False, verbose=0)
    else:
        step = tf.function(update) if mode == "function" else update
        for model in models * 2:
            step(optimizer, model, tf.constant(X))
    first_elements = [w.numpy().ravel()[0] for m in models for w in m.weights]
    np.testing.assert_allclose(first_elements, ALTERNATED[name], rtol=1e-4, atol=1e-6)
    assert int(optimizer.iterations) == 4


def test_variable_lists_may_differ_between_traces():
    model, optimizer = make_net(), tf.keras.optimizers.Adam(0.1)

    @tf.function
    def step(x, head_only):
        update(optimizer, model.layers[1] if head_only else model, x)

    hidden = tf.constant(X)
    for head_only in (True, False, True):
        before = model.get_weights()
        step(hidden, head_only)
        changed = [bool((a != b).any()) for a, b in zip(before, model.get_weights(), strict=True)]
        assert changed == [not head_only] * 2 + [True] * 2


@pytest.mark.parametrize("strategy", [None, tf.distribute.MirroredStrategy])
def test_unfreezing_with_the_same_optimizer(strategy):
    with tf.distribute.get_strategy().scope() if strategy is None else strategy().scope():
        model = make_net()
        model.layers[0].trainable = False
        model.compile(tf.keras.optimizers.Adam(0.1), "mse")
    model.fit(X, Y, verbose=0)
    momentum = model.optimizer.get_slot(model.layers[1].kernel, "m").numpy()
    body = model.layers[0].kernel.numpy()
    model.layers[0].trainable = True
    model.compile(model.optimizer, "mse")
    np.testing.assert_array_equal(
        model.optimizer.get_slot(model.layers[1].kernel, "m").numpy(), momentum
    )
    model.fit(X, Y, verbose=0)
    assert (model.layers[0].kernel.numpy() != body).all()
    assert int(model.optimizer.iterations) == 2


@pytest.mark.parametrize("by", ["attribute", "callback"])
@pytest.mark.parametrize("trainable", [True, False])
def test_change_without_compile(by, trainable, caplog):
    model = make_net()
    body = model.layers[0]
    body.trainable = not trainable
    model.compile("adam", "mse")
    kernels = []

    class Change(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            kernels.append(body.kernel.numpy())
            if by == "callback" and epoch == 1:
                body.trainable = trainable

    if by == "attribute":
        model.fit(X, Y, verbose=0, callbacks=[Change()])
        body.trainable = trainable
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[Change()])
    kernels.append(body.kernel.numpy())
    changed = [bool((a != b).any()) for a, b in itertools.pairwise(kernels)]
    assert changed == [not trainable] + [trainable] * (len(changed) - 1)
    assert ("now trains body" if trainable else "no longer trains body") in caplog.text
    assert len(caplog.records) == 1


def test_gan_trains_the_layers_of_its_compilation(caplog):
    # As in tf-keras: the discriminator trains separately although it is frozen in the combined
    # model.
    discriminator = make_net()
    discriminator.compile("adam", "mse")
    discriminator.trainable = False
    inputs = tf.keras.Input((2,))
    generator = tf.keras.layers.Dense(2)
    combined = tf.keras.Model(inputs, discriminator(generator(inputs)))
    combined.compile("adam", "mse")
    for _ in range(2):
        before = discriminator.layers[0].kernel.numpy(), generator.kernel.numpy()
        discriminator.train_on_batch(X, Y)
        between = discriminator.layers[0].kernel.numpy()
        combined.train_on_batch(X, Y)
        assert (before[0] != between).any()
        np.testing.assert_array_equal(discriminator.layers[0].kernel.numpy(), between)
        assert (before[1] != generator.kernel.numpy()).any()
    assert not discriminator.trainable
    assert not caplog.records


@pytest.mark.parametrize(
    ("ending", "optimizer"),
    combine([".keras", ".h5", ""], [tf.keras.optimizers.Adam, tf.keras.optimizers.legacy.Adam]),
)
def test_files_hold_the_state_of_unfrozen_and_frozen_layers(tmp_path, ending, optimizer):
    model = make_net(0.3)
    for trainable in (False, True, False):
        model.layers[0].trainable = trainable
        model.compile(optimizer(0.1) if model.optimizer is None else model.optimizer, "mse")
        model.fit(X, Y, epochs=2, verbose=0)
        model.save(f"{tmp_path}/model{ending}")
        loaded = tf.keras.models.load_model(f"{tmp_path}/model{ending}")
        copied = tf.keras.models.load_model(f"{tmp_path}/model{ending}")
        for other in (loaded, copied):
            other.layers[0].trainable = True
            other.compile(other.optimizer, "mse")
        # Another model that shares the optimizer has no part in the file.
        update(copied.optimizer, make_net(), X)
        copied.optimizer.iterations.assign_sub(1)
        copied.save(f"{tmp_path}/copy{ending}")
        copied = tf.keras.models.load_model(f"{tmp_path}/copy{ending}")
        for other in (loaded, copied):
            other.fit(X, Y, verbose=0)
        for a, b in zip(loaded.get_weights(), copied.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        model.fit(X, Y, verbose=0)
        head = slice(2, 4)
        if not trainable:
            for a, b in zip(model.get_weights()[head], loaded.get_weights()[head], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


def test_checkpoint_restores_slots_of_later_variables(tmp_path):
    def make():
        models = make_net(0.1), make_net(0.2)
        optimizer = tf.keras.optimizers.Adam(0.1)
        return models, optimizer, tf.train.Checkpoint(models=models, optimizer=optimizer)

    models, optimizer, checkpoint = make()
    for model in models:
        update(optimizer, model, X)
    path = checkpoint.save(f"{tmp_path}/checkpoint")
    restored_models, restored_optimizer, restored = make()
    status = restored.restore(path)
    for first, second in zip(models, restored_models, strict=True):
        update(optimizer, first, X)
        update(restored_optimizer, second, X)
    status.assert_consumed()
    for first, second in zip(models, restored_models, strict=True):
        for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("is_frozen_first", [True, False])
def test_checkpoint_identifies_slots_by_name(tmp_path, is_frozen_first):
    # The optimizer trained the head first, so its lists have another order than in a new process.
    model, optimizer = make_net(0.3), tf.keras.optimizers.Adam(0.1)
    for trainable in (not is_frozen_first, True):
        model.layers[0].trainable = trainable
        update(optimizer, model, X)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(f"{tmp_path}/checkpoint")
    restored, restored_optimizer = make_net(0.0), tf.keras.optimizers.Adam(0.1)
    status = tf.train.Checkpoint(model=restored, optimizer=restored_optimizer).restore(path)
    for net, trainer in ((model, optimizer), (restored, restored_optimizer)):
        update(trainer, net, X)
    status.assert_consumed()
    for a, b in zip(model.get_weights(), restored.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
