"""Test that two runs are bitwise equal, in every policy and across processes."""

import hashlib
import os
import subprocess
import sys
import textwrap

import pytest

import forked
from helpers import rounds
from meshflow.core.runtime import determinism

# Without `make test-all` one policy of each kind of casts.
POLICIES = [
    *("float32", "mixed_bfloat16", "mixed_float8"),
    *rounds([], ["float64", "bfloat16", "mixed_float16"]),
]
PROGRAM = textwrap.dedent(
    """
    import contextlib, hashlib, sys
    import jax
    import numpy as np
    import meshflow as tf

    jax.config.update("jax_num_cpu_devices", 2)
    layers = tf.keras.layers
    policies = POLICIES

    def train(policy, scope):
        tf.keras.utils.set_random_seed(7)
        tf.keras.mixed_precision.set_global_policy(policy)
        with scope:
            model = tf.keras.Sequential(
                [
                    layers.Conv2D(16, 3, activation="relu", padding="same", input_shape=(12, 12, 3)),
                    layers.MaxPooling2D(),
                    layers.Flatten(),
                    layers.BatchNormalization(),
                    layers.Dropout(0.5),
                    layers.Dense(10),
                    layers.Activation("softmax", dtype="float32"),
                ]
            )
            model.compile("adam", "sparse_categorical_crossentropy")
        x = np.random.normal(size=(64, 12, 12, 3)).astype("float32")
        model.fit(x, np.random.randint(0, 10, 64), epochs=2, verbose=0)
        return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()

    # Other random numbers first, so that only the seed can make the runs equal.
    for _ in range(len(sys.argv)):
        np.random.normal(), tf.random.set_seed(1), tf.random.normal([2])
    for policy in policies:
        print(policy, train(policy, contextlib.nullcontext()))
    print("again", train(policies[0], contextlib.nullcontext()))
    print("mirrored", train(policies[0], tf.distribute.MirroredStrategy().scope()))
    """
).replace("POLICIES", repr(POLICIES))


def hashes(*arguments, **environment):
    """Return a hash of the trained weights by policy, from a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "MESHFLOW_EMULATE_FLOAT8": "1", **environment},
        check=True,
    )
    return dict(line.split() for line in done.stdout.splitlines())


def test_repeated_training_is_bitwise_equal():
    first, second = hashes(), hashes("another", TF_DETERMINISTIC_OPS="1")
    assert first == second
    assert first.pop("again") == first["float32"]
    assert all(len(h) == 2 * hashlib.sha256().digest_size for h in first.values())
    assert len(set(first.values())) == len(first) == len(POLICIES) + 1


@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_environment_turns_determinism_on(monkeypatch, value, on):
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    monkeypatch.setattr(determinism, "_state", {"enabled": False})
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", value)
    determinism.enable_from_environment()
    assert determinism.is_enabled() is on


def test_numbers_without_a_seed_are_refused():
    code = textwrap.dedent(
        """
        import meshflow as tf
        x = tf.ones([4, 2])
        draws = [
            lambda: tf.random.normal([2]),
            tf.function(lambda: tf.random.shuffle(x)),
            lambda: tf.nn.dropout(x, 0.5),
            lambda: tf.keras.layers.Dropout(0.5)(x, training=True),
            lambda: tf.keras.layers.Dense(2)(x),
            lambda: list(tf.data.Dataset.range(3).shuffle(3)),
            tf.random.Generator.from_non_deterministic_state,
            tf.random.get_global_generator,
        ]
        for draw in draws:
            try:
                draw()
                print("drawn")
            except RuntimeError as error:
                print(*[line for line in str(error).splitlines() if "require a seed" in line])
        tf.random.uniform([2], seed=1)
        tf.random.set_seed(1)
        for draw in draws[:-2]:
            draw()
        print("seeded")
        """
    )
    code, text = forked.run(code, after="import jax", TF_DETERMINISTIC_OPS="true")
    assert code == 0, text
    text = text.splitlines()
    assert len(text) == 9 and text[8] == "seeded"
    for line in text[:6]:
        assert line.startswith("Random ops require a seed to be set when determinism is enabled")
    for line in text[6:8]:
        assert line.startswith("Generators from a non-deterministic state require a seed")


def test_tensor_float_32_is_on_until_turned_off():
    import jax

    import meshflow as tf

    switch = tf.config.experimental
    assert switch.tensor_float_32_execution_enabled()
    switch.enable_tensor_float_32_execution(False)
    try:
        assert not switch.tensor_float_32_execution_enabled()
        x = jax.numpy.ones((2, 2), "float32")
        assert "HIGHEST" in jax.jit(lambda x: x @ x).lower(x).as_text()
    finally:
        switch.enable_tensor_float_32_execution(True)
    assert "HIGHEST" not in jax.jit(lambda x: x @ x @ x).lower(x).as_text()
