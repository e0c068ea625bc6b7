/* cmd_generate.h -- the parts of `lineshaft generate`: the model, the settings, the text.
 *
 * First what the model is, then what is asked of it, then whether that fits into memory; the
 * weights are loaded last, so that a mistake in a flag costs no time. */
#pragma once
#include <jansson.h>
#include "cli/command.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/special_ids.h"
#include "model/decode.h"

/* A model and what it needs to talk. */
typedef struct ls_generate_model {
    ls_hf_folder *folder;
    ls_tokenizer *tokenizer;
    ls_model model;
    ls_special_ids ids; /* tokens with which the model ends its text */
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *kernels;
    void *weights;
    ls_pass *pass;
    ls_decode *decode;
} ls_generate_model;

/* What is asked for: flags, else the model's generation_config.json, else our own defaults. */
typedef struct ls_generate_settings {
    ls_sampling sampling;
    int64_t count;   /* most tokens to add */
    int64_t context; /* most positions to keep; 0: as many as the model has */
    bool ignore_eos, json, quiet, chat;
    const char *stops[65]; /* borrowed from argv, and with chat what ends a turn */
    int n_stops;
} ls_generate_settings;

/* --- cmd_generate_model.c --------------------------------------------------------------------- */

/* Find the model and describe it; key: of a signed checkpoint, or NULL; chat: it answers a user. */
ls_status ls_generate_find(ls_generate_model *m, const char *path, const char *key, bool chat);
/* Prepare to generate with a cache of this many positions; with -v memory use goes to standard
 * error. */
ls_status ls_generate_load(ls_generate_model *m, int64_t cache, bool tell_memory);
void ls_generate_release(ls_generate_model *m);

/* --- cmd_generate_settings.c ------------------------------------------------------------------ */

/* LS_EUSAGE: a flag that cannot be meant. LS_EDATA: a generation_config.json that cannot be. */
ls_status ls_generate_read_flags(ls_generate_settings *s, const ls_args *args);
/* The defaults of a folder's generation_config.json for what no flag sets; a folder without one is
 * fine. With chat a text that ends a turn and is no token of its own becomes a stop text. */
ls_status ls_generate_read_defaults(ls_generate_settings *s, const ls_args *args,
                                    const ls_generate_model *m);

/* --- cmd_generate_prompt.c -------------------------------------------------------------------- */

/* Whether a session at the terminal is meant: --chat, no prompt, and somebody who can type one. */
bool ls_generate_is_session(const ls_args *args);
/* --prompt, or what --prompt-file names, or what a pipe or file at standard input holds; else empty. */
ls_status ls_generate_read_prompt(const ls_args *args, ls_str *prompt_out);
/* The ids that the model reads: the prompt, with --chat as the chat template writes it. LS_EUSAGE:
 * more than the context holds, or no chat template. */
ls_status ls_generate_encode(const ls_generate_model *m, const ls_generate_settings *s,
                             const ls_str *prompt, ls_tokens *ids_out);
/* The ids of a conversation, {"messages": [...]}, up to where the assistant begins to speak. */
ls_status ls_generate_encode_chat(const ls_generate_model *m, const json_t *object,
                                  ls_tokens *ids_out);
/* LS_EUSAGE: --context is more than the model has. context_out: how many tokens it may see. */
ls_status ls_generate_context(const ls_generate_model *m, const ls_generate_settings *s,
                              int64_t *context_out);

/* --- cmd_generate_text.c ---------------------------------------------------------------------- */

/* What is continued. */
typedef struct ls_generate_task {
    const ls_str *prompt; /* shown in front of the text; NULL: only what is added is shown */
    ls_tokens *ids;       /* what the model reads; what it adds is appended */
    int64_t held;         /* of these the cache has as many already */
    int64_t position;     /* number of the first token to choose, for the random choice */
} ls_generate_task;

/* Continue it on standard output. text_out, which may be NULL, gets what was added. LS_EINTR: Ctrl-C;
 * what was printed stays, and text_out has it. */
ls_status ls_generate_speak(ls_generate_model *m, const ls_generate_settings *s,
                            const ls_generate_task *task, ls_str *text_out);

/* --- cmd_generate_session.c ------------------------------------------------------------------- */

/* How many tokens a session keeps unless --context says. */
enum { LS_GENERATE_SESSION = 8192 };

/* Talk with the user at the terminal until the end of the input or /quit. */
ls_status ls_generate_converse(ls_generate_model *m, const ls_generate_settings *s,
                               int64_t context);
