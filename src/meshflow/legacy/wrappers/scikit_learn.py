"""`tf.keras.wrappers.scikit_learn`: Keras models as scikit-learn estimators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshflow.environment import optional_packages
from meshflow.environment.types import ArrayLike
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.training.callbacks import History
from meshflow.keras.losses import CategoricalCrossentropy, categorical_crossentropy
from meshflow.keras.utils import to_categorical

__all__ = ["KerasClassifier", "KerasRegressor"]


class BaseWrapper:
    """Base class of estimators, with a function that builds a model.

    Args:
      build_fn: Callable that returns a compiled model. If it is None, a subclass builds the model
        in `__call__`.
      **sk_params: Arguments of `build_fn`, and of the model's `fit`, `evaluate` and `predict`.

    Raises:
      ValueError: If none of these functions has a parameter.
    """

    _estimator_type: str

    def __init__(self, build_fn: Callable[..., Model] | None = None, **sk_params: Any) -> None:
        self.build_fn = build_fn
        self.sk_params = sk_params
        self.check_params(sk_params)

    def _get_builder(self) -> Callable[..., Model]:
        return self.build_fn if self.build_fn is not None else self.__call__  # type: ignore[operator]

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Check the names of parameters.

        Raises:
          ValueError: If neither the builder nor the model's methods have a parameter.
        """
        functions = (self._get_builder(), Model.fit, Model.evaluate, Model.predict)
        names = {name for function in functions for name in inspect.signature(function).parameters}
        for name in params:
            if name not in names:
                raise ValueError(
                    f"{name} is not a legal parameter: the function that builds the model does not take it, "
                    "nor do the model's fit, evaluate and predict."
                )

    def get_params(self, **params: Any) -> dict[str, Any]:
        """Return the parameters by name, with the builder as `build_fn`.

        Args:
          **params: Ignored; scikit-learn passes `deep`.
        """
        return {**self.sk_params, "build_fn": self.build_fn}

    def set_params(self, **params: Any) -> BaseWrapper:
        """Set parameters by name, and return the estimator.

        Raises:
          ValueError: If a name is not that of a parameter.
        """
        values = dict(params)
        build_fn = values.pop("build_fn", self.build_fn)
        self.build_fn = build_fn
        self.check_params(values)
        self.sk_params = {**self.sk_params, **values}
        return self

    def filter_sk_params(
        self, fn: Callable[..., Any], override: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Select the parameters that a function has; values of `override` take precedence."""
        names = inspect.signature(fn).parameters
        selected = {name: value for name, value in self.sk_params.items() if name in names}
        return {**selected, **(override or {})}

    def fit(self, x: ArrayLike, y: ArrayLike, **kwargs: Any) -> History:
        """Build a new model, as `model`, and train it.

        Args:
          x: Samples, shape [n, ...].
          y: Targets, shape [n] or [n, outputs].
          **kwargs: Arguments of the model's `fit`; they take precedence over those of the
            estimator.

        Returns:
          The `History` of the training.
        """
        builder = self._get_builder()
        self.model = builder(**self.filter_sk_params(builder))
        if _is_categorical_crossentropy(self.model.loss) and np.ndim(y) != 2:
            y = to_categorical(y)
        return self.model.fit(x, y, **self.filter_sk_params(Model.fit, kwargs))


class KerasClassifier(BaseWrapper):
    """Classifier as a scikit-learn estimator.

    Its score is the accuracy, so the model must be compiled with `metrics=["accuracy"]`.

    Args:
      build_fn: Function that returns a compiled model; its arguments are parameters of the
        estimator.
      **sk_params: Values of those arguments, and arguments of the model's `fit`, `evaluate` and
        `predict`.

    Raises:
      ValueError: If none of these functions has a parameter.

    >>> import numpy as np
    >>> def build(units=4):
    ...     layers = [tf.keras.layers.Dense(units), tf.keras.layers.Dense(1, "sigmoid")]
    ...     model = tf.keras.Sequential(layers)
    ...     model.compile(loss="binary_crossentropy", metrics=["accuracy"])
    ...     return model
    >>> classifier = tf.keras.wrappers.scikit_learn.KerasClassifier(
    ...     build, units=8, epochs=2, verbose=0
    ... )
    >>> history = classifier.fit(np.eye(2), ["no", "yes"])
    >>> classifier.classes_.tolist()
    ['no', 'yes']
    """

    _estimator_type = "classifier"

    def fit(self, x: ArrayLike, y: ArrayLike, **kwargs: Any) -> History:
        """Build a new model and train it; set `classes_` and `n_classes_`.

        Args:
          x: Samples, shape [n, ...].
          y: Class labels, shape [n] or [n, 1], or one-hot rows, shape [n, classes].
          **kwargs: Arguments of the model's `fit`.

        Returns:
          The `History` of the training.

        Raises:
          ValueError: If `y` has another shape.
        """
        labels = np.asarray(y)
        if labels.ndim == 2 and labels.shape[1] > 1:
            self.classes_ = np.arange(labels.shape[1])
        elif labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1):
            self.classes_, indices = np.unique(labels, return_inverse=True)
            labels = indices.reshape(labels.shape)
        else:
            raise ValueError(
                f"Invalid shape for y: {labels.shape}. It must be [n], [n, 1] or [n, classes]."
            )
        self.n_classes_ = len(self.classes_)
        return super().fit(x, labels, **kwargs)

    def predict(self, x: ArrayLike, **kwargs: Any) -> np.ndarray:
        """Predict the class of each sample.

        Args:
          x: Samples, shape [n, ...].
          **kwargs: Arguments of the model's `predict`.

        Returns:
          Classes, shape [n], or [n, 1] if the model has one output.
        """
        outputs = self.model.predict(x, **self.filter_sk_params(Model.predict, kwargs))
        indices = (
            outputs.argmax(axis=-1) if outputs.shape[-1] > 1 else (outputs > 0.5).astype("int32")
        )
        return np.asarray(self.classes_[indices])

    def predict_proba(self, x: ArrayLike, **kwargs: Any) -> np.ndarray:
        """Predict class probabilities, shape [n, classes]; one output results in two columns.

        Args:
          x: Samples, shape [n, ...].
          **kwargs: Arguments of the model's `predict`.
        """
        outputs = self.model.predict(x, **self.filter_sk_params(Model.predict, kwargs))
        return np.hstack([1 - outputs, outputs]) if outputs.shape[1] == 1 else np.asarray(outputs)

    def score(self, x: ArrayLike, y: ArrayLike, **kwargs: Any) -> float:
        """Compute the accuracy.

        Args:
          x: Samples, shape [n, ...].
          y: Labels in the form that `fit` takes.
          **kwargs: Arguments of the model's `evaluate`.

        Raises:
          ValueError: If the model was compiled without the metric.
        """
        labels = np.asarray(y)
        if labels.ndim < 2 or labels.shape[1] == 1:
            labels = np.searchsorted(self.classes_, labels)
        if _is_categorical_crossentropy(self.model.loss) and labels.ndim != 2:
            labels = to_categorical(labels, num_classes=self.n_classes_)
        results = self.model.evaluate(x, labels, **self.filter_sk_params(Model.evaluate, kwargs))
        for name, value in zip(self.model.metrics_names, np.atleast_1d(results), strict=True):
            if name in ("accuracy", "acc"):
                return float(value)
        raise ValueError(
            'The model is not configured to compute accuracy. Pass `metrics=["accuracy"]` to `model.compile()`.'
        )

    def __sklearn_tags__(self) -> Any:
        return _make_tags("classifier", classifier_tags=_import_sklearn_utils().ClassifierTags())


class KerasRegressor(BaseWrapper):
    """Regression model as a scikit-learn estimator.

    Args:
      build_fn: Function that returns a compiled model; its arguments are parameters of the
        estimator.
      **sk_params: Values of those arguments, and arguments of the model's `fit`, `evaluate` and
        `predict`.

    Raises:
      ValueError: If none of these functions has a parameter.

    >>> import numpy as np
    >>> def build():
    ...     model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    ...     model.compile(loss="mse")
    ...     return model
    >>> regressor = tf.keras.wrappers.scikit_learn.KerasRegressor(
    ...     build, epochs=2, verbose=0
    ... )
    >>> history = regressor.fit(np.eye(2), [1.0, 2.0])
    >>> regressor.predict(np.eye(2)).shape
    (2,)
    """

    _estimator_type = "regressor"

    def predict(self, x: ArrayLike, **kwargs: Any) -> np.ndarray:
        """Predict values, without dimensions of size 1.

        Args:
          x: Samples, shape [n, ...].
          **kwargs: Arguments of the model's `predict`.
        """
        return np.squeeze(self.model.predict(x, **self.filter_sk_params(Model.predict, kwargs)))

    def score(self, x: ArrayLike, y: ArrayLike, **kwargs: Any) -> float:
        """Compute the negative loss, because scikit-learn maximizes scores.

        Args:
          x: Samples, shape [n, ...].
          y: Targets.
          **kwargs: Arguments of the model's `evaluate`.
        """
        results = self.model.evaluate(x, y, **self.filter_sk_params(Model.evaluate, kwargs))
        return -float(np.atleast_1d(results)[0])

    def __sklearn_tags__(self) -> Any:
        return _make_tags("regressor", regressor_tags=_import_sklearn_utils().RegressorTags())


def _is_categorical_crossentropy(loss: object) -> bool:
    """Check whether a loss is categorical cross-entropy, as a name, function or object."""
    return (
        loss == "categorical_crossentropy"
        or loss is categorical_crossentropy
        or isinstance(loss, CategoricalCrossentropy)
    )


def _make_tags(kind: str, **details: Any) -> Any:
    """Create the tags that scikit-learn 1.6 and later read instead of `_estimator_type`."""
    target = _import_sklearn_utils().TargetTags(required=True)
    return _import_sklearn_utils().Tags(estimator_type=kind, target_tags=target, **details)


def _import_sklearn_utils() -> Any:
    return optional_packages.import_extra("sklearn.utils", "demo", "Estimators need scikit-learn")
