"""Batches of changed images: order and batches, and images from arrays."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np

from meshflow.files import gfile
from meshflow.keras import settings
from meshflow.keras.utils.arrays import Sequence
from meshflow.keras.utils.images import save_img

FORMATS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".tif", ".tiff")

__all__ = ["Iterator", "NumpyArrayIterator"]


class Iterator(Sequence):
    """Batches of numbered samples, without end when iterated.

    Args:
      n: how many samples there are.
      batch_size: samples of a batch.
      shuffle: whether in random order.
      seed: makes the order, and what is random about samples, the same each time.
    """

    white_list_formats = tuple(f.lstrip(".") for f in FORMATS)

    def __init__(self, n: int, batch_size: int, shuffle: bool, seed: int | None) -> None:
        self.n, self.batch_size, self.shuffle, self.seed = n, batch_size, shuffle, seed
        self.batch_index = self.total_batches_seen = 0
        self.lock = threading.Lock()
        self.index_array: Any = None

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __getitem__(self, idx: int) -> Any:
        if idx >= len(self):
            raise ValueError(
                f"Asked to retrieve element {idx}, but the Sequence has length {len(self)}"
            )
        self._seed_batch()
        if self.index_array is None:
            self._order()
        self.total_batches_seen += 1
        first = self.batch_size * idx
        return self._get_batches_of_transformed_samples(
            self.index_array[first : first + self.batch_size]
        )

    def _seed_batch(self) -> None:
        if self.seed is not None:
            np.random.seed(self.seed + self.total_batches_seen)

    def _order(self) -> None:
        self.index_array = np.random.permutation(self.n) if self.shuffle else np.arange(self.n)

    def on_epoch_end(self) -> None:
        """Draws a new order."""
        self._order()

    def reset(self) -> None:
        """Begins with the first batch again."""
        self.batch_index = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        with self.lock:
            self._seed_batch()
            if self.batch_index == 0:
                self._order()
            first = self.batch_index * self.batch_size
            index = self.index_array[first : first + self.batch_size]
            self.batch_index = self.batch_index + 1 if first + self.batch_size < self.n else 0
            self.total_batches_seen += 1
        return self._get_batches_of_transformed_samples(index)

    next = __next__

    def _get_batches_of_transformed_samples(self, index_array: np.ndarray) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say what its batches are.")


class Images(Iterator):
    """Batches of images that an `ImageDataGenerator` changes."""

    def _configure(self, generator: Any, save: tuple[Any, str, str], dtype: Any) -> None:
        self.image_data_generator, self.dtype = generator, dtype or settings.floatx()
        self.save_to_dir, self.save_prefix, self.save_format = save

    def _image(self, number: int) -> np.ndarray:
        raise NotImplementedError

    def _changed(self, index_array: np.ndarray) -> np.ndarray:
        """The images of a batch, changed."""
        generator, images = self.image_data_generator, []
        for number in index_array:
            image = self._image(number)
            if generator:
                chosen = generator.get_random_transform(image.shape)
                image = generator.standardize(generator.apply_transform(image, chosen))
            images.append(image)
        batch = np.array(images, self.dtype)
        if self.save_to_dir:
            for number, image in zip(index_array, batch, strict=True):
                name = f"{self.save_prefix}_{number}_{np.random.randint(10**7)}.{self.save_format}"
                data_format = generator.data_format if generator else None
                save_img(gfile.join(self.save_to_dir, name), image, data_format)
        return batch


class NumpyArrayIterator(Images):
    """Batches of changed images of an array; made by `ImageDataGenerator.flow`.

    Args:
      x: images [n, height, width, channels], or a pair of them and further arrays.
      y: labels, or None.
      image_data_generator: what changes the images.
      batch_size: images of a batch.
      shuffle: whether in random order.
      sample_weight: weights, or None.
      seed: makes everything random the same each time.
      data_format: accepted; the generator's is used.
      save_to_dir: a folder to write the changed images to.
      save_prefix: begin of their names.
      save_format: their format.
      subset: 'training' or 'validation', by the generator's `validation_split`.
      ignore_class_split: whether the subsets may have different labels.
      dtype: of the images.

    Raises:
      ValueError: for arrays of unequal lengths, images of another rank, or another subset.

    Example:
      >>> import meshflow as tf
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
        image_data_generator: Any,
        batch_size: int = 32,
        shuffle: bool = False,
        sample_weight: Any = None,
        seed: int | None = None,
        data_format: str | None = None,
        save_to_dir: Any = None,
        save_prefix: str = "",
        save_format: str = "png",
        subset: str | None = None,
        ignore_class_split: bool = False,
        dtype: Any = None,
    ) -> None:
        self._configure(image_data_generator, (save_to_dir, save_prefix, save_format), dtype)
        others: list[Any] = []
        if isinstance(x, (tuple, list)):
            x, more = x
            others = [np.asarray(a) for a in (more if isinstance(more, list) else [more])]
        arrays = {"x": np.asarray(x), "y": y, "sample_weight": sample_weight}
        for name, array in (*arrays.items(), *(("x[1]", a) for a in others)):
            if array is not None and len(array) != len(x):
                raise ValueError(
                    f"`x` (images) and `{name}` should have the same length, got {len(x)} and {len(array)}."
                )
        kept = slice(None)
        if subset is not None:
            kept = self._kept(subset, len(x), y, ignore_class_split)
        self.x = arrays["x"][kept].astype(self.dtype)
        self.x_misc = [a[kept] for a in others]
        self.y = None if y is None else np.asarray(y)[kept]
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

    def _kept(self, subset: str, count: int, y: Any, ignore_class_split: bool) -> slice:
        if subset not in ("training", "validation"):
            raise ValueError(f"Invalid subset name: {subset}; expected 'training' or 'validation'.")
        cut = int(count * self.image_data_generator._validation_split)
        if (
            y is not None
            and not ignore_class_split
            and set(map(str, np.unique(y[:cut]))) != set(map(str, np.unique(y[cut:])))
        ):
            raise ValueError(
                "Training and validation subsets have different number of classes after the split. If your numpy arrays "
                "are sorted by the label, you might want to shuffle them."
            )
        return slice(0, cut) if subset == "validation" else slice(cut, None)

    def _image(self, number: int) -> np.ndarray:
        return self.x[number].copy()

    def _get_batches_of_transformed_samples(self, index_array: np.ndarray) -> Any:
        batch: Any = self._changed(index_array)
        if self.x_misc:
            batch = [batch, *(a[index_array] for a in self.x_misc)]
        if self.y is None:
            return batch
        weights = self.sample_weight
        return (batch, self.y[index_array], *([] if weights is None else [weights[index_array]]))
