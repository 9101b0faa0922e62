"""Iterators over batches of augmented images, and the iterator over arrays."""

from __future__ import annotations

import collections.abc
import threading
import warnings
from typing import Any, Protocol

import numpy as np

from meshflow.core.values.dtypes import DTypeLike
from meshflow.environment.types import ArrayLike, StrPath
from meshflow.files import gfile
from meshflow.keras import settings
from meshflow.keras.utils.arrays import Sequence
from meshflow.keras.utils.images import save_img

# Extensions of image files.
IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".tif", ".tiff")


class ImageTransformer(Protocol):
    """Part of `ImageDataGenerator` that iterators use."""

    channel_axis: int
    data_format: str
    validation_split: float

    def get_random_transform(
        self, img_shape: collections.abc.Sequence[int], seed: int | None = None
    ) -> dict[str, Any]:
        """Draw the parameters of a random transform."""

    def apply_transform(self, x: np.ndarray, transform_parameters: dict[str, Any]) -> np.ndarray:
        """Transform an image."""

    def standardize(self, x: np.ndarray) -> np.ndarray:
        """Normalize an image."""


class Iterator(Sequence):
    """Infinite iterator over batches of samples, which subclasses select by their indices.

    Args:
      n: Number of samples.
      batch_size: Number of samples in a batch.
      shuffle: Whether to shuffle the samples.
      seed: Seed of the order and of the random transforms of samples.
    """

    white_list_formats = tuple(f.lstrip(".") for f in IMAGE_EXTENSIONS)

    def __init__(self, n: int, batch_size: int, shuffle: bool, seed: int | None) -> None:
        self.n, self.batch_size, self.shuffle, self.seed = n, batch_size, shuffle, seed
        self.batch_index = self.total_batches_seen = 0
        self.lock = threading.Lock()
        self.index_array: np.ndarray | None = None

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __getitem__(self, idx: int) -> Any:
        if idx >= len(self):
            raise ValueError(
                f"Asked to retrieve element {idx}, but the Sequence has length {len(self)}"
            )
        self._seed_batch()
        if self.index_array is None:
            self._draw_order()
        assert self.index_array is not None
        self.total_batches_seen += 1
        first = self.batch_size * idx
        return self._get_batches_of_transformed_samples(
            self.index_array[first : first + self.batch_size]
        )

    def _seed_batch(self) -> None:
        if self.seed is not None:
            np.random.seed(self.seed + self.total_batches_seen)

    def _draw_order(self) -> None:
        self.index_array = np.random.permutation(self.n) if self.shuffle else np.arange(self.n)

    def on_epoch_end(self) -> None:
        """Draw a new order."""
        self._draw_order()

    def reset(self) -> None:
        """Restart with the first batch."""
        self.batch_index = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        with self.lock:
            self._seed_batch()
            if self.batch_index == 0:
                self._draw_order()
            assert self.index_array is not None
            first = self.batch_index * self.batch_size
            index = self.index_array[first : first + self.batch_size]
            self.batch_index = self.batch_index + 1 if first + self.batch_size < self.n else 0
            self.total_batches_seen += 1
        return self._get_batches_of_transformed_samples(index)

    next = __next__

    def _get_batches_of_transformed_samples(self, index_array: np.ndarray) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} must implement `_get_batches_of_transformed_samples`."
        )


class ImageIterator(Iterator):
    """Batches of images that an `ImageDataGenerator` augments."""

    def _configure(
        self,
        generator: ImageTransformer | None,
        save: tuple[StrPath | None, str, str],
        dtype: DTypeLike | None,
    ) -> None:
        self.image_data_generator: Any = generator
        self.dtype: Any = dtype or settings.floatx()
        self.save_to_dir, self.save_prefix, self.save_format = save

    def _load_image(self, index: int) -> np.ndarray:
        raise NotImplementedError

    def _augment_batch(self, index_array: np.ndarray) -> np.ndarray:
        """Load and augment the images of a batch."""
        generator, images = self.image_data_generator, []
        for index in index_array:
            image = self._load_image(index)
            if generator:
                parameters = generator.get_random_transform(image.shape)
                image = generator.standardize(generator.apply_transform(image, parameters))
            images.append(image)
        batch = np.array(images, self.dtype)
        if self.save_to_dir:
            for index, image in zip(index_array, batch, strict=True):
                name = f"{self.save_prefix}_{index}_{np.random.randint(10**7)}.{self.save_format}"
                data_format = generator.data_format if generator else None
                save_img(gfile.join(self.save_to_dir, name), image, data_format)
        return batch


class NumpyArrayIterator(ImageIterator):
    """Batches of augmented images of an array; created by `ImageDataGenerator.flow`.

    Args:
      x: Images [n, height, width, channels], or a pair of images and further arrays.
      y: Labels, or None.
      image_data_generator: Generator that augments the images.
      batch_size: Number of images in a batch.
      shuffle: Whether to shuffle the images.
      sample_weight: Weights, or None.
      seed: Seed of the order and of all random transforms.
      data_format: Ignored; the generator's is used.
      save_to_dir: Directory to which the augmented images are written.
      save_prefix: Prefix of the names of these files.
      save_format: Format of these files.
      subset: 'training' or 'validation', by the generator's `validation_split`.
      ignore_class_split: Whether the subsets may have different labels.
      dtype: Dtype of the images.

    Raises:
      ValueError: If the lengths of the arrays differ, the images have another rank, or the subset
        is unknown.

    Example:
      >>> import numpy as np
      >>> generator = tf.keras.preprocessing.image.ImageDataGenerator(rescale=0.5)
      >>> batches = generator.flow(np.ones([4, 8, 8, 3]), np.arange(4), batch_size=2, shuffle=False)
      >>> images, labels = next(batches)
      >>> images.shape, float(images.max()), labels.tolist()
      ((2, 8, 8, 3), 0.5, [0, 1])
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        image_data_generator: ImageTransformer,
        batch_size: int = 32,
        shuffle: bool = False,
        sample_weight: ArrayLike | None = None,
        seed: int | None = None,
        data_format: str | None = None,
        save_to_dir: StrPath | None = None,
        save_prefix: str = "",
        save_format: str = "png",
        subset: str | None = None,
        ignore_class_split: bool = False,
        dtype: DTypeLike | None = None,
    ) -> None:
        self._configure(image_data_generator, (save_to_dir, save_prefix, save_format), dtype)
        others: list[np.ndarray] = []
        if isinstance(x, (tuple, list)):
            x, more = x
            others = [np.asarray(a) for a in (more if isinstance(more, list) else [more])]
        arrays = {"x": np.asarray(x), "y": y, "sample_weight": sample_weight}
        for name, array in (*arrays.items(), *(("x[1]", a) for a in others)):
            if array is not None and len(array) != len(x):
                raise ValueError(
                    f"`x` (images) and `{name}` should have the same length, got {len(x)} and {len(array)}."
                )
        subset_slice = slice(None)
        if subset is not None:
            subset_slice = self._get_subset_slice(subset, len(x), y, ignore_class_split)
        self.x = arrays["x"][subset_slice].astype(self.dtype)
        self.x_misc = [a[subset_slice] for a in others]
        self.y = None if y is None else np.asarray(y)[subset_slice]
        self.sample_weight = None if sample_weight is None else np.asarray(sample_weight)
        if self.x.ndim != 4:
            raise ValueError(f"Images should have rank 4, got shape {self.x.shape}.")
        axis = image_data_generator.channel_axis
        if self.x.shape[axis] not in (1, 3, 4):
            warnings.warn(
                f"Expected 1, 3 or 4 channels on axis {axis}, got images of shape {self.x.shape}.",
                stacklevel=3,
            )
        super().__init__(len(self.x), batch_size, shuffle, seed)

    def _get_subset_slice(self, subset: str, count: int, y: Any, ignore_class_split: bool) -> slice:
        if subset not in ("training", "validation"):
            raise ValueError(f"Invalid subset name: {subset}; expected 'training' or 'validation'.")
        split_index = int(count * self.image_data_generator.validation_split)
        if (
            y is not None
            and not ignore_class_split
            and set(map(str, np.unique(y[:split_index])))
            != set(map(str, np.unique(y[split_index:])))
        ):
            raise ValueError(
                "Training and validation subsets have different number of classes after the split. If your numpy arrays "
                "are sorted by the label, you might want to shuffle them."
            )
        return slice(0, split_index) if subset == "validation" else slice(split_index, None)

    def _load_image(self, index: int) -> np.ndarray:
        return self.x[index].copy()

    def _get_batches_of_transformed_samples(self, index_array: np.ndarray) -> Any:
        batch: Any = self._augment_batch(index_array)
        if self.x_misc:
            batch = [batch, *(a[index_array] for a in self.x_misc)]
        if self.y is None:
            return batch
        weights = self.sample_weight
        return (batch, self.y[index_array], *([] if weights is None else [weights[index_array]]))
