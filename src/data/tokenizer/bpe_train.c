/* bpe_train.c -- merges out of counted words.
 *
 * All words lie in one array of cells, a cell per byte, with a wall between words. A token of n
 * bytes takes n cells: its id in the first, -n in the last, something negative between. So the
 * token to the right begins n cells later, the one to the left is found through the cell before,
 * and a merge rewrites three cells:
 *
 *     |  l  o  w  |  l  o  w  e  r  |        merge (l, o):  |  lo -2  w  |  lo -2  w  e  r  |
 *
 * Each pair of neighbours knows its count (words weighted by how often they occur) and the cells
 * where it was seen. A merge visits only those, in ascending order, so that of three equal tokens
 * the first two are merged; cells that no longer hold the pair are passed over. The pairs with its
 * neighbours are counted down and the new ones up. The most frequent pair is on top of a heap whose
 * entries may be out of date: once its merge has passed, the count of a new pair only falls, so an
 * entry whose count is wrong is simply put back with the right one.
 *
 * Visiting whole words instead, as others do, costs the length of a word for each merge in it: a
 * file with one giant word then takes hours. Here the work is that of the merges themselves.
 *
 * No token is made twice. Bytes between two borders that no merge has crossed were merged by their
 * own pairs only, so they hold the same tokens wherever they stand: there is never ab+c in one
 * place and a+bc in another. So every pair that a merge makes has the new token in it, its cells
 * come in ascending order, and once merged it does not come back.
 *
 * A pair that would spell a special token is never merged. */
#include "data/tokenizer/bpe_train.h"

#include "data/tokenizer/bpe_train_impl.h"
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/utf8.h"
#include "base/mem.h"

enum { WALL = INT32_MIN, INSIDE = -1, LARGEST_VOCAB = 1 << 24, NOTHING = -1 };

typedef struct pair {
    int32_t left, right;
    int64_t count;
    uint32_t *cells; /* where it was seen, owned */
    uint32_t n;
    bool refused; /* would spell a special token */
} pair;

typedef struct entry { /* of the heap */
    int64_t count;
    ls_bpe_train_pair key;
    uint32_t pair;
} entry;

/* The tokens that a merge meets on one side of its pair. Each costs one look into the table of
 * pairs for the whole merge, however often it is met. */
typedef struct side {
    struct {
        int64_t count; /* how often it was met, words weighted */
        uint32_t pair; /* it and the new token: number + 1 */
    } * of;            /* by token; all zero between merges; owned */
    int32_t *met;      /* tokens, in the order they were met first; owned */
    int32_t n_met;
} side;

typedef struct trainer {
    ls_bpe_train *train; /* borrowed */
    const ls_bpe_train_words *words;
    int32_t *cells, *word_of; /* word_of: number of the word that a cell belongs to; owned */
    uint32_t n_cells;
    pair *pairs; /* owned */
    uint32_t n_pairs;
    uint32_t *table; /* pair number + 1; owned */
    uint32_t mask;
    entry *heap; /* owned */
    size_t n_heap;
    side before, after;
    int32_t limit; /* tokens to make, bytes included */
} trainer;

/* --- pairs ------------------------------------------------------------------------------------ */

static uint32_t hash_pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;

    return (uint32_t)(h >> 32 ^ h >> 13);
}

static ls_status grow_table(trainer *t)
{
    uint32_t slots = t->mask ? (t->mask + 1) * 2 : 8192;
    uint32_t *table = ls_mem_array(slots, sizeof *table);

    if (!table)
        return LS_ENOMEM;
    ls_mem_free(t->table);
    t->table = table;
    t->mask = slots - 1;
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        uint32_t slot = hash_pair(t->pairs[i].left, t->pairs[i].right) & t->mask;
        while (table[slot])
            slot = (slot + 1) & t->mask;
        table[slot] = i + 1;
    }
    return LS_OK;
}

/* The pair's number; it is made when it is new. */
static ls_status find_pair(trainer *t, int32_t left, int32_t right, uint32_t *pair_out)
{
    if (t->n_pairs >= t->mask / 2) {
        ls_status st = grow_table(t);
        if (st != LS_OK)
            return st;
    }
    uint32_t slot = hash_pair(left, right) & t->mask, i;
    for (; (i = t->table[slot]) != 0; slot = (slot + 1) & t->mask)
        if (t->pairs[i - 1].left == left && t->pairs[i - 1].right == right) {
            *pair_out = i - 1;
            return LS_OK;
        }
    pair *pairs = ls_mem_one_more(t->pairs, t->n_pairs, sizeof *pairs);
    if (!pairs)
        return LS_ENOMEM;
    t->pairs = pairs;
    t->pairs[t->n_pairs] = (pair){.left = left, .right = right};
    t->table[slot] = t->n_pairs + 1;
    *pair_out = t->n_pairs++;
    return LS_OK;
}

/* The pair now stands at cell, count times. */
static ls_status count_up(pair *p, uint32_t cell, int64_t count)
{
    uint32_t *cells = ls_mem_one_more(p->cells, p->n, sizeof *cells);

    if (!cells)
        return LS_ENOMEM;
    p->cells = cells;
    p->cells[p->n++] = cell;
    p->count += count;
    return LS_OK;
}

/* --- the heap --------------------------------------------------------------------------------- */

static bool comes_first(const entry *a, const entry *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    if (a->key.left != b->key.left)
        return a->key.left < b->key.left;
    return a->key.right < b->key.right;
}

static ls_status heap_push(trainer *t, uint32_t number)
{
    const pair *p = &t->pairs[number];
    entry e = {p->count, {p->left, p->right}, number};

    entry *heap = ls_mem_one_more(t->heap, t->n_heap, sizeof *heap);
    if (!heap)
        return LS_ENOMEM;
    t->heap = heap;
    size_t i = t->n_heap++;
    for (; i && comes_first(&e, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = e;
    return LS_OK;
}

static entry heap_pop(trainer *t)
{
    entry top = t->heap[0], last = t->heap[--t->n_heap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= t->n_heap)
            break;
        child += child + 1 < t->n_heap && comes_first(&t->heap[child + 1], &t->heap[child]);
        if (!comes_first(&t->heap[child], &last))
            break;
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = last;
    return top;
}

/* The most frequent pair, NOTHING when none occurs min_count times. */
static ls_status next_pair(trainer *t, int64_t min_count, int64_t *pair_out)
{
    *pair_out = NOTHING;
    while (t->n_heap && t->heap[0].count >= min_count) {
        entry top = heap_pop(t);
        int64_t count = t->pairs[top.pair].count;
        if (count == top.count && !t->pairs[top.pair].refused) {
            *pair_out = top.pair;
            return LS_OK;
        }
        if (count > 0 && count < top.count) {
            ls_status st = heap_push(t, top.pair);
            if (st != LS_OK)
                return st;
        }
    }
    return LS_OK;
}

/* --- tokens ----------------------------------------------------------------------------------- */

static const char *bytes_of(const ls_bpe_train *train, int32_t id)
{
    return train->bytes.p + train->tokens[id].at;
}

/* The last len bytes of the buffer become a token. */
static ls_status add_token(ls_bpe_train *train, int32_t len, ls_bpe_train_pair of, int32_t *id_out)
{
    ls_bpe_train_token *p = ls_mem_one_more(train->tokens, (size_t)train->n_tokens, sizeof *p);

    if (!p)
        return LS_ENOMEM;
    train->tokens = p;
    train->tokens[train->n_tokens] = (ls_bpe_train_token){train->bytes.len - (size_t)len, len, of};
    *id_out = train->n_tokens++;
    return LS_OK;
}

/* Whether the last len bytes of the buffer are written as a special token is. */
static ls_status spells_special(const trainer *t, int32_t len, bool *is_out)
{
    ls_status st = LS_OK;
    const ls_str *bytes = &t->train->bytes;
    ls_str text;

    ls_str_init(&text);
    *is_out = false;
    if (t->train->n_specials == 0)
        goto out;
    ls_bpe_train_spell(&text, bytes->p + bytes->len - len, (size_t)len);
    LS_TRY(st, ls_str_status(&text), out);
    for (int i = 0; i < t->train->n_specials; i++)
        *is_out = *is_out || strcmp(t->train->specials[i], text.p) == 0;
out:
    ls_str_release(&text);
    return st;
}

/* --- merging ---------------------------------------------------------------------------------- */

static int32_t len_of(const trainer *t, int32_t id)
{
    return t->train->tokens[id].len;
}

/* First cell of the token that ends before cell; cell - 1 may be a wall. */
static uint32_t token_before(const trainer *t, uint32_t cell)
{
    int32_t c = t->cells[cell - 1];

    return c >= 0 || c == WALL ? cell - 1 : cell - (uint32_t)-c;
}

/* A merge has met token on this side: it and the new one, left and right, now stand at cell. */
static ls_status meet(trainer *t, side *s, int32_t token, ls_bpe_train_pair made, uint32_t cell,
                      int64_t count)
{
    if (!s->of[token].pair) {
        uint32_t number;
        ls_status st = find_pair(t, made.left, made.right, &number);
        if (st != LS_OK)
            return st;
        s->of[token].pair = number + 1;
        s->met[s->n_met++] = token;
    }
    s->of[token].count += count;
    return count_up(&t->pairs[s->of[token].pair - 1], cell, count);
}

/* Merge left and right into id at this cell, if they stand there; count is added to *sum. */
static ls_status merge_at(trainer *t, uint32_t cell, ls_bpe_train_pair p, int32_t id, int64_t *sum)
{
    ls_status st = LS_OK;
    uint32_t second = cell + (uint32_t)len_of(t, p.left);

    if (t->cells[cell] != p.left || t->cells[second] != p.right)
        return LS_OK;
    int64_t count = t->words->words[t->word_of[cell]].count;
    uint32_t len = (uint32_t)len_of(t, id), end = cell + len, ahead = token_before(t, cell);
    int32_t l = t->cells[ahead], r = t->cells[end];

    t->cells[second] = INSIDE;
    t->cells[end - 1] = -(int32_t)len;
    t->cells[cell] = id;
    *sum += count;
    if (l != WALL)
        LS_TRY(st, meet(t, &t->before, l, (ls_bpe_train_pair){l, id}, ahead, count), out);
    if (r != WALL)
        LS_TRY(st, meet(t, &t->after, r, (ls_bpe_train_pair){id, r}, cell, count), out);
out:
    return st;
}

/* The pairs that a merge has parted: those of each token met with the one it stood beside. */
static ls_status count_down(trainer *t, const side *s, ls_bpe_train_pair p)
{
    ls_status st = LS_OK;

    for (int32_t i = 0; i < s->n_met; i++) {
        uint32_t number;
        int32_t token = s->met[i];
        LS_TRY(st,
               s == &t->before ? find_pair(t, token, p.left, &number)
                               : find_pair(t, p.right, token, &number),
               out);
        t->pairs[number].count -= s->of[token].count;
    }
out:
    return st;
}

/* Enter the pairs that a merge has made, and forget the tokens met. */
static ls_status push_made(trainer *t, side *s)
{
    ls_status st = LS_OK;

    for (int32_t i = 0; i < s->n_met; i++) {
        uint32_t number = s->of[s->met[i]].pair - 1;
        s->of[s->met[i]].pair = 0;
        s->of[s->met[i]].count = 0;
        if (t->pairs[number].count > 0)
            LS_TRY(st, heap_push(t, number), out);
    }
    s->n_met = 0;
out:
    return st;
}

static ls_status merge_all(trainer *t, uint32_t number, int32_t id)
{
    ls_status st = LS_OK;
    pair *p = &t->pairs[number];
    ls_bpe_train_pair key = {p->left, p->right};
    uint32_t *cells = p->cells, n = p->n;
    int64_t sum = 0;

    /* Pairs move when their array grows, so the list is taken away from the pair. */
    p->cells = NULL;
    p->n = 0;
    for (uint32_t i = 0; i < n; i++)
        LS_TRY(st, merge_at(t, cells[i], key, id, &sum), out);
    t->pairs[number].count -= sum;
    LS_TRY(st, count_down(t, &t->before, key), out);
    LS_TRY(st, count_down(t, &t->after, key), out);
    LS_TRY(st, push_made(t, &t->before), out);
    st = push_made(t, &t->after);
out:
    ls_mem_free(cells);
    return st;
}

/* Make the token that a pair spells, unless that is refused. */
static ls_status name_pair(trainer *t, uint32_t number, int32_t *id_out)
{
    ls_status st = LS_OK;
    ls_bpe_train *train = t->train;
    pair *p = &t->pairs[number];
    int32_t left = len_of(t, p->left), len = left + len_of(t, p->right);
    size_t at = train->bytes.len;

    ls_str_reserve(&train->bytes, at + (size_t)len + 1);
    LS_TRY(st, ls_str_status(&train->bytes), out);
    ls_str_append_bytes(&train->bytes, bytes_of(train, p->left), (size_t)left);
    ls_str_append_bytes(&train->bytes, bytes_of(train, p->right), (size_t)(len - left));
    LS_TRY(st, spells_special(t, len, &p->refused), out);
    if (p->refused) {
        train->bytes.len = at;
        goto out;
    }
    st = add_token(train, len, (ls_bpe_train_pair){p->left, p->right}, id_out);
out:
    return st;
}

static ls_status make_merges(trainer *t, const ls_bpe_train_args *args)
{
    ls_status st = LS_OK;
    ls_bpe_train *train = t->train;

    while (train->n_tokens < t->limit) {
        int64_t number;
        int32_t id = 0;
        LS_TRY(st, next_pair(t, ls_max_i64(1, args->min_count), &number), out);
        if (number == NOTHING)
            break;
        LS_TRY(st, name_pair(t, (uint32_t)number, &id), out);
        if (t->pairs[number].refused)
            continue;
        LS_TRY(st, merge_all(t, (uint32_t)number, id), out);
        if (args->progress)
            args->progress(args->context, "merging", train->n_tokens, t->limit);
    }
out:
    return st;
}

/* --- from words to the first pairs ------------------------------------------------------------ */

/* GPT-2's table: the printable bytes stand for themselves, the others for U+0100 and up. */
static bool is_printable(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

void ls_bpe_train_spell(ls_str *out, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned byte = (unsigned char)bytes[i], code = byte;
        if (!is_printable((int)byte)) /* 0 to 32, 127 to 160, 173: U+0100 and up without holes */
            code = 256 + (byte < 33 ? byte : byte < 161 ? byte - 127 + 33 : 67);
        if (code >= 0x80)
            ls_str_append_char(out, (char)(0xc0 | code >> 6));
        ls_str_append_char(out, (char)(code >= 0x80 ? 0x80 | (code & 0x3f) : code));
    }
}

/* Tokens of one byte, in the order of their characters; id_out of each byte. */
static ls_status add_bytes(trainer *t, int32_t id_out[LS_BPE_TRAIN_BYTES])
{
    ls_status st = LS_OK;

    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < LS_BPE_TRAIN_BYTES; b++)
            if (is_printable(b) == (pass == 0)) {
                ls_str_append_char(&t->train->bytes, (char)b);
                LS_TRY(st, ls_str_status(&t->train->bytes), out);
                LS_TRY(st, add_token(t->train, 1, (ls_bpe_train_pair){0, 0}, &id_out[b]), out);
            }
out:
    return st;
}

static ls_status lay_words(trainer *t)
{
    ls_status st = LS_OK;
    const ls_bpe_train_words *words = t->words;
    size_t n = words->text_len + words->n + 1;
    int32_t ids[LS_BPE_TRAIN_BYTES];
    uint32_t at = 0, number;

    LS_TRY(st, add_bytes(t, ids), out);
    t->cells = ls_mem_array(n, sizeof *t->cells);
    t->word_of = ls_mem_array(n, sizeof *t->word_of);
    if (!t->cells || !t->word_of) {
        st = LS_ENOMEM;
        goto out;
    }
    t->cells[at++] = WALL;
    for (uint32_t w = 0; w < words->n; w++) {
        const ls_bpe_train_word *word = &words->words[w];
        for (uint32_t i = 0; i < word->len; i++, at++) {
            t->cells[at] = ids[words->text[word->at + i]];
            t->word_of[at] = (int32_t)w;
            if (i == 0)
                continue;
            LS_TRY(st, find_pair(t, t->cells[at - 1], t->cells[at], &number), out);
            LS_TRY(st, count_up(&t->pairs[number], at - 1, word->count), out);
        }
        t->cells[at++] = WALL;
    }
    t->n_cells = at;
    for (number = 0; number < t->n_pairs; number++)
        LS_TRY(st, heap_push(t, number), out);
out:
    return st;
}

/* Tokens that the text has now. */
static int64_t count_tokens(const trainer *t)
{
    int64_t sum = 0;

    for (uint32_t i = 1; i < t->n_cells; i++)
        if (t->cells[i] >= 0)
            sum += t->words->words[t->word_of[i]].count;
    return sum;
}

static void release_trainer(trainer *t)
{
    for (uint32_t i = 0; i < t->n_pairs; i++)
        ls_mem_free(t->pairs[i].cells);
    ls_mem_free(t->pairs);
    ls_mem_free(t->cells);
    ls_mem_free(t->word_of);
    ls_mem_free(t->table);
    ls_mem_free(t->heap);
    ls_mem_free(t->before.of);
    ls_mem_free(t->before.met);
    ls_mem_free(t->after.of);
    ls_mem_free(t->after.met);
}

static ls_status reserve_side(side *s, int32_t tokens)
{
    s->of = ls_mem_array((size_t)tokens, sizeof *s->of);
    s->met = ls_mem_array((size_t)tokens, sizeof *s->met);
    return s->of && s->met ? LS_OK : LS_ENOMEM;
}

static ls_status train_on(ls_bpe_train *train, const ls_bpe_train_words *words,
                          const ls_bpe_train_args *args)
{
    ls_status st = LS_OK;
    trainer t = {.train = train, .words = words, .limit = args->vocab - args->n_specials};

    LS_TRY(st, reserve_side(&t.before, t.limit), out);
    LS_TRY(st, reserve_side(&t.after, t.limit), out);
    LS_TRY(st, lay_words(&t), out);
    LS_TRY(st, make_merges(&t, args), out);
    train->stats = (ls_bpe_train_stats){.vocab = train->n_tokens + train->n_specials,
                                        .merges = train->n_tokens - LS_BPE_TRAIN_BYTES,
                                        .bytes = words->bytes,
                                        .tokens = count_tokens(&t),
                                        .words = words->n,
                                        .dropped_words = words->dropped};
out:
    release_trainer(&t);
    return st;
}

/* --- the outside ------------------------------------------------------------------------------ */

/* A token of one byte is written in the same way: the two could not be told apart. */
static ls_status refuse_byte(const char *special)
{
    ls_status st = LS_OK;
    ls_str text;

    ls_str_init(&text);
    for (int b = 0; b < LS_BPE_TRAIN_BYTES && st == LS_OK; b++) {
        ls_str_clear(&text);
        ls_bpe_train_spell(&text, &(char){(char)b}, 1);
        st = ls_str_status(&text);
        if (st == LS_OK && strcmp(text.p, special) == 0) {
            st = ls_fail(LS_EUSAGE, "the special token \"%s\" is a token of one byte already",
                         special);
            ls_err_hint("Give special tokens a form that text does not have, such as <|%s|>.",
                        special);
        }
    }
    ls_str_release(&text);
    return st;
}

static ls_status check_special(const ls_bpe_train_args *args, int i)
{
    const char *text = args->specials[i];
    size_t len = strlen(text);

    if (len == 0)
        return ls_fail(LS_EUSAGE, "a special token is empty");
    if (ls_utf8_valid(text, len) != len)
        return ls_fail(LS_EUSAGE, "special token number %d is not UTF-8", i + 1);
    for (int k = 0; k < i; k++)
        if (strcmp(text, args->specials[k]) == 0)
            return ls_fail(LS_EUSAGE, "the special token \"%s\" is given twice", text);
    return refuse_byte(text);
}

static ls_status check_args(const ls_bpe_train_args *args)
{
    ls_status st = LS_OK;
    int least = LS_BPE_TRAIN_BYTES + args->n_specials;

    for (int i = 0; i < args->n_specials; i++)
        LS_TRY(st, check_special(args, i), out);
    if (args->vocab < least) {
        st = ls_fail(LS_EUSAGE,
                     "a vocabulary of %d is too small: 256 bytes and %d special token%s need %d",
                     (int)args->vocab, args->n_specials, args->n_specials == 1 ? "" : "s", least);
        ls_err_hint("Common sizes are 8192 for a small model and 32768 for a large one.");
        goto out;
    }
    if (args->vocab > LARGEST_VOCAB)
        st = ls_fail(LS_EUSAGE, "a vocabulary of %d is too large: at most %d can be trained",
                     (int)args->vocab, (int)LARGEST_VOCAB);
    LS_BUG_IF(args->utf8 == LS_UTF8_BYTES, "patterns need UTF-8");
    LS_BUG_IF(args->word_bytes < 0 || args->word_bytes > LS_GIB, "cells are numbered in 32 bits");
out:
    return st;
}

static ls_status copy_args(ls_bpe_train *train, const ls_bpe_train_args *args)
{
    ls_status st = LS_OK;
    ls_pretokenizer *pretokenizer = NULL, *gpt2 = NULL;

    LS_TRY(st, ls_pretokenizer_open(&gpt2, LS_PRETOKENIZER_GPT2), out);
    LS_TRY(
        st,
        ls_pretokenizer_open(&pretokenizer, args->pattern ? args->pattern : LS_PRETOKENIZER_GPT2),
        out);
    train->gpt2 = strcmp(ls_pretokenizer_pattern(pretokenizer), ls_pretokenizer_pattern(gpt2)) == 0;
    train->pattern = ls_mem_strdup(ls_pretokenizer_pattern(pretokenizer));
    train->specials = ls_mem_array((size_t)args->n_specials, sizeof *train->specials);
    if (!train->pattern || !train->specials) {
        st = LS_ENOMEM;
        goto out;
    }
    for (; train->n_specials < args->n_specials; train->n_specials++)
        if (!(train->specials[train->n_specials] =
                  ls_mem_strdup(args->specials[train->n_specials]))) {
            st = LS_ENOMEM;
            goto out;
        }
out:
    ls_pretokenizer_free(pretokenizer);
    ls_pretokenizer_free(gpt2);
    return st;
}

ls_status ls_bpe_train_create(ls_bpe_train **out, const ls_bpe_train_args *args)
{
    ls_status st = LS_OK;
    ls_bpe_train_words words = {.text = NULL};
    ls_bpe_train *train = ls_mem_alloc(sizeof *train);

    if (!train)
        return LS_ENOMEM;
    ls_str_init(&train->bytes);
    LS_TRY(st, check_args(args), out);
    LS_TRY(st, copy_args(train, args), out);
    LS_TRY(st, ls_bpe_train_words_count(&words, args), out);
    if (words.n == 0) {
        st = ls_fail(LS_EDATA, "there is no text to train on in \"%s\"%s",
                     args->n_files ? args->files[0] : "", args->n_files > 1 ? " and the rest" : "");
        goto out;
    }
    LS_TRY(st, train_on(train, &words, args), out);
    *out = train;
out:
    ls_bpe_train_words_release(&words);
    if (st != LS_OK)
        ls_bpe_train_free(train);
    return st;
}

void ls_bpe_train_free(ls_bpe_train *train)
{
    if (!train)
        return;
    for (int i = 0; i < train->n_specials; i++)
        ls_mem_free(train->specials[i]);
    ls_mem_free(train->specials);
    ls_mem_free(train->pattern);
    ls_mem_free(train->tokens);
    ls_str_release(&train->bytes);
    ls_mem_free(train);
}

ls_bpe_train_stats ls_bpe_train_count(const ls_bpe_train *train)
{
    return train->stats;
}
