/* SPDX-License-Identifier: Apache-2.0 */
/* QEMU TCG plugin: counts how often each instruction is executed between calls of one function.
 *
 * Arguments: out=FILE, mark=ADDRESS (hexadecimal). At every entry of the function at ADDRESS, the plugin appends to FILE a line
 * "<address, hexadecimal> <count>" for each instruction that was executed since the entry before, and an empty line. An
 * instruction that several translation blocks contain has several lines.
 *
 * Debian's QEMU 7.2 installs no plugin header, so that the used part of its interface is declared here. It is the same in all
 * versions of QEMU but for its number: PLUGIN_INTERFACE is 1 before QEMU 9, and 2 from then on. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(
    struct qemu_plugin_tb *, void (*)(unsigned int, void *), enum qemu_plugin_cb_flags, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);

int qemu_plugin_version = PLUGIN_INTERFACE;

/* A translation block: QEMU executes all of its instructions, or none. */
struct block {
    struct block *next;
    uint64_t count;
    size_t length;
    uint64_t addresses[];
};

static struct block *blocks;
static FILE *file;
static uint64_t mark;

static void write_counts(void)
{
    for (struct block *block = blocks; block; block = block->next) {
        for (size_t i = 0; block->count && i < block->length; ++i) {
            fprintf(file, "%" PRIx64 " %" PRIu64 "\n", block->addresses[i], block->count);
        }
        block->count = 0;
    }
    fputc('\n', file);
    fflush(file);
}

static void count_block(unsigned int cpu, void *data)
{
    struct block *block = data;
    (void)cpu;
    /* A call ends a translation block, so that a function that is entered begins one. */
    if (block->addresses[0] == mark) {
        write_counts();
    }
    ++block->count;
}

static void add_block(qemu_plugin_id_t id, struct qemu_plugin_tb *translated)
{
    size_t length = qemu_plugin_tb_n_insns(translated);
    struct block *block = calloc(1, sizeof *block + length * sizeof block->addresses[0]);
    (void)id;
    if (!block) {
        abort(); /* counts would be wrong */
    }
    block->length = length;
    for (size_t i = 0; i < length; ++i) {
        block->addresses[i] = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(translated, i));
    }
    block->next = blocks;
    blocks = block;
    qemu_plugin_register_vcpu_tb_exec_cb(translated, count_block, QEMU_PLUGIN_CB_NO_REGS, block);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    (void)info;
    if (argc != 2 || strncmp(argv[0], "out=", 4) || strncmp(argv[1], "mark=", 5)) {
        return 1;
    }
    mark = strtoull(argv[1] + 5, NULL, 16);
    file = fopen(argv[0] + 4, "w");
    if (!file) {
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, add_block);
    return 0;
}
