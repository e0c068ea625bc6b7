/* gguf.c -- writing GGUF files.
 *
 * Where each tensor lies is known before any of them is written, so the head goes out first and the
 * tensors follow in one pass. */
#include "hf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"

/* --- settings --------------------------------------------------------------------------------- */

static void put_number(ls_str *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        ls_str_append_char(to, (char)(value >> 8 * i & 0xff));
}

static void put_string(ls_str *to, const char *bytes, size_t len)
{
    put_number(to, len, 8);
    ls_str_append_bytes(to, bytes, len);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void begin_setting(ls_gguf_settings *s, const char *key, uint32_t kind)
{
    put_string(&s->bytes, key, strlen(key));
    put_number(&s->bytes, kind, 4);
    s->count++;
}

void ls_gguf_settings_init(ls_gguf_settings *s)
{
    ls_str_init(&s->bytes);
    s->count = 0;
}

void ls_gguf_settings_release(ls_gguf_settings *s)
{
    ls_str_release(&s->bytes);
}

void ls_gguf_put_u32(ls_gguf_settings *s, const char *key, uint32_t value)
{
    begin_setting(s, key, LS_GGUF_U32);
    put_number(&s->bytes, value, 4);
}

void ls_gguf_put_f32(ls_gguf_settings *s, const char *key, float value)
{
    begin_setting(s, key, LS_GGUF_F32);
    put_number(&s->bytes, bits_of(value), 4);
}

void ls_gguf_put_bool(ls_gguf_settings *s, const char *key, bool value)
{
    begin_setting(s, key, LS_GGUF_BOOL);
    put_number(&s->bytes, value, 1);
}

void ls_gguf_put_text(ls_gguf_settings *s, const char *key, const char *value)
{
    begin_setting(s, key, LS_GGUF_TEXT);
    put_string(&s->bytes, value, strlen(value));
}

void ls_gguf_put_array(ls_gguf_settings *s, const char *key, ls_gguf_kind kind, uint64_t count)
{
    enum { ARRAY = 9 };

    begin_setting(s, key, ARRAY);
    put_number(&s->bytes, kind, 4);
    put_number(&s->bytes, count, 8);
}

void ls_gguf_add_i32(ls_gguf_settings *s, int32_t value)
{
    put_number(&s->bytes, (uint32_t)value, 4);
}

void ls_gguf_add_f32(ls_gguf_settings *s, float value)
{
    put_number(&s->bytes, bits_of(value), 4);
}

void ls_gguf_add_text(ls_gguf_settings *s, const char *bytes, size_t len)
{
    put_string(&s->bytes, bytes, len);
}

/* --- the file --------------------------------------------------------------------------------- */

static int64_t aligned(int64_t at)
{
    return (at + LS_GGUF_ALIGN - 1) / LS_GGUF_ALIGN * LS_GGUF_ALIGN;
}

static int64_t elements(const ls_gguf_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->sizes[i];
    return n;
}

/* Everything before the first tensor; afterwards each tensor knows where it begins. Returns the
 * length of the file. */
static int64_t lay_out(const ls_gguf_settings *settings, ls_gguf_tensor *tensors, int count,
                       ls_str *head)
{
    enum { VERSION = 3 };
    int64_t at = 0;

    ls_str_append(head, "GGUF");
    put_number(head, VERSION, 4);
    put_number(head, (uint64_t)count, 8);
    put_number(head, settings->count, 8);
    ls_str_append_bytes(head, settings->bytes.p, settings->bytes.len);
    for (int i = 0; i < count; i++) {
        ls_gguf_tensor *t = &tensors[i];
        t->bytes = ls_gguf_block_bytes(t->type, elements(t));
        t->begin = at = aligned(at);
        at += t->bytes;
        put_string(head, t->name, strlen(t->name));
        put_number(head, (uint64_t)t->ndim, 4);
        for (int k = 0; k < t->ndim; k++)
            put_number(head, (uint64_t)t->sizes[k], 8);
        put_number(head, (uint64_t)t->type, 4);
        put_number(head, (uint64_t)t->begin, 8);
    }
    while (head->len % LS_GGUF_ALIGN && !head->failed)
        ls_str_append_char(head, '\0');
    for (int i = 0; i < count; i++)
        tensors[i].begin += (int64_t)head->len;
    return aligned(at) + (int64_t)head->len;
}

ls_status ls_gguf_create(ls_gguf_writer *w, const char *path, const ls_gguf_settings *settings,
                         ls_gguf_tensor *tensors, int count)
{
    ls_str head;
    ls_status st;

    *w = (ls_gguf_writer){.fd = -1, .path = path};
    ls_str_init(&head);
    LS_TRY(st, ls_str_status(&settings->bytes), out);
    w->end = lay_out(settings, tensors, count, &head);
    LS_TRY(st, ls_str_status(&head), out);
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot write \"%s\"", path);
        goto out;
    }
    int failed = posix_fallocate(w->fd, 0, w->end);
    if (failed && failed != EOPNOTSUPP && failed != EINVAL) {
        errno = failed;
        st = ls_fail_sys(LS_EIO, "cannot write %lld bytes to \"%s\"", (long long)w->end, path);
        goto out;
    }
    LS_TRY(st, ls_gguf_put(w, head.p, (int64_t)head.len), out);
out:
    ls_str_release(&head);
    if (st != LS_OK)
        ls_gguf_abandon(w);
    return st;
}

static ls_status put_zeros(ls_gguf_writer *w, int64_t up_to)
{
    static const char zeros[LS_GGUF_ALIGN];

    return ls_gguf_put(w, zeros, up_to - w->at);
}

ls_status ls_gguf_begin(ls_gguf_writer *w, const ls_gguf_tensor *t)
{
    LS_BUG_IF(t->begin < w->at || t->begin - w->at > LS_GGUF_ALIGN,
              "\"%s\" begins at %lld, the file is at %lld", t->name, (long long)t->begin,
              (long long)w->at);
    return put_zeros(w, t->begin);
}

ls_status ls_gguf_put(ls_gguf_writer *w, const void *bytes, int64_t len)
{
    LS_BUG_IF(len < 0 || len > w->end - w->at, "more bytes than \"%s\" has room for", w->path);
    ls_status st = ls_file_write_all(w->fd, bytes, (size_t)len, w->path);
    if (st == LS_OK)
        w->at += len;
    return st;
}

ls_status ls_gguf_finish(ls_gguf_writer *w)
{
    LS_BUG_IF(w->end - w->at >= LS_GGUF_ALIGN, "\"%s\" lacks %lld bytes", w->path,
              (long long)(w->end - w->at));
    ls_status st = put_zeros(w, w->end);
    if (st == LS_OK && fsync(w->fd) != 0)
        st = ls_fail_sys(LS_EIO, "cannot sync \"%s\"", w->path);
    ls_gguf_abandon(w);
    return st;
}

void ls_gguf_abandon(ls_gguf_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}
