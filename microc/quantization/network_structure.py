"""The structure of a float network: loops, flow of values, layers, units of channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Names, Node
from microc.ops import registry
from microc.ops.control import UNBOUNDED
from microc.transform.channel_relations import channel_count, channel_links, is_mixing
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import CHOICES, moves

# ---- Loops in float networks: their turns are quantised like the rest, recurrent layers among them.
#
# Every value of a network, those in bodies of loops too, has one name here. What a turn computes is observed as one more result
# that the loop stacks.


def body_of(node: Node) -> Graph | None:
    """The body of a loop that can be quantised: what a loop without a bound computes cannot be stacked, so is never seen."""
    return node.attr("body") if node.op == "loop" and node.attr("count") != UNBOUNDED else None


def distinct(graph: Graph) -> Graph:
    """The graph whose bodies name values as neither it nor another of them does."""
    return _distinct(graph, Names(graph.types))


def _distinct(graph: Graph, taken: Names) -> Graph:
    def renamed(node: Node) -> Node:
        body = body_of(node)
        if body is None:
            return node
        names = {name: taken.fresh(name) for name in body.types}
        return replace(node, attrs={**node.attrs, "body": _distinct(_with_names(body, names), taken)})

    return graph.with_nodes(list(map(renamed, graph.nodes)))


def _with_names(body: Graph, names: dict[str, str]) -> Graph:
    def known(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(names[value] if value else "" for value in values)

    return replace(
        body,
        inputs=known(body.inputs),
        outputs=known(body.outputs),
        nodes=tuple(replace(node, inputs=known(node.inputs), outputs=known(node.outputs)) for node in body.nodes),
        types={names[name]: kind for name, kind in body.types.items()},
        consts={names[name]: data for name, data in body.consts.items()},
    )


def flattened(graph: Graph) -> Graph:
    """All nodes, types and constants in one: inputs and outputs of bodies are those of the whole. It is read, and never runs."""
    inputs, outputs, types, consts = [*graph.inputs], [*graph.outputs], {**graph.types}, {**graph.consts}
    nodes: list[Node] = []
    for node in graph.nodes:
        body = body_of(node)
        if body is not None:
            flat = flattened(body)
            inputs += flat.inputs
            outputs += flat.outputs
            types |= flat.types
            consts |= flat.consts
            nodes += flat.nodes
        nodes.append(node)
    return replace(graph, inputs=tuple(inputs), outputs=tuple(outputs), nodes=tuple(nodes), types=types, consts=consts)


def given(node: Node) -> Iterator[tuple[str, str]]:
    """What a loop gives to all its turns: (what it is called outside, inside)."""
    body = body_of(node)
    if body is not None:
        carried = node.attr("carried")
        yield from zip(node.inputs[carried:], body.inputs[1 + carried :], strict=True)


def handed(node: Node) -> Iterator[tuple[str, str]]:
    """What is the same value inside of a loop and outside, or in the next turn: (from, to)."""
    yield from given(node)
    body = body_of(node)
    if body is not None:
        carried = node.attr("carried")
        states = body.inputs[1 : 1 + carried]
        yield from zip(node.inputs[:carried], states, strict=True)
        yield from zip(body.outputs[:carried], states, strict=True)
        yield from zip(body.outputs, node.outputs, strict=True)


def exposed(graph: Graph, values: Iterable[str]) -> Graph:
    """The graph that has those of ``values`` that are a turn's as well, under their names: all turns' along the first axis."""
    wanted = set(values)
    nodes, types = list[Node](), dict(graph.types)
    for node in graph.nodes:
        body = body_of(node)
        if body is not None:
            body = exposed(body, wanted)
            seen = [name for name in body.types if name in wanted and name not in types]
            names = Names({*types, *body.types})
            rows = {name: names.fresh(f"{name}_row") for name in seen}
            kinds = {name: body.types[name] for name in seen}
            copies = [
                Node("reshape", (name,), (row,), {"shape": kinds[name].shape}, node.loc) for name, row in rows.items()
            ]
            body = replace(
                body,
                outputs=(*body.outputs, *rows.values()),
                nodes=(*body.nodes, *copies),
                types={**body.types, **{row: kinds[name] for name, row in rows.items()}},
            )
            count = node.attr("count")
            types |= {name: replace(kind, shape=(count, *kind.shape)) for name, kind in kinds.items()}
            node = replace(node, outputs=(*node.outputs, *seen), attrs={**node.attrs, "body": body})
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)


# ---- How values flow through a float network, loops and state included: who makes and reads each, and which names
# are one value.


class Flow:
    """``graph``: all nodes in one; ``links``: pairs of names of one value, inside of a loop and outside, in the next turn, or in
    the next run; ``recurrent``: the values that depend on what they were in the turn or in the run before."""

    def __init__(self, graph: Graph) -> None:
        self.graph = flattened(graph)
        self.consumers, self.makers = self.graph.consumers(), self.graph.producer()
        kept = [(value, state) for state, value in self.graph.updates.items()]
        self.links = [
            link
            for link in (*(link for node in self.graph.nodes for link in handed(node)), *kept)
            if all(map(self.is_activation, link)) and (link[1] in self.consumers or link[1] in self.graph.outputs)
        ]
        self.recurrent = (self.graph.types.keys() - graph.types.keys()) | self.fed_back()

    def fed_back(self) -> set[str]:
        """The values on a way from a state back to it, in one run or through other states in several."""
        forwards, backwards = dict[str, list[str]](), dict[str, list[str]]()
        steps = [(name, result) for node in self.graph.nodes for name in node.inputs for result in node.outputs]
        for name, result in (*steps, *((value, state) for state, value in self.graph.updates.items())):
            forwards.setdefault(name, []).append(result)
            backwards.setdefault(result, []).append(name)
        return {value for state in self.graph.state for value in reached(state, forwards) & reached(state, backwards)}

    def is_float(self, value: str) -> bool:
        return self.graph.types[value].dtype == "float32"

    def is_activation(self, name: str) -> bool:
        return bool(name) and name not in self.graph.consts and self.is_float(name)

    def activations(self, node: Node) -> Iterator[str]:
        return filter(self.is_activation, node.inputs)

    def ordered(self) -> Iterator[str]:
        """All values that are no constants."""
        yield from self.graph.inputs
        yield from self.graph.state
        for node in self.graph.nodes:
            yield from node.outputs

    def only_user(self, value: str) -> Node | None:
        users = self.consumers.get(value, ())
        kept = value in self.graph.outputs or value in self.graph.updates.values()
        return users[0] if len(users) == 1 and not kept else None

    def keeps_scale(self, node: Node) -> bool:
        """Whether the result has its operand's scale: it is made of elements, or between them."""
        return (moves(node) or node.op in CHOICES or node.op == "resample") and self.is_float(node.outputs[0])


def reached(start: str, steps: Mapping[str, Sequence[str]]) -> set[str]:
    """All that steps lead to from a value, itself where they lead back."""
    found, waiting = set[str](), [start]
    while waiting:
        for name in steps.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


# ---- Where the noise of a network is measured: its outputs, in front of a last function that saturates.
#
# Behind a softmax or a sigmoid the answers to most samples are near 0 and 1 whatever happens, so that few samples decide about
# the noise, and saturated ones hide it. In front of it all of them speak. A number that is added to all classes changes no
# softmax and no argmax: what all have in common does not count there.

_LAST = -1
SATURATING: Mapping[str, int | None] = MappingProxyType(
    {"softmax": _LAST, "log_softmax": _LAST, "argmax": _LAST, "argmin": _LAST, "sigmoid": None}
)
"""Functions, and along which axis they compare (where no attribute says it)."""


@frozen
class End:
    """``value`` is measured, without its mean along ``axis`` if there is one."""

    value: str
    axis: int | None = None

    def seen(self, array: Array) -> Array:
        """What counts of a value (any shape), as float64."""
        found = np.asarray(array, np.float64)
        return found if self.axis is None else found - found.mean(axis=self.axis, keepdims=True)


def ends(graph: Graph) -> dict[str, End]:
    """Of each output where it is measured."""
    makers = graph.producer()
    return {name: _in_front(makers, name) for name in dict.fromkeys(graph.outputs)}


def _in_front(makers: Mapping[str, Node], output: str) -> End:
    found, value = End(output), output
    while value in makers:
        node = makers[value]
        if node.op in SATURATING:
            axis = SATURATING[node.op]
            found = End(node.inputs[0], node.attr("axis") if "axis" in node.attrs else axis)
        elif not registry.get(node.op).moves:
            break
        value = node.inputs[0]
    return found


# ---- Layers as products of matrices: what a convolution or a dense layer multiplies by its weights, row by row.

_MOST_DEPTH = 2048
"""Products in a sum, of which the second moments are kept: 32 MB."""


@frozen
class Layer:
    """A ``dense``, ``conv2d`` (NHWC) or ``conv2d_transpose`` with constant weights (O, ...). ``groups``: of outputs that read
    channels of their own; ``depth``: products in a sum; ``out``: height and width of a convolution's result."""

    node: Node
    weights: Array
    bias: Array
    groups: int
    out: tuple[int, int] = (1, 1)

    @property
    def name(self) -> str:
        """Of the result."""
        return self.node.outputs[0]

    @property
    def data(self) -> str:
        return self.node.inputs[0]

    @property
    def weight(self) -> str:
        return self.node.inputs[1]

    @property
    def depth(self) -> int:
        return int(self.weights[0].size)

    @property
    def rows(self) -> Array:
        """The weights (groups, outputs of a group, depth)."""
        return self.weights.reshape(self.groups, -1, self.depth).astype(np.float64)

    def reads(self, data: Array, most: int, random: np.random.Generator) -> Reads:
        """The places where a result is looked at: at most ``most`` of them, drawn evenly. ``data`` may be that of all turns of a
        loop, along one more axis."""
        if self.node.op == "dense":
            return Reads(self, np.sort(_drawn(data.size // self.depth, most, random)), ())
        images = data.size // int(np.prod(data.shape[-3:]))
        places = np.sort(_drawn(images * self.out[0] * self.out[1], most, random))
        image, place = np.divmod(places, self.out[0] * self.out[1])
        down, right = np.divmod(place, self.out[1])
        rows, columns = (self._taps(k, at, data.shape[k - 3]) for k, at in enumerate((down, right)))
        return Reads(self, places, (image[:, None, None], rows[:, :, None], columns[:, None, :]))

    def _taps(self, axis: int, at: Array, extent: int) -> Array:
        """Which rows (or columns) of the data are read for results ``at`` some places, tap by tap; for none ``extent``, which
        is beyond the last."""
        stride, step, before = (self.node.attr(name)[axis] for name in ("strides", "dilation", "padding"))
        taps = np.arange(self.weights.shape[1 + axis]) * step
        if self.node.op == "conv2d":
            found, meets = at[:, None] * stride - before + taps, np.True_
        else:
            found, apart = np.divmod(at[:, None] + before - taps, stride)
            meets = apart == 0
        return np.where(meets & (found >= 0) & (found < extent), found, extent)


@frozen
class Reads:
    """Some of a layer's results: which elements of the data each of them multiplies by weights."""

    layer: Layer
    places: Array
    window: tuple[Array, ...]

    def of(self, data: Array) -> Array:
        """The factors (groups, results, depth)."""
        layer = self.layer
        if not self.window:
            return np.asarray(data.reshape(-1, layer.depth)[self.places], np.float64)[np.newaxis]
        padded = np.pad(data.reshape(-1, *data.shape[-3:]), ((0, 0), (0, 1), (0, 1), (0, 0)))
        taken = padded[self.window].astype(np.float64)
        parts = taken.reshape(len(taken), -1, layer.groups, layer.weights.shape[-1])
        return np.moveaxis(parts, 2, 0).reshape(layer.groups, len(taken), layer.depth)


def layers(graph: Graph, weights: frozenset[str]) -> Iterator[Layer]:
    """The layers of a graph and of its loops on ``weights``, of which each belongs to one layer, that are matrices of a size to
    keep."""
    flat = flattened(graph)
    users = [node.inputs[1] for node in flat.nodes if node.op in LAYERS]
    for node in flat.nodes:
        if node.op not in LAYERS or node.inputs[1] not in weights or users.count(node.inputs[1]) > 1:
            continue
        if node.attrs.get("layout") == "NCHW" or node.attrs.get("pad_value", 0):
            continue
        data = flat.consts[node.inputs[1]]
        name = (*node.inputs, "", "")[2]
        bias = np.zeros(len(data), np.float32) if not name else flat.consts.get(name)
        if bias is not None and bias.size == len(data) and data[0].size <= _MOST_DEPTH:
            groups: int = 1
            out: tuple[int, ...] = (1, 1)
            if node.op != "dense":
                groups = flat.types[node.inputs[0]].shape[3] // data.shape[3]
                out = flat.types[node.outputs[0]].shape[1:3]
            yield Layer(node, data, bias.reshape(-1), groups, (out[0], out[1]))


def _drawn(count: int, most: int, random: np.random.Generator) -> Array:
    return np.arange(count) if count <= most else random.choice(count, most, replace=False)


# ---- The units that channels are stored in: which are free to choose, which must be alike, and a graph in other
# units.
#
# A channel is an index along the last axis. Channels are of one unit where a positively homogeneous operator ties them;
# weights of a layer, and constant factors, take one unit to another. Wherever anything else looks at a channel its unit is
# fixed.

HOMOGENEOUS = frozenset(
    (
        *("relu", "leaky_relu", "abs", "neg", "max_pool2d", "avg_pool2d", "mean", "max", "min", "sum"),
        *("reshape", "transpose", "pad", "slice", "concat", "add", "sub"),
    )
)
"""f(s x) = s f(x) for s > 0, channel by channel."""
_TERMS = frozenset(("add", "sub"))
_LINEAR = ("", "relu")
"""Activations in the same operator that do not see a unit."""


class Units:
    """The units of a float graph, numbered from 0; ``free`` says which may be chosen."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._starts: dict[str, int] = {}
        total = 0
        for name in graph.types:
            if name not in graph.consts:
                self._starts[name], total = total, total + channel_count(graph, name)
        self._parents = list(range(total))
        fixed = np.zeros(total, bool)
        for name in (*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()):
            if name in self._starts:
                fixed[self._places(name)] = True
        for node in graph.nodes:
            if not self._understood(node):
                for name in (*node.inputs, *node.outputs):
                    if name in self._starts:
                        fixed[self._places(name)] = True
        roots = np.array([self._root(place) for place in range(total)], np.int64)
        _, self._units = np.unique(roots, return_inverse=True)
        self.count = int(self._units.max(initial=-1)) + 1
        self.free = np.ones(self.count, bool)
        self.free[self._units[fixed]] = False

    def of(self, value: str) -> Array:
        """The unit of each channel of a value."""
        return np.asarray(self._units[self._places(value)])

    def blocks(self, values: Sequence[str]) -> Iterator[list[str]]:
        """The values, those together that have units in common."""
        owner: dict[int, int] = {}
        found: list[list[str]] = []
        for value in values:
            units = set(self.of(value).tolist())
            known = sorted({owner[unit] for unit in units if unit in owner})
            block = known[0] if known else len(found)
            if not known:
                found.append([])
            for other in known[1:]:
                found[block] += found[other]
                found[other] = []
                owner |= {unit: block for unit, at in owner.items() if at == other}
            found[block].append(value)
            owner |= dict.fromkeys(units, block)
        yield from filter(None, found)

    def is_layer(self, node: Node) -> bool:
        """Whether constant weights and bias make one unit of another: dense layers, convolutions of one group or depthwise
        ones."""
        if node.attrs.get("activation", "") not in _LINEAR or node.attrs.get("pad_value", 0):
            return False
        return is_mixing(self.graph, node) or (node.op == "conv2d" and channel_links(self.graph, node) is not None)

    def applied(self, factors: Array) -> Graph:
        """The graph whose channels are divided by the factors of their units."""
        names, types, consts = Names(self.graph.types), dict(self.graph.types), dict(self.graph.consts)

        def stored(name: str, data: Array) -> str:
            fresh = names.fresh(name)
            consts[fresh] = data.astype(np.float32)
            types[fresh] = replace(types[name], shape=data.shape)
            return fresh

        def scaled(node: Node) -> Node:
            changed = self._scaled(node, factors)
            inputs = (stored(name, changed[name]) if name in changed else name for name in node.inputs)
            return replace(node, inputs=tuple(inputs))

        return self.graph.with_nodes(list(map(scaled, self.graph.nodes)), types=types, consts=consts)

    def _scaled(self, node: Node, factors: Array) -> dict[str, Array]:
        """The constants of a node in other units, those that change."""
        known = [name for name in node.inputs if name in self.graph.consts]
        if not known or len(node.outputs) != 1 or not (self.is_layer(node) or node.op in _TERMS or self._factor(node)):
            return {}
        made = factors[self.of(node.outputs[0])]
        data = next((factors[self.of(name)] for name in node.inputs if name in self._starts), made)
        if (made == 1).all() and (data == 1).all():
            return {}
        consts = {name: self.graph.consts[name].astype(np.float64) for name in known}
        if node.op in _TERMS:
            return {name: array / made for name, array in consts.items()}
        if not self.is_layer(node):
            return {name: array * data / made for name, array in consts.items()}
        weight = consts[node.inputs[1]]
        if weight.shape[-1] == len(data):
            read = data
        else:
            read = data[np.arange(len(made)) // (len(made) // len(data))].reshape(-1, 1, 1, 1)
        outputs = made.reshape(-1, *(1,) * (weight.ndim - 1))
        return {
            name: array * read / outputs if name == node.inputs[1] else array / made for name, array in consts.items()
        }

    def _understood(self, node: Node) -> bool:
        """Tie the channels of a node; False where it is none that units can pass."""
        if len(node.outputs) != 1 or self.graph.types[node.outputs[0]].dtype != "float32":
            return False
        if self.is_layer(node) or self._factor(node):
            return True
        homogeneous = node.op in HOMOGENEOUS and node.attrs.get("activation", "") in _LINEAR
        if not homogeneous or (node.op == "pad" and node.attr("value")):
            return False
        tied = channel_links(self.graph, node)
        computed = {k for k, name in enumerate(node.inputs) if name in self._starts}
        constant = any(name in self.graph.consts for name in node.inputs) and node.op not in _TERMS
        if tied is None or constant or {link.operand for link in tied} != computed:
            return False
        for link in tied:
            here, there = self._starts[node.inputs[link.operand]], self._starts[node.outputs[0]]
            for source, target in zip(link.source.tolist(), link.target.tolist(), strict=True):
                self._join(here + source, there + target)
        return True

    def _factor(self, node: Node) -> bool:
        """Whether a node multiplies each channel by a constant of its own."""
        if node.op != "mul" or node.attrs.get("activation", "") not in _LINEAR:
            return False
        count = channel_count(self.graph, node.outputs[0])
        known = [name for name in node.inputs if name in self.graph.consts]
        return len(known) == 1 and all(channel_count(self.graph, name) == count for name in node.inputs)

    def _places(self, value: str) -> slice:
        start = self._starts[value]
        return slice(start, start + channel_count(self.graph, value))

    def _root(self, place: int) -> int:
        while self._parents[place] != place:
            self._parents[place] = place = self._parents[self._parents[place]]
        return place

    def _join(self, a: int, b: int) -> None:
        self._parents[self._root(b)] = self._root(a)
