"""Data sets of the files of a folder, on a disk and in a store."""

import numpy as np
import pytest

import meshflow as tf
import stores
from meshflow.files.listing import find_files, list_folders


@pytest.fixture(params=["disk", "store"])
def place(request, tmp_path):
    """A folder on the disk, and one in a store."""
    return str(tmp_path) if request.param == "disk" else stores.memory()


def test_folders_and_files_are_in_order(place):
    for name in ("b/1.TXT", "b/a/2.txt", "a/1.txt", "a/3.png", "c.txt"):
        tf.io.write_file(f"{place}/{name}", name)
    assert list_folders(place) == ["a", "b"]
    assert find_files(place, (".txt",)) == [
        f"{place}/{name}" for name in ("c.txt", "a/1.txt", "b/1.TXT", "b/a/2.txt")
    ]
    assert find_files(f"{place}/nowhere", (".txt",)) == []
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        list_folders(f"{place}/nowhere")


def test_images_of_folders(place):
    for name in ("cats", "dogs"):
        path = f"{place}/{name}/1.png"
        tf.keras.utils.save_img(path, np.full([4, 6, 3], 9.0), scale=False)
        assert tf.keras.utils.load_img(path).size == (6, 4)
    data = tf.keras.utils.image_dataset_from_directory(place, image_size=(4, 6), shuffle=False)
    images, labels = next(iter(data))
    assert (images.numpy() == 9).all() and labels.numpy().tolist() == [0, 1]
    flow = tf.keras.preprocessing.image.ImageDataGenerator().flow_from_directory
    found = flow(place, (4, 6), shuffle=False, save_to_dir=f"{place}/changed")
    assert found.filenames == ["cats/1.png", "dogs/1.png"]
    assert (next(found)[0] == 9).all()
    assert len(find_files(f"{place}/changed", (".png",))) == 2
    again = flow(f"{place}/cats", (4, 6), classes=["."])
    assert again.filenames == ["1.png"] and (next(again)[0] == 9).all()
    with pytest.raises(ValueError, match="unknown extension"):
        tf.keras.utils.save_img(f"{place}/image.what", np.zeros([2, 2, 3]))


def test_texts_of_folders(place):
    for name in ("bad", "good"):
        tf.io.write_file(f"{place}/{name}/1.txt", f"A {name} film.")
    data = tf.keras.utils.text_dataset_from_directory(place, shuffle=False, verbose=False)
    assert next(iter(data))[0].numpy().tolist() == [b"A bad film.", b"A good film."]
