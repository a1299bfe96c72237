# SPDX-License-Identifier: Apache-2.0
"""Firmware that contains several networks. Networks without state share one arena."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microc import __version__
from microc.codegen.c.identifiers import list_external_symbols
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import RESERVED_FOLDERS, project_files, shared_arena
from microc.compiler import validation
from microc.compiler.api import Program
from microc.compiler.fit.budget import constant_regions, region_bytes
from microc.compiler.fit.search import board_capacity, compute_and_check_footprint, compute_firmware_footprint
from microc.compiler.model import registers_own_plugins
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import UsageError
from microc.graph.ir import shorten_text
from microc.module import Module
from microc.plan.plan import divide_flash
from microc.plugin import Plugin
from microc.reports.report import summarise_module
from microc.target import Board

_PROGRAM_HINT = "a Program, which microc.compile(..., board=...) returns"


@dataclass(frozen=True, slots=True, repr=False)
class Bundle(Showable):
    """Several programs for the same board that become one firmware. Created by :func:`bundle`."""

    programs: tuple[Program, ...]

    @property
    def board(self) -> Board:
        return self.programs[0].board

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins that the programs were compiled with."""
        return tuple(plugin for program in self.programs for plugin in program.plugins)

    @property
    def modules(self) -> tuple[Module, ...]:
        """The networks as planned modules. If there are several, each is planned in a single arena, even if the board
        has several memories; they share its flash regions."""
        if len(self.programs) == 1:
            return (self.programs[0].module,)
        modules = tuple(program.module_in_one_arena for program in self.programs)
        if len(self.board.flash_memories) < 2:
            return modules
        flash = constant_regions(modules, board_capacity(self.board), self.board.target.flash_wait)
        return divide_flash(modules, flash)

    def __repr__(self) -> str:
        names = ", ".join(program.report()["model"] for program in self.programs)
        return f"<Bundle {shorten_text(names)} for {self.board.name}>"

    def document(self) -> Document:
        """Return the memory of the firmware as a document, for a notebook."""
        report = self.report()
        rows = ((f"{name}, bytes", report[name]) for name in ("flash", "ram", "arena", "shared_arena"))
        names = ", ".join(each["model"] for each in report["models"])
        return document(facts(rows), title=f"{names} for {self.board.name}")

    @registers_own_plugins
    def report(self) -> dict[str, Any]:
        """Return the memory that the firmware needs, in bytes, and the reports of its networks. Flash is an upper
        estimate."""
        need = compute_firmware_footprint(self.modules, self.board)
        return {
            "board": self.board.name,
            "shared_arena": shared_arena(self.modules),
            "arena": need.arena,
            "flash": need.flash,
            "ram": need.ram,
            "ram_taken": need.required_board_ram,
            "board_flash": region_bytes(self.board, "flash"),
            "board_ram": region_bytes(self.board, "ram"),
            "models": [
                summarise_module(module, self.board) if self.board.memories else program.report()
                for program, module in zip(self.programs, self.modules, strict=True)
            ],
        }

    @registers_own_plugins
    def files(self) -> dict[str, str | bytes]:
        """Return the C project as a dict from file names to contents. Each network has a folder with its name."""
        return project_files(self.modules, self.board, __version__)

    @registers_own_plugins
    def write(self, folder: str | Path) -> Path:
        """Write the C project into a folder that is new, is empty, or contains a project that microc wrote before.

        Raises FitError if the board has too little memory.
        """
        compute_and_check_footprint(self.modules, self.board)
        target = validation.as_path("a folder", folder)
        write_tree(target, self.files())
        return target


def bundle(*programs: Program) -> Bundle:
    """Combine ``programs`` into one firmware.

    Raises UsageError unless all programs are for the same board, have the same optimisation goal, and have different
    names.
    """
    if not programs:
        raise UsageError("firmware: got no network, expected at least one", hint=f"give {_PROGRAM_HINT}")
    for program in programs:
        validation.as_instance("a network of a firmware", program, Program, _PROGRAM_HINT)
    boards = {program.board.name for program in programs}
    if len(boards) > 1:
        raise UsageError(
            f"firmware: the networks are for different boards; got {', '.join(sorted(boards))}, expected one",
            hint="compile all networks for one board",
        )
    goals = {program.module.options["optimize"] for program in programs}
    if len(goals) > 1:
        raise UsageError(
            f"firmware: the networks have different goals; got optimize {', '.join(sorted(goals))}, expected one",
            hint="compile all networks with one --optimize",
        )
    if len(programs) > 1 and any("code_in_ram" in program.module.options for program in programs):
        raise UsageError(
            f"code_in_ram: not possible in a firmware of several networks; got {len(programs)} networks, expected one",
            hint="leave out code_in_ram",
        )
    for program in programs if len(programs) > 1 else ():
        if program.module.plan is not None and program.module.plan.storage is not None:
            raise UsageError(
                f"network {program.module.name!r}: its weights are read from {program.module.plan.storage.memory}, which a "
                "firmware of several networks does not do",
                hint="choose a board with more flash, or compile each network alone",
            )
    names = Counter(program.module.name for program in programs)
    for name, times in names.items():
        if times > 1:
            raise UsageError(
                f"firmware: {times} networks are called {name!r}, expected different names",
                hint="compile them with different names (name=...)",
            )
        if name in RESERVED_FOLDERS:
            raise UsageError(
                f"firmware: a network cannot be called {name!r}, which is the name of a folder of the project",
                hint="compile it with another name (name=...)",
            )
    owners: dict[str, str] = {}
    for module in (program.module for program in programs):
        tables = (name for name, value in module.values.items() if value.storage == "const")
        for name in sorted(list_external_symbols(module.name, tables)):
            if name in owners:
                raise UsageError(
                    f"networks {owners[name]!r} and {module.name!r} both define the C name {name!r}",
                    hint="compile one with a name that does not begin with the other's (name=...)",
                )
            owners[name] = module.name
    return Bundle(programs)
