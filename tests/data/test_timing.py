"""Test the time of each part of a pipeline, and its memory."""

import re
import time

import numpy as np

import forked
import meshflow as tf

D, explain = tf.data.Dataset, tf.data.experimental.explain


def spent(dataset):
    """Elements and seconds of every transformation, by name."""
    pattern = re.compile(r"(\w+): .*?; ([\d,]+) elements, (?:waited )?([\d.]+) s")
    found = (pattern.match(line.strip()) for line in explain(dataset).splitlines())
    return {m[1]: (int(m[2].replace(",", "")), float(m[3])) for m in found if m}


def test_no_time_is_recorded_before_a_pass():
    data = D.range(9).map(lambda x: x.numpy()).filter(lambda x: x > 3).batch(2)
    assert data.element_spec.dtype == tf.int64
    assert spent(data) == {} and " s" not in explain(data).splitlines()[0]


def test_slow_transformation_is_identified():
    def slow(x):
        time.sleep(0.02)
        return x.numpy() * 2

    data = D.range(10).map(slow).filter(lambda x: x % 4 == 0).batch(2)
    list(data)
    found = spent(data)
    assert {k: v[0] for k, v in found.items()} == {"Range": 10, "Map": 10, "Filter": 5, "Batch": 3}
    assert found["Map"][1] >= 0.2
    assert max(found[k][1] for k in ("Range", "Batch")) < 0.1
    list(data.take(1))
    assert spent(data)["Filter"][0] > 5


def test_complete_batches_are_counted_by_rows():
    data = D.from_tensor_slices(np.ones((100, 3), np.float32)).map(lambda x: x * 2).shuffle(50)
    batches = data.batch(8).prefetch(2)
    for _ in range(2):
        list(batches)
    found = spent(batches)
    assert found["TensorSlices"][0] == found["Map"][0] == found["Shuffle"][0] == 200
    assert found["Batch"][0] == found["Prefetch"][0] == 26
    assert "waited" in explain(batches).splitlines()[0]
    singles = D.range(7).map(lambda x: x + 1)
    list(singles)
    assert spent(singles)["Map"][0] == 7


def test_in_fit():
    data = D.from_tensor_slices((np.ones((20, 2), "f4"), np.ones((20, 1), "f4"))).batch(5)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, epochs=2, verbose=0)
    assert spent(data)["Batch"][0] == 8


MEMORY = """
import sys
import numpy as np
import meshflow as tf
from meshflow.data import sources

def resident():
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmRSS"].split()[0]) >> 10

sources._MAX_MAPPED_BYTES = 1 << 21
array = np.load(sys.argv[1], mmap_mode="r")
data = tf.data.Dataset.from_tensor_slices(array).shuffle(2000)
before, total = None, 0
for number, batch in enumerate(data.batch(64).prefetch(2)):
    total += len(batch)
    if number == 50:
        before = resident()
print(total, resident() - before, array.nbytes >> 20)
"""


def test_mapped_array_does_not_become_resident(tmp_path):
    path = tmp_path / "a.npy"
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (40_000, 8192))
    array[::500] = 1
    array.flush()
    del array
    code, text = forked.run(MEMORY, path)
    assert code == 0, text
    total, grown, size = map(int, text.split())
    assert total == 40_000
    assert size > 300 and grown < 150


def test_changes_of_a_private_mapping_are_preserved(tmp_path, monkeypatch):
    monkeypatch.setattr("meshflow.data.sources._MAX_MAPPED_BYTES", 1)
    np.save(tmp_path / "a.npy", np.zeros((50, 3)))
    array = np.load(tmp_path / "a.npy", mmap_mode="c")
    array += 1
    rows = D.from_tensor_slices(array).batch(10)
    assert [float(tf.reduce_sum(r)) for r in rows] == [30.0] * 5
    assert float(array.sum()) == 150


def test_quick_functions_in_threads_are_handed_over_in_groups():
    threads = []

    def fn(x):
        threads.append(x)
        if x % 50 == 7:
            raise ValueError(f"bad {x}")
        return x * 2

    from meshflow.data import epoch

    results = epoch.map_in_threads(fn, iter(range(300)), 2)
    found = []
    while True:
        try:
            found.append(next(results))
        except ValueError as error:
            found.append(str(error))
        except StopIteration:
            break
    assert found == [f"bad {x}" if x % 50 == 7 else 2 * x for x in range(300)]
    started = len(threads)
    several = epoch.map_in_threads(fn, iter(range(100_000)), 2)
    next(several)
    several.close()
    # No more is computed ahead than a few groups.
    assert len(threads) - started <= 6 * epoch._MAX_GROUP_SIZE
