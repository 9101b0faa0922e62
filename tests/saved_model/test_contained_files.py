"""Folders from others: files that are links out of the folder, pipes or folders are refused, unread."""

import os
import shutil

import numpy as np
import pytest

import meshflow as tf
from meshflow.files.safetensors import load_sharded


class Reader(tf.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.words = tf.saved_model.Asset(vocabulary)
        self.weight = tf.Variable([1.0, 2.0])


def make_saved_model(folder, name="m"):
    vocabulary = folder / "words.txt"
    vocabulary.write_text("a\nb\n")
    tf.saved_model.save(Reader(str(vocabulary)), str(folder / name))
    return folder / name


def make_keras_folder(folder):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
    model.save(folder / "k")
    return folder / "k"


def make_checkpoint(folder):
    tf.train.Checkpoint(w=tf.Variable([1.0])).write(str(folder / "c" / "ckpt"))
    return folder / "c"


def make_dataset(folder):
    tf.data.Dataset.range(3).save(str(folder / "d"))
    return folder / "d"


def make_safetensors(folder):
    from meshflow.files.safetensors import save_file

    os.makedirs(folder / "s")
    save_file({"w": np.ones(2)}, str(folder / "s" / "w-1.safetensors"))
    (folder / "s" / "w.safetensors.index.json").write_text(
        '{"weight_map": {"w": "w-1.safetensors"}}'
    )
    return folder / "s"


def restore_checkpoint(path):
    tf.train.Checkpoint(w=tf.Variable([0.0])).read(str(path / "ckpt")).assert_consumed()


# Functions that create and read a folder.
FORMATS = {
    "saved_model": (make_saved_model, lambda path: tf.saved_model.load(str(path))),
    "graph": (make_saved_model, lambda path: tf.saved_model.load(str(path))),
    "keras": (make_keras_folder, tf.keras.models.load_model),
    "checkpoint": (make_checkpoint, restore_checkpoint),
    "state": (make_checkpoint, lambda path: tf.train.get_checkpoint_state(str(path))),
    "dataset": (make_dataset, lambda path: list(tf.data.Dataset.load(str(path)))),
    "safetensors": (make_safetensors, lambda path: load_sharded(path / "w.safetensors.index.json")),
}


def list_files(path):
    return sorted(
        os.path.relpath(os.path.join(root, name), path)
        for root, _, names in os.walk(path)
        for name in names
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", ["link", "folder link", "pipe"])
@pytest.mark.parametrize("name", FORMATS)
def test_files_outside_of_the_folder_are_refused(tmp_path, name, change):
    """Test links in place of each file of the folder: none is followed, and reading never blocks."""
    make, read = FORMATS[name]
    original = make(tmp_path)
    if name == "graph":
        os.remove(original / "manifest.json")
    if name == "state":
        tf.train.CheckpointManager(
            tf.train.Checkpoint(w=tf.Variable([1.0])), str(original), 1
        ).save()
    read(original)
    refused = []
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    for file in list_files(original):
        parent = os.path.dirname(file)
        if change == "folder link" and not parent:
            continue
        shutil.copytree(original, copy)
        if change == "folder link":
            shutil.copytree(copy / parent, outside)
            shutil.rmtree(copy / parent)
            os.symlink(outside, copy / parent)
        else:
            shutil.copy(copy / file, outside)
            os.remove(copy / file)
            os.symlink(outside, copy / file) if change == "link" else os.mkfifo(copy / file)
        reason = "link out of its folder" if "link" in change else "not a regular file"
        try:
            loaded = read(copy)
            if name in ("saved_model", "graph"):
                loaded.words.read_content()
        except tf.errors.DataLossError as error:
            assert reason in str(error)
            refused.append(file)
        finally:
            shutil.rmtree(copy)
            shutil.rmtree(outside) if outside.is_dir() else outside.unlink(missing_ok=True)
    needed = {
        "saved_model": {"manifest.json", "assets/words.txt"},
        "graph": {"saved_model.pb", "assets/words.txt", "variables/variables.index"},
        "keras": {"manifest.json"},
        "checkpoint": {"ckpt.index", "ckpt.data-00000-of-00001"},
        "state": {"checkpoint"},
        "dataset": {"spec.json"},
        "safetensors": {"w-1.safetensors"},
    }[name]
    if change == "folder link":
        needed = {file for file in needed if "/" in file}
    assert needed <= set(refused)
    assert refused or (
        change == "folder link" and name in ("keras", "checkpoint", "state", "safetensors")
    )


def test_links_to_and_inside_the_folder_are_followed(tmp_path):
    original = make_saved_model(tmp_path)
    os.symlink(original, tmp_path / "latest")
    os.rename(original / "assets" / "words.txt", original / "assets" / "other.txt")
    os.symlink("other.txt", original / "assets" / "words.txt")
    words = tf.saved_model.load(str(tmp_path / "latest")).words
    assert words.read_content() == b"a\nb\n"


def test_saving_again_copies_no_file_of_the_host(tmp_path):
    original = make_saved_model(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    loaded = tf.saved_model.load(str(original))
    os.remove(original / "assets" / "words.txt")
    os.symlink(secret, original / "assets" / "words.txt")
    with pytest.raises(tf.errors.DataLossError, match="link out of its folder"):
        tf.saved_model.save(loaded, str(tmp_path / "again"))


def test_hugging_face_cache_links_to_its_blobs(tmp_path):
    original = make_saved_model(tmp_path)
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "f00", tmp_path / "hub" / "blobs"
    os.makedirs(snapshot.parent)
    os.makedirs(blobs)
    shutil.copytree(original, snapshot)
    for number, file in enumerate(list_files(snapshot)):
        os.rename(snapshot / file, blobs / str(number))
        os.symlink(blobs / str(number), snapshot / file)
    assert tf.saved_model.load(str(snapshot)).words.read_content() == b"a\nb\n"
    os.rename(blobs, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", blobs)
    with pytest.raises(tf.errors.DataLossError, match="link out of its folder"):
        tf.saved_model.load(str(snapshot))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["m.keras", "m.h5", "m.weights.h5", "m.safetensors"])
def test_pipes_in_place_of_model_files_do_not_block(tmp_path, name):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
    os.mkfifo(tmp_path / name)
    if name in ("m.keras", "m.h5"):
        with pytest.raises(tf.errors.DataLossError, match="not a regular file"):
            tf.keras.models.load_model(tmp_path / name)
    with pytest.raises(tf.errors.DataLossError, match="not a regular file"):
        model.load_weights(tmp_path / name)
