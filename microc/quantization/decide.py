"""How every value of a network is stored: activations by what was seen of them, constants by what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from microc.graph.ir import Graph
from microc.quantization import blocks
from microc.quantization.by_hand import weights_of
from microc.quantization.config import Config
from microc.quantization.found import Places
from microc.quantization.loops import flattened
from microc.quantization.observe import Statistics, merged, table_statistics
from microc.quantization.ranges import chosen
from microc.quantization.scheme import WIDE, Activation, Weight
from microc.quantization.weights import like, quantised_constant, quantised_weights
from microc.quantization.write import Recipe
from microc.transform.qdq import LAYERS


def decided(
    graph: Graph, found: Places, seen: Mapping[str, Statistics], config: Config, bits: Mapping[str, int]
) -> Recipe:
    """The recipe for places of a network; activations that share a scale by what all of them hold. ``bits``: of each weight."""
    dtype, method, power_of_two = config.activations, config.ranges, config.power_of_two
    how: dict[str, Activation] = {}
    narrowed: dict[str, Activation] = {}
    flat = flattened(graph)
    tables = {value: table_statistics(flat.consts[name]) for name, value in found.tables.items()}
    for leader, values in found.groups().items():
        held = merged([all_of[value] for all_of in (seen, tables) for value in values if value in all_of])
        held = replace(held, reach=found.reach.get(leader, held.reach))
        wide, known = values[0] in found.wide, found.known.get(values[0])
        into = WIDE if wide else dtype
        if known is None or (known.dtype == WIDE) != (into == WIDE):  # raw bytes keep the dtype that they come in
            known = chosen(held, into, method, wide or power_of_two)[0]
        how |= dict.fromkeys(values, known)
        if dtype != WIDE and not found.narrowed.isdisjoint(values):
            narrowed |= dict.fromkeys(found.narrowed.intersection(values), chosen(held, dtype, method, power_of_two)[0])
    stored: dict[str, Weight] = {name: quantised_constant(flat.consts[name], power_of_two) for name in found.constants}
    stored |= {name: like(flat.consts[name], how[value]) for name, value in found.tables.items()}
    stored |= {
        name: quantised_weights(flat.consts[name], bits[name], power_of_two=power_of_two) for name in found.opened
    }
    opened, by_rows = frozenset(found.opened), weights_of(graph, config.by_rows)
    recipe = Recipe(how, stored, narrowed, found.widened, config.block, opened, power_of_two, by_rows)
    for node in flat.nodes:
        if node.op in LAYERS and node.inputs[1] in found.weights:
            bias = flat.consts.get(node.inputs[2]) if len(node.inputs) > 2 else None
            data = recipe.read(node)
            name = node.inputs[1]
            reals = flat.consts[name]
            own = blocks.block_of(node, reals, config.block)
            stored[name] = blocks.quantised_in_blocks(reals, bits[name], own, bias, data.scale, power_of_two)
    return recipe
