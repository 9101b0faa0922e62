"""`tf.io` and `tf.io.gfile`: reading, writing, and going through folders."""

import os
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

gfile = tf.io.gfile


def test_read_and_write(tmp_path):
    path = str(tmp_path / "new" / "folder" / "a.bin")
    tf.io.write_file(path, b"\x00\xffdata")
    assert tf.io.read_file(path).numpy() == b"\x00\xffdata"
    tf.io.write_file(tf.constant(path), tf.constant("shorter"))
    assert tf.io.read_file(tf.constant(path)) == "shorter"
    with pytest.raises(tf.errors.NotFoundError, match="missing"):
        tf.io.read_file(str(tmp_path / "missing"))
    for name in ("b.txt", "a.txt", "c.bin"):
        tf.io.write_file(str(tmp_path / name), name)
    found = tf.io.matching_files(str(tmp_path / "*.txt")).numpy().tolist()
    assert found == [str(tmp_path / n).encode() for n in ("a.txt", "b.txt")]
    both = tf.io.matching_files([str(tmp_path / "*.bin"), str(tmp_path / "b*")]).numpy().tolist()
    assert [Path(p.decode()).name for p in both] == ["b.txt", "c.bin"]
    assert tf.io.matching_files(str(tmp_path / "none*")).shape == [0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="one string"):
        tf.io.read_file([path])


def test_files_and_modes(tmp_path):
    path = gfile.join(str(tmp_path), "a.txt")
    with gfile.GFile(path, "w") as f:
        f.write("één\ntwo\n")
        f.flush()
        assert f.size() == 10 and f.name == path and f.mode == "w"
        with pytest.raises(tf.errors.PermissionDeniedError):
            f.read()
    with gfile.GFile(path, "a") as f:
        f.write("three")
    with gfile.GFile(path) as f:
        assert f.readline() == "één\n"
        assert f.readlines() == ["two\n", "three"]
        f.seek(0)
        assert f.read(3) == "één" and f.seekable()
        with pytest.raises(tf.errors.PermissionDeniedError):
            f.write("x")
    assert list(gfile.GFile(path)) == ["één\n", "two\n", "three"]
    with gfile.GFile(path, "rb") as f:
        assert f.read(2) == "é".encode() and f.tell() == 2
        assert next(f) == "én\n".encode()
    with gfile.GFile(path, "w+") as f:
        f.write("new")
        f.seek(0)
        assert f.read() == "new"
    # A file that was opened for writing and closed exists, even if it is empty.
    gfile.GFile(gfile.join(tmp_path, "empty"), "w").close()
    assert gfile.stat(gfile.join(tmp_path, "empty")).length == 0
    with pytest.raises(tf.errors.NotFoundError):
        gfile.GFile(str(tmp_path / "none")).read()
    for mode in ("x", "rw", ""):
        with pytest.raises(tf.errors.InvalidArgumentError, match="mode"):
            gfile.GFile(path, mode)


def test_folders(tmp_path):
    root = str(tmp_path)
    join = lambda *parts: gfile.join(root, *parts)
    gfile.makedirs(join("a", "b"))
    gfile.makedirs(join("a", "b"))
    gfile.mkdir(join("c"))
    with pytest.raises(tf.errors.NotFoundError):
        gfile.mkdir(join("x", "y"))
    for name in ("one", "two"):
        with gfile.GFile(join("a", name), "w") as f:
            f.write(name)
    assert sorted(gfile.listdir(join("a"))) == ["b", "one", "two"]
    assert gfile.isdir(join("a")) and not gfile.isdir(join("a", "one"))
    assert gfile.exists(join("a", "one")) and not gfile.exists(join("a", "three"))
    assert gfile.glob(join("a", "*o*")) == [join("a", "one"), join("a", "two")]
    assert gfile.glob(iter([join("c")])) == gfile.glob({join("c")}) == [join("c")]
    assert gfile.glob([join("c"), join("a", "one")]) == [join("c"), join("a", "one")]
    walked = [(os.path.relpath(p, root), sorted(d), sorted(f)) for p, d, f in gfile.walk(root)]
    assert walked == [
        (".", ["a", "c"], []),
        ("a", ["b"], ["one", "two"]),
        (os.path.join("a", "b"), [], []),
        ("c", [], []),
    ]
    upwards = [os.path.relpath(p, root) for p, _, _ in gfile.walk(root, topdown=False)]
    assert upwards == [os.path.join("a", "b"), "a", "c", "."]
    problems = []
    assert list(gfile.walk(join("none"), onerror=problems.append)) == [] and len(problems) == 1
    with pytest.raises(tf.errors.NotFoundError):
        gfile.listdir(join("none"))
    found = gfile.stat(join("a", "one"))
    assert found.length == 3 and not found.is_directory and found.mtime_nsec > 0
    assert gfile.stat(join("a")).is_directory
    with pytest.raises(tf.errors.NotFoundError):
        gfile.stat(join("none"))


def test_copying_moving_deleting(tmp_path):
    one, two, three = (str(tmp_path / n) for n in ("one", "two", "three"))
    tf.io.write_file(one, "1")
    gfile.copy(one, two)
    with pytest.raises(tf.errors.AlreadyExistsError):
        gfile.copy(one, two)
    tf.io.write_file(one, "new")
    gfile.copy(one, two, overwrite=True)
    assert gfile.GFile(two).read() == "new"
    with pytest.raises(tf.errors.AlreadyExistsError):
        gfile.rename(one, two)
    gfile.rename(one, three)
    assert not gfile.exists(one)
    gfile.rename(three, two, overwrite=True)
    gfile.remove(two)
    assert not gfile.exists(two)
    for operation in (lambda: gfile.remove(two), lambda: gfile.copy(two, one)):
        with pytest.raises(tf.errors.NotFoundError):
            operation()
    gfile.makedirs(str(tmp_path / "d" / "e"))
    gfile.rmtree(str(tmp_path / "d"))
    assert gfile.listdir(tmp_path) == []
    with pytest.raises(tf.errors.NotFoundError):
        gfile.rmtree(str(tmp_path / "d"))
    assert "file" in gfile.get_registered_schemes()
    assert gfile.exists(f"file://{tmp_path}")


def test_tensors_survive_files(tmp_path, rng):
    path = str(tmp_path / "t")
    for value in (rng.normal(size=(2, 3)), np.arange(4, dtype="int8"), np.array(True)):
        tf.io.write_file(path, tf.io.serialize_tensor(value))
        found = tf.io.parse_tensor(tf.io.read_file(path), tf.as_dtype(value.dtype))
        np.testing.assert_array_equal(found, value)
