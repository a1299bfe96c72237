"""Cases of ``tree_ensemble``: forests of random shape, and what is rare in them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.graph.ir import Attr, TensorType
from microc.ops.registry import Case
from microc.ops.trees.arrays import AT_MOST, GREATER, LESS, UNORDERED, Tree, flatten


def random_tree(rng: np.random.Generator, splits: int, features: int, dtype: str, width: int, target: int = 0) -> Tree:
    """A tree that grows at random leaves, its thresholds in the range of random data of ``dtype``."""
    left, right = [-1], [-1]
    for _ in range(splits):
        place = int(rng.choice([k for k, child in enumerate(left) if child < 0]))
        left[place], right[place] = len(left), len(left) + 1
        left, right = [*left, -1, -1], [*right, -1, -1]
    low, high = (-2.0, 2.0) if dtypes.is_float(dtype) else dtypes.int_range(dtype)
    count = len(left)
    values = rng.uniform(-1, 1, (count, width)).astype(np.float32)
    feature, threshold = rng.integers(0, features, count), rng.uniform(low, high, count)
    return Tree(np.array(left), np.array(right), feature, threshold, np.full(count, AT_MOST), values, target)


def case_of(
    trees: Iterable[Tree],
    data: Array | TensorType,
    targets: int,
    name: str,
    combine: str = "sum",
    values: str = "float32",
) -> Case:
    """The trees on data, given or random; integer ``values`` are those of the trees times 100."""
    kind = data if isinstance(data, TensorType) else TensorType(data.shape, data.dtype.name)
    if values != "float32":
        trees = [tree.with_values((tree.values * 100).astype(dtypes.to_numpy(values))) for tree in trees]
    arrays = flatten(tuple(trees), kind.dtype)
    operands = arrays.operands()
    attrs: dict[str, Attr] = {"combine": combine, "targets": targets, **arrays.attrs()}
    types = (kind, *(TensorType(array.shape, array.dtype.name) for array in operands))
    given = None if isinstance(data, TensorType) else data
    return Case(attrs, types, tuple(range(1, len(types))), (given, *operands), tolerance=2e-6, name=name)


def cases() -> Iterable[Case]:
    rng = np.random.default_rng(1)
    for dtype in ("float32", "int16", "uint8", "int32"):
        forest = [random_tree(rng, splits, 5, dtype, 3) for splits in (7, 1, 0, 20)]
        yield case_of(forest, TensorType((4, 5), dtype), 3, f"forest {dtype}")
    boosted = [random_tree(rng, 6, 4, "float32", 1, k % 3) for k in range(6)]
    yield case_of(boosted, TensorType((3, 4), "float32"), 3, "a target per tree")
    for combine in ("min", "max"):
        yield case_of(boosted[::3], TensorType((3, 4), "float32"), 1, combine, combine)
    whole = [random_tree(rng, 30, 4, "int16", 2) for _ in range(3)]
    yield case_of(whole, TensorType((5, 4), "int16"), 2, "integers only", values="int8")
    yield case_of(whole, TensorType((5, 4), "int16"), 2, "largest of integers", "max", "int16")
    yield case_of([random_tree(rng, 0, 1, "float32", 2)], TensorType((1, 1), "float32"), 2, "a leaf alone")
    yield case_of([random_tree(rng, 400, 300, "float32", 1)], TensorType((2, 300), "float32"), 1, "wide tables")
    yield from _comparisons(rng)


def _comparisons(rng: np.random.Generator) -> Iterable[Case]:
    """Every way to compare, on features that equal their thresholds, lie beside them, are infinite or no numbers."""
    x = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(0)), 0.0, -0.0, np.inf, -np.inf, np.nan, 7], np.float32)
    for mode in range(LESS, 16):
        left, right = np.array([1, -1, 3, -1, -1]), np.array([2, -1, 4, -1, -1])
        threshold, values = np.array([0.5, 0.0, 0.1, 0.0, 0.0]), np.arange(5, dtype=np.float32).reshape(5, 1)
        tree = Tree(left, right, np.zeros(5, np.int64), threshold, np.full(5, mode), values)
        yield case_of([tree], x.reshape(-1, 1), 1, f"mode {mode}")
    mixed = [random_tree(rng, 9, 2, "float32", 1) for _ in range(2)]
    modes = np.array([AT_MOST, GREATER | UNORDERED, LESS] * 7)[: len(mixed[0].left)]
    yield case_of([tree.with_mode(modes) for tree in mixed], rng.choice(x, (6, 2)), 1, "mixed modes")
    modes = np.array([AT_MOST, AT_MOST | UNORDERED] * 10)[: len(mixed[0].left)]
    yield case_of([tree.with_mode(modes) for tree in mixed], rng.choice(x, (6, 2)), 1, "missing values")
    pixels = np.array([[0], [127], [128], [255]], np.uint8)
    for mode in (LESS, AT_MOST, GREATER):
        stump = random_tree(rng, 1, 1, "uint8", 1).with_mode(np.full(3, mode))
        for bound in (-1.0, 127.0, 127.5, 255.0, 300.0):
            yield case_of([stump.with_threshold(np.full(3, bound))], pixels, 1, f"{mode} {bound}")
