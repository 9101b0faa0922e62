"""Calls of `tf.keras.preprocessing.image` that Keras and Meshflow both run, in folder_cases' folder."""

import warnings

import numpy as np

CASES = [
    "image.apply_affine_transform(photo, theta=30, row_axis=0, col_axis=1, channel_axis=2)",
    "image.apply_affine_transform(photo, 10, 2, -1, 15, 0.8, 1.3, 0, 1, 2, 'reflect', order=3)",
    "image.apply_affine_transform(photo.transpose(2, 0, 1), tx=1.5, ty=3, fill_mode='constant', cval=7.0)",
    "image.apply_affine_transform(photo, theta=1)",
    "image.apply_affine_transform(photo, row_axis=0, col_axis=0)",
    "image.random_rotation(photo, 40, 0, 1, 2)",
    "image.random_shift(photo, 0.3, 0.2, 0, 1, 2, 'wrap')",
    "image.random_shear(photo, 20, 0, 1, 2)",
    "image.random_zoom(photo, (0.5, 1.5), 0, 1, 2)",
    "image.random_zoom(photo, 0.5)",
    "image.random_channel_shift(photo, 30.0, 2)",
    "image.random_brightness(photo, (0.5, 1.5))",
    "image.apply_brightness_shift(photo - 100, 1.2, False)",
    "image.random_brightness(photo, [1])",
    "G().random_transform(photo)",
    "G(rotation_range=30, width_shift_range=0.2, height_shift_range=2.0, shear_range=10, zoom_range=0.3).random_transform(photo, 3)",
    "[G(width_shift_range=[-2, 3], height_shift_range=3, horizontal_flip=True, vertical_flip=True).random_transform(photo, s) for s in range(4)]",
    "G(channel_shift_range=20.0, brightness_range=[0.6, 1.4], fill_mode='constant').random_transform(photo, 1)",
    "sorted(G(zoom_range=[0.5, 2], rotation_range=5).get_random_transform((8, 6, 3), 4).items(), key=str)",
    "G(rescale=0.5, samplewise_std_normalization=True).standardize(photo.copy())",
    "G(preprocessing_function=lambda x: x + 1, samplewise_center=True).standardize(photo.copy())",
    "(lambda g: (g.fit(photos), g.standardize(photos[:2].copy()), g.mean, g.std))(G(featurewise_std_normalization=True, rescale=0.1))",
    "(lambda g: (g.fit(photos[:, :3, :3] / 255, augment=True, rounds=2, seed=1), g.standardize(photos[:2, :3, :3] / 255)))(G(zca_whitening=True, zca_epsilon=0.1, rotation_range=20, dtype='float64'))",
    "G(featurewise_center=True).standardize(photo.copy())",
    "G().fit(photo)",
    "G(zoom_range='far')",
    "G(zoom_range=[1, 2, 3])",
    "G(data_format='other')",
    "G(validation_split=1.5)",
    "G(brightness_range=1)",
    "batches(G(rotation_range=20, horizontal_flip=True).flow(photos, np.arange(7), batch_size=3, seed=1), 5)",
    "batches(G(rescale=2.0).flow(photos, np.arange(7), 3, False, np.arange(7) / 2), 3)",
    "batches(G().flow((photos, np.arange(7)), batch_size=4, shuffle=False), 2)",
    "batches(G(validation_split=0.4).flow(photos, np.arange(7) % 2, subset='validation', seed=2), 1)",
    "batches(G(validation_split=0.4).flow(photos, np.arange(7) % 2, subset='training', seed=2), 1)",
    "batches(G(validation_split=0.4).flow(photos, np.arange(7), subset='training'), 1)",
    "(lambda f: (f.on_epoch_end(), [f[i] for i in (1, 0)], len(f), f.n))(G().flow(photos, np.arange(7), batch_size=4, seed=3))",
    "G().flow(photos, np.arange(7))[9]",
    "G().flow(photos, np.arange(6))",
    "G().flow(photos[0])",
    "G().flow(photos, subset='other')",
    "batches(G(rotation_range=10).flow_from_directory('images', (6, 5), batch_size=4, seed=1), 3)",
    "batches(G().flow_from_directory('images', (4, 4), color_mode='grayscale', class_mode='sparse', shuffle=False, interpolation='bilinear'), 1)",
    "batches(G().flow_from_directory('images', (4, 4), classes=['dogs', 'cats'], class_mode='binary', shuffle=False), 1)",
    "batches(G(validation_split=0.5).flow_from_directory('images', (4, 4), class_mode='input', subset='validation', shuffle=False), 1)",
    "batches(G(validation_split=0.5).flow_from_directory('images', (4, 4), class_mode=None, subset='training', shuffle=False, color_mode='rgba'), 1)",
    "(lambda f: [f.filenames, f.classes, f.class_indices, f.samples, f.num_classes, f.image_shape, len(f)])(G().flow_from_directory('images', batch_size=2))",
    "G().flow_from_directory('images', class_mode='other')",
    "G().flow_from_directory('images', color_mode='other')",
    "G().flow_from_directory('images', subset='other')",
    "batches(G().flow_from_dataframe(frame, 'images', target_size=(4, 4), shuffle=False), 1)",
    "batches(G().flow_from_dataframe(frame, 'images', y_col='n', class_mode='raw', weight_col='w', target_size=(4, 4), shuffle=False), 1)",
    "batches(G(validation_split=0.5).flow_from_dataframe(frame, 'images', y_col=['n', 'w'], class_mode='multi_output', target_size=(2, 2), shuffle=False, subset='training'), 1)",
    "batches(G().flow_from_dataframe(frame, 'images', classes=['cats', 'dogs'], class_mode='sparse', target_size=(2, 2), seed=4), 1)",
    "batches(G().flow_from_dataframe(frame, 'images', y_col='several', target_size=(2, 2), shuffle=False), 1)",
    "G().flow_from_dataframe(frame, 'images', class_mode='binary')",
    "G().flow_from_dataframe(frame, 'images', y_col='n')",
    "G().flow_from_dataframe(frame, 'images', class_mode='multi_output')",
    "G().flow_from_dataframe(frame, 'images', weight_col='class')",
]


def plain(value):
    """A result as JSON."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return [value.dtype.str, list(value.shape), value.reshape(-1).tolist()]
    return value


def run(tf, text):
    """The result of a case, or the classes of its error."""
    import pandas as pd

    random = np.random.default_rng(3)
    photos = random.integers(0, 256, (7, 8, 6, 3)).astype("float32")
    frame = pd.DataFrame(
        {
            "filename": ["cats/a.png", "dogs/0.png", "none.png", "cats/b.png", "birds/0.png"],
            "class": ["cats", "dogs", "dogs", "cats", "birds"],
            "several": [["x"], ["x", "y"], ["y"], ["z", "y"], ["z"]],
            "n": [1, 2, 3, 4, 5],
            "w": [0.5, 1.0, 1.5, 2.0, 2.5],
        }
    )
    image = tf.keras.preprocessing.image
    names = {"image": image, "G": image.ImageDataGenerator, "np": np}
    names |= {"photos": photos, "photo": photos[0], "frame": frame}
    names["batches"] = lambda flow, count: [next(flow) for _ in range(count)]
    np.random.seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return plain(eval(text, names))
        except Exception as error:
            return {"error": [c.__name__ for c in type(error).__mro__[:-3]]}
