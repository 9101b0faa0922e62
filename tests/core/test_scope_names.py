"""Test layer names in programs, and in the cache keys of compiled programs."""

import os

import jax
import jax.numpy as jnp
import pytest

import meshflow as tf
from meshflow.core.functions import executable_cache, scope_names
from meshflow.environment.jax_internals import cache_key
from meshflow.profiler.programs import parse_instructions


def program(name):
    def function(x):
        with jax.named_scope(name):
            return jax.lax.cond(x[0] > 0, lambda: jnp.sin(x), lambda: jnp.cos(x))

    return jax.make_jaxpr(function)(jnp.ones(3))


def key(closed):
    scope_names.announce_program(closed)
    return cache_key.custom_hook()


def test_programs_with_other_scope_names_are_separate():
    assert key(program("wide")) != key(program("narrow"))
    # These numbers occurred before, and select the same program.
    assert key(program("wide_3")) == key(program("wide_11")) == key(program("wide"))
    # The next key belongs to an unannounced program.
    assert cache_key.custom_hook() != key(program("wide"))


def test_programs_for_other_numbers_of_processors_are_separate():
    processors = os.sched_getaffinity(0)
    if len(processors) == 1:
        pytest.skip("This process may run on one processor only.")
    device, keys = jax.devices()[0], set()
    try:
        for chosen in (processors, {min(processors)}):
            os.sched_setaffinity(0, chosen)
            keys |= {cache_key.custom_hook(), executable_cache.make_key(b"program", device)}
    finally:
        os.sched_setaffinity(0, processors)
    assert len(keys) == 4


def test_layers_name_their_operations_forward_and_backward():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(4, activation="tanh", name="first"), tf.keras.layers.Dense(1)],
        name="net",
    )
    model.build([None, 3])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, model.trainable_variables)

    concrete = step.get_concrete_function(tf.TensorSpec([8, 3]))
    captured = [c._value for c in concrete.traced.captures]
    lowered = concrete.lower([jnp.ones([8, 3])], captured)
    table = parse_instructions(lowered.compile().as_text(), {"devices": 1})
    found = {(one["layer"], one["backward"]) for one in table.values()}
    assert {("net/first", False), ("net/first", True), ("net/dense", True)} <= {
        (name.rstrip("_0123456789"), back) for name, back in found
    }
