"""Datasets saved to a folder."""

import uuid
from collections import Counter

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset


def convert_to_lists(element):
    return tf.nest.map_structure(lambda t: np.asarray(t).tolist(), element)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_all_kinds_of_elements(tmp_path, compression):
    def rows():
        for n in range(5):
            yield {"v": np.arange(n, dtype=np.float16), "w": ([b"a" * n, b""], n % 2 == 0)}

    spec = {
        "v": tf.TensorSpec([None], tf.float16),
        "w": (tf.TensorSpec([2], tf.string), tf.TensorSpec([], tf.bool)),
    }
    data = D.from_generator(rows, output_signature=spec)
    data.save(str(tmp_path / "d"), compression)
    loaded = D.load(str(tmp_path / "d"), compression=compression)
    assert loaded.element_spec == spec and len(loaded) == 5
    for _ in range(2):
        assert [convert_to_lists(e) for e in loaded] == [convert_to_lists(e) for e in data]
    bf16 = D.from_tensors(tf.constant([1, 2], tf.bfloat16))
    tf.data.experimental.save(bf16, str(tmp_path / "d"))
    (again,) = tf.data.experimental.load(str(tmp_path / "d"))
    assert again.dtype == tf.bfloat16 and convert_to_lists(again) == [1, 2]


def test_shards_and_readers(tmp_path):
    D.range(10).save(str(tmp_path), shard_func=lambda x: x % 3)
    assert len(list(tmp_path.glob("run-*/shard-*"))) == 3
    assert Counter(int(x) for x in D.load(str(tmp_path))) == Counter(range(10))
    one_by_one = D.load(str(tmp_path), reader_func=lambda files: files.flat_map(lambda d: d))
    assert [int(x) for x in one_by_one] == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    with pytest.raises(TypeError, match="reader_func"):
        D.load(str(tmp_path), reader_func=lambda files: 3)


def test_bad_input(tmp_path):
    with pytest.raises(tf.errors.NotFoundError, match="nothing"):
        D.load(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="infinite"):
        D.range(3).repeat().save(str(tmp_path))
    with pytest.raises(ValueError, match="compression"):
        D.range(3).save(str(tmp_path), compression="LZ4")
    with pytest.raises(ValueError, match="must be tensors"):
        D.range(3).window(2).save(str(tmp_path))
    D.range(0).save(str(tmp_path))
    assert list(D.load(str(tmp_path))) == []
    D.range(3).save(str(tmp_path))
    with pytest.raises(ValueError, match="compression"):
        D.load(str(tmp_path), compression="GZIP")
    with pytest.raises(TypeError, match="int64 and float32"):
        D.load(str(tmp_path), tf.TensorSpec([], tf.float32))
    (shard,) = tmp_path.glob("run-*/shard-*")
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(tf.errors.DataLossError, match="shard-00000 is damaged: its end"):
        list(D.load(str(tmp_path)))


def test_saving_over_the_source_and_beside_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    D.range(3).save(str(tmp_path))
    D.load(str(tmp_path)).map(lambda x: x + 10).save(str(tmp_path))
    assert [int(x) for x in D.load(str(tmp_path))] == [10, 11, 12]
    kept = sorted(p.name.split("-")[0] for p in tmp_path.iterdir())
    assert kept == ["notes.txt", "run", "spec.json"]

    def broken(x):
        tf.debugging.assert_less(x, 11)
        return x

    with pytest.raises(tf.errors.InvalidArgumentError):
        D.load(str(tmp_path)).map(broken).save(str(tmp_path))
    assert [int(x) for x in D.load(str(tmp_path))] == [10, 11, 12]
    assert len(list(tmp_path.iterdir())) == 3


def test_stores():
    place = f"memory://{uuid.uuid4().hex}/d"
    D.range(5).save(place, "GZIP", shard_func=lambda x: x % 2)
    D.range(4).save(place, "GZIP", shard_func=lambda x: x % 2)
    assert sorted(int(x) for x in D.load(place, compression="GZIP")) == [0, 1, 2, 3]
    kept = D.range(3).cache(place + "-cache").map(lambda x: x + 1)
    assert [int(x) for x in kept] == [int(x) for x in kept] == [1, 2, 3]
    assert tf.io.gfile.exists(place + "-cache.meshflow")
    shots = D.range(3).snapshot(place + "-shots")
    assert [int(x) for x in shots] == [int(x) for x in shots] == [0, 1, 2]


def test_ragged_elements(tmp_path):
    rows = tf.ragged.constant([[["x"], []], [[]], [["y", "zz"]]])
    data = D.from_tensor_slices({"a": tf.ragged.constant([[1, 2], [], [3]]), "s": rows})
    data.save(str(tmp_path))
    loaded = D.load(str(tmp_path))
    assert loaded.element_spec == data.element_spec
    (batch,) = loaded.batch(3)
    assert (batch["a"].to_list(), batch["s"].to_list()) == ([[1, 2], [], [3]], rows.to_list())
