# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's estimators, fitted on three of its data sets, compiled for this computer, and asked what they predict.

    python -m tests.estimators [NAME ...]

Half of the rows of iris, wine and breast_cancer train, 40 of the others are compared: labels equal, numbers (probabilities,
scores, transforms) within 1e-3 of the largest. Estimators are as their constructors make them, but for a seed and as many
clusters as there are classes.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import all_estimators

import microc
from microc.base.dtypes import Array
from microc.errors import MicrocError

CLASSIFIERS = [
    "AdaBoostClassifier",
    "BaggingClassifier",
    "BernoulliNB",
    "CalibratedClassifierCV",
    "ComplementNB",
    "DecisionTreeClassifier",
    "ExtraTreeClassifier",
    "ExtraTreesClassifier",
    "GaussianNB",
    "GaussianProcessClassifier",
    "GradientBoostingClassifier",
    "HistGradientBoostingClassifier",
    "IsolationForest",
    "KNeighborsClassifier",
    "LinearDiscriminantAnalysis",
    "LinearSVC",
    "LogisticRegression",
    "MLPClassifier",
    "MultinomialNB",
    "NearestCentroid",
    "NuSVC",
    "OneClassSVM",
    "PassiveAggressiveClassifier",
    "Perceptron",
    "QuadraticDiscriminantAnalysis",
    "RandomForestClassifier",
    "RidgeClassifier",
    "SGDClassifier",
    "SVC",
    "KMeans",
    "MiniBatchKMeans",
    "GaussianMixture",
]
REGRESSORS = [
    "AdaBoostRegressor",
    "BaggingRegressor",
    "BayesianRidge",
    "DecisionTreeRegressor",
    "ElasticNet",
    "ExtraTreesRegressor",
    "GaussianProcessRegressor",
    "GradientBoostingRegressor",
    "HistGradientBoostingRegressor",
    "HuberRegressor",
    "KNeighborsRegressor",
    "Lasso",
    "LinearRegression",
    "LinearSVR",
    "MLPRegressor",
    "NuSVR",
    "PLSRegression",
    "RandomForestRegressor",
    "Ridge",
    "SVR",
]
TRANSFORMERS = ["MinMaxScaler", "PCA", "StandardScaler"]
COMPOSED: Mapping[str, Callable[[], Any]] = {
    "VotingClassifier": lambda: VotingClassifier(_pair()),
    "VotingClassifier of probabilities": lambda: VotingClassifier(_pair(), voting="soft"),
    "StackingClassifier": lambda: StackingClassifier(_pair()),
    "OneVsRestClassifier": lambda: OneVsRestClassifier(LogisticRegression()),
    "scaled MLPClassifier": lambda: make_pipeline(StandardScaler(), MLPClassifier(random_state=0)),
    "scaled SVC": lambda: make_pipeline(StandardScaler(), SVC()),
    "scaled LinearSVC": lambda: make_pipeline(StandardScaler(), LinearSVC()),
    "scaled LogisticRegression": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "scaled VotingClassifier": lambda: make_pipeline(StandardScaler(), VotingClassifier(_pair())),
}
NAMES = (*CLASSIFIERS, *REGRESSORS, *TRANSFORMERS, *COMPOSED)
DATA_SETS = ("iris", "wine", "breast_cancer")
ROWS = 40
BOUND = 1e-3


def _pair() -> list[tuple[str, Any]]:
    return [("linear", LogisticRegression()), ("tree", DecisionTreeClassifier(random_state=0))]


def made(name: str, **parameters: int) -> Any:
    """An estimator that is not fitted, with those of the ``parameters`` that it has."""
    if name in COMPOSED:
        return COMPOSED[name]()
    estimator = dict(all_estimators())[name]()
    wanted = {"random_state": 0, "n_clusters": 3, **parameters}
    if name == "GaussianMixture":
        wanted["n_components"] = 3
    known = estimator.get_params()
    return estimator.set_params(**{key: value for key, value in wanted.items() if key in known})


def wrong(name: str, data_set: str, **parameters: int) -> str:
    """How the compiled estimator's answers differ from its own, or why there is none; empty where they are equal.

    ``parameters``: of the estimator, as far as it has them.
    """
    held = getattr(datasets, f"load_{data_set}")()
    x, y = held.data.astype(np.float32), held.target
    number = name in REGRESSORS or name in TRANSFORMERS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            estimator = made(name, **parameters).fit(x[::2], y[::2] + x[::2, 0] / 10 if name in REGRESSORS else y[::2])
        except np.linalg.LinAlgError as error:
            return f"scikit-learn: {error}"
        rows = x[1::2][:ROWS]
        try:
            library = microc.compile(estimator)
        except MicrocError as error:
            return str(error).splitlines()[0]
        results = [library(row[None]) for row in rows]
        wanted = estimator.predict(rows) if hasattr(estimator, "predict") else estimator.transform(rows)
        numbers = [result[1] for result in results if isinstance(result, tuple) and len(result) > 1]
        said = _numbers_differ(estimator, rows, np.array(numbers).reshape(len(rows), -1)) if numbers else ""
    first = [result[0] if isinstance(result, tuple) else result for result in results]
    found, wanted = np.array(first).reshape(len(rows), -1), np.asarray(wanted).reshape(len(rows), -1)
    if not number:
        differ = int((found != wanted).sum())
        return f"{differ} of {wanted.size} labels" if differ else said
    apart = float(np.abs(found - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
    return f"by {apart:.1e}" if apart > BOUND else ""


def _numbers_differ(estimator: Any, rows: Array, found: Array) -> str:
    """Describe the difference of the second output from the method that gives it; empty if they agree.

    Of two classes a decision function gives the second one's score, which is a network's last column.
    """
    for method in ("predict_proba", "decision_function", "transform", "score_samples"):
        if not hasattr(estimator, method) or (method == "transform" and not hasattr(estimator, "cluster_centers_")):
            continue
        wanted = np.asarray(getattr(estimator, method)(rows.astype(np.float64)), np.float64).reshape(len(rows), -1)
        mine = found[:, -1:] if wanted.shape[1] == 1 else found
        if mine.shape != wanted.shape:
            return f"{method}: {mine.shape[1]} columns for {wanted.shape[1]}"
        apart = float(np.abs(mine - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
        return f"{method} by {apart:.1e}" if apart > BOUND else ""
    return ""  # shares of a vote, which scikit-learn does not give


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="estimators (default: all)")
    names = parser.parse_args().names or NAMES
    right = 0
    for name in names:
        said = {data_set: wrong(name, data_set) for data_set in DATA_SETS}
        differing = {key: text for key, text in said.items() if text}
        right += not differing
        sys.stdout.write(f"{name:34} {differing or 'equal'}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{right} of {len(names)} answer as scikit-learn does on all of {', '.join(DATA_SETS)}\n")


if __name__ == "__main__":
    main()
