"""Iterators over augmented images from directories and data frames."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from meshflow.core.values.dtypes import DTypeLike
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.listing import find_files, list_folders
from meshflow.files.paths import to_path_string
from meshflow.keras import settings
from meshflow.keras.utils.images import img_to_array, load_img
from meshflow.legacy.preprocessing.iterators import (
    IMAGE_EXTENSIONS,
    ImageIterator,
    ImageTransformer,
)

_NUM_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


class _FileImageIterator(ImageIterator):
    """Batches of images from files."""

    class_mode: str | None
    classes: Any  # The index of the class of each file, or a list of several.
    class_indices: dict[Any, int]
    _filepaths: list[str]
    _sample_weight: np.ndarray | None = None
    _targets: Any = None

    def _configure_files(
        self,
        target_size: Sequence[int],
        color_mode: str,
        data_format: str | None,
        subset: str | None,
        interpolation: str,
        keep_aspect_ratio: bool,
    ) -> None:
        if color_mode not in _NUM_CHANNELS:
            raise ValueError(
                f"Invalid color mode: {color_mode}; expected 'rgb', 'rgba', or 'grayscale'."
            )
        self.target_size, self.color_mode = tuple(target_size), color_mode
        self.data_format = data_format or settings.image_data_format()
        channels = (_NUM_CHANNELS[color_mode],)
        is_channels_last = self.data_format == "channels_last"
        self.image_shape = (
            (*self.target_size, *channels) if is_channels_last else (*channels, *self.target_size)
        )
        self.interpolation, self.keep_aspect_ratio = interpolation, keep_aspect_ratio
        if subset not in (None, "training", "validation"):
            raise ValueError(f"Invalid subset name: {subset}; expected 'training' or 'validation'.")
        self.subset, self.split = subset, None
        if subset is not None:
            fraction = self.image_data_generator.validation_split
            self.split = (0, fraction) if subset == "validation" else (fraction, 1)

    def _get_subset_slice(self, count: int) -> slice:
        if self.split is None:
            return slice(None)
        return slice(int(self.split[0] * count), int(self.split[1] * count))

    def _load_image(self, index: int) -> np.ndarray:
        options: Any = {"color_mode": self.color_mode, "interpolation": self.interpolation}
        options |= {"target_size": self.target_size, "keep_aspect_ratio": self.keep_aspect_ratio}
        return img_to_array(
            load_img(self._filepaths[index], **options), cast(Any, self.data_format)
        )

    @property
    def filepaths(self) -> list[str]:
        """Paths of the files."""
        return self._filepaths

    @property
    def labels(self) -> Any:
        """Labels of the files."""
        return self.classes if self._targets is None else self._targets

    @property
    def sample_weight(self) -> np.ndarray | None:
        """Weights of the files, or None."""
        return self._sample_weight

    def _get_batches_of_transformed_samples(self, index_array: np.ndarray) -> Any:
        x = self._augment_batch(index_array)
        mode = self.class_mode
        if mode is None:
            return x
        y: Any
        if mode == "input":
            y = x.copy()
        elif mode == "raw":
            y = self._targets[index_array]
        elif mode == "multi_output":
            y = [target[index_array] for target in self._targets]
        elif mode == "categorical":
            y = np.zeros((len(x), len(self.class_indices)), self.dtype)
            for row, index in zip(y, index_array, strict=True):
                row[self.classes[index]] = 1
        else:
            y = np.array([self.classes[index] for index in index_array], self.dtype)
        weights = self._sample_weight
        return (x, y) if weights is None else (x, y, weights[index_array])


class DirectoryIterator(_FileImageIterator):
    """Batches of augmented images of a directory; created by `ImageDataGenerator.flow_from_directory`.

    Args:
      directory: Directory with one subdirectory for each class.
      image_data_generator: Generator that augments the images.
      target_size: (height, width) of the images.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      classes: Names of the subdirectories in the order of the labels; default sorted.
      class_mode: 'categorical', 'binary' or 'sparse' labels; 'input' for the images as labels; None
        for no labels.
      batch_size: Number of images in a batch.
      shuffle: Whether to shuffle the images.
      seed: Seed of the order and of all random transforms.
      data_format: 'channels_last' or 'channels_first'.
      save_to_dir: Directory to which the augmented images are written.
      save_prefix: Prefix of the names of these files.
      save_format: Format of these files.
      follow_links: Whether to follow links to directories.
      subset: 'training' or 'validation', by the generator's `validation_split`.
      interpolation: As in `load_img`.
      keep_aspect_ratio: As in `load_img`.
      dtype: Dtype of the images.

    Raises:
      ValueError: If the class mode, color mode or subset is unknown.
    """

    allowed_class_modes = {"categorical", "binary", "sparse", "input", None}

    def __init__(
        self,
        directory: StrPath,
        image_data_generator: ImageTransformer,
        target_size: Sequence[int] = (256, 256),
        color_mode: str = "rgb",
        classes: Sequence[str] | None = None,
        class_mode: str | None = "categorical",
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        data_format: str | None = None,
        save_to_dir: StrPath | None = None,
        save_prefix: str = "",
        save_format: str = "png",
        follow_links: bool = False,
        subset: str | None = None,
        interpolation: str = "nearest",
        keep_aspect_ratio: bool = False,
        dtype: DTypeLike | None = None,
    ) -> None:
        self._configure(image_data_generator, (save_to_dir, save_prefix, save_format), dtype)
        self._configure_files(
            target_size, color_mode, data_format, subset, interpolation, keep_aspect_ratio
        )
        if class_mode not in self.allowed_class_modes:
            raise ValueError(
                f"Invalid class_mode: {class_mode}; expected one of: {self.allowed_class_modes}"
            )
        self.directory, self.class_mode = to_path_string(directory), class_mode
        if not classes:
            classes = list_folders(self.directory)
        self.num_classes = len(classes)
        self.class_indices = {name: index for index, name in enumerate(classes)}
        self.filenames: list[str] = []
        indices: list[int] = []
        for name, index in self.class_indices.items():
            filenames = self._list_files(name, follow_links)
            self.filenames += filenames
            indices += [index] * len(filenames)
        self.classes = np.array(indices, np.int32)
        self.samples = len(self.filenames)
        print(f"Found {self.samples} images belonging to {self.num_classes} classes.")
        self._filepaths = [gfile.join(self.directory, name) for name in self.filenames]
        super().__init__(self.samples, batch_size, shuffle, seed)

    def _list_files(self, name: str, follow_links: bool) -> list[str]:
        """List the images of a class, by their paths relative to the directory."""
        relative = os.path.normpath(name)
        root = self.directory if relative == os.curdir else gfile.join(self.directory, relative)
        paths = find_files(root, IMAGE_EXTENSIONS, follow_links)
        filenames = [os.path.normpath(gfile.join(name, os.path.relpath(p, root))) for p in paths]
        return filenames[self._get_subset_slice(len(filenames))]


class DataFrameIterator(_FileImageIterator):
    """Batches of augmented images of a pandas data frame; created by `flow_from_dataframe`.

    Args:
      dataframe: Data frame.
      directory: Directory of the files; None if the data frame has full paths.
      image_data_generator: Generator that augments the images.
      x_col: Column of the file names.
      y_col: Column of the labels; a list of columns for 'multi_output'.
      weight_col: Column of the weights, or None.
      target_size: (height, width) of the images.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      classes: Classes in the order of the labels; default sorted.
      class_mode: 'categorical', 'binary', 'sparse', 'raw' or 'multi_output' labels; 'input' for the
        images as labels; None for no labels.
      batch_size: Number of images in a batch.
      shuffle: Whether to shuffle the images.
      seed: Seed of the order and of all random transforms.
      data_format: 'channels_last' or 'channels_first'.
      save_to_dir: Directory to which the augmented images are written.
      save_prefix: Prefix of the names of these files.
      save_format: Format of these files.
      subset: 'training' or 'validation', by the generator's `validation_split`.
      interpolation: As in `load_img`.
      keep_aspect_ratio: As in `load_img`.
      dtype: Dtype of the images.
      validate_filenames: Whether to skip rows with missing files.

    Raises:
      ValueError: If the class mode, color mode or subset is unknown, or 'binary' labels do not have
        two classes.
      TypeError: If labels or file names are not strings.
    """

    allowed_class_modes = {
        *("binary", "categorical", "input", "multi_output", "raw", "sparse"),
        None,
    }

    def __init__(
        self,
        dataframe: Any,
        directory: StrPath | None = None,
        image_data_generator: ImageTransformer | None = None,
        x_col: str = "filename",
        y_col: str | list[str] = "class",
        weight_col: str | None = None,
        target_size: Sequence[int] = (256, 256),
        color_mode: str = "rgb",
        classes: Sequence[str] | None = None,
        class_mode: str | None = "categorical",
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        data_format: str | None = "channels_last",
        save_to_dir: StrPath | None = None,
        save_prefix: str = "",
        save_format: str = "png",
        subset: str | None = None,
        interpolation: str = "nearest",
        keep_aspect_ratio: bool = False,
        dtype: DTypeLike | None = "float32",
        validate_filenames: bool = True,
    ) -> None:
        self._configure(image_data_generator, (save_to_dir, save_prefix, save_format), dtype)
        self._configure_files(
            target_size, color_mode, data_format, subset, interpolation, keep_aspect_ratio
        )
        self.directory, self.class_mode = to_path_string(directory or ""), class_mode
        self._check_columns(dataframe, x_col, y_col, weight_col, classes)
        rows = dataframe
        if validate_filenames:
            is_valid = np.array([self._is_image_file(name) for name in rows[x_col]], bool)
            if not is_valid.all():
                warnings.warn(
                    f'Found {(~is_valid).sum()} invalid image filename(s) in x_col="{x_col}". These filename(s) will be '
                    "ignored.",
                    stacklevel=3,
                )
            rows = rows[is_valid]
        has_classes = class_mode in ("binary", "categorical", "sparse")
        if has_classes:
            rows, labels = self._encode_labels(rows, y_col, classes)
        subset_slice = self._get_subset_slice(len(rows))
        rows = rows.iloc[subset_slice]
        if has_classes:
            self.classes = labels[subset_slice]
        elif class_mode == "raw":
            self._targets = rows[y_col].values
        elif class_mode == "multi_output":
            self._targets = [np.array(rows[column].tolist()) for column in y_col]
        self._sample_weight = rows[weight_col].values if weight_col else None
        self.filenames = rows[x_col].tolist()
        self.samples = len(self.filenames)
        status = "validated" if validate_filenames else "non-validated"
        ending = f" belonging to {len(self.class_indices)} classes." if has_classes else "."
        print(f"Found {self.samples} {status} image filenames{ending}")
        self._filepaths = [gfile.join(self.directory, name) for name in self.filenames]
        super().__init__(self.samples, batch_size, shuffle, seed)

    def _is_image_file(self, name: str) -> bool:
        path = gfile.join(self.directory, name)
        return (
            name.lower().endswith(IMAGE_EXTENSIONS) and gfile.exists(path) and not gfile.isdir(path)
        )

    def _check_columns(
        self,
        rows: Any,
        x_col: str,
        y_col: str | list[str],
        weight_col: str | None,
        classes: Sequence[str] | None,
    ) -> None:
        mode = self.class_mode
        if mode not in self.allowed_class_modes:
            raise ValueError(
                f"Invalid class_mode: {mode}; expected one of: {self.allowed_class_modes}"
            )
        if mode == "multi_output" and not isinstance(y_col, list):
            raise TypeError(
                f'If class_mode="{mode}", y_col must be a list. Received {type(y_col).__name__}.'
            )
        if not all(isinstance(name, str) for name in rows[x_col]):
            raise TypeError(f"All values in column x_col={x_col} must be strings.")
        label_types: Any = {"binary": str, "sparse": str, "categorical": (str, list, tuple)}.get(
            mode or ""
        )
        if label_types and not all(isinstance(label, label_types) for label in rows[y_col]):
            raise TypeError(
                f'If class_mode="{mode}", y_col="{y_col}" column values must be strings'
                + (", lists or tuples." if mode == "categorical" else ".")
            )
        if mode == "binary":
            count = len(set(classes)) if classes else rows[y_col].nunique()
            if count != 2:
                raise ValueError(
                    f'If class_mode="binary" there must be 2 classes. Found {count} classes.'
                )
        if weight_col and not np.issubdtype(rows[weight_col].dtype, np.number):
            raise TypeError(f"Column weight_col={weight_col} must be numeric.")

    def _encode_labels(
        self, rows: Any, y_col: str | list[str], classes: Sequence[str] | None
    ) -> tuple[Any, list[int | list[int]]]:
        """Return the rows with at least one known class, and the indices of their classes."""
        values = rows[y_col]
        row_names = [list(v) if isinstance(v, (list, tuple)) else [v] for v in values]
        names = (
            list(dict.fromkeys(classes))
            if classes
            else sorted({v for names in row_names for v in names})
        )
        self.class_indices = {name: index for index, name in enumerate(names)}
        row_ids = [
            [self.class_indices[v] for v in names if v in self.class_indices] for names in row_names
        ]
        kept_rows = [row for row, ids in enumerate(row_ids) if ids]
        is_single = [isinstance(v, str) for v in values]
        labels = [row_ids[row][0] if is_single[row] else row_ids[row] for row in kept_rows]
        return rows.iloc[kept_rows], labels
