/* preference_data.h -- preferences of files into one shard: two answers a window.
 *
 * A line of JSON is {"prompt", "chosen", "rejected"}, for kto {"prompt", "completion", "label"}; the
 * parts are texts, or lists of messages that a chat template writes out. Without "prompt" the two
 * answers begin with it: with what they have in common. */
#pragma once
#include "config/run.h"
#include "data/tokenizer/tokenizer.h"
#include "data/chat/chat.h"

LS_C_BEGIN

typedef struct ls_preference_data_args {
    ls_objective objective;  /* not lm */
    const ls_tokenizer *tok; /* borrowed, as all of these */
    const ls_chat *chat;     /* for messages; NULL: there is no template, and only texts are read */
    const char *out;         /* path of the shard */
    const char *const *files;
    int n_files;
    const char *name; /* what the shard says it was made of */
    ls_utf8_policy utf8;
    bool skip_bad;  /* warn of a line that cannot be used, and go on */
    int64_t window; /* tokens: each answer with its prompt has at most half of them */
    ls_hash key;    /* see ls_token_shard.key */
} ls_preference_data_args;

/* LS_EDATA: a line is not what the objective needs (file and line are named), or no pair is left.
 * Nothing is written on failure. */
ls_status ls_preference_data_build(const ls_preference_data_args *args);

LS_C_END
