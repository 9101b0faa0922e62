"""Datasets of the files of a folder: images, texts, sounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.specs import TensorSpec
from meshflow.data import Dataset
from meshflow.data.transformations import HostMap
from meshflow.files import gfile
from meshflow.files.listing import files_below, folders_in
from meshflow.files.paths import text as path_text
from meshflow.ops.audio import decode_wav
from meshflow.ops.image.codecs import pixels_of
from meshflow.ops.image.resampling import resized

__all__ = [
    "audio_dataset_from_directory",
    "image_dataset_from_directory",
    "text_dataset_from_directory",
]

_IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
_METHODS = (
    *("area", "bicubic", "bilinear", "gaussian", "lanczos3", "lanczos5", "mitchellcubic"),
    "nearest",
)


def image_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: Any = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    **kwargs: Any,
) -> Dataset:
    """Batches of the images in a folder, float32 from 0 to 255, all of one size.

    Args:
      directory: the folder; with inferred labels, it has one folder for each class.
      labels: 'inferred' from the folders' names, None, or one label for each file, by file name.
      label_mode: 'int' (int32), 'binary' (float32 [1]), 'categorical' (float32 one-hot) or None.
      class_names: the folders' names in the order of the labels; default sorted.
      color_mode: 'grayscale', 'rgb' or 'rgba'.
      batch_size: images of a batch; None for single images.
      image_size: (height, width).
      shuffle: whether in random order; else sorted.
      seed: of the order.
      validation_split: fraction of the files that is set aside for validation.
      subset: 'training', 'validation' or 'both', with `validation_split`.
      interpolation: method of `tf.image.resize`.
      follow_links: whether folders are entered that are links.
      crop_to_aspect_ratio: whether images are cropped in the middle instead of distorted.
      **kwargs: `smart_resize`, an older name of `crop_to_aspect_ratio`.

    Returns:
      A dataset with the attributes `class_names` and `file_paths`; with subset='both' a list of two.

    Raises:
      ValueError: for arguments that do not fit together, or when no image is found.
      NotFoundError: when the folder is not there.

    Example:
      >>> import meshflow as tf
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

    return _dataset(
        _Folder(directory, labels, label_mode, class_names, _IMAGES, follow_links, "images"),
        load,
        TensorSpec([*size, channels], "float32"),
        batch_size,
        shuffle,
        seed,
        validation_split,
        subset,
    )


def text_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    verbose: bool = True,
) -> Dataset:
    """Batches of the text files (`.txt`) in a folder, as strings.

    Args:
      directory: the folder; with inferred labels, it has one folder for each class.
      labels: 'inferred' from the folders' names, None, or one label for each file, by file name.
      label_mode: 'int' (int32), 'binary' (float32 [1]), 'categorical' (float32 one-hot) or None.
      class_names: the folders' names in the order of the labels; default sorted.
      batch_size: texts of a batch; None for single texts.
      max_length: bytes of a text that are kept; default all.
      shuffle: whether in random order; else sorted.
      seed: of the order.
      validation_split: fraction of the files that is set aside for validation.
      subset: 'training', 'validation' or 'both', with `validation_split`.
      follow_links: whether folders are entered that are links.
      verbose: whether to print how many files there are.

    Returns:
      A dataset with the attributes `class_names` and `file_paths`; with subset='both' a list of two.

    Raises:
      ValueError: for arguments that do not fit together, or when no text is found.
      NotFoundError: when the folder is not there.

    Example:
      >>> import meshflow as tf
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

    return _dataset(
        _Folder(
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
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    sampling_rate: int | None = None,
    output_sequence_length: int | None = None,
    ragged: bool = False,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
) -> Dataset:
    """Batches of the sound files (`.wav`, 16 bits) in a folder: float32 [batch, samples, channels].

    Args:
      directory: the folder; with inferred labels, it has one folder for each class.
      labels: 'inferred' from the folders' names, None, or one label for each file, by file name.
      label_mode: 'int' (int32), 'binary' (float32 [1]), 'categorical' (float32 one-hot) or None.
      class_names: the folders' names in the order of the labels; default sorted.
      batch_size: sounds of a batch; None for single sounds.
      sampling_rate: must be None: sounds keep the rate of their file.
      output_sequence_length: samples of each sound, cut or padded with zeros; default those of the
        longest sound of a batch.
      ragged: must be False.
      shuffle: whether in random order; else sorted.
      seed: of the order.
      validation_split: fraction of the files that is set aside for validation.
      subset: 'training', 'validation' or 'both', with `validation_split`.
      follow_links: whether folders are entered that are links.

    Returns:
      A dataset with the attributes `class_names` and `file_paths`; with subset='both' a list of two.

    Raises:
      ValueError: for arguments that do not fit together, or when no sound is found.
      NotImplementedError: for `ragged` and `sampling_rate`.
      NotFoundError: when the folder is not there.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sound = tf.audio.encode_wav(tf.zeros([100, 1]), sample_rate=8000)
      ...     _ = tf.io.write_file(os.path.join(folder, "1.wav"), sound)
      ...     data = tf.keras.utils.audio_dataset_from_directory(folder, labels=None)
      ...     next(iter(data)).shape
      Found 1 files.
      TensorShape([1, 100, 1])
    """
    if ragged or sampling_rate is not None:
        raise NotImplementedError(
            "audio_dataset_from_directory: XLA has no ragged tensors, and sounds are not resampled; "
            "use output_sequence_length, and files of one rate."
        )

    def load(path: str) -> np.ndarray:
        with gfile.GFile(path, "rb") as file:
            samples = -1 if output_sequence_length is None else output_sequence_length
            return decode_wav(file.read(), desired_samples=samples).audio.numpy()

    return _dataset(
        _Folder(directory, labels, label_mode, class_names, (".wav",), follow_links, "audio files"),
        load,
        TensorSpec([output_sequence_length, None], "float32"),
        batch_size,
        shuffle,
        seed,
        validation_split,
        subset,
    )


class _Folder:
    """The files of a folder, with their labels.

    Args:
      directory: the folder.
      labels: 'inferred', None, or labels.
      label_mode: how labels are given.
      class_names: names of the classes, or None.
      formats: the ends of the names of files that count.
      follow_links: whether folders are entered that are links.
      what: what the files are, for errors.
      verbose: whether to print how many files there are.
    """

    def __init__(
        self,
        directory: Any,
        labels: Any,
        label_mode: str | None,
        class_names: Sequence[str] | None,
        formats: tuple[str, ...],
        follow_links: bool,
        what: str,
        verbose: bool = True,
    ) -> None:
        if isinstance(labels, str) and labels != "inferred":
            raise ValueError(f"`labels` must be 'inferred', None or a list, got {labels!r}.")
        given = None if labels is None or isinstance(labels, str) else labels
        if given is not None and not isinstance(given, (list, tuple)):
            raise ValueError(
                f"`labels` must be a list or tuple of integers, one for each file, got {type(given).__name__}."
            )
        if given is not None and class_names:
            raise ValueError("`class_names` can only be given with labels='inferred'.")
        if label_mode not in ("int", "categorical", "binary", None):
            raise ValueError(
                f"`label_mode` must be 'int', 'categorical', 'binary' or None, got {label_mode!r}."
            )
        self.what, self.formats, self.verbose = what, formats, verbose
        self.directory = path_text(directory)
        self._follow = follow_links
        if labels is None or label_mode is None:
            label_mode, labels, given = None, None, None
        self.mode = label_mode
        folders = folders_in(self.directory)
        if labels is None:
            self.paths = self._files("")
            self.labels = np.zeros(len(self.paths), np.int32)
            self.names: list[Any] = [""]
        elif given is not None:
            self.paths, self.labels = self._files(""), np.asarray(given)
            if len(self.labels) != len(self.paths):
                raise ValueError(
                    f"`labels` has {len(self.labels)} labels, but there are {len(self.paths)} files in {self.directory}."
                )
            if self.labels.dtype == np.int64:
                self.labels = self.labels.astype(np.int32)
            self.names = sorted(set(given))
        else:
            self._infer([f for f in folders if not f.startswith(".")], class_names)
        if label_mode == "binary" and len(self.names) != 2:
            raise ValueError(
                f"label_mode='binary' needs exactly 2 classes, got {len(self.names)}: {self.names}."
            )
        classes = f" belonging to {len(self.names)} classes" if self.mode else ""
        self._print(f"Found {len(self.paths)} files{classes}.")

    def _print(self, text: str) -> None:
        if self.verbose:
            print(text)

    def _infer(self, folders: list[str], class_names: Sequence[str] | None) -> None:
        names = list(class_names) if class_names else folders
        if set(names) != set(folders):
            raise ValueError(
                f"`class_names` {names} are not the names of the folders in {self.directory}: {folders}."
            )
        files = [self._files(folder) for folder in folders]
        numbers = [names.index(f) for f, some in zip(folders, files, strict=True) for _ in some]
        self.paths = [path for some in files for path in some]
        self.labels, self.names = np.array(numbers, np.int32), names

    def _files(self, folder: str) -> list[str]:
        place = gfile.join(self.directory, folder)
        return files_below(place, self.formats, self._follow)

    def shuffled(self, seed: int) -> None:
        """Brings files and labels into one random order, Keras' for the same seed."""
        np.random.RandomState(seed).shuffle(self.paths)
        self.labels = self.labels.copy()
        np.random.RandomState(seed).shuffle(self.labels)

    def part(self, split: float | None, subset: str | None) -> tuple[list[str], np.ndarray]:
        """The files and labels of a subset.

        Raises:
          ValueError: when there is none.
        """
        paths, labels = self.paths, self.labels
        if split:
            held = int(split * len(paths))
            cut = slice(len(paths) - held, None) if subset == "validation" else slice(0, -held)
            paths, labels = paths[cut], labels[cut]
            words = "validation" if subset == "validation" else "training"
            self._print(f"Using {len(paths)} files for {words}.")
        if not paths:
            raise ValueError(
                f"No {subset + ' ' if subset else ''}{self.what} found in directory {self.directory}. "
                f"Allowed formats: {', '.join(self.formats)}."
            )
        return paths, labels

    def coded(self, labels: np.ndarray) -> np.ndarray:
        """Labels as the label mode wants them."""
        if self.mode == "binary":
            return labels.astype(np.float32)[:, None]
        if self.mode == "categorical":
            return (labels[:, None] == np.arange(len(self.names))).astype(np.float32)
        return labels


def _dataset(
    folder: _Folder,
    load: Callable[[str], np.ndarray],
    spec: TensorSpec,
    batch_size: int | None,
    shuffle: bool,
    seed: int | None,
    split: float | None,
    subset: str | None,
) -> Any:
    if split and not 0 < split < 1:
        raise ValueError(f"`validation_split` must be between 0 and 1, got {split}.")
    if bool(split) != bool(subset):
        raise ValueError("Give `subset` and `validation_split` together, or neither.")
    if subset not in ("training", "validation", "both", None):
        raise ValueError(f"`subset` must be 'training', 'validation' or 'both', got {subset!r}.")
    if split and shuffle and seed is None:
        raise ValueError(
            "`validation_split` with shuffling needs a `seed`, so that training and validation files do not overlap."
        )
    if seed is None:
        seed = int(np.random.randint(1_000_000))
    if shuffle:
        folder.shuffled(seed)

    def made(part: str | None) -> Dataset:
        paths, labels = folder.part(split, part)
        coded = folder.coded(labels)
        label_spec = TensorSpec(coded.shape[1:], coded.dtype)

        def row(number: np.ndarray) -> Any:
            loaded = load(paths[number])
            return (loaded, np.asarray(coded[number])) if folder.mode else loaded

        dataset = Dataset.range(len(paths))
        if shuffle and not (subset == "both" and part == "validation"):
            # Numbers are shuffled instead of what they stand for, which takes no memory.
            dataset = dataset.shuffle(1024 if batch_size is None else batch_size * 8, seed=seed)
        dataset = HostMap(dataset, row, (spec, label_spec) if folder.mode else spec)
        if batch_size is not None:
            even = not spec.shape.rank or spec.shape[0] is not None
            dataset = dataset.batch(batch_size) if even else dataset.padded_batch(batch_size)
        dataset = dataset.prefetch(-1)
        dataset.class_names = folder.names  # type: ignore[attr-defined]
        dataset.file_paths = paths  # type: ignore[attr-defined]
        return dataset

    return [made("training"), made("validation")] if subset == "both" else made(subset)


def _load_image(path: str, size: Any, channels: int, method: str, crop: bool) -> np.ndarray:
    """The pixels of an image file in one size, on the host."""
    with gfile.GFile(path, "rb") as file:
        contents = file.read()
    try:
        image = pixels_of(contents, channels)
    except InvalidArgumentError as error:
        raise InvalidValueError(f"{path}: {error}") from None
    if crop:
        image = cropped(image, size)
    return resized(image, size[0], size[1], method)


def cropped(image: np.ndarray, size: Any) -> np.ndarray:
    """The largest part in the middle with the aspect ratio of a size."""
    height, width = image.shape[-3:-1]
    tall = min(height, int(np.float32(width * size[0]) / size[1]))
    wide = min(width, int(np.float32(height * size[1]) / size[0]))
    top, left = int((height - tall) / 2), int((width - wide) / 2)
    return image[..., top : top + tall, left : left + wide, :]
