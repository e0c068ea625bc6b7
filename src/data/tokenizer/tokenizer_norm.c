/* tokenizer_norm.c -- what is done to a text before it is cut into pieces.
 *
 * Unicode's normal forms are needed for little of a usual text: an ASCII character never changes
 * and never joins with the one before it, so only runs of other characters, with the ASCII
 * character in front of each, go through the full algorithm; the rest is copied. The algorithm is
 * utf8proc's but for one step: marks are ordered by a sort of our own, because a text with a
 * million marks on one letter would keep a simple one busy for hours. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "base/mem.h"

#include <utf8proc.h>

void ls_norm_init(ls_norm_work *work)
{
    *work = (ls_norm_work){.codes = NULL};
    ls_str_init(&work->a);
    ls_str_init(&work->b);
}

void ls_norm_release(ls_norm_work *work)
{
    ls_str_release(&work->a);
    ls_str_release(&work->b);
    ls_mem_free(work->codes);
    ls_mem_free(work->sorted);
    ls_norm_init(work);
}

static utf8proc_option_t options_of(ls_norm_kind kind)
{
    unsigned how = UTF8PROC_STABLE;

    if (kind == LS_NORM_NFKC || kind == LS_NORM_NFKD)
        how |= UTF8PROC_COMPAT;
    how |= kind == LS_NORM_NFC || kind == LS_NORM_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    return (utf8proc_option_t)how;
}

static ls_status grow(int32_t **p, size_t *cap, size_t need)
{
    if (need <= *cap)
        return LS_OK;
    size_t more = need + need / 2 + 64;
    int32_t *bigger = ls_mem_resize(*p, more * sizeof **p);
    if (!bigger)
        return LS_ENOMEM;
    *p = bigger;
    *cap = more;
    return LS_OK;
}

/* Order n marks by their class, equals as they stand: a counting sort over the 256 classes. */
static ls_status sort_marks(ls_norm_work *work, int32_t *codes, size_t n)
{
    size_t place[256] = {0}, sum = 0;
    ls_status st = grow(&work->sorted, &work->sorted_cap, n);

    if (st != LS_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        place[utf8proc_get_property(codes[i])->combining_class & 255]++;
    for (int c = 0; c < 256; c++) {
        size_t count = place[c];
        place[c] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        work->sorted[place[utf8proc_get_property(codes[i])->combining_class & 255]++] = codes[i];
    memcpy(codes, work->sorted, n * sizeof *codes);
    return LS_OK;
}

static ls_status order_marks(ls_norm_work *work, size_t n)
{
    ls_status st = LS_OK;

    for (size_t i = 0; i < n && st == LS_OK; i++) {
        size_t from = i;
        while (i < n && utf8proc_get_property(work->codes[i])->combining_class)
            i++;
        if (i - from > 1)
            st = sort_marks(work, work->codes + from, i - from);
    }
    return st;
}

/* Characters younger than Unicode 9 that have a mark's class or a decomposition. */
static bool is_younger(int32_t code)
{
    static const struct {
        int32_t first, last;
    } young[] = {{0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
                 {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
                 {0x1abf, 0x1aff},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f1, 0xa7f4},
                 {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x105c0, 0x105ff}, {0x10781, 0x107ba},
                 {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10efa, 0x10eff},
                 {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
                 {0x11380, 0x113e2}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11943},
                 {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
                 {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16100, 0x1613f},
                 {0x16d40, 0x16d7f}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e08f}, {0x1e130, 0x1e136},
                 {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
                 {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
    size_t low = 0, high = LS_COUNT(young);

    while (low < high) {
        size_t mid = (low + high) / 2;
        if (code > young[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < LS_COUNT(young) && code >= young[low].first;
}

/* Append the normal form of the n decomposed characters in work. */
static ls_status put_form(ls_norm_work *work, size_t n, utf8proc_option_t how, ls_str *out)
{
    ls_status st = order_marks(work, n);
    utf8proc_uint8_t bytes[4];

    if (st != LS_OK || n == 0)
        return st;
    utf8proc_ssize_t left = utf8proc_normalize_utf32(work->codes, (utf8proc_ssize_t)n, how);
    for (utf8proc_ssize_t i = 0; i < left; i++)
        ls_str_append_bytes(out, bytes, (size_t)utf8proc_encode_char(work->codes[i], bytes));
    return LS_OK;
}

/* Append the normal form of a run. */
static ls_status form_run(ls_norm_work *work, const unsigned char *p, size_t len,
                          utf8proc_option_t how, ls_str *out)
{
    ls_status st = LS_OK;
    size_t n = 0;

    for (size_t i = 0; i < len;) {
        int32_t code, room[32];
        int boundary = 0;
        utf8proc_ssize_t used = utf8proc_iterate(p + i, (utf8proc_ssize_t)(len - i), &code);
        if (used <= 0)
            return ls_fail(LS_EDATA, "a text is not UTF-8");
        if (is_younger(code)) { /* nothing joins over it */
            LS_TRY(st, put_form(work, n, how, out), out);
            n = 0;
            ls_str_append_bytes(out, p + i, (size_t)used);
            i += (size_t)used;
            continue;
        }
        i += (size_t)used;
        utf8proc_ssize_t m = utf8proc_decompose_char(code, room, 32, how, &boundary);
        LS_BUG_IF(m < 0 || m > 32, "U+%X has a decomposition of %lld", (unsigned)code,
                  (long long)m);
        LS_TRY(st, grow(&work->codes, &work->cap, n + (size_t)m), out);
        memcpy(work->codes + n, room, (size_t)m * sizeof *room);
        n += (size_t)m;
    }
    st = put_form(work, n, how, out);
out:
    return st;
}

/* Where the ASCII text at i ends; its last character is left to the run behind it. */
static size_t plain_end(const unsigned char *p, size_t len, size_t i)
{
    size_t from = i;

    while (i < len && p[i] < 0x80)
        i++;
    return i == len || i == from ? i : i - 1;
}

static ls_status form(ls_norm_work *work, const unsigned char *p, size_t len, ls_norm_kind kind,
                      ls_str *out)
{
    utf8proc_option_t how = options_of(kind);

    for (size_t i = 0; i < len;) {
        size_t end = plain_end(p, len, i);
        ls_str_append_bytes(out, p + i, end - i);
        i = end;
        if (i == len)
            break;
        end = i + 1;
        bool simple = kind == LS_NORM_NFC; /* below U+0300 nothing changes and nothing joins */
        for (; end < len && p[end] >= 0x80; end++)
            simple = simple && p[end] < 0xcc;
        simple = simple && p[i] < 0xcc;
        if (simple) {
            ls_str_append_bytes(out, p + i, end - i);
        } else {
            ls_status st = form_run(work, p + i, end - i, how, out);
            if (st != LS_OK)
                return st;
        }
        i = end;
    }
    return ls_str_status(out);
}

static ls_status lowercase(const unsigned char *p, size_t len, ls_str *out)
{
    for (size_t i = 0; i < len;) {
        utf8proc_uint8_t bytes[4];
        int32_t code;
        utf8proc_ssize_t n = utf8proc_iterate(p + i, (utf8proc_ssize_t)(len - i), &code);
        if (n <= 0)
            return ls_fail(LS_EDATA, "a text is not UTF-8");
        if (code == 0x130) /* the only letter whose small form has two characters */
            ls_str_append(out, "i\xcc\x87");
        else
            ls_str_append_bytes(out, bytes,
                                (size_t)utf8proc_encode_char(utf8proc_tolower(code), bytes));
        i += (size_t)n;
    }
    return ls_str_status(out);
}

static ls_status replace(const unsigned char *p, size_t len, const ls_norm_step *step, ls_str *out)
{
    size_t n = strlen(step->from), at = 0;

    while (at < len) {
        const unsigned char *hit = memmem(p + at, len - at, step->from, n);
        size_t end = hit ? (size_t)(hit - p) : len;
        ls_str_append_bytes(out, p + at, end - at);
        if (!hit)
            break;
        ls_str_append(out, step->to);
        at = end + n;
    }
    return ls_str_status(out);
}

static ls_status run_step(ls_norm_work *work, const ls_norm_step *step, const unsigned char *p,
                          size_t len, ls_str *out)
{
    switch (step->kind) {
    case LS_NORM_NFC:
    case LS_NORM_NFD:
    case LS_NORM_NFKC:
    case LS_NORM_NFKD:
        return form(work, p, len, step->kind, out);
    case LS_NORM_LOWERCASE:
        return lowercase(p, len, out);
    case LS_NORM_REPLACE:
        return replace(p, len, step, out);
    case LS_NORM_PREPEND:
        break;
    }
    if (len)
        ls_str_append(out, step->to);
    ls_str_append_bytes(out, p, len);
    return ls_str_status(out);
}

static bool all_ascii(const unsigned char *p, size_t len)
{
    uint64_t eight, any = 0;

    for (; len >= sizeof eight; p += sizeof eight, len -= sizeof eight) {
        memcpy(&eight, p, sizeof eight);
        any |= eight;
    }
    for (size_t i = 0; i < len; i++)
        any |= (uint64_t)p[i] << 56;
    return !(any & UINT64_C(0x8080808080808080));
}

ls_status ls_norm_run(ls_norm_work *work, const ls_norm_step *steps, int n, bool continues,
                      const unsigned char **text, size_t *len)
{
    for (int i = 0; i < n; i++) {
        if (steps[i].kind <= LS_NORM_NFKD && all_ascii(*text, *len))
            continue;
        if (steps[i].kind == LS_NORM_PREPEND && continues)
            continue;
        ls_str *out = *text == (const unsigned char *)work->a.p ? &work->b : &work->a;
        ls_str_clear(out);
        ls_status st = run_step(work, &steps[i], *text, *len, out);
        if (st != LS_OK)
            return st;
        *text = (const unsigned char *)out->p;
        *len = out->len;
    }
    return LS_OK;
}
