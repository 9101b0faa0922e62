"""Datasets of the image, text or audio files in a directory.

The paths and labels are listed first. The dataset then consists of indices, which are shuffled and
mapped to the contents of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.specs import TensorSpec
from meshflow.data import Dataset
from meshflow.data.transformations import HostMap
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.listing import find_files, list_folders
from meshflow.files.paths import to_path_string as path_text
from meshflow.keras.literals import Interpolation
from meshflow.ops.audio import decode_wav
from meshflow.ops.image.codecs import decode_pixels
from meshflow.ops.image.resampling import resize_array
from meshflow.ops.ragged import RaggedTensor

_IMAGE_FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
_METHODS = (
    *("area", "bicubic", "bilinear", "gaussian", "lanczos3", "lanczos5", "mitchellcubic"),
    "nearest",
)


def image_dataset_from_directory(
    directory: StrPath,
    labels: str | Sequence[int] | None = "inferred",
    label_mode: Literal["int", "binary", "categorical"] | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: Literal["grayscale", "rgb", "rgba"] = "rgb",
    batch_size: int | None = 32,
    image_size: Sequence[int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: Literal["training", "validation", "both"] | None = None,
    interpolation: Interpolation = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    **kwargs: Any,
) -> Dataset:
    """Load the images in a directory as float32 batches of one size, with values from 0 to 255.

    Args:
      directory: Directory; with inferred labels it contains one directory per class.
      labels: 'inferred' from the names of the directories, None, or a label for each file, sorted
        by name.
      label_mode: 'int' (int32), 'binary' (float32 [1]), 'categorical' (float32 one-hot) or None.
      class_names: Names of the directories in the order of the labels; sorted by default.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      batch_size: Number of images per batch; None for single images.
      image_size: (height, width).
      shuffle: Whether to shuffle the images; otherwise they are sorted.
      seed: Seed of the order.
      validation_split: Fraction of the files for validation.
      subset: 'training', 'validation' or 'both', with `validation_split`.
      interpolation: Method of `tf.image.resize`.
      follow_links: Whether to follow symbolic links to directories.
      crop_to_aspect_ratio: Whether to crop images at the center instead of distorting them.
      **kwargs: `smart_resize`, a former name of `crop_to_aspect_ratio`.

    Returns:
      A dataset with the attributes `class_names` and `file_paths`; for subset='both' a list of two.

    Raises:
      ValueError: If arguments are inconsistent, or if there is no image.
      NotFoundError: If the directory does not exist.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for name in ("cats", "dogs"):
      ...         os.mkdir(os.path.join(folder, name))
      ...         tf.keras.utils.save_img(os.path.join(folder, name, "1.png"), tf.zeros([4, 6, 3]))
      ...     data = tf.keras.utils.image_dataset_from_directory(folder, image_size=(2, 2))
      ...     data.class_names, next(iter(data))[0].shape
      Found 2 files belonging to 2 classes.
      (['cats', 'dogs'], TensorShape([2, 2, 2, 3]))
    """
    crop_to_aspect_ratio = bool(kwargs.pop("smart_resize", crop_to_aspect_ratio))
    kwargs.pop("verbose", None)
    if kwargs:
        raise TypeError(f"Unknown keyword arguments: {', '.join(map(repr, kwargs))}.")
    if color_mode not in _CHANNELS:
        raise ValueError(
            f"`color_mode` must be one of {', '.join(map(repr, _CHANNELS))}, got {color_mode!r}."
        )
    if interpolation.lower() not in _METHODS:
        raise NotImplementedError(
            f"`interpolation` must be one of {', '.join(_METHODS)}, got {interpolation!r}."
        )
    size, channels = tuple(int(n) for n in image_size), _CHANNELS[color_mode]
    if len(size) != 2:
        raise ValueError(f"`image_size` must be (height, width), got {image_size!r}.")

    def load(path: str) -> np.ndarray:
        return _load_image(path, size, channels, interpolation.lower(), crop_to_aspect_ratio)

    return _create_dataset(
        _LabeledFiles(
            directory, labels, label_mode, class_names, _IMAGE_FORMATS, follow_links, "images"
        ),
        load,
        TensorSpec([*size, channels], "float32"),
        batch_size,
        shuffle,
        seed,
        validation_split,
        subset,
    )


def text_dataset_from_directory(
    directory: StrPath,
    labels: str | Sequence[int] | None = "inferred",
    label_mode: Literal["int", "binary", "categorical"] | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: Literal["training", "validation", "both"] | None = None,
    follow_links: bool = False,
    verbose: bool = True,
) -> Dataset:
    """Load the text files (`.txt`) in a directory as batches of strings.

    Args:
      directory: Directory; with inferred labels it contains one directory per class.
      labels: 'inferred' from the names of the directories, None, or a label for each file, sorted
        by name.
      label_mode: 'int' (int32), 'binary' (float32 [1]), 'categorical' (float32 one-hot) or None.
      class_names: Names of the directories in the order of the labels; sorted by default.
      batch_size: Number of texts per batch; None for single texts.
      max_length: Maximum number of bytes of a text; None for no limit.
      shuffle: Whether to shuffle the texts; otherwise they are sorted.
      seed: Seed of the order.
      validation_split: Fraction of the files for validation.
      subset: 'training', 'validation' or 'both', with `validation_split`.
      follow_links: Whether to follow symbolic links to directories.
      verbose: Whether to print the number of files.

    Returns:
      A dataset with the attributes `class_names` and `file_paths`; for subset='both' a list of two.

    Raises:
      ValueError: If arguments are inconsistent, or if there is no text.
      NotFoundError: If the directory does not exist.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for name in ("bad", "good"):
      ...         os.mkdir(os.path.join(folder, name))
      ...         _ = tf.io.write_file(os.path.join(folder, name, "1.txt"), f"A {name} film.")
      ...     data = tf.keras.utils.text_dataset_from_directory(folder, shuffle=False, verbose=False)
      ...     texts, labels = next(iter(data))
      >>> texts.numpy().tolist(), labels.numpy().tolist()
      ([b'A bad film.', b'A good film.'], [0, 1])
    """

    def load(path: str) -> np.ndarray:
        with gfile.GFile(path, "rb") as file:
            return np.array(file.read() if max_length is None else file.read(max_length), object)

    return _create_dataset(
        _LabeledFiles(
            *(directory, labels, label_mode, class_names, (".txt",), follow_links),
            *("text files", verbose),
        ),
        load,
        TensorSpec([], "string"),
        batch_size,
        shuffle,
        seed,
        validation_split,
        subset,
    )


def audio_dataset_from_directory(
    directory: StrPath,
    labels: str | Sequence[int] | None = "inferred",
    label_mode: Literal["int", "binary", "categorical"] | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    sampling_rate: int | None = None,
    output_sequence_length: int | None = None,
    ragged: bool = False,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: Literal["training", "validation", "both"] | None = None,
    follow_links: bool = False,
) -> Dataset:
    """Load the audio files (16-bit `.wav`) in a directory as float32 batches.

    Args:
      directory: Directory; with inferred labels it contains one directory per class.
      labels: 'inferred' from the names of the directories, None, or a label for each file, sorted
        by name.
      label_mode: 'int' (int32), 'binary' (float32 [1]), 'categorical' (float32 one-hot) or None.
      class_names: Names of the directories in the order of the labels; sorted by default.
      batch_size: Number of recordings per batch; None for single recordings.
      sampling_rate: Must be None: recordings keep the rate of their file.
      output_sequence_length: Number of samples, to which recordings are cut or padded with zeros;
        that of the longest recording of a batch by default.
      ragged: Whether batches are ragged tensors, without padding.
      shuffle: Whether to shuffle the recordings; otherwise they are sorted.
      seed: Seed of the order.
      validation_split: Fraction of the files for validation.
      subset: 'training', 'validation' or 'both', with `validation_split`.
      follow_links: Whether to follow symbolic links to directories.

    Returns:
      A dataset of [batch, samples, channels] with the attributes `class_names` and `file_paths`;
      for subset='both' a list of two.

    Raises:
      ValueError: If arguments are inconsistent, or if there is no recording.
      NotImplementedError: If `sampling_rate` is set.
      NotFoundError: If the directory does not exist.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sound = tf.audio.encode_wav(tf.zeros([100, 1]), sample_rate=8000)
      ...     _ = tf.io.write_file(os.path.join(folder, "1.wav"), sound)
      ...     data = tf.keras.utils.audio_dataset_from_directory(folder, labels=None)
      ...     next(iter(data)).shape
      Found 1 files.
      TensorShape([1, 100, 1])
    """
    if sampling_rate is not None:
        raise NotImplementedError(
            "audio_dataset_from_directory: resampling is not supported. Use files with one sampling rate."
        )
    if ragged and output_sequence_length is not None:
        raise ValueError(
            "Cannot set both `ragged` and `output_sequence_length`: ragged rows keep their lengths."
        )

    def load(path: str) -> np.ndarray:
        with gfile.GFile(path, "rb") as file:
            samples = -1 if output_sequence_length is None else output_sequence_length
            return decode_wav(file.read(), desired_samples=samples).audio.numpy()

    return _create_dataset(
        _LabeledFiles(
            directory, labels, label_mode, class_names, (".wav",), follow_links, "audio files"
        ),
        load,
        TensorSpec([output_sequence_length, None], "float32"),
        batch_size,
        shuffle,
        seed,
        validation_split,
        subset,
        ragged,
    )


class _LabeledFiles:
    """Paths and labels of the files in a directory.

    Args:
      directory: Directory.
      labels: 'inferred', None, or the labels.
      label_mode: Format of the labels.
      class_names: Names of the classes, or None.
      formats: Extensions of the files.
      follow_links: Whether to follow symbolic links to directories.
      description: Plural noun for the files, for error messages.
      verbose: Whether to print the number of files.
    """

    def __init__(
        self,
        directory: StrPath,
        labels: str | Sequence[int] | None,
        label_mode: Literal["int", "binary", "categorical"] | None,
        class_names: Sequence[str] | None,
        formats: tuple[str, ...],
        follow_links: bool,
        description: str,
        verbose: bool = True,
    ) -> None:
        if isinstance(labels, str) and labels != "inferred":
            raise ValueError(f"`labels` must be 'inferred', None or a list, got {labels!r}.")
        explicit_labels = None if labels is None or isinstance(labels, str) else labels
        if explicit_labels is not None and not isinstance(explicit_labels, (list, tuple)):
            raise ValueError(
                f"`labels` must be a list or tuple of integers, one for each file, got {type(explicit_labels).__name__}."
            )
        if explicit_labels is not None and class_names:
            raise ValueError("`class_names` can only be given with labels='inferred'.")
        if label_mode not in ("int", "categorical", "binary", None):
            raise ValueError(
                f"`label_mode` must be 'int', 'categorical', 'binary' or None, got {label_mode!r}."
            )
        self.description, self.formats, self.verbose = description, formats, verbose
        self.directory = path_text(directory)
        self._follow_links = follow_links
        if labels is None or label_mode is None:
            label_mode, labels, explicit_labels = None, None, None
        self.label_mode = label_mode
        folders = list_folders(self.directory)
        if labels is None:
            self.paths = self._list_files("")
            self.labels = np.zeros(len(self.paths), np.int32)
            self.class_names: Sequence[str | int] = [""]
        elif explicit_labels is not None:
            self.paths, self.labels = self._list_files(""), np.asarray(explicit_labels)
            if len(self.labels) != len(self.paths):
                raise ValueError(
                    f"`labels` has {len(self.labels)} labels for {len(self.paths)} files in {self.directory}."
                )
            if self.labels.dtype == np.int64:
                self.labels = self.labels.astype(np.int32)
            self.class_names = sorted(set(explicit_labels))
        else:
            self._infer_labels([f for f in folders if not f.startswith(".")], class_names)
        if label_mode == "binary" and len(self.class_names) != 2:
            raise ValueError(
                f"label_mode='binary' needs exactly 2 classes, got {len(self.class_names)}: {self.class_names}."
            )
        classes = f" belonging to {len(self.class_names)} classes" if self.label_mode else ""
        self._print(f"Found {len(self.paths)} files{classes}.")

    def _print(self, text: str) -> None:
        if self.verbose:
            print(text)

    def _infer_labels(self, folders: list[str], class_names: Sequence[str] | None) -> None:
        names = list(class_names) if class_names else folders
        if set(names) != set(folders):
            raise ValueError(
                f"`class_names` {names} are not the names of the folders in {self.directory}: {folders}."
            )
        files = [self._list_files(folder) for folder in folders]
        indices = [names.index(f) for f, paths in zip(folders, files, strict=True) for _ in paths]
        self.paths = [path for paths in files for path in paths]
        self.labels, self.class_names = np.array(indices, np.int32), names

    def _list_files(self, folder: str) -> list[str]:
        return find_files(gfile.join(self.directory, folder), self.formats, self._follow_links)

    def shuffle(self, seed: int) -> None:
        """Shuffle files and labels in place, in the order that Keras has for the same seed."""
        np.random.RandomState(seed).shuffle(self.paths)
        self.labels = self.labels.copy()
        np.random.RandomState(seed).shuffle(self.labels)

    def select_subset(
        self, split: float | None, subset: Literal["training", "validation", "both"] | None
    ) -> tuple[list[str], np.ndarray]:
        """Return the files and labels of a subset.

        Raises:
          ValueError: If the subset is empty.
        """
        paths, labels = self.paths, self.labels
        if split:
            num_validation = int(split * len(paths))
            training = slice(0, -num_validation)
            validation = slice(len(paths) - num_validation, None)
            rows = validation if subset == "validation" else training
            paths, labels = paths[rows], labels[rows]
            use = "validation" if subset == "validation" else "training"
            self._print(f"Using {len(paths)} files for {use}.")
        if not paths:
            raise ValueError(
                f"No {subset + ' ' if subset else ''}{self.description} found in directory {self.directory}. "
                f"Allowed formats: {', '.join(self.formats)}."
            )
        return paths, labels

    def encode_labels(self, labels: np.ndarray) -> np.ndarray:
        """Encode labels as the label mode requires."""
        if self.label_mode == "binary":
            return labels.astype(np.float32)[:, None]
        if self.label_mode == "categorical":
            return (labels[:, None] == np.arange(len(self.class_names))).astype(np.float32)
        return labels


def _create_dataset(
    folder: _LabeledFiles,
    load: Callable[[str], np.ndarray],
    spec: TensorSpec,
    batch_size: int | None,
    shuffle: bool,
    seed: int | None,
    split: float | None,
    subset: Literal["training", "validation", "both"] | None,
    ragged: bool = False,
) -> Any:
    if split and not 0 < split < 1:
        raise ValueError(f"`validation_split` must be between 0 and 1, got {split}.")
    if bool(split) != bool(subset):
        raise ValueError("Pass `subset` and `validation_split` together, or neither.")
    if subset not in ("training", "validation", "both", None):
        raise ValueError(f"`subset` must be 'training', 'validation' or 'both', got {subset!r}.")
    if split and shuffle and seed is None:
        raise ValueError(
            "`validation_split` with shuffling needs a `seed`, so that training and validation files do not overlap."
        )
    if seed is None:
        seed = int(np.random.randint(1_000_000))
    if shuffle:
        folder.shuffle(seed)

    def create(part: Literal["training", "validation", "both"] | None) -> Dataset:
        paths, labels = folder.select_subset(split, part)
        encoded_labels = folder.encode_labels(labels)
        label_spec = TensorSpec(encoded_labels.shape[1:], encoded_labels.dtype)

        def load_element(index: np.ndarray) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
            content = load(paths[index])
            return (content, np.asarray(encoded_labels[index])) if folder.label_mode else content

        dataset = Dataset.range(len(paths))
        if shuffle and not (subset == "both" and part == "validation"):
            # The dataset shuffles indices instead of contents, which uses no memory.
            dataset = dataset.shuffle(1024 if batch_size is None else batch_size * 8, seed=seed)
        dataset = HostMap(dataset, load_element, (spec, label_spec) if folder.label_mode else spec)
        if ragged and batch_size is not None:
            dataset = dataset.ragged_batch(batch_size)
        elif ragged:
            dataset = dataset.map(_to_ragged)
        elif batch_size is not None:
            has_static_shape = not spec.shape.rank or spec.shape[0] is not None
            dataset = (
                dataset.batch(batch_size) if has_static_shape else dataset.padded_batch(batch_size)
            )
        dataset = dataset.prefetch(-1)
        dataset.class_names = folder.class_names  # type: ignore[assignment]
        dataset.file_paths = paths
        return dataset

    return [create("training"), create("validation")] if subset == "both" else create(subset)


def _to_ragged(content: Any, *label: Any) -> Any:
    """Convert a recording to a ragged tensor, and keep its label."""
    rows = RaggedTensor.from_tensor(content)
    return (rows, *label) if label else rows


def _load_image(
    path: str, size: Sequence[int], channels: int, method: str, crop: bool
) -> np.ndarray:
    """Load the pixels of an image file on the host and resize them."""
    with gfile.GFile(path, "rb") as file:
        contents = file.read()
    try:
        image = decode_pixels(contents, channels)
    except InvalidArgumentError as error:
        raise InvalidValueError(f"{path}: {error}") from None
    if crop:
        image = crop_to_ratio(image, size)
    return resize_array(image, size[0], size[1], method)


def crop_to_ratio(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Crop images at the center to the aspect ratio of a size."""
    height, width = image.shape[-3:-1]
    crop_height = min(height, int(np.float32(width * size[0]) / size[1]))
    crop_width = min(width, int(np.float32(height * size[1]) / size[0]))
    top, left = int((height - crop_height) / 2), int((width - crop_width) / 2)
    return image[..., top : top + crop_height, left : left + crop_width, :]
