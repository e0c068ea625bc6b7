/* wire_codec.c -- little-endian, byte by byte, so that no alignment is assumed.
 *
 * A count is written 7 bits at a time, the lowest first; a set top bit says that more follow: 5 is
 * 05, 300 is ac 02. */
#include "cluster/member/wire_codec.h"

void ls_wire_codec_put(ls_str *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        ls_str_append_char(out, (char)(value >> 8 * i & 0xff));
}

void ls_wire_codec_put_text(ls_str *out, const char *text)
{
    size_t n = strlen(text);

    n = n > UINT16_MAX ? UINT16_MAX : n;
    ls_wire_codec_put(out, n, 2);
    ls_str_append_bytes(out, text, n);
}

void ls_wire_codec_put_line(ls_str *out, const char *text, size_t cap)
{
    size_t n = strlen(text);

    n = n < cap ? n : cap - 1;
    ls_wire_codec_put(out, n, 2);
    for (size_t i = 0; i < n; i++)
        ls_str_append_char(out, (unsigned char)text[i] < ' ' || text[i] == 127 ? ' ' : text[i]);
}

/* Seven bits a byte, the lowest first; the top bit says that more follow. */
void ls_wire_codec_put_count(ls_str *out, uint32_t value)
{
    for (; value > 127; value >>= 7)
        ls_str_append_char(out, (char)((value & 127) | 128));
    ls_str_append_char(out, (char)value);
}

uint32_t ls_wire_codec_get_count(ls_wire_codec *in)
{
    uint64_t value = 0, byte = 128;

    for (int shift = 0; byte > 127 && shift < 35; shift += 7) {
        byte = ls_wire_codec_get(in, 1);
        value |= (byte & 127) << shift;
    }
    in->bad |= byte > 127 || value > UINT32_MAX;
    return in->bad ? 0 : (uint32_t)value;
}

uint64_t ls_wire_codec_get(ls_wire_codec *in, int bytes)
{
    uint64_t value = 0;

    if (in->bad || in->left < (size_t)bytes) {
        in->bad = true;
        return 0;
    }
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)in->at[i] << 8 * i;
    in->at += bytes;
    in->left -= (size_t)bytes;
    return value;
}

void ls_wire_codec_get_text(ls_wire_codec *in, char *text_out, size_t cap)
{
    size_t n = (size_t)ls_wire_codec_get(in, 2);

    text_out[0] = '\0';
    in->bad |= n >= cap;
    const uint8_t *text = ls_wire_codec_get_bytes(in, n);
    for (size_t i = 0; i < n && text; i++)
        in->bad |= text[i] < ' ' || text[i] == 127; /* they end up on terminals */
    if (in->bad)
        return;
    memcpy(text_out, text, n);
    text_out[n] = '\0';
}

const void *ls_wire_codec_get_bytes(ls_wire_codec *in, size_t len)
{
    const void *bytes = in->at;

    in->bad |= len > in->left;
    if (in->bad)
        return NULL;
    in->at += len;
    in->left -= len;
    return bytes;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low bytes of a number come first");

void ls_wire_codec_put_fields(ls_str *out, const void *from, const ls_wire_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const ls_wire_field *f = &fields[i];
        const char *at = (const char *)from + f->at;
        uint64_t value = 0;
        if (f->bytes == 0) {
            ls_wire_codec_put_line(out, at, f->size);
            continue;
        }
        memcpy(&value, at, f->size);
        ls_wire_codec_put(out, value, f->bytes);
    }
}

void ls_wire_codec_get_fields(ls_wire_codec *in, void *to_out, const ls_wire_field *fields,
                              size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const ls_wire_field *f = &fields[i];
        char *at = (char *)to_out + f->at;
        if (f->bytes == 0) {
            ls_wire_codec_get_text(in, at, f->size);
            continue;
        }
        uint64_t value = ls_wire_codec_get(in, f->bytes);
        if (f->size == 1) /* a bool must be 0 or 1, whatever came */
            value = value != 0;
        memcpy(at, &value, f->size);
    }
}

const ls_wire_field ls_wire_codec_record[LS_WIRE_RECORD] = {
    LS_WIRE_NUMBER(ls_err_record, code, 2), LS_WIRE_TEXT(ls_err_record, text),
    LS_WIRE_TEXT(ls_err_record, hint), LS_WIRE_TEXT(ls_err_record, doing)};

bool ls_wire_codec_done(const ls_wire_codec *in)
{
    return !in->bad && in->left == 0;
}
