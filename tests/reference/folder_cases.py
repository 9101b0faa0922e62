"""Folders of images and texts, series, and calls that Keras and Meshflow both run on them."""

from pathlib import Path

import numpy as np

CASES = [
    "utils.image_dataset_from_directory('images', image_size=(6, 5), shuffle=False)",
    "utils.image_dataset_from_directory('images', image_size=(6, 5), shuffle=False, batch_size=2, label_mode='categorical', interpolation='nearest')",
    "utils.image_dataset_from_directory('images', image_size=(4, 9), shuffle=False, batch_size=None, label_mode=None, color_mode='grayscale', interpolation='bicubic')",
    "utils.image_dataset_from_directory('images', labels=[3, 1, 4, 1, 5, 9, 2], image_size=(3, 3), shuffle=False, interpolation='area', color_mode='rgba')",
    "utils.image_dataset_from_directory('images', image_size=(4, 3), shuffle=False, crop_to_aspect_ratio=True, class_names=['dogs', 'cats', 'birds'])",
    "utils.image_dataset_from_directory('images', image_size=(2, 2), shuffle=False, validation_split=0.3, subset='training')",
    "utils.image_dataset_from_directory('images', image_size=(2, 2), shuffle=False, validation_split=0.3, subset='validation', labels=None)",
    "utils.image_dataset_from_directory('images/cats', labels=None, image_size=(2, 2), shuffle=False)",
    "utils.image_dataset_from_directory('images', label_mode='binary')",
    "utils.image_dataset_from_directory('images', labels=[1, 2])",
    "utils.image_dataset_from_directory('images', labels='other')",
    "utils.image_dataset_from_directory('images', color_mode='hsv')",
    "utils.image_dataset_from_directory('images', label_mode='other')",
    "utils.image_dataset_from_directory('images', interpolation='other')",
    "utils.image_dataset_from_directory('images', class_names=['cats'])",
    "utils.image_dataset_from_directory('images', validation_split=0.2)",
    "utils.image_dataset_from_directory('images', validation_split=0.2, subset='training')",
    "utils.image_dataset_from_directory('images', validation_split=2, subset='training')",
    "utils.image_dataset_from_directory('images', validation_split=0.2, subset='other', seed=1)",
    "utils.image_dataset_from_directory('texts')",
    "utils.image_dataset_from_directory('nowhere')",
    "utils.image_dataset_from_directory('images', other=1)",
    "utils.text_dataset_from_directory('texts', shuffle=False)",
    "utils.text_dataset_from_directory('texts', shuffle=False, label_mode='binary', max_length=3)",
    "utils.text_dataset_from_directory('texts', shuffle=False, label_mode=None, batch_size=None)",
    "utils.text_dataset_from_directory('images')",
    "utils.timeseries_dataset_from_array(np.arange(10), np.arange(10) * 2, 3, batch_size=4)",
    "utils.timeseries_dataset_from_array(np.arange(20.0).reshape(10, 2), None, 3, batch_size=None)",
    "utils.timeseries_dataset_from_array(np.arange(20), np.arange(20), 3, sequence_stride=2, sampling_rate=3)",
    "utils.timeseries_dataset_from_array(np.arange(20), np.arange(20), 3, start_index=4, end_index=12)",
    "utils.timeseries_dataset_from_array(np.arange(20), np.arange(5), 3)",
    "utils.timeseries_dataset_from_array([1.0, 2.0, 3.0, 4.0], None, 2)",
    "utils.timeseries_dataset_from_array(np.arange(9), None, 3, sampling_rate=0)",
    "utils.timeseries_dataset_from_array(np.arange(9), None, 3, sequence_stride=9)",
    "utils.timeseries_dataset_from_array(np.arange(9), None, 3, start_index=-1)",
    "utils.timeseries_dataset_from_array(np.arange(9), None, 3, start_index=5, end_index=4)",
    "utils.timeseries_dataset_from_array(np.arange(9), None, 3, end_index=9)",
    "utils.img_to_array(utils.load_img('images/cats/a.png'))",
    "utils.img_to_array(utils.load_img('images/cats/a.png', color_mode='grayscale'), 'channels_first', 'uint8')",
    "utils.img_to_array(utils.load_img('images/dogs/0.png', target_size=(4, 3), interpolation='bilinear'))",
    "utils.img_to_array(utils.load_img('images/dogs/0.png', target_size=(4, 2), keep_aspect_ratio=True, color_mode='rgba'))",
    "utils.load_img('images/dogs/0.png', target_size=(4, 2), interpolation='other')",
    "utils.load_img('images/dogs/0.png', color_mode='other')",
    "np.asarray(utils.array_to_img(np.arange(24.0).reshape(2, 4, 3)))",
    "np.asarray(utils.array_to_img(np.arange(8.0).reshape(1, 2, 4), 'channels_first', scale=False))",
    "np.asarray(utils.array_to_img(np.full((2, 2, 1), 300.0), scale=False))",
    "utils.array_to_img(np.zeros((2, 2)))",
    "utils.array_to_img(np.zeros((2, 2, 2)))",
    "tf.keras.preprocessing.image.smart_resize(np.arange(72.0, dtype='f4').reshape(4, 6, 3), (3, 2))",
    "tf.keras.preprocessing.image.smart_resize(tf.reshape(tf.range(72.0), [2, 6, 2, 3]), (3, 3))",
    "tf.keras.preprocessing.image.smart_resize(np.zeros((4, 6)), (3, 2))",
]


def make_files(folder):
    """Write the images and texts."""
    from PIL import Image

    random = np.random.default_rng(0)
    sizes = {
        "birds": [(5, 7)],
        "cats": [(9, 4), (3, 3), (6, 5)],
        "dogs": [(8, 8), (2, 5), (10, 11)],
    }
    for name, some in sizes.items():
        (folder / "images" / name).mkdir(parents=True)
        for number, size in enumerate(some):
            pixels = random.integers(0, 256, (*size, 3)).astype(np.uint8)
            file = f"{'abc'[number]}.png" if name == "cats" else f"{number}.png"
            Image.fromarray(pixels).save(folder / "images" / name / file)
    (folder / "images" / ".hidden").mkdir()
    (folder / "images" / "cats" / "notes.md").write_text("no image")
    for name in ("neg", "pos"):
        (folder / "texts" / name).mkdir(parents=True)
        for number in range(3):
            Path(folder / "texts" / name / f"{number}.txt").write_text(f"{name} text {number}\n")


def run(tf, text):
    """Arrays and labels of a case, or the classes of its error."""
    try:
        found = eval(text, {"tf": tf, "utils": tf.keras.utils, "np": np})
        if hasattr(found, "element_spec"):
            leaves = [np.asarray(leaf) for e in found for leaf in tf.nest.flatten(e)]
        else:
            leaves = [np.asarray(found)]
    except Exception as error:
        return {"error": [c.__name__ for c in type(error).__mro__[:-3]]}
    return {
        "names": getattr(found, "class_names", None),
        "leaves": [
            [a.dtype.str, list(a.shape), [str(v) for v in a.reshape(-1)]]
            if a.dtype.kind in "OS"
            else [a.dtype.str, list(a.shape), a.reshape(-1).tolist()]
            for a in leaves
        ],
    }
