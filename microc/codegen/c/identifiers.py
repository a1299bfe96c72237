# SPDX-License-Identifier: Apache-2.0
"""Choose identifiers for generated C: avoid reserved names, and rename variables so that names are unique in each scope."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache

from microc.codegen.c.c_expressions import MATH_FUNCTIONS, register_name
from microc.codegen.c.libm import HALF_FLOAT_HELPERS, MATH_HELPERS
from microc.errors import InternalError, ScheduleError
from microc.isa import SCALAR
from microc.tir import ir
from microc.tir.rewrite import map_expr, walk_all_exprs, walk_stmt

# ---- Names that generated code cannot use, because C, C++, compilers, headers or build tools define them.
#
# Public names are those in the model. If such a name is reserved, a tensor's name gets a number as its suffix, and a network's
# name gets ``m_`` as its prefix. ``tests/codegen/test_names.py`` lists the macros of the compilers and of their headers, and
# requires that all of them are reserved here.

_C_KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register restrict
return short signed sizeof static struct switch typedef union unsigned void volatile while alignas alignof bool constexpr false
nullptr static_assert thread_local true typeof typeof_unqual"""
_CPP_KEYWORDS = """
and and_eq asm bitand bitor catch char8_t char16_t char32_t class co_await co_return co_yield compl concept const_cast
consteval constinit decltype delete dynamic_cast explicit export friend mutable namespace new noexcept not not_eq operator or
or_eq private protected public reinterpret_cast requires static_cast template this throw try typeid typename using virtual
wchar_t xor xor_eq"""
_MACROS = """acosf arm asinf atan2f atanf cbrtf cdecl ceilf complex copysignf cosf coshf d_fileno errno expf fabsf far fd_set
fdimf fds_bits floorf fmaf fmaxf fminf fmodf fortran frexpf h_addr h_errno hpux huge hypotf i386 imaginary interface isfinitef
isinff isnanf ldexpf linux log10f logf lrintf lroundf math_errhandling mips near noreturn pascal physadr powf quad roundf s6_addr
s6_addr16 s6_addr32 sa_handler sa_sigaction sched_priority sgi si_addr si_addr_lsb si_arch si_band si_call_addr si_fd si_int
si_lower si_overrun si_pid si_pkey si_ptr si_status si_stime si_syscall si_timerid si_uid si_upper si_utime si_value
sigev_notify_attributes sigev_notify_function signbitf signgam sinf sinhf sparc squaref st_atime st_ctime st_mtime stderr stdin
stdout strtodf sun tanf tanhf truncf tzname unix vax"""
"""Macros without arguments: those that gcc predefines for its target systems, and those of C and POSIX headers."""

RESERVED_WORDS = frozenset(f"{_C_KEYWORDS} {_CPP_KEYWORDS} {_MACROS}".split())
"""Words that no entity in generated C can have as its name: keywords of C and C++, and macros."""

_HEADER_SUFFIXES = """arena arenas check_weights class class_name copy_begin copy_wait learn learned read read_wait reset run
run_kernel run_slice sample self_test sizes sizes_fit"""
"""Suffixes that the network's header appends to the network's name. It also appends the names of inputs and outputs, which must
therefore differ from these suffixes."""
_EXTERNAL_SUFFIXES = "check_weights copy_begin copy_wait learn read read_wait reset run run_kernel sample self_test"
"""Those of :data:`_HEADER_SUFFIXES` that are suffixes of symbols with external linkage."""
_EXPORT_TEMPLATE_NAMES = "base frame i network ready"
"""Names that templates of exports use beside the names of tensors: counters, members of an object, a variable of an example."""
RESERVED_TENSOR_NAMES = RESERVED_WORDS | frozenset(f"{_HEADER_SUFFIXES} {_EXPORT_TEMPLATE_NAMES}".split())
"""Names that a tensor cannot have."""

_LIBRARY_NAMES = """aligned_alloc always_inline asctime_r at_quick_exit call_once ctime_r currency_symbol daylight_seconds
decimal_point equation_of_time ext_exp ext_frach ext_fracl ext_sign extu_ext extu_ld fatfs_time fdev_close fdev_get_udata
fdev_set_udata fdev_setup_stream fp_except fp_rdi fp_rnd frac_digits gm_sidereal gmtime_r gnu_inline ieee_ext ieee_ext_u
int_curr_symbol int_frac_digits int_n_cs_precedes int_n_sep_by_space int_n_sign_posn int_p_cs_precedes int_p_sep_by_space
int_p_sign_posn is_leap_year iso_week_date iso_week_date_r isotime_r it_interval it_value jmp_buf kill_dependency lm_sidereal
localtime_r memory_order memory_order_acq_rel memory_order_acquire memory_order_consume memory_order_relaxed
memory_order_release memory_order_seq_cst mk_gmtime mon_decimal_point mon_grouping mon_thousands_sep month_length moon_phase
n_cs_precedes n_sep_by_space n_sign_posn negative_sign once_flag p_cs_precedes p_sep_by_space p_sign_posn positive_sign
printf_float quick_exit rand_r random_r rounding_mode sa_flags sa_mask set_dst set_position set_system_time set_zone
solar_declination solar_noon ss_flags ss_size ss_sp strtok_r sun_rise sun_set system_tick thousands_sep timespec_get tm_hour
tm_isdst tm_mday tm_min tm_mon tm_sec tm_wday tm_yday tm_year tv_nsec tv_sec va_arg va_copy va_end va_list va_start week_date
week_of_month week_of_year"""
_LIBRARY_TYPE_STEMS = """
blkcnt blksize caddr clock clockid daddr dev div double error fenv fexcept float fpos fsblkcnt fsfilcnt gid id imaxdiv
ino int16 int32 int64 int8 int_farptr int_fast16 int_fast32 int_fast64 int_fast8 int_least16 int_least32 int_least64 int_least8
intmax intptr key ldiv lldiv max_align mbstate mode nlink off pid ptrdiff register sbintime sig_atomic sighandler sigset size
ssize stack suseconds time timer u_int16 u_int32 u_int64 u_int8 uid uint16 uint32 uint64 uint8 uint_farptr uint_fast16
uint_fast32 uint_fast64 uint_fast8 uint_least16 uint_least32 uint_least64 uint_least8 uintmax uintptr useconds wchar wctrans
wctype wint"""
C_LIBRARY_NAMES = frozenset(_LIBRARY_NAMES.split()) | frozenset(f"{stem}_t" for stem in _LIBRARY_TYPE_STEMS.split())
"""Names with an underscore that headers of the C library define. Generated functions and tables of weights, whose names also
contain underscores, cannot have them."""

_LIBRARY_PREFIXES = "atomic cnd mb mtx pthread thrd tss"
_LIMIT_MACRO_PREFIXES = "bc coll dbl expr flt int ldbl long re sig uint ulong"
_STATUS_MACRO_PREFIXES = "esp f fr hal msg nrf pico r si w x"
_BUILD_TARGETS = """all clean depend edit_cache firmware help install list_install_components m package package_source preinstall
rebuild_cache test uninstall"""
_WINDOWS_DEVICES = "aux con nul prn " + " ".join(f"{port}{k}" for port in ("com", "lpt") for k in range(10))
RESERVED_NETWORK_NAMES = frozenset(
    f"microc {_LIBRARY_PREFIXES} {_LIMIT_MACRO_PREFIXES} {_STATUS_MACRO_PREFIXES} {_BUILD_TARGETS} {_WINDOWS_DEVICES}".split()
)
"""Names that a network cannot have.

Headers define macros that begin with some of them, such as ``R_OK`` and ``ESP_OK``, and would conflict with ``<NAME>_OK``. Others
are targets of build tools or names of devices on Windows."""
_OWN_PREFIX = "microc_"
MAX_NETWORK_NAME = 64
"""Maximum number of letters of a network's name. File names are derived from it."""

_HELPER_NAME = re.compile(r"(min|max|floordiv|floormod)_[iufb]\d+|[iufb]\d+_of_[iufb]\d+|u?int\d+x\d+")
"""Pattern of the names of helper functions that printed expressions call, and of vector types. ``c_statements.py`` prints their
definitions."""


def network_name(text: str) -> str:
    """Return the C name of a network for ``text``, an untrusted name: a lower-case identifier that is not reserved."""
    name = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_").lower()[:MAX_NETWORK_NAME].strip("_") or "model"
    return f"m_{name}" if name[0].isdigit() or name in RESERVED_NETWORK_NAMES or name.startswith(_OWN_PREFIX) else name


def list_external_symbols(network: str, tables: Iterable[str]) -> set[str]:
    """Return the external symbols that a network's C defines: its public functions, and its arrays of constants.

    ``tables``: names of the arrays, without the network's name in front."""
    return {f"{network}_{name}" for name in (*tables, *_EXTERNAL_SUFFIXES.split())}


def is_callable_name(name: str) -> bool:
    """Test whether ``name`` is the name of a function that printed code may call, or of a vector type that it may use."""
    may_call = name in SCALAR or name in HALF_FLOAT_HELPERS or name in MATH_HELPERS or is_math_h_function(name)
    return may_call or name in ("memcpy", "memset", "main") or _HELPER_NAME.fullmatch(name) is not None


def is_math_h_function(name: str) -> bool:
    """Test whether ``name`` is a function of ``<math.h>`` that printed code may call."""
    return name in MATH_FUNCTIONS or name.removesuffix("f") in MATH_FUNCTIONS


@lru_cache(maxsize=1 << 14)
def is_free_identifier(name: str) -> bool:
    """Test whether a variable or buffer in a C file may have this name.

    It must not be reserved, and must not be the name of a C library entity or of a function that printed code may call."""
    return name not in RESERVED_WORDS and name not in C_LIBRARY_NAMES and not is_callable_name(name)


def is_free_in_network(network: str, name: str) -> bool:
    """Test whether a tensor of a network may have this name.

    Neither the name alone nor ``<network>_<name>`` may be a name that is reserved."""
    return name not in RESERVED_TENSOR_NAMES and f"{network}_{name}" not in C_LIBRARY_NAMES


# ---- Names inside of a function: declarations get names that are unique in their scope.
#
# Passes over TIR copy statements and invent names independently of each other. Moreover, the scope of a ``Let`` is its body,
# while the scope of a declaration in C reaches to the end of its block. Names are therefore assigned here, for a whole function
# at once, immediately before it is printed. A loop is named after its axis (``y``) or after the tiles of its axis (``y_tile``),
# and values are numbered in the order of the printed text.


def list_tile_scalar_names(buffer: ir.Buffer, body: ir.Stmt) -> list[str]:
    """Return the C names of the scalars of a register tile that ``body`` writes.

    A peeled remainder of a loop writes fewer scalars than the tile has elements. ScheduleError if an index of a store to the
    tile is no constant."""
    used: dict[tuple[int, ...], None] = {}
    for stmt in walk_stmt(body):
        if isinstance(stmt, ir.Store) and stmt.buffer == buffer:
            position = tuple(ir.int_value(i) for i in stmt.indices)
            if any(n is None for n in position):
                raise ScheduleError(
                    f"register tile {buffer.name}: a loop that indexes it is not unrolled",
                    hint=f"unroll the loop (registers have no addresses), or use an array: set_scope({buffer.name!r}, 'local')",
                )
            used[tuple(n for n in position if n is not None)] = None
    return [register_name(buffer, list(position)) for position in used]


def make_names_distinct(func: ir.PrimFunc) -> ir.PrimFunc:
    """Return the function with its variables and buffers renamed: names are readable and unique in each scope of the C."""
    names = _FunctionRenamer(func)
    params = tuple(names.rename_buffer(p, p.name) for p in func.params)
    scalars = tuple(names.declare_variable(s, s.name) for s in func.scalars)
    return replace(func, params=params, scalars=scalars, body=names.rename_statement(func.body))


_COPY_SUFFIX = re.compile(r"(_[a-z]+\d+)+$")
"""Pattern of the words with numbers at the end of a buffer's name, which TIR passes append to copies of the buffer."""
_PASS_WORD = re.compile(r"\d+|init|fill|from|[a-z]+\d+")
"""Pattern of the words that TIR passes append to the name of a loop or buffer that they copy or split."""


def shorten_loop_name(qualified_name: str, buffer_names: Iterable[str]) -> str:
    """Return a short name for a loop, without the words that passes appended to its name.

    ``buffer_names``: names of the function's buffers, which also occur as such words. If ``acc`` is one of them,
    ``y_acc_1`` becomes ``y``. The suffix ``_0`` is that of the outer loop of a split: ``y_acc_0`` becomes
    ``y_tile``."""
    longest = max((b for b in buffer_names if qualified_name.startswith(f"{b}_i")), key=len, default=None)
    words = (qualified_name.removeprefix(f"{longest}_") if longest else qualified_name).split("_")
    buffer_words = {word for buffer in buffer_names for word in buffer.split("_")}
    suffixes: list[str] = []
    while len(words) > 1 and words[0] and (_PASS_WORD.fullmatch(words[-1]) or words[-1] in buffer_words):
        suffixes.append(words.pop())
    return "_".join(words) + ("_tile" if "0" in suffixes else "")


class _FunctionRenamer:
    """Renamer of the variables and buffers of a function, which it visits in the order of the printed text.

    ``scopes``: the sets of names declared in each block around the current statement, the innermost block last.
    ``first_numbers``: for the stems of numbered names, the first number that may be free in the innermost block; names are
    not released before their block ends.
    ``used_names``: all names in the function before it was renamed, and new names with a number. ``buffer_names``: names of the
    function's buffers, which occur as words in the names of loops. ``variables`` and ``buffers`` map each declared variable
    and buffer to the renamed one."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.scopes: list[set[str]] = [set()]
        self.first_numbers: ChainMap[str, int] = ChainMap()
        self.used_names = {func.name, *(p.name for p in func.params), *(s.name for s in func.scalars)}
        self.buffer_names = {p.name for p in func.params}
        for stmt in walk_stmt(func.body):
            match stmt:
                case ir.For(var) | ir.Let(var):
                    self.used_names.add(var.name)
                case ir.Alloc(buffer, body):
                    self.used_names.update(_list_declared_names(buffer, body))
                    self.buffer_names.add(buffer.name)
                case _:
                    pass
        self.variables: dict[ir.Var, ir.Var] = {}
        self.buffers: dict[ir.Buffer, ir.Buffer] = {}

    def declare_variable(self, var: ir.Var, preferred_name: str) -> ir.Var:
        """Declare a variable in the innermost scope, and return the renamed variable.

        Its name is ``preferred_name`` or, if this name is taken, ``preferred_name`` with a number appended."""
        name = preferred_name if self.can_declare([preferred_name]) else self.make_fresh_name(preferred_name)
        renamed_var = var if name == var.name else ir.Var(name, var.dtype)
        self.add_to_scope([renamed_var.name])
        self.variables[var] = renamed_var
        return renamed_var

    def rename_let_variable(self, var: ir.Var) -> ir.Var:
        """Declare the variable of a ``Let`` in the innermost scope, and return the renamed variable.

        The prefix up to ``__``, which names a loop, is dropped. A number at the end of the name (``x_3``) is replaced by the
        smallest number that makes the name free in this scope."""
        preferred = var.name.rpartition("__")[2]
        stem = re.sub(r"_\d+$", "", preferred)
        if stem == preferred:
            return self.declare_variable(var, preferred)
        number = self.first_numbers.get(stem, 0)
        while not self.can_declare([f"{stem}_{number}"]):
            number += 1
        self.first_numbers[stem] = number + 1
        return self.declare_variable(var, f"{stem}_{number}")

    def rename_buffer(self, buffer: ir.Buffer, preferred_name: str, body: ir.Stmt | None = None) -> ir.Buffer:
        """Declare a buffer in the innermost scope, and return the renamed buffer.

        A register tile is declared as several scalars in C: one for each element that ``body`` writes."""
        renamed_buffer = buffer if preferred_name == buffer.name else replace(buffer, name=preferred_name)
        while not self.can_declare(parts := _list_declared_names(renamed_buffer, body, buffer)):
            renamed_buffer = replace(buffer, name=self.make_fresh_name(preferred_name))
        self.add_to_scope(parts)
        self.buffers[buffer] = renamed_buffer
        return renamed_buffer

    def can_declare(self, names: Iterable[str]) -> bool:
        """Test whether all ``names`` may be declared in the innermost scope.

        None of them may be reserved, or declared in a block around the current statement."""
        for name in names:
            for block in self.scopes:  # most names fail here, so that no identifier is looked up
                if name in block:
                    return False
            if not self.is_free(name):
                return False
        return True

    def is_free(self, name: str) -> bool:
        """Test whether a variable of the function may have this name.

        The name of a mathematical function, such as ``log2``, is permitted if the renamed function does not call it.
        """
        return name not in self.called_names if is_math_h_function(name) else is_free_identifier(name)

    @cached_property
    def called_names(self) -> set[str]:
        """Names of the functions that the renamed function calls, each also with the suffix ``f`` that float functions have."""
        names = {expr.name for expr in walk_all_exprs(self.func.body) if isinstance(expr, ir.Call)}
        return names | {f"{name}f" for name in names}

    def add_to_scope(self, names: Iterable[str]) -> None:
        """Add names to the innermost scope."""
        self.scopes[-1].update(names)

    def make_fresh_name(self, prefix: str) -> str:
        """Return a name that the function does not use: ``prefix``, an underscore and the first free number from 2 on."""
        number = 2
        while f"{prefix}_{number}" in self.used_names or not self.is_free(f"{prefix}_{number}"):
            number += 1
        self.used_names.add(f"{prefix}_{number}")
        return f"{prefix}_{number}"

    @contextmanager
    def open_scope(self) -> Iterator[None]:
        """Declare names in a new innermost scope while the context lasts."""
        self.scopes.append(set())
        self.first_numbers = self.first_numbers.new_child()
        yield
        self.first_numbers = self.first_numbers.parents
        self.scopes.pop()

    def rename_block(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return a statement that is printed inside braces with its names replaced. The braces are a new scope."""
        with self.open_scope():
            return self.rename_statement(stmt)

    def rename_statement(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return a statement with the variables and buffers in it renamed.

        A declaration may hide an outer variable or buffer of the same name. After the statement, uses of that name get the new
        name of the outer variable or buffer again."""
        match stmt:
            case ir.Seq(body):
                return ir.Seq(tuple(self.rename_statement(child) for child in body))
            case ir.Store(buffer, indices, value):
                indices_ = tuple(self.rename_expr(i) for i in indices)
                return ir.Store(self.buffers.get(buffer, buffer), indices_, self.rename_expr(value))
            case ir.Evaluate(value):
                return ir.Evaluate(self.rename_expr(value))
            case ir.If(condition, then, otherwise):
                return ir.If(
                    self.rename_expr(condition),
                    self.rename_block(then),
                    self.rename_block(otherwise) if otherwise else None,
                )
            case ir.For(var, extent, body, kind, annotations):
                extent, outer = self.rename_expr(extent), self.variables.get(var)
                with self.open_scope():
                    counter = self.declare_variable(var, shorten_loop_name(var.name, self.buffer_names))
                    renamed_stmt: ir.Stmt = ir.For(counter, extent, self.rename_block(body), kind, annotations)
                self.restore_outer_variable(var, outer)
                return renamed_stmt
            case ir.Let(var, value, body):
                value, outer = self.rename_expr(value), self.variables.get(var)
                renamed_stmt = ir.Let(self.rename_let_variable(var), value, self.rename_statement(body))
                self.restore_outer_variable(var, outer)
                return renamed_stmt
            case ir.Alloc(buffer, body):
                before = self.buffers.get(buffer)
                preferred = _COPY_SUFFIX.sub("", buffer.name)
                renamed_stmt = ir.Alloc(self.rename_buffer(buffer, preferred, body), self.rename_statement(body))
                if before is not None:
                    self.buffers[buffer] = before
                return renamed_stmt
            case _:
                raise InternalError(f"cannot print {type(stmt).__name__} as C")

    def restore_outer_variable(self, var: ir.Var, outer: ir.Var | None) -> None:
        """Map ``var`` to ``outer`` again, its renamed variable outside of a statement that declared ``var`` again.

        ``outer``: None if the variable was not declared outside."""
        if outer is not None:
            self.variables[var] = outer

    def rename_expr(self, expr: ir.Expr) -> ir.Expr:
        """Return an expression with its variables and buffers renamed."""
        return map_expr(expr, self.rename_node)

    def rename_node(self, expr: ir.Expr) -> ir.Expr:
        """Return one expression node with its variable or buffer renamed. Its operands stay as they are."""
        match expr:
            case ir.Var():
                return self.variables.get(expr, expr)
            case ir.Load(buffer, indices):
                renamed_buffer = self.buffers.get(buffer, buffer)
                return expr if renamed_buffer is buffer else ir.Load(renamed_buffer, indices)
            case ir.AddressOf(buffer):
                renamed_buffer = self.buffers.get(buffer, buffer)
                return expr if renamed_buffer is buffer else replace(expr, buffer=renamed_buffer)
            case _:
                return expr


def _list_declared_names(buffer: ir.Buffer, body: ir.Stmt | None, original: ir.Buffer | None = None) -> list[str]:
    """Return the C names that the declaration of a buffer needs: the array's name, or the names of a register tile's scalars.

    ``body``: the statement in which the buffer is visible. ``original``: the buffer under the name that it has in ``body``;
    None if that is its present name."""
    if buffer.scope != "register" or body is None:
        return [buffer.name]
    before = (original or buffer).name
    return [buffer.name + part.removeprefix(before) for part in list_tile_scalar_names(original or buffer, body)]
