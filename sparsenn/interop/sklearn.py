"""Networks as estimators that follow scikit-learn's conventions; scikit-learn itself is not needed."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self, Unpack

import numpy as np

from sparsenn.engine import Session
from sparsenn.engine.inputs import Inputs, check_network
from sparsenn.engine.options import NamedOptions, read_options
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.formats.tables import column_names
from sparsenn.io import from_sklearn
from sparsenn.io.importers.host_arrays import host_array
from sparsenn.layers import FullyConnected, Identity, LogSoftmax, Sigmoid, Softmax
from sparsenn.network import Network


class _Estimator:
    """Base of both kinds: parameters, and a session that is made when rows first come."""

    _estimator_type: ClassVar[str]
    _parameters: ClassVar[tuple[str, ...]] = ("network",)  # besides options

    def __init__(self, network: Network, **options: Unpack[NamedOptions]) -> None:
        check_network(network)
        read_options(options)
        self.network = network
        self._options = options
        self._session: Session | None = None

    @property
    def n_features_in_(self) -> int:
        """Numbers of one row."""
        return self.network.inputs

    @property
    def feature_names_in_(self) -> Array:
        """Names of the numbers of one row, an array of texts; absent where they have none."""
        layout = self.network.input_layout
        if layout is None or layout.names is None:
            raise AttributeError(f"{type(self).__name__} has no feature_names_in_: its features have no names")
        return np.array(layout.names, dtype=object)

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Return the estimator as it is, with a warning: its network is trained already, and `fit` trains nothing.

        Parameters
        ----------
        X : any, optional
            Ignored.
        y : any, optional
            Ignored.

        Returns
        -------
        SparseClassifier or SparseRegressor
            The estimator itself.
        """
        warnings.warn(
            f"{type(self).__name__}.fit trains nothing: it neither continues the training of the network nor starts "
            "anew; train with the library that the network comes from, or with sparsenn.train",
            UserWarning,
            stacklevel=2,
        )
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return what the estimator was made with.

        Parameters
        ----------
        deep : bool, default True
            Ignored: there are no estimators inside.

        Returns
        -------
        dict
            Values by name.
        """
        return {**{name: getattr(self, name) for name in self._parameters}, **self._options}

    def set_params(self, **parameters: Any) -> Self:
        """Change some of what the estimator was made with.

        Parameters
        ----------
        **parameters : Options
            The network and options, by name; what is not named stays.

        Returns
        -------
        SparseClassifier or SparseRegressor
            The estimator itself.
        """
        self.__init__(**{**self.get_params(), **parameters})  # type: ignore[misc]
        return self

    def _outputs(self, X: Inputs) -> Array:
        """Return the network's outputs on the host, of shape (rows, outputs)."""
        self._check_names(X)
        if self._session is None:
            self._session = Session(self.network, **self._options)
        outputs = self._session(X, form="dense")
        return host_array("outputs", outputs.get() if hasattr(outputs, "get") else outputs)

    def _check_names(self, X: Inputs) -> None:
        """Warn, as scikit-learn does, where only one of rows and network has names of features."""
        name, are_named, has_names = (
            type(self).__name__,
            column_names(X) is not None,
            hasattr(self, "feature_names_in_"),
        )
        if are_named == has_names:
            return
        given = "has feature names" if are_named else "does not have valid feature names"
        fitted = "with" if has_names else "without"
        warnings.warn(f"X {given}, but {name} was fitted {fitted} feature names", UserWarning, stacklevel=4)

    def _each(self, X: Inputs) -> Array:
        """Return the network's outputs, of shape (rows, outputs), or (rows,) where there is one."""
        outputs = self._outputs(X)
        return outputs[:, 0] if self.network.outputs == 1 else outputs

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn import utils

        kind = self._estimator_type
        return utils.Tags(
            estimator_type=kind,
            target_tags=utils.TargetTags(required=False),
            input_tags=utils.InputTags(sparse=True),
            classifier_tags=utils.ClassifierTags() if kind == "classifier" else None,
            regressor_tags=utils.RegressorTags() if kind == "regressor" else None,
            requires_fit=False,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.network!r})"


class SparseClassifier(_Estimator):
    """A network that tells classes apart.

    ::

        classifier = sparsenn.SparseClassifier(network, classes=["setosa", "versicolor", "virginica"])
        classifier.predict(rows)

    A network with one output tells two classes apart, and others have an output a class.

    Parameters
    ----------
    network : Network
        The layers. Its outputs are probabilities if it ends with a softmax, or has one output of a sigmoid; what layers
        without activation give are taken for logits.
    classes : array_like, optional
        Their labels, in the order of the outputs; numbers from 0 unless given.
    **options : Options
        As `sparsenn.Session` takes them.

    Attributes
    ----------
    classes_ : array, shape (classes,)
        The labels.
    n_features_in_ : int
        Numbers of one row.
    feature_names_in_ : array of str, shape (inputs,)
        Their names; absent where they have none. Columns of tables are taken by these names.

    Raises
    ------
    UsageError, DeviceError
        As `sparsenn.Session`.
    ShapeError
        There are not as many classes as outputs.
    """

    _estimator_type = "classifier"
    _parameters = ("network", "classes")

    def __init__(self, network: Network, classes: Any = None, **options: Unpack[NamedOptions]) -> None:
        super().__init__(network, **options)
        count = max(2, network.outputs)
        self.classes = classes
        self.classes_: Array = np.arange(count) if classes is None else np.asarray(classes)
        if self.classes_.shape != (count,):
            raise ShapeError(f"classes of shape {self.classes_.shape}; the network has {count}")

    @classmethod
    def from_sklearn(cls, estimator: Any, **options: Unpack[NamedOptions]) -> Self:
        """Return a classifier that gives what a fitted one of scikit-learn does, with the same classes.

        Parameters
        ----------
        estimator : object
            A fitted classifier of scikit-learn, as `sparsenn.from_sklearn` takes it.
        **options : Options
            As `sparsenn.Session` takes them.

        Returns
        -------
        SparseClassifier
            A classifier of its own.

        Raises
        ------
        InputError, UsageError
            As `sparsenn.from_sklearn`; or it is no classifier, or gives several labels to a row.
        """
        network = from_sklearn(estimator)
        classes = getattr(estimator, "classes_", None)
        several = isinstance(classes, list) or (network.outputs > 1 and not isinstance(network[-1], Softmax))
        if classes is None or several:
            raise InputError(f"{type(estimator).__name__}: gives no class, or several, to a row; one is needed")
        return cls(network, classes, **options)

    def decision_function(self, X: Inputs) -> Array:
        """Return the network's outputs.

        Parameters
        ----------
        X : array_like, sparse matrix or table, shape (samples, inputs)
            Whatever `sparsenn.Session` takes, tables of pandas, polars and Arrow included.

        Returns
        -------
        array, shape (samples, classes) or (samples,)
            One number a sample where there is one output.
        """
        return self._each(X)

    def predict(self, X: Inputs) -> Array:
        """Return the label of each sample.

        Parameters
        ----------
        X : array_like, sparse matrix or table, shape (samples, inputs)
            Whatever `sparsenn.Session` takes, tables of pandas, polars and Arrow included.

        Returns
        -------
        array, shape (samples,)
            Labels, of the type of `classes_`.

        Raises
        ------
        SparseNNError
            As `sparsenn.Session`.
        """
        outputs = self._outputs(X)
        if self.network.outputs > 1:
            return np.asarray(self.classes_[outputs.argmax(axis=1)])
        return np.asarray(self.classes_[(outputs[:, 0] > (0.5 if self._ends_with(Sigmoid) else 0)).astype(np.intp)])

    def predict_proba(self, X: Inputs) -> Array:
        """Return the probability of each class.

        Parameters
        ----------
        X : array_like, sparse matrix or table, shape (samples, inputs)
            Whatever `sparsenn.Session` takes, tables of pandas, polars and Arrow included.

        Returns
        -------
        array, shape (samples, classes)
            Probabilities, in the order of `classes_`.

        Raises
        ------
        UsageError
            The network gives none: it ends with an activation other than a softmax, or has several sigmoids.
        SparseNNError
            As `sparsenn.Session`.
        """
        last, single = self.network[-1], self.network.outputs == 1
        logits = self._ends_with(Identity) or isinstance(last, LogSoftmax)
        if not (logits or isinstance(last, Softmax) or (single and self._ends_with(Sigmoid))):
            raise UsageError("the network's last layer gives neither probabilities nor logits; use decision_function")
        outputs = self._outputs(X)
        if not logits:
            return np.concatenate([1 - outputs, outputs], axis=1) if single else outputs
        scores = np.concatenate([np.zeros_like(outputs), outputs], axis=1) if single else outputs
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: Array = shares / shares.sum(axis=1, keepdims=True)
        return probabilities

    def score(self, X: Inputs, y: Any, sample_weight: Any = None) -> float:
        """Return the share of samples that get their label.

        Parameters
        ----------
        X : array_like, sparse matrix or table, shape (samples, inputs)
            Whatever `sparsenn.Session` takes, tables of pandas, polars and Arrow included.
        y : array_like, shape (samples,) or (samples, 1)
            The right labels.
        sample_weight : array_like, shape (samples,), optional
            How much each sample counts; all the same unless given.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        ShapeError
            The labels have another shape.
        SparseNNError
            As `sparsenn.Session`.
        """
        predicted, labels = self.predict(X), np.asarray(y)
        if labels.shape not in (predicted.shape, (len(predicted), 1)):
            raise ShapeError(f"the labels have the shape {labels.shape}; {len(predicted):,} samples have one each")
        return float(np.average(predicted == labels.ravel(), weights=sample_weight))

    def _ends_with(self, activation: type) -> bool:
        last = self.network[-1]
        return isinstance(last, FullyConnected) and isinstance(last.activation, activation)


class SparseRegressor(_Estimator):
    """A network whose outputs are the predictions.

    Parameters
    ----------
    network : Network
        The layers.
    **options : Options
        As `sparsenn.Session` takes them.

    Attributes
    ----------
    n_features_in_ : int
        Numbers of one row.
    feature_names_in_ : array of str, shape (inputs,)
        Their names; absent where they have none. Columns of tables are taken by these names.

    Raises
    ------
    UsageError, DeviceError
        As `sparsenn.Session`.
    """

    _estimator_type = "regressor"

    @classmethod
    def from_sklearn(cls, estimator: Any, **options: Unpack[NamedOptions]) -> Self:
        """Return a regressor that gives what a fitted one of scikit-learn does; errors are those of `from_sklearn`.

        Parameters
        ----------
        estimator : object
            A fitted regressor of scikit-learn, as `sparsenn.from_sklearn` takes it.
        **options : Options
            As `sparsenn.Session` takes them.

        Returns
        -------
        SparseRegressor
            A regressor of its own.
        """
        return cls(from_sklearn(estimator), **options)

    def predict(self, X: Inputs) -> Array:
        """Return the network's outputs.

        Parameters
        ----------
        X : array_like, sparse matrix or table, shape (samples, inputs)
            Whatever `sparsenn.Session` takes, tables of pandas, polars and Arrow included.

        Returns
        -------
        array, shape (samples, outputs) or (samples,)
            One number a sample where there is one output.

        Raises
        ------
        SparseNNError
            As `sparsenn.Session`.
        """
        return self._each(X)

    def score(self, X: Inputs, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination, the mean of all outputs'.

        Parameters
        ----------
        X : array_like, sparse matrix or table, shape (samples, inputs)
            Whatever `sparsenn.Session` takes, tables of pandas, polars and Arrow included.
        y : array_like, shape (samples,) or (samples, outputs)
            The right numbers.
        sample_weight : array_like, shape (samples,), optional
            How much each sample counts; all the same unless given.

        Returns
        -------
        float
            One at best; 0 is that of a constant.
        """
        known: Array = np.asarray(y, np.float64)
        found = self.predict(X)
        if known.shape != found.shape:
            raise ShapeError(f"targets of shape {known.shape} for predictions of shape {found.shape}")
        wrong = np.average((known - found) ** 2, axis=0, weights=sample_weight)
        spread = np.average(
            (known - np.average(known, axis=0, weights=sample_weight)) ** 2, axis=0, weights=sample_weight
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(spread > 0, 1 - wrong / spread, np.where(wrong > 0, 0.0, 1.0))
        return float(np.mean(shares))
