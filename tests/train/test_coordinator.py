"""Threads that end together."""

import threading

import pytest

import meshflow as tf


def start_thread(target):
    thread = threading.Thread(target=target, daemon=True, name="worker")
    thread.start()
    return thread


def test_stop_request_ends_threads():
    coordinator, ended = tf.train.Coordinator(), []

    def waits():
        coordinator.wait_for_stop()
        ended.append(coordinator.should_stop())

    coordinator.register_thread(start_thread(waits))
    coordinator.join([start_thread(waits), start_thread(coordinator.request_stop)])
    assert ended == [True, True] and coordinator.joined
    coordinator.request_stop()  # no effect after the end
    coordinator.clear_stop()
    assert not coordinator.should_stop() and not coordinator.joined
    assert not coordinator.wait_for_stop(0.001)


def test_join_ends_when_all_threads_have_ended():
    coordinator = tf.train.Coordinator()
    coordinator.join([start_thread(lambda: None)])
    assert coordinator.joined and coordinator.should_stop()


def test_the_first_error_is_raised():
    coordinator = tf.train.Coordinator()

    def fails():
        with coordinator.stop_on_exception():
            raise ValueError("the first")

    thread = start_thread(fails)
    coordinator.wait_for_stop()
    coordinator.request_stop(KeyError("the second"))
    with pytest.raises(ValueError, match="the first"):
        coordinator.join([thread])
    with pytest.raises(ValueError, match="the first"):
        coordinator.raise_requested_exception()
    with pytest.raises(KeyError, match="late"):
        coordinator.request_stop(KeyError("late"))


def test_the_end_of_data_is_no_error():
    coordinator = tf.train.Coordinator()
    error = tf.errors.OutOfRangeError(None, None, "end")
    coordinator.request_stop((type(error), error, None))
    coordinator.join()
    coordinator = tf.train.Coordinator(clean_stop_exception_types=(KeyError,))
    coordinator.request_stop(error)
    with pytest.raises(tf.errors.OutOfRangeError):
        coordinator.join()


def test_running_threads_are_named():
    coordinator, end = tf.train.Coordinator(), threading.Event()
    thread = start_thread(end.wait)
    coordinator.request_stop()
    with pytest.raises(RuntimeError, match="threads still running: worker"):
        coordinator.join([thread], stop_grace_period_secs=0.001)
    coordinator.join([thread], stop_grace_period_secs=0.001, ignore_live_threads=True)
    end.set()
