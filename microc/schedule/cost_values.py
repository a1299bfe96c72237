"""Values as the cost model walks over them: the operations that they take, the registers that hold their parts until an
instruction takes them, the memory that they read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc import dtypes
from microc.isa import SCALAR, Costs
from microc.isa.sets import SILENT
from microc.schedule.addresses import Place, place_of
from microc.schedule.cost_expr import Operations, Selector
from microc.schedule.nests import Nests
from microc.schedule.region import Operand, Region
from microc.target import Traffic
from microc.tir import ir
from microc.tir.rewrite import accesses_of, children, free_vars


class Values:
    """Adds up operations, weighted by how often they run, and instructions as they are printed. ``regions``: the function's body
    and the loops around, from the outermost on; ``held``: what holds the parts of the expression that is walked over."""

    def __init__(self, selector: Selector, core: Costs) -> None:
        self.selector = selector
        self.core = core
        self.operations: defaultdict[str, float] = defaultdict(float)
        self.printed = 0.0
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self.regions: list[Region] = []
        self.held: dict[ir.Expr, list[Operand]] = {}
        self.previous: Place | None = None
        self.single = False
        self.nests = Nests(core)

    def add(self, counts: Mapping[str, float], weight: float, *, printed: bool = True) -> None:
        """Operations that run so often."""
        for kind, n in counts.items():
            self.operations[kind] += n * weight
            self.nests.add(kind, n * weight)
            if printed and kind not in SILENT:
                self.printed += n

    def value(self, value: ir.Expr, counts: Operations) -> None:
        """An expression where it stands: its operations, then the memory and the names that it uses."""
        self.add(counts, self.regions[-1].weight)
        self.single = _is_word(value)
        self.held = {}
        self.regions[-1].take(self.operands(value))

    # ------------------------------------------------------------ registers

    def operands(self, value: ir.Expr) -> list[Operand]:
        """What holds a value while it waits for the others of its expression; equal ones are one."""
        if value not in self.held:
            self.held[value] = self._operands(value)
        return self.held[value]

    def _operands(self, value: ir.Expr) -> list[Operand]:
        region = self.regions[-1]
        match value:
            case ir.Const():
                return []
            case ir.Var():
                return region.variable(value)
            case ir.Load(buffer, indices) if buffer.scope == "register":
                return [region.cell(buffer, indices)]
            case ir.Load(buffer, indices):
                self.access(buffer, indices)
                self.touch(buffer)
                return region.make(value.dtype)
            case ir.AddressOf(buffer, indices, extent, writes, step):
                self.touch(buffer, extent, step, writes=writes)
                return [operand for index in indices for operand in self.operands(index)]
            case ir.Call(name, (ir.AddressOf(buffer, indices, extent) as place, *rest)):
                distance = self.access(buffer, indices, word=name.endswith("_aligned"))
                if distance > self.core.pair and self.selector.call(name, value.dtype)["paired"]:
                    self.add({"alu": 1}, region.weight)  # two words at once reach less far than one
                self.touch(buffer, extent, place.step, writes=place.writes)
                region.take(self._parts(value, rest))
                return region.make(value.dtype) if name not in SCALAR or SCALAR[name].result else []
        parts = children(value)
        found = self._parts(value, parts)
        if len(found) == 1 and self.selector.count(value) == sum(map(self.selector.count, parts), Counter()):
            return found
        region.take(found)
        return region.make(value.dtype)

    def _parts(self, whole: ir.Expr, parts: Sequence[ir.Expr]) -> list[Operand]:
        """What holds the operands of an instruction, numbers that it does not hold itself among them."""
        found = []
        for part in parts:
            if isinstance(part, ir.Const) and self.selector.keeps(whole, part):
                found.append(Operand.constant(part))
            else:
                found += self.operands(part)
        return found

    # ------------------------------------------------------------ memory

    def touch(self, buffer: ir.Buffer, extent: int = 1, step: int = 1, *, writes: bool = False) -> None:
        """What goes over the bus for it; registers have none."""
        if buffer.scope != "register":
            moved = Traffic.of(dtypes.nbytes(buffer.dtype), extent, step, writes=writes)
            self.traffic[buffer.name] += moved.times(self.regions[-1].weight)
            if buffer.scope == "const":
                self.operations["constant_byte"] += self.regions[-1].weight * moved.bytes_read

    def access(
        self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], *, writes: bool = False, word: bool = False
    ) -> int:
        """An access to one element or some in a row, and how far in bytes its pointer is; ``word``: they are an aligned word."""
        place = place_of(buffer, indices)
        for term, _ in place.terms:
            if not isinstance(term, ir.Var):
                self.index(term)
        if any(accesses_of(term) for term, _ in place.terms):
            place = replace(place, terms=frozenset((term, n) for term, n in place.terms if not accesses_of(term)))
        distance = self.reach(place, writes=writes)
        near = distance <= self.core.pair
        self.pair(place if near and (word or buffer.dtype in ("int32", "uint32")) and not writes else None)
        return distance

    def pair(self, word: Place | None) -> None:
        """Two words side by side may be loaded together where each is a value by itself, one right after the other. Words in one
        expression are not: each is loaded where it is used, behind what the other one went into."""
        word = word if self.single else None
        before, self.previous = self.previous, word
        if self.core.pair and word is not None and before is not None and word.follows(before):
            self.previous = None
            self.add({"load": -1, "paired": 1}, self.regions[-1].weight)

    def reach(self, place: Place, *, writes: bool) -> int:
        """The pointer of an access, and how far the access is from it, in bytes. Where offsets count elements, loads of signed
        numbers below 32 bits have none: each takes an instruction for it, or for the sign, but for a pointer's only access."""
        region, width = self.regions[-1], dtypes.nbytes(place.buffer.dtype)
        if not self.core.has("elements"):
            return region.access(place, self.core.offset)[1]
        use, distance = region.access(place, self.core.offset * width)
        if not writes and width < 4 and place.buffer.dtype.startswith("int"):
            self.add(
                {"alu": {1: 0, 2: 2}.get(use.count, 1)}, region.weight
            )  # the second one tells that the first was not alone
        return distance

    def index(self, term: ir.Expr) -> None:
        """Arithmetic of an index: computed once an iteration of the innermost loop that it depends on, which is this one for what
        is made of loaded values; its equal parts are computed once."""
        if accesses_of(term):
            if self.regions[-1].compute(term):
                self.add(self.selector.once(term), self.regions[-1].weight)
                self.regions[-1].take(self.operands(term))
            return
        names = free_vars(term)
        depth = max((k for k, region in enumerate(self.regions) if region.var in names), default=0)
        region = self.regions[depth]
        if region.compute(term):
            self.add(self.selector.count(term), region.runs)


def _is_word(value: ir.Expr) -> bool:
    """Whether a value is just what a word of memory holds."""
    match value:
        case ir.Load(buffer):
            return buffer.scope != "register"
        case ir.Call(_, (ir.AddressOf(),)):
            return True
        case _:
            return False
