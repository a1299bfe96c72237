"""A generated project: open it, build its firmware, have its network on this computer."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.codegen.external import OWN
from microc.codegen.files import MARKER, write_tree
from microc.codegen.manifest import SCHEMA_VERSION
from microc.codegen.manifest_schema import fault
from microc.codegen.network import shared_source
from microc.codegen.relocatable import LINKED, is_relocatable
from microc.device.boards import load_copy
from microc.device.info import readable
from microc.device.toolchain import Sizes, board_tools, require, run_make, section_sizes
from microc.driver import accepted
from microc.driver.compile.fit import link_overflow
from microc.driver.desktop.library import Library
from microc.driver.desktop.load import build_library
from microc.driver.measure.packing import NETWORK, pack
from microc.errors import OutputError, ToolError, UsageError, nearest_file, suggestion
from microc.frozen import frozen
from microc.plugin import PORTABLE
from microc.reading import read_text
from microc.target import Board

NEW = "firmware"
"""The folder of a project in hints and examples."""
_AGAIN = "compile again: microc compile MODEL --board BOARD -o {}"


@frozen
class Project:
    """A folder that ``microc compile`` wrote, and one of the networks in it: ``index`` is its number on the board."""

    folder: Path
    manifest: dict[str, Any]
    board: Board
    index: int = 0
    sources: Path = Path()

    @property
    def elf(self) -> Path:
        return self.folder / "firmware.elf"

    @property
    def relocatable(self) -> bool:
        """Whether the network is loaded into a firmware that does not hold it."""
        return is_relocatable(self.manifest["options"])

    @property
    def blob(self) -> Path:
        """The network as it is loaded."""
        return self.folder / NETWORK

    @property
    def program(self) -> Path:
        """The linked program that holds the network."""
        return self.folder / next(iter(LINKED)) if self.relocatable else self.elf

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """Tensors of the manifest by name, in the order of the board's table."""
        return {t["name"]: t for t in self.manifest["tensors"]}

    @property
    def emulated(self) -> bool:
        return "emulator" in self.board.raw

    def networks(self) -> tuple[Project, ...]:
        """All networks of the firmware, in the board's order; the project itself where it has one."""
        names = _manifest(self.folder / MARKER).get("models", ())
        return tuple(open_project(self.folder, name) for name in names) or (self,)

    @property
    def peak_stack(self) -> int:
        """Bytes of stack that a run of any of its networks takes at most, as gcc compiles them."""
        return max(int(network.manifest["stack_bound"]) for network in self.networks())


@frozen
class BuildResult:
    """A linked firmware and the memory it takes. ``network``: bytes of the network that is loaded into it, None if it has it."""

    elf: Path
    sizes: Sizes
    network: int | None = None


def open_project(folder: str | Path, model: str = "") -> Project:
    """The project in a folder, and its network called ``model``, which may be left out when there is one.

    UsageError or OutputError when there is no project, one of another version, or no such network.
    """
    root = accepted.path("a project", folder)
    accepted.text("a network", model)
    path = root / MARKER
    hint = f"make one: microc compile MODEL --board BOARD -o {NEW}"
    if not root.is_dir():
        known = nearest_file(root) if not root.exists() else ""
        what = f"{root} is a file, not a project" if root.exists() else f"there is no folder {root}"
        raise OutputError(what, where=str(root), hint=known or hint)
    if not path.is_file():
        raise OutputError(f"{root} is no project of microc: it has no {MARKER}", where=str(root), hint=hint)
    data = _manifest(path)
    names = data.get("models", [data.get("model")])
    if model and model not in names:
        raise UsageError(
            f"the project has no network {model!r}", where=str(root), hint=suggestion(model, names, "it has")
        )
    index = names.index(model) if model else 0
    sources = root / names[index] if "models" in data else root
    own = _manifest(sources / MARKER) if "models" in data else data
    return Project(root, own, load_copy(root / "board" / "board.json", own["board"]), index, sources)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(read_text(path))
        if "format" in data:
            what = f"{path.parent} is an export ({data['format']}), not a project"
            raise OutputError(
                what, where=str(path.parent), hint=f"compile the model into a project: microc compile MODEL -o {NEW}"
            )
        version, _ = data["schema_version"], str(data["board"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OutputError(
            f"{path} is damaged", where=str(path), hint=_AGAIN.format(shlex.quote(str(path.parent)))
        ) from error
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"the project has schema version {readable(str(version), 40)}, this microc knows {SCHEMA_VERSION}",
            where=str(path),
            hint=_AGAIN.format(shlex.quote(str(path.parent))),
        )
    if wrong := fault(data):
        raise OutputError(
            f"{path} is damaged: {readable(wrong, 200)}",
            where=str(path),
            hint=_AGAIN.format(shlex.quote(str(path.parent))),
        )
    return data


def build(project: Project) -> BuildResult:
    """Run make. FitError with the numbers when the linker runs out of memory, ToolError when anything else fails."""
    framework, compiler = project.board.raw.get("framework"), project.board.raw["build"]["prefix"]
    if framework:
        require(framework["tool"], framework["install"])
    elif compiler:
        require(f"{compiler}gcc")
    try:
        run_make(project.folder)
    except ToolError as error:
        hot_code = "hot_code" in project.manifest
        overflow = link_overflow(error, project.board, str(project.folder), hot_code=hot_code)
        if overflow is None:
            raise
        raise overflow from error
    blob = pack(project.folder, project.manifest, project.board) if project.relocatable else None
    return BuildResult(project.elf, section_sizes(project.elf), None if blob is None else len(blob.pack()))


def linked_sizes(files: Mapping[str, str | bytes], board: Board) -> Sizes | None:
    """Link the firmware of a project's ``files`` in a temporary folder, and read its sizes.

    None where they say nothing of the network on the board (it is loaded, or external code brings data of its own), or where
    compiler or make are absent. FitError where the linker finds no room, ToolError where the C does not build.
    """
    if board.target.isa == "host" or "framework" in board.raw or not all(map(shutil.which, board_tools(board)[:2])):
        return None
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        write_tree(Path(folder) / NEW, files)
        project = open_project(Path(folder) / NEW)
        if project.relocatable or any("external" in each.manifest for each in project.networks()):
            return None
        return build(project).sizes


def host_library(project: Project) -> Library:
    """The project's own network, compiled for this computer; externs of plugins by their meaning, so that a board that runs
    their C text is compared with it, and so that external code is compared with ours."""
    folder, told = project.sources, project.manifest
    try:
        if "external" in told:
            folder = folder / OWN
            told = json.loads(read_text(folder / "manifest.json"))
            if wrong := fault(told):
                raise ValueError(f"{folder / 'manifest.json'} is damaged: {readable(wrong, 200)}")
        names = ("model.c", "model.h", "model_data.c", "model_data.h")
        sources = {name: read_text(folder / name) for name in names}
    except (OSError, ValueError, RecursionError) as error:
        raise OutputError(f"the project lacks a source file: {error}", where=str(project.folder)) from error
    return build_library({**sources, "shared.c": shared_source(told)}, f"-D{PORTABLE}")
