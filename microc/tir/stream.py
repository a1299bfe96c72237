"""Several layers as one function that works row by row: tensors between them never exist whole.

Every layer but the first reads a window, the few rows of its predecessor that one row of its own needs. To make its next
row it moves the window on by its stride: the rows move up, and its predecessor makes as many new ones at the end, in turn
from its own window. So each row of every layer is computed once, when it is first needed. Windows carry the padding of
their reader, above, below and on both sides, so that layers know of none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from microc.tir import ir
from microc.tir.affine import simplify_stmt
from microc.tir.lower.vectorize import lower_vectorized
from microc.tir.rewrite import map_expr, map_stmt, walk_stmt


@dataclass(frozen=True, slots=True)
class Window:
    """The rows that a layer reads: ``reach`` at once, from row ``y * stride - top`` on for its row y.

    ``left`` and ``right`` are elements of padding beside the ``width`` elements of a row; there, and in the rows above the
    first and (if ``bottom``) below the last, stands ``pad_value``.
    """

    reach: int
    stride: int
    width: int
    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0
    pad_value: int | float = 0

    @property
    def padded(self) -> bool:
        return bool(self.top or self.bottom or self.left or self.right)

    @property
    def rows(self) -> int:
        """Rows that are held: where the stride is longer than the reach, some are skipped."""
        return max(self.reach, self.stride)

    @property
    def pitch(self) -> int:
        """Elements from one row to the next."""
        return self.left + self.width + self.right

    @property
    def lead(self) -> int:
        """Rows of the predecessor that exist before the layer's row 0 asks for new ones."""
        return self.rows - self.stride - self.top


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: ``func``, lowered, makes one row of it.

    ``data`` and ``result`` are its parameters for the window (dense, ``reach`` rows of ``pitch`` elements) and for the row made;
    ``by_row`` those that hold one row of tensors shaped like the result. The result has ``rows`` rows.
    """

    func: ir.PrimFunc
    window: Window
    data: ir.Buffer
    result: ir.Buffer
    rows: int
    by_row: tuple[ir.Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """The function, and for every parameter but workspaces the layer (by position) and its parameter that it serves."""

    func: ir.PrimFunc
    origins: tuple[tuple[int, ir.Buffer], ...]


def stream(name: str, layers: Sequence[Layer], source_rows: int, *, words: bool) -> Stream:
    """One function for a chain of layers. ``source_rows``: rows of the first layer's input, which stands in memory whole.

    Parameters: the source, tensors read by row, constants, the last layer's result, workspaces. ``words``: rows of bytes are
    moved by (unaligned) words.
    """
    return _Stream(name, tuple(layers), source_rows, words).build()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a buffer of a layer lies: in ``buffer`` from element ``start`` on; None: it is the same but for its name."""

    buffer: ir.Buffer
    start: ir.Expr | None


Target = Callable[[ir.Var], _Place]
"""Where a row goes, by its number."""
_Key = tuple[str, int]
"""The n-th workspace of a dtype."""
_ZERO = ir.const(0, "int32")


class _Stream:
    def __init__(self, name: str, layers: tuple[Layer, ...], source_rows: int, words: bool) -> None:
        self.name, self.layers, self.source_rows = name, layers, source_rows
        self.copying = "vectorized" if words else "serial"
        self.taken = {name for layer in layers for name in _names(layer.func)}
        self.origins: dict[ir.Buffer, tuple[int, ir.Buffer]] = {}
        first = layers[0]
        self.source = self.parameter("data", 0, first.data, source_rows * first.window.width)
        self.places: list[dict[ir.Buffer, _Place]] = [self.operands(k) for k in range(len(layers))]
        last = len(layers) - 1
        self.result = self.parameter("out", last, layers[last].result, layers[last].rows * layers[last].result.size)
        self.scratch = self.shared_workspaces()
        for layer, places in zip(layers, self.places, strict=True):
            places |= {own: _Place(self.scratch[key], _ZERO) for key, own in _workspaces(layer)}
        self.windows = {k: self.window(k) for k in range(len(layers)) if k or first.window.padded}

    def build(self) -> Stream:
        last = len(self.layers) - 1
        early = self.early(last)
        step = ir.Var(self.fresh("step"))
        row = step - early if early else step
        body = ir.For(
            step, ir.const(self.layers[last].rows + early, "int32"), self.next_row(last, row, self.out_row, None)
        )
        whole = simplify_stmt(lower_vectorized(ir.seq(*(self.fill_window(k) for k in self.windows), body)))
        params = (*self.origins, *self.windows.values(), *self.scratch.values())
        return Stream(ir.PrimFunc(self.name, params, whole), tuple(self.origins.values()))

    # ------------------------------------------------------------ buffers

    def fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}{number}", number + 1
        self.taken.add(name)
        return name

    def parameter(self, stem: str, layer: int, serves: ir.Buffer, size: int) -> ir.Buffer:
        buffer = ir.Buffer(self.fresh(stem), (size,), serves.dtype, serves.scope)
        self.origins[buffer] = (layer, serves)
        return buffer

    def operands(self, position: int) -> dict[ir.Buffer, _Place]:
        """Constants, and tensors read by row (their start is set for each row)."""
        layer = self.layers[position]
        found: dict[ir.Buffer, _Place] = {}
        for param in layer.func.params:
            if param in layer.by_row:
                found[param] = _Place(self.parameter(param.name, position, param, layer.rows * param.size), _ZERO)
        for param in layer.func.params:
            if param.scope == "const":
                own = replace(param, name=self.fresh(param.name))
                self.origins[own] = (position, param)
                found[param] = _Place(own, None)
        return found

    def shared_workspaces(self) -> dict[_Key, ir.Buffer]:
        """Layers work one after another: the first workspace of a dtype serves all of them, and so on."""
        sizes: dict[_Key, int] = {}
        for layer in self.layers:
            for key, own in _workspaces(layer):
                sizes[key] = max(sizes.get(key, 0), own.size)
        return {key: ir.Buffer(self.fresh("scratch"), (n,), key[0], "workspace") for key, n in sizes.items()}

    def window(self, position: int) -> ir.Buffer:
        window = self.layers[position].window
        size = window.rows * window.pitch
        return ir.Buffer(self.fresh("rows"), (size,), self.layers[position].data.dtype, "workspace")

    # ------------------------------------------------------------ statements

    def early(self, position: int) -> int:
        """How many steps before its row 0 a layer has to start, so that its window and those before it are full by then."""
        if position not in self.windows:
            return 0
        window = self.layers[position].window
        before = self.early(position - 1) if position else 0
        return max(0, -(-(window.lead + before) // window.stride))

    def out_row(self, row: ir.Var) -> _Place:
        return _Place(self.result, row * self.layers[-1].result.size)

    def next_row(self, position: int, row: ir.Expr, into: Target, instead: ir.Stmt | None) -> ir.Stmt:
        """Move the window of a layer on to ``row`` and compute it; ``instead`` happens where it has no such row."""
        layer = self.layers[position]
        index = ir.Var(self.fresh("row"))
        if position in self.windows:
            window: ir.Stmt | None = self.advance(position, index)
            data = _Place(self.windows[position], _ZERO)
        else:
            window, data = None, _Place(self.source, index * (layer.window.stride * layer.window.width))
        places = self.places[position] | {layer.data: data, layer.result: into(index)}
        places |= {b: _Place(places[b].buffer, index * b.size) for b in layer.by_row}
        made = _guarded(index, layer.rows, _placed(layer.func.body, places), instead)
        return ir.Let(index, row, ir.seq(window, made))

    def advance(self, position: int, row: ir.Expr) -> ir.Stmt:
        """Bring the window of a layer to ``row``: it moves up by the stride, new rows follow."""
        window, buffer = self.layers[position].window, self.windows[position]
        kept = window.rows - window.stride
        shift = self.move(buffer, _ZERO, buffer, ir.const(window.stride * window.pitch, "int32"), kept * window.pitch)
        turn = ir.Var(self.fresh("turn"))
        start = (turn + kept) * window.pitch + window.left
        pad = self.fill(buffer, start, window.width, window) if window.top or window.bottom else None
        new = row * window.stride + window.lead + turn
        if position:
            made = self.next_row(position - 1, new, lambda _: _Place(buffer, start), pad)
        else:
            made = self.source_row(new, buffer, start, pad)
        return ir.seq(shift if kept else None, ir.For(turn, ir.const(window.stride, "int32"), made))

    def source_row(self, row: ir.Expr, into: ir.Buffer, to: ir.Expr, instead: ir.Stmt | None) -> ir.Stmt:
        """A copy of a row of the source."""
        index, width = ir.Var(self.fresh("row")), self.layers[0].window.width
        copy = self.move(into, to, self.source, index * width, width)
        return ir.Let(index, row, _guarded(index, self.source_rows, copy, instead))

    def move(self, into: ir.Buffer, to: ir.Expr, source: ir.Buffer, start: ir.Expr, size: int) -> ir.Stmt:
        """Copy ``size`` elements, in rising order."""
        k = ir.Var(self.fresh("k"))
        return ir.For(k, ir.const(size, "int32"), ir.Store(into, (to + k,), source[start + k]), self.copying)

    def fill(self, into: ir.Buffer, start: ir.Expr, size: int, window: Window) -> ir.Stmt:
        """Padding, for ``size`` elements."""
        k = ir.Var(self.fresh("k"))
        value = ir.const(window.pad_value, into.dtype)
        return ir.For(k, ir.const(size, "int32"), ir.Store(into, (start + k,), value), self.copying)

    def fill_window(self, position: int) -> ir.Stmt | None:
        """Padding everywhere, before the first step: beside the rows it is never overwritten."""
        window, buffer = self.layers[position].window, self.windows[position]
        return self.fill(buffer, _ZERO, buffer.size, window) if window.padded else None


def _names(func: ir.PrimFunc) -> set[str]:
    """Every name that a function uses."""
    found = {p.name for p in func.params}
    for stmt in walk_stmt(func.body):
        match stmt:
            case ir.For(var) | ir.Let(var):
                found.add(var.name)
            case ir.Alloc(buffer):
                found.add(buffer.name)
            case _:
                pass
    return found


def _workspaces(layer: Layer) -> Iterator[tuple[_Key, ir.Buffer]]:
    """The workspaces of a layer, numbered within their dtype."""
    counts: dict[str, int] = {}
    for param in layer.func.params:
        if param.scope == "workspace":
            number = counts.get(param.dtype, 0)
            counts[param.dtype] = number + 1
            yield (param.dtype, number), param


def _guarded(row: ir.Expr, rows: int, made: ir.Stmt, instead: ir.Stmt | None) -> ir.Stmt:
    return ir.If(ir.Bin("and", row >= 0, row < rows), made, instead)


def _placed(body: ir.Stmt, places: Mapping[ir.Buffer, _Place]) -> ir.Stmt:
    """A layer's statements on the buffers of the stream."""

    def at(place: _Place, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        if place.start is None:
            return indices
        flat = place.start
        for index, stride in zip(indices, buffer.strides, strict=True):
            flat = flat + index * stride
        return (flat,)

    def on_expr(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Load(buffer, indices) if buffer in places:
                return ir.Load(places[buffer].buffer, at(places[buffer], buffer, indices))
            case ir.AddressOf(buffer, indices, extent, writes) if buffer in places:
                return ir.AddressOf(places[buffer].buffer, at(places[buffer], buffer, indices), extent, writes)
            case _:
                return e

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store) and s.buffer in places:
            place = places[s.buffer]
            return ir.Store(place.buffer, at(place, s.buffer, s.indices), s.value)
        return s

    return map_stmt(body, on_stmt, lambda x: map_expr(x, on_expr))
