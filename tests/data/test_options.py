"""Test `tf.data.Options`: valid settings, and the combination of the settings of several datasets."""

import pytest

import meshflow as tf

D = tf.data.Dataset


def test_older_names():
    options = tf.data.Options()
    options.experimental_deterministic = False
    options.experimental_threading.private_threadpool_size = 3
    assert options.deterministic is False
    assert options.threading.private_threadpool_size == 3


def test_values_have_types():
    options = tf.data.Options()
    with pytest.raises(TypeError, match="deterministic"):
        options.deterministic = "yes"
    with pytest.raises(TypeError, match="cpu_budget"):
        options.autotune.cpu_budget = 1.5
    with pytest.raises(AttributeError, match="speed"):
        options.speed = 1


def test_groups_are_merged():
    first, second = tf.data.Options(), tf.data.Options()
    first.threading.private_threadpool_size = 3
    second.threading.max_intra_op_parallelism = 4
    found = D.range(1).with_options(first).with_options(second).options()
    assert found.threading.private_threadpool_size == 3
    assert found.threading.max_intra_op_parallelism == 4
    assert D.range(1).options() == tf.data.Options() != found


def test_options_of_a_dataset_are_preserved():
    found = D.range(1).with_options(tf.data.Options()).options()
    with pytest.raises(ValueError, match="with_options"):
        found.deterministic = True
    with pytest.raises(ValueError, match="with_options"):
        found.threading.private_threadpool_size = 2
