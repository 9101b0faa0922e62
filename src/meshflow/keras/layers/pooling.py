"""Pooling, upsampling, padding and cropping layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.convolutional import output_size, sizes
from meshflow.ops import array, image, math, nn

__all__: list[str] = []

if TYPE_CHECKING:
    # The classes for each number of dimensions are made below.
    AveragePooling2D: Any
    Cropping2D: Any
    GlobalAveragePooling2D: Any
    GlobalMaxPooling2D: Any
    MaxPooling2D: Any
    ZeroPadding2D: Any


class _Spatial(Layer):
    """A layer with spatial dimensions."""

    rank = 2

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = settings.standard_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    @property
    def _first(self) -> bool:
        return self.data_format == "channels_first"

    @property
    def _format(self) -> str:
        spatial = "DHW"[3 - self.rank :]
        return f"NC{spatial}" if self._first else f"N{spatial}C"

    def _with_spatial(self, input_shape: Any, change: Any) -> TensorShape:
        shape = TensorShape(input_shape).as_list()
        start = 2 if self._first else 1
        new = [
            None if s is None else change(i, s)
            for i, s in enumerate(shape[start : start + self.rank])
        ]
        return TensorShape([*shape[:start], *new, *shape[start + self.rank :]])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "data_format": self.data_format}


class Pooling(_Spatial):
    """Pooling over windows."""

    function: Any = None

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: str = "valid",
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        # Sequences have their channels last whatever the default for images is.
        super().__init__(data_format or ("channels_last" if self.rank == 1 else None), **kwargs)
        self.pool_size = sizes(pool_size, self.rank, "pool_size")
        self.strides = self.pool_size if strides is None else sizes(strides, self.rank, "strides")
        self.padding = padding.lower()
        if self.padding not in ("valid", "same"):
            raise ValueError(
                f"The `padding` argument must be one of 'valid', 'same'. Received: {padding}"
            )

    def call(self, inputs: Any) -> Any:
        """The pooled tensor."""
        return type(self).function(
            inputs, self.pool_size, self.strides, self.padding.upper(), self._format
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        shape = self._with_spatial(
            input_shape,
            lambda i, s: output_size(s, self.pool_size[i], self.padding, self.strides[i]),
        )
        if any(s is not None and s <= 0 for s in shape[1:]):
            raise ValueError(
                f"{self.name}: windows of {self.pool_size} do not fit into input of shape {tuple(TensorShape(input_shape).as_list())}."
            )
        return shape

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "pool_size": self.pool_size,
            "strides": self.strides,
            "padding": self.padding,
        }


class GlobalPooling(_Spatial):
    """Pooling over all positions."""

    function: Any = None

    def __init__(
        self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.keepdims = keepdims

    def call(self, inputs: Any) -> Any:
        """The pooled tensor."""
        start = 2 if self._first else 1
        return type(self).function(
            inputs, axis=list(range(start, start + self.rank)), keepdims=self.keepdims
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        shape = self._with_spatial(input_shape, lambda i, s: 1).as_list()
        if self.keepdims:
            return TensorShape(
                [1 if 0 < i < len(shape) - 1 else s for i, s in enumerate(shape)]
                if not self._first
                else shape
            )
        return TensorShape([shape[0], shape[1 if self._first else -1]])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "keepdims": self.keepdims}


class _MaskedAverage(GlobalPooling):
    """Average over timesteps that are not masked."""

    rank = 1

    def __init__(self, data_format: str | None = "channels_last", **kwargs: Any) -> None:
        super().__init__(data_format, **kwargs)
        self.supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        """The pooled tensor."""
        axis = 2 if self._first else 1
        if mask is None:
            return math.reduce_mean(inputs, axis=axis, keepdims=self.keepdims)
        weights = array.expand_dims(math.cast(mask, inputs.dtype), 1 if self._first else -1)
        return math.reduce_sum(
            inputs * weights, axis=axis, keepdims=self.keepdims
        ) / math.reduce_sum(weights, axis=axis, keepdims=self.keepdims)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """None: there are no timesteps any more."""
        return None


def _make(name: str, base: type, rank: int, function: Any, doc: str, *aliases: str) -> type:
    before = (4, 6, 8)[:rank]
    after = {
        "Pooling": tuple(n // 2 for n in before),
        "UpSampling": tuple(n * 2 for n in before),
        "ZeroPadding": tuple(n + 2 for n in before),
        "Cropping": tuple(n - 2 for n in before),
        "_ImageCropping": before,
    }.get(base.__name__, ())
    places = ("steps",) if rank == 1 else ("depth", "height", "width")[-rank:]
    given, new = ", ".join(places), ", ".join(f"new_{place}" for place in places)
    pooled = "Global" in base.__name__ or base is _MaskedAverage
    ones = ", ".join("1" * rank)
    result = (
        f"(batch, channels); with `keepdims` (batch, {ones}, channels)"
        if pooled
        else f"(batch, {new}, channels)"
    )
    raises = doc.find("    Raises:")
    arguments, errors = (doc, "") if raises < 0 else (doc[:raises], doc[raises:].rstrip() + "\n\n")
    doc = f"""{arguments.rstrip()}

    Input shape:
      (batch, {given}, channels). With 'channels_first' the channels come second.

    Output shape:
      {result}, with the same order of dimensions.

{errors}    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.{name}()(tf.ones({[1, *before, 3]})).shape
      TensorShape({[1, *after, 3]})
    """
    made = type(
        name,
        (base,),
        {
            "rank": rank,
            "function": staticmethod(function) if function else None,
            "__doc__": doc,
            "__module__": __name__,
        },
    )
    for own in (name, *aliases):
        globals()[own] = made
        __all__.append(own)
    return made


_POOL_DOC = """{what} of each window over {rank} dimension(s).

    Args:
      pool_size: size of the window.
      strides: step of the window; default `pool_size`.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'.
      **kwargs: arguments of `Layer`.
    """
_GLOBAL_DOC = """{what} over all positions of {rank} dimension(s).

    Args:
      data_format: 'channels_last' or 'channels_first'.
      keepdims: whether the dimensions stay, with size 1.
      **kwargs: arguments of `Layer`.
    """
for _rank in (1, 2, 3):
    _make(
        f"MaxPooling{_rank}D",
        Pooling,
        _rank,
        nn.max_pool,
        _POOL_DOC.format(what="Maximum", rank=_rank),
        f"MaxPool{_rank}D",
    )
    _make(
        f"AveragePooling{_rank}D",
        Pooling,
        _rank,
        nn.avg_pool,
        _POOL_DOC.format(what="Mean", rank=_rank),
        f"AvgPool{_rank}D",
    )
    _make(
        f"GlobalMaxPooling{_rank}D",
        GlobalPooling,
        _rank,
        math.reduce_max,
        _GLOBAL_DOC.format(what="Maximum", rank=_rank),
        f"GlobalMaxPool{_rank}D",
    )
    _make(
        f"GlobalAveragePooling{_rank}D",
        _MaskedAverage if _rank == 1 else GlobalPooling,
        _rank,
        math.reduce_mean,
        _GLOBAL_DOC.format(what="Mean", rank=_rank),
        f"GlobalAvgPool{_rank}D",
    )


class UpSampling(_Spatial):
    """Repeats positions, or interpolates between them, which gives float32 under every policy."""

    def __init__(
        self,
        size: Any = 2,
        data_format: str | None = None,
        interpolation: str = "nearest",
        **kwargs: Any,
    ) -> None:
        super().__init__(data_format, **kwargs)
        self.size = sizes(size, self.rank, "size")
        self.interpolation = interpolation
        # Interpolation gives another dtype than the compute dtype.
        self._traced_shape = interpolation != "nearest"

    def call(self, inputs: Any) -> Any:
        """The larger tensor."""
        start = 2 if self._first else 1
        if self.interpolation != "nearest":
            return self._interpolated(inputs)
        for i, n in enumerate(self.size):
            inputs = array.repeat(inputs, n, axis=start + i)
        return inputs

    def _interpolated(self, inputs: Any) -> Any:
        x = array.transpose(inputs, [0, 2, 3, 1]) if self._first else inputs
        new = [x.shape[1] * self.size[0], x.shape[2] * self.size[1]]
        x = image.resize(x, new, method=self.interpolation)
        return array.transpose(x, [0, 3, 1, 2]) if self._first else x

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        return self._with_spatial(input_shape, lambda i, s: s * self.size[i])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        own = {"interpolation": self.interpolation} if self.rank == 2 else {}
        config = {**super().get_config(), "size": self.size, **own}
        return _of_sequences(config, "size") if self.rank == 1 else config


def _of_sequences(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A configuration for one dimension: one size instead of a tuple of them, and channels come last."""
    return {**{k: v for k, v in config.items() if k != "data_format"}, name: config[name][0]}


def _pairs(value: Any, rank: int, name: str) -> tuple[tuple[int, int], ...]:
    if isinstance(value, int):
        return ((value, value),) * rank
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"`{name}` should be an int or a tuple. Received: {value!r}.")
    if rank == 1 and len(value) == 2 and all(isinstance(v, int) for v in value):
        return (tuple(value),)
    if len(value) != rank:
        raise ValueError(f"`{name}` should have {rank} elements. Received: {value}.")
    pairs = tuple((v, v) if isinstance(v, int) else tuple(v) for v in value)
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"`{name}` should hold integers or pairs of them. Received: {value}.")
    return pairs


class ZeroPadding(_Spatial):
    """Adds zeros around."""

    def __init__(self, padding: Any = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(data_format, **kwargs)
        self.padding = _pairs(padding, self.rank, "padding")

    def call(self, inputs: Any) -> Any:
        """The padded tensor."""
        edge = [(0, 0)]
        return array.pad(
            inputs,
            [*edge, *(edge if self._first else []), *self.padding, *([] if self._first else edge)],
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        return self._with_spatial(input_shape, lambda i, s: s + sum(self.padding[i]))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = {**super().get_config(), "padding": self.padding}
        return _of_sequences(config, "padding") if self.rank == 1 else config


class Cropping(_Spatial):
    """Cuts off borders."""

    def __init__(self, cropping: Any = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(data_format, **kwargs)
        self.cropping = _pairs(cropping, self.rank, "cropping")

    def call(self, inputs: Any) -> Any:
        """The cropped tensor."""
        spatial = inputs.shape.as_list()[2:] if self._first else inputs.shape.as_list()[1:-1]
        if any(sum(cut) >= n for cut, n in zip(self.cropping, spatial, strict=True)):
            raise ValueError(
                "Values in `cropping` argument should be smaller than the corresponding spatial dimension of the "
                f"input. Received: input_shape={inputs.shape}, cropping={self.cropping}"
            )
        cuts = tuple(slice(a, n - b) for (a, b), n in zip(self.cropping, spatial, strict=True))
        return inputs[(slice(None), slice(None), *cuts) if self._first else (slice(None), *cuts)]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        return self._with_spatial(input_shape, lambda i, s: s - sum(self.cropping[i]))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        config = {**super().get_config(), "cropping": self.cropping}
        return _of_sequences(config, "cropping") if self.rank == 1 else config


class _ImageCropping(Cropping):
    """Cuts off nothing unless told to, which only images have as their default."""

    def __init__(
        self,
        cropping: Any = ((0, 0), (0, 0)),
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cropping, data_format, **kwargs)


_UPSAMPLING_DOC = """Repeats positions of {rank} dimension(s).

    Args:
      size: how often each position stands in the output: an integer, or one for each dimension.
      data_format: 'channels_last' or 'channels_first'.
      interpolation: 'nearest' repeats; images also take other methods of `tf.image.resize`.
      **kwargs: arguments of `Layer`.
    """
_PADDING_DOC = """Adds zeros around {rank} dimension(s).

    Args:
      padding: how many: an integer, or for each dimension an integer or a pair (before, after).
      data_format: 'channels_last' or 'channels_first'.
      **kwargs: arguments of `Layer`.

    Raises:
      ValueError: for a `padding` that is neither.
    """
_CROPPING_DOC = """Cuts off the borders of {rank} dimension(s).

    Args:
      cropping: how much: an integer, or for each dimension an integer or a pair (before, after).
      data_format: 'channels_last' or 'channels_first'.
      **kwargs: arguments of `Layer`.

    Raises:
      ValueError: for a `cropping` that is neither, or that leaves nothing.
    """
for _rank in (1, 2, 3):
    _make(
        f"UpSampling{_rank}D",
        UpSampling,
        _rank,
        None,
        _UPSAMPLING_DOC.format(rank=_rank),
    )
    _make(f"ZeroPadding{_rank}D", ZeroPadding, _rank, None, _PADDING_DOC.format(rank=_rank))
    _cropping = _ImageCropping if _rank == 2 else Cropping
    _make(f"Cropping{_rank}D", _cropping, _rank, None, _CROPPING_DOC.format(rank=_rank))
