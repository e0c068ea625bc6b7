/* tokenizer_json_impl.h -- the rules of a tokenizer.json, ready to run; for the data room only.
 *
 * A text goes through them in this order: added tokens are taken out (those that are matched before
 * normalisation), each text between them is normalised, the other added tokens are taken out, the
 * rest is cut into pieces by the steps of the pre-tokenizer, and each piece goes through the BPE.
 */
#pragma once
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "base/arena.h"

#include <jansson.h>
#include <pthread.h>

enum {
    LS_JSON_STEPS = 16,                /* of a normalizer, pre-tokenizer or decoder */
    LS_JSON_TEMPLATE = 16,             /* ids in front of a text, and behind it */
    LS_JSON_IDS = 4 << 20,             /* ids lie below */
    LS_JSON_FILE_BYTES = 256 * 1 << 20 /* a tokenizer.json of a million tokens has 60 MB */
};

#define LS_JSON_MARK "\xe2\x96\x81" /* U+2581, which stands for a blank in SentencePiece's way */

/* --- added tokens (tokenizer_added.c) ----------------------------------------------------------
 */

typedef struct ls_added_token {
    const char *content; /* as in the file */
    const char *match;   /* what is looked for: content, normalised when normalized is true */
    size_t match_len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} ls_added_token;

typedef struct ls_added_node {
    int32_t child, sibling; /* -1: none */
    int32_t token;          /* index of the token that ends here, -1: none */
    unsigned char byte;
} ls_added_node;

/* Tokens to be looked for, as a trie. */
typedef struct ls_added_set {
    const ls_added_token *tokens; /* borrowed */
    ls_added_node *nodes;         /* owned */
    int32_t count;
    int32_t roots[256]; /* node of the first byte, -1: none */
    int only_first;     /* the only byte that a token begins with; -1: several */
} ls_added_set;

/* A part of a text: a token, or (id -1) plain text. */
typedef struct ls_added_part {
    size_t start, stop;
    int32_t id;
} ls_added_part;

typedef struct ls_added_walk {
    const ls_added_set *set; /* borrowed, as is the text */
    const unsigned char *text;
    size_t len;
    size_t at;          /* where the search goes on */
    size_t done;        /* what has been handed out */
    bool specials;      /* special tokens count */
    bool held;          /* next is ready */
    ls_added_part next; /* a token behind the text that was handed out */
} ls_added_walk;

void ls_added_init(ls_added_set *set, const ls_added_token *tokens);
void ls_added_release(ls_added_set *set);
ls_status ls_added_insert(ls_added_set *set, int32_t index);
void ls_added_begin(ls_added_walk *walk, const ls_added_set *set, const unsigned char *text,
                    size_t len, bool specials);
/* The next part; false at the end. */
bool ls_added_next(ls_added_walk *walk, ls_added_part *part_out);

/* --- normalisation (tokenizer_norm.c) ----------------------------------------------------------
 */

typedef enum ls_norm_kind {
    LS_NORM_NFC,
    LS_NORM_NFD,
    LS_NORM_NFKC,
    LS_NORM_NFKD,
    LS_NORM_LOWERCASE,
    LS_NORM_PREPEND, /* `to` in front of a text that is not empty */
    LS_NORM_REPLACE  /* each `from` by `to` */
} ls_norm_kind;

typedef struct ls_norm_step {
    ls_norm_kind kind;
    const char *from, *to;
} ls_norm_step;

typedef struct ls_norm_work {
    ls_str a, b;     /* the text before and after a step */
    int32_t *codes;  /* owned */
    int32_t *sorted; /* owned */
    size_t cap;      /* of codes */
    size_t sorted_cap;
} ls_norm_work;

void ls_norm_init(ls_norm_work *work);
void ls_norm_release(ls_norm_work *work);
/* text after all steps, borrowed from work until the next call, or text itself. continues: nothing
 * is put in front. */
ls_status ls_norm_run(ls_norm_work *work, const ls_norm_step *steps, int n, bool continues,
                      const unsigned char **text, size_t *len);

/* --- pre-tokenizer (tokenizer_cut.c) -----------------------------------------------------------
 */

typedef enum ls_cut_kind {
    LS_CUT_PATTERN, /* pretokenizer */
    LS_CUT_LITERAL, /* each occurrence of `literal` is a piece */
    LS_CUT_DIGITS,  /* numbers are pieces: each digit, or each run */
    LS_CUT_BLANK,   /* a blank in front of a piece that has none */
    LS_CUT_MARK     /* blanks become U+2581; cut in front of each */
} ls_cut_kind;

typedef enum ls_cut_scheme { LS_CUT_ALWAYS, LS_CUT_FIRST, LS_CUT_NEVER } ls_cut_scheme;

typedef struct ls_cut_step {
    ls_cut_kind kind;
    ls_pretokenizer *pretokenizer; /* owned */
    const char *literal;
    bool each;            /* DIGITS: every digit on its own */
    bool split;           /* MARK: cut */
    ls_cut_scheme scheme; /* MARK: where one is put in front */
} ls_cut_step;

/* --- decoder (tokenizer_decode.c) ----------------------------------------------------------------
 */

typedef enum ls_tokenizer_decode_kind {
    LS_TOKENIZER_DECODE_BYTES,    /* the alphabet of ByteLevel back to bytes */
    LS_TOKENIZER_DECODE_REPLACE,  /* each `from` by `to` */
    LS_TOKENIZER_DECODE_FALLBACK, /* <0x0A> is a byte */
    LS_TOKENIZER_DECODE_STRIP,    /* up to `start` and `stop` times `from` at the ends */
    LS_TOKENIZER_DECODE_MARK      /* U+2581 is a blank, and nothing in the first token */
} ls_tokenizer_decode_kind;

typedef struct ls_tokenizer_decode_step {
    ls_tokenizer_decode_kind kind;
    const char *from, *to;
    int start, stop;
    bool keep_first; /* MARK: also a blank in the first token */
} ls_tokenizer_decode_step;

/* Append the bytes of one token. */
void ls_tokenizer_decode_token(const ls_tokenizer_decode_step *steps, int n, const char *token,
                               bool first, ls_str *out);

/* A token in ByteLevel's alphabet to bytes; false: it has other characters. */
bool ls_byte_level_text(const char *token, ls_str *out);

/* --- all together ------------------------------------------------------------------------------
 */

/* Bytes of each id. */
typedef struct ls_piece_table {
    ls_str bytes;
    int64_t *at; /* [ids + 1], owned */
} ls_piece_table;

typedef struct ls_json_work {
    struct ls_json_work *next; /* in the pool */
    ls_bpe_work *bpe;
    ls_pretokenizer_work *pretokenizer[LS_JSON_STEPS]; /* NULL where the step has no pattern */
    ls_str buffer[LS_JSON_STEPS];                      /* of steps that change the text */
    ls_norm_work norm;
} ls_json_work;

typedef struct ls_json_rules {
    ls_arena arena; /* small texts */
    ls_bpe *bpe;
    bool by_byte;
    ls_norm_step norm[LS_JSON_STEPS];
    ls_cut_step cut[LS_JSON_STEPS];
    ls_tokenizer_decode_step undo[LS_JSON_STEPS];
    int n_norm, n_cut, n_undo;
    bool fused;         /* the decoder's further steps see the whole text */
    bool keeps_merging; /* no ignore_merges: a piece is never looked up whole */
    bool by_words;      /* no merge goes over the beginning of a word: pieces end there */
    ls_added_token *added;
    int32_t n_added;
    ls_added_set before, after; /* normalisation */
    int32_t front[LS_JSON_TEMPLATE], back[LS_JSON_TEMPLATE];
    int n_front, n_back;
    ls_piece_table pieces, first; /* first: as first token; empty when it makes no difference */
    bool *special;                /* [ids] */
    bool can_cut;                 /* in front of a blank, after a character that allows it */
    bool cut_ascii;               /* that character must be ASCII */
    bool no_cut_after[256];       /* its last byte is none of these */
    unsigned char *classes;       /* of characters (pretokenizer_impl.h) */
    pthread_mutex_t lock;         /* of pool */
    ls_json_work *pool;           /* free work areas */
} ls_json_rules;

/* Read tokenizer.json (tokenizer_read.c): fills everything but the pool. */
ls_status ls_json_read(ls_tokenizer *tok, ls_json_rules *rules, const char *path);
/* Read normalizer, pre_tokenizer, post_processor and decoder (tokenizer_steps.c). */
ls_status ls_json_read_steps(ls_tokenizer *tok, ls_json_rules *rules, json_t *root);
/* bos, eos, separator and chat template from the files next to it (tokenizer_side.c). */
ls_status ls_json_read_side(ls_tokenizer *tok, ls_json_rules *rules, const char *folder);
/* Whether and where a text can be cut (tokenizer_cut.c). */
ls_status ls_json_plan_cuts(ls_json_rules *rules);
size_t ls_json_cut(const ls_tokenizer *tok, const unsigned char *bytes, size_t len);
/* One text without added tokens through pre-tokenizer and BPE; first: it begins the whole. */
ls_status ls_json_pieces(const ls_json_rules *rules, ls_json_work *work, const unsigned char *text,
                         size_t len, bool first, ls_tokens *out);
int32_t ls_json_find(const ls_tokenizer *tok, const char *token);
