"""`tf.keras.datasets` on small files in the cache, as no test may need a network."""

import hashlib
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

datasets = tf.keras.datasets


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "datasets").mkdir()
    return tmp_path / "datasets"


def _sum(path, algorithm="sha256"):
    return hashlib.new(algorithm, path.read_bytes()).hexdigest()


def _lists(*lists):
    found = np.empty(len(lists), object)
    found[:] = lists
    return found


@pytest.fixture
def reviews(cache, monkeypatch):
    path = cache / "imdb.npz"
    train = _lists([1, 5, 9], [2, 2], [7])
    np.savez(path, x_train=train, y_train=np.array([1, 0, 1]), x_test=train, y_test=[0, 1, 0])
    monkeypatch.setattr(datasets.imdb, "SHA256", _sum(path))


def test_reviews(reviews):
    (x, y), (x_test, y_test) = datasets.imdb.load_data()
    assert sorted(map(tuple, x)) == [(1, 4, 8, 12), (1, 5, 5), (1, 10)]
    label = {(1, 4, 8, 12): 1, (1, 5, 5): 0, (1, 10): 1}
    assert [label[tuple(t)] for t in x] == y.tolist()
    assert [1 - label[tuple(t)] for t in x_test] == y_test.tolist()


def test_words_of_reviews_are_limited(reviews):
    (x, _), (x_test, _) = datasets.imdb.load_data(num_words=9, skip_top=5, maxlen=4)
    assert sorted(map(tuple, x)) == sorted(map(tuple, x_test)) == [(2, 2), (2, 5, 5)]
    (x, _), _ = datasets.imdb.load_data(num_words=9, oov_char=None, start_char=None, index_from=0)
    assert sorted(map(tuple, x)) == [(1, 5), (2, 2), (7,)]
    with pytest.raises(ValueError, match="no sequence was kept"):
        datasets.imdb.load_data(maxlen=1)


def test_news(cache, monkeypatch):
    path = cache / "reuters.npz"
    np.savez(path, x=_lists(*([i] for i in range(10))), y=np.arange(10))
    monkeypatch.setattr(datasets.reuters, "SHA256", _sum(path))
    (x, y), (x_test, y_test) = datasets.reuters.load_data(test_split=0.3)
    assert (len(x), len(x_test)) == (7, 3)
    assert [t[1] - 3 for t in [*x, *x_test]] == [*y, *y_test] != sorted([*y, *y_test])


@pytest.mark.parametrize("name", ["imdb", "reuters"])
def test_words(cache, monkeypatch, name):
    path = cache / f"{name}_word_index.json"
    path.write_text(json.dumps({"the": 1}))
    module = getattr(datasets, name)
    monkeypatch.setattr(module, "WORD_INDEX_MD5", _sum(path, "md5"))
    assert module.get_word_index() == {"the": 1}


def test_houses(cache, monkeypatch):
    path = cache / "boston_housing.npz"
    np.savez(path, x=np.arange(20.0).reshape(10, 2), y=np.arange(10.0))
    monkeypatch.setattr(datasets.boston_housing, "SHA256", _sum(path))
    (x, y), (x_test, _) = datasets.boston_housing.load_data()
    assert x.shape == (8, 2) and x_test.shape == (2, 2)
    assert np.array_equal(x[:, 0], 2 * y)
    with pytest.raises(ValueError, match="test_split"):
        datasets.boston_housing.load_data(test_split=1.0)


def test_photographs(cache, monkeypatch):
    path = cache / "cifar-100-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for part in ("train", "test"):
            content = {b"data": np.zeros((2, 3072), "u1"), b"fine_labels": [3, 4]}
            data = pickle.dumps({**content, b"coarse_labels": [0, 1]})
            info = tarfile.TarInfo(f"cifar-100-python/{part}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    monkeypatch.setattr(datasets.cifar100, "SHA256", _sum(path))
    (x, y), _ = datasets.cifar100.load_data()
    assert x.shape == (2, 32, 32, 3) and y.tolist() == [[3], [4]]
    assert datasets.cifar100.load_data("coarse")[1][1].tolist() == [[0], [1]]
    with pytest.raises(ValueError, match="`label_mode` must be one of"):
        datasets.cifar100.load_data("other")


def test_files_downloaded_by_keras_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "own"))
    folder = tmp_path / ".keras" / "datasets"
    folder.mkdir(parents=True)
    (folder / "some.txt").write_text("text")
    found = tf.keras.utils.get_file("some.txt", origin="http://nowhere.invalid/some.txt")
    assert found == str(tmp_path / "own" / "datasets" / "some.txt")
    assert Path(found).read_text() == "text"
