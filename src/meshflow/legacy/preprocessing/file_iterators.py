"""Batches of changed images from folders and data frames."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from meshflow.files import gfile
from meshflow.files.listing import files_below, folders_in
from meshflow.files.paths import text
from meshflow.keras import settings
from meshflow.keras.utils.images import img_to_array, load_img
from meshflow.legacy.preprocessing.iterators import FORMATS, Images

__all__ = ["DataFrameIterator", "DirectoryIterator"]


_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


class _FileImages(Images):
    """Batches of images of files."""

    class_mode: str | None
    classes: Any
    class_indices: dict[Any, int]
    _filepaths: list[str]
    _sample_weight: Any = None
    _targets: Any = None

    def _configure_files(
        self,
        target_size: Any,
        color_mode: str,
        data_format: str | None,
        subset: str | None,
        interpolation: str,
        keep_aspect_ratio: bool,
    ) -> None:
        if color_mode not in _CHANNELS:
            raise ValueError(
                f"Invalid color mode: {color_mode}; expected 'rgb', 'rgba', or 'grayscale'."
            )
        self.target_size, self.color_mode = tuple(target_size), color_mode
        self.data_format = data_format or settings.image_data_format()
        channels = (_CHANNELS[color_mode],)
        last = self.data_format == "channels_last"
        self.image_shape = (
            (*self.target_size, *channels) if last else (*channels, *self.target_size)
        )
        self.interpolation, self.keep_aspect_ratio = interpolation, keep_aspect_ratio
        if subset not in (None, "training", "validation"):
            raise ValueError(f"Invalid subset name: {subset}; expected 'training' or 'validation'.")
        self.subset, self.split = subset, None
        if subset is not None:
            part = self.image_data_generator._validation_split
            self.split = (0, part) if subset == "validation" else (part, 1)

    def _of_subset(self, count: int) -> slice:
        if self.split is None:
            return slice(None)
        return slice(int(self.split[0] * count), int(self.split[1] * count))

    def _image(self, number: int) -> np.ndarray:
        image = load_img(
            self._filepaths[number],
            color_mode=self.color_mode,
            target_size=self.target_size,
            interpolation=self.interpolation,
            keep_aspect_ratio=self.keep_aspect_ratio,
        )
        return img_to_array(image, self.data_format)

    @property
    def filepaths(self) -> list[str]:
        """The files."""
        return self._filepaths

    @property
    def labels(self) -> Any:
        """The label of each file."""
        return self.classes if self._targets is None else self._targets

    @property
    def sample_weight(self) -> Any:
        """The weight of each file, or None."""
        return self._sample_weight

    def _get_batches_of_transformed_samples(self, index_array: np.ndarray) -> Any:
        x = self._changed(index_array)
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
            for row, number in zip(y, index_array, strict=True):
                row[self.classes[number]] = 1
        else:
            y = np.array([self.classes[number] for number in index_array], self.dtype)
        weights = self._sample_weight
        return (x, y) if weights is None else (x, y, weights[index_array])


class DirectoryIterator(_FileImages):
    """Batches of changed images of a folder; made by `ImageDataGenerator.flow_from_directory`.

    Args:
      directory: the folder, with one folder for each class.
      image_data_generator: what changes the images.
      target_size: (height, width) of the images.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      classes: the folders' names in the order of the labels; default sorted.
      class_mode: labels as 'categorical', 'binary' or 'sparse'; 'input' for the images themselves;
        None for none.
      batch_size: images of a batch.
      shuffle: whether in random order.
      seed: makes everything random the same each time.
      data_format: 'channels_last' or 'channels_first'.
      save_to_dir: a folder to write the changed images to.
      save_prefix: begin of their names.
      save_format: their format.
      follow_links: whether folders are entered that are links.
      subset: 'training' or 'validation', by the generator's `validation_split`.
      interpolation: as for `load_img`.
      keep_aspect_ratio: as for `load_img`.
      dtype: of the images.

    Raises:
      ValueError: for another class mode, colour mode or subset.
    """

    allowed_class_modes = {"categorical", "binary", "sparse", "input", None}

    def __init__(
        self,
        directory: Any,
        image_data_generator: Any,
        target_size: Any = (256, 256),
        color_mode: str = "rgb",
        classes: Any = None,
        class_mode: str | None = "categorical",
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        data_format: str | None = None,
        save_to_dir: Any = None,
        save_prefix: str = "",
        save_format: str = "png",
        follow_links: bool = False,
        subset: str | None = None,
        interpolation: str = "nearest",
        keep_aspect_ratio: bool = False,
        dtype: Any = None,
    ) -> None:
        self._configure(image_data_generator, (save_to_dir, save_prefix, save_format), dtype)
        self._configure_files(
            target_size, color_mode, data_format, subset, interpolation, keep_aspect_ratio
        )
        if class_mode not in self.allowed_class_modes:
            raise ValueError(
                f"Invalid class_mode: {class_mode}; expected one of: {self.allowed_class_modes}"
            )
        self.directory, self.class_mode = text(directory), class_mode
        if not classes:
            classes = folders_in(self.directory)
        self.num_classes = len(classes)
        self.class_indices = {name: number for number, name in enumerate(classes)}
        self.filenames: list[str] = []
        numbers: list[int] = []
        for name, number in self.class_indices.items():
            found = self._files(name, follow_links)
            self.filenames += found
            numbers += [number] * len(found)
        self.classes = np.array(numbers, np.int32)
        self.samples = len(self.filenames)
        print(f"Found {self.samples} images belonging to {self.num_classes} classes.")
        self._filepaths = [gfile.join(self.directory, name) for name in self.filenames]
        super().__init__(self.samples, batch_size, shuffle, seed)

    def _files(self, name: str, follow_links: bool) -> list[str]:
        """The images of a class, by their names within the folder."""
        below = os.path.normpath(name)
        place = self.directory if below == os.curdir else gfile.join(self.directory, below)
        paths = files_below(place, FORMATS, follow_links)
        found = [os.path.normpath(gfile.join(name, os.path.relpath(p, place))) for p in paths]
        return found[self._of_subset(len(found))]


class DataFrameIterator(_FileImages):
    """Batches of changed images that a pandas data frame names; made by `flow_from_dataframe`.

    Args:
      dataframe: the data frame.
      directory: the folder of the files; None when their names are whole paths.
      image_data_generator: what changes the images.
      x_col: the column of the files' names.
      y_col: the column of the labels; columns for 'multi_output'.
      weight_col: a column of weights, or None.
      target_size: (height, width) of the images.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      classes: the classes in the order of the labels; default sorted.
      class_mode: labels as 'categorical', 'binary', 'sparse', 'raw' or 'multi_output'; 'input' for
        the images themselves; None for none.
      batch_size: images of a batch.
      shuffle: whether in random order.
      seed: makes everything random the same each time.
      data_format: 'channels_last' or 'channels_first'.
      save_to_dir: a folder to write the changed images to.
      save_prefix: begin of their names.
      save_format: their format.
      subset: 'training' or 'validation', by the generator's `validation_split`.
      interpolation: as for `load_img`.
      keep_aspect_ratio: as for `load_img`.
      dtype: of the images.
      validate_filenames: whether rows whose file is not there are left out.

    Raises:
      ValueError: for another class mode, colour mode, subset or number of classes.
      TypeError: for labels or names that are not strings.
    """

    allowed_class_modes = {
        *("binary", "categorical", "input", "multi_output", "raw", "sparse"),
        None,
    }

    def __init__(
        self,
        dataframe: Any,
        directory: Any = None,
        image_data_generator: Any = None,
        x_col: str = "filename",
        y_col: Any = "class",
        weight_col: str | None = None,
        target_size: Any = (256, 256),
        color_mode: str = "rgb",
        classes: Any = None,
        class_mode: str | None = "categorical",
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        data_format: str | None = "channels_last",
        save_to_dir: Any = None,
        save_prefix: str = "",
        save_format: str = "png",
        subset: str | None = None,
        interpolation: str = "nearest",
        keep_aspect_ratio: bool = False,
        dtype: Any = "float32",
        validate_filenames: bool = True,
    ) -> None:
        self._configure(image_data_generator, (save_to_dir, save_prefix, save_format), dtype)
        self._configure_files(
            target_size, color_mode, data_format, subset, interpolation, keep_aspect_ratio
        )
        self.directory, self.class_mode = text(directory or ""), class_mode
        self._check(dataframe, x_col, y_col, weight_col, classes)
        rows = dataframe
        if validate_filenames:
            there = np.array([self._is_image_file(name) for name in rows[x_col]], bool)
            if not there.all():
                warnings.warn(
                    f'Found {(~there).sum()} invalid image filename(s) in x_col="{x_col}". These filename(s) will be '
                    "ignored.",
                    stacklevel=3,
                )
            rows = rows[there]
        labelled = class_mode in ("binary", "categorical", "sparse")
        if labelled:
            rows, labels = self._labelled(rows, y_col, classes)
        kept = self._of_subset(len(rows))
        rows = rows.iloc[kept]
        if labelled:
            self.classes = labels[kept]
        elif class_mode == "raw":
            self._targets = rows[y_col].values
        elif class_mode == "multi_output":
            self._targets = [np.array(rows[column].tolist()) for column in y_col]
        self._sample_weight = rows[weight_col].values if weight_col else None
        self.filenames = rows[x_col].tolist()
        self.samples = len(self.filenames)
        tested = "validated" if validate_filenames else "non-validated"
        ending = f" belonging to {len(self.class_indices)} classes." if labelled else "."
        print(f"Found {self.samples} {tested} image filenames{ending}")
        self._filepaths = [gfile.join(self.directory, name) for name in self.filenames]
        super().__init__(self.samples, batch_size, shuffle, seed)

    def _is_image_file(self, name: str) -> bool:
        path = gfile.join(self.directory, name)
        return name.lower().endswith(FORMATS) and gfile.exists(path) and not gfile.isdir(path)

    def _check(self, rows: Any, x_col: str, y_col: Any, weight_col: Any, classes: Any) -> None:
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
        kinds: Any = {"binary": str, "sparse": str, "categorical": (str, list, tuple)}.get(
            mode or ""
        )
        if kinds and not all(isinstance(label, kinds) for label in rows[y_col]):
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

    def _labelled(self, rows: Any, y_col: str, classes: Any) -> tuple[Any, list[Any]]:
        """The rows that have one of the classes, and the numbers of their classes."""
        several = [list(v) if isinstance(v, (list, tuple)) else [v] for v in rows[y_col]]
        names = (
            list(dict.fromkeys(classes))
            if classes
            else sorted({v for some in several for v in some})
        )
        self.class_indices = {name: number for number, name in enumerate(names)}
        known = [[v for v in some if v in self.class_indices] for some in several]
        kept = [place for place, some in enumerate(known) if some]
        numbers = [[self.class_indices[v] for v in known[place]] for place in kept]
        single = [isinstance(v, str) for v in rows[y_col]]
        labels: list[Any] = [
            found[0] if single[place] else found for place, found in zip(kept, numbers, strict=True)
        ]
        return rows.iloc[kept], labels
