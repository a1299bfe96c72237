"""What the words of RISC-V's vectors are written with: how many lanes a vector has, the names of types and functions of
``riscv_vector.h``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from microc import dtypes
from microc.frozen import frozen
from microc.isa.base import Body, vector
from microc.isa.sets import VectorUnit
from microc.isa.vocabulary.lanes import WIDTHS
from microc.isa.vocabulary.scalable import LEAST

GUARD = "defined(__riscv_vector) && __riscv_v_min_vlen >= 128 && __riscv_v_intrinsic >= 12000"
"""clang 17, gcc 14 and later."""
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")

Words = Iterator[tuple[str, int, str]]
"""Names, instructions, C."""


@frozen
class Width:
    """So many lanes, or (``scalable``) that times what registers are longer than 128 bits, of which ``vl`` take part."""

    lanes: int
    scalable: bool = False

    def __str__(self) -> str:
        """How many take part, in C."""
        return "(size_t)vl" if self.scalable else str(self.lanes)

    def vector(self, element: str) -> str:
        return vector(element, self.lanes, self.scalable)


def v(name: str, *operands: str | int | Width) -> str:
    """A call of an instruction's function; the last operand is how many lanes it has."""
    return f"__riscv_v{name}({', '.join(map(str, operands))})"


def group(width: Width, bits: int = 32) -> str:
    """The registers that so many lanes fill: ``m4``, or ``mf2`` for half of one."""
    filled = width.lanes * bits
    return f"m{filled // 128}" if filled >= 128 else f"mf{128 // filled}"


def unsigned(vector: str, lanes: Width) -> str:
    return f"__riscv_vreinterpret_u32{group(lanes)}({vector})"


def signed(vector: str, lanes: Width) -> str:
    return f"__riscv_vreinterpret_i32{group(lanes)}({vector})"


def mask(width: Width, condition: str) -> str:
    return f"const vbool{128 // width.lanes}_t m = {condition};\n"


def offsets(lanes: Width, bits: int) -> str:
    """Those of ``a``, in bytes."""
    elements = unsigned("a", lanes)
    return elements if bits == 8 else v("sll", elements, bits // 16, lanes)


EVERY = (*map(Width, WIDTHS), *(Width(n, scalable=True) for n in LEAST))


def types(*kinds: str) -> VectorUnit:
    """Vectors of some kinds of elements, of every width."""
    bits = {kind: dtypes.info(kind).bits for kind in kinds}
    names = {n.vector(kind): f"v{kind}{group(n, bits[kind])}_t" for n in EVERY for kind in kinds}
    return VectorUnit(names, "riscv_vector.h")


def bodies(words: Callable[[Width], Words]) -> dict[str, Body]:
    """Of vectors of every width; none of the first lanes where those that take part are told anyway."""
    found = ((n, *word) for n in EVERY for word in words(n))
    return {
        name: _counted(name, count, text) for n, name, count, text in found if not (n.scalable and "_first" in name)
    }


def _counted(name: str, count: int, text: str) -> Body:
    memory = {"load": "vector_load", "gather": "vector_load", "store": "vector_store", "scatter": "vector_store"}
    kind = memory.get(name.partition("_")[0])
    return Body(text, (*(((kind, 1),) if kind else ()), *((("vector", count),) if count else ())))
