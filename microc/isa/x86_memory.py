"""Loads that widen and stores that narrow to and from 32-bit lanes on x86-64, of all lanes and of the first ones.

gcc spells the conversions of :mod:`microc.isa.gnu_vectors` element by element.
"""

from __future__ import annotations

from collections.abc import Iterator

from microc import dtypes
from microc.isa.vocabulary.lanes import SHORT_WORDS
from microc.isa.vocabulary.words import COPIED, MOVED
from microc.isa.x86_words import binary, unary

_LETTERS = {1: "b", 2: "w"}
"""How instructions call numbers of so many bytes."""
_LOWER = {
    1: "0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1",
    2: "0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1",
}
"""Which bytes of four words a number of one or two bytes is, for instructions that move the bytes of 16."""
_JOINED = {
    1: binary("vpermd", "t", "((int32x8){0, 4, 0, 0, 0, 0, 0, 0})", "s"),
    2: unary("vpermq $8,", "t", "s"),
}
"""Both halves of a vector of 256 bits, side by side."""
_HALVES = '__asm__("vcvtph2ps %1, %0" : "=v"(r) : "m"(*(const uint16_t (*)[{}])p));'
_FIRST = "const uint16_t m = (uint16_t)((1U << n) - 1U);"


def memory(lanes: int, avx: bool, masks: bool) -> Iterator[tuple[str, str]]:
    """Words and their bodies; ``avx``: those of AVX2 and AVX-512; ``masks``: those of AVX-512 alone."""
    for dtype, short in MOVED.items():
        size, word, kind = dtypes.nbytes(dtype), f"{short}_i32x{lanes}", "v" if avx else "x"
        widens = f"{'v' if avx else ''}pmov{'s' if dtype.startswith('i') else 'z'}x{_LETTERS[size]}d"
        loaded = f'__asm__("{widens} %1, %0" : "={kind}"(r) : "m"(*(const {dtypes.c_name(dtype)} (*)[{lanes}])p));'
        yield f"load_{word}", f"int32x{lanes} r;\n{loaded}\nreturn r;"
        narrowed = unary(f"vpmovd{_LETTERS[size]}", "t", "a") if masks else _shuffled(lanes, size, avx)
        yield f"store_{word}", f"{_bytes(lanes * (size if masks else 4))}\n{narrowed}\nmemcpy(p, &r, {lanes * size}U);"
        if masks:
            part = f"{_bytes(lanes * size)}\nt q;\n{_loaded(f'vmovdqu{8 * size}', dtype, 'q')}"
            yield f"load_{word}_first", f"{part}\n{unary(widens, f'int32x{lanes}', 'q')}\nreturn r;"
            yield f"store_{word}_first", _stored(f"vpmovd{_LETTERS[size]}", dtype)
    for name, (dtype, count) in SHORT_WORDS.items() if avx else ():  # gcc takes many through general registers
        text = f'__asm__("vpbroadcastd %1, %0" : "=v"(r) : "m"(*(const {dtypes.c_name(dtype)} (*)[{count}])p));'
        yield f"dup_{name}_i32x{lanes}", f"int32x{lanes} r;\n{text}\nreturn r;"
    if avx:
        yield f"load_f16_f32x{lanes}", f"float32x{lanes} r;\n{_HALVES.format(lanes)}\nreturn r;"
    for element, moves in (("float32", "vmovups"), ("int32", "vmovdqu32")) if masks else ():
        word, loaded = f"{COPIED[element]}_{COPIED[element]}x{lanes}_first", _loaded(moves, element, "r")
        yield f"load_{word}", f"{element}x{lanes} r;\n{loaded}\nreturn r;"
        yield f"store_{word}", _stored(moves, element)


def _bytes(count: int) -> str:
    """The type of a register that holds so many bytes."""
    return f"typedef int8_t t __attribute__((vector_size({max(16, count)})));"


def _shuffled(lanes: int, size: int, avx: bool) -> str:
    """The lower bytes of words, moved together."""
    if lanes == 4:
        return binary("vpshufb" if avx else "pshufb", "t", "a", f"((t){{{_LOWER[size]}}})")
    moved = binary("vpshufb", "t", "a", f"((t){{{_LOWER[size]},\n    {_LOWER[size]}}})", "s")
    return f"{moved}\n{_JOINED[size]}"


def _loaded(moves: str, dtype: str, result: str) -> str:
    """The first n elements at p by a mask, which AVX-512 has for every access."""
    source = f'"m"(*(const {dtypes.c_name(dtype)} (*)[n])p)'
    return f'{_FIRST}\n__asm__("{moves} %1, %0%{{%2%}}%{{z%}}" : "=v"({result}) : {source}, "Yk"(m));'


def _stored(moves: str, dtype: str) -> str:
    """The first n lanes to p, elements behind which stay."""
    target = f'"+m"(*({dtypes.c_name(dtype)} (*)[n])p)'
    return f'{_FIRST}\n__asm__("{moves} %1, %0%{{%2%}}" : {target} : "v"(a), "Yk"(m));'
