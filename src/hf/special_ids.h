/* special_ids.h -- the tokens that begin, end and pad the texts of a model.
 *
 * config.json, generation_config.json, the tokenizer's files and the chat template each say a part of
 * it, and training adds its own: a run puts loss on the separator behind each document, or on what ends
 * a turn of a conversation, so the model writes that token where it is done. Everybody who asks (generate, export, GGUF files)
 * gets one answer from here. */
#pragma once
#include "hf/hf_folder.h"

LS_C_BEGIN

enum { LS_SPECIAL_IDS_EOS = 2 * LS_HF_CONFIG_EOS + 2, LS_SPECIAL_IDS_TURN = 64 };

typedef struct ls_special_ids {
    int64_t bos, pad;                /* -1: none */
    int64_t eos[LS_SPECIAL_IDS_EOS]; /* the first one is what the model was taught last */
    int n_eos;
    int64_t turn; /* of them: what ends a turn; -1: unknown, or spelled in pieces: */
    char turn_text[LS_SPECIAL_IDS_TURN]; /* the text that ends a turn; "": unknown */
} ls_special_ids;

/* Of the model in a folder. tok is its tokenizer, or NULL when it has none. A run on conversations is
 * asked for what ends a turn; another model only with chat, where its tokenizer has a template.
 * LS_EDATA: a generation_config.json that is no JSON object. */
ls_status ls_special_ids_find(const ls_hf_folder *folder, const ls_tokenizer *tok, bool chat,
                              ls_special_ids *out);

LS_C_END
