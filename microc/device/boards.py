"""Load and check board files: ``boards/<name>.toml``, validated against ``boards/board.schema.json``. They contain data
only.

A loaded :class:`~microc.target.Board` has every table of its file in ``raw``, under the names of the schema. Optional
tables that the file omits are absent from ``raw``, except ``memory``, ``setup``, ``console`` and ``flash``, which are
empty.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from microc.base import file_access
from microc.base.file_access import read_text
from microc.codegen.c.identifiers import RESERVED_WORDS
from microc.codegen.project.firmware import PLUGIN_CORE_KEY
from microc.device.runners import list_runners
from microc.errors import NEAREST, UsageError, similar_files_hint, similar_names_hint
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
    """Load a board by name, or by the path of a board file (anything that ends in ``.toml``). UsageError that names the
    file, the key and, if found, the line."""
    path = _path_of_board_file(str(name_or_path))
    try:
        text = read_text(path, _LARGEST)
        data = tomllib.loads(text)
    except OSError as error:
        hint = similar_files_hint(path) or "choose one that microc boards lists"
        what = f"cannot read the board file: {error.strerror or error}"
        raise UsageError(what, where=str(path), hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError("the board file is not UTF-8 text", where=str(path), hint="save it as UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"the board file is not TOML: {error}",
            where=str(path),
            hint="correct it; boards/README.md explains the tables",
        ) from error
    return _make_board(path.stem, path, text, data)


def make_board_of_core(cpu: str) -> Board:
    """Make a board for code that becomes part of the user's own program: a core without limits on memory."""
    target = target_for(cpu)
    title = "any core" if cpu == "host" else f"any {target.cpu}"
    return replace(load_board("host"), name=target.cpu, title=title, target=target)


def load_board_copy(path: Path, name: str) -> Board:
    """Load board ``name`` from the JSON copy in a generated project."""
    try:
        text = read_text(path, _LARGEST)
        data = {key: value for key, value in json.loads(text).items() if value not in _EMPTY.values()}
        foreign = data.pop(PLUGIN_CORE_KEY, None)
        core = None if foreign is None else Target(data["cpu"], foreign["family"], frozenset(foreign["features"]))
        if core is not None and core.isa not in FAMILIES:
            raise ValueError(f"the board's core has an unknown instruction set {core.isa!r}")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"cannot read the project's board: {error}", where=str(path), hint="compile the model again"
        ) from error
    return _make_board(name, path, text, data, core)


def _make_board(name: str, path: Path, text: str, data: Mapping[str, Any], core: Target | None = None) -> Board:
    """Check the tables of a board file and make a board; ``text``: of the file, to find lines for errors; ``core``: the
    board's core, if the file defines its own."""
    if path.parent != file_access.boards_folder():  # the tests validate those that come with microc
        _check_board_schema(path, text, data)
    data = {**_EMPTY, **data}
    if core is None and data["cpu"] not in CORES:
        hint = "choose one of " + ", ".join(CORES) + "; or load its --plugin"
        raise UsageError(f"unknown core {data['cpu']!r}", where=_line_of_key(path, text, ["cpu"]), hint=hint)
    core = core or target_for(data["cpu"])
    _check_beyond_schema(path, text, data, core.isa)
    regions = tuple(Region(m["name"], m["kind"], m["origin"], m["size"]) for m in data["memory"])
    target = replace(core, flash_wait=_flash_wait_cycles(data), npu=_npu_setting(data))
    return Board(name, data["title"], target, regions, data)


def _flash_wait_cycles(data: Mapping[str, Any]) -> float:
    """Compute the cycles that reading a byte of constants waits: the flash returns ``line_bytes`` at once after
    ``wait_states`` cycles."""
    flash: Mapping[str, Any] = next((m for m in data["memory"] if m["kind"] == "flash"), {})
    return float(flash.get("wait_states", 0)) / float(flash.get("line_bytes", 4))


def _npu_setting(data: Mapping[str, Any]) -> str:
    """Return a board's accelerator in the syntax of ``--external``; empty if it has none."""
    npu: Mapping[str, Any] = data.get("npu", {})
    settings = (f"{key}={npu[key]}" for key in ("memory", "system") if key in npu)
    return ",".join((npu["accelerator"], *settings)) if npu else ""


def _path_of_board_file(name: str) -> Path:
    """Return the path of a board file, given by itself or by the name of a board. UsageError, with similar names, for an
    unknown name."""
    if name.endswith(".toml"):
        return Path(name)
    known = list_boards()
    if name not in known:
        hint = (
            similar_names_hint(name, known)
            or _boards_by_title_hint(name, known)
            or "choose one that microc boards lists"
        )
        raise UsageError(f"unknown board {name!r}", hint=f"{hint} (a path that ends in .toml is a file of your own)")
    return file_access.boards_folder() / f"{name}.toml"


def _boards_by_title_hint(search_word: str, board_names: Sequence[str]) -> str:
    """Return the hint for a word that is no board but occurs in titles, such as the name of a chip, core or vendor: the
    boards with it in their titles, emulated ones first; empty if there are none."""
    names = (
        [name for name in board_names if search_word.lower() in load_board(name).title.lower()]
        if len(search_word) > 1
        else []
    )
    names.sort(key=lambda name: not load_board(name).virtual)
    return f"did you mean {' or '.join(names[:NEAREST])}?" if names else ""


def _check_board_schema(path: Path, text: str, data: Mapping[str, Any]) -> None:
    """Raise UsageError for the first violation of the schema of board files."""
    import jsonschema

    schema = json.loads((file_access.boards_folder() / "board.schema.json").read_text(encoding="utf-8"))
    errors = sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(data), key=lambda e: [str(p) for p in e.absolute_path]
    )
    if errors:
        first, other_errors = errors[0], len(errors) - 1
        keys = list(first.absolute_path)
        hint = f"{other_errors} more mistakes in this file" if other_errors else ""
        raise UsageError(
            f"the board file breaks its schema: {_schema_message(first)}",
            where=_line_of_key(path, text, keys),
            hint=hint,
        )


def _schema_message(error: Any) -> str:
    """Return the message about a violation of the schema: the key, then the validator's message; for patterns and
    alternatives, their description."""
    key = ".".join(str(k) for k in error.absolute_path)
    if error.validator == "anyOf":
        alternatives = " or ".join(e.schema["description"] for e in error.context if "description" in e.schema)
        return f"{key}: {error.instance!r} is none of these: {alternatives}"
    if error.validator == "pattern":
        form = error.schema.get("description", error.validator_value)
        return f"{key}: {error.instance!r} is not of the form {form!r}"
    return f"{key}: {error.message}" if key else str(error.message)


def _check_beyond_schema(path: Path, text: str, data: Mapping[str, Any], isa: str) -> None:
    """Check what the schema of board files cannot express: port files exist, memory regions do not overlap and suit the
    core's family ``isa``. UsageError with the line."""
    for table in ("build", "slots"):
        for source in data.get(table, {}).get("sources", ()):
            if not (file_access.runtime_c_folder() / source).is_file():
                ports = ", ".join(
                    sorted(f"ports/{p.name}" for p in (file_access.runtime_c_folder() / "ports").glob("*.c"))
                )
                location = _line_of_key(path, text, [table, "sources"])
                raise UsageError(f"there is no port file {source!r}", where=location, hint="choose one of " + ports)
    _check_runner_names(path, text, data["flash"]["runner"])
    memory = data["memory"]
    for i, region in enumerate(memory):
        for other in memory[:i]:
            if region["name"] == other["name"]:
                location = _line_of_key(path, text, ["memory", i, "name"])
                raise UsageError(f"two memory regions are called {region['name']!r}", where=location, hint="rename one")
            if (
                region["origin"] < other["origin"] + other["size"]
                and other["origin"] < region["origin"] + region["size"]
            ):
                location = _line_of_key(path, text, ["memory", i, "origin"])
                raise UsageError(
                    f"memory regions {other['name']!r} and {region['name']!r} overlap",
                    where=location,
                    hint="correct their origin and size",
                )
    _check_tensor_memories(path, text, data, isa)
    _check_network_slots(path, text, data)
    _check_npu(path, text, data, isa)
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


def _check_tensor_memories(path: Path, text: str, data: Mapping[str, Any], isa: str) -> None:
    """Check that memory regions for tensors, weights or code are RAM, have names that are valid in C, and are placed by
    our own linker script."""
    for i, region in enumerate(data["memory"]):
        if "fetch" in region and region["kind"] != "flash":
            hint = "give wait_states, line_bytes and cached instead: for RAM they apply to code, too"
            raise UsageError(
                "fetch applies to flash only", where=_line_of_key(path, text, ["memory", i, "fetch"]), hint=hint
            )
        if not region.get("holds"):
            continue
        location, name = _line_of_key(path, text, ["memory", i, "holds"]), region["name"]
        if region["kind"] != "ram":
            raise UsageError(
                f"memory region {name!r} is no RAM, and holds no {region['holds'][0]}",
                where=location,
                hint="write holds in a region whose kind is ram",
            )
        if (
            "weights" in region["holds"]
            and "tensors" not in region["holds"]
            and any(other["kind"] == "ram" for other in data["memory"][:i])
        ):
            raise UsageError(
                f"memory region {name!r} holds weights only, expected tensors, too",
                where=location,
                hint='add "tensors" to holds',
            )
        if name in RESERVED_WORDS:
            raise UsageError(
                f"memory region {name!r}: a word of C cannot be its name", where=location, hint="rename the region"
            )
        has_own_script = "framework" not in data and isa in ("arm", "riscv")
        if not has_own_script and ("framework" not in data or region["holds"] != ["code"]):
            hint = "leave out holds: its framework, or its compiler, places what is in RAM"
            raise UsageError(f"memory region {name!r}: holds is not possible on this board", where=location, hint=hint)
        if "code" in region["holds"]:
            _check_code_memory(data, i, location)


def _check_code_memory(data: Mapping[str, Any], region_index: int, location: str) -> None:
    """Check that at most one memory region holds code, on a chip where code runs at the addresses that it is written to.

    ``region_index``: the region whose ``holds`` contains ``code``; ``location``: its line in the board file, for the
    error."""
    others = [other["name"] for other in data["memory"][:region_index] if "code" in other.get("holds", ())]
    if others:
        raise UsageError(
            f"memory regions {others[0]!r} and {data['memory'][region_index]['name']!r} both hold code",
            where=location,
            hint="leave out code of the slower one",
        )
    if any("data_origin" in other for other in data["memory"]):
        what = "memory holds code: not possible on this chip, whose code and data have separate addresses"
        raise UsageError(what, where=location, hint="leave out code")


def _check_network_slots(path: Path, text: str, data: Mapping[str, Any]) -> None:
    """Check that both slots for networks are in one flash region and aligned."""
    slots = data.get("slots")
    if slots is None:
        return
    begin, end = slots["base"], slots["base"] + 2 * slots["bytes"]
    flash = [(m["origin"], m["origin"] + m["size"]) for m in data["memory"] if m["kind"] == "flash"]
    if begin % _SLOT_ALIGN or not any(low < begin and end <= high for low, high in flash):
        raise UsageError(
            f"[slots]: got two of {slots['bytes']} bytes from {begin:#x} on, "
            f"expected them inside of a flash region, not at its start, at a multiple of {_SLOT_ALIGN} bytes",
            where=_line_of_key(path, text, ["slots", "base"]),
            hint="put them at the end of a flash region, at the start of a page",
        )


def _check_npu(path: Path, text: str, data: Mapping[str, Any], isa: str) -> None:
    """Check that an accelerator is on an Arm board, and that its constants are in a flash region other than the first."""
    npu = data.get("npu")
    if npu is None:
        return
    if isa != "arm" or "framework" in data:
        hint = "leave out [npu]"
        raise UsageError(
            f"[npu] requires a Cortex-M board without a framework; got {data['cpu']}",
            where=_line_of_key(path, text, ["npu"]),
            hint=hint,
        )
    flash = [region["name"] for region in data["memory"] if region["kind"] == "flash"]
    if "constants" in npu and npu["constants"] not in flash[1:]:
        raise UsageError(
            f"[npu] constants: got region {npu['constants']!r}, expected a flash region other than the first",
            where=_line_of_key(path, text, ["npu", "constants"]),
            hint="name another flash region, or leave constants out if the accelerator can read the first one",
        )


def _check_runner_names(path: Path, text: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Check that every runner of a board file is one of microc's, or has its own command."""
    for i, entry in enumerate(entries):
        if "argv" not in entry and entry["name"] not in list_runners():
            location = _line_of_key(path, text, ["flash", "runner", i, "name"])
            hint = "choose one of " + ", ".join(list_runners()) + "; or give argv for one of your own"
            raise UsageError(f"there is no runner {entry['name']!r}", where=location, hint=hint)


def _line_of_key(path: Path, text: str, keys: Sequence[str | int]) -> str:
    """Return ``file:line`` of a key path in a board file, such as ``("memory", 1, "size")``; of its nearest table if the
    key is absent. ``text``: of the file."""
    best, line = 0, 0
    table: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    for number, content in enumerate(text.splitlines(), 1):
        statement = content.split("#")[0].strip()
        if statement.startswith("["):
            key_path = table = _key_path_of_header(statement, counts)
        else:
            key_path = (*table, statement.split("=")[0].strip())
        if len(key_path) > best and key_path == tuple(keys[: len(key_path)]):
            best, line = len(key_path), number
    return f"{path}:{line}" if line else str(path)


def _key_path_of_header(header: str, array_lengths: dict[str, int]) -> tuple[str | int, ...]:
    """Return the key path of a TOML table header; ``array_lengths`` numbers the elements of arrays of tables."""
    name = header.strip("[]")
    if not header.startswith("[["):
        return tuple(name.split("."))
    array_lengths[name] = array_lengths.get(name, -1) + 1
    return (*name.split("."), array_lengths[name])
