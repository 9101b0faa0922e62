"""`ImageDataGenerator`: random augmentation and normalization of images, batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.values.dtypes import DTypeLike
from meshflow.environment.types import ArrayLike, StrPath
from meshflow.keras import settings
from meshflow.legacy.preprocessing.file_iterators import DataFrameIterator, DirectoryIterator
from meshflow.legacy.preprocessing.image_transforms import (
    apply_affine_transform,
    apply_brightness_shift,
    apply_channel_shift,
)
from meshflow.legacy.preprocessing.iterators import NumpyArrayIterator


class ImageDataGenerator:
    """Generator of batches of randomly augmented and normalized images.

    Args:
      featurewise_center: Whether to subtract the mean of the data set (see `fit`).
      samplewise_center: Whether to subtract the mean of each image.
      featurewise_std_normalization: Whether to divide by the standard deviation of the data set.
      samplewise_std_normalization: Whether to divide each image by its standard deviation.
      zca_whitening: Whether to decorrelate the pixels.
      zca_epsilon: Value added to the singular values for whitening.
      rotation_range: Maximum rotation in degrees.
      width_shift_range: Maximum shift: a fraction of the width if below 1, else pixels; or a list
        of shifts to choose from.
      height_shift_range: Maximum shift over the height, in the same form.
      brightness_range: Minimum and maximum factor of brightness.
      shear_range: Maximum shear angle in degrees.
      zoom_range: Minimum and maximum zoom factor; a number z means 1 - z to 1 + z.
      channel_shift_range: Maximum value to add.
      fill_mode: How to fill pixels outside the image: 'constant', 'nearest', 'reflect' or 'wrap'.
      cval: Value of pixels outside the image for 'constant'.
      horizontal_flip: Whether to flip half of the images horizontally.
      vertical_flip: Whether to flip half of the images vertically.
      rescale: Factor for all pixels.
      preprocessing_function: Function from an augmented image to an image of the same shape.
      data_format: 'channels_last' or 'channels_first'; default
        `tf.keras.backend.image_data_format()`.
      validation_split: Fraction of the data in the subset 'validation'.
      interpolation_order: Degree of the splines that interpolate between pixels.
      dtype: Dtype of the images; default `tf.keras.backend.floatx()`.

    Raises:
      ValueError: If a range or `data_format` is invalid.

    Example:
      >>> import numpy as np
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
        width_shift_range: float | Sequence[float] = 0.0,
        height_shift_range: float | Sequence[float] = 0.0,
        brightness_range: Sequence[float] | None = None,
        shear_range: float = 0.0,
        zoom_range: float | Sequence[float] = 0.0,
        channel_shift_range: float = 0.0,
        fill_mode: str = "nearest",
        cval: float = 0.0,
        horizontal_flip: bool = False,
        vertical_flip: bool = False,
        rescale: float | None = None,
        preprocessing_function: Callable[[np.ndarray], np.ndarray] | None = None,
        data_format: str | None = None,
        validation_split: float = 0.0,
        interpolation_order: int = 1,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.data_format = data_format or settings.image_data_format()
        if self.data_format not in ("channels_last", "channels_first"):
            raise ValueError(
                f"`data_format` should be 'channels_last' or 'channels_first', got {data_format!r}."
            )
        is_channels_first = self.data_format == "channels_first"
        self.channel_axis, self.row_axis, self.col_axis = (
            (1, 2, 3) if is_channels_first else (3, 1, 2)
        )
        if validation_split and not 0 < validation_split < 1:
            raise ValueError(
                f"`validation_split` must be strictly between 0 and 1, got {validation_split}."
            )
        if isinstance(zoom_range, (float, int)):
            zoom_range = [1 - zoom_range, 1 + zoom_range]
        elif len(zoom_range) != 2 or not all(isinstance(z, (float, int)) for z in zoom_range):
            raise ValueError(f"`zoom_range` should be a float or two floats, got {zoom_range}.")
        is_pair = isinstance(brightness_range, (tuple, list)) and len(brightness_range) == 2
        if brightness_range is not None and not is_pair:
            raise ValueError(f"`brightness_range` should be two floats, got {brightness_range}.")
        if zca_whitening and featurewise_std_normalization:
            warnings.warn(
                "`zca_whitening` overrides `featurewise_std_normalization`.", stacklevel=2
            )
            featurewise_std_normalization = False
        implied_options = (
            ("zca_whitening", zca_whitening, "featurewise_center", featurewise_center),
            (
                *("featurewise_std_normalization", featurewise_std_normalization),
                *("featurewise_center", featurewise_center),
            ),
            (
                *("samplewise_std_normalization", samplewise_std_normalization),
                *("samplewise_center", samplewise_center),
            ),
        )
        for option, is_set, implied_option, is_implied_set in implied_options:
            if is_set and not is_implied_set:
                warnings.warn(
                    f"`{option}` overrides `{implied_option}`, which is set.", stacklevel=2
                )
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
        self.dtype: Any = dtype or settings.floatx()
        self.validation_split = validation_split
        self.mean: Any = None
        self.std: Any = None
        self.zca_whitening_matrix: Any = None

    def flow(
        self,
        x: ArrayLike | Sequence[ArrayLike],
        y: ArrayLike | None = None,
        batch_size: int = 32,
        shuffle: bool = True,
        sample_weight: ArrayLike | None = None,
        seed: int | None = None,
        save_to_dir: StrPath | None = None,
        save_prefix: str = "",
        save_format: str = "png",
        ignore_class_split: bool = False,
        subset: str | None = None,
    ) -> NumpyArrayIterator:
        """Create an infinite iterator over batches of augmented images of an array.

        The arguments are as in `NumpyArrayIterator`.
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

    def flow_from_directory(
        self, directory: StrPath, *args: Any, **kwargs: Any
    ) -> DirectoryIterator:
        """Create an infinite iterator over batches of augmented images of a directory.

        Args:
          directory: Directory with one subdirectory for each class.
          *args: target_size, color_mode, classes, class_mode, batch_size, shuffle, seed,
            save_to_dir, save_prefix, save_format, follow_links, subset, interpolation,
            keep_aspect_ratio, as in `DirectoryIterator`.
          **kwargs: The same arguments by keyword.
        """
        names = (
            *("target_size", "color_mode", "classes", "class_mode", "batch_size", "shuffle"),
            *("seed", "save_to_dir", "save_prefix", "save_format", "follow_links", "subset"),
            *("interpolation", "keep_aspect_ratio"),
        )
        options = _bind_arguments("flow_from_directory", names, args, kwargs)
        options |= {"data_format": self.data_format, "dtype": self.dtype}
        return DirectoryIterator(directory, self, **options)

    def flow_from_dataframe(
        self, dataframe: Any, directory: StrPath | None = None, *args: Any, **kwargs: Any
    ) -> DataFrameIterator:
        """Create an infinite iterator over batches of augmented images of the files in a data frame.

        Args:
          dataframe: A pandas data frame.
          directory: Directory of the files, or None.
          *args: x_col, y_col, weight_col, target_size, color_mode, classes, class_mode, batch_size,
            shuffle, seed, save_to_dir, save_prefix, save_format, subset, interpolation,
            validate_filenames, as in `DataFrameIterator`.
          **kwargs: The same arguments by keyword.
        """
        names = (
            *("x_col", "y_col", "weight_col", "target_size", "color_mode", "classes", "class_mode"),
            *("batch_size", "shuffle", "seed", "save_to_dir", "save_prefix", "save_format"),
            *("subset", "interpolation", "validate_filenames", "keep_aspect_ratio"),
        )
        kwargs.pop("drop_duplicates", None)
        options = _bind_arguments("flow_from_dataframe", names, args, kwargs)
        options |= {"data_format": self.data_format, "dtype": self.dtype}
        return DataFrameIterator(dataframe, directory, self, **options)

    def get_random_transform(
        self, img_shape: Sequence[int], seed: int | None = None
    ) -> dict[str, Any]:
        """Draw the parameters of a random transform.

        Args:
          img_shape: Shape of the image.
          seed: Seed for `np.random.seed`.

        Returns:
          The parameters for `apply_transform`.
        """
        if seed is not None:
            np.random.seed(seed)
        uniform = np.random.uniform
        # The order of the draws is Keras' own, so that a seed produces the same transforms.
        parameters: dict[str, Any] = {"theta": 0, "tx": 0, "ty": 0, "shear": 0, "zx": 1, "zy": 1}
        if self.rotation_range:
            parameters["theta"] = uniform(-self.rotation_range, self.rotation_range)
        parameters["tx"] = _draw_shift(self.height_shift_range, img_shape[self.row_axis - 1])
        parameters["ty"] = _draw_shift(self.width_shift_range, img_shape[self.col_axis - 1])
        if self.shear_range:
            parameters["shear"] = uniform(-self.shear_range, self.shear_range)
        if self.zoom_range != [1, 1]:
            low, high = self.zoom_range
            parameters["zx"], parameters["zy"] = uniform(low, high, 2)
        parameters["flip_horizontal"] = (np.random.random() < 0.5) * self.horizontal_flip
        parameters["flip_vertical"] = (np.random.random() < 0.5) * self.vertical_flip
        parameters["channel_shift_intensity"] = parameters["brightness"] = None
        if self.channel_shift_range:
            parameters["channel_shift_intensity"] = uniform(
                -self.channel_shift_range, self.channel_shift_range
            )
        if self.brightness_range is not None:
            low, high = self.brightness_range
            parameters["brightness"] = uniform(low, high)
        return parameters

    def apply_transform(self, x: np.ndarray, transform_parameters: dict[str, Any]) -> np.ndarray:
        """Transform an image.

        Args:
          x: The image.
          transform_parameters: Parameters that `get_random_transform` returned.
        """
        rows, columns, channels = (a - 1 for a in (self.row_axis, self.col_axis, self.channel_axis))
        affine_parameters = ("theta", "tx", "ty", "shear", "zx", "zy")
        x = apply_affine_transform(
            x,
            **{k: v for k, v in transform_parameters.items() if k in affine_parameters},
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
        """Transform an image randomly.

        Args:
          x: The image.
          seed: Seed for `np.random.seed`.
        """
        return self.apply_transform(x, self.get_random_transform(x.shape, seed))

    def standardize(self, x: np.ndarray) -> np.ndarray:
        """Normalize an image, or a batch of images."""
        if self.preprocessing_function:
            x = self.preprocessing_function(x)
        if self.rescale:
            x = x * self.rescale
        if self.samplewise_center:
            x = x - np.mean(x, keepdims=True)
        if self.samplewise_std_normalization:
            x = x / (np.std(x, keepdims=True) + 1e-6)
        if self.featurewise_center and self._check_fitted("featurewise_center", self.mean):
            x = x - self.mean
        if self.featurewise_std_normalization and self._check_fitted(
            "featurewise_std_normalization", self.std
        ):
            x = x / (self.std + 1e-6)
        if self.zca_whitening and self._check_fitted("zca_whitening", self.zca_whitening_matrix):
            flat = x.reshape(-1, np.prod(x.shape[-3:]))
            x = (flat @ self.zca_whitening_matrix).reshape(x.shape)
        return x

    def _check_fitted(self, option: str, value: np.ndarray | None) -> bool:
        if value is None:
            warnings.warn(
                f"This ImageDataGenerator specifies `{option}`, but it hasn't been fit on any training data. Fit it "
                "first by calling `.fit(numpy_data)`.",
                stacklevel=3,
            )
        return value is not None

    def fit(
        self, x: ArrayLike, augment: bool = False, rounds: int = 1, seed: int | None = None
    ) -> None:
        """Compute the statistics that `featurewise_center` and related options need.

        Args:
          x: Images [n, height, width, channels].
          augment: Whether to use transformed images.
          rounds: Number of transforms of each image.
          seed: Seed for `np.random.seed`.

        Raises:
          ValueError: If the images have another rank.
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
        reduced_axes = (0, self.row_axis, self.col_axis)
        if self.featurewise_center:
            self.mean = data.mean(reduced_axes).reshape(shape)
            data -= self.mean
        if self.featurewise_std_normalization:
            self.std = data.std(reduced_axes).reshape(shape)
            data /= self.std + 1e-6
        if self.zca_whitening:
            u, s, _ = np.linalg.svd(data.reshape(len(data), -1).T, full_matrices=False)
            self.zca_whitening_matrix = (u * (np.sqrt(len(data)) / (s + self.zca_epsilon))) @ u.T


def _draw_shift(amount: float | Sequence[float], size: int) -> float:
    """Draw a shift in pixels: one of several values, or up to a maximum in either direction."""
    if isinstance(amount, (int, float)) and not amount:
        return 0
    if isinstance(amount, float):
        shift = np.random.uniform(-amount, amount)
    else:
        shift = np.random.choice(amount)
        shift = shift * np.random.choice([-1, 1])
    return shift * size if np.max(amount) < 1 else shift


def _bind_arguments(
    method: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Map the names of arguments to their values."""
    if len(args) > len(names) or set(kwargs) - set(names) or set(kwargs) & set(names[: len(args)]):
        raise TypeError(f"{method}() takes {', '.join(names)}; got {len(args)} and {list(kwargs)}.")
    return dict(zip(names, args, strict=False)) | kwargs
