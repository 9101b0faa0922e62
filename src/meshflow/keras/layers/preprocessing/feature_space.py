"""`FeatureSpace`: preprocessing and encoding of the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.data.dataset import Dataset
from meshflow.environment.types import Config, PyTree, StrPath
from meshflow.keras import settings
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.models.model import Model
from meshflow.keras.layers.core import Identity
from meshflow.keras.layers.merging import Concatenate
from meshflow.keras.layers.preprocessing.category_encoding import CategoryEncoding
from meshflow.keras.layers.preprocessing.discretization import Discretization
from meshflow.keras.layers.preprocessing.hashing import HashedCrossing, Hashing
from meshflow.keras.layers.preprocessing.lookups import IntegerLookup, StringLookup
from meshflow.keras.layers.preprocessing.normalization import Normalization
from meshflow.keras.layers.preprocessing.preprocessing_layer import as_tensor
from meshflow.keras.layers.preprocessing.text_vectorization import TextVectorization
from meshflow.keras.layers.wrappers import Rescaling
from meshflow.keras.literals import SaveFormat
from meshflow.keras.registry import CustomObjects, register_keras_serializable
from meshflow.keras.serialization import deserialize_keras_object, serialize_keras_object
from meshflow.ops import array

# `FeatureSpace.float` hides the type of this name.
_Number: TypeAlias = float
# Number of examples per batch while a feature is learned from a dataset of single examples.
_BATCH_SIZE = 32


def _check_mode(output_mode: str, allowed: Sequence[str]) -> None:
    if output_mode not in allowed:
        raise ValueError(
            f"Invalid value for argument `output_mode`. Expected one of {set(allowed)}. "
            f"Received: output_mode={output_mode}"
        )


@register_keras_serializable(package="keras.utils.FeatureSpace")
class Feature:
    """A column of a table: its dtype, and how it is preprocessed and encoded.

    Args:
      dtype: Dtype of the column.
      preprocessor: A layer, or its configuration.
      output_mode: 'one_hot', 'int' or 'float'.

    Raises:
      ValueError: If the mode is unknown.
    """

    def __init__(self, dtype: str, preprocessor: Layer | Config, output_mode: str) -> None:
        _check_mode(output_mode, ("int", "one_hot", "float"))
        self.dtype, self.output_mode = dtype, output_mode
        is_config = isinstance(preprocessor, Mapping)
        self.preprocessor: Any = (
            deserialize_keras_object(preprocessor) if is_config else preprocessor
        )

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            "dtype": self.dtype,
            "preprocessor": serialize_keras_object(self.preprocessor),
            "output_mode": self.output_mode,
        }

    @classmethod
    def from_config(cls, config: Config) -> Feature:
        """Create a feature from a configuration."""
        return cls(**config)


@register_keras_serializable(package="keras.utils.FeatureSpace")
class Cross:
    """A combination of categorical columns, hashed to a number of categories.

    Args:
      feature_names: Names of the columns.
      crossing_dim: Number of categories.
      output_mode: 'one_hot' or 'int'.

    Raises:
      ValueError: If the mode is unknown.
    """

    def __init__(
        self, feature_names: Sequence[str], crossing_dim: int, output_mode: str = "one_hot"
    ) -> None:
        _check_mode(output_mode, ("int", "one_hot"))
        self.feature_names = tuple(feature_names)
        self.crossing_dim, self.output_mode = crossing_dim, output_mode

    @property
    def name(self) -> str:
        """Return the name of the combination."""
        return "_X_".join(self.feature_names)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            "feature_names": self.feature_names,
            "crossing_dim": self.crossing_dim,
            "output_mode": self.output_mode,
        }

    @classmethod
    def from_config(cls, config: Config) -> Cross:
        """Create a combination from a configuration."""
        return cls(**config)


def _name_preprocessor(name: str | None, kind: str) -> str:
    return f"{settings.make_unique_name(name or kind)}_preprocessor"


def _needs_adaptation(layer: Layer) -> bool:
    """Check whether a preprocessing layer has to learn a state from data."""
    if isinstance(layer, (IntegerLookup, StringLookup, TextVectorization)):
        return not layer.is_static
    if isinstance(layer, Discretization):
        return layer.input_bin_boundaries is None
    return isinstance(layer, Normalization) and layer.input_mean is None


def _count_categories(layer: Layer, name: str) -> int:
    """Return the number of ids that a preprocessing layer returns.

    Raises:
      ValueError: If the number is unknown.
    """
    if isinstance(layer, (IntegerLookup, StringLookup, TextVectorization)):
        return layer.vocabulary_size()
    if isinstance(layer, Discretization):
        return len(layer.bin_boundaries) + 1
    if isinstance(layer, (Hashing, HashedCrossing)):
        return layer.num_bins
    raise ValueError(
        f"Feature '{name}' has `output_mode='one_hot'`, but the number of categories that its preprocessor "
        f"{type(layer).__name__} returns is not known. Use `output_mode='int'`."
    )


class FeatureSpace(Model):
    """Preprocessing and encoding of a table with named columns.

    Each column is a feature: a string such as 'float_normalized', or the result of a class method
    such as `FeatureSpace.string_categorical()`. `adapt` learns vocabularies, means and bins.

    Args:
      features: The features by name.
      output_mode: 'concat' to concatenate the encoded features, sorted by name and followed by the
        combinations, or 'dict'.
      crosses: Combinations of categorical features: `FeatureSpace.cross(...)`, or tuples of names.
      crossing_dim: Number of categories of combinations that are tuples.
      hashing_dim: Number of bins of 'string_hashed' and 'integer_hashed'.
      num_discretization_bins: Number of bins of 'float_discretized'.

    Raises:
      ValueError: If an argument is invalid.

    Example:
      >>> space = tf.keras.utils.FeatureSpace({"size": "float", "color": "string_categorical"})
      >>> data = {"size": [1.0, 2.0], "color": ["red", "blue"]}
      >>> space.adapt(tf.data.Dataset.from_tensor_slices(data))
      >>> print(space(data).numpy())
      [[0. 1. 0. 1.]
       [0. 0. 1. 2.]]
    """

    # A file holds the shapes of the inputs if the state was learned.
    _builds_by_shape = True

    def __init__(
        self,
        features: Mapping[str, Any],
        output_mode: Literal["concat", "dict"] = "concat",
        crosses: Sequence[Any] | None = None,
        crossing_dim: int = 32,
        hashing_dim: int = 32,
        num_discretization_bins: int = 32,
    ) -> None:
        super().__init__()
        if not features:
            raise ValueError("The `features` argument cannot be None or empty.")
        _check_mode(output_mode, ("concat", "dict"))
        self.crossing_dim, self.hashing_dim = crossing_dim, hashing_dim
        self.num_discretization_bins = num_discretization_bins
        self.features = {
            name: self._make_feature(name, features[name]) for name in sorted(features)
        }
        self.output_mode = output_mode
        self.crosses = [self._make_cross(cross) for cross in crosses or ()]
        self.crossers = {
            c.name: HashedCrossing(c.crossing_dim, name=_name_preprocessor(None, c.name))
            for c in self.crosses
        }
        self.preprocessors = {name: f.preprocessor for name, f in self.features.items()}
        self.one_hot_encoders: dict[str, CategoryEncoding] = {}
        self._is_adapted = False
        self._graphs: tuple[Model, Model] | None = None
        self._inputs: dict[str, Tensor] = {}

    def _make_feature(self, name: str, feature: Feature | Config | str) -> Feature:
        if isinstance(feature, Mapping):
            feature = deserialize_keras_object(feature)
        if isinstance(feature, Feature):
            return feature
        makers = {
            "float": lambda: self.float(name=name),
            "float_normalized": lambda: self.float_normalized(name=name),
            "float_rescaled": lambda: self.float_rescaled(name=name),
            "float_discretized": lambda: self.float_discretized(
                self.num_discretization_bins, name=name
            ),
            "integer_categorical": lambda: self.integer_categorical(name=name),
            "string_categorical": lambda: self.string_categorical(name=name),
            "integer_hashed": lambda: self.integer_hashed(self.hashing_dim, name=name),
            "string_hashed": lambda: self.string_hashed(self.hashing_dim, name=name),
        }
        if not isinstance(feature, str) or feature not in makers:
            raise ValueError(f"Invalid feature type: {feature}")
        return makers[feature]()

    def _make_cross(self, cross: Cross | Config | Sequence[str]) -> Cross:
        if isinstance(cross, dict):
            cross = deserialize_keras_object(cross)
        if not isinstance(cross, Cross):
            cross = Cross(tuple(cross), self.crossing_dim)
        if not set(cross.feature_names) <= set(self.features):
            raise ValueError(
                "All features referenced in the `crosses` argument should be present in the `features` dict. "
                f"Received unknown features: {cross.feature_names}"
            )
        return cross

    # ---- features --------------------------------------------------------------------------

    @classmethod
    def cross(
        cls, feature_names: Sequence[str], crossing_dim: int, output_mode: str = "one_hot"
    ) -> Cross:
        """Create a combination of categorical features."""
        return Cross(feature_names, crossing_dim, output_mode)

    @classmethod
    def feature(cls, dtype: str, preprocessor: Layer, output_mode: str) -> Feature:
        """Create a feature with any layer as preprocessor."""
        return Feature(dtype, preprocessor, output_mode)

    @classmethod
    def float(cls, name: str | None = None) -> Feature:
        """Create a feature of numbers that do not change."""
        layer = Identity(dtype="float32", name=_name_preprocessor(name, "float"))
        return Feature("float32", layer, "float")

    @classmethod
    def float_rescaled(
        cls, scale: _Number = 1.0, offset: _Number = 0.0, name: str | None = None
    ) -> Feature:
        """Create a feature of numbers that become `scale * x + offset`."""
        label = _name_preprocessor(name, "float_rescaled")
        return Feature("float32", Rescaling(scale=scale, offset=offset, name=label), "float")

    @classmethod
    def float_normalized(cls, name: str | None = None) -> Feature:
        """Create a feature of numbers that are scaled to mean 0 and variance 1."""
        label = _name_preprocessor(name, "float_normalized")
        return Feature("float32", Normalization(axis=-1, name=label), "float")

    @classmethod
    def float_discretized(
        cls,
        num_bins: int | None,
        bin_boundaries: Sequence[_Number] | None = None,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> Feature:
        """Create a feature of numbers that become ids of bins."""
        label = _name_preprocessor(name, "float_discretized")
        layer = Discretization(bin_boundaries, num_bins, name=label)
        return Feature("float32", layer, output_mode)

    @classmethod
    def integer_categorical(
        cls,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> Feature:
        """Create a feature of integers that become ids of a vocabulary."""
        label = _name_preprocessor(name, "integer_categorical")
        layer = IntegerLookup(max_tokens=max_tokens, num_oov_indices=num_oov_indices, name=label)
        return Feature("int64", layer, output_mode)

    @classmethod
    def string_categorical(
        cls,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> Feature:
        """Create a feature of strings that become ids of a vocabulary."""
        label = _name_preprocessor(name, "string_categorical")
        layer = StringLookup(max_tokens=max_tokens, num_oov_indices=num_oov_indices, name=label)
        return Feature("string", layer, output_mode)

    @classmethod
    def string_hashed(
        cls, num_bins: int, output_mode: str = "one_hot", name: str | None = None
    ) -> Feature:
        """Create a feature of strings that become hashes."""
        label = _name_preprocessor(name, "string_hashed")
        return Feature("string", Hashing(num_bins, name=label), output_mode)

    @classmethod
    def integer_hashed(
        cls, num_bins: int, output_mode: str = "one_hot", name: str | None = None
    ) -> Feature:
        """Create a feature of integers that become hashes."""
        label = _name_preprocessor(name, "integer_hashed")
        return Feature("int64", Hashing(num_bins, name=label), output_mode)

    # ---- state -----------------------------------------------------------------------------

    def adapt(self, dataset: Dataset) -> None:
        """Learn the state of all features that have one.

        Args:
          dataset: A dataset of dictionaries with the features, single examples or batches.

        Raises:
          ValueError: If the argument is no dataset.
        """
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"`adapt()` can only be called on a tf.data.Dataset. Received instead: {dataset} (of type "
                f"{type(dataset)})"
            )
        for name, layer in self.preprocessors.items():
            if not _needs_adaptation(layer):
                continue
            column: Dataset = dataset.map(lambda row, name=name: row[name])  # type: ignore[misc]
            if not column.element_spec.shape.rank:
                column = column.batch(_BATCH_SIZE)
            if column.element_spec.shape.rank == 1:
                column = column.map(lambda x: array.expand_dims(x, -1))
            layer.adapt(column)
        self._is_adapted, self._graphs = True, None
        self._get_graphs()

    def _check_adapted(self) -> None:
        if not self._is_adapted and any(map(_needs_adaptation, self.preprocessors.values())):
            raise ValueError(
                "You need to call `.adapt(dataset)` on the FeatureSpace before you can start using it."
            )

    def _get_graphs(self) -> tuple[Model, Model]:
        """Return the models that compute the preprocessed and the encoded features."""
        self._check_adapted()
        if self._graphs is None:
            preprocessed = self._preprocess()
            crossed = {
                c.name: self.crossers[c.name]([preprocessed[n] for n in c.feature_names])
                for c in self.crosses
            }
            encoded = {
                name: self._encode(name, value)
                for name, value in {**preprocessed, **crossed}.items()
            }
            outputs = self._merge(encoded) if self.output_mode == "concat" else encoded
            self._graphs = Model(self._inputs, preprocessed), Model(self._inputs, outputs)
        return self._graphs

    def _preprocess(self) -> dict[str, Tensor]:
        """Create the inputs and call the preprocessors, which creates their weights."""
        self._inputs = {
            name: Input((1,), dtype=f.dtype, name=name) for name, f in self.features.items()
        }
        self._build_input_shape = {name: (None, 1) for name in self.features}
        self.built = True
        return {name: self.preprocessors[name](x) for name, x in self._inputs.items()}

    def _encode(self, name: str, value: Tensor) -> Tensor:
        crosses = {cross.name: cross for cross in self.crosses}
        feature: Feature | Cross = crosses.get(name) or self.features[name]
        if feature.output_mode != "one_hot":
            return value
        if not value.dtype.is_integer:
            raise ValueError(
                f"Feature '{name}' has `output_mode='one_hot'`. Thus its preprocessor should return an integer dtype. "
                f"Instead it returns a {value.dtype.name} dtype."
            )
        layer = self.crossers.get(name) or self.preprocessors[name]
        encoder = CategoryEncoding(_count_categories(layer, name), output_mode="multi_hot")
        self.one_hot_encoders[name] = encoder
        return encoder(value)

    def _merge(self, encoded: dict[str, Tensor]) -> Tensor:
        for name, value in encoded.items():
            if not value.dtype.is_floating:
                raise ValueError(
                    f"Cannot concatenate features because feature '{name}' has not been encoded (it has dtype "
                    f"{value.dtype.name}). Consider using `output_mode='dict'`."
                )
        values = list(encoded.values())
        return Concatenate()(values) if len(values) > 1 else values[0]

    def get_inputs(self) -> dict[str, Tensor]:
        """Return the symbolic inputs by name."""
        self._get_graphs()
        return self._inputs

    def get_preprocessed_features(self) -> dict[str, Tensor]:
        """Return the symbolic features before they are encoded, by name."""
        return cast("dict[str, Tensor]", self._get_graphs()[0].output)

    def get_encoded_features(self) -> PyTree:
        """Return the symbolic encoded features: a tensor, or a dictionary."""
        return self._get_graphs()[1].output

    # ---- calls -----------------------------------------------------------------------------

    def __call__(self, data: PyTree, *args: Any, **kwargs: Any) -> PyTree:
        """Preprocess and encode examples.

        Args:
          data: A dictionary with all features: of a batch, [batch] or [batch, 1], or of one example.
          *args: Ignored.
          **kwargs: Ignored.

        Returns:
          The encoded features; those of one example have no batch dimension.

        Raises:
          ValueError: If `data` is no dictionary, or `adapt` was not called.
          KeyError: If a feature is missing or unknown.
        """
        _, graph = self._get_graphs()
        if not isinstance(data, Mapping):
            raise ValueError(
                f"A FeatureSpace can only be called with a dict. Received: data={data} (of type {type(data)}"
            )
        different_names = set(data) ^ set(self.features)
        if different_names:
            raise KeyError(min(different_names))
        tensors = {name: as_tensor(data[name]) for name in self.features}
        is_single = all(t.shape.rank == 0 for t in tensors.values())
        outputs = graph({name: _to_columns(t) for name, t in tensors.items()})
        if not is_single:
            return outputs
        return nest.map_structure(lambda t: array.squeeze(t, 0), outputs)

    def get_config(self) -> Config:
        """Return the configuration, with learned vocabularies."""
        return {
            "features": serialize_keras_object(self.features),
            "output_mode": self.output_mode,
            "crosses": serialize_keras_object(self.crosses),
            "crossing_dim": self.crossing_dim,
            "hashing_dim": self.hashing_dim,
            "num_discretization_bins": self.num_discretization_bins,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: CustomObjects = None) -> FeatureSpace:
        """Create a FeatureSpace from a configuration."""
        return cls(**config)

    def build(self, input_shape: PyTree) -> None:
        """Create the weights of a FeatureSpace that was adapted before it was saved."""
        # A vocabulary in the file is read later, and determines the sizes of the encoded features.
        self._is_adapted = True
        self._preprocess()

    def save(
        self,
        filepath: StrPath,
        overwrite: bool = True,
        save_format: SaveFormat | None = None,
        **kwargs: Any,
    ) -> None:
        """Save the features and their state to a `.keras` file, for `tf.keras.models.load_model`."""
        was_built, self.built = self.built, True  # Without a state, there are no weights to save.
        try:
            super().save(filepath, overwrite, save_format or "keras", **kwargs)
        finally:
            self.built = was_built


def _to_columns(tensor: Tensor) -> Tensor:
    """Convert a scalar or vector to a column."""
    rank = tensor.shape.rank
    if rank == 0:
        return array.reshape(tensor, [1, 1])
    return array.expand_dims(tensor, -1) if rank == 1 else tensor
