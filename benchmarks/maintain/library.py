# SPDX-License-Identifier: Apache-2.0
"""Measure what functions of compilers' libraries take: stack, flash and RAM, by core; write ``microc/codegen/c/library.json``.

    python benchmarks/maintain/library.py [--cores cortex-m0,avr] [-o FILE]

A C file has one function for each operation that generated C may leave to a library (a sum of floats, a division of 64 bits,
``sinf``). All are linked with a board's compiler options, with relocations kept.

- Flash and RAM: input sections of the linker's map are nodes, relocations and branches are edges. An operation takes all
  sections that it reaches, as ``--gc-sections`` keeps them.
- Stack: the disassembly tells each function's frame (pushed registers, subtracted bytes) and its calls and jumps. An operation
  takes the deepest path. Jumps to other functions count as calls.
- Functions of ``math.h`` that generated C brings along (``Family.own_math``) stand for those of the library, none inlined.

The table says for which versions of the compilers. Run it again for other ones.
"""

from __future__ import annotations

import argparse
import bisect
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from microc.codegen.c.c_expressions import MATH_FUNCTIONS
from microc.codegen.c.c_statements import print_helper_functions
from microc.device.boards import load_board
from microc.device.toolchain import find_compiler
from microc.isa import FAMILIES
from microc.target import Board

TABLE = Path(__file__).resolve().parents[2] / "microc" / "codegen" / "c" / "library.json"
CORES: Mapping[str, str] = {
    "cortex-m0": "microbit", "cortex-m3": "mps2-an385", "cortex-m33-nodsp": "mps2-an521", "cortex-m4": "mps2-an386",
    "cortex-m33": "mps2-an505", "cortex-m7": "mps2-an500", "cortex-m55": "mps3-an547", "rv32imc": "esp32-c3",
    "rv32imac": "hifive1", "rv32imafc": "qemu-riscv32", "rv64imac": "hifive-unleashed", "rv64imafdc": "qemu-riscv64",
    "avr": "arduino-mega",
}  # fmt: skip
"""The board whose compiler options stand for a core. Calls push three bytes on the Mega, two on the Uno."""
TWO, THREE = frozenset({"atan2", "fmax", "fmin", "fmod", "hypot", "pow"}), frozenset({"fma"})
INTEGERS = {"int32": "int32_t", "uint32": "uint32_t", "int64": "int64_t", "uint64": "uint64_t"}
PADDING = frozenset({"nop", "c.nop", ".word", ".short", ".byte", ".insn", "udf", "unimp", "c.unimp"})
CONSTANTS = (".rodata", ".srodata", ".data", ".sdata")
"""Sections that lie among code, where a disassembler finds branches in numbers."""
HEAD = "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n"
ALLOCATED = 2
"""SHF_ALLOC."""
ABSOLUTE = 2
"""R_ARM_ABS32, whose addend is in place."""
OFFSET = re.compile(r"-?\d+|-?0x[0-9a-f]+")


def operations() -> dict[str, str]:
    """C functions called F by operation: ``<dtype>.<what>``, ``<dtype>.<function of math.h>``, ``copy``."""
    found = {}
    for dtype, c in (("float32", "float"), ("float64", "double")):
        for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/")):
            found[f"{dtype}.{name}"] = f"{c} F({c} a, {c} b) {{ return a {sign} b; }}"
        tests = " + ".join(f"(a {sign} b) * {k}" for k, sign in enumerate(("<", "<=", ">", ">=", "==", "!="), 2))
        found[f"{dtype}.compare"] = f"int F({c} a, {c} b) {{ return {tests}; }}"
        for name, kind in INTEGERS.items():
            found[f"{dtype}.to_{name}"] = f"{kind} F({c} a) {{ return ({kind})a; }}"
            found[f"{dtype}.of_{name}"] = f"{c} F({kind} a) {{ return ({c})a; }}"
        for name in sorted(MATH_FUNCTIONS):
            used = "abc"[: 3 if name in THREE else 2 if name in TWO else 1]
            call = f"{name}{'f' * (c == 'float')}({', '.join(used)})"
            found[f"{dtype}.{name}"] = f"{c} F({', '.join(f'{c} {p}' for p in used)}) {{ return {call}; }}"
    found["float64.narrow"] = "float F(double a) { return (float)a; }"
    found["float64.widen"] = "double F(float a) { return (double)a; }"
    for name, kind in INTEGERS.items():
        for op, sign in (("div", "/"), ("mod", "%"), ("mul", "*")):
            found[f"{name}.{op}"] = f"{kind} F({kind} a, {kind} b) {{ return ({kind})(a {sign} b); }}"
        if "64" in name:
            found[f"{name}.shift"] = f"{kind} F({kind} a, int b) {{ return (a >> b) ^ ({kind})((uint64_t)a << b); }}"
    found["copy"] = "void F(char *a, char *b, int n) { memcpy(a, b, n); memset(a, 7, n); memmove(a + 1, b, n); }"
    return found


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def linked(board: Board, folder: Path) -> tuple[Path, str, list[str]]:
    """The linked program, the linker's map, and the operations that the library has, in the order of their functions."""
    build, names = board.raw["build"], operations()
    gcc = build["prefix"] + "gcc"
    specs = [flag for flag in build.get("ld_flags", ()) if flag.startswith("--specs")]
    kept = [flag for flag in build["c_flags"] if flag != "-mcall-prologues"]  # a frame is what a function itself pushes
    own = FAMILIES[board.target.isa].own_math
    texts = print_helper_functions([f"{name}_f32" for name in own], board.target.cpu).values()
    helpers = "\n".join(re.sub("^static", "__attribute__((noinline)) static", "\n".join(t), flags=re.M) for t in texts)
    names = {
        name: re.sub(rf"\b({'|'.join(own)})f?\(", r"\1_f32(", text) if own else text for name, text in names.items()
    }
    flags = ["-std=gnu99", *kept, "-O2", "-ffunction-sections", "-fdata-sections", "-w"]
    room = [f"-Wl,--defsym=__{name}_size=0x400000" for name in ("flash", "ram", "TEXT_REGION", "stack")]
    elf, listing = folder / "probe.elf", folder / "probe.map"
    while True:
        source = (
            HEAD
            + helpers
            + "\n"
            + "".join(text.replace(" F(", f" probe_{k}(", 1) + "\n" for k, text in enumerate(names.values()))
        )
        table = ", ".join(f"(void *)probe_{k}" for k in range(len(names)))
        (folder / "probe.c").write_text(
            source + f"void *volatile table[] = {{ {table} }};\nint main(void) {{ for (;;) table[0]; }}\n"
        )
        command = [
            gcc,
            *flags,
            str(folder / "probe.c"),
            *specs,
            "-nostartfiles",
            *room,
            "-Wl,--emit-relocs,--gc-sections,-emain",
        ]
        done = subprocess.run(
            [*command, "-Wl,--defsym=_start=main", "-Wl,--defsym=__TEXT_REGION_LENGTH__=0x3e000",
             f"-Wl,-Map={listing}", "-lm", "-o", str(elf)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return elf, listing.read_text(), list(names)
        missing = set(re.findall(r"undefined reference to `(\w+)'", done.stderr))
        absent = [name for name, text in names.items() if missing & set(re.findall(r"return (\w+)\(", text))]
        if not absent:
            raise SystemExit(done.stderr[-3000:])
        names = {name: text for name, text in names.items() if name not in absent}


@dataclass
class Section:
    """An input section of the linked program, and the sections that it refers to."""

    name: str
    address: int
    size: int
    flash: int
    ram: int
    reaches: set[int] = field(default_factory=set)


@dataclass
class Function:
    """Code from one symbol to the next: bytes of its frame, the addresses that it calls or jumps to."""

    frame: int
    calls: set[int]


class Program:
    """A linked program as a graph of sections and a graph of functions."""

    def __init__(self, board: Board, elf: Path, listing: str) -> None:
        self.board, self.isa = board, board.target.isa
        self.elf = ELFFile(elf.open("rb"))
        self.outputs = [s for s in self.elf.iter_sections() if s["sh_flags"] & ALLOCATED and s["sh_size"]]
        self.sections = sorted(self._sections(listing), key=lambda s: s.address)
        self.begins = [s.address for s in self.sections]
        symbols = self.elf.get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        self.symbols = symbols
        objdump = board.raw["build"]["prefix"] + "objdump"
        self.functions = self._functions(run(objdump, "-d", "--no-show-raw-insn", str(elf)))
        self.depths: dict[int, int] = {}
        self._relate()

    def _sections(self, listing: str) -> Iterable[Section]:
        text = listing.partition("Linker script and memory map")[2]
        for name, address, size in re.findall(r"^ (\.\S+|COMMON)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) \S", text, re.M):
            at, nbytes = int(address, 16), int(size, 16)
            out = next(
                (o for o in self.outputs if o["sh_addr"] <= at and at + nbytes <= o["sh_addr"] + o["sh_size"]), None
            )
            if out is None or not nbytes or re.match(r"\.(ARM\.ex|eh_frame|debug|comment)", name):
                continue
            stored = out["sh_type"] != "SHT_NOBITS"
            yield Section(name, at, nbytes, nbytes * stored, nbytes * bool(out["sh_flags"] & 1))

    def section_at(self, address: int) -> int | None:
        k = bisect.bisect_right(self.begins, address) - 1
        return k if k >= 0 and address < self.begins[k] + self.sections[k].size else None

    def _relate(self) -> None:
        for relocations in self.elf.iter_sections():
            if not isinstance(relocations, RelocationSection):
                continue
            own = self.elf.get_section(relocations["sh_info"])
            if not own["sh_flags"] & ALLOCATED:
                continue
            data = own.data() if own["sh_type"] != "SHT_NOBITS" else b""
            for each in relocations.iter_relocations():
                begin = self.section_at(each["r_offset"])
                if begin is None:
                    continue
                symbol = self.symbols.get_symbol(each["r_info_sym"])
                targets = []
                if each["r_info_sym"] and (relocations.is_RELA() or symbol["st_info"]["type"] != "STT_SECTION"):
                    targets.append(symbol["st_value"] + (each["r_addend"] if relocations.is_RELA() else 0))
                if (
                    not relocations.is_RELA() and each["r_info_type"] == ABSOLUTE
                ):  # of a section's symbol the number counts
                    at = each["r_offset"] - own["sh_addr"]
                    targets.append(int.from_bytes(data[at : at + 4], "little"))
                self.sections[begin].reaches |= {
                    s for t in targets if (s := self.section_at(t & ~1 if self.isa == "arm" else t)) is not None
                }
        for address, function in self.functions.items():
            begin = self.section_at(address)
            if begin is not None and not self.sections[begin].name.startswith(CONSTANTS):
                self.sections[begin].reaches |= {s for t in function.calls if (s := self.section_at(t)) is not None}

    def _functions(self, text: str) -> dict[int, Function]:
        found: dict[int, Function] = {}
        blocks = re.split(r"^([0-9a-f]{8,16}) <[^>]*>:$", text, flags=re.M)[1:]
        for at, (head, body) in enumerate(zip(blocks[::2], blocks[1::2], strict=True)):
            lines = re.findall(r"^\s*[0-9a-f]+:\t(\S+)\s*(.*)$", body, re.M)
            address = int(head, 16)
            following = int(blocks[2 * at + 2], 16) if 2 * at + 2 < len(blocks) else None
            calls = {
                int(t, 16)
                for line in lines
                for t in re.findall(r"(?:^|[ ,\t])(?:0x)?([0-9a-f]+) <", self._target(*line))
            }
            size = following or address + (1 << 16)
            calls = {t for t in calls if not address <= t < size}
            code = [line for line in lines if line[0] not in PADDING]
            here = self.section_at(address)
            if code and following is not None and not _ends(*code[-1]) and here == self.section_at(following):
                calls.add(following)
            found[address] = Function(sum(self._grows(lines, k) for k in range(len(lines))), calls)
        return found

    def _target(self, op: str, rest: str) -> str:
        """Operands of a branch; the comment behind it names the target on AVR alone."""
        if self.isa == "avr":
            return rest if op in ("call", "rcall", "jmp", "rjmp") else ""
        return re.split("[#;]", rest)[0]

    def _grows(self, lines: Sequence[tuple[str, str]], k: int) -> int:
        """Bytes that an instruction takes from the stack."""
        op, rest = lines[k]
        if self.isa == "arm":
            return self._grows_arm(op, rest, lines[:k])
        if self.isa == "riscv":
            match = re.match(r"sp,sp,(-?\w+)", rest)
            if op in ("add", "addi", "c.addi16sp") and match:
                if OFFSET.fullmatch(match[1]):
                    return max(0, -int(match[1], 0))
                return max(0, -_constant(match[1], lines[:k]))
            return 0
        return self._grows_avr(op, rest, lines[max(0, k - 3) : k])

    def _grows_arm(self, op: str, rest: str, before: Sequence[tuple[str, str]]) -> int:
        if (op.startswith("push") or (op.startswith("stmdb") and rest.startswith("sp!"))) and "{" in rest:
            return 4 * len(_listed(rest))
        if op.startswith("vpush"):
            return sum(8 if name[0] == "d" else 4 for name in _listed(rest))
        if match := re.search(r"\[sp, #-(\d+)\]!", rest):
            return int(match[1])
        if op.startswith("sub") and (match := re.match(r"sp,(?: sp,)? #(\d+)", rest)):
            return int(match[1])
        if op.startswith(("add", "sub")) and (match := re.match(r"sp, (?:sp, )?(r\d+)", rest)):
            loads = [r for o, r in before if o.startswith("ldr") and r.startswith(f"{match[1]}, [pc")]
            place = re.search(r"\(([0-9a-f]+)", loads[-1]) if loads else None
            if place is None:
                return 0
            number = self._word(int(place[1], 16))
            return max(0, -number if op.startswith("add") else number)
        return 0

    def _word(self, address: int) -> int:
        for out in self.outputs:
            if out["sh_addr"] <= address < out["sh_addr"] + out["sh_size"]:
                at = address - out["sh_addr"]
                return int.from_bytes(out.data()[at : at + 4], "little", signed=True)
        raise SystemExit(f"nothing at {address:#x}")

    def _grows_avr(self, op: str, rest: str, before: Sequence[tuple[str, str]]) -> int:
        if op == "push":
            return 1
        if op == "rcall" and rest.startswith(".+0"):
            return 3
        if op == "sbiw" and rest.startswith("r28"):
            return int(re.findall(r"0x[0-9A-Fa-f]+", rest)[0], 0)
        if op == "sbci" and rest.startswith("r29"):
            low = [r for o, r in before if o == "subi" and r.startswith("r28")]
            low_byte = int(re.findall(r"0x[0-9A-Fa-f]+", low[-1])[0], 0) if low else 0
            amount = 256 * int(re.findall(r"0x[0-9A-Fa-f]+", rest)[0], 0) + low_byte
            return amount if amount < 1 << 15 else 0  # else it is given back
        return 0

    def stack(self, address: int) -> int:
        """Bytes of the deepest path from a function on, its own return address included. Recursion counts once."""
        if address not in self.depths:
            self.depths[address] = 0
            function = self.functions.get(address)
            if function is not None:
                pushed = 3 if self.isa == "avr" else 0
                self.depths[address] = pushed + function.frame + max(map(self.stack, function.calls), default=0)
        return self.depths[address]

    def closure(self, address: int) -> set[int]:
        """Sections that a function reaches, its own among them."""
        found: set[int] = set()
        first = self.section_at(address)
        ahead = [] if first is None else [first]
        while ahead:
            k = ahead.pop()
            if k not in found:
                found.add(k)
                ahead += self.sections[k].reaches
        return found

    def address_of(self, name: str) -> int:
        symbol = self.symbols.get_symbol_by_name(name)[0]
        return symbol["st_value"] & ~1 if self.isa == "arm" else symbol["st_value"]


def _ends(op: str, rest: str) -> bool:
    """Test whether nothing runs behind an instruction."""
    if op in ("b", "b.n", "b.w", "j", "jr", "ret", "tail", "rjmp", "jmp", "reti", "ijmp", "bx"):
        return True
    return "pc" in rest and op.startswith(("pop", "ldm", "mov", "ldr"))


def _listed(rest: str) -> list[str]:
    """Registers of a list in braces."""
    found = []
    for part in rest[rest.index("{") + 1 : rest.index("}")].split(","):
        first, _, last = part.strip().partition("-")
        if last:
            found += [f"{first[0]}{k}" for k in range(int(first[1:]), int(last[1:]) + 1)]
        else:
            found.append(first)
    return found


def _constant(register: str, before: Sequence[tuple[str, str]]) -> int:
    """The constant in a register of RISC-V, as the last instructions that write it say."""
    value = 0
    for op, rest in before:
        name, _, operands = rest.partition(",")
        if name != register:
            continue
        if op in ("li", "c.li"):
            value = int(operands.split()[0], 0)
        elif op in ("lui", "c.lui"):
            value = int(operands.split()[0], 0) << 12
            value -= (value & 1 << 31) << 1
        elif op in ("addi", "add", "addiw") and OFFSET.fullmatch(operands.split(",")[-1].split()[0]):
            value += int(operands.split(",")[-1].split()[0], 0)
    return value


def measure(core: str) -> dict[str, Any]:
    """The table of a core: sections by flash and RAM, operations by stack and sections."""
    board = load_board(CORES[core])
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        elf, listing, names = linked(board, Path(folder))
        program = Program(board, elf, listing)
        found: dict[str, tuple[int, set[int]]] = {}
        for k, name in enumerate(names):
            address = program.address_of(f"probe_{k}")
            function = program.functions[address]
            stack = max(map(program.stack, function.calls), default=0)
            found[name] = stack, program.closure(address) - {program.section_at(address)}  # type: ignore[arg-type]
    used = sorted(set().union(*(sections for _, sections in found.values())))
    number = {k: n for n, k in enumerate(used)}
    return {
        "compiler": find_compiler(board).version,
        "sections": [[program.sections[k].flash, program.sections[k].ram] for k in used],
        "operations": {
            name: [stack, sorted(number[k] for k in sections)]
            for name, (stack, sections) in found.items()
            if stack or sections
        },
    }


def written(table: Mapping[str, Any]) -> str:
    """The table as JSON with a line for each operation."""
    cores = []
    for core, each in table.items():
        lines = ",\n".join(f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in each["operations"].items())
        head = f'  "compiler": {json.dumps(each["compiler"])},\n  "sections": {json.dumps(each["sections"])},\n'
        cores.append(f' {json.dumps(core)}: {{\n{head}  "operations": {{\n{lines}\n  }}\n }}')
    return "{\n" + ",\n".join(cores) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default=",".join(CORES), help="cores of which rows are measured; others stay")
    parser.add_argument("-o", "--output", type=Path, default=TABLE)
    options = parser.parse_args()
    table = json.loads(options.output.read_text()) if options.output.is_file() else {}
    for core in options.cores.split(","):
        table[core] = measure(core)
        print(core, len(table[core]["operations"]), "operations")
    options.output.write_text(written({core: table[core] for core in CORES if core in table}))


if __name__ == "__main__":
    main()
