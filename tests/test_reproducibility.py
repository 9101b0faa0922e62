"""Two runs give the same bits, in every policy and across processes."""

import hashlib
import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import hashlib, sys
    import numpy as np
    import meshflow as tf

    tf.keras.utils.set_random_seed(7)
    if len(sys.argv) > 2:
        tf.config.experimental.enable_op_determinism()
    tf.keras.mixed_precision.set_global_policy(sys.argv[1])
    layers = tf.keras.layers
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
    x = np.random.normal(size=(96, 12, 12, 3)).astype("float32")
    model.fit(x, np.random.randint(0, 10, 96), epochs=2, verbose=0)
    print(hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
    """
)


def run(policy, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, policy, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    ).stdout


@pytest.mark.parametrize(
    "policy", ["float32", "float64", "mixed_bfloat16", "mixed_float16", "bfloat16"]
)
def test_training_twice_gives_the_same_bits(policy):
    first, second = run(policy), run(policy, "deterministic")
    assert len(first.strip()) == hashlib.sha256().digest_size * 2
    assert first == second


@pytest.mark.parametrize("value", ["1", "true"])
def test_numbers_without_a_seed_are_refused(value):
    code = textwrap.dedent(
        """
        import meshflow as tf
        for draw in (lambda: tf.random.normal([2]), tf.random.Generator.from_non_deterministic_state):
            try:
                draw()
            except RuntimeError as error:
                print(error)
        tf.random.uniform([2], seed=1)
        tf.random.set_seed(1)
        tf.random.normal([2])
        print("seeded")
        """
    )
    text = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_DETERMINISTIC_OPS": value},
        check=True,
    ).stdout.splitlines()
    assert text[0].startswith("Random ops require a seed to be set when determinism is enabled")
    assert text[1].startswith("Generators from a non-deterministic state require a seed")
    assert text[2] == "seeded"


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
