"""Products by weights that are looked up in tables, whose columns are opened once for several tiles of rows.

The rows of some tiles are widened as they are copied. Then, two columns at a time, weights are looked up, into a workspace of two
rows of 16-bit numbers, and all the tiles are multiplied by these as by the copy of a matrix. What looking up costs, three
instructions a weight, is shared by all of the rows, in exchange for the memory of their copies.
"""

from __future__ import annotations

from microc.schedule.rules.generic import copy_words
from microc.schedule.rules.matrix import ACROSS, STEP, TALL
from microc.schedule.rules.product import Product, copied_rows, known_product, prepared, product_of
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir.bit_fields import NEIGHBOURS, BitFields
from microc.tir.names import ACC, OUT

COPIED = 4096
"""Bytes that the copies of rows may take."""
TILES = (8, 7, 6, 5, 4, 3, 2)
"""Tiles of rows at once, the best first."""
UNROLL = (4, 3, 2, 1)


def suits_opened_columns(start: Schedule, target: Target) -> bool:
    """Numbers of 8 or 16 bits by weights in tables into 32 bits, several tiles of rows."""
    product = product_of(start)
    if product is None or not (product.along and product.tables) or product.inside:
        return False
    return product.depth % STEP == 0 and product.total.dtype == "int32" and _tiles(product) > 1


def _tiles(product: Product) -> int:
    """Tiles of rows that are copied at once: as many as the memory allows and leave none over, or just as it allows."""
    count = -(-product.rows // TALL)
    fitting = [n for n in TILES if n <= count and n * TALL * 2 * product.depth <= COPIED]
    return next((n for n in fitting if count % n == 0), fitting[0] if fitting else 1)


def opened_columns(start: Schedule, target: Target, _: Decisions) -> Schedule:
    """The schedule of the file's head."""
    schedule = prepared(start, target)
    product = known_product(schedule)
    p, o, k, weight = product.p, product.o, product.k, product.weight.name
    schedule, rows = copied_rows(schedule, product)
    schedule, opened = schedule.cache_read(ACC, weight, "workspace"), f"{weight}_workspace"
    unroll = next(n for n in UNROLL if product.depth // STEP % n == 0)
    schedule = schedule.split(p, (None, _tiles(product), TALL)).split(o, (None, min(ACROSS, product.columns)))
    schedule = schedule.split(k, (None, unroll, STEP))
    schedule = schedule.reorder(f"{p}_0", f"{o}_0", f"{p}_1", f"{k}_0", f"{k}_1", f"{p}_2", f"{o}_1", f"{k}_2")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    schedule = schedule.reverse_compute_at(OUT, f"{p}_1").set_scope(product.total.name, "register")
    schedule = copy_words(schedule.compute_at(rows, f"{p}_0").set_dtype(rows, "int16"), rows, target)
    schedule = schedule.compute_at(opened, f"{o}_0").set_dtype(opened, "int16")
    schedule = schedule.pack_bits(weight, product.bits, NEIGHBOURS, 0, product.tables)
    inner = schedule.loops_of(opened)[-1]
    schedule = schedule.split(inner, (None, BitFields(product.bits, NEIGHBOURS).group)).unroll(f"{inner}_1")
    schedule = schedule.tensorize(f"{k}_2", "dot4_int16_int16")
    for block in (f"{ACC}_init", ACC, OUT):
        around = schedule.loops_of(block)
        for loop in around[around.index(f"{p}_1") + 1 :]:
            schedule = schedule if loop == f"{k}_0" else schedule.unroll(loop)
    return schedule
