"""`ImageDataGenerator`: images changed at random and brought to one scale, batch by batch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from meshflow.keras import settings
from meshflow.legacy.preprocessing.affine import (
    apply_affine_transform,
    apply_brightness_shift,
    apply_channel_shift,
)
from meshflow.legacy.preprocessing.file_iterators import DataFrameIterator, DirectoryIterator
from meshflow.legacy.preprocessing.iterators import NumpyArrayIterator

__all__ = ["ImageDataGenerator"]


class ImageDataGenerator:
    """Changes images at random and brings them to one scale.

    Args:
      featurewise_center: whether the mean of the data (see `fit`) is taken off.
      samplewise_center: whether each image's mean is taken off.
      featurewise_std_normalization: whether images are divided by the data's standard deviation.
      samplewise_std_normalization: whether each image is divided by its standard deviation.
      zca_whitening: whether pixels are decorrelated.
      zca_epsilon: what is added to the singular values there.
      rotation_range: the largest angle in degrees to turn by.
      width_shift_range: the largest shift: part of the width when below 1, else pixels; or a list of
        shifts to choose from.
      height_shift_range: the same for the height.
      brightness_range: the smallest and the largest factor of brightness.
      shear_range: the largest angle in degrees to shear by.
      zoom_range: the smallest and the largest factor of zoom; z for 1 - z to 1 + z.
      channel_shift_range: the largest number to add.
      fill_mode: what is outside: 'constant', 'nearest', 'reflect' or 'wrap'.
      cval: the number outside for 'constant'.
      horizontal_flip: whether half of the images are mirrored.
      vertical_flip: whether half of the images are turned upside down.
      rescale: a factor for all pixels.
      preprocessing_function: from a changed image to an image of the same shape.
      data_format: 'channels_last' or 'channels_first'; default Keras' setting.
      validation_split: the part of the data that is the subset 'validation'.
      interpolation_order: degree of the splines between pixels.
      dtype: of the images; default `tf.keras.backend.floatx()`.

    Raises:
      ValueError: for a range or format of another kind.

    Example:
      >>> import numpy as np
      >>> import meshflow as tf
      >>> generator = tf.keras.preprocessing.image.ImageDataGenerator(rescale=1 / 255)
      >>> x, y = next(generator.flow(np.full([4, 8, 8, 3], 255.0), np.arange(4), batch_size=2))
      >>> x.shape, float(x.max()), y.shape
      ((2, 8, 8, 3), 1.0, (2,))
    """

    def __init__(
        self,
        featurewise_center: bool = False,
        samplewise_center: bool = False,
        featurewise_std_normalization: bool = False,
        samplewise_std_normalization: bool = False,
        zca_whitening: bool = False,
        zca_epsilon: float = 1e-6,
        rotation_range: float = 0,
        width_shift_range: Any = 0.0,
        height_shift_range: Any = 0.0,
        brightness_range: Any = None,
        shear_range: float = 0.0,
        zoom_range: Any = 0.0,
        channel_shift_range: float = 0.0,
        fill_mode: str = "nearest",
        cval: float = 0.0,
        horizontal_flip: bool = False,
        vertical_flip: bool = False,
        rescale: float | None = None,
        preprocessing_function: Any = None,
        data_format: str | None = None,
        validation_split: float = 0.0,
        interpolation_order: int = 1,
        dtype: Any = None,
    ) -> None:
        self.data_format = data_format or settings.image_data_format()
        if self.data_format not in ("channels_last", "channels_first"):
            raise ValueError(
                f"`data_format` should be 'channels_last' or 'channels_first', got {data_format!r}."
            )
        first = self.data_format == "channels_first"
        self.channel_axis, self.row_axis, self.col_axis = (1, 2, 3) if first else (3, 1, 2)
        if validation_split and not 0 < validation_split < 1:
            raise ValueError(
                f"`validation_split` must be strictly between 0 and 1, got {validation_split}."
            )
        if isinstance(zoom_range, (float, int)):
            zoom_range = [1 - zoom_range, 1 + zoom_range]
        elif len(zoom_range) != 2 or not all(isinstance(z, (float, int)) for z in zoom_range):
            raise ValueError(f"`zoom_range` should be a float or two floats, got {zoom_range}.")
        pair = isinstance(brightness_range, (tuple, list)) and len(brightness_range) == 2
        if brightness_range is not None and not pair:
            raise ValueError(f"`brightness_range` should be two floats, got {brightness_range}.")
        if zca_whitening and featurewise_std_normalization:
            warnings.warn(
                "`zca_whitening` overrides `featurewise_std_normalization`.", stacklevel=2
            )
            featurewise_std_normalization = False
        for one, other, given, needed in (
            ("zca_whitening", "featurewise_center", zca_whitening, featurewise_center),
            (
                *("featurewise_std_normalization", "featurewise_center"),
                *(featurewise_std_normalization, featurewise_center),
            ),
            (
                *("samplewise_std_normalization", "samplewise_center"),
                *(samplewise_std_normalization, samplewise_center),
            ),
        ):
            if given and not needed:
                warnings.warn(f"`{one}` overrides `{other}`, which is set.", stacklevel=2)
        self.featurewise_center = bool(
            featurewise_center or zca_whitening or featurewise_std_normalization
        )
        self.samplewise_center = bool(samplewise_center or samplewise_std_normalization)
        self.featurewise_std_normalization = featurewise_std_normalization
        self.samplewise_std_normalization = samplewise_std_normalization
        self.zca_whitening, self.zca_epsilon = zca_whitening, zca_epsilon
        self.rotation_range, self.shear_range = rotation_range, shear_range
        self.width_shift_range, self.height_shift_range = width_shift_range, height_shift_range
        self.zoom_range, self.brightness_range = list(zoom_range), brightness_range
        self.channel_shift_range = channel_shift_range
        self.fill_mode, self.cval = fill_mode, cval
        self.horizontal_flip, self.vertical_flip = horizontal_flip, vertical_flip
        self.rescale, self.preprocessing_function = rescale, preprocessing_function
        self.interpolation_order = interpolation_order
        self.dtype = dtype or settings.floatx()
        self._validation_split = validation_split
        self.mean: Any = None
        self.std: Any = None
        self.zca_whitening_matrix: Any = None

    # ---- batches ---------------------------------------------------------------------------

    def flow(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        sample_weight: Any = None,
        seed: int | None = None,
        save_to_dir: Any = None,
        save_prefix: str = "",
        save_format: str = "png",
        ignore_class_split: bool = False,
        subset: str | None = None,
    ) -> NumpyArrayIterator:
        """Batches of the changed images of an array, without end.

        Args:
          x: as for `NumpyArrayIterator`.
          y: as for `NumpyArrayIterator`.
          batch_size: as for `NumpyArrayIterator`.
          shuffle: as for `NumpyArrayIterator`.
          sample_weight: as for `NumpyArrayIterator`.
          seed: as for `NumpyArrayIterator`.
          save_to_dir: as for `NumpyArrayIterator`.
          save_prefix: as for `NumpyArrayIterator`.
          save_format: as for `NumpyArrayIterator`.
          ignore_class_split: as for `NumpyArrayIterator`.
          subset: as for `NumpyArrayIterator`.
        """
        return NumpyArrayIterator(
            x,
            y,
            self,
            batch_size=batch_size,
            shuffle=shuffle,
            sample_weight=sample_weight,
            seed=seed,
            save_to_dir=save_to_dir,
            save_prefix=save_prefix,
            save_format=save_format,
            ignore_class_split=ignore_class_split,
            subset=subset,
            dtype=self.dtype,
        )

    def flow_from_directory(self, directory: Any, *args: Any, **kwargs: Any) -> DirectoryIterator:
        """Batches of the changed images of a folder, without end.

        Args:
          directory: the folder, with one folder for each class.
          *args: target_size, color_mode, classes, class_mode, batch_size, shuffle, seed, save_to_dir,
            save_prefix, save_format, follow_links, subset, interpolation, keep_aspect_ratio, as for
            `DirectoryIterator`.
          **kwargs: the same by keyword.
        """
        names = (
            *(
                "target_size",
                "color_mode",
                "classes",
                "class_mode",
                "batch_size",
                "shuffle",
                "seed",
            ),
            *("save_to_dir", "save_prefix", "save_format", "follow_links", "subset"),
            *("interpolation", "keep_aspect_ratio"),
        )
        given = _by_name("flow_from_directory", names, args, kwargs)
        common: dict[str, Any] = {"data_format": self.data_format, "dtype": self.dtype}
        return DirectoryIterator(directory, self, **common, **given)

    def flow_from_dataframe(
        self, dataframe: Any, directory: Any = None, *args: Any, **kwargs: Any
    ) -> DataFrameIterator:
        """Batches of the changed images that a pandas data frame names, without end.

        Args:
          dataframe: the data frame.
          directory: the folder of the files, or None.
          *args: x_col, y_col, weight_col, target_size, color_mode, classes, class_mode, batch_size,
            shuffle, seed, save_to_dir, save_prefix, save_format, subset, interpolation,
            validate_filenames, as for `DataFrameIterator`.
          **kwargs: the same by keyword.
        """
        names = (
            *("x_col", "y_col", "weight_col", "target_size", "color_mode", "classes", "class_mode"),
            *("batch_size", "shuffle", "seed", "save_to_dir", "save_prefix", "save_format"),
            *("subset", "interpolation", "validate_filenames", "keep_aspect_ratio"),
        )
        kwargs.pop("drop_duplicates", None)
        given = _by_name("flow_from_dataframe", names, args, kwargs)
        common: dict[str, Any] = {"data_format": self.data_format, "dtype": self.dtype}
        return DataFrameIterator(dataframe, directory, self, **common, **given)

    # ---- one image -------------------------------------------------------------------------

    def get_random_transform(self, img_shape: Any, seed: int | None = None) -> dict[str, Any]:
        """What is to be done to an image, drawn at random.

        Args:
          img_shape: the image's shape.
          seed: for `np.random.seed`.

        Returns:
          A dictionary for `apply_transform`.
        """
        if seed is not None:
            np.random.seed(seed)
        uniform = np.random.uniform
        # In Keras' order, so that a seed gives the same changes.
        chosen: dict[str, Any] = {"theta": 0, "tx": 0, "ty": 0, "shear": 0, "zx": 1, "zy": 1}
        if self.rotation_range:
            chosen["theta"] = uniform(-self.rotation_range, self.rotation_range)
        chosen["tx"] = _shift(self.height_shift_range, img_shape[self.row_axis - 1])
        chosen["ty"] = _shift(self.width_shift_range, img_shape[self.col_axis - 1])
        if self.shear_range:
            chosen["shear"] = uniform(-self.shear_range, self.shear_range)
        if self.zoom_range != [1, 1]:
            low, high = self.zoom_range
            chosen["zx"], chosen["zy"] = uniform(low, high, 2)
        chosen["flip_horizontal"] = (np.random.random() < 0.5) * self.horizontal_flip
        chosen["flip_vertical"] = (np.random.random() < 0.5) * self.vertical_flip
        chosen["channel_shift_intensity"] = chosen["brightness"] = None
        if self.channel_shift_range:
            chosen["channel_shift_intensity"] = uniform(
                -self.channel_shift_range, self.channel_shift_range
            )
        if self.brightness_range is not None:
            chosen["brightness"] = uniform(*self.brightness_range)
        return chosen

    def apply_transform(self, x: np.ndarray, transform_parameters: dict[str, Any]) -> np.ndarray:
        """An image changed.

        Args:
          x: the image.
          transform_parameters: what to do, as `get_random_transform` gives it.
        """
        rows, columns, channels = (a - 1 for a in (self.row_axis, self.col_axis, self.channel_axis))
        moved = ("theta", "tx", "ty", "shear", "zx", "zy")
        x = apply_affine_transform(
            x,
            **{k: v for k, v in transform_parameters.items() if k in moved},
            row_axis=rows,
            col_axis=columns,
            channel_axis=channels,
            fill_mode=self.fill_mode,
            cval=self.cval,
            order=self.interpolation_order,
        )
        if (intensity := transform_parameters.get("channel_shift_intensity")) is not None:
            x = apply_channel_shift(x, intensity, channels)
        if transform_parameters.get("flip_horizontal"):
            x = np.flip(x, columns)
        if transform_parameters.get("flip_vertical"):
            x = np.flip(x, rows)
        if (brightness := transform_parameters.get("brightness")) is not None:
            x = apply_brightness_shift(x, brightness, False)
        return x

    def random_transform(self, x: np.ndarray, seed: int | None = None) -> np.ndarray:
        """An image changed at random.

        Args:
          x: the image.
          seed: for `np.random.seed`.
        """
        return self.apply_transform(x, self.get_random_transform(x.shape, seed))

    def standardize(self, x: np.ndarray) -> np.ndarray:
        """An image, or images, brought to scale.

        Args:
          x: the image.
        """
        if self.preprocessing_function:
            x = self.preprocessing_function(x)
        if self.rescale:
            x = x * self.rescale
        if self.samplewise_center:
            x = x - np.mean(x, keepdims=True)
        if self.samplewise_std_normalization:
            x = x / (np.std(x, keepdims=True) + 1e-6)
        if self.featurewise_center and self._fitted("featurewise_center", self.mean):
            x = x - self.mean
        if self.featurewise_std_normalization and self._fitted(
            "featurewise_std_normalization", self.std
        ):
            x = x / (self.std + 1e-6)
        if self.zca_whitening and self._fitted("zca_whitening", self.zca_whitening_matrix):
            flat = x.reshape(-1, np.prod(x.shape[-3:]))
            x = (flat @ self.zca_whitening_matrix).reshape(x.shape)
        return x

    def _fitted(self, option: str, value: Any) -> bool:
        if value is None:
            warnings.warn(
                f"This ImageDataGenerator specifies `{option}`, but it hasn't been fit on any training data. Fit it "
                "first by calling `.fit(numpy_data)`.",
                stacklevel=3,
            )
        return value is not None

    def fit(self, x: Any, augment: bool = False, rounds: int = 1, seed: int | None = None) -> None:
        """Computes what `featurewise_center` and its like need of the data.

        Args:
          x: images [n, height, width, channels].
          augment: whether to take changed images.
          rounds: how often to change each.
          seed: for `np.random.seed`.

        Raises:
          ValueError: for images of another rank.
        """
        data = np.array(x, self.dtype)
        if data.ndim != 4:
            raise ValueError(
                f"Input to `.fit()` should have rank 4. Got array with shape: {data.shape}"
            )
        if data.shape[self.channel_axis] not in (1, 3, 4):
            warnings.warn(
                f"Expected 1, 3 or 4 channels on axis {self.channel_axis}, got images of shape {data.shape}.",
                stacklevel=2,
            )
        if seed is not None:
            np.random.seed(seed)
        if self.rescale:
            data *= self.rescale
        if augment:
            data = np.array(
                [self.random_transform(image) for _ in range(rounds) for image in data], self.dtype
            )
        shape = [1, 1, 1]
        shape[self.channel_axis - 1] = data.shape[self.channel_axis]
        others = (0, self.row_axis, self.col_axis)
        if self.featurewise_center:
            self.mean = data.mean(others).reshape(shape)
            data -= self.mean
        if self.featurewise_std_normalization:
            self.std = data.std(others).reshape(shape)
            data /= self.std + 1e-6
        if self.zca_whitening:
            u, s, _ = np.linalg.svd(data.reshape(len(data), -1).T, full_matrices=False)
            self.zca_whitening_matrix = (u * (np.sqrt(len(data)) / (s + self.zca_epsilon))) @ u.T


def _shift(amount: Any, size: int) -> Any:
    """A shift in pixels: one of several, or up to a number, in either direction."""
    if isinstance(amount, (int, float)) and not amount:
        return 0
    if isinstance(amount, float):
        shift = np.random.uniform(-amount, amount)
    else:
        shift = np.random.choice(amount)
        shift = shift * np.random.choice([-1, 1])
    return shift * size if np.max(amount) < 1 else shift


def _by_name(
    what: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by their names."""
    if len(args) > len(names) or set(kwargs) - set(names) or set(kwargs) & set(names[: len(args)]):
        raise TypeError(f"{what}() takes {', '.join(names)}; got {len(args)} and {list(kwargs)}.")
    return dict(zip(names, args, strict=False)) | kwargs
