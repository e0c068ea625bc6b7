/* tokenizer_added.c -- tokens that are found in the text as they are written.
 *
 * The longest token at the leftmost place wins, and the search goes on behind it, even when it is
 * then passed over (a special token that does not count, half of a word where whole ones are asked
 * for): so does the package, and ids must be the same. The tokens lie in a trie, so that a place in
 * the text costs as many steps as characters agree, however many tokens there are. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "data/tokenizer/utf8.h"
#include "base/mem.h"

#include <utf8proc.h>

void ls_added_init(ls_added_set *set, const ls_added_token *tokens)
{
    *set = (ls_added_set){.tokens = tokens, .only_first = -1};
    memset(set->roots, -1, sizeof set->roots);
}

void ls_added_release(ls_added_set *set)
{
    ls_mem_free(set->nodes);
    ls_added_init(set, NULL);
}

/* A new node; its index, -1 without memory. */
static int32_t new_node(ls_added_set *set, unsigned char byte)
{
    ls_added_node *nodes = set->count < INT32_MAX
                               ? ls_mem_one_more(set->nodes, (size_t)set->count, sizeof *nodes)
                               : NULL;

    if (!nodes)
        return -1;
    set->nodes = nodes;
    set->nodes[set->count] = (ls_added_node){-1, -1, -1, byte};
    return set->count++;
}

/* The child of a node by its byte, -1: none. */
static int32_t child_of(const ls_added_set *set, int32_t node, unsigned char byte)
{
    int32_t child = set->nodes[node].child;

    while (child >= 0 && set->nodes[child].byte != byte)
        child = set->nodes[child].sibling;
    return child;
}

ls_status ls_added_insert(ls_added_set *set, int32_t index)
{
    const ls_added_token *token = &set->tokens[index];
    const unsigned char *p = (const unsigned char *)token->match;
    int32_t node;

    if (token->match_len == 0)
        return LS_OK;
    if (set->count == 0)
        set->only_first = p[0];
    else if (set->only_first != p[0])
        set->only_first = -1;
    node = set->roots[p[0]];
    if (node < 0) {
        node = new_node(set, p[0]);
        if (node < 0)
            return LS_ENOMEM;
        set->roots[p[0]] = node;
    }
    for (size_t i = 1; i < token->match_len; i++) {
        int32_t child = child_of(set, node, p[i]);
        if (child < 0) {
            child = new_node(set, p[i]);
            if (child < 0)
                return LS_ENOMEM;
            set->nodes[child].sibling = set->nodes[node].child;
            set->nodes[node].child = child;
        }
        node = child;
    }
    if (set->nodes[node].token < 0) /* of two with one text the first counts */
        set->nodes[node].token = index;
    return LS_OK;
}

/* The longest token that begins at `at`, -1: none. */
static int32_t longest_at(const ls_added_set *set, const unsigned char *text, size_t len, size_t at)
{
    int32_t node = set->roots[text[at]], best = -1;

    while (node >= 0) {
        if (set->nodes[node].token >= 0)
            best = set->nodes[node].token;
        if (++at >= len)
            break;
        node = child_of(set, node, text[at]);
    }
    return best;
}

static const ls_added_token *search(const ls_added_set *set, const unsigned char *text, size_t len,
                                    size_t *at)
{
    for (size_t i = *at; i < len; i++) {
        if (set->only_first >= 0) {
            const unsigned char *hit = memchr(text + i, set->only_first, len - i);
            if (!hit)
                return NULL;
            i = (size_t)(hit - text);
        } else if (set->roots[text[i]] < 0) {
            continue;
        }
        int32_t token = longest_at(set, text, len, i);
        if (token >= 0) {
            *at = i;
            return &set->tokens[token];
        }
    }
    return NULL;
}

/* The character that ends before `at`, or begins at it; at is no end of the text. */
static int32_t code_before(const unsigned char *text, size_t at, size_t *n_out)
{
    int32_t code;
    size_t i = at - 1;

    while (i && text[i] >> 6 == 2)
        i--;
    *n_out = at - i;
    return utf8proc_iterate(text + i, (utf8proc_ssize_t)(at - i), &code) > 0 ? code : -1;
}

static int32_t code_at(const unsigned char *text, size_t len, size_t at, size_t *n_out)
{
    int32_t code;
    utf8proc_ssize_t n = utf8proc_iterate(text + at, (utf8proc_ssize_t)(len - at), &code);

    *n_out = n > 0 ? (size_t)n : 1;
    return n > 0 ? code : -1;
}

static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* What Unicode calls a word character: alphabetic, mark, digit, connector, joiner. */
static bool is_word(int32_t c)
{
    if (c < 0)
        return false;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* joiners, and the letters in circles and squares, which count as alphabetic */
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
               (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
               (c >= 0x1f170 && c <= 0x1f189);
    }
}

static bool stands_alone(const ls_added_walk *w, size_t start, size_t stop)
{
    size_t n;

    return !(start && is_word(code_before(w->text, start, &n))) &&
           !(stop < w->len && is_word(code_at(w->text, w->len, stop, &n)));
}

/* Whether a token found at start counts; its part with the white space that it takes along. */
static bool accept(const ls_added_walk *w, const ls_added_token *t, size_t start,
                   ls_added_part *part)
{
    size_t stop = start + t->match_len, n;

    if ((t->special && !w->specials) || (t->single_word && !stands_alone(w, start, stop)))
        return false;
    /* What the token before took along is not walked over again: a text of blanks alone, and a
     * token that is a blank, would else cost the square of its length. */
    if (t->lstrip) {
        while (start > w->done && is_space(code_before(w->text, start, &n)))
            start -= n;
        start = start > w->done ? start : w->done;
    }
    if (t->rstrip) {
        stop = stop > w->done ? stop : w->done;
        while (stop < w->len && is_space(code_at(w->text, w->len, stop, &n)))
            stop += n;
    }
    *part = (ls_added_part){start, stop, t->id};
    return true;
}

void ls_added_begin(ls_added_walk *walk, const ls_added_set *set, const unsigned char *text,
                    size_t len, bool specials)
{
    *walk = (ls_added_walk){.set = set, .text = text, .len = len, .specials = specials};
}

bool ls_added_next(ls_added_walk *w, ls_added_part *part_out)
{
    const ls_added_token *token;
    ls_added_part part;

    if (w->held) {
        w->held = false;
        w->done = w->next.stop;
        *part_out = w->next;
        return true;
    }
    while (w->set->count && (token = search(w->set, w->text, w->len, &w->at))) {
        size_t start = w->at;
        w->at += token->match_len;
        if (!accept(w, token, start, &part))
            continue;
        if (part.start >= part.stop) /* white space that the token before took along entirely */
            continue;
        if (w->done < part.start) {
            *part_out = (ls_added_part){w->done, part.start, -1};
            w->next = part;
            w->held = true;
        } else {
            *part_out = part;
            w->done = part.stop;
        }
        return true;
    }
    w->at = w->len;
    if (w->done >= w->len)
        return false;
    *part_out = (ls_added_part){w->done, w->len, -1};
    w->done = w->len;
    return true;
}
