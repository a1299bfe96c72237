"""Tree ensembles of any format in our operators: the sum over the trees, what is added to it, and what makes it scores."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.graph_builder import Emitter
from microc.frontend.trees.numbers import MOST_TARGETS
from microc.ops.trees.arrays import Tree, flatten


@dataclass(frozen=True)
class Ensemble:
    """Trees whose leaves add to ``targets`` results; ``base`` joins the sum (or ``min``, ``max``), ``post`` follows.

    ``post``: ``none``, ``softmax``, ``sigmoid`` (of one score, two classes come of it), ``logistic`` (of every score), ``exp``.
    """

    trees: tuple[Tree, ...]
    targets: int
    base: Array = field(default_factory=lambda: np.zeros(0))
    combine: str = "sum"
    post: str = "none"


def emit_ensemble(write: Emitter, x: str, ensemble: Ensemble, where: str, leaf_dtype: str = "float32") -> str:
    """The results (N, targets) for the rows of ``x``, before ``post``.

    With an integer ``leaf_dtype`` leaves are rounded to multiples of :func:`leaf_scale`, and so are the results, int32.
    """
    if not ensemble.trees:
        raise ModelError("an ensemble without trees", where=where)
    kind = write.type(x)
    if len(kind.shape) != 2:
        raise ModelError(f"trees for data of shape {kind.shape}, expected rows of features", where=where)
    if ensemble.targets < 1:
        raise ModelError(f"trees for {ensemble.targets} results, expected 1..{MOST_TARGETS}", where=where)
    if ensemble.targets > MOST_TARGETS:
        raise UnsupportedError(f"trees for {ensemble.targets} results, expected 1..{MOST_TARGETS}", where=where)
    for tree in ensemble.trees:
        if not 0 <= tree.target <= ensemble.targets - tree.values.shape[1]:
            raise ModelError(f"a tree adds to result {tree.target} of {ensemble.targets}", where=where)
    base = ensemble.base.reshape(-1)
    if not np.isfinite(base).all():
        raise ModelError(f"base values of {base}, expected numbers", where=where)
    if dtypes.is_float(leaf_dtype):
        real = dtypes.to_numpy(leaf_dtype)
        trees, base = [tree.with_values(tree.values.astype(real)) for tree in ensemble.trees], base.astype(real)
    else:
        trees, base = _rounded(ensemble, leaf_dtype, where)
    arrays = flatten(trees, kind.dtype, where, kind.shape[1])
    operands = [x, *(write.new_constant("trees", array) for array in arrays.operands())]
    attrs = {"combine": ensemble.combine, "targets": ensemble.targets, **arrays.attrs()}
    scores = write.emit("tree_ensemble", operands, attrs)
    return write.emit("add", (scores, write.new_constant("base", base))) if base.any() else scores


def leaf_scale(ensemble: Ensemble, leaf_dtype: str) -> float:
    """What one unit of an integer leaf stands for: the largest leaf fills the dtype."""
    _, high = dtypes.int_range(leaf_dtype)
    return max(float(abs(tree.values[tree.left < 0]).max()) for tree in ensemble.trees) / high or 1.0


def _rounded(ensemble: Ensemble, dtype: str, where: str) -> tuple[list[Tree], Array]:
    """Trees with integer leaves, and the base in the same unit."""
    low, _ = dtypes.int_range(dtype)
    if not low and any(tree.values.min() < 0 for tree in ensemble.trees):
        raise UnsupportedError(f"negative leaves in {dtype}", where=where, hint="choose a signed dtype for the leaves")
    scale = leaf_scale(ensemble, dtype)
    trees = [
        tree.with_values(
            np.rint(np.where(tree.left[:, None] < 0, tree.values, 0) / scale).astype(dtypes.to_numpy(dtype))
        )
        for tree in ensemble.trees
    ]
    return trees, np.rint(ensemble.base.reshape(-1) / scale).astype(np.int32)


def emit_post(write: Emitter, scores: str, post: str, where: str) -> str:
    """Scores after a transformation that ONNX or a loss function names."""
    match post:
        case "none":
            return scores
        case "softmax":
            return write.emit("softmax", (scores,), {"axis": -1})
        case "logistic":
            return write.emit("sigmoid", (scores,))
        case "exp":
            return write.emit("exp", (scores,))
        case "sigmoid":
            return two_classes(write, write.emit("sigmoid", (scores,)))
        case _:
            raise UnsupportedError(f"the transformation {post!r} of scores", where=where)


def two_classes(write: Emitter, probability: str) -> str:
    """(N, 1) probabilities of the second class as those of both."""
    one = write.new_constant("one", np.array(1.0, np.float32))
    return write.emit("concat", (write.emit("sub", (one, probability)), probability), {"axis": 1})
