"""ATen operators that move elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.torch.context import Application, Spelling

# ---- Spellings of ATen's operators that move elements: views, slices, joins, paddings, constants of a shape.


def view(a: Application) -> str:
    return a.reshaped(a.operand("self"), a.result_shape())


def same(a: Application) -> str:
    """A copy, a change of strides, dropout: the same elements."""
    return a.operand("self") if a.argument("self") is not None else a.operand("input")


def permute(a: Application) -> str:
    x = a.operand("self")
    rank = len(a.shape(x))
    if a.name == "permute":
        axes = [d % rank for d in a.argument("dims")]
    else:
        axes = list(range(rank))
        one, other = (0, rank - 1) if a.name == "t" else (a.argument("dim0") % rank, a.argument("dim1") % rank)
        axes[one], axes[other] = axes[other], axes[one]
    return x if axes == sorted(axes) else a.emit("transpose", (x,), {"axes": tuple(axes)})


def expand(a: Application) -> str:
    x, wanted = a.operand("self"), a.result_shape()
    return x if a.shape(x) == wanted else a.emit("broadcast_to", (x,), {"shape": wanted})


def repeat(a: Application) -> str:
    x, wanted = a.operand("self"), a.result_shape()
    x = a.reshaped(x, (1,) * (len(wanted) - len(a.shape(x))) + a.shape(x))
    for axis, extent in enumerate(wanted):
        have = a.shape(x)[axis]
        if have != extent:
            x = a.emit("concat", (x,) * (extent // have), {"axis": axis})
    return x


def concat(a: Application) -> str:
    parts = [a.value(part) for part in a.argument("tensors")]
    parts = [part for part in parts if 0 not in a.shape(part)]
    if len(parts) == 1:
        return parts[0]
    return a.emit("concat", parts, {"axis": int(a.argument("dim", 0))})


def stack(a: Application) -> str:
    axis, wanted = int(a.argument("dim", 0)), a.result_shape()
    axis %= len(wanted)
    one = (*wanted[:axis], 1, *wanted[axis + 1 :])
    return a.emit("concat", [a.reshaped(a.value(part), one) for part in a.argument("tensors")], {"axis": axis})


def sliced(a: Application, x: str, axis: int, begin: int, end: int, step: int = 1) -> str:
    """Elements begin, begin + step ... below end along an axis."""
    shape = a.shape(x)
    if (begin, end, step) == (0, shape[axis], 1):
        return x
    starts, ends, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], ends[axis], strides[axis] = begin, end, step
    return a.emit("slice", (x,), {"begin": tuple(starts), "end": tuple(ends), "strides": tuple(strides)})


def slice_(a: Application) -> str:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    begin, end, step = slice(a.argument("start"), a.argument("end"), a.argument("step", 1)).indices(a.shape(x)[axis])
    return sliced(a, x, axis, begin, end, step)


def select(a: Application) -> str:
    x, axis = a.operand("self"), int(a.argument("dim")) % len(a.shape(a.operand("self")))
    place = int(a.argument("index")) % a.shape(x)[axis]
    return a.reshaped(sliced(a, x, axis, place, place + 1), a.result_shape())


def split(a: Application) -> tuple[str, ...]:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    extents = [a.result_shape(k)[axis] for k in range(len(a.node.meta["val"]))]
    starts = [sum(extents[:k]) for k in range(len(extents))]
    return tuple(sliced(a, x, axis, start, start + extent) for start, extent in zip(starts, extents, strict=True))


def unbind(a: Application) -> tuple[str, ...]:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    return tuple(a.reshaped(sliced(a, x, axis, k, k + 1), a.result_shape(k)) for k in range(a.shape(x)[axis]))


def pad(a: Application) -> str:
    """constant_pad_nd: pairs from the last axis on; negative ones cut."""
    x, amounts = a.operand("self"), a.argument("pad")
    rank = len(a.shape(x))
    pairs: list[Sequence[int]] = [(0, 0)] * rank
    for k in range(len(amounts) // 2):
        pairs[rank - 1 - k] = amounts[2 * k : 2 * k + 2]
    for axis, (before, after) in enumerate(pairs):
        x = sliced(a, x, axis, max(-before, 0), a.shape(x)[axis] - max(-after, 0))
    padding = tuple((max(int(b), 0), max(int(e), 0)) for b, e in pairs)
    if not any(map(any, padding)):
        return x
    return a.emit("pad", (x,), {"padding": padding, "value": float(a.argument("value", 0) or 0)})


def to_dtype(a: Application) -> str:
    return a.cast(a.operand("self"), a.result_dtype())


def filled(a: Application) -> str:
    """full_like and its kin: a constant of the operand's shape."""
    number = {"zeros_like": 0, "ones_like": 1}.get(a.name, a.argument("fill_value"))
    return a.write.new_constant("full", np.full(a.result_shape(), number, dtypes.to_numpy(a.result_dtype())))


MOVES_SPELLINGS: Mapping[str, Spelling] = {
    "_to_copy": to_dtype,
    "_unsafe_view": view,
    "alias": same,
    "cat": concat,
    "clone": same,
    "constant_pad_nd": pad,
    "contiguous": same,
    "detach": same,
    "dropout": same,
    "expand": expand,
    "flatten": view,
    "full_like": filled,
    "lift_fresh_copy": same,
    "ones_like": filled,
    "permute": permute,
    "repeat": repeat,
    "select": select,
    "slice": slice_,
    "split_with_sizes": split,
    "squeeze": view,
    "stack": stack,
    "t": permute,
    "transpose": permute,
    "unbind": unbind,
    "unsqueeze": view,
    "view": view,
    "zeros_like": filled,
}


# ---- Spellings of ATen's operators with indices and strides: elements taken from, and put to, places.


def embedding(a: Application) -> str:
    return a.emit("gather", (a.operand("weight"), a.operand("indices")), {"axis": 0})


def index_select(a: Application) -> str:
    return a.emit("gather", (a.operand("self"), a.operand("index")), {"axis": int(a.argument("dim"))})


def gather(a: Application) -> str:
    return a.emit("gather_elements", (a.operand("self"), a.operand("index")), {"axis": _axis(a)})


def scatter(a: Application) -> str:
    """scatter of a tensor or a number, and scatter_add."""
    x, places, source = a.operand("self"), a.operand("index"), a.argument("src")
    if source is None:
        number = a.value(a.argument("value"), a.dtype(x))
        source = a.emit("broadcast_to", (number,), {"shape": a.shape(places)})
    source = a.value(source)
    if a.shape(source) != a.shape(places):
        ends = a.shape(places)
        source = a.emit("slice", (source,), {"begin": (0,) * len(ends), "end": ends, "strides": (1,) * len(ends)})
    reduction = "add" if a.name == "scatter_add" else ""
    return a.emit("scatter_elements", (x, places, source), {"axis": _axis(a), "reduction": reduction})


def _axis(a: Application) -> int:
    rank = len(a.shape(a.operand("self")))
    return int(a.argument("dim")) % rank


def index(a: Application) -> str:
    """Indexing by tensors along some axes, the others whole."""
    x, places = a.operand("self"), a.argument("indices")
    given = [axis for axis, place in enumerate(places) if place is not None]
    if len(given) == 1:
        return a.emit("gather", (x, a.value(places[given[0]])), {"axis": given[0]})
    rank = len(a.shape(x))
    front = (*given, *(axis for axis in range(rank) if axis not in given))
    taken = a.emit("gather_nd", (_transposed(a, x, front), _stacked(a, [places[axis] for axis in given])), {})
    count = len(a.shape(taken)) - (rank - len(given))
    if given != list(range(given[0], given[0] + len(given))):
        return taken
    whole = range(count, len(a.shape(taken)))
    return _transposed(a, taken, (*whole[: given[0]], *range(count), *whole[given[0] :]))


def index_put(a: Application) -> str:
    """Values put, or added, to the places that tensors along some axes name."""
    x, places, values = a.operand("self"), a.argument("indices"), a.operand("values")
    given = [axis for axis, place in enumerate(places) if place is not None]
    rank, first = len(a.shape(x)), given[0]
    mask = a.value(places[first])
    if len(given) == 1 and a.dtype(mask) == "bool" and np.prod(a.shape(values), dtype=int) == 1:
        return _filled(a, x, mask, values, first)
    if given != list(range(first, first + len(given))):
        a.refuse("indices along axes that are not neighbours", "transpose the axes next to each other first")
    where = _stacked(a, [places[axis] for axis in given])
    front = (*given, *(axis for axis in range(rank) if axis not in given))
    extents, count = a.shape(where)[:-1], len(a.shape(where)) - 1
    wanted = (*a.shape(x)[:first], *extents, *a.shape(x)[first + len(given) :])
    if a.shape(values) != wanted:
        values = a.emit("broadcast_to", (values,), {"shape": wanted})
    turned = (*range(first, first + count), *range(first), *range(first + count, len(wanted)))
    reduction = "add" if a.argument("accumulate", False) else ""
    operands = (_transposed(a, x, front), where, _transposed(a, values, turned))
    made = a.emit("scatter_nd", operands, {"reduction": reduction})
    return _transposed(a, made, tuple(front.index(axis) for axis in range(rank)))


def _filled(a: Application, x: str, mask: str, number: str, first: int) -> str:
    """One number put, or added, to where a mask over the axes from ``first`` on is true."""
    after = len(a.shape(x)) - first - len(a.shape(mask))
    wide = a.reshaped(mask, (*(1,) * first, *a.shape(mask), *(1,) * after))
    number = a.reshaped(number, ())
    changed = a.emit("add", (x, number)) if a.argument("accumulate", False) else number
    return a.emit("where", (wide, changed, x))


def _stacked(a: Application, places: Sequence[object]) -> str:
    """Indices of several axes, broadcast to one another, side by side along a new last axis."""
    names = [a.value(place) for place in places]
    if any(a.dtype(name) == "bool" for name in names):
        a.refuse("indexing by truth", "use torch.where")
    wanted = np.broadcast_shapes(*(a.shape(name) for name in names))
    wide = [
        name if a.shape(name) == wanted else a.emit("broadcast_to", (name,), {"shape": wanted})
        for name in (a.cast(name, "int64") for name in names)
    ]
    return a.emit("concat", [a.reshaped(name, (*wanted, 1)) for name in wide], {"axis": len(wanted)})


def _transposed(a: Application, x: str, axes: Sequence[int]) -> str:
    return x if list(axes) == sorted(axes) else a.emit("transpose", (x,), {"axes": tuple(axes)})


def as_strided(a: Application) -> str:
    """The operand's memory read with other strides."""
    held = a.node.all_input_nodes[0].meta["val"]
    numbered = a.torch.empty_strided(held.shape, held.stride(), dtype=a.torch.int64)
    numbered.copy_(a.torch.arange(held.numel()).view(held.shape))
    size, strides, begin = a.argument("size"), a.argument("stride"), a.argument("storage_offset") or 0
    return _chosen(a, numbered.as_strided(size, strides, begin))


def diagonal(a: Application) -> str:
    numbered = _numbered(a)
    return _chosen(a, numbered.diagonal(*(int(a.argument(name)) for name in ("offset", "dim1", "dim2"))))


def _numbered(a: Application) -> Any:
    """The operand's places in place of its elements."""
    shape = a.shape(a.operand("self"))
    return a.torch.arange(math.prod(shape)).view(shape)


def _chosen(a: Application, places: Any) -> str:
    """The operand's elements in places that are known when compiling."""
    x = a.operand("self")
    count, wanted = math.prod(a.shape(x)), a.array(places).reshape(-1)
    if np.array_equal(wanted, np.arange(count)):
        return a.reshaped(x, a.result_shape())
    held = a.write.new_constant("places", wanted.astype(np.int32))
    return a.reshaped(a.emit("gather", (a.reshaped(x, (count,)), held), {"axis": 0}), a.result_shape())


def unfold(a: Application) -> str:
    """Windows of ``size`` elements along an axis, each ``step`` behind the one before, as a last axis."""
    return _chosen(a, _numbered(a).unfold(*(int(a.argument(name)) for name in ("dimension", "size", "step"))))


def put_slice(a: Application) -> str:
    """slice_scatter and select_scatter: a part along an axis replaced."""
    x, source, axis = a.operand("self"), a.operand("src"), _axis(a)
    shape = a.shape(x)
    if a.name == "select_scatter":
        begin = int(a.argument("index")) % shape[axis]
        replaced = np.array([begin])
        source = a.reshaped(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    else:
        part = slice(a.argument("start"), a.argument("end"), a.argument("step", 1))
        replaced = np.arange(shape[axis])[part]
    places = np.arange(shape[axis], dtype=np.int32)
    places[replaced] = shape[axis] + np.arange(replaced.size)
    both = a.emit("concat", (x, source), {"axis": axis})
    return a.emit("gather", (both, a.write.new_constant("places", places)), {"axis": axis})


PLACES_SPELLINGS: Mapping[str, Spelling] = {
    "as_strided": as_strided,
    "diagonal": diagonal,
    "embedding": embedding,
    "gather": gather,
    "index": index,
    "index_put": index_put,
    "index_select": index_select,
    "scatter": scatter,
    "scatter_add": scatter,
    "select_scatter": put_slice,
    "slice_scatter": put_slice,
    "unfold": unfold,
}
