"""Test the `checkpoint` file: its contents, and the behaviour if it is damaged."""

import errno
import logging
import os

import jax
import numpy as np
import pytest

import meshflow as tf
from meshflow import train
from meshflow.checkpoint import array_folder
from meshflow.checkpoint.bundle import BundleReader
from meshflow.checkpoint.bundle_writer import write_bundle
from meshflow.checkpoint.formats import delete_checkpoint


def save_checkpoints(folder, count=2, name="ckpt", **kwargs):
    v = tf.Variable(0.0)
    manager = train.CheckpointManager(
        train.Checkpoint(v=v), str(folder), 3, checkpoint_name=name, **kwargs
    )
    for i in range(count):
        v.assign(float(i + 1))
        manager.save()
    return v, manager


DAMAGE = {
    "empty": b"",
    "cut": b'model_checkpoint_path: "ckp',
    "zeros": bytes(64),
    "not text": b"\xff\xfe\x00",
    "a wrong number": b'model_checkpoint_path: "ckpt-2"\nlast_preserved_timestamp: soon\n',
    "no latest": b"last_preserved_timestamp: 1.0\n",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_checkpoints_are_found_without_a_valid_state_file(kind, tmp_path, caplog):
    save_checkpoints(tmp_path)
    (tmp_path / "checkpoint").write_bytes(DAMAGE[kind])
    with caplog.at_level(logging.WARNING, "meshflow"):
        assert train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-2")
    assert f"{tmp_path / 'checkpoint'} is damaged" in caplog.text
    v, manager = save_checkpoints(tmp_path, 0)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-2") and float(v) == 2
    assert [os.path.basename(p) for p in manager.checkpoints] == ["ckpt-1", "ckpt-2"]
    assert manager.save() == str(tmp_path / "ckpt-3")
    caplog.clear()
    assert train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3") and not caplog.text


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_state_file_without_checkpoints_is_an_error(kind, tmp_path):
    (tmp_path / "checkpoint").write_bytes(DAMAGE[kind])
    for attempt in (
        train.latest_checkpoint,
        train.get_checkpoint_state,
        lambda p: save_checkpoints(p, 0),
    ):
        with pytest.raises(tf.errors.DataLossError, match=r"checkpoint is damaged"):
            attempt(tmp_path)


def test_latest_written_prefix_comes_first(tmp_path):
    for name, count, when in (("other", 12, 1), ("ckpt", 3, 2)):
        checkpoint = train.Checkpoint(v=tf.Variable(0.0))
        for _ in range(count):
            os.utime(checkpoint.save(tmp_path / name) + ".index", (when, when))
    (tmp_path / "checkpoint").write_text("")
    assert train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-3")
    array_folder.write_folder(tmp_path / "ckpt-9", {"00000": ("a", 1.0)})  # of something else
    (tmp_path / "ckpt-3.index").write_text("tea")
    assert train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-2")


def test_a_named_checkpoint_that_is_gone(tmp_path, caplog):
    save_checkpoints(tmp_path)
    delete_checkpoint(tmp_path / "ckpt-2")
    with caplog.at_level(logging.WARNING, "meshflow"):
        assert train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-1")
    assert "does not exist" in caplog.text and "ckpt-2" in caplog.text
    v, manager = save_checkpoints(tmp_path, 0)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-1") and float(v) == 1
    delete_checkpoint(tmp_path / "ckpt-1")
    assert train.latest_checkpoint(tmp_path) is None


def test_manager_deletes_only_its_own_files(tmp_path):
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    precious = [foreign / "ckpt-1", own / "best-1", own / "ckpt-x", own / "sub" / "ckpt-1"]
    for path in precious:
        train.Checkpoint(v=tf.Variable(7.0)).write(path)
    listed = [*precious, own / ".." / "foreign" / "ckpt-1", own / "ckpt-0"]
    lines = ['model_checkpoint_path: "best-1"']
    lines += [f'all_model_checkpoint_paths: "{path}"' for path in listed]
    (own / "ckpt-0").mkdir()
    (own / "ckpt-0" / "notes.txt").write_text("tea")
    (own / "checkpoint").write_text("\n".join(lines) + "\n")
    _, manager = save_checkpoints(own, 0)
    assert manager.checkpoints == [] and manager.latest_checkpoint == str(own / "best-1")
    for _ in range(5):
        manager.save()
    assert [os.path.basename(p) for p in manager.checkpoints] == ["ckpt-3", "ckpt-4", "ckpt-5"]
    for path in precious:
        assert train.load_variable(path, "v") == 7
        assert os.path.exists(f"{path}.index")
    assert (own / "ckpt-0" / "notes.txt").read_text() == "tea"


def test_unrelated_files_are_not_deleted(tmp_path):
    v = tf.Variable(1.0)
    checkpoint = train.Checkpoint(v=v)
    path = tmp_path / "model"
    (path / "logs").mkdir(parents=True)
    (path / "logs" / "a.txt").write_text("tea")
    (tmp_path / "model.old").mkdir()
    (tmp_path / "model.data-of-someone").write_text("tea")
    for value in (2.0, 3.0, 4.0):
        v.assign(value)
        checkpoint.write(path)
        assert train.load_variable(path, "v") == value
    data = "model.data-00000-of-00001"
    others = ["model", "model.data-of-someone", "model.old"]
    assert sorted(os.listdir(tmp_path)) == sorted([data, "model.index", *others])
    delete_checkpoint(path)
    assert sorted(os.listdir(tmp_path)) == others
    assert (path / "logs" / "a.txt").read_text() == "tea"


def test_arrays_in_a_folder_beside_files_of_others(tmp_path):
    path = tmp_path / "model"
    (path / "logs").mkdir(parents=True)
    for value in (2.0, 3.0):
        array_folder.write_folder(path, {"00000": ("a", value)})
        assert array_folder.ArrayFolder(path).read("a") == value
    assert os.listdir(tmp_path) == ["model"]
    array_folder.remove_array_folder(path)
    assert os.listdir(path) == ["logs"]
    (path / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"manifest\.json is no file of"):
        array_folder.write_folder(path, {"00000": ("a", 1.0)})
    (tmp_path / "file").write_text("tea")
    with pytest.raises(tf.errors.FailedPreconditionError, match="is a file, not a folder"):
        array_folder.write_folder(tmp_path / "file", {"00000": ("a", 1.0)})
    assert (tmp_path / "file").read_text() == "tea"


def test_symbolic_link_is_preserved(tmp_path):
    (tmp_path / "large").mkdir()
    os.symlink(tmp_path / "large", tmp_path / "ckpt")
    for value in (1.0, 2.0):
        array_folder.write_folder(tmp_path / "ckpt", {"00000": ("a", value)})
    assert os.path.islink(tmp_path / "ckpt")
    assert array_folder.ArrayFolder(tmp_path / "large").read("a") == 2
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "large"]


def test_leftovers_of_a_killed_manager_are_removed(tmp_path, monkeypatch):
    v, manager = save_checkpoints(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr("meshflow.checkpoint.manager.delete_checkpoint", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            manager.save()
    os.unlink(tmp_path / "ckpt-1.index")  # as if deleting had begun
    # No process has this number.
    dead = f"{tmp_path}/ckpt-5.data-00000-of-00001.{array_folder.os.uname().nodename.replace('.', '_')}-999999999-0.part"
    for left in (dead, tmp_path / "ckpt-4.data-00000-of-00002"):
        open(left, "wb").close()
    v, manager = save_checkpoints(tmp_path, 0)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-4") and float(v) == 3
    assert os.path.exists(dead)  # who restores may be somebody else
    manager.save()
    names = ["ckpt-3", "ckpt-4", "ckpt-5"]
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["checkpoint", *(n + e for n in names for e in (".index", ".data-00000-of-00001"))]
    )


@pytest.mark.parametrize("split", [False, True])
def test_a_full_disk(split, tmp_path, monkeypatch):
    path = tmp_path / "a"
    sharding = jax.sharding.NamedSharding(
        jax.make_mesh((4,), ("x",)), jax.sharding.PartitionSpec("x" if split else None)
    )
    value = jax.device_put(np.arange(8.0), sharding)
    array_folder.write_folder(path, {"00000": ("a", value)})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate" if split else "fsync", full)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"/a\..*No space left"):
        array_folder.write_folder(path, {"00000": ("a", value + 1)})
    assert os.listdir(tmp_path) == ["a"]
    assert array_folder.ArrayFolder(path).open("a").tolist() == list(range(8))


@pytest.mark.parametrize("split", [False, True])
def test_a_full_disk_and_a_bundle(split, tmp_path, monkeypatch):
    sharding = jax.sharding.NamedSharding(
        jax.make_mesh((4,), ("x",)), jax.sharding.PartitionSpec("x" if split else None)
    )
    value = jax.device_put(np.arange(8.0), sharding)
    write_bundle(tmp_path / "a", {"a": value})
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"/a\..*No space left"):
        write_bundle(tmp_path / "a", {"a": value + 1})
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    assert BundleReader(tmp_path / "a").open("a")[2:5].tolist() == [2, 3, 4]
