# SPDX-License-Identifier: Apache-2.0
"""Run networks: on boards, on this computer, in reference frameworks; measure, compare, evaluate.

The frameworks are declared here, apart from their engines, because commands list them without importing any."""

from __future__ import annotations

from microc.base.immutable import frozen


@frozen
class Framework:
    """A framework that runs models, with which compiled networks are compared.

    ``name``: word of ``--against``. ``model_format``: format of the models that it runs. ``engine``: its class in
    :mod:`microc.run.reference_engines`, with the methods ``from_file(data, file_name, options)`` for files and
    ``from_object(model, class_name, options)`` for Python objects, as far as its models are such. ``has_objects``: True
    for Python objects, whose classes are derived from one of the package ``model_format``."""

    name: str
    model_format: str
    engine: str
    has_objects: bool = True


FRAMEWORKS = (
    Framework("tflm", "tflite", "TfliteMicro", has_objects=False),
    Framework("litert", "tflite", "LiteRT", has_objects=False),
    Framework("onnxruntime", "onnx", "OnnxRuntime", has_objects=False),
    Framework("keras", "keras", "KerasModel"),
    Framework("torch", "torch", "TorchProgram"),
    Framework("lightgbm", "lightgbm", "Estimator"),
    Framework("xgboost", "xgboost", "XgboostBooster"),
    Framework("catboost", "catboost", "CatBoostModel"),
    Framework("sklearn", "sklearn", "Estimator"),
)
"""All frameworks. The first of a format is its default. An object belongs to the first framework whose package its classes are
derived from: Keras is before PyTorch, because its layers are modules of PyTorch on that backend, and scikit-learn is the last,
because estimators of the boosters are derived from its classes."""
NATURAL = "reference"
"""Value of ``against`` that selects the framework that made the model or defines its arithmetic."""
AGAINST = (*(framework.name for framework in FRAMEWORKS), NATURAL)
"""Values of ``against``."""
