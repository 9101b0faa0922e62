"""Requests that wait are joined, and get their own rows and errors."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from meshflow.serving.batching import Batcher


def _answers(run, sizes, **settings):
    """Return the results of requests with these numbers of rows; the first call runs until all have
    arrived."""
    free, calls = threading.Event(), []

    def held(feed):
        calls.append(len(feed["x"]))
        assert free.wait(30)
        return run(feed)

    async def ask():
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(held, executor, **{"max_rows": 8, "wait": 0.0, **settings})
            tasks = []
            for i, n in enumerate(sizes):
                tasks.append(asyncio.create_task(batcher.submit({"x": np.full((n, 1), i)})))
                await asyncio.sleep(0)
                while not calls:
                    await asyncio.sleep(0.001)
            free.set()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            return found, calls, batcher

    return asyncio.run(ask())


def test_requests_during_a_call_form_one_batch():
    found, calls, batcher = _answers(lambda f: {"y": f["x"] * 10}, [1, 2, 1, 3])
    assert calls == [1, 8] and (batcher.calls, batcher.rows) == (2, 7)
    for i, (rows, count) in enumerate(zip(found, [1, 2, 1, 3], strict=True)):
        np.testing.assert_array_equal(rows["y"], np.full((count, 1), i * 10))


def test_batches_have_a_maximum_size():
    _, calls, _ = _answers(lambda f: f, [1, 3, 3, 3])
    assert calls == [1, 8, 4]


def test_larger_request_is_one_call():
    found, calls, batcher = _answers(lambda f: {"y": f["x"] * 10}, [1, 2, 19, 3, 1024])
    assert calls == [1, 8, 20, 1024] and batcher.rows == 1 + 5 + 19 + 1024
    for i, (rows, count) in enumerate(zip(found, [1, 2, 19, 3, 1024], strict=True)):
        np.testing.assert_array_equal(rows["y"], np.full((count, 1), i * 10))


def test_an_error_is_that_of_its_request():
    def run(feed):
        if (feed["x"] == 2).any():
            raise ValueError("broken")
        return feed

    found, calls, _ = _answers(run, [1, 2, 2, 3])
    assert calls == [1, 8, 2, 2, 3]
    assert isinstance(found[2], ValueError)
    for place in (0, 1, 3):
        assert (found[place]["x"] == place).all()


def test_results_without_rows_disable_batching():
    run = lambda feed: {"y": np.concatenate([feed["x"]] * 2)}
    found, _, _ = _answers(run, [1, 2, 3])
    for i, (rows, count) in enumerate(zip(found, [1, 2, 3], strict=True)):
        np.testing.assert_array_equal(rows["y"], np.full((2 * count, 1), i))


@pytest.mark.parametrize("count", [1, 2])
def test_call_waits_for_a_full_batch_if_configured(count):
    async def ask():
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(lambda f: f, executor, max_rows=2, wait=30.0 if count == 2 else 0.01)
            tasks = [batcher.submit({"x": np.zeros((1, 1))}) for _ in range(count)]
            await asyncio.gather(*tasks)
            return batcher.calls

    assert asyncio.run(ask()) == 1
