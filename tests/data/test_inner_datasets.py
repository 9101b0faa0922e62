"""`flat_map` and `interleave`: functions of inner datasets by templates, and slices by maps."""

import numpy as np
import pytest

import meshflow as tf
from meshflow.data.execution import function_templates

Dataset = tf.data.Dataset


def to_numpy(data):
    return [tf.nest.map_structure(np.asarray, element) for element in data]


@pytest.fixture
def templates(monkeypatch):
    """Record the templates that are created."""
    created = []
    create = function_templates._create_template
    monkeypatch.setattr(
        function_templates,
        "_create_template",
        lambda *args: created.append(create(*args)) or created[-1],
    )
    return created


def test_inner_maps_share_a_trace(templates):
    data = Dataset.range(30).flat_map(lambda n: Dataset.range(n % 7).map(lambda m: m * n))
    expected = [m * n for n in range(30) for m in range(n % 7)]
    assert [int(x) for x in data] == expected
    assert [int(x) for x in data.batch(8).unbatch()] == expected
    assert len(templates) == 1 and templates[0] is not None


def test_structures_defaults_and_filters(templates):
    def pairs(row, scale):
        kept = Dataset.range(4).filter(lambda j: j > row["a"])
        return kept.map(lambda j, scale=scale: {"j": j * scale, "b": row["b"]})

    rows = {"a": np.array([0, 2]), "b": np.float32([[1, 2], [3, 4]])}
    data = Dataset.from_tensor_slices((rows, np.array([10, 100]))).flat_map(pairs)
    found = to_numpy(data)
    assert [int(d["j"]) for d in found] == [10, 20, 30, 300]
    np.testing.assert_array_equal([d["b"] for d in found], [[1, 2]] * 3 + [[3, 4]])
    assert len(templates) == 2 and None not in templates


def test_functions_that_need_their_own_trace(templates):
    def choose(n):
        times = int(n) + 1  # This needs the value.
        return Dataset.range(2).map(lambda m: sum([m + n] * times))

    assert [int(x) for x in Dataset.range(3).flat_map(choose)] == [0, 1, 2, 4, 6, 9]

    def need_value(n):
        return Dataset.range(2).map(lambda m: m + n.numpy())

    assert [int(x) for x in Dataset.range(3).flat_map(need_value)] == [0, 1, 1, 2, 2, 3]
    assert None in templates


def test_random_maps_draw_their_own_numbers():
    data = Dataset.range(40).flat_map(
        lambda n: Dataset.range(2).map(
            lambda m: tf.random.uniform([], seed=1) + tf.cast(n, "float32")
        )
    )
    values = np.array([x.numpy() for x in data]) - np.repeat(np.arange(40), 2)
    assert np.all((values >= 0) & (values < 1)) and values[0] != values[1]


def test_interleaved_maps_of_strings():
    def read(word, count):
        return Dataset.range(2).map(lambda i: (tf.strings.join([word, "!"]), count + i))

    data = Dataset.from_tensor_slices((["a", "b", "c"], np.arange(3))).interleave(read, 2)
    assert [(w.numpy(), int(n)) for w, n in data] == [
        (b"a!", 0),
        (b"b!", 1),
        (b"a!", 1),
        (b"b!", 2),
        (b"c!", 2),
        (b"c!", 3),
    ]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: Dataset.from_tensor_slices(x), np.arange(12)),
        (
            lambda x, y: Dataset.from_tensor_slices(x[::-1] + y),
            [12, 11, 10, 9, 28, 27, 26, 25, 44, 43, 42, 41],
        ),
        (lambda x, y: Dataset.from_tensor_slices([y, 2 * y]), [9, 18, 21, 42, 33, 66]),
    ],
)
def test_slices_are_rows_of_a_map(function, expected):
    rows = np.arange(12).reshape(3, 4), np.array([9, 21, 33])
    data = Dataset.from_tensor_slices(rows).flat_map(function)
    assert data._slices is not None and data.element_spec == tf.TensorSpec([], tf.int64)
    assert [int(x) for x in data] == list(expected)
    assert [int(x) for batch in data.batch(5) for x in batch] == list(expected)


def test_slices_of_bytes():
    data = Dataset.from_tensor_slices(["abc", "", "de"]).flat_map(
        lambda s: Dataset.from_tensor_slices(tf.io.decode_raw(s, tf.uint8))
    )
    assert data._slices is not None
    assert bytes(int(x) for x in data) == b"abcde"


@pytest.mark.parametrize(
    "function",
    [
        lambda n: Dataset.from_tensor_slices(tf.range(2) + n).map(lambda x: x),
        lambda n: Dataset.zip(
            (Dataset.from_tensor_slices([n]), Dataset.from_tensor_slices([n]))
        ).map(lambda a, b: a),
        lambda n: Dataset.from_tensor_slices(tf.random.uniform([2]) + tf.cast(n, tf.float32)),
        lambda n: Dataset.from_tensor_slices([n]).repeat(2),
    ],
)
def test_other_functions_create_datasets(function):
    data = Dataset.range(3, output_type=tf.int32).flat_map(function)
    assert data._slices is None and len(list(data)) >= 3


def test_errors_of_slices():
    data = Dataset.range(3).flat_map(lambda n: Dataset.from_tensor_slices(n))
    with pytest.raises(ValueError, match="scalar"):
        next(iter(data))
    data = Dataset.range(2).flat_map(
        lambda n: Dataset.from_tensor_slices([tf.debugging.check_numerics(1 / n, "zero")])
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        next(iter(data))


def test_rows_of_batches_in_chunks():
    data = Dataset.from_tensor_slices({"a": np.arange(1200).reshape(300, 4)}).map(
        lambda d: {"a": d["a"] + 1}
    )
    np.testing.assert_array_equal([d["a"].numpy() for d in data.unbatch()], np.arange(1, 1201))


def test_slices_reserve_no_seed():
    def shuffle(function):
        tf.random.set_seed(4)
        data = Dataset.range(3).flat_map(function)
        assert data.element_spec.shape == []
        return [int(n) for n in Dataset.range(50).shuffle(50)]

    assert shuffle(lambda n: Dataset.from_tensor_slices([n])) == shuffle(Dataset.from_tensors)


def test_functions_without_tensors_share_a_trace(templates):
    def pairs(i):
        return Dataset.range(3).map(lambda j: (i, j)).filter(lambda i, j: (i + j) % 2 == 0)

    found = [(int(i), int(j)) for i, j in Dataset.range(20).flat_map(pairs)]
    assert found == [(i, j) for i in range(20) for j in range(3) if (i + j) % 2 == 0]
    assert len(templates) == 2 and None not in templates


def test_functions_that_read_tensors_of_other_objects(templates):
    class Scale:
        def by_attribute(self, n):
            self.n = n
            return Dataset.range(2).map(lambda m: (m + 1) * self.n)

        def by_list(self, n, seen=[]):
            seen.append(n)
            return Dataset.range(2).map(lambda m: (m + 1) * seen[-1])

    for function in (Scale().by_attribute, Scale().by_list):
        assert [int(x) for x in Dataset.range(3).flat_map(function)] == [0, 0, 1, 2, 2, 4]
    assert not templates


@pytest.mark.parametrize(
    "make",
    [
        lambda n: tf.data.Dataset.from_tensor_slices(tf.stack([n, n + 1])),
        lambda n: tf.data.Dataset.from_tensor_slices(tf.stack([n, n + 1])).map(lambda x: x * 2),
        lambda n: tf.data.Dataset.range(n),
    ],
)
def test_flat_map_traces_its_function_once(make):
    calls = []

    def count(n):
        calls.append(n)
        return make(n)

    data = tf.data.Dataset.range(3).flat_map(count)
    assert len(calls) == 1
    expected = [int(x) for n in range(3) for x in make(tf.constant(n, tf.int64))]
    assert [int(x) for x in data] == expected


def test_padded_batch_of_scalar_strings():
    data = tf.data.Dataset.from_tensor_slices(["a b", "c"])
    data = data.map(lambda s: (s, tf.strings.split(s))).padded_batch(2)
    (names, words), *rest = data
    assert names.numpy().tolist() == [b"a b", b"c"] and not rest
    assert words.numpy().tolist() == [[b"a", b"b"], [b"c", b""]]
