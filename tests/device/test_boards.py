# SPDX-License-Identifier: Apache-2.0
"""Board files: those that come with microc, and the errors of wrong ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from microc.base import file_access
from microc.codegen.project.board_files import linker_script, render_board_header
from microc.device.boards import list_boards, load_board
from microc.errors import UsageError
from microc.target import CodeMemory, Fetching, FlashMemory
from tests.device.smoke import needs

GOOD = (file_access.boards_folder() / "mps2-an386.toml").read_text()


def wrong(folder: Path, text: str) -> UsageError:
    path = folder / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_board(path)
    return caught.value


@pytest.mark.parametrize("name", list_boards())
def test_every_board_loads(name: str) -> None:
    board = load_board(name)
    assert board.name == name
    if name == "host":
        assert board.flash_bytes == board.ram_bytes == 0
    else:
        assert board.target.isa in ("arm", "riscv", "avr", "xtensa")
        assert board.raw["link"]["stack_bytes"] < board.ram_bytes
        assert {r.name for r in board.regions} == {m["name"] for m in board.raw["memory"]}


def test_every_board_is_in_the_readme() -> None:
    text = (file_access.boards_folder() / "README.md").read_text()
    assert [name for name in list_boards() if f"`{name}`" not in text] == []


def test_known_facts() -> None:
    assert {"host", "mps2-an386", "mps3-an547", "netduinoplus2", "microbit"} <= set(list_boards())
    board = load_board("netduinoplus2")
    assert (board.flash_bytes, board.ram_bytes) == (1 << 20, 128 << 10)
    assert load_board("mps3-an547").target.has("lanes")


def test_flash_wait_states(tmp_path: Path) -> None:
    """Five cycles for each line of 16 bytes."""
    assert load_board("mps2-an386").target.flash_wait == 0
    size = "size = 0x40_0000 # ZBT SSRAM 1"
    path = tmp_path / "slow.toml"
    path.write_text(GOOD.replace(f"{size}\n\n", f"{size}\nwait_states = 5\nline_bytes = 16\n\n", 1))
    assert load_board(path).target.flash_wait == 5 / 16


def test_a_board_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_board(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("name", "hint"), [("mps2-an368", "mps2-an386"), ("netduino", "netduinoplus2"), ("xyzzy", "microc boards")]
)
def test_unknown_board(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_board(name)
    assert name in caught.value.what
    assert hint in caught.value.hint


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the board file"):
        load_board(tmp_path / "none.toml")


def line_of(text: str, start: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith(start))


@pytest.mark.parametrize(
    ("old", "new", "key", "start"),
    [
        ('cpu = "cortex-m4"', 'cpu = "cortex-m99"', "cortex-m99", "cpu"),
        ('kind = "ram"', 'kind = "rom"', "memory.1.kind", 'kind = "rom"'),
        ("baud = 115_200", "baud = 3", "console.baud", "baud"),
        ("irq = 0", "irq = 'zero'", "console.irq", "irq"),
        ("sleep = 1", "sleep = 0", "console.sleep", "sleep"),
        ("irq = 0", "irq = 0.0", "console.irq: 0.0 is not of type 'integer'", "irq"),
        ("stack_bytes = 8192", "stack_bytes = 8191", "link.stack_bytes", "stack_bytes"),
        ("hz = 25_000_000 #", "#", "timer: 'hz' is a required property", "[timer]"),
        ('prefix = "arm-none-eabi-"', 'prefix = "arm-none-eabi-"\ncolour = 1', "colour", "[build]"),
        ("ports/systick.c", "ports/sundial.c", "ports/sundial.c", "sources"),
        ("origin = 0x2000_0000", "origin = 0x0010_0000", "overlap", "origin = 0x0010"),
        ('name = "data"', 'name = "code"', "two memory regions", ""),
        ('kind = "flash"', 'kind = "flash"\nwait_states = -1', "memory.0.wait_states", "wait_states"),
        ("ticks_per_instruction = 1.6", "ticks_per_instruction = 0", "emulator.ticks_per_instruction", "ticks_per"),
    ],
)
def test_mistakes_name_the_key_and_the_line(tmp_path: Path, old: str, new: str, key: str, start: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    error = wrong(tmp_path, text)
    assert key in error.what
    if start:
        assert error.where == f"{tmp_path / 'mine.toml'}:{line_of(text, start)}"


def test_boards_that_sleep_have_a_core_that_can() -> None:
    """And all whose emulator counts instructions do, with a clock that goes on while the core sleeps."""
    able = {"ports/cortex_m.c", "ports/riscv.c", "ports/xtensa.c", "ports/avr_usart.c"}
    for name in list_boards():
        raw = load_board(name).raw
        if "sleep" in raw["console"]:
            assert able & set(raw["build"]["sources"]), name
        if "ticks_per_instruction" in raw.get("emulator", {}):
            assert "sleep" in raw["console"], name
            assert any(argument.endswith(",sleep=on") for argument in raw["emulator"]["argv"]), name


ACCELERATED = (file_access.boards_folder() / "corstone-300.toml").read_text()


def test_an_accelerator_is_told_as_users_do(tmp_path: Path) -> None:
    assert load_board("corstone-300").target.npu == "ethos-u55-128,memory=Shared_Sram"
    assert not load_board("mps3-an547").target.npu
    path = tmp_path / "mine.toml"
    path.write_text(ACCELERATED.replace('memory = "Shared_Sram"', 'system = "S"'))
    board = load_board(path)
    assert board.target.npu == "ethos-u55-128,system=S" and board.npu_constants == "ddr"


@pytest.mark.parametrize(
    ("old", "new", "key", "start"),
    [
        ('"ethos-u55-128"', '"ethos-u85-128"', "npu.accelerator", "accelerator"),
        ("irq = 56", "irq = 480", "npu.irq", "irq = 480"),
        ("privileged = true\n", "", "'privileged' is a required property", "[npu]"),
        ('constants = "ddr"', 'constants = "itcm"', "got region 'itcm', expected a flash region", "constants"),
        ('constants = "ddr"', 'constants = "isram"', "got region 'isram', expected a flash region", "constants"),
        ('cpu = "cortex-m55"', 'cpu = "rv32imac"', "[npu] requires a Cortex-M board", "[npu]"),
    ],
)
def test_mistakes_about_an_accelerator(tmp_path: Path, old: str, new: str, key: str, start: str) -> None:
    assert old in ACCELERATED
    text = ACCELERATED.replace(old, new)
    error = wrong(tmp_path, text)
    assert key in error.what and error.where == f"{tmp_path / 'mine.toml'}:{line_of(text, start)}"


# fmt: off
OPTIONS = (
    "$(shell touch ran)", "-D`touch ran`", "-DA=$(B)", "-mthumb;touch ran", "-mthumb\n\ttouch ran", "-DA\n", "-DA\\", "-DA#",
    '-DA="b"', "-DA='b'", "@flags", "-wrapper", "touch,ran", "-B.", "-fplugin=evil.so", "-fplugin=/tmp/evil", "-o", "main.c",
    "-include", "/etc/passwd", "-I/usr/include", "-Wa,-alh=list", "-Wp,-MD,list", "-specs=/tmp/evil.specs",
    "--specs=../evil.specs", "-Wl,--gc-sections", "-fdump-tree-all=out", "-MFout", "-xassembler",
)
LINKER = (
    "-Wl,--plugin,evil.so", "-Wl,-plugin=evil.so", "-Wl,-Map=out", "-Wl,-T,evil.ld", "-Wl,@flags", "-Tevil.ld", "evil.o",
    "-Wl,-o,out", "-L/tmp", "$(shell touch ran)", "-Wl,--gc-sections\n",
)
# fmt: on
PREFIXES = ("./", "/tmp/", "@", "+", "-", "a b", "$(x)", "x\n", "touch ran;")
SOURCES = ("/etc/passwd", "../../README.md", "ports/../x.c", "ports/a b.c")


@pytest.mark.parametrize(
    ("old", "bad", "key"),
    [
        *(('"-mthumb"', bad, "build.c_flags.1") for bad in OPTIONS),
        *(('"-Wl,--gc-sections"', bad, "build.ld_flags.2") for bad in LINKER),
        *(('"arm-none-eabi-"', bad, "build.prefix") for bad in PREFIXES),
        *(('"ports/systick.c"', bad, "build.sources") for bad in SOURCES),
        ('name = "code"', "code\n", "memory.0.name"),
        ('name = "code"', "code : { *(.x) }", "memory.0.name"),
        ('"-nodefaults"', "a\u0001b", "emulator.argv"),
    ],
)
def test_what_a_board_may_not_say(tmp_path: Path, old: str, bad: str, key: str) -> None:
    """Options name no file and no program, words stay words for make and a shell; what else there is, is refused by its key."""
    assert old in GOOD
    start = old.partition("= ")[0] + "= " if "= " in old else ""
    error = wrong(tmp_path, GOOD.replace(old, start + json.dumps(bad), 1))
    assert key in error.what and "mine.toml" in error.where


@pytest.mark.parametrize(
    "setting",
    ["CONFIG_A=y\nrun", "CONFIG_A=$(shell x)", "A=y", 'CONFIG_A="b" c', "CONFIG_A=`b`", "# CONFIG_A is not set\n"],
)
def test_what_a_framework_may_not_be_told(tmp_path: Path, setting: str) -> None:
    text = (file_access.boards_folder() / "esp32-s3.toml").read_text()
    error = wrong(tmp_path, text.replace('"CONFIG_ESPTOOLPY_FLASHSIZE_4MB=y"', json.dumps(setting)))
    assert "framework.settings" in error.what


def test_not_toml(tmp_path: Path) -> None:
    assert "line 2" in wrong(tmp_path, "title = 'x'\ncpu = = 3\n").what
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        load_board(tmp_path / "bytes.toml")


def test_a_microcontroller_needs_memory(tmp_path: Path) -> None:
    before, _, rest = GOOD.partition("[[memory]]")
    assert "flash and a RAM region" in wrong(tmp_path, before + rest[rest.index("[link]") :]).what


def test_slots_lie_in_the_flash(tmp_path: Path) -> None:
    text = (file_access.boards_folder() / "microbit.toml").read_text()
    for base, said in (("0x2_0000", "inside of a flash region"), ("0x1_0020", "at a multiple of 64")):
        path = tmp_path / "mine.toml"
        path.write_text(text.replace("base = 0x1_0000", f"base = {base}"))
        with pytest.raises(UsageError, match=said) as caught:
            load_board(path)
        assert caught.value.where.startswith(f"{path}:")
    board = load_board("microbit")
    assert "LENGTH = 0x10000" in linker_script(board, loaded_code="networks") and "LENGTH = 0x40000" in linker_script(
        board
    )
    assert "#define MICROC_SLOTS_BASE 0x00010000u" in render_board_header(board, loaded_code="networks")
    assert "SLOTS" not in render_board_header(board)


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize(("used", "left"), [(0x800, 0x824), (0xFC0, 0x64), (0xFE4, 0x24), (0x1004, 0), (0x1024, 0)])
def test_a_full_memory_has_no_region(used: int, left: int, tmp_path: Path) -> None:
    """The region of loaded code is what RAM has left: nothing where its alignment passes the end, and never 4 GB."""
    text = GOOD.replace("stack_bytes = 8192", "stack_bytes = 256")
    (tmp_path / "mine.toml").write_text(text.replace("size = 0x40_0000 # ZBT SSRAM 2 and 3", "size = 0x1124"))
    (tmp_path / "mine.ld").write_text(linker_script(load_board(tmp_path / "mine.toml"), loaded_code="networks"))
    (tmp_path / "mine.c").write_text(f"char used[{used}]; void Reset_Handler(void) {{ used[0] = 1; }}")
    files: list[str | Path] = [tmp_path / "mine.c", "-T", tmp_path / "mine.ld", "-o", tmp_path / "mine.elf"]
    subprocess.run(["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-nostdlib", *files], check=True, timeout=60)
    said = subprocess.run(["arm-none-eabi-nm", tmp_path / "mine.elf"], check=True, capture_output=True, text=True)
    at = {name: int(value, 16) for value, _, name in map(str.split, said.stdout.splitlines())}
    assert at["__region_end"] - at["__region_start"] == left and at["__region_start"] % 64 == 0


def test_linker_script(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        GOOD.replace(
            "[link]", '[[memory]]\nname = "psram"\nkind = "ram"\norigin = 0x21000000\nsize = 0x100000\n\n[link]'
        )
    )
    text = linker_script(load_board(path))
    assert "code (rx) : ORIGIN = 0x00000000, LENGTH = 0x400000" in text
    assert "data (rw) : ORIGIN = 0x20000000, LENGTH = 0x400000" in text
    assert "  .psram (NOLOAD) :" in text
    assert "} > psram" in text
    assert "{{" not in text


def test_board_header() -> None:
    text = render_board_header(load_board("netduinoplus2"))
    for line in (
        "MICROC_PORT_TICK_HZ 1000000000u",
        "MICROC_CONSOLE_BASE 0x40011000u",
        "MICROC_CONSOLE_IRQ 37u",
        "MICROC_CONSOLE_BAUD 115200u",
        "MICROC_TIMER_BASE 0x40000000u",
    ):
        assert f"#define {line}\n" in text
    assert "MICROC_CONSOLE" not in render_board_header(load_board("host"))


def test_memories_for_tensors() -> None:
    """Boards with one have none to choose from; the memory with the stack comes first."""
    assert load_board("mps2-an386").memories == () and load_board("host").memories == ()
    found = load_board("nucleo-h743zi").memories
    assert [(m.name, m.size, m.wait_states > 0, m.cached) for m in found] == [
        ("axi_sram", 512 << 10, True, True),
        ("dtcm", 128 << 10, False, False),
    ]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('kind = "flash"', 'kind = "flash"\nholds = ["tensors"]', "cannot hold tensors"),
        ('name = "data"', 'name = "register"\nholds = ["tensors"]', "a reserved word of C"),
        ('kind = "ram"', 'kind = "ram"\nholds = ["stack"]', "memory.1.holds.0"),
        ('kind = "ram"', 'kind = "ram"\nfetch = { wait_states = 2 }', "fetch applies to flash"),
        ('kind = "flash"', 'kind = "flash"\nfetch = { wait_states = -2 }', "memory.0.fetch.wait_states"),
        ('kind = "flash"', 'kind = "flash"\nholds = ["code"]', "cannot hold code"),
        (
            "[link]",
            '[[memory]]\nname = "far"\nkind = "ram"\norigin = 0x21000000\nsize = 64\nholds = ["weights"]\n\n[link]',
            "only weights",
        ),
        ('kind = "ram"', 'kind = "ram"\ncached = 1', "memory.1.cached"),
        ('kind = "ram"', 'kind = "ram"\nholds = ["constants"]', "cannot hold constants"),
        ('kind = "flash"', 'kind = "flash"\nholds = ["constants", "code"]', "cannot hold code"),
    ],
)
def test_mistakes_about_memories(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert what in wrong(tmp_path, GOOD.replace(old, new, 1)).what


def test_flash_for_constants() -> None:
    """The first flash is for them on every board; the region with the code is known."""
    assert load_board("host").flash_memories == ()
    assert load_board("mps2-an386").flash_memories == (FlashMemory("code", 4 << 20, code=True),)
    assert load_board("stm32f746g-disco").flash_memories == (
        FlashMemory("flash", 1 << 20, 5 / 32, code=True),
        FlashMemory("qspi", 16 << 20, 176 / 32, cached=True),
    )
    assert [m.code for m in load_board("d1-mini").flash_memories] == [False]


def test_code_lies_in_one_memory(tmp_path: Path) -> None:
    """Which waits by its own numbers, behind the cache of the flash where it is cached; of chips with one space of addresses."""
    assert load_board("mps2-an386").code_memory is None and load_board("host").code_memory is None
    teensy, pico = load_board("teensy41").code_memory, load_board("raspberry-pi-pico").code_memory
    assert teensy == CodeMemory("ocram", 512 << 10, Fetching(30, 32, 32 << 10), Fetching(420, 32, 32 << 10))
    assert pico == CodeMemory("sram", 264 << 10, Fetching(), Fetching(384, 8, 16 << 10), main=True)
    assert load_board("raspberry-pi-pico").memories == ()
    apart = '[[memory]]\nname = "itcm"\nkind = "ram"\norigin = 0x21000000\nsize = 64\nholds = ["code"]\n\n[link]'
    both = GOOD.replace('kind = "ram"', 'kind = "ram"\nholds = ["code"]', 1).replace("[link]", apart, 1)
    assert "'data' and 'itcm' both hold code" in wrong(tmp_path, both).what
    esp = (
        (file_access.boards_folder() / "esp32-c3.toml")
        .read_text()
        .replace('kind = "ram"', 'kind = "ram"\nholds = ["code"]', 1)
    )
    assert "separate addresses" in wrong(tmp_path, esp).what


def test_a_framework_places_what_is_in_ram(tmp_path: Path) -> None:
    """Tensors are not beside its own data; external RAM is a region of its own, and flash has no constants of a region."""
    text = (file_access.boards_folder() / "esp32-s3.toml").read_text()
    flash = text.replace('kind = "flash"', 'kind = "flash"\nholds = ["constants"]', 1)
    for holds in ('["tensors", "code"]', '["tensors"]'):
        assert "holds is not supported on this board" in wrong(tmp_path, text.replace('["code"]', holds)).what
    assert "holds is not supported on this board" in wrong(tmp_path, flash).what
    external = load_board("esp32-wrover").memories
    assert [(m.name, m.cached) for m in external] == [("sram", False), ("psram", True)]
