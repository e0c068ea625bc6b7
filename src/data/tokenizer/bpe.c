/* bpe.c -- the vocabulary, the first symbols of a piece, and the memory of pieces.
 *
 * Language repeats itself: nine pieces of ten were seen a moment ago. A work area therefore keeps
 * two tables of pieces with their ids, one for short pieces (16 bytes are compared as two numbers),
 * one for longer ones. A piece has two places in its table; a new one takes the first and moves the
 * old one to the second, so the tables never fill up and need no clearing. The tables belong to one
 * thread's work area: a lock around a shared one would cost more than a merge. */
#include "data/tokenizer/bpe_impl.h"

#include "base/mem.h"

enum {
    SHORT_BYTES = 15,
    SHORT_IDS = 3,
    SHORT_SLOTS = 1 << 16, /* of 32 bytes */
    LONG_BYTES = 62,
    LONG_IDS = 16,
    LONG_SLOTS = 1 << 13 /* of 128 bytes */
};

typedef struct short_slot {
    uint64_t key[2]; /* the bytes, zeros, and the length in the last byte; all zero: empty */
    int32_t n;
    int32_t ids[SHORT_IDS];
} short_slot;

typedef struct long_slot {
    uint8_t len, n; /* len 0: empty */
    unsigned char key[LONG_BYTES];
    int32_t ids[LONG_IDS];
} long_slot;

struct ls_bpe_work {
    const ls_bpe *bpe;       /* borrowed */
    short_slot *short_slots; /* owned */
    long_slot *long_slots;   /* owned */
    ls_bpe_many many;
};

static uint64_t power_above(uint64_t n)
{
    uint64_t p = 16;

    while (p < n)
        p *= 2;
    return p;
}

ls_status ls_bpe_create(ls_bpe **out, const ls_bpe_args *args)
{
    ls_bpe *bpe = ls_mem_alloc(sizeof *bpe);

    if (!bpe)
        return LS_ENOMEM;
    bpe->args = *args;
    bpe->n_slots = power_above((uint64_t)args->ids * 2);
    bpe->n_merges = power_above((uint64_t)args->merges * 3 / 2 + 1);
    bpe->text = ls_mem_alloc((size_t)args->text_bytes);
    bpe->at = ls_mem_array((size_t)args->ids, sizeof *bpe->at);
    bpe->len = ls_mem_array((size_t)args->ids, sizeof *bpe->len);
    bpe->slots = ls_mem_array(bpe->n_slots, sizeof *bpe->slots);
    bpe->merges = ls_mem_array(bpe->n_merges, sizeof *bpe->merges);
    if (!bpe->text || !bpe->at || !bpe->len || !bpe->slots || !bpe->merges) {
        ls_bpe_free(bpe);
        return LS_ENOMEM;
    }
    for (int32_t i = 0; i < args->ids; i++)
        bpe->at[i] = -1;
    memset(bpe->slots, -1, bpe->n_slots * sizeof *bpe->slots);
    for (uint64_t i = 0; i < bpe->n_merges; i++)
        bpe->merges[i].pair = UINT64_MAX;
    *out = bpe;
    return LS_OK;
}

void ls_bpe_free(ls_bpe *bpe)
{
    if (!bpe)
        return;
    ls_mem_free(bpe->text);
    ls_mem_free(bpe->at);
    ls_mem_free(bpe->len);
    ls_mem_free(bpe->slots);
    ls_mem_free(bpe->merges);
    ls_mem_free(bpe);
}

static uint64_t hash_text(const unsigned char *p, size_t len)
{
    uint64_t h = len, word;

    for (; len >= sizeof word; p += sizeof word, len -= sizeof word) {
        memcpy(&word, p, sizeof word);
        h = ls_bpe_mix(h ^ word);
    }
    word = 0;
    if (len)
        memcpy(&word, p, len);
    return ls_bpe_mix(ls_bpe_mix(h ^ word));
}

/* The slot of a text, or the empty one where it would go. */
static int32_t *slot_of(const ls_bpe *bpe, const unsigned char *bytes, size_t len)
{
    uint64_t i = hash_text(bytes, len) & (bpe->n_slots - 1);

    for (;; i = (i + 1) & (bpe->n_slots - 1)) {
        int32_t id = bpe->slots[i];
        if (id < 0 || (bpe->len[id] == len && memcmp(bpe->text + bpe->at[id], bytes, len) == 0))
            return &bpe->slots[i];
    }
}

ls_status ls_bpe_add_token(ls_bpe *bpe, int32_t id, const void *bytes, size_t len)
{
    if (id < 0 || id >= bpe->args.ids)
        return ls_fail(LS_EDATA, "id %d is outside the vocabulary", (int)id);
    if (bpe->at[id] >= 0)
        return ls_fail(LS_EDATA, "two tokens have the id %d", (int)id);
    if (len > UINT32_MAX || (int64_t)len > bpe->args.text_bytes - bpe->text_used)
        return ls_fail(LS_EDATA, "the tokens have more text than expected");
    int32_t *slot = slot_of(bpe, bytes, len);
    if (*slot >= 0)
        return ls_fail(LS_EDATA, "the ids %d and %d are the same token", (int)*slot, (int)id);
    bpe->at[id] = bpe->text_used;
    bpe->len[id] = (uint32_t)len;
    if (len)
        memcpy(bpe->text + bpe->text_used, bytes, len);
    bpe->text_used += (int64_t)len;
    *slot = id;
    return LS_OK;
}

ls_status ls_bpe_add_merge(ls_bpe *bpe, int32_t left, int32_t right, int32_t merged)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = ls_bpe_mix(pair) & (bpe->n_merges - 1);

    if (bpe->next_rank >= bpe->args.merges)
        return ls_fail(LS_EDATA, "more merges than announced");
    while (bpe->merges[i].pair != UINT64_MAX && bpe->merges[i].pair != pair)
        i = (i + 1) & (bpe->n_merges - 1);
    bpe->merges[i] = (ls_bpe_merge){pair, bpe->next_rank++, merged};
    return LS_OK;
}

ls_status ls_bpe_finish(ls_bpe *bpe, int32_t unk)
{
    char name[8];

    bpe->unk = unk;
    for (int b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        bool one = bpe->args.by_byte || b < 0x80;
        bpe->byte_ids[b] = one ? ls_bpe_find(bpe, &byte, 1) : -1;
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        bpe->fallback[b] = bpe->args.byte_fallback ? ls_bpe_find(bpe, name, 6) : -1;
    }
    return LS_OK;
}

int32_t ls_bpe_find(const ls_bpe *bpe, const void *bytes, size_t len)
{
    return *slot_of(bpe, bytes, len);
}

/* The bytes of an id; NULL: a hole. */
static const unsigned char *text_of(const ls_bpe *bpe, int32_t id, size_t *len_out)
{
    if (id < 0 || id >= bpe->args.ids || bpe->at[id] < 0)
        return NULL;
    *len_out = bpe->len[id];
    return bpe->text + bpe->at[id];
}

bool ls_bpe_joins_over(const ls_bpe *bpe, const char *mark)
{
    size_t n = strlen(mark), l = 0, r = 0;

    for (uint64_t i = 0; i < bpe->n_merges; i++) {
        if (bpe->merges[i].pair == UINT64_MAX)
            continue;
        const unsigned char *left = text_of(bpe, (int32_t)(bpe->merges[i].pair >> 32), &l);
        const unsigned char *right = text_of(bpe, (int32_t)(bpe->merges[i].pair & UINT32_MAX), &r);
        if (r >= n && memcmp(right, mark, n) == 0 && (l < n || memcmp(left + l - n, mark, n) != 0))
            return true;
    }
    return false;
}

ls_status ls_bpe_work_open(ls_bpe_work **out, const ls_bpe *bpe)
{
    ls_bpe_work *work = ls_mem_alloc(sizeof *work);

    if (!work)
        return LS_ENOMEM;
    work->bpe = bpe;
    work->short_slots = ls_mem_array(SHORT_SLOTS, sizeof *work->short_slots);
    work->long_slots = ls_mem_array(LONG_SLOTS, sizeof *work->long_slots);
    if (!work->short_slots || !work->long_slots) {
        ls_bpe_work_free(work);
        return LS_ENOMEM;
    }
    *out = work;
    return LS_OK;
}

void ls_bpe_work_free(ls_bpe_work *work)
{
    if (!work)
        return;
    ls_mem_free(work->short_slots);
    ls_mem_free(work->long_slots);
    ls_bpe_many_release(&work->many);
    ls_mem_free(work);
}

/* The symbols that a piece begins as, at most one a byte. What is unknown waits until a known
 * character ends it; the bytes of a fallback do not (so does the reference). */
static size_t first_symbols(const ls_bpe *bpe, const unsigned char *p, size_t len, int32_t *ids)
{
    size_t count = 0;
    bool waits = false;

    for (size_t i = 0, n; i < len; i += n) {
        n = bpe->args.by_byte || p[i] < 0x80 ? 1 : p[i] < 0xe0 ? 2 : p[i] < 0xf0 ? 3 : 4;
        int32_t id = n == 1 ? bpe->byte_ids[p[i]] : ls_bpe_find(bpe, p + i, n);
        if (id >= 0) {
            if (waits)
                ids[count++] = bpe->unk;
            waits = false;
            ids[count++] = id;
            continue;
        }
        size_t known = 0;
        while (known < n && bpe->fallback[p[i + known]] >= 0)
            known++;
        if (known == n) {
            for (size_t k = 0; k < n; k++)
                ids[count++] = bpe->fallback[p[i + k]];
        } else if (bpe->unk >= 0) {
            if (waits && !bpe->args.fuse_unk)
                ids[count++] = bpe->unk;
            waits = true;
        }
    }
    if (waits)
        ids[count++] = bpe->unk;
    return count;
}

/* Append n ids from an array of room; with a constant room the copy is a few instructions. */
static inline ls_status copy_ids(ls_tokens *out, const int32_t *ids, int64_t n, size_t room)
{
    ls_status st = ls_tokens_reserve(out, (int64_t)room);

    if (st != LS_OK)
        return st;
    memcpy(out->ids + out->count, ids, room * sizeof *ids);
    out->count += n;
    return LS_OK;
}

/* The ids of a piece without looking it up in the memory. */
static ls_status encode_anew(ls_bpe_work *work, const unsigned char *piece, size_t len,
                             ls_tokens *out)
{
    const ls_bpe *bpe = work->bpe;
    int32_t few[LS_BPE_FEW], *ids = few;
    ls_status st = LS_OK;
    size_t n = 0;
    int32_t whole = bpe->args.ignore_merges ? ls_bpe_find(bpe, piece, len) : -1;

    if (whole >= 0) {
        few[n++] = whole;
    } else if (len <= LS_BPE_FEW) {
        n = ls_bpe_merge_few(bpe, few, first_symbols(bpe, piece, len, few));
    } else {
        LS_TRY(st, ls_bpe_many_reserve(&work->many, len), out);
        ids = work->many.ids;
        n = ls_bpe_merge_many(bpe, &work->many, first_symbols(bpe, piece, len, ids));
    }
    if (n) /* else nothing in it is known, and out may have no memory yet */
        st = copy_ids(out, ids, (int64_t)n, n);
out:
    return st;
}

static ls_status encode_short(ls_bpe_work *work, const unsigned char *piece, size_t len,
                              ls_tokens *out)
{
    unsigned char bytes[16] = {0};
    uint64_t key[2];

    memcpy(bytes, piece, len);
    bytes[SHORT_BYTES] = (unsigned char)len;
    memcpy(key, bytes, sizeof key);
    uint64_t h = ls_bpe_mix(key[0] ^ ls_bpe_mix(key[1]));
    short_slot *a = &work->short_slots[h & (SHORT_SLOTS - 1)];
    short_slot *b = &work->short_slots[(h & (SHORT_SLOTS - 1)) ^ 1];
    const short_slot *hit = a->key[0] == key[0] && a->key[1] == key[1]   ? a
                            : b->key[0] == key[0] && b->key[1] == key[1] ? b
                                                                         : NULL;
    if (hit)
        return copy_ids(out, hit->ids, hit->n, SHORT_IDS);
    int64_t before = out->count;
    ls_status st = encode_anew(work, piece, len, out);
    if (st == LS_OK && out->count - before <= SHORT_IDS) {
        *b = *a;
        *a = (short_slot){.key = {key[0], key[1]}, .n = (int32_t)(out->count - before)};
        if (a->n)
            memcpy(a->ids, out->ids + before, (size_t)a->n * sizeof a->ids[0]);
    }
    return st;
}

static bool long_is(const long_slot *slot, const unsigned char *piece, size_t len)
{
    return slot->len == len && memcmp(slot->key, piece, len) == 0;
}

static ls_status encode_long(ls_bpe_work *work, const unsigned char *piece, size_t len,
                             ls_tokens *out)
{
    uint64_t h = hash_text(piece, len) & (LONG_SLOTS - 1);
    long_slot *a = &work->long_slots[h], *b = &work->long_slots[h ^ 1];
    const long_slot *hit = long_is(a, piece, len) ? a : long_is(b, piece, len) ? b : NULL;

    if (hit)
        return copy_ids(out, hit->ids, hit->n, LONG_IDS);
    int64_t before = out->count;
    ls_status st = encode_anew(work, piece, len, out);
    if (st == LS_OK && out->count - before <= LONG_IDS) {
        *b = *a;
        a->len = (uint8_t)len;
        a->n = (uint8_t)(out->count - before);
        memcpy(a->key, piece, len);
        if (a->n)
            memcpy(a->ids, out->ids + before, (size_t)a->n * sizeof a->ids[0]);
    }
    return st;
}

ls_status ls_bpe_encode(ls_bpe_work *work, const unsigned char *piece, size_t len, ls_tokens *out)
{
    if (len == 0)
        return LS_OK;
    /* A short piece of many tokens is not kept; it is rare and cheap. */
    if (len <= SHORT_BYTES)
        return encode_short(work, piece, len, out);
    if (len <= LONG_BYTES)
        return encode_long(work, piece, len, out);
    return encode_anew(work, piece, len, out);
}
