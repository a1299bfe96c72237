// SPDX-License-Identifier: Apache-2.0
/*
 * An RP2040 in rp2040js, an emulator from npm, with its UART 0 on standard input and output:
 *
 *     node rp2040_console.cjs PACKAGE FIRMWARE.elf
 *
 * PACKAGE: the folder of the npm package. There is no boot ROM: stack pointer and entry are those of the vector table behind
 * the second boot stage. The emulator counts the cycles of each instruction; its flash answers in one cycle, as the chip's
 * cache does when it hits. rp2040_cores.cjs adds the second core. The program ends with its input.
 */
'use strict';

const fs = require('fs');
const path = require('path');
const { Cores } = require('./rp2040_cores.cjs');

const FLASH = 0x10000000;
const BOOT2_BYTES = 0x100;
const PT_LOAD = 1;
/* Instructions between two visits of the event loop, which brings input and sends output: some milliseconds. */
const SLICE = 20000;
/* Milliseconds between two looks for input while the cores sleep and no timer will wake it. */
const SLEEP = 1;

function fail(message) {
  process.stderr.write(message + '\n');
  process.exit(1);
}

/* Copy the segments of an ELF file that lie in flash to `flash`, by their load addresses. */
function load(elf, flash) {
  const view = new DataView(elf.buffer, elf.byteOffset, elf.byteLength);
  if (elf.length < 52 || view.getUint32(0) !== 0x7f454c46) {
    throw new Error('no ELF file');
  }
  const headers = view.getUint32(28, true);
  const size = view.getUint16(42, true);
  const count = view.getUint16(44, true);
  for (let i = 0; i < count; i++) {
    const header = headers + i * size;
    const start = view.getUint32(header + 4, true);
    const target = view.getUint32(header + 12, true) - FLASH;
    const bytes = view.getUint32(header + 16, true);
    if (view.getUint32(header, true) === PT_LOAD && bytes !== 0 && target >= 0 && target + bytes <= flash.length) {
      flash.set(elf.subarray(start, start + bytes), target);
    }
  }
}

function run(mcu) {
  const uart = mcu.uart[0];
  const input = [];
  let taken = 0;
  let output = [];
  uart.onByte = (byte) => output.push(byte);
  const cores = new Cores(mcu);
  cores.onBreak = (k, address) => fail(`the firmware has stopped at a breakpoint, at 0x${address.toString(16)} on core ${k}`);
  process.stdin.on('data', (bytes) => input.push(...bytes));
  process.stdin.on('end', () => process.exit(0));
  process.stdout.on('error', () => process.exit(0));

  function feed() {
    while (taken < input.length && !uart.rxFIFO.full) {
      uart.feedByte(input[taken++]);
    }
    if (taken === input.length) {
      input.length = taken = 0;
    }
  }

  function slice() {
    let asleep = false;
    for (let i = 0; i < SLICE && !asleep; i++) {
      asleep = !cores.step();
      if (taken < input.length) {
        feed();
      }
    }
    if (output.length !== 0) {
      process.stdout.write(Buffer.from(output));
      output = [];
    }
    if (asleep && input.length === 0) {
      setTimeout(slice, SLEEP);
    } else {
      setImmediate(slice);
    }
  }
  slice();
}

function main(args) {
  if (args.length !== 2) {
    fail('usage: rp2040_console.cjs PACKAGE FIRMWARE.elf');
  }
  if (args[1] === '--version') {
    const { version } = JSON.parse(fs.readFileSync(path.join(args[0], 'package.json'), 'utf8'));
    process.stdout.write('rp2040js ' + version + '\n');
    return;
  }
  const { RP2040, ConsoleLogger, LogLevel } = require(args[0]);
  const mcu = new RP2040();
  mcu.logger = new ConsoleLogger(LogLevel.Error); /* what it prints below that level goes to standard output */
  try {
    load(fs.readFileSync(args[1]), mcu.flash);
  } catch (error) {
    fail(args[1] + ': ' + error.message);
  }
  mcu.core.VTOR = FLASH + BOOT2_BYTES;
  mcu.core.SP = mcu.flashView.getUint32(BOOT2_BYTES, true);
  mcu.core.PC = mcu.flashView.getUint32(BOOT2_BYTES + 4, true) & ~1;
  run(mcu);
}

main(process.argv.slice(2));
