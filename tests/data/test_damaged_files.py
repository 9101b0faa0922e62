"""Test truncated, corrupt and malicious files of elements, and files of killed writers."""

import gzip
import os
import pickle
import textwrap

import numpy as np
import pytest

import meshflow as tf
from killing import Nursery, check_kills
from meshflow.data.storage.element_files import ElementWriter, read_elements

D = tf.data.Dataset


class Planted:
    """Run a command when it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.system, (f"touch {self._path}",)


def elements():
    for n in range(4):
        yield {"v": np.arange(n, dtype=np.float32), "s": b"word" * n}


SPEC = {"v": tf.TensorSpec([None], tf.float32), "s": tf.TensorSpec([], tf.string)}


def dataset():
    return D.from_generator(elements, output_signature=SPEC)


def write_cache(folder):
    """Return the file of a cache, and its reader."""
    list(dataset().cache(str(folder / "c")))
    (file,) = folder.glob("c*")
    return file, lambda: list(dataset().cache(str(folder / "c")))


def saved(folder):
    dataset().save(str(folder))
    (file,) = folder.glob("run-*/shard-*")
    return file, lambda: list(D.load(str(folder)))


def save_compressed_dataset(folder):
    dataset().save(str(folder), "GZIP")
    (file,) = folder.glob("run-*/shard-*")
    return file, lambda: list(D.load(str(folder), compression="GZIP"))


def shot(folder):
    data = dataset().snapshot(folder, None, shard_func=lambda _: tf.constant(0, tf.int64))
    list(data)
    (file,) = folder.glob("*/run-*/shard-*")
    return file, lambda: list(data)


KINDS = {
    "cache": write_cache,
    "saved": saved,
    "compressed": save_compressed_dataset,
    "snapshot": shot,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_and_changed_byte_is_detected(kind, tmp_path):
    file, read = KINDS[kind](tmp_path)
    whole = file.read_bytes()
    assert len(read()) == 4
    generator = np.random.default_rng(0)
    for cut in {0, 1, 8, len(whole) - 1, *generator.integers(2, len(whole), 12).tolist()}:
        file.write_bytes(whole[:cut])
        with pytest.raises(tf.errors.DataLossError, match=file.name):
            read()
    # gzip's metadata (time, system, level) is not data.
    first = 10 if kind == "compressed" else 0
    for place in generator.integers(first, len(whole), 40).tolist():
        changed = bytearray(whole)
        changed[place] ^= 1 << int(generator.integers(8))
        file.write_bytes(changed)
        with pytest.raises(tf.errors.DataLossError, match=file.name):
            read()
    file.write_bytes(whole)
    assert len(read()) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_pickle_is_never_loaded(kind, tmp_path):
    file, read = KINDS[kind](tmp_path)
    planted = pickle.dumps(Planted(tmp_path / "pwned"))
    file.write_bytes(gzip.compress(planted) if kind == "compressed" else planted)
    with pytest.raises(tf.errors.DataLossError, match=file.name):
        read()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("num_parts", [0, 1, 3])
def test_elements_that_do_not_match_their_spec_are_detected(num_parts, tmp_path):
    spec, file = tf.RaggedTensorSpec([None, None], tf.int64, ragged_rank=1), tmp_path / "elements"
    with file.open("wb") as opened:
        writer = ElementWriter(opened, spec)
        writer.write([np.array([0, 2])] * num_parts)
        writer.write_end()
    with pytest.raises(tf.errors.DataLossError, match=file.name):
        list(read_elements(str(file), spec))


@pytest.mark.parametrize("kind", ["saved", "snapshot"])
def test_damaged_description_is_detected(kind, tmp_path):
    _, read = KINDS[kind](tmp_path)
    (file,) = [*tmp_path.glob("spec.json"), *tmp_path.glob("*/snapshot.metadata")]
    whole = file.read_text()
    for text in ("", "{}", whole[:-2], whole.replace('"0": 4', '"0": 3'), "[1]", '"x"'):
        file.write_text(text)
        with pytest.raises(tf.errors.DataLossError, match=file.name):
            read()
    file.write_text(whole)
    assert len(read()) == 4


def test_a_file_of_other_elements_is_refused(tmp_path):
    list(dataset().cache(str(tmp_path / "c")))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"c.meshflow holds elements"):
        list(D.range(3).cache(str(tmp_path / "c")))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be tensors"):
        list(D.range(3).window(2).cache(str(tmp_path / "w")))


def test_sizes_in_a_file_allocate_no_memory(tmp_path):
    file, read = write_cache(tmp_path)
    whole = file.read_bytes()
    start = whole.index(b"[[")
    header = whole[start : whole.index(b"]]]") + 3] if b"]]]" in whole else b""
    assert header
    file.write_bytes(whole[: start - 8] + (2**32 - 2).to_bytes(4, "little") + whole[start - 4 :])
    with pytest.raises(tf.errors.DataLossError, match="ends early"):
        read()


def test_a_full_disk_names_the_file(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    (tmp_path / "full").symlink_to("/dev/full")
    with (
        pytest.raises(tf.errors.ResourceExhaustedError, match="full"),
        tf.io.gfile.GFile(str(tmp_path / "full"), "wb") as file,
    ):
        file.write(b"x" * 100_000)


# Each process first writes elsewhere, so that imports do not count as steps at which it is killed.
WRITERS = {
    "saved": """
        def write(path, number):
            data = tf.data.Dataset.from_tensors(np.full(1000, number)).repeat(3)
            with tempfile.TemporaryDirectory() as other:
                data.save(other)
            begin()
            data.save(path)
        """,
    "records": """
        def save(path, number):
            with tf.io.TFRecordWriter(path) as writer:
                for _ in range(3):
                    writer.write(str(number).encode())

        def write(path, number):
            with tempfile.TemporaryDirectory() as other:
                save(other + "/records", number)
            begin()
            save(path, number)
        """,
    "log": """
        from meshflow.keras.callbacks import CSVLogger

        def save(path, number):
            log = CSVLogger(path)
            log.on_train_begin()
            log.on_epoch_end(number, {"loss": number})

        def write(path, number):
            with tempfile.TemporaryDirectory() as other:
                save(other + "/log", number)
            begin()
            save(path, number)
        """,
}
WRITERS = {kind: "import tempfile\n" + textwrap.dedent(source) for kind, source in WRITERS.items()}


def read_saved_number(path):
    found = [int(v) for row in D.load(path) for v in row.numpy()]
    assert len(found) == 3000
    return get_common_value(found)


def read_recorded_number(path):
    found = [int(r.numpy()) for r in tf.data.TFRecordDataset(path)]
    assert len(found) == 3
    return get_common_value(found)


def read_logged_number(path):
    with open(path) as file:
        header, row = file.read().split()
    assert header == "epoch,loss,val_loss"
    *numbers, validation = row.split(",")
    assert validation == "NA"
    return get_common_value(map(int, numbers))


def get_common_value(numbers):
    (number,) = set(numbers)
    return number


READERS = {"saved": read_saved_number, "records": read_recorded_number, "log": read_logged_number}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_killed_writer_leaves_the_old_or_the_new(kind, tmp_path):
    check_kills(WRITERS[kind], tmp_path, READERS[kind])


def test_interrupted_cache_is_complete_or_rebuilt(tmp_path):
    nursery = Nursery(
        """
        import tempfile

        def write(path, number):
            data = tf.data.Dataset.from_tensors(np.full(1000, number)).repeat(3)
            with tempfile.TemporaryDirectory() as other:
                list(data.cache(other + "/c"))
            begin()
            if os.path.exists(path + ".meshflow"):
                os.remove(path + ".meshflow")
            assert len(list(data.cache(path))) == 3
        """
    )

    def read():
        data = D.from_tensors(np.full(1000, -1)).repeat(3).cache(str(tmp_path / "c"))
        rows = [row.numpy() for row in data]
        assert len(rows) == 3
        return get_common_value(int(v) for row in rows for v in row)

    try:
        steps = nursery.whole(str(tmp_path / "c"), 1)
        assert read() == 1
        for step in range(1, steps + 1):
            assert nursery.killed_at(str(tmp_path / "c"), step, step)
            assert read() in (step - 1, step, -1)
        assert os.listdir(tmp_path) == ["c.meshflow"]
    finally:
        nursery.close()


def test_files_without_chunks_are_read(tmp_path):
    """Test that a cache of an earlier version, with one element in each part, is used."""
    data = tf.data.Dataset.range(5).map(lambda n: (n, tf.cast(n, tf.float32)))
    with (tmp_path / "old.meshflow").open("wb") as file:
        writer = ElementWriter(file, data.element_spec)
        for n in range(5):
            writer.write((np.int64(n + 10), np.float32(n)))
        writer.write_end()
    path = tmp_path / "old.meshflow"
    path.write_bytes(path.read_bytes().replace(b"MFELEMC", b"MFELEM2"))
    cached = data.cache(str(tmp_path / "old")).batch(3)
    assert [n.numpy().tolist() for n, _ in cached] == [[10, 11, 12], [13, 14]]


def test_chunks_of_caches_are_complete(tmp_path):
    data = tf.data.Dataset.range(600).map(lambda n: {"a": n, "b": tf.fill([3], n)})
    cached = data.cache(str(tmp_path / "cache"))
    next(iter(cached.batch(10)))
    assert not list(tmp_path.glob("*.meshflow"))
    for _ in range(2):
        found = [d["b"].numpy() for d in cached]
        np.testing.assert_array_equal(found, np.repeat(np.arange(600), 3).reshape(600, 3))
    assert len(list(tmp_path.glob("*.meshflow"))) == 1
