/* SPDX-License-Identifier: Apache-2.0 */
/* Stand-ins for what a module of MicroPython uses of it: the same meaning, for a program without an interpreter. */
#ifndef STAND_IN_OBJ_H
#define STAND_IN_OBJ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void *mp_obj_t;
typedef const void *mp_const_obj_t;
typedef uintptr_t mp_uint_t;
typedef struct mp_obj_type mp_obj_type_t;
typedef struct {
    const mp_obj_type_t *type;
} mp_obj_base_t;
typedef struct {
    const char *key;
    const void *value;
} mp_rom_map_elem_t;
typedef struct {
    size_t used;
    const mp_rom_map_elem_t *table;
} mp_obj_dict_t;
typedef struct {
    mp_obj_base_t base;
    mp_obj_dict_t *globals;
} mp_obj_module_t;
struct mp_obj_type {
    mp_obj_base_t base;
    const char *name;
    mp_obj_t (*make_new)(const mp_obj_type_t *type, size_t count, size_t keywords, const mp_obj_t *arguments);
    const mp_obj_dict_t *locals_dict;
};
typedef struct {
    size_t least, most;
    mp_obj_t (*one)(mp_obj_t);
    mp_obj_t (*many)(size_t, const mp_obj_t *);
} stand_in_function;
typedef struct {
    mp_obj_base_t base;
    void *buf;
    size_t len;
    bool writable;
} stand_in_buffer;
typedef struct {
    void *buf;
    size_t len;
    int typecode;
} mp_buffer_info_t;

enum { MP_BUFFER_READ = 1, MP_BUFFER_WRITE = 2, MP_TYPE_FLAG_NONE = 0 };
extern const mp_obj_type_t mp_type_module, mp_type_ValueError, mp_type_RuntimeError;
extern const mp_obj_module_t *const stand_in_module;
void mp_get_buffer_raise(mp_obj_t object, mp_buffer_info_t *info, mp_uint_t flags);
void mp_arg_check_num(size_t count, size_t keywords, size_t least, size_t most, bool takes_keywords);
_Noreturn void mp_raise_msg(const mp_obj_type_t *type, const char *text);
_Noreturn void mp_raise_msg_varg(const mp_obj_type_t *type, const char *format, ...);

#define mp_const_none ((mp_obj_t)0)
#define m_malloc malloc
#define m_new_obj(type) ((type *)malloc(sizeof(type)))
#define MP_OBJ_FROM_PTR(p) ((mp_obj_t)(p))
#define MP_OBJ_TO_PTR(o) ((void *)(o))
#define MP_ERROR_TEXT(text) text
#define MP_ROM_QSTR(name) #name
#define MP_ROM_PTR(p) (p)
#define MP_DEFINE_CONST_FUN_OBJ_1(name, function) const stand_in_function name = { 1, 1, function, NULL }
#define MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(name, least, most, function) \
    const stand_in_function name = { least, most, NULL, function }
#define MP_DEFINE_CONST_DICT(name, members) const mp_obj_dict_t name = { sizeof members / sizeof members[0], members }
#define MP_DEFINE_CONST_OBJ_TYPE(object, qstr, flags, key, function, other_key, dict) \
    const mp_obj_type_t object = { .name = #qstr, .key = function, .other_key = (dict) }
#define MP_REGISTER_MODULE(qstr, module) const mp_obj_module_t *const stand_in_module = &(module)

#endif
