"""Keras models as scikit-learn's estimators: for cross-validation, searches and pipelines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshflow.environment import extras
from meshflow.keras.engine.models.model import Model
from meshflow.keras.losses import CategoricalCrossentropy, categorical_crossentropy
from meshflow.keras.utils import to_categorical

__all__ = ["KerasClassifier", "KerasRegressor"]


class BaseWrapper:
    """What the two estimators share: a function that builds a model, and parameters for it and for `fit`.

    Args:
      build_fn: function, or object that can be called, that returns a compiled model. None lets a subclass
        build the model in its own `__call__`.
      **sk_params: arguments of `build_fn`, and of the model's `fit`, `evaluate` and `predict`.

    Raises:
      ValueError: a parameter that none of these functions has.
    """

    _estimator_type: str

    def __init__(self, build_fn: Callable[..., Model] | None = None, **sk_params: Any) -> None:
        self.build_fn = build_fn
        self.sk_params = sk_params
        self.check_params(sk_params)

    def _builder(self) -> Callable[..., Model]:
        return self.build_fn if self.build_fn is not None else self.__call__  # type: ignore[operator]

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Checks the names of parameters.

        Raises:
          ValueError: a name that neither the builder nor the model's methods have.
        """
        functions = (self._builder(), Model.fit, Model.evaluate, Model.predict)
        known = {name for function in functions for name in inspect.signature(function).parameters}
        for name in params:
            if name not in known:
                raise ValueError(
                    f"{name} is not a legal parameter: the function that builds the model does not take it, "
                    "nor do the model's fit, evaluate and predict."
                )

    def get_params(self, **params: Any) -> dict[str, Any]:
        """The parameters by name, with the builder as `build_fn`.

        Args:
          **params: accepted for scikit-learn's sake (`deep`), without effect.
        """
        return {**self.sk_params, "build_fn": self.build_fn}

    def set_params(self, **params: Any) -> BaseWrapper:
        """Sets parameters by name and returns the estimator.

        Raises:
          ValueError: a name that is not a parameter.
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
        """Those parameters that a function has, with the values of `override` going first."""
        names = inspect.signature(fn).parameters
        given = {name: value for name, value in self.sk_params.items() if name in names}
        return {**given, **(override or {})}

    def fit(self, x: Any, y: Any, **kwargs: Any) -> Any:
        """Builds a new model, as `model`, and trains it.

        Args:
          x: samples, shape [n, ...].
          y: targets, shape [n] or [n, outputs].
          **kwargs: arguments of the model's `fit`; they go before those of the estimator.

        Returns:
          The `History` of the training.
        """
        builder = self._builder()
        self.model = builder(**self.filter_sk_params(builder))
        if _categorical(self.model.loss) and np.ndim(y) != 2:
            y = to_categorical(y)
        return self.model.fit(x, y, **self.filter_sk_params(Model.fit, kwargs))


class KerasClassifier(BaseWrapper):
    """A model that classifies, as an estimator of scikit-learn.

    Its score is the accuracy, so that the model must be compiled with `metrics=["accuracy"]`.

    Args:
      build_fn: function that returns a compiled model; its arguments are parameters of the estimator.
      **sk_params: values of those arguments, and arguments of the model's `fit`, `evaluate` and `predict`.

    Raises:
      ValueError: a parameter that none of these functions has.

    >>> import numpy as np
    >>> import meshflow as tf
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

    def fit(self, x: Any, y: Any, **kwargs: Any) -> Any:
        """Builds a new model and trains it; `classes_` and `n_classes_` then tell the classes.

        Args:
          x: samples, shape [n, ...].
          y: classes of any kind, shape [n] or [n, 1], or one-hot rows, shape [n, classes].
          **kwargs: arguments of the model's `fit`.

        Returns:
          The `History` of the training.

        Raises:
          ValueError: `y` of another shape.
        """
        y = np.asarray(y)
        if y.ndim == 2 and y.shape[1] > 1:
            self.classes_ = np.arange(y.shape[1])
        elif y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
            self.classes_, places = np.unique(y, return_inverse=True)
            y = places.reshape(y.shape)
        else:
            raise ValueError(
                f"Invalid shape for y: {y.shape}. It must be [n], [n, 1] or [n, classes]."
            )
        self.n_classes_ = len(self.classes_)
        return super().fit(x, y, **kwargs)

    def predict(self, x: Any, **kwargs: Any) -> np.ndarray:
        """The class of each sample.

        Args:
          x: samples, shape [n, ...].
          **kwargs: arguments of the model's `predict`.

        Returns:
          Classes, shape [n], or [n, 1] from a model with one output.
        """
        outputs = self.model.predict(x, **self.filter_sk_params(Model.predict, kwargs))
        places = (
            outputs.argmax(axis=-1) if outputs.shape[-1] > 1 else (outputs > 0.5).astype("int32")
        )
        return np.asarray(self.classes_[places])

    def predict_proba(self, x: Any, **kwargs: Any) -> np.ndarray:
        """The probability of each class, shape [n, classes]; one output gives two columns.

        Args:
          x: samples, shape [n, ...].
          **kwargs: arguments of the model's `predict`.
        """
        outputs = self.model.predict(x, **self.filter_sk_params(Model.predict, kwargs))
        return np.hstack([1 - outputs, outputs]) if outputs.shape[1] == 1 else np.asarray(outputs)

    def score(self, x: Any, y: Any, **kwargs: Any) -> float:
        """The accuracy on data.

        Args:
          x: samples, shape [n, ...].
          y: their classes, as `fit` takes them.
          **kwargs: arguments of the model's `evaluate`.

        Raises:
          ValueError: the model was compiled without the metric.
        """
        y = np.asarray(y)
        if y.ndim < 2 or y.shape[1] == 1:
            y = np.searchsorted(self.classes_, y)
        if _categorical(self.model.loss) and y.ndim != 2:
            y = to_categorical(y, num_classes=self.n_classes_)
        results = self.model.evaluate(x, y, **self.filter_sk_params(Model.evaluate, kwargs))
        for name, value in zip(self.model.metrics_names, np.atleast_1d(results), strict=True):
            if name in ("accuracy", "acc"):
                return float(value)
        raise ValueError(
            'The model is not configured to compute accuracy. Pass `metrics=["accuracy"]` to `model.compile()`.'
        )

    def __sklearn_tags__(self) -> Any:
        return _tags("classifier", classifier_tags=_sklearn().ClassifierTags())


class KerasRegressor(BaseWrapper):
    """A model that predicts numbers, as an estimator of scikit-learn.

    Args:
      build_fn: function that returns a compiled model; its arguments are parameters of the estimator.
      **sk_params: values of those arguments, and arguments of the model's `fit`, `evaluate` and `predict`.

    Raises:
      ValueError: a parameter that none of these functions has.

    >>> import numpy as np
    >>> import meshflow as tf
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

    def predict(self, x: Any, **kwargs: Any) -> np.ndarray:
        """The numbers that the model gives, without dimensions of size one.

        Args:
          x: samples, shape [n, ...].
          **kwargs: arguments of the model's `predict`.
        """
        return np.squeeze(self.model.predict(x, **self.filter_sk_params(Model.predict, kwargs)))

    def score(self, x: Any, y: Any, **kwargs: Any) -> float:
        """The negative loss on data, as scikit-learn takes larger scores for better ones.

        Args:
          x: samples, shape [n, ...].
          y: their targets.
          **kwargs: arguments of the model's `evaluate`.
        """
        results = self.model.evaluate(x, y, **self.filter_sk_params(Model.evaluate, kwargs))
        return -float(np.atleast_1d(results)[0])

    def __sklearn_tags__(self) -> Any:
        return _tags("regressor", regressor_tags=_sklearn().RegressorTags())


def _categorical(loss: Any) -> bool:
    """Whether a model's loss is the cross entropy with one-hot targets, by whatever name."""
    return (
        loss == "categorical_crossentropy"
        or loss is categorical_crossentropy
        or isinstance(loss, CategoricalCrossentropy)
    )


def _tags(kind: str, **details: Any) -> Any:
    """What scikit-learn from 1.6 on asks an estimator instead of its `_estimator_type`."""
    target = _sklearn().TargetTags(required=True)
    return _sklearn().Tags(estimator_type=kind, target_tags=target, **details)


def _sklearn() -> Any:
    return extras.load("sklearn.utils", "demo", "Estimators need scikit-learn")
