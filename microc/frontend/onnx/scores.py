"""What the classifiers of ai.onnx.ml share: features, labels, transformations of scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from microc.frontend.onnx.application import Application

_TRANSFORMS = {"NONE": "none", "SOFTMAX": "softmax", "LOGISTIC": "logistic"}


def features(application: Application) -> str:
    """The first operand as rows of float32 features."""
    data = application.value(0)
    shape = application.type(data).shape
    if len(shape) == 1:
        data = application.reshaped(data, (1, *shape))
    elif len(shape) != 2:
        application.refuse(f"features of shape {shape}", "rows of features have two axes")
    return (
        data if application.type(data).dtype == "float32" else application.emit("cast", (data,), {"dtype": "float32"})
    )


def post_transform(application: Application) -> str:
    """The transformation of scores, as ``emit_post`` names it."""
    name = application.operator.attributes.text("post_transform", "NONE")
    if name not in _TRANSFORMS:
        application.refuse(f"the transformation {name!r} of scores", "NONE, SOFTMAX or LOGISTIC")
    return _TRANSFORMS[name]


def class_labels(application: Application, integers: str, texts: str) -> tuple[int, ...]:
    """The classes; strings are numbered."""
    attributes = application.operator.attributes
    words = attributes.texts(texts)
    return tuple(range(len(words))) if words else attributes.integers(integers, ())


def result_label(
    application: Application, labels: Sequence[int], scores: str, *, two: bool = False, cut: float = 0.0
) -> None:
    """The first output: the class with the largest score, or (``two``) the second where the one score is above ``cut``."""
    if not application.output(0):
        return
    rows = application.type(scores).shape[0]
    if two:
        above = application.emit("greater", (scores, application.scalar(cut)))
        place = application.reshaped(application.emit("cast", (above,), {"dtype": "int64"}), (rows,))
    else:
        place = application.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int64"})
    if list(labels) == list(range(len(labels))):
        application.result_alias(place)
    else:
        table = application.new_constant("classes", np.array(labels, np.int64))
        application.result("gather", (table, place), {"axis": 0})
