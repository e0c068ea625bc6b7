/* gguf_read.c -- see gguf_read.h. */
#include "hf/gguf_read.h"

#include <string.h>
#include "harness.h"
#include "hf/gguf.h"

static uint64_t number(const unsigned char *p, int bytes)
{
    uint64_t x = 0;

    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)p[i] << 8 * i;
    return x;
}

static bool is_named(const unsigned char *p, const char *name)
{
    return number(p, 8) == strlen(name) && memcmp(p + 8, name, strlen(name)) == 0;
}

static const unsigned char *behind_text(const unsigned char *p)
{
    return p + 8 + number(p, 8);
}

static const unsigned char *behind_value(const unsigned char *p, uint32_t type)
{
    if (type == LS_GGUF_TEXT)
        return behind_text(p);
    return p + (type == LS_GGUF_BOOL ? 1 : 4);
}

/* The value of a setting whose type stands at p; returns what is behind it. */
static const unsigned char *read_value(const unsigned char *p, gguf_found *found)
{
    *found = (gguf_found){.type = (uint32_t)number(p, 4), .bytes = p + 4};
    p += 4;
    if (found->type != 9)
        return behind_value(p, found->type);
    found->type = (uint32_t)number(p, 4);
    found->count = number(p + 4, 8);
    found->bytes = p += 12;
    for (uint64_t i = 0; i < found->count; i++)
        p = behind_value(p, found->type);
    return p;
}

static const unsigned char *read_tensor(const unsigned char *p, gguf_found *found)
{
    uint64_t n = 1;

    *found = (gguf_found){.ndim = (int)number(p, 4)};
    p += 4;
    for (int i = 0; i < found->ndim; i++, p += 8)
        n *= (uint64_t)(found->sizes[i] = (int64_t)number(p, 8));
    found->type = (uint32_t)number(p, 4);
    found->count = n;
    return p + 12;
}

void gguf_read_open(gguf_read *f, const char *path)
{
    gguf_found found;
    const unsigned char *p;

    LS_CHECK_OK(ls_file_map_open(&f->map, path));
    LS_CHECK(memcmp(f->map.bytes, "GGUF\3\0\0\0", 8) == 0);
    f->n_tensors = number(f->map.bytes + 8, 8);
    f->n_settings = number(f->map.bytes + 16, 8);
    f->settings = p = f->map.bytes + 24;
    for (uint64_t i = 0; i < f->n_settings; i++)
        p = read_value(behind_text(p), &found);
    f->tensors = p;
    for (uint64_t i = 0; i < f->n_tensors; i++)
        p = read_tensor(behind_text(p), &found);
    f->data = f->map.bytes + (p - f->map.bytes + LS_GGUF_ALIGN - 1) / LS_GGUF_ALIGN * LS_GGUF_ALIGN;
    LS_CHECK_EQ(f->map.len % LS_GGUF_ALIGN, 0);
}

void gguf_read_close(gguf_read *f)
{
    ls_file_map_close(&f->map);
}

bool gguf_read_setting(const gguf_read *f, const char *key, gguf_found *found)
{
    const unsigned char *p = f->settings;

    for (uint64_t i = 0; i < f->n_settings; i++) {
        bool it = is_named(p, key);
        p = read_value(behind_text(p), found);
        if (it)
            return true;
    }
    return false;
}

bool gguf_read_tensor(const gguf_read *f, const char *name, gguf_found *found)
{
    const unsigned char *p = f->tensors;

    for (uint64_t i = 0; i < f->n_tensors; i++) {
        bool it = is_named(p, name);
        p = read_tensor(behind_text(p), found);
        if (!it)
            continue;
        uint64_t at = number(p - 8, 8);
        LS_CHECK_EQ(at % LS_GGUF_ALIGN, 0);
        found->bytes = f->data + at;
        LS_CHECK(found->bytes +
                     ls_gguf_block_bytes((ls_gguf_type)found->type, (int64_t)found->count) <=
                 f->map.bytes + f->map.len);
        return true;
    }
    return false;
}

uint32_t gguf_read_u32(const gguf_read *f, const char *key)
{
    gguf_found found = {.type = 0};

    LS_CHECK(gguf_read_setting(f, key, &found) && found.type == LS_GGUF_U32);
    return (uint32_t)number(found.bytes, 4);
}

float gguf_read_f32(const gguf_read *f, const char *key)
{
    gguf_found found = {.type = 0};
    float x;

    LS_CHECK(gguf_read_setting(f, key, &found) && found.type == LS_GGUF_F32);
    memcpy(&x, found.bytes, sizeof x);
    return x;
}

void gguf_read_text(const gguf_read *f, const char *key, char *out, size_t cap)
{
    gguf_found found = {.type = 0};

    LS_CHECK(gguf_read_setting(f, key, &found) && found.type == LS_GGUF_TEXT);
    snprintf(out, cap, "%.*s", (int)number(found.bytes, 8), (const char *)found.bytes + 8);
}

void gguf_read_nth(const gguf_found *array, uint64_t i, char *out, size_t cap)
{
    const unsigned char *p = array->bytes;

    LS_CHECK(i < array->count);
    while (i--)
        p = behind_text(p);
    snprintf(out, cap, "%.*s", (int)number(p, 8), (const char *)p + 8);
}
