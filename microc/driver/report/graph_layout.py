"""Boxes and curves of a directed graph without cycles, drawn in ranks from top to bottom.

The classic steps (Sugiyama, Tagawa, Toda 1981): a box's rank is the longest way to it; edges over several ranks pass through
points in between; an order within the ranks by the barycentres of neighbours keeps crossings few; places follow the neighbours
as far as the order lets them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from microc.frozen import frozen

_GAP, _RANK_GAP, _POINT = 22, 30, 14
_SWEEPS = 6


@frozen
class Layout:
    """Upper left corners of the boxes by their number, a path (SVG) for every edge in order, and the size of all, in pixels."""

    corners: tuple[tuple[float, float], ...]
    paths: tuple[str, ...]
    width: float
    height: float


def layout(count: int, edges: Sequence[tuple[int, int]], width: float, height: float) -> Layout:
    """Place ``count`` boxes of one size. ``edges`` lead from a lower number to a higher one."""
    ranks = _ranks(count, edges)
    chains, ranks_of_all = _chains(edges, ranks)
    total = len(ranks_of_all)
    links = [link for chain in chains for link in pairwise(chain)]
    rows = _ordered(ranks_of_all, links)
    widths = [width if node < count else _POINT for node in range(total)]
    centres = _centres(rows, links, widths)
    left = min((centres[n] - widths[n] / 2 for n in range(total)), default=0.0)
    x = {node: at - left for node, at in centres.items()}
    y = {node: ranks_of_all[node] * (height + _RANK_GAP) for node in range(total)}
    paths = tuple(_path([(x[n], y[n], height if n < count else 0.0) for n in chain], height) for chain in chains)
    right = max((x[n] + widths[n] / 2 for n in range(total)), default=0.0)
    bottom = max((y[n] + height for n in range(count)), default=0.0)
    return Layout(tuple((x[n] - width / 2, y[n]) for n in range(count)), paths, right, bottom)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way to every box; one without operands stands right above who reads it first."""
    ranks = [0] * count
    followers = defaultdict(list)
    entered = {v for _, v in edges}
    for u, v in sorted(edges):
        ranks[v] = max(ranks[v], ranks[u] + 1)
        followers[u].append(v)
    for node in range(count):
        if node not in entered and followers[node]:
            ranks[node] = min(ranks[v] for v in followers[node]) - 1
    return ranks


def _chains(edges: Sequence[tuple[int, int]], ranks: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Every edge as a chain of nodes, a rank apart; what is between two boxes are points, numbered after the boxes."""
    all_ranks, chains = list(ranks), []
    for u, v in edges:
        points = list(range(len(all_ranks), len(all_ranks) + ranks[v] - ranks[u] - 1))
        all_ranks += [ranks[u] + 1 + k for k in range(len(points))]
        chains.append([u, *points, v])
    return chains, all_ranks


def _ordered(ranks: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Nodes by rank, in an order with few crossings."""
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for node, rank in enumerate(ranks):
        rows[rank].append(node)
    above, below = _neighbours(links)
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            place = {node: k for r in rows for k, node in enumerate(r)}
            row.sort(key=lambda n: (_mean([place[m] for m in neighbours[n]], place[n]), place[n]))
    return rows


def _centres(
    rows: Sequence[Sequence[int]], links: Sequence[tuple[int, int]], widths: Sequence[float]
) -> dict[int, float]:
    """Horizontal middles: each as near to the middle of its neighbours as its row allows."""
    centres: dict[int, float] = {}
    for row in rows:
        span = sum(widths[n] for n in row) + _GAP * (len(row) - 1)
        at = -span / 2
        for node in row:
            centres[node] = at + widths[node] / 2
            at += widths[node] + _GAP
    above, below = _neighbours(links)
    for sweep in range(2 * _SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean([centres[m] for m in neighbours[n]], centres[n]) for n in row]
            centres.update(zip(row, _spread(wanted, [widths[n] for n in row]), strict=True))
    return centres


def _spread(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Places in order, at least a gap apart, near to what is wanted: the mean of pushing to the right and to the left."""
    right, left = list(wanted), list(wanted)
    for k in range(1, len(wanted)):
        right[k] = max(right[k], right[k - 1] + (widths[k - 1] + widths[k]) / 2 + _GAP)
        m = len(wanted) - 1 - k
        left[m] = min(left[m], left[m + 1] - (widths[m] + widths[m + 1]) / 2 - _GAP)
    return [(a + b) / 2 for a, b in zip(right, left, strict=True)]


def _neighbours(links: Sequence[tuple[int, int]]) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for u, v in links:
        above[v].append(u)
        below[u].append(v)
    return above, below


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _path(points: Sequence[tuple[float, float, float]], height: float) -> str:
    """A smooth curve from the bottom of the first box through the points to the top of the last one."""
    (x, y, own), *rest = points
    at = x, y + own
    words = [f"M{at[0]:.1f} {at[1]:.1f}"]
    for x, y, own in rest:
        middle = (at[1] + y) / 2
        words.append(f"C{at[0]:.1f} {middle:.1f} {x:.1f} {middle:.1f} {x:.1f} {y:.1f}")
        if not own:
            words.append(f"V{y + height:.1f}")
        at = x, y + (own or height)
    return "".join(words)
