# SPDX-License-Identifier: Apache-2.0
"""The Arduino library: fields by the specification; its sketch built by Arduino's builder with its core, and run in simavr."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.device.smoke import needs
from tests.exports.programs import export, run, said
from tests.exports.test_builds import assert_alike

HARDWARE = Path("/usr/share/arduino/hardware")
REWRITES = Path("/usr/share/arduino-builder")
"""Where Debian puts Arduino's core, and the builder's own settings."""
CATEGORIES = (
    "Display", "Communication", "Signal Input/Output", "Sensors", "Device Control", "Timing", "Data Storage",
    "Data Processing", "Other",
)  # fmt: skip
REQUIRED = ("name", "version", "author", "maintainer", "sentence", "paragraph", "category", "architectures")
MEGA = "arduino:avr:mega:cpu=atmega2560"


def test_library_properties(tmp_path: Path) -> None:
    for target, architectures in (("host", "*"), ("avr", "avr")):
        folder = export(tmp_path / target, "arduino", target=target)
        lines = (folder / "library.properties").read_text().splitlines()
        fields = dict(line.split("=", 1) for line in lines)
        assert len(lines) == len(fields) and all(fields[name].strip() for name in REQUIRED)
        assert (
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.\-]{0,62}", fields["name"])
            and fields["architectures"] == architectures
        )
        assert re.fullmatch(r"\d+\.\d+\.\d+", fields["version"]) and fields["category"] in CATEGORIES
        assert "url" not in fields and "example" not in "".join(fields.values())
        assert (folder / "src" / fields["includes"]).is_file()
        assert [p.parent.name for p in (folder / "examples").rglob("*.ino")] == ["sample"]


def build(folder: Path, sketch: Path) -> Path:
    """An ELF of the sketch for the Mega, with the libraries in ``folder``."""
    made = folder / "build"
    made.mkdir()
    settings = {
        "runtime.tools.avr-gcc.path": "/usr",
        "runtime.tools.ctags.path": "/usr/bin",
        "compiler.cpp.extra_flags": "-DDECIMAL_DIG=17",  # which Debian's core asks of float.h, and its gcc has not
    }
    run(
        folder,
        *("arduino-builder", "-compile", "-hardware", REWRITES, "-hardware", HARDWARE, "-tools", HARDWARE),
        *("-libraries", folder / "libraries", "-fqbn", MEGA, "-build-path", made, "-warnings", "all"),
        *(f"-prefs={key}={value}" for key, value in settings.items()),
        sketch,
    )
    return made / f"{sketch.name}.elf"


def printed(elf: Path, lines: int) -> list[str]:
    """The first lines that the emulated board prints."""
    argv = ["simavr", "-m", "atmega2560", "-f", "16000000", str(elf)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as emulator:
        assert emulator.stdout is not None
        try:
            found: list[str] = []
            for line in emulator.stdout:
                text = re.sub(r"\x1b\[[0-9;]*m", "", line).strip().removesuffix("..").rstrip(".")
                if not text.startswith(("Loaded", "simavr")):
                    found.append(text)
                if len(found) == lines:
                    return found
        finally:
            emulator.send_signal(signal.SIGTERM)
    raise AssertionError(f"the emulator ended after {found}")


BOTH = """
#include <digits_int8_model.h>
#include <double_model.h>
void setup()
{
    Serial.begin(115200);
    Serial.println(digits_int8_run(0, 0, 0) + double_run(0, 0, 0));
}
void loop() {}
"""


@needs("arduino-builder", "avr-gcc", "simavr")
@pytest.mark.skipif(not HARDWARE.is_dir(), reason="needs Debian's arduino-core-avr")
@pytest.mark.emulator
def test_on_a_mega(tmp_path: Path) -> None:
    """Two libraries side by side: each one's example, then a sketch with both; weights stay in flash."""
    for which, package in (("digits", "digits_int8_model"), ("awkward", "double_model")):
        library = export(tmp_path / "libraries" / package, "arduino", which, target="avr")
        elf = build(tmp_path, library / "examples" / "sample" / "sample.ino")
        outputs = said(which, turns=2).splitlines()
        found = printed(elf, len(outputs) + 2)
        times = [line for line in found if re.fullmatch(r"\d+ microseconds", line)]
        assert len(times) == 2 and found[-1] == times[-1]
        assert_alike([line for line in found if line not in times], outputs)
        (data,) = re.findall(r"^\.data +(\d+)", run(tmp_path, "avr-size", "-A", elf), re.M)
        assert int(data) < 256, "weights are copied to RAM"
        (tmp_path / "build").rename(tmp_path / which)
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "both.ino").write_text(BOTH)
    assert printed(build(tmp_path, tmp_path / "both" / "both.ino"), 1) == ["-2"]


@needs("g++")
@pytest.mark.parametrize("which", ["awkward", "kinds"])
def test_the_sketch_is_cpp_for_any_board(tmp_path: Path, which: str) -> None:
    """The sketch with a stand-in for Arduino's core, on this computer."""
    folder = export(tmp_path / "net", "arduino", which, io_in_arena=False)
    (tmp_path / "Arduino.h").write_text(CORE)
    sketch = folder / "examples" / "sample" / "sample.ino"
    (tmp_path / "main.cpp").write_text(
        f'#include <Arduino.h>\n#include "{sketch}"\nint main() {{ setup(); loop(); }}\n'
    )
    run(tmp_path, "gcc", "-c", *sorted((folder / "src").glob("*.c")))
    flags = ("-std=gnu++11", "-Wall", "-Wextra", "-Werror", "-I.", f"-I{folder}/src")
    run(tmp_path, "g++", *flags, "main.cpp", *sorted(tmp_path.glob("*.o")), "-lm", "-o", "main")
    lines = run(tmp_path, "./main").splitlines()
    assert_alike(lines[:-1], said(which, turns=1).splitlines())


CORE = """
#pragma once
#include <stdint.h>
#include <stdio.h>
#define F(text) text
static struct {
    void begin(long) {}
    void print(const char *text) { printf("%s", text); }
    void print(char letter) { printf("%c", letter); }
    void print(long number) { printf("%ld", number); }
    void print(unsigned long number) { printf("%lu", number); }
    void print(double number, int places) { printf("%.*f", places, number); }
    void println(const char *text = "") { printf("%s\\n", text); }
} Serial;
static unsigned long micros() { return 7; }
static void delay(unsigned long) {}
"""
