# SPDX-License-Identifier: Apache-2.0
"""Fusion of a chain of layers into one function that computes row by row, so that intermediate tensors never exist as a whole.

Each layer keeps only a window in memory: the rows of its input that the next rows of its result need. A block is a number
of rows of a layer that are computed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.analysis.simplification import simplify_stmt
from microc.tir.lower.cleanup import unroll_loops
from microc.tir.lower.lanes import lower_lanes
from microc.tir.rewrite import map_expr, map_stmt, walk_stmt

# ---- Geometry: the rows that each layer keeps in its window and computes in a block, and when.


@frozen
class Window:
    """The input rows that a layer reads to compute row y of its result: ``reach`` rows, from row ``y * stride - top`` on.

    ``width``: number of elements in an input row. ``top``, ``bottom``: number of padding rows above and below the image, whose
    elements are ``pad_value``.
    """

    reach: int
    stride: int
    width: int
    top: int = 0
    bottom: int = 0
    pad_value: int | float = 0

    @property
    def padded(self) -> bool:
        """True if the layer reads padding rows, which are outside of the image."""
        return bool(self.top or self.bottom)


@frozen
class LayerGeometry:
    """Geometry of a layer whose result has ``rows`` rows, and which computes a block of ``block`` rows at a time.

    Blocks start at row ``phase``, and every ``block`` rows before and after it, so some may be partly outside of the image.
    ``whole``: all blocks must be inside of the image, because the layer also reads tensors that have no window.
    """

    window: Window
    rows: int
    whole: bool = False
    block: int = 1
    phase: int = 0

    @property
    def step(self) -> int:
        """Number of rows by which the window moves from one block to the next."""
        return self.block * self.window.stride

    @property
    def window_rows(self) -> int:
        """Number of rows in the window. If the stride exceeds the reach (the rows read for one result row), some of
        these rows are not read."""
        return max((self.block - 1) * self.window.stride + self.window.reach, self.step)

    @property
    def rows_before_first_request(self) -> int:
        """Number of rows of the previous layer that must exist before the layer requests more rows to compute its row 0."""
        return self.window_rows - self.step - self.window.top

    @property
    def has_only_inside_blocks(self) -> bool:
        """True if no block is partly outside of the image."""
        return self.phase == 0 and self.rows % self.block == 0

    @property
    def computed_row_count(self) -> int:
        """Number of computed rows, including those outside the image."""
        return self.block * len(range(self.phase - self.block if self.phase else 0, self.rows, self.block))

    def with_blocks_for(self, next_layer: LayerGeometry | None, block_rows: int) -> LayerGeometry:
        """Return the geometry with blocks of ``block_rows`` rows, aligned to the rows that the next layer requests.

        ``next_layer``: geometry of the next layer; None if this is the last layer."""
        phase = 0
        if next_layer is not None:
            phase = (next_layer.phase * next_layer.window.stride + next_layer.rows_before_first_request) % block_rows
        return replace(self, block=block_rows, phase=phase)


def choose_blocks(geometries: Sequence[LayerGeometry], max_block_rows: int) -> tuple[LayerGeometry, ...]:
    """Return the geometry of each layer with the largest possible blocks (rows computed at a time), at most
    ``max_block_rows``.

    A block must divide the number of rows that the next layer requests at a time, so blocks are chosen from the last layer
    to the first."""
    chosen: list[LayerGeometry] = []
    for k, geometry in reversed(list(enumerate(geometries))):
        next_layer = chosen[0] if chosen else None
        must_be_inside = geometry.whole or next_layer is None or (k == 0 and not geometry.window.padded)
        requested_rows = next_layer.step if next_layer is not None else geometry.rows
        block_sizes = (
            block_rows
            for block_rows in range(min(max_block_rows, requested_rows), 0, -1)
            if requested_rows % block_rows == 0
        )
        candidates = (geometry.with_blocks_for(next_layer, block_rows) for block_rows in block_sizes)
        chosen.insert(0, next(s for s in candidates if s.has_only_inside_blocks or not must_be_inside))
    return tuple(chosen)


def count_warm_up_rows(geometries: Sequence[LayerGeometry], layer_index: int) -> int:
    """Return the number of rows before row 0 at which a layer must start to compute.

    When the layer reaches row 0, its window and the windows of all earlier layers are full. ``layer_index``: index of the
    layer in the chain."""
    geometry = geometries[layer_index]
    if layer_index == 0 and not geometry.window.padded:
        return 0
    before = count_warm_up_rows(geometries, layer_index - 1) if layer_index else 0
    return max(0, -(-(geometry.rows_before_first_request + before) // geometry.window.stride))


def compute_row_access_times(
    geometries: Sequence[LayerGeometry], input_rows: int, input_readers: Set[int] = frozenset()
) -> tuple[list[int], list[int]]:
    """Return the times at which each row of the chain's input is last read, and at which each row of its result is written.

    The time is the number of blocks (rows computed at a time) that all layers have computed before. ``input_readers``:
    indices of further layers that read the input, each the same rows that it computes."""
    order = _BlockOrder(geometries, [-1] * input_rows, [-1] * geometries[-1].rows, input_readers)
    block = geometries[-1].block
    warm_up = -(-count_warm_up_rows(geometries, len(geometries) - 1) // block) * block
    for row in range(-warm_up, geometries[-1].rows, block):
        order.compute_block(len(geometries) - 1, row)
    return order.last_read_times, order.write_times


@dataclass(slots=True)
class _BlockOrder:
    """Simulation of the order in which the layers' blocks (rows that are computed at a time) are computed.

    ``last_read_times``: time at which each row of the chain's input is last read. ``write_times``: time at which each row of
    its result is written. ``input_readers``: indices of layers that read rows of the input directly. ``computed_blocks``:
    number of blocks computed so far, which is the current time."""

    geometries: Sequence[LayerGeometry]
    last_read_times: list[int]
    write_times: list[int]
    input_readers: Set[int]
    computed_blocks: int = 0

    def compute_block(self, layer_index: int, row: int) -> None:
        """Simulate the computation of a layer's block at ``row``, after the blocks of earlier layers that it needs."""
        geometry = self.geometries[layer_index]
        first_new_row = row * geometry.window.stride + geometry.rows_before_first_request
        if layer_index:
            for start in range(first_new_row, first_new_row + geometry.step, self.geometries[layer_index - 1].block):
                self.compute_block(layer_index - 1, start)
        else:
            self.set_times(
                self.last_read_times,
                first_new_row + geometry.step - geometry.window_rows,
                first_new_row + geometry.step,
            )
        if layer_index in self.input_readers:
            self.set_times(self.last_read_times, row, row + geometry.block)
        self.computed_blocks += 1
        if layer_index == len(self.geometries) - 1:
            self.set_times(self.write_times, row, row + geometry.block)

    def set_times(self, times: list[int], start: int, stop: int) -> None:
        """Set the times of the rows from ``start`` to ``stop`` to the current time. Rows outside of the image are ignored."""
        for y in range(max(start, 0), min(stop, len(times))):
            times[y] = self.computed_blocks


# ---- Striping: a chain of layers becomes one function that computes the image from top to bottom.
#
# Every layer computes a block of rows at a time from its window: the rows of the previous layer's result that the block needs.
# Before the next block, the window is moved down: rows that are still needed are copied to its start, and the previous layer
# computes the rows after them, from its own window. So each row of every layer is computed once, when it is first needed.
# Windows contain the padding above and below the image, so the layers themselves need no padding.


@frozen
class Layer:
    """A layer of a chain. ``func``: lowered function that computes a block of rows of the layer's result.

    ``data``, ``result``: parameters of ``func`` for the window and for the computed rows. ``by_row``: parameters for
    tensors of the shape of the result (such as the other operand of an addition). ``func`` reads the rows of these that
    it computes. All of these are dense."""

    shape: LayerGeometry
    func: ir.PrimFunc
    data: ir.Buffer
    result: ir.Buffer
    by_row: tuple[ir.Buffer, ...] = ()


@frozen
class StripedFunction:
    """The function that computes a chain of layers.

    ``origins``: for every parameter except workspaces, the layer parameter that it replaces: (position of the layer,
    parameter of the layer's function)."""

    func: ir.PrimFunc
    origins: tuple[tuple[int, ir.Buffer], ...]


def build_striped_function(
    name: str, layers: Sequence[Layer], input_rows: int, *, word_copies: bool
) -> StripedFunction:
    """Build the function that computes a chain of layers row by row.

    Its parameters are the source (the first layer's input, which is in memory as a whole), the tensors read by row, the
    constants, the last layer's result, and workspaces. ``input_rows``: number of rows of the source. ``word_copies``:
    copy rows of bytes by unaligned words. The geometry of the layers must come from
    :func:`~microc.tir.striped_layers.choose_blocks`."""
    return _StripedFunctionBuilder(name, tuple(layers), input_rows, word_copies).build()


@frozen
class BufferLocation:
    """Location of a layer's buffer in the fused function: the elements of ``buffer`` from element ``start`` on.

    If ``start`` is None, ``buffer`` is the same buffer with another name. ``owner``: number of the value, if several values
    are in one buffer at different times.
    """

    buffer: ir.Buffer
    start: ir.Expr | None
    owner: int = 0


RowLocator = Callable[[ir.Var], BufferLocation]
"""Function that returns the location of a block's rows, given the first row of the block."""
_Key = tuple[str, int]
"""Key of a workspace of a layer: its dtype, and its number among the layer's workspaces of this dtype."""
_ZERO = ir.const(0, "int32")


class _StripedFunctionBuilder:
    """Builder of the function that computes a chain of layers row by row."""

    def __init__(self, name: str, layers: tuple[Layer, ...], input_rows: int, word_copies: bool) -> None:
        self.name, self.layers, self.source_rows = name, layers, input_rows
        self.copying = "vectorized" if word_copies else "serial"
        self.taken = {name for layer in layers for name in names_in_function(layer.func)}
        self.origins: dict[ir.Buffer, tuple[int, ir.Buffer]] = {}
        first, last = layers[0], layers[-1]
        self.source = self.add_parameter("data", 0, first.data, input_rows * first.shape.window.width)
        self.places = [self.add_operands(k) for k in range(len(layers))]
        self.result = self.add_parameter(
            "out", len(layers) - 1, last.result, _row_element_count(last, last.result) * last.shape.rows
        )
        self.scratch = self.shared_workspaces()
        for layer, places in zip(layers, self.places, strict=True):
            places |= {own: BufferLocation(self.scratch[key], _ZERO) for key, own in _numbered_workspaces(layer)}
        self.windows = {k: self.create_window_buffer(k) for k in range(len(layers)) if k or first.shape.window.padded}

    def build(self) -> StripedFunction:
        """Build the function. It fills all windows with padding, then loops over the blocks of the last layer."""
        last = len(self.layers) - 1
        shape = self.layers[last].shape
        # The first iterations compute no block of the result: they only fill the windows.
        early = -(-count_warm_up_rows([layer.shape for layer in self.layers], last) // shape.block)
        step = ir.Var(self.fresh_name("step"))
        body = ir.For(
            step,
            ir.const(shape.rows // shape.block + early, "int32"),
            self.build_next_block(last, (step - early) * shape.block, self.result_location, None),
        )
        whole = simplify_stmt(
            unroll_loops(lower_lanes(ir.seq(*(self.build_window_fill(k) for k in self.windows), body)))
        )
        params = (*self.origins, *self.windows.values(), *self.scratch.values())
        return StripedFunction(ir.PrimFunc(self.name, params, whole), tuple(self.origins.values()))

    # ------------------------------------------------------------ buffers

    def fresh_name(self, stem: str) -> str:
        """Return a name, derived from ``stem``, that no layer and no parameter uses yet."""
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}{number}", number + 1
        self.taken.add(name)
        return name

    def add_parameter(self, stem: str, layer_index: int, layer_parameter: ir.Buffer, element_count: int) -> ir.Buffer:
        """Add a parameter of ``element_count`` elements to the function; return it.

        It replaces the parameter ``layer_parameter`` of the layer with index ``layer_index``."""
        buffer = ir.Buffer(self.fresh_name(stem), (element_count,), layer_parameter.dtype, layer_parameter.scope)
        self.origins[buffer] = (layer_index, layer_parameter)
        return buffer

    def add_operands(self, layer_index: int) -> dict[ir.Buffer, BufferLocation]:
        """Add parameters for a layer's constants and for the tensors that it reads by row; return the locations of these.

        The start of a tensor read by row is set later, for each block."""
        layer = self.layers[layer_index]
        found: dict[ir.Buffer, BufferLocation] = {}
        for param in layer.by_row:
            size = _row_element_count(layer, param) * layer.shape.rows
            found[param] = BufferLocation(self.add_parameter(param.name, layer_index, param, size), _ZERO)
        for param in layer.func.params:
            if param.scope == "const":
                own = replace(param, name=self.fresh_name(param.name))
                self.origins[own] = (layer_index, param)
                found[param] = BufferLocation(own, None)
        return found

    def shared_workspaces(self) -> dict[_Key, ir.Buffer]:
        """Create the workspaces that all layers share, by dtype and number.

        Sharing is possible because only one layer runs at a time."""
        sizes: dict[_Key, int] = {}
        for layer in self.layers:
            for key, own in _numbered_workspaces(layer):
                sizes[key] = max(sizes.get(key, 0), own.size)
        return {key: ir.Buffer(self.fresh_name("scratch"), (n,), key[0], "workspace") for key, n in sizes.items()}

    def create_window_buffer(self, layer_index: int) -> ir.Buffer:
        """Create the buffer for the window of a layer."""
        shape = self.layers[layer_index].shape
        return ir.Buffer(
            self.fresh_name("rows"),
            (shape.window_rows * shape.window.width,),
            self.layers[layer_index].data.dtype,
            "workspace",
        )

    # ------------------------------------------------------------ statements

    def result_location(self, row: ir.Var) -> BufferLocation:
        """Return the location of the block of the chain's result that starts at ``row``."""
        return BufferLocation(self.result, row * _row_element_count(self.layers[-1], self.layers[-1].result))

    def build_next_block(
        self, layer_index: int, row: ir.Expr, locate_rows: RowLocator, next_layer: LayerGeometry | None
    ) -> ir.Stmt:
        """Return statements that move a layer's window and compute the block at ``row``.

        ``row``: first row of the block. ``locate_rows``: function that returns the location of the block's rows.
        ``next_layer``: geometry of the next layer, whose window contains this location; None for the last layer."""
        layer, shape = self.layers[layer_index], self.layers[layer_index].shape
        index = ir.Var(self.fresh_name("row"))
        if layer_index in self.windows:
            window: ir.Stmt | None = self.build_window_advance(layer_index, index)
            data = BufferLocation(self.windows[layer_index], _ZERO)
        else:
            window, data = None, BufferLocation(self.source, index * (shape.window.stride * shape.window.width))
        places = self.places[layer_index] | {layer.data: data, layer.result: locate_rows(index)}
        places |= {b: BufferLocation(places[b].buffer, index * _row_element_count(layer, b)) for b in layer.by_row}
        outside = 0 if shape.has_only_inside_blocks else shape.block - 1
        touches_image = ir.Bin("and", index >= -outside, index <= shape.rows - shape.block + outside)
        computed = ir.If(touches_image, redirect_to_locations(layer.func.body, places))
        border = self.build_border_fill(locate_rows(index), index, shape.rows, shape.block, next_layer)
        return ir.Let(index, row, ir.seq(window, computed, border))

    def build_window_advance(self, layer_index: int, row: ir.Expr) -> ir.Stmt:
        """Return statements that move a layer's window down, and compute or copy the new rows for the block at ``row``."""
        geometry, buffer = self.layers[layer_index].shape, self.windows[layer_index]
        width, kept = geometry.window.width, geometry.window_rows - geometry.step
        shift = self.build_ascending_copy(buffer, _ZERO, buffer, ir.const(geometry.step * width, "int32"), kept * width)
        block = self.layers[layer_index - 1].shape.block if layer_index else 1
        iteration = ir.Var(self.fresh_name("iteration"))
        location = BufferLocation(buffer, (iteration * block + kept) * width)
        first_new_row = row * geometry.window.stride + geometry.rows_before_first_request + iteration * block
        source = self.build_source_row_copy(first_new_row, location, geometry) if not layer_index else None
        new_rows = source or self.build_next_block(layer_index - 1, first_new_row, lambda _: location, geometry)
        return ir.seq(shift if kept else None, ir.For(iteration, ir.const(geometry.step // block, "int32"), new_rows))

    def build_source_row_copy(self, row: ir.Expr, target: BufferLocation, reader: LayerGeometry) -> ir.Stmt:
        """Return statements that copy a row of the source into a window, or padding if the row is outside of the image.

        ``target``: location of the row in the window. ``reader``: geometry of the layer to which the window belongs."""
        index, width = ir.Var(self.fresh_name("row")), reader.window.width
        assert target.start is not None
        copy = self.build_ascending_copy(target.buffer, target.start, self.source, index * width, width)
        copy_if_inside = ir.If(_build_inside_image_condition(index, self.source_rows), copy)
        return ir.Let(
            index, row, ir.seq(copy_if_inside, self.build_border_fill(target, index, self.source_rows, 1, reader))
        )

    def build_border_fill(
        self,
        block_location: BufferLocation,
        first_row: ir.Var,
        image_rows: int,
        block_rows: int,
        next_layer: LayerGeometry | None,
    ) -> ir.Stmt | None:
        """Return statements that fill the rows of a block above and below the image with padding.

        ``first_row``: first of the ``block_rows`` rows. ``image_rows``: number of rows of the image. Returns None if
        the window of ``next_layer`` needs no padding."""
        if next_layer is None or not next_layer.window.padded:
            return None
        k, width = ir.Var(self.fresh_name("k")), next_layer.window.width
        assert block_location.start is not None
        fill = self.build_padding_fill(
            block_location.buffer, block_location.start + k * width, width, next_layer.window
        )
        each = ir.For(
            k,
            ir.const(block_rows, "int32"),
            ir.If(ir.Un("not", _build_inside_image_condition(first_row + k, image_rows)), fill),
        )
        return ir.If(ir.Bin("or", first_row < 0, first_row > image_rows - block_rows), each)

    def build_ascending_copy(
        self,
        target_buffer: ir.Buffer,
        target_start: ir.Expr,
        source: ir.Buffer,
        source_start: ir.Expr,
        element_count: int,
    ) -> ir.Stmt:
        """Return a loop that copies ``element_count`` elements in ascending order.

        Because of this order, a window can be moved to lower addresses in place."""
        k = ir.Var(self.fresh_name("k"))
        return ir.For(
            k,
            ir.const(element_count, "int32"),
            ir.Store(target_buffer, (target_start + k,), source[source_start + k]),
            self.copying,
        )

    def build_padding_fill(
        self, target_buffer: ir.Buffer, first_element: ir.Expr, element_count: int, window: Window
    ) -> ir.Stmt:
        """Return a loop that fills ``element_count`` elements with the padding value of a window."""
        k = ir.Var(self.fresh_name("k"))
        value = ir.const(window.pad_value, target_buffer.dtype)
        return ir.For(
            k, ir.const(element_count, "int32"), ir.Store(target_buffer, (first_element + k,), value), self.copying
        )

    def build_window_fill(self, layer_index: int) -> ir.Stmt:
        """Return a loop that fills a layer's window with padding before the first block is computed.

        So all elements are defined that layers read from rows above the image."""
        return self.build_padding_fill(
            self.windows[layer_index], _ZERO, self.windows[layer_index].size, self.layers[layer_index].shape.window
        )


def names_in_function(func: ir.PrimFunc) -> set[str]:
    """Return the names of all parameters, variables and buffers of a function."""
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


def _numbered_workspaces(layer: Layer) -> Iterator[tuple[_Key, ir.Buffer]]:
    """Yield the workspaces of a layer, each with its key: (dtype, number among the workspaces of this dtype)."""
    counts: dict[str, int] = {}
    for param in layer.func.params:
        if param.scope == "workspace":
            number = counts.get(param.dtype, 0)
            counts[param.dtype] = number + 1
            yield (param.dtype, number), param


def _row_element_count(layer: Layer, buffer: ir.Buffer) -> int:
    """Return the number of elements in one row of a tensor that a layer computes or reads by row.

    ``buffer``: the layer's parameter for a block of these rows."""
    return buffer.size // layer.shape.block


def _build_inside_image_condition(row: ir.Expr, rows: int) -> ir.Expr:
    """Return an expression for the condition that ``row`` is inside an image of ``rows`` rows."""
    return ir.Bin("and", row >= 0, row < rows)


def redirect_to_locations(body: ir.Stmt, locations: Mapping[ir.Buffer, BufferLocation]) -> ir.Stmt:
    """Return a layer's statements with the accesses to its buffers redirected to the locations of these buffers."""

    def indices_at_location(
        place: BufferLocation, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]
    ) -> tuple[ir.Expr, ...]:
        if place.start is None:
            return indices
        flat = place.start
        for index, stride in zip(indices, buffer.strides, strict=True):
            flat = flat + index * stride
        return (flat,)

    def redirect_access(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Load(buffer, indices) if buffer in locations:
                return ir.Load(locations[buffer].buffer, indices_at_location(locations[buffer], buffer, indices))
            case ir.AddressOf(buffer, indices, extent, writes, step) if buffer in locations:
                return ir.AddressOf(
                    locations[buffer].buffer,
                    indices_at_location(locations[buffer], buffer, indices),
                    extent,
                    writes,
                    step,
                )
            case _:
                return e

    def redirect_store(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store) and s.buffer in locations:
            place = locations[s.buffer]
            return ir.Store(place.buffer, indices_at_location(place, s.buffer, s.indices), s.value)
        return s

    return map_stmt(body, redirect_store, lambda x: map_expr(x, redirect_access))
