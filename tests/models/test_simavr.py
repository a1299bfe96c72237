# SPDX-License-Identifier: Apache-2.0
"""Networks in simavr's own program, without our runtime: the host's bits, from weights in flash, and cycles that repeat."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.isa.small_families import AVR
from tests.device.smoke import needs
from tests.support.corpus import models

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
MAIN = """
#include "model.h"
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>

static uint64_t arena[({upper}_ARENA_SIZE + 7) / 8 + 1];
static volatile uint16_t overflows;
ISR(TIMER1_OVF_vect) {{ overflows++; }}

static void put(char letter)
{{
    while (!(UCSR0A & (1 << UDRE0))) {{
    }}
    UDR0 = (uint8_t)letter;
}}

static void hex(uint8_t byte)
{{
    put("0123456789abcdef"[byte >> 4]);
    put("0123456789abcdef"[byte & 15]);
}}

int main(void)
{{
    int8_t *input = {name}_{input}(arena);
    int8_t *output = {name}_{output}(arena);
    const struct {name}_inputs inputs = {{ .{input} = input }};
    const struct {name}_outputs outputs = {{ .{output} = output }};
    UBRR0 = 1;
    UCSR0B = 1 << TXEN0;
    TIMSK1 = 1 << TOIE1;
    sei();
    for (uint8_t round = 0; round < {rounds}; ++round) {{
        for (uint16_t i = 0; i < {upper}_{input_macro}_SIZE; ++i) {{
            input[i] = (int8_t)(i * 37 + round / 2 * 91);
        }}
        overflows = 0;
        TCNT1 = 0;
        TCCR1B = 1 << CS10;
        {name}_run(arena, &inputs, &outputs);
        uint16_t low = TCNT1;
        TCCR1B = 0;
        put('>');
        hex((uint8_t)(overflows >> 8));
        hex((uint8_t)overflows);
        hex((uint8_t)(low >> 8));
        hex((uint8_t)low);
        for (uint16_t i = 0; i < {upper}_{output_macro}_SIZE; ++i) {{
            hex((uint8_t)output[i]);
        }}
        put('\\n');
    }}
    cli();
    sleep_enable();
    sleep_cpu();
    return 0;
}}
"""
ROUNDS = 6


@pytest.mark.cross
@pytest.mark.emulator
@needs("avr-gcc", "simavr")
@pytest.mark.parametrize("path", [DIGITS, *models("tflm_hello_world_int8*")], ids=lambda p: p.stem)
@pytest.mark.parametrize("options", [AVR.options["balanced"], AVR.options["speed"]])
def test_simavr_equals_the_host(path: Path, options: str, tmp_path: Path) -> None:
    program = microc.compile(path, board="arduino-mega")
    module = program.module
    for name, text in program.files().items():
        if name.startswith("model"):
            (tmp_path / name).write_text(str(text))
    names = {"input": module.inputs[0], "output": module.outputs[0]}
    macros = {f"{key}_macro": value.upper() for key, value in names.items()}
    main = MAIN.format(name=module.name, upper=module.name.upper(), rounds=ROUNDS, **names, **macros)
    (tmp_path / "main.c").write_text(main)
    sources = ["main.c", "model.c", "model_data.c"]
    argv = ["avr-gcc", "-mmcu=atmega2560", "-std=gnu99", "-fwrapv", *options.split(), *sources, "-o", "x.elf"]
    subprocess.run(argv, cwd=tmp_path, check=True)
    done = subprocess.run(
        ["simavr", "-m", "atmega2560", "-f", "16000000", "x.elf"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.findall(r">([0-9a-f]{8})([0-9a-f]+)", done.stdout + done.stderr)
    library = program.library()
    shape = module.values[module.inputs[0]].shape
    assert len(found) == ROUNDS
    for number, (_, result) in enumerate(found):
        data = (np.arange(np.prod(shape)) * 37 + number // 2 * 91).astype(np.int8).reshape(shape)
        assert bytes.fromhex(result) == np.asarray(library(data)).tobytes()
    ticks = [int(count, 16) for count, _ in found]
    assert ticks[0] > 10_000
    for first, again in zip(
        ticks[::2], ticks[1::2], strict=True
    ):  # an overflow may be served in the one, just not in the other
        assert abs(first - again) < 100
