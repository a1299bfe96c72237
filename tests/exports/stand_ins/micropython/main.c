/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a module of MicroPython without an interpreter: main ENDS... where an end is a size in bytes, `+` before it for an output. Inputs come
 * from standard input, outputs go to standard output; a raised exception is the exit code 3 with its text on standard error.
 */
#include <stdarg.h>
#include <stdio.h>

#include "py/obj.h"

const mp_obj_type_t mp_type_module = { .name = "module" }, mp_type_ValueError = { .name = "ValueError" },
                    mp_type_RuntimeError = { .name = "RuntimeError" };

void mp_raise_msg(const mp_obj_type_t *type, const char *text)
{
    fprintf(stderr, "%s: %s", type->name, text);
    exit(3);
}

void mp_raise_msg_varg(const mp_obj_type_t *type, const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    mp_raise_msg(type, text);
}

void mp_get_buffer_raise(mp_obj_t object, mp_buffer_info_t *info, mp_uint_t flags)
{
    const stand_in_buffer *buffer = object;
    if (flags == MP_BUFFER_WRITE && !buffer->writable) {
        mp_raise_msg(&mp_type_ValueError, "the buffer cannot be written");
    }
    info->buf = buffer->buf;
    info->len = buffer->len;
}

void mp_arg_check_num(size_t count, size_t keywords, size_t least, size_t most, bool takes_keywords)
{
    if (count < least || count > most || (keywords != 0 && !takes_keywords)) {
        mp_raise_msg(&mp_type_RuntimeError, "wrong number of arguments");
    }
}

static const void *member(const mp_obj_dict_t *dict, const char *key)
{
    for (size_t i = 0; i < dict->used; ++i) {
        if (strcmp(dict->table[i].key, key) == 0) {
            return dict->table[i].value;
        }
    }
    mp_raise_msg(&mp_type_RuntimeError, key);
}

int main(int count, char **words)
{
    const mp_obj_type_t *type = member(stand_in_module->globals, "MP_QSTR_Network");
    const stand_in_function *run = member(type->locals_dict, "MP_QSTR_run");
    const stand_in_function *reset = member(type->locals_dict, "MP_QSTR_reset");
    static stand_in_buffer buffers[16];
    mp_obj_t arguments[17] = { type->make_new(type, 0, 0, NULL) };
    for (int i = 1; i < count; ++i) {
        stand_in_buffer *buffer = &buffers[i];
        buffer->writable = words[i][0] == '+';
        buffer->len = strtoul(words[i], NULL, 10);
        buffer->buf = (char *)malloc(buffer->len + 1) + 1; /* at an odd address */
        arguments[i] = buffer;
        if (!buffer->writable && fread(buffer->buf, 1, buffer->len, stdin) != buffer->len) {
            return 2;
        }
    }
    if ((size_t)count < run->least || (size_t)count > run->most) {
        mp_raise_msg(&mp_type_RuntimeError, "wrong number of arguments");
    }
    (void)run->many((size_t)count, arguments);
    (void)reset->one(arguments[0]);
    (void)run->many((size_t)count, arguments);
    for (int i = 1; i < count; ++i) {
        if (buffers[i].writable) {
            fwrite(buffers[i].buf, 1, buffers[i].len, stdout);
        }
    }
    return 0;
}
