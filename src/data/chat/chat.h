/* chat.h -- conversations as text, as tokens, and as a shard with marks.
 *
 * A conversation is a JSON object: {"messages": [{"role", "content"}, ...]}, or in the ShareGPT
 * spelling {"conversations": [{"from", "value"}, ...]}. A template (jinja/jinja.h) writes it
 * out, and what the assistant says is found in that text: its content and what ends its turn. Only
 * those tokens are targets. A chat is read-only after opening, so threads may share it. */
#pragma once
#include "config/run.h"
#include "data/tokenizer/tokenizer.h"
#include "jinja/jinja.h"

LS_C_BEGIN

typedef struct ls_chat ls_chat;

/* The fields of a line that matter, ended by NULL (ls_source_next_object). */
extern const char *const ls_chat_fields[];

/* Whether a value of data.template asks for chat data: neither NULL nor "none". */
bool ls_chat_is_meant(const char *name);

/* The template of a name: "auto" (the tokenizer's own), "chatml", "llama3", "qwen", or a file.
 * LS_EUSAGE: there is none. LS_EDATA: it cannot be parsed. tok is borrowed until close. */
ls_status ls_chat_open(ls_chat **out, const char *name, const ls_tokenizer *tok);
void ls_chat_close(ls_chat *chat); /* NULL is allowed */
/* Warns where the tokenizer has no token for a mark of the template, such as <|im_start|>: spelled in
 * pieces it teaches a model little. Called where data is written or shown, not where a model is
 * asked. */
void ls_chat_warn_of_spelling(const ls_chat *chat);
/* The text of the template, as it was found. Borrowed until close. */
const char *ls_chat_template(const ls_chat *chat);
/* Of the template and of how answers are found: another hash, other text or marks. */
ls_hash ls_chat_hash(const ls_chat *chat);

const ls_tokenizer *ls_chat_tokenizer(const ls_chat *chat);

/* A conversation written out. answers are what the assistant says, in bytes, in order. */
typedef struct ls_chat_text {
    ls_str text;
    ls_jinja_spans answers;
} ls_chat_text;

void ls_chat_text_init(ls_chat_text *text);
void ls_chat_text_release(ls_chat_text *text);

/* Write out the conversation of one object. where ("file:12") stands in messages; now is what a
 * template takes for today, in seconds since 1970. LS_EDATA: not a conversation, none that the
 * template accepts, or one without an answer. */
ls_status ls_chat_render(const ls_chat *chat, const json_t *object, const char *where, int64_t now,
                         ls_chat_text *out);

/* Whether the line has tools and the template never reads them, so that a model would learn to call
 * what it was not told of. */
bool ls_chat_drops_tools(const ls_chat *chat, const json_t *object);

/* What ends an answer: the text that the template writes behind it, without white space, appended
 * to text ("" where it writes none), and in *id_out the token that this text ends with; -1: it is
 * spelled in pieces, or the template does not take a user's message and an answer. */
ls_status ls_chat_turn_end(const ls_chat *chat, ls_str *text, int32_t *id_out);

/* Write out a conversation that waits for an answer: up to where the assistant begins to speak. */
ls_status ls_chat_prompt(const ls_chat *chat, const json_t *object, const char *where, int64_t now,
                         ls_str *out);

/* Write out a whole conversation, whether it has an answer or not. */
ls_status ls_chat_whole(const ls_chat *chat, const json_t *object, const char *where, int64_t now,
                        ls_str *out);

/* Its ids, the same as those of the text in one piece, and a byte for each: 1 where it is a target.
 * marks_out is resized like tokens; the first token is never a target. */
ls_status ls_chat_encode(const ls_chat *chat, const ls_chat_text *text, ls_tokens *ids_out,
                         ls_str *marks_out);

/* --- building a shard -------------------------------------------------------------------------
 * Conversations are laid into windows one after the other. One that does not fit in the rest of a
 * window begins the next; the rest is filled with separators, a document of its own without
 * targets. One longer than a window is cut at its end. */
typedef struct ls_chat_build_args {
    const char *out; /* path of the shard */
    const char *const *files;
    int n_files;
    const char *name; /* what the shard says it was made of */
    ls_utf8_policy utf8;
    bool skip_bad;  /* warn of a line that cannot be used, and go on */
    int64_t window; /* tokens */
    ls_hash key;    /* see ls_token_shard.key */
    void (*progress)(void *context, const char *file,
                     int64_t bytes); /* NULL: no progress is reported */
    void *context;
} ls_chat_build_args;

typedef struct ls_chat_built {
    int64_t conversations; /* read and not skipped */
    int64_t skipped;       /* lines that could not be used */
    int64_t cut;           /* longer than a window; of these: */
    int64_t lost;          /* left out, because no answer was left */
    int64_t tokens;        /* of conversations, without filling */
    int64_t targets;
    int64_t windows;
} ls_chat_built;

/* A warning says what was cut and what was skipped. built_out may be NULL. Nothing is written on failure. */
ls_status ls_chat_build(const ls_chat *chat, const ls_chat_build_args *args,
                        ls_chat_built *built_out);

LS_C_END
