# SPDX-License-Identifier: Apache-2.0
"""Load board files ``boards/<name>.toml``, and check them against ``boards/board.schema.json``.

A loaded :class:`~microc.target.Board` has every table of its file in ``raw``, under the names of the schema. Optional
tables that the file omits are absent from ``raw``, except ``memory``, ``setup``, ``console`` and ``flash``, which are
empty."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

from microc.base import file_access
from microc.base.file_access import parse_toml, read_text
from microc.base.immutable import frozen
from microc.base.operating_system import list_mount_points
from microc.codegen.c.identifiers import RESERVED_WORDS
from microc.codegen.project.firmware import PLUGIN_CORE_KEY
from microc.device.toolchain import install_hint
from microc.errors import NEAREST, UsageError, known_names_hint, similar_files_hint, similar_names_hint
from microc.isa import CORES, FAMILIES
from microc.target import Board, Region, Target, target_for

_SLOT_ALIGN = 64
"""Alignment of slots in bytes, as code needs it."""
_LARGEST = 1 << 20
"""Bytes of a board file, at most."""
_EMPTY: Mapping[str, Any] = {"memory": [], "console": {}, "flash": {"runner": []}, "setup": {"registers": []}}
"""Defaults of tables that are always present."""


def list_boards() -> tuple[str, ...]:
    """List the names of the boards that come with microc, sorted."""
    return tuple(sorted(path.stem for path in file_access.boards_folder().glob("*.toml")))


def load_board(name_or_path: str | Path) -> Board:
    """Load a board by its name, or by the path of a board file, which ends in ``.toml``.

    Raises UsageError, which names the file, the key and the line, if the file is missing or invalid."""
    path = _path_of_board_file(str(name_or_path))
    try:
        file_text = read_text(path, _LARGEST)
        data = parse_toml(file_text)
    except OSError as error:
        hint = similar_files_hint(path) or "choose one that microc boards lists"
        what = f"cannot read the board file: {error.strerror or error}"
        raise UsageError(what, where=str(path), hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError("the board file is not UTF-8 text", where=str(path), hint="save it as UTF-8") from error
    except ValueError as error:
        raise UsageError(
            f"the board file is not TOML: {error}",
            where=str(path),
            hint="correct it; boards/README.md explains the tables",
        ) from error
    return _make_board_from_tables(path.stem, path, file_text, data)


def find_nearest_emulated_board(board: Board) -> Board | None:
    """Find the board that can run on this computer and is nearest to ``board``: that board itself if it is emulated.

    Of boards with cores of the same family the nearest has the same core, else the fewest features that only one of the two
    cores has; then the sizes of flash and RAM that differ by the least factors. None if no core of the family is
    emulated."""

    def distance(other: Board) -> tuple[bool, bool, int, float]:
        factors = (
            abs(log2(max(mine, 1) / max(theirs, 1)))
            for mine, theirs in ((board.flash_bytes, other.flash_bytes), (board.ram_bytes, other.ram_bytes))
        )
        differing_features = board.target.features ^ other.target.features
        return (other.name != board.name, other.target.cpu != board.target.cpu, len(differing_features), sum(factors))

    emulated = (
        other for other in map(load_board, list_boards()) if other.virtual and other.target.isa == board.target.isa
    )
    return min(emulated, key=distance, default=None)


def emulated_board_hint(board: Board) -> str:
    """Return the hint that names the nearest emulated board; empty if there is none."""
    nearest = find_nearest_emulated_board(board)
    if nearest is None:
        return ""
    if nearest.name == board.name:
        return "leave out --port: it runs in an emulator"
    return f"without it, compile for an emulated board with a {nearest.target.cpu}: --board {nearest.name}"


def find_boards(word: str) -> tuple[Board, ...]:
    """Find the boards that a word means: the board of this name or file, else those whose names or titles contain it.

    Raises UsageError if there is none."""
    if word.endswith(".toml") or word in list_boards():
        return (load_board(word),)
    boards = (board for board in map(load_board, list_boards()) if board.regions)
    found = tuple(board for board in boards if word and word.lower() in f"{board.name} {board.title}".lower())
    return found or (load_board(word),)  # which raises the error


def make_board_of_core(cpu: str) -> Board:
    """Make a board that has only a core, without limits on memory, for code that becomes part of a user's program."""
    target = target_for(cpu)
    title = "any core" if cpu == "host" else f"any {target.cpu}"
    return replace(load_board("host"), name=target.cpu, title=title, target=target)


def load_board_copy(path: Path, name: str) -> Board:
    """Load the board ``name`` from the JSON copy of its board file in a generated project.

    Raises UsageError if the copy is missing or damaged."""
    try:
        file_text = read_text(path, _LARGEST)
        data = {key: value for key, value in json.loads(file_text).items() if value not in _EMPTY.values()}
        foreign = data.pop(PLUGIN_CORE_KEY, None)
        core = None if foreign is None else Target(data["cpu"], foreign["family"], frozenset(foreign["features"]))
        if core is not None and core.isa not in FAMILIES:
            raise ValueError(f"the board's core has an unknown instruction set {core.isa!r}")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"cannot read the project's board: {error}", where=str(path), hint="compile the model again"
        ) from error
    return _make_board_from_tables(name, path, file_text, data, core)


def _make_board_from_tables(
    name: str, path: Path, file_text: str, data: Mapping[str, Any], core: Target | None = None
) -> Board:
    """Check the tables of a board file and make a board; ``file_text``: content of the file, in which line numbers for
    errors are looked up; ``core``: the board's core, if the file itself defines it; else None."""
    if path.parent != file_access.boards_folder():  # the tests validate those that come with microc
        _check_board_schema(path, file_text, data)
    data = {**_EMPTY, **data}
    if core is None and data["cpu"] not in CORES:
        hint = "choose one of " + ", ".join(CORES) + "; or load its --plugin"
        raise UsageError(
            f"unknown core {data['cpu']!r}", where=_file_and_line_of_key(path, file_text, ["cpu"]), hint=hint
        )
    core = core or target_for(data["cpu"])
    _check_rules_beyond_schema(path, file_text, data, core.isa)
    regions = tuple(Region(m["name"], m["kind"], m["origin"], m["size"]) for m in data["memory"])
    flash = Board(name, data["title"], core, regions, data).flash_memories
    target = replace(
        core,
        flash_wait=flash[0].wait if flash else 0.0,
        copies_weights=any(m["kind"] == "ram" and "weights" in m.get("holds", ()) for m in data["memory"]),
        npu=_format_npu_as_external_option(data),
        max_cores=data.get("cores", 1),
        min_fork_instructions=data.get("fork", {}).get("min_instructions", 0),
    )
    return Board(name, data["title"], target, regions, data)


def _format_npu_as_external_option(data: Mapping[str, Any]) -> str:
    """Return a board's accelerator as a value of the option ``--external``; empty if it has none."""
    npu: Mapping[str, Any] = data.get("npu", {})
    settings = (f"{key}={npu[key]}" for key in ("memory", "system") if key in npu)
    return ",".join((npu["accelerator"], *settings)) if npu else ""


def _path_of_board_file(name_or_path: str) -> Path:
    """Return the path of a board file from the name of a board, or from the path itself, which ends in ``.toml``.

    Raises UsageError, with similar names, for an unknown name."""
    if name_or_path.endswith(".toml"):
        return Path(name_or_path)
    known = list_boards()
    if name_or_path not in known:
        hint = (
            similar_names_hint(name_or_path, known)
            or _hint_at_boards_by_title(name_or_path, known)
            or "choose one that microc boards lists"
        )
        raise UsageError(
            f"unknown board {name_or_path!r}", hint=f"{hint} (a path that ends in .toml is a file of your own)"
        )
    return file_access.boards_folder() / f"{name_or_path}.toml"


def _hint_at_boards_by_title(search_word: str, board_names: Sequence[str]) -> str:
    """Return the hint with the boards whose titles contain ``search_word``, emulated boards first; empty without any.

    The word may be the name of a chip, core or vendor."""
    names = (
        [name for name in board_names if search_word.lower() in load_board(name).title.lower()]
        if len(search_word) > 1
        else []
    )
    names.sort(key=lambda name: not load_board(name).virtual)
    return f"did you mean {' or '.join(names[:NEAREST])}?" if names else ""


def _check_board_schema(path: Path, file_text: str, data: Mapping[str, Any]) -> None:
    """Raise UsageError for the first violation of the schema of board files."""
    import jsonschema

    schema = json.loads((file_access.boards_folder() / "board.schema.json").read_text(encoding="utf-8"))
    # JSON Schema accepts 4e6 as an integer; linker scripts and sizes are printed from Python's integers.
    types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=types)(schema)
    errors = sorted(validator.iter_errors(data), key=lambda e: [str(p) for p in e.absolute_path])
    if errors:
        first, other_errors = errors[0], len(errors) - 1
        keys = list(first.absolute_path)
        hint = f"{other_errors} more mistakes in this file" if other_errors else ""
        raise UsageError(
            f"the board file breaks its schema: {_format_schema_violation(first)}",
            where=_file_and_line_of_key(path, file_text, keys),
            hint=hint,
        )


def _format_schema_violation(error: Any) -> str:
    """Return the message about a violation of the schema: the key, then the validator's message.

    For patterns and alternatives, the schema's description replaces the validator's message. ``error``: from
    jsonschema."""
    key = ".".join(str(k) for k in error.absolute_path)
    if error.validator == "anyOf":
        alternatives = " or ".join(e.schema["description"] for e in error.context if "description" in e.schema)
        return f"{key}: {error.instance!r} is none of these: {alternatives}"
    if error.validator == "pattern":
        form = error.schema.get("description", error.validator_value)
        return f"{key}: {error.instance!r} is not of the form {form!r}"
    return f"{key}: {error.message}" if key else str(error.message)


def _check_rules_beyond_schema(path: Path, file_text: str, data: Mapping[str, Any], isa: str) -> None:
    """Raise UsageError, with the line, for a violation of a rule that the schema of board files cannot express.

    Port files must exist. Memory regions must not overlap, and must be possible for the core's instruction set
    ``isa``."""
    for table in ("build", "slots", "fork", "storage"):
        for source in data.get(table, {}).get("sources", ()):
            if not (file_access.runtime_c_folder() / source).is_file():
                ports = ", ".join(
                    sorted(f"ports/{p.name}" for p in (file_access.runtime_c_folder() / "ports").glob("*.c"))
                )
                location = _file_and_line_of_key(path, file_text, [table, "sources"])
                raise UsageError(f"there is no port file {source!r}", where=location, hint="choose one of " + ports)
    if ("cores" in data) != ("fork" in data):
        stated, absent = ("cores", "[fork]") if "cores" in data else ("[fork]", "cores")
        raise UsageError(
            f"board file: {stated} without {absent}; a second core needs both",
            where=_file_and_line_of_key(path, file_text, [stated.strip("[]")]),
            hint=f"add {absent}, as boards/README.md shows, or remove {stated}",
        )
    _check_runner_names(path, file_text, data["flash"]["runner"])
    memory = data["memory"]
    for i, region in enumerate(memory):
        for other in memory[:i]:
            if region["name"] == other["name"]:
                location = _file_and_line_of_key(path, file_text, ["memory", i, "name"])
                raise UsageError(f"two memory regions are called {region['name']!r}", where=location, hint="rename one")
            if (
                region["origin"] < other["origin"] + other["size"]
                and other["origin"] < region["origin"] + region["size"]
            ):
                location = _file_and_line_of_key(path, file_text, ["memory", i, "origin"])
                raise UsageError(
                    f"memory regions {other['name']!r} and {region['name']!r} overlap",
                    where=location,
                    hint="correct their origin and size",
                )
    _check_contents_of_regions(path, file_text, data, isa)
    _check_code_region(path, file_text, data, isa)
    _check_network_slots(path, file_text, data)
    _check_storage(path, file_text, data, isa)
    _check_npu(path, file_text, data, isa)
    kinds = {region["kind"] for region in memory}
    if isa != "host" and (kinds != {"flash", "ram"} or "link" not in data or not data["console"]):
        missing = [f"a {kind} region" for kind in ("flash", "ram") if kind not in kinds]
        missing += [f"[{table}]" for table in ("link", "console") if not data.get(table)]
        raise UsageError(
            f"board file: {' and '.join(missing)} missing; "
            "a microcontroller needs a flash and a RAM region, [link] and [console]",
            where=str(path),
            hint="add what is missing, as boards/README.md shows",
        )


def _check_contents_of_regions(path: Path, file_text: str, data: Mapping[str, Any], isa: str) -> None:
    """Raise UsageError unless every memory region with the key ``holds`` can contain what the key lists: constants in
    flash; tensors, weights or code in RAM.

    Such a region must have a name that is valid in C, and microc must write the board's linker script. A vendor's
    framework places code in one region, and tensors in external RAM, a region of their own."""
    for i, region in enumerate(data["memory"]):
        if "fetch" in region and region["kind"] != "flash":
            hint = "give wait_states, line_bytes and cached instead: for RAM they apply to code, too"
            raise UsageError(
                f"memory region {region['name']!r}: fetch applies to flash only; got kind {region['kind']!r}",
                where=_file_and_line_of_key(path, file_text, ["memory", i, "fetch"]),
                hint=hint,
            )
        if not region.get("holds"):
            continue
        location, name = _file_and_line_of_key(path, file_text, ["memory", i, "holds"]), region["name"]
        for content in region["holds"]:
            kind = "flash" if content == "constants" else "ram"
            if region["kind"] != kind:
                raise UsageError(
                    f"memory region {name!r} cannot hold {content}; got kind {region['kind']!r}, expected {kind!r}",
                    where=location,
                    hint=f"move the key holds to a region of kind {kind}",
                )
        if name == data.get("npu", {}).get("constants"):
            raise UsageError(
                f"memory region {name!r}: got holds, expected none: [npu] constants gives it to the accelerator",
                where=location,
                hint="name another flash region in [npu] constants, or leave out holds",
            )
        if (
            "weights" in region["holds"]
            and "tensors" not in region["holds"]
            and any(other["kind"] == "ram" for other in data["memory"][:i])
        ):
            raise UsageError(
                f"memory region {name!r}: got only weights in holds, expected tensors, too",
                where=location,
                hint='add "tensors" to holds',
            )
        if name in RESERVED_WORDS:
            raise UsageError(
                f"memory region {name!r}: the name is a reserved word of C",
                where=location,
                hint="rename the region",
            )
        is_first_ram = all(other["kind"] != "ram" for other in data["memory"][:i])
        has_own_script = "framework" not in data and isa in ("arm", "riscv", "xtensa")
        placeable = {"code"} if is_first_ram or "code" in region["holds"] else {"tensors", "weights"}
        if not has_own_script and ("framework" not in data or not placeable.issuperset(region["holds"])):
            hint = "leave out holds: the board's framework or compiler decides where data are"
            raise UsageError(f"memory region {name!r}: holds is not supported on this board", where=location, hint=hint)
        if "code" in region["holds"]:
            _check_code_memory(data, i, location)


def _check_code_region(path: Path, file_text: str, data: Mapping[str, Any], isa: str) -> None:
    """Raise UsageError unless the region that ``[link]`` names for code is a flash region other than the first, on a board
    whose linker script microc writes."""
    code = data.get("link", {}).get("code")
    flash = [region["name"] for region in data["memory"] if region["kind"] == "flash"]
    if code is None:
        return
    if code not in flash[1:] or isa == "avr" or "framework" in data or any("data_origin" in m for m in data["memory"]):
        raise UsageError(
            f"[link] code: got region {code!r}, expected a flash region other than the first",
            where=_file_and_line_of_key(path, file_text, ["link", "code"]),
            hint="name another flash region, or leave code out: it is then in the first one, with the constants",
        )


def _check_code_memory(data: Mapping[str, Any], region_index: int, location: str) -> None:
    """Raise UsageError if several memory regions hold code, or if the chip has separate addresses for code and data.

    ``region_index``: index of a region that holds code. ``location``: its line in the board file."""
    others = [other["name"] for other in data["memory"][:region_index] if "code" in other.get("holds", ())]
    if others:
        raise UsageError(
            f"memory regions {others[0]!r} and {data['memory'][region_index]['name']!r} both hold code",
            where=location,
            hint='remove "code" from holds of the slower region',
        )
    if any("data_origin" in other for other in data["memory"]):
        what = "holds: code cannot be in RAM on a chip with separate addresses for code and data; expected tensors or weights"
        raise UsageError(what, where=location, hint='remove "code" from holds')


def _check_network_slots(path: Path, file_text: str, data: Mapping[str, Any]) -> None:
    """Raise UsageError unless both slots for loaded networks are aligned and in one flash region."""
    slots = data.get("slots")
    if slots is None:
        return
    begin, end = slots["base"], slots["base"] + 2 * slots["bytes"]
    flash = [(m["origin"], m["origin"] + m["size"]) for m in data["memory"] if m["kind"] == "flash"]
    if begin % _SLOT_ALIGN or not any(low < begin and end <= high for low, high in flash):
        raise UsageError(
            f"[slots]: got two slots of {slots['bytes']} bytes at {begin:#x}, "
            f"expected them inside of a flash region, not at its start, at a multiple of {_SLOT_ALIGN} bytes",
            where=_file_and_line_of_key(path, file_text, ["slots", "base"]),
            hint="put them at the end of a flash region, at the start of a page",
        )


def _check_storage(path: Path, file_text: str, data: Mapping[str, Any], isa: str) -> None:
    """Raise UsageError for a storage of constants whose name is that of a memory region or no name in C, and on AVR, whose
    kernels read constants from the address space of the flash."""
    if "storage" not in data:
        return
    name = data["storage"]["name"]
    if name in RESERVED_WORDS or any(region["name"] == name for region in data["memory"]):
        raise UsageError(
            f"[storage] name: got {name!r}, expected no word of C and no name of a memory region",
            where=_file_and_line_of_key(path, file_text, ["storage", "name"]),
            hint="choose another name",
        )
    if FAMILIES[isa].flash_space:
        raise UsageError(
            f"[storage]: got core {data['cpu']}, whose kernels read constants from flash only",
            where=_file_and_line_of_key(path, file_text, ["storage"]),
            hint="leave out [storage]",
        )


def _check_npu(path: Path, file_text: str, data: Mapping[str, Any], isa: str) -> None:
    """Raise UsageError for an accelerator (NPU) on a board without an Arm core, or with constants that are not in the
    second or a later flash region."""
    npu = data.get("npu")
    if npu is None:
        return
    if isa != "arm" or "framework" in data:
        hint = "leave out [npu]"
        raise UsageError(
            f"[npu] requires a Cortex-M board without a framework; got {data['cpu']}",
            where=_file_and_line_of_key(path, file_text, ["npu"]),
            hint=hint,
        )
    flash = [region["name"] for region in data["memory"] if region["kind"] == "flash"]
    if "constants" in npu and npu["constants"] not in flash[1:]:
        raise UsageError(
            f"[npu] constants: got region {npu['constants']!r}, expected a flash region other than the first",
            where=_file_and_line_of_key(path, file_text, ["npu", "constants"]),
            hint="name another flash region, or leave constants out if the accelerator can read the first one",
        )


def _check_runner_names(path: Path, file_text: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError unless every runner of a board file comes with microc or has a command of its own."""
    for i, entry in enumerate(entries):
        if "argv" not in entry and entry["name"] not in list_runners():
            location = _file_and_line_of_key(path, file_text, ["flash", "runner", i, "name"])
            hint = "choose one of " + ", ".join(list_runners()) + "; or give argv for one of your own"
            raise UsageError(f"there is no runner {entry['name']!r}", where=location, hint=hint)


def _file_and_line_of_key(path: Path, file_text: str, keys: Sequence[str | int]) -> str:
    """Return ``file:line`` of a key path in a board file, such as ``("memory", 1, "size")``.

    If the key is absent, it is the line of the nearest table. ``file_text``: the file's content."""
    best, line = 0, 0
    table: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    for number, content in enumerate(file_text.splitlines(), 1):
        statement = content.split("#")[0].strip()
        if statement.startswith("["):
            key_path = table = _parse_key_path_of_table_header(statement, counts)
        else:
            key_path = (*table, statement.split("=")[0].strip())
        if len(key_path) > best and key_path == tuple(keys[: len(key_path)]):
            best, line = len(key_path), number
    return f"{path}:{line}" if line else str(path)


def _parse_key_path_of_table_header(header: str, array_lengths: dict[str, int]) -> tuple[str | int, ...]:
    """Parse a TOML table header to a key path: ``[a.b]`` to ("a", "b"), the second ``[[a]]`` to ("a", 1).

    ``array_lengths``: index of the latest element of each array of tables, which is updated."""
    name = header.strip("[]")
    if not header.startswith("[["):
        return tuple(name.split("."))
    array_lengths[name] = array_lengths.get(name, -1) + 1
    return (*name.split("."), array_lengths[name])


# ---- Runners: programs that flash an image, each described by a file ``boards/runners/<name>.toml``.
#
# A board lists its runners by name, best first, with options for their commands. :func:`select_runner` selects
# the first runner whose program is installed on this computer.


SECONDS = 300.0
"""Default time-out of a runner in seconds."""
_OPTIONS = "{options}"
"""Placeholder that is replaced by the board's options, as separate arguments."""


@frozen
class Failure:
    """A known failure of a runner (a flashing program). ``says``: text in the runner's output by which the failure is
    recognised; ``means``: error message for the user; ``hint``: hint of the error."""

    says: str
    means: str
    hint: str


@frozen
class Runner:
    """A program that flashes a board.

    ``argv``: command, with ``{placeholders}``. ``then``: second command, empty if there is none. ``commands``: lines of
    the command file whose path replaces ``{commands}``. ``options``: options of the board, which ``argv`` already
    contains. ``seconds``: time-out. ``install``: how to install the program.
    """

    name: str
    argv: tuple[str, ...]
    then: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    seconds: float = SECONDS
    install: str = ""
    failures: tuple[Failure, ...] = ()

    def has_placeholder(self, placeholder: str) -> bool:
        """Test whether one of the runner's commands contains ``{placeholder}``."""
        return any("{" + placeholder + "}" in part for part in (*self.argv, *self.then, *self.commands))

    @property
    def emulated(self) -> bool:
        """True if the runner uses the gdb server of an emulator."""
        return self.has_placeholder("gdb")

    @property
    def missing_requirement(self) -> str:
        """Message about the program or drive that is missing; empty if the runner can work."""
        if shutil.which(self.argv[0]) is None:
            return f"{self.argv[0]} is not on PATH"
        if self.has_placeholder("drive") and self.drive is None:
            return f"no drive {self._drive_name} is mounted"
        return ""

    @property
    def drive(self) -> Path | None:
        """Mount point of the drive that the options name; None if it is not mounted."""
        override = os.environ.get("MICROC_DRIVES")
        name = self._drive_name
        candidates = [Path(override) / name] if override else list_mount_points(name)
        return next((folder for folder in candidates if folder.is_dir()), None)

    @property
    def _drive_name(self) -> str:
        return " ".join(self.options)


def list_runners() -> tuple[str, ...]:
    """List the names of the runners that come with microc, sorted."""
    return tuple(sorted(path.stem for path in _runners_folder().glob("*.toml")))


def _runners_folder() -> Path:
    """Return the folder of the runner files that come with microc."""
    return file_access.boards_folder() / "runners"


def list_runners_of_board(board: Board) -> tuple[Runner, ...]:
    """List the runners of a board, best first; empty for the host, which is not flashed."""
    return tuple(_make_runner(entry) for entry in board.raw["flash"]["runner"])


def _make_runner(entry: Mapping[str, Any]) -> Runner:
    """Make a runner from its entry in a board file.

    An entry with ``argv`` has a command of its own. Another entry names a runner of microc, which gets the entry's
    options."""
    name, options = entry["name"], tuple(entry.get("options", ()))
    if "argv" in entry:
        return Runner(name, tuple(entry["argv"]), options=options)
    data = parse_toml((_runners_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    return Runner(
        name,
        _replace_options_placeholder(data["argv"], options),
        then=_replace_options_placeholder(data.get("then", ()), options),
        commands=tuple(data.get("commands", ())),
        options=options,
        seconds=float(data.get("seconds", SECONDS)),
        install=data.get("install") or install_hint(data["argv"][0]),
        failures=tuple(Failure(f["says"], f["means"], f["hint"]) for f in data.get("failures", ())),
    )


def _replace_options_placeholder(argv: Sequence[str], options: tuple[str, ...]) -> tuple[str, ...]:
    """Replace the placeholder ``{options}`` in a command by a board's options, as separate arguments."""
    return tuple(part for argument in argv for part in (options if argument == _OPTIONS else (argument,)))


def select_runner(board: Board, name: str = "") -> Runner:
    """Return the runner ``name`` of a board; without a name the first that can work on this computer.

    If none can work, it is the first of the board's runners. Raises UsageError for a board without runners and for an
    unknown name.
    """
    known = list_runners_of_board(board)
    if not known:
        raise UsageError(
            f"board {board.name!r} is not flashed: its programs run on this computer",
            hint="run the project: microc run DIR",
        )
    if not name:
        return next((runner for runner in known if not runner.missing_requirement), known[0])
    for runner in known:
        if runner.name == name:
            return runner
    raise UsageError(
        f"board {board.name!r} has no runner {name!r}",
        hint=known_names_hint(name, [r.name for r in known], "choose from"),
    )
