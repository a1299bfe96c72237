/* SPDX-License-Identifier: Apache-2.0 */
// The world around top.v: the program's segments into its memories, its console to standard input and output, its clock.
//
//     hazard3-sim PROGRAM.elf [WAIT]      WAIT: cycles that an access to flash waits, 0 to 15 (default 0)
//
// It ends with its standard input; exit code 2 where the program cannot be loaded, 3 where it reads or writes what is not there.
#include "Vtop.h"
#include "Vtop___024root.h"
#include "verilated.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <elf.h>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <string>
#include <unistd.h>
#include <vector>

static const uint32_t FLASH = 0x10000000, FLASH_SIZE = 0x400000, RAM = 0x20000000, RAM_SIZE = 0x82000;
static const unsigned CYCLES_PER_POLL = 2048;

[[noreturn]] static void refuse(const char *why)
{
    fprintf(stderr, "hazard3-sim: %s\n", why);
    exit(2);
}

static void put(Vtop___024root *root, uint32_t address, uint8_t byte)
{
    const unsigned shift = 8 * (address % 4);
    uint32_t *word = nullptr;
    if (address - FLASH < FLASH_SIZE)
        word = &root->top__DOT__flash[(address - FLASH) / 4];
    else if (address - RAM < RAM_SIZE)
        word = &root->top__DOT__ram[(address - RAM) / 4];
    else
        refuse("a segment lies outside of flash and RAM");
    *word = (*word & ~(0xFFu << shift)) | uint32_t(byte) << shift;
}

// Segments to where they are stored, and a jump to the entry to where the core begins.
static void load(Vtop___024root *root, const char *path)
{
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto *head = reinterpret_cast<const Elf32_Ehdr *>(data.data());
    if (data.size() < sizeof *head || std::string(data.data(), 4) != ELFMAG || head->e_ident[EI_CLASS] != ELFCLASS32 ||
        head->e_machine != EM_RISCV || head->e_phoff + uint64_t(head->e_phnum) * sizeof(Elf32_Phdr) > data.size())
        refuse("this is no program for 32-bit RISC-V");
    const auto *segments = reinterpret_cast<const Elf32_Phdr *>(data.data() + head->e_phoff);
    for (int i = 0; i < head->e_phnum; i++) {
        const Elf32_Phdr &segment = segments[i];
        if (segment.p_type != PT_LOAD)
            continue;
        if (uint64_t(segment.p_offset) + segment.p_filesz > data.size())
            refuse("the program is cut");
        for (uint32_t k = 0; k < segment.p_filesz; k++)
            put(root, segment.p_paddr + k, uint8_t(data[segment.p_offset + k]));
    }
    const uint32_t low = head->e_entry & 0xFFF;
    root->top__DOT__boot[0] = ((head->e_entry + 0x800) & 0xFFFFF000) | 0x2B7; // lui t0, %hi(entry)
    root->top__DOT__boot[1] = low << 20 | 0x28067;                            // jalr zero, %lo(entry)(t0)
}

// What has come on standard input, without waiting for it; false at its end.
static bool receive(std::deque<uint8_t> &waiting)
{
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    while (poll(&input, 1, 0) > 0) {
        uint8_t bytes[4096];
        const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
        if (count <= 0)
            return false;
        waiting.insert(waiting.end(), bytes, bytes + count);
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc > 1 && std::string(argv[1]) == "--version") {
        puts("hazard3-sim, Hazard3 " CORE);
        return 0;
    }
    if (argc < 2)
        refuse("usage: hazard3-sim PROGRAM.elf [WAIT]");
    Verilated::randReset(0);
    Vtop top;
    top.clk = 0;
    top.rst_n = 0;
    top.flash_wait = argc > 2 ? uint8_t(atoi(argv[2])) : 0;
    load(top.rootp, argv[1]);
    std::deque<uint8_t> waiting;
    for (uint64_t cycle = 0;; cycle++) {
        top.rst_n = cycle >= 4;
        top.rx_waiting = !waiting.empty();
        top.rx_data = waiting.empty() ? 0 : waiting.front();
        top.clk = 1;
        top.eval();
        top.clk = 0;
        top.eval();
        if (top.rx_take && !waiting.empty())
            waiting.pop_front();
        if (top.tx_valid)
            putchar(top.tx_data);
        if (top.bad_access) {
            fprintf(stderr, "hazard3-sim: an access to 0x%08x, where nothing is, in cycle %llu\n", top.bad_address,
                    (unsigned long long)cycle);
            return 3;
        }
        if (cycle % CYCLES_PER_POLL == 0) {
            fflush(stdout);
            if (!receive(waiting))
                return 0;
        }
    }
}
