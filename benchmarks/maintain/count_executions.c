/* SPDX-License-Identifier: Apache-2.0 */
/* QEMU TCG plugin: counts how often each instruction address is executed.
 *
 * Argument: out=FILE. At exit the plugin writes a line "<address, hexadecimal> <count>" for each executed instruction.
 * Debian's QEMU 7.2 installs no plugin header, so that the used part of its interface (version 1) is declared here. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *, enum qemu_plugin_op, void *, uint64_t);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);

int qemu_plugin_version = 1;

/* Open addressing: a firmware has some ten thousand instructions, so that the table never fills. */
#define SLOTS (1u << 20)
static struct {
    uint64_t address, count;
    int used;
} table[SLOTS];
static char out[4096];

static uint64_t *find_count(uint64_t address) {
    uint32_t slot = (uint32_t)(address / 2) % SLOTS;
    while (table[slot].used && table[slot].address != address)
        slot = (slot + 1) % SLOTS;
    table[slot].used = 1;
    table[slot].address = address;
    return &table[slot].count;
}

/* An instruction that several translation blocks contain adds to one counter. */
static void count_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        uint64_t *count = find_count(qemu_plugin_insn_vaddr(insn));
        qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64, count, 1);
    }
}

static void write_counts(qemu_plugin_id_t id, void *unused) {
    (void)id;
    (void)unused;
    FILE *file = fopen(out, "w");
    if (!file)
        return;
    for (size_t i = 0; i < SLOTS; ++i)
        if (table[i].count)
            fprintf(file, "%" PRIx64 " %" PRIu64 "\n", table[i].address, table[i].count);
    fclose(file);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) || strlen(argv[0]) - 4 >= sizeof out)
        return 1;
    strcpy(out, argv[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
    qemu_plugin_register_atexit_cb(id, write_counts, NULL);
    return 0;
}
