// SPDX-License-Identifier: Apache-2.0
/*
 * The second core of an RP2040 in rp2040js, which has the first one alone.
 *
 * Core 1 sees the chip through an object that inherits from it all but what each core has for itself: interrupt controller,
 * SysTick, and of SIO its number, its mailbox FIFO, divider and interpolators. GPIO and spinlocks are those of core 0. WFE and
 * SEV connect the cores. They run in the order of their cycles, one instruction at a time, so that the same input at the same
 * cycles gives the same run. Both have their memory in the same cycle: waits for a bank that the other core reads
 * are not counted, nor misses of the flash's cache.
 *
 * Source: RP2040 datasheet, 2.3.1 (SIO), 2.8.2 (core 1's wait in the boot ROM), 2.13 (power-on state machine);
 * pico-sdk, pico_multicore/multicore.c (the boot ROM's zero after a reset).
 */
'use strict';

/* SIO, by offset. */
const CPUID = 0x000;
const GPIO_END = 0x050;
const FIFO_ST = 0x050;
const FIFO_WR = 0x054;
const FIFO_RD = 0x058;
const SPINLOCK_ST = 0x05c;
const SPINLOCKS = 0x100;
const FIFO_WORDS = 8;
/* Bits of FIFO_ST; the last two stay until they are written. */
const VALID = 1;
const READY = 2;
const WRITTEN_WHEN_FULL = 4;
const READ_WHEN_EMPTY = 8;
const SIO_IRQ = 15; /* of core 0; core 1 has the next one */

/* Power-on state machine. */
const PSM_PAGE = 0x40010;
const FRCE_OFF = 0x04;
const PROC1 = 1 << 16;

const WFE = 0xbf20;
const SEV = 0xbf40;

class Mailbox {
  constructor() {
    this.words = []; /* to be read by the core that owns it */
    this.errors = 0;
  }
}

class Cores {
  /* Add the second core to `mcu`, an RP2040 of rp2040js that holds its image and whose core 0 is at its entry. */
  constructor(mcu) {
    this.mcu = mcu;
    this.onBreak = () => {};
    this.chips = [mcu, Object.create(mcu)];
    this.mailboxes = [new Mailbox(), new Mailbox()];
    /* Cycles since reset: of the clock, and when each core is ready for its next instruction. */
    this.now = 0;
    this.ready = [0, 0];
    this.waitsForEvent = [false, false];
    this.running = false; /* core 1, else it is in the boot ROM or off */
    this.off = false;
    this.launch = [];
    const [chip0, chip1] = this.chips;
    chip1.sio = new chip0.sio.constructor(chip1);
    this.#connectSio(chip0.sio, 0);
    this.#connectSio(chip1.sio, 1);
    chip1.core = new chip0.core.constructor(chip1);
    chip1.ppb = new chip0.ppb.constructor(chip1, 'PPB1');
    chip0.addClockListener?.((hz) => {
      chip1.ppb.systickTimer.frequency = hz;
    });
    chip0.setInterrupt = (irq, level) => this.chips.forEach((chip) => chip.core.setInterrupt(irq, level));
    this.chips.forEach((chip, k) => {
      chip.onBreak = () => this.onBreak(k, chip.core.PC);
    });
    const psm = chip0.peripherals[PSM_PAGE];
    const writePsm = psm.writeUint32.bind(psm);
    psm.writeUint32 = (offset, value) => {
      writePsm(offset, value);
      if (offset === FRCE_OFF) {
        this.#setPower((value & PROC1) === 0);
      }
    };
    this.#connectEvents(0);
    this.#boot();
  }

  /* Run the instruction whose time is next. If both cores sleep, go on to the next alarm of a timer; return false if that wakes
   * none. */
  step() {
    const { clock, clkSys } = this.mcu;
    const [core0, core1] = [this.chips[0].core, this.chips[1].core];
    const time0 = core0.waiting ? Infinity : Math.max(this.ready[0], this.now);
    const time1 = !this.running || core1.waiting ? Infinity : Math.max(this.ready[1], this.now);
    const k = time1 < time0 ? 1 : 0;
    const time = k === 1 ? time1 : time0;
    if (time === Infinity) {
      this.#advance(Math.max(this.ready[0], this.ready[1]), clkSys); /* the last instructions of both end */
      if (core0.waiting && (!this.running || core1.waiting)) {
        clock.tick(clock.nanosToNextAlarm);
      }
      return !core0.waiting || (this.running && !core1.waiting);
    }
    this.#advance(time, clkSys);
    this.ready[k] = time + this.chips[k].core.executeInstruction();
    return true;
  }

  #advance(time, clkSys) {
    if (time > this.now) {
      const cycles = time - this.now;
      this.now = time;
      this.mcu.clock.tick((cycles * 1e9) / clkSys);
    }
  }

  /* Let core k see WFE and SEV: halfwords that are fetched at its program counter. */
  #connectEvents(k) {
    const chip = this.chips[k];
    const { core } = chip;
    core.readUint16 = (address) => {
      const halfword = chip.readUint16(address);
      if (halfword >>> 8 === 0xbf && address === core.PC) {
        this.waitsForEvent[k] = halfword === WFE;
        if (halfword === SEV) {
          this.#signal(0);
          this.#signal(1);
        }
      }
      return halfword;
    };
  }

  /* Signal an event to core k: it ends a WFE, or makes the next one end at once. */
  #signal(k) {
    const { core } = this.chips[k];
    if (core.waiting && this.waitsForEvent[k]) {
      core.waiting = false;
    } else {
      core.eventRegistered = true;
    }
  }

  #connectSio(sio, k) {
    const shared = this.mcu.sio;
    const [readOwn, writeOwn] = [sio.readUint32.bind(sio), sio.writeUint32.bind(sio)];
    const [readShared, writeShared] = [shared.readUint32.bind(shared), shared.writeUint32.bind(shared)];
    const isShared = (offset) => offset < GPIO_END || offset === SPINLOCK_ST || offset >= SPINLOCKS;
    sio.readUint32 = (offset) => {
      switch (offset) {
        case CPUID:
          return k;
        case FIFO_ST:
          return this.#fifoStatus(k);
        case FIFO_RD:
          return this.#readFifo(k);
        default:
          return isShared(offset) ? readShared(offset) : readOwn(offset);
      }
    };
    sio.writeUint32 = (offset, value) => {
      switch (offset) {
        case FIFO_ST:
          this.mailboxes[k].errors &= ~value;
          this.#updateFifoInterrupt(k);
          break;
        case FIFO_WR:
          this.#writeFifo(k, value >>> 0);
          break;
        default:
          (isShared(offset) ? writeShared : writeOwn)(offset, value);
      }
    };
  }

  #fifoStatus(k) {
    const { words, errors } = this.mailboxes[k];
    const valid = words.length !== 0 ? VALID : 0;
    const ready = this.mailboxes[1 - k].words.length < FIFO_WORDS ? READY : 0;
    return valid | ready | errors;
  }

  #readFifo(k) {
    const mailbox = this.mailboxes[k];
    if (mailbox.words.length === 0) {
      mailbox.errors |= READ_WHEN_EMPTY;
    }
    const word = mailbox.words.shift() ?? 0;
    this.#updateFifoInterrupt(k);
    return word;
  }

  /* Write a word of core k to the other core. */
  #writeFifo(k, word) {
    const { words } = this.mailboxes[1 - k];
    if (words.length === FIFO_WORDS) {
      this.mailboxes[k].errors |= WRITTEN_WHEN_FULL;
      this.#updateFifoInterrupt(k);
    } else if (k === 0 && !this.running && !this.off) {
      this.#receiveLaunch(word);
    } else {
      words.push(word);
      this.#updateFifoInterrupt(1 - k);
    }
  }

  #updateFifoInterrupt(k) {
    const level = (this.#fifoStatus(k) & (VALID | WRITTEN_WHEN_FULL | READ_WHEN_EMPTY)) !== 0;
    this.chips[k].core.setInterrupt(SIO_IRQ + k, level);
  }

  #setPower(on) {
    if (!on) {
      this.off = true;
      this.running = false;
    } else if (this.off) {
      this.off = false;
      this.#boot();
    }
  }

  /* Boot core 1: its ROM empties the mailbox, sends a zero, and waits for the words of a launch. */
  #boot() {
    const chip = this.chips[1];
    chip.core = new chip.core.constructor(chip);
    chip.ppb.reset();
    this.waitsForEvent[1] = false;
    this.#connectEvents(1);
    this.mailboxes[1] = new Mailbox();
    this.launch = [];
    this.#writeFifo(1, 0);
    this.#signal(0);
  }

  /* Take a word of core 0 as the boot ROM does: send it back, and start core 1 after 0, 0, 1, the vector table, the stack pointer
   * and the entry. */
  #receiveLaunch(word) {
    const { launch } = this;
    if (launch.length >= 3 || word === [0, 0, 1][launch.length]) {
      launch.push(word);
    } else {
      launch.length = 0;
    }
    this.#writeFifo(1, word);
    this.#signal(0);
    if (launch.length === 6) {
      const { core } = this.chips[1];
      [, , , core.VTOR, core.SP, core.PC] = launch;
      core.PC &= ~1;
      this.ready[1] = this.now;
      this.running = true;
    }
  }
}

module.exports = { Cores };
