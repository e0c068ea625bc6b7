/* bpe_train_words.c -- how often each word occurs in the files.
 *
 * A document arrives in pieces, and a word may lie across two of them. So text is held until it is
 * certain where its words end: a word is counted once the word after it has ended as well, some
 * bytes before the end of what is held. That is enough for patterns that look one character ahead,
 * as all the known ones do, and leaves room for a special token that has only begun. What no piece
 * ends (a mebibyte without a space) is counted as it stands. A pattern that looks back sees no
 * further than the beginning of what is held.
 *
 * Words live in a hash table. When their bytes pass the limit, words seen once are dropped, then
 * those seen twice, and so on until half of the room is free; a warning says how many. They are the
 * words that merges depend on least. */
#include "data/tokenizer/bpe_train_impl.h"

#include "data/tokenizer/pretokenizer.h"
#include "data/corpus/source.h"
#include "base/mem.h"

static const size_t longest_held = (size_t)LS_MIB;

typedef struct counter {
    ls_bpe_train_words *words;
    const ls_bpe_train_args *args;
    ls_pretokenizer *pretokenizer;
    ls_pretokenizer_work *work;
    ls_str held;
    size_t *found;  /* where each special token comes next in held; owned */
    size_t *len;    /* of each special token; owned */
    size_t longest; /* special token, at least 1 */
    size_t limit;   /* of the words' bytes */
} counter;

/* --- the table of words ----------------------------------------------------------------------- */

void ls_bpe_train_words_release(ls_bpe_train_words *words)
{
    ls_mem_free(words->text);
    ls_mem_free(words->words);
    ls_mem_free(words->table);
    *words = (ls_bpe_train_words){.text = NULL};
}

/* Any mixing does; words are short. Not a defence against words chosen to collide: the order of
 * the table never shows in the result. */
static uint32_t hash_word(const unsigned char *p, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len, v;

    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    v = 0;
    memcpy(&v, p, len);
    h = (h ^ v) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h ^ h >> 32);
}

static ls_status rebuild_table(ls_bpe_train_words *words, uint32_t slots)
{
    uint32_t *table = ls_mem_array(slots, sizeof *table);

    if (!table)
        return LS_ENOMEM;
    ls_mem_free(words->table);
    words->table = table;
    words->mask = slots - 1;
    for (uint32_t i = 0; i < words->n; i++) {
        uint32_t slot = words->words[i].hash & words->mask;
        while (table[slot])
            slot = (slot + 1) & words->mask;
        table[slot] = i + 1;
    }
    return LS_OK;
}

/* Room for one more word of len bytes. */
static ls_status reserve_word(ls_bpe_train_words *words, size_t len)
{
    ls_bpe_train_word *more = ls_mem_one_more(words->words, words->n, sizeof *more);

    if (!more)
        return LS_ENOMEM;
    words->words = more;
    if (words->text_len + len > words->text_cap) {
        size_t cap = (words->text_len + len) * 2 + 4096;
        unsigned char *p = ls_mem_resize(words->text, cap);
        if (!p)
            return LS_ENOMEM;
        words->text = p;
        words->text_cap = cap;
    }
    return words->mask == 0 || words->n >= words->mask / 2
               ? rebuild_table(words, words->mask ? (words->mask + 1) * 2 : 4096)
               : LS_OK;
}

/* Keep the words seen more than `least` times. */
static ls_status drop_rare(ls_bpe_train_words *words, int64_t least)
{
    uint32_t kept = 0;
    size_t used = 0;

    for (uint32_t i = 0; i < words->n; i++) {
        ls_bpe_train_word w = words->words[i];
        if (w.count <= least) {
            words->dropped++;
            continue;
        }
        memmove(words->text + used, words->text + w.at, w.len);
        w.at = used;
        used += w.len;
        words->words[kept++] = w;
    }
    words->n = kept;
    words->text_len = used;
    return rebuild_table(words, words->mask + 1);
}

static ls_status make_room(counter *c, size_t len)
{
    ls_bpe_train_words *words = c->words;
    ls_status st = LS_OK;

    if (words->text_len + len > c->limit)
        for (int64_t least = 1; words->n && words->text_len > c->limit / 2; least++)
            LS_TRY(st, drop_rare(words, least), out);
    st = reserve_word(words, len);
out:
    return st;
}

static ls_status count_word(counter *c, const unsigned char *p, size_t len)
{
    ls_bpe_train_words *words = c->words;
    uint32_t hash = hash_word(p, len), i;

    words->bytes += (int64_t)len;
    for (uint32_t slot = hash & words->mask; words->mask && (i = words->table[slot]) != 0;
         slot = (slot + 1) & words->mask) {
        ls_bpe_train_word *w = &words->words[i - 1];
        if (w->hash == hash && w->len == len && memcmp(words->text + w->at, p, len) == 0) {
            w->count++;
            return LS_OK;
        }
    }
    ls_status st = make_room(c, len);
    if (st != LS_OK)
        return st;
    uint32_t slot = hash & words->mask;
    while (words->table[slot])
        slot = (slot + 1) & words->mask;
    memcpy(words->text + words->text_len, p, len);
    words->words[words->n++] = (ls_bpe_train_word){words->text_len, (uint32_t)len, hash, 1};
    words->table[slot] = words->n;
    words->text_len += len;
    return LS_OK;
}

/* --- text to words ---------------------------------------------------------------------------- */

/* Count the words of held[*at, stop) and advance *at. An open text goes on after stop: what could
 * still change stays. */
static ls_status count_text(counter *c, size_t *at, size_t stop, bool open)
{
    const unsigned char *text = (const unsigned char *)c->held.p;
    ls_status st = LS_OK;

    if (*at == stop)
        return LS_OK;
    size_t end = ls_pretokenizer_next(c->work, text, stop, *at);
    if (end == 0)
        return LS_EDATA;
    while (end < stop) {
        size_t next = ls_pretokenizer_next(c->work, text, stop, end);
        if (next == 0)
            return LS_EDATA;
        if (open && next + c->longest >= stop)
            return LS_OK;
        LS_TRY(st, count_word(c, text + *at, end - *at), out);
        *at = end;
        end = next;
    }
    if (!open) {
        LS_TRY(st, count_word(c, text + *at, end - *at), out);
        *at = end;
    }
out:
    return st;
}

/* The special token that comes first at or after at, the longest of several: its place (the end of
 * held when there is none) and length. Places are remembered, so each is searched for once. */
static size_t find_special(counter *c, size_t at, size_t *len_out)
{
    size_t best = c->held.len;

    *len_out = 0;
    for (int i = 0; i < c->args->n_specials; i++) {
        if (c->found[i] < at || at == 0) {
            const char *p =
                memmem(c->held.p + at, c->held.len - at, c->args->specials[i], c->len[i]);
            c->found[i] = p ? (size_t)(p - c->held.p) : c->held.len;
        }
        if (c->found[i] < best ||
            (c->found[i] == best && c->len[i] > *len_out && best < c->held.len)) {
            best = c->found[i];
            *len_out = c->len[i];
        }
    }
    return best;
}

/* Count what is held; unless the document ends, the last words stay. */
static ls_status count_held(counter *c, bool ends)
{
    ls_status st = LS_OK;
    size_t at = 0;

    ends = ends || c->held.len > longest_held;
    for (;;) {
        size_t len, stop = find_special(c, at, &len);
        LS_TRY(st, count_text(c, &at, stop, len == 0 && !ends), out);
        if (len == 0)
            break;
        at = stop + len;
    }
    memmove(c->held.p, c->held.p + at, c->held.len - at);
    c->held.len -= at;
    if (c->held.cap)
        c->held.p[c->held.len] = '\0';
out:
    return st;
}

static ls_status count_file(counter *c, const char *path)
{
    ls_status st = LS_OK;
    ls_source *source = NULL;
    ls_source_piece piece;

    LS_TRY(st,
           ls_source_open(
               &source,
               &(ls_source_args){.path = path, .field = c->args->field, .utf8 = c->args->utf8}),
           out);
    do {
        LS_TRY(st, ls_source_next(source, &piece), out);
        if (!piece.bytes || piece.begins)
            LS_TRY(st, count_held(c, true), out);
        if (!piece.bytes)
            break;
        ls_str_append_bytes(&c->held, piece.bytes, piece.len);
        LS_TRY(st, ls_str_status(&c->held), out);
        LS_TRY(st, count_held(c, false), out);
        if (c->args->progress)
            c->args->progress(c->args->context, "counting words", c->words->bytes, 0);
    } while (piece.bytes);
out:
    ls_source_close(source);
    return st;
}

ls_status ls_bpe_train_words_count(ls_bpe_train_words *words, const ls_bpe_train_args *args)
{
    ls_status st = LS_OK;
    size_t n = (size_t)args->n_specials;
    counter c = {.words = words, .args = args, .longest = 1};

    *words = (ls_bpe_train_words){.text = NULL};
    ls_str_init(&c.held);
    c.limit = (size_t)(args->word_bytes ? args->word_bytes : LS_BPE_TRAIN_WORDS);
    c.found = ls_mem_array(n, sizeof *c.found);
    c.len = ls_mem_array(n, sizeof *c.len);
    if (!c.found || !c.len) {
        st = LS_ENOMEM;
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        c.len[i] = strlen(args->specials[i]);
        c.longest = c.len[i] > c.longest ? c.len[i] : c.longest;
    }
    LS_TRY(
        st,
        ls_pretokenizer_open(&c.pretokenizer, args->pattern ? args->pattern : LS_PRETOKENIZER_GPT2),
        out);
    LS_TRY(st, ls_pretokenizer_work_open(&c.work, c.pretokenizer), out);
    for (int i = 0; i < args->n_files; i++)
        LS_TRY(st, count_file(&c, args->files[i]), out);
out:
    ls_pretokenizer_work_free(c.work);
    ls_pretokenizer_free(c.pretokenizer);
    ls_str_release(&c.held);
    ls_mem_free(c.found);
    ls_mem_free(c.len);
    return st;
}
