"""Test that `zip` and `enumerate` gathered by indices equal their execution by elements."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset
X = np.arange(60.0, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) * 7


def slices(array):
    return D.from_tensor_slices(array)


def elements(array):
    """Return the same dataset without gathering by indices."""
    return slices(array).filter(lambda *_: True)


def values(dataset):
    return [tf.nest.map_structure(lambda a: np.asarray(a).tolist(), e) for e in dataset]


PIPELINES = {
    "pair": lambda make: D.zip((make(X), make(Y))),
    "names": lambda make: D.zip({"b": make(X), "a": (make(Y), make({"z": Y, "c": X}))}),
    "unequal": lambda make: D.zip((make(X), make(Y[:7]))),
    "maps": lambda make: D.zip((make(X).map(lambda x: x / 3), make(Y).map(lambda y: -y))),
    "nested": lambda make: D.zip((D.zip((make(X), make(Y))), make(Y))),
    "numbers": lambda make: make(X).enumerate(start=5),
    "pairs of numbers": lambda make: D.zip((make(X), make(Y).enumerate())).enumerate(),
    "one taken": lambda make: D.zip((make(X).take(9), make(Y).skip(3))),
    "one repeated": lambda make: D.zip((make(X), make(Y[:2]).repeat())),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(name):
    found, wanted = (PIPELINES[name](make) for make in (slices, elements))
    assert found.element_spec == wanted.element_spec
    assert values(found) == values(wanted)
    assert values(found.batch(6)) == values(wanted.batch(6))
    assert values(found.repeat(2).batch(7)) == values(wanted.repeat(2).batch(7))
    assert values(found.shuffle(5, seed=3)) == values(wanted.shuffle(5, seed=3))


def test_gathered_combinations():
    explain = tf.data.experimental.explain
    pair = D.zip((slices(X), slices(Y)))
    assert explain(pair).startswith("Zip: by indices")
    assert "Map: vectorized" in explain(pair.shuffle(3).map(lambda x, y: (x * 2, y)).batch(2))
    assert explain(slices(X).enumerate()).startswith("Enumerate: by indices")
    for other in (
        D.zip((slices(X).shuffle(4), slices(Y))),
        D.zip((slices(X), slices(Y).repeat())),
        slices(X).shuffle(4).enumerate(),
    ):
        assert explain(other).splitlines()[0].split(":")[1].startswith(" many elements")


def test_shuffled_components_are_not_merged():
    x, y = slices(Y).shuffle(20, 1, False), slices(Y).shuffle(20, 2, False)
    pairs = values(D.zip((x, y)))
    assert [p[0] for p in pairs] == values(x) and [p[1] for p in pairs] == values(y)


def test_endless_numbers():
    counted = D.zip((tf.data.experimental.Counter(), slices(Y)))
    assert values(counted) == list(zip(range(20), Y.tolist(), strict=True))
    both = D.zip((tf.data.experimental.Counter(), tf.data.experimental.Counter(5)))
    assert values(both.take(2)) == [(0, 5), (1, 6)]


def test_texts_are_indexed_in_pipelines():
    lines = D.from_tensor_slices(["1,2.5", "3,4"])
    found = lines.map(lambda s: tf.strings.to_number(tf.strings.split(s, ",")[1]))
    assert values(found) == [2.5, 4.0]
    parts = lines.map(lambda s: tf.strings.split(s, ",")[::-1])
    assert values(parts) == [[b"2.5", b"1"], [b"4", b"3"]]
