"""Datasets of tar files and of other libraries, the libraries themselves where they are installed."""

import gzip
import io
import tarfile

import numpy as np
import pytest

import meshflow as tf

E = tf.data.experimental


def tar(path, members, mode="w"):
    with tarfile.open(path, mode) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return str(path)


def members(first, last):
    for n in range(first, last):
        yield f"d/{n:03}.txt", f"text {n}".encode()
        yield f"d/{n:03}.cls", str(n % 3).encode()


def test_samples_of_tar_files(tmp_path):
    for n in range(3):
        tar(tmp_path / f"train-{n:02}.tar", members(2 * n, 2 * n + 2))
    data = E.from_webdataset(str(tmp_path / "train-{00..02}.tar"))
    assert set(data.element_spec) == {"__key__", "txt", "cls"}
    rows = [{k: v.numpy() for k, v in r.items()} for r in data]
    assert rows[3] == {"__key__": b"d/003", "txt": b"text 3", "cls": b"0"}
    assert len(rows) == 6
    pairs = E.from_webdataset(str(tmp_path / "*.tar"), keys=("doc;txt", "cls"))
    decoded = pairs.map(lambda t, c: (t, tf.strings.to_number(c, tf.int32))).batch(6)
    texts, labels = next(iter(decoded))
    assert texts.numpy().tolist() == [f"text {n}".encode() for n in range(6)]
    assert labels.numpy().tolist() == [0, 1, 2, 0, 1, 2]
    turns = E.from_webdataset([str(tmp_path / f"train-{n:02}.tar") for n in range(3)], "txt", 3)
    found = [t.numpy() for t in turns]
    assert found[:3] == [b"text 0", b"text 2", b"text 4"] and len(found) == 6
    words = E.from_webdataset(str(tmp_path / "train-{00,02}.tar"), {"t": "txt"})
    assert [r["t"].numpy() for r in words] == [f"text {n}".encode() for n in (0, 1, 4, 5)]


def test_names_of_members(tmp_path):
    path = tar(
        tmp_path / "a.tgz",
        [("./a/x.seg.PNG", b"1"), ("./a/x.json", b"2"), ("__meta__.json", b"3"), ("plain", b"4")],
        "w:gz",
    )
    (row,) = E.from_webdataset(path)
    assert {k: v.numpy() for k, v in row.items()} == {
        "__key__": b"./a/x",
        "seg.png": b"1",
        "json": b"2",
    }


def test_bad_tar_files(tmp_path):
    path = tar(tmp_path / "a.tar", [("x.txt", b"1"), ("x.cls", b"1"), ("y.txt", b"2")])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a\.tar: sample 'y' has no cls"):
        list(E.from_webdataset(path, ("txt", "cls")))
    twice = tar(tmp_path / "b.tar", [("x.txt", b"1"), ("x.txt", b"1")])
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than one 'txt'"):
        E.from_webdataset(twice)
    empty = tar(tmp_path / "c.tar", [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no samples"):
        E.from_webdataset(empty)
    assert list(E.from_webdataset(empty, "txt")) == []
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        E.from_webdataset(str(tmp_path / "nowhere-{0..1}.tar"))
    whole = (tmp_path / "a.tar").read_bytes()
    for name, content in (
        ("cut", whole[:512]),
        ("noise", b"no tar" * 200),
        ("squeezed", gzip.compress(np.random.default_rng(0).bytes(5000))[:3000]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(tf.errors.DataLossError, match=name):
            list(E.from_webdataset(str(tmp_path / name), "txt"))


class Stream:
    """Imitate an iterable dataset of Hugging Face."""

    column_names = ["text", "label"]

    def with_format(self, kind):
        assert kind == "numpy"
        return [{"text": f"t{n}", "label": np.int64(n)} for n in range(4)]


class Table(Stream):
    """Imitate a dataset of Hugging Face with a feature that it decodes."""

    class Image:
        def decode_example(self):
            pass

    features = {"image": Image(), "label": None}
    column_names = ["image", "label"]

    def __len__(self):
        return 4

    def with_format(self, kind):
        assert kind == "numpy"
        return [{"image": np.full((n + 1, 2), n, np.uint8), "label": n} for n in range(4)]


def test_objects_like_hugging_faces():
    streamed = E.from_huggingface(Stream(), "text", "label")
    assert [(t.numpy(), int(y)) for t, y in streamed] == [(b"t%d" % n, n) for n in range(4)]
    assert [sorted(r) for r in E.from_huggingface(Stream())] == [["label", "text"]] * 4
    with pytest.raises(ValueError, match="no column 'words'; columns: text, label"):
        E.from_huggingface(Stream(), "words")
    rows = E.from_huggingface(Table(), label_cols=["label"])
    assert len(rows) == 4
    assert [r["image"].shape[0] for r, _ in rows] == [1, 2, 3, 4]
    assert rows.element_spec[0]["image"].shape.as_list() == [None, None]
    with pytest.raises(TypeError, match="splits: choose one of 'train', 'test'"):
        E.from_huggingface({"train": Stream(), "test": Stream()})
    with pytest.raises(TypeError, match=r"meshflow-tf\[huggingface\]"):
        E.from_huggingface("emotion")


def test_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(
        {
            "text": [f"t{n}" for n in range(9)],
            "label": list(range(9)),
            "v": [[n, 1.5] for n in range(9)],
        },
        features=datasets.Features(
            text=datasets.Value("string"),
            label=datasets.ClassLabel(num_classes=9),
            v=datasets.Sequence(datasets.Value("float32"), length=2),
        ),
    )
    data = E.from_huggingface(made.select(range(8, -1, -1)), ["text", "v"], "label")
    assert "by indices" in E.explain(data)
    features, labels = next(iter(data.batch(4)))
    assert labels.numpy().tolist() == [8, 7, 6, 5]
    assert features["text"].numpy().tolist() == [b"t8", b"t7", b"t6", b"t5"]
    np.testing.assert_array_equal(features["v"], [[n, 1.5] for n in (8, 7, 6, 5)])
    assert sorted(int(y) for _, y in data.shuffle(9).repeat(2)) == sorted([*range(9)] * 2)
    uneven = datasets.Dataset.from_dict({"ids": [[1], [2, 3], [4, 5, 6]]})
    batch = next(iter(E.from_huggingface(uneven, "ids").padded_batch(3)))
    assert batch.numpy().tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]
    streamed = E.from_huggingface(made.to_iterable_dataset(), "label")
    assert [int(y) for y in streamed] == list(range(9))
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    images = datasets.Dataset.from_dict(
        {"image": [pixels]}, datasets.Features(image=datasets.Image())
    )
    np.testing.assert_array_equal(next(iter(E.from_huggingface(images, "image"))), pixels)
    with pytest.raises(TypeError, match="splits"):
        E.from_huggingface(datasets.DatasetDict(train=made))


class Source:
    """A source of elements by number."""

    def __len__(self):
        return 5

    def __getitem__(self, number):
        return {"x": np.full(3, number, np.float32), "y": number}


class Filtered(Source):
    """A source that has no element for some numbers."""

    def filter(self):
        pass

    def __getitem__(self, number):
        return None if number % 2 else number


def test_objects_like_grains():
    rows = E.from_grain(Source())
    assert len(rows) == 5
    assert next(iter(rows.batch(5)))["x"].numpy().tolist() == [[n] * 3 for n in range(5)]
    signature = {"x": tf.TensorSpec([3], tf.float32), "y": tf.TensorSpec([], tf.int32)}
    assert E.from_grain(Source(), signature).element_spec == signature
    even = E.from_grain(Filtered())
    assert int(even.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert [int(n) for n in even] == [0, 2, 4]
    again = E.from_grain({1: "a", 2: "b"}.keys())
    assert [int(n) for n in again] == [1, 2] == [int(n) for n in again]
    with pytest.raises(TypeError, match=r"meshflow-tf\[grain\]"):
        E.from_grain(iter([1, 2]))


def test_grain():
    grain = pytest.importorskip("grain")
    numbers = grain.MapDataset.range(10).map(lambda n: {"n": np.int32(n), "s": str(n)})
    rows = E.from_grain(numbers)
    assert [(int(r["n"]), r["s"].numpy()) for r in rows][9] == (9, b"9")
    even = grain.MapDataset.range(10).filter(lambda n: n % 2 == 0)
    assert [int(n) for n in E.from_grain(even)] == [0, 2, 4, 6, 8]
    endless = E.from_grain(grain.MapDataset.range(3).repeat())
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert [int(n) for n in endless.take(4)] == [0, 1, 2, 0]
    streamed = E.from_grain(numbers.to_iter_dataset().batch(5))
    assert [r["n"].numpy().tolist() for r in streamed] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
