/* tokenizer_cut.c -- a text through the steps of the pre-tokenizer, and where it may be cut.
 *
 * Each step takes a piece and gives pieces to the next, the last one to the BPE.
 *
 * A vocabulary in SentencePiece's way has no pre-tokenizer: a document is one piece. But where no
 * merge joins anything with a following U+2581 (true of all such vocabularies made from text), what
 * stands before the beginning of a word cannot influence what stands behind it, and cutting there
 * gives the same ids with short pieces, which the BPE remembers.
 *
 * A text that arrives in parts is cut in front of a blank that follows something else than white
 * space. No known pattern, no U+2581 step and no normalisation reaches over that place; an added
 * token can (when it has such a blank inside, or takes white space along), so the characters after
 * which it would are excluded. Where that cannot be shown, a document is encoded whole. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "data/tokenizer/pretokenizer_impl.h"
#include "base/mem.h"

typedef struct cutter {
    const ls_json_rules *rules;
    ls_json_work *work;
    ls_tokens *out;
} cutter;

static ls_status run_step(cutter *c, int step, const unsigned char *p, size_t len, bool first);

/* The end of the piece of a step that begins at `at`, which is before len; 0: the step fails. */
static size_t piece_end(cutter *c, int step, const unsigned char *p, size_t len, size_t at)
{
    const ls_cut_step *s = &c->rules->cut[step];
    const unsigned char *classes = c->rules->classes, *hit;
    size_t n, end;

    switch (s->kind) {
    case LS_CUT_PATTERN:
        return ls_pretokenizer_next(c->work->pretokenizer[step], p, len, at);
    case LS_CUT_LITERAL:
        hit = memmem(p + at, len - at, s->literal, strlen(s->literal));
        end = hit ? (size_t)(hit - p) : len;
        return end == at ? at + strlen(s->literal) : end;
    default: /* digits */
        break;
    }
    bool number = ls_pretokenizer_class_at(classes, p + at, &n) == LS_PRETOKENIZER_NUMBER;
    end = at + n;
    while (end < len && !(number && s->each) &&
           (ls_pretokenizer_class_at(classes, p + end, &n) == LS_PRETOKENIZER_NUMBER) == number)
        end += n;
    return end;
}

static ls_status run_pieces(cutter *c, int step, const unsigned char *p, size_t len, bool first)
{
    for (size_t at = 0; at < len;) {
        size_t end = piece_end(c, step, p, len, at);
        ls_status st = end ? run_step(c, step + 1, p + at, end - at, first && at == 0) : LS_EDATA;
        if (st != LS_OK)
            return st;
        at = end;
    }
    return LS_OK;
}

static ls_status run_blank(cutter *c, int step, const unsigned char *p, size_t len, bool first)
{
    ls_str *b = &c->work->buffer[step];

    if (len == 0 || p[0] == ' ')
        return run_step(c, step + 1, p, len, first);
    ls_str_clear(b);
    ls_str_append_char(b, ' ');
    ls_str_append_bytes(b, p, len);
    ls_status st = ls_str_status(b);
    return st != LS_OK ? st : run_step(c, step + 1, (const unsigned char *)b->p, b->len, first);
}

/* Pieces that end in front of each mark; runs: in front of each row of marks. */
static ls_status split_marks(cutter *c, int step, const unsigned char *p, size_t len, bool first,
                             const char *mark, bool runs)
{
    size_t n = strlen(mark);

    for (size_t at = 0; at < len;) {
        size_t from = at;
        do {
            from += len - from >= n && memcmp(p + from, mark, n) == 0 ? n : 0;
        } while (runs && len - from >= n && memcmp(p + from, mark, n) == 0);
        const unsigned char *hit = memmem(p + from, len - from, mark, n);
        size_t end = hit ? (size_t)(hit - p) : len;
        ls_status st = run_step(c, step + 1, p + at, end - at, first && at == 0);
        if (st != LS_OK)
            return st;
        at = end;
    }
    return LS_OK;
}

static ls_status run_mark(cutter *c, int step, const unsigned char *p, size_t len, bool first)
{
    const ls_cut_step *s = &c->rules->cut[step];
    ls_str *b = &c->work->buffer[step];
    size_t n = strlen(s->literal);
    bool has = len && (p[0] == ' ' || (len >= n && memcmp(p, s->literal, n) == 0));

    ls_str_clear(b);
    if (!has && (s->scheme == LS_CUT_ALWAYS || (s->scheme == LS_CUT_FIRST && first)))
        ls_str_append(b, s->literal);
    for (size_t at = 0; at < len;) {
        const unsigned char *hit = memchr(p + at, ' ', len - at);
        size_t end = hit ? (size_t)(hit - p) : len;
        ls_str_append_bytes(b, p + at, end - at);
        if (hit)
            ls_str_append(b, s->literal);
        at = end + (hit != NULL);
    }
    ls_status st = ls_str_status(b);
    if (st != LS_OK)
        return st;
    if (!s->split)
        return run_step(c, step + 1, (const unsigned char *)b->p, b->len, first);
    return split_marks(c, step, (const unsigned char *)b->p, b->len, first, s->literal, false);
}

static ls_status run_step(cutter *c, int step, const unsigned char *p, size_t len, bool first)
{
    const ls_json_rules *rules = c->rules;

    if (step > rules->n_cut || (step == rules->n_cut && !rules->by_words))
        return ls_bpe_encode(c->work->bpe, p, len, c->out);
    if (step == rules->n_cut)
        return split_marks(c, step, p, len, first, LS_JSON_MARK, true);
    switch (rules->cut[step].kind) {
    case LS_CUT_BLANK:
        return run_blank(c, step, p, len, first);
    case LS_CUT_MARK:
        return run_mark(c, step, p, len, first);
    default:
        return run_pieces(c, step, p, len, first);
    }
}

ls_status ls_json_pieces(const ls_json_rules *rules, ls_json_work *work, const unsigned char *text,
                         size_t len, bool first, ls_tokens *out)
{
    return run_step(&(cutter){rules, work, out}, 0, text, len, first);
}

/* Whether the steps end a piece at a blank after other text, whatever surrounds it. */
static bool steps_cut(const ls_json_rules *rules)
{
    bool marked = false; /* blanks are U+2581 by now */

    for (int i = 0; i < rules->n_norm; i++) {
        const ls_norm_step *s = &rules->norm[i];
        if (s->kind != LS_NORM_REPLACE)
            continue;
        if (strcmp(s->from, " ") != 0 || strcmp(s->to, LS_JSON_MARK) != 0)
            return false;
        marked = true;
    }
    for (int i = 0; i < rules->n_cut; i++) {
        const ls_cut_step *s = &rules->cut[i];
        if (s->kind == LS_CUT_LITERAL ||
            (s->kind == LS_CUT_PATTERN && (marked || !ls_pretokenizer_is_known(s->pretokenizer))))
            return false;
        if (s->kind == LS_CUT_PATTERN || (s->kind == LS_CUT_MARK && s->split && !marked))
            return true;
        if (s->kind == LS_CUT_MARK) {
            if (strcmp(s->literal, LS_JSON_MARK) != 0)
                return false;
            marked = true;
        }
    }
    return marked && rules->by_words;
}

/* Exclude the characters of a token after which a cut would lie inside it. */
static void exclude(ls_json_rules *rules, const char *text, size_t len, const char *blank)
{
    size_t n = strlen(blank);

    for (size_t i = 1; i + n <= len; i++)
        if (memcmp(text + i, blank, n) == 0)
            rules->no_cut_after[(unsigned char)text[i - 1]] = true;
}

ls_status ls_json_plan_cuts(ls_json_rules *rules)
{
    rules->classes = ls_mem_alloc(LS_PRETOKENIZER_CODES);
    if (!rules->classes)
        return LS_ENOMEM;
    ls_pretokenizer_fill(rules->classes);
    rules->by_words = !rules->by_byte && !ls_bpe_joins_over(rules->bpe, LS_JSON_MARK) &&
                      ls_bpe_find(rules->bpe, LS_JSON_MARK, 3) >= 0 && rules->keeps_merging;
    rules->can_cut = steps_cut(rules);
    bool prepends = false;
    for (int i = 0; i < rules->n_norm; i++) {
        if (rules->norm[i].kind == LS_NORM_NFKC || rules->norm[i].kind == LS_NORM_NFKD)
            rules->cut_ascii = true; /* other characters may become blanks */
        prepends = prepends || rules->norm[i].kind == LS_NORM_PREPEND;
    }
    for (int32_t i = 0; i < rules->n_added; i++) {
        const ls_added_token *t = &rules->added[i];
        const char *blanks[] = {" ", LS_JSON_MARK};
        for (size_t k = 0; k < LS_COUNT(blanks); k++) {
            exclude(rules, t->content, strlen(t->content), blanks[k]);
            exclude(rules, t->match, t->match_len, blanks[k]);
        }
        /* What follows a token is a text of its own, with something put in front of it. */
        if ((t->rstrip || prepends) && t->match_len) {
            rules->no_cut_after[(unsigned char)t->match[t->match_len - 1]] = true;
            rules->no_cut_after[(unsigned char)t->content[strlen(t->content) - 1]] = true;
        }
        if (t->single_word && (t->match[0] == ' ' || t->content[0] == ' '))
            rules->can_cut = false;
    }
    return LS_OK;
}

size_t ls_json_cut(const ls_tokenizer *tok, const unsigned char *bytes, size_t len)
{
    const ls_json_rules *rules = tok->state;

    if (!rules->can_cut)
        return 0;
    for (size_t at = len; at-- > 1;) {
        size_t n, before = at - 1;
        if (bytes[at] != ' ' || rules->no_cut_after[bytes[before]])
            continue;
        while (before && bytes[before] >> 6 == 2)
            before--;
        if (ls_pretokenizer_class_at(rules->classes, bytes + before, &n) < LS_PRETOKENIZER_SPACE &&
            before + n == at && (!rules->cut_ascii || n == 1) &&
            !(n == 3 && memcmp(bytes + before, LS_JSON_MARK, 3) == 0))
            return at;
    }
    return 0;
}
