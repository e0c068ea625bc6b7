/* gguf_vocab.h -- a tokenizer as the settings of a GGUF file.
 *
 * llama.cpp has no general tokenizer: it knows two kinds of BPE, and the patterns that texts are cut
 * by under names of its own.
 *
 *   byte-level    "gpt2": tokens, merges, and the name of the pattern (`tokenizer.ggml.pre`)
 *   SentencePiece "llama": tokens with scores instead of merges; the pair whose union has the
 *                 highest score is merged first
 *
 * What a file cannot say is refused, since another cut is another model. */
#pragma once
#include "config/hf_config.h"
#include "hf/gguf.h"

LS_C_BEGIN

/* Append the tokenizer in folder (tokenizer.json and what lies beside it), and the name of the model
 * (general.name), since llama.cpp reads tokens by it. vocab: rows of the model's embedding; tokens
 * that the tokenizer lacks are filled up. config has the ids of bos, eos and pad. Appends to notes
 * what llama.cpp does differently, a sentence each. LS_EUSAGE: llama.cpp has no such tokenizer; the
 * message says why. */
ls_status ls_gguf_vocab_put(ls_gguf_settings *settings, const char *folder, int64_t vocab,
                            const ls_hf_config *config, const char *name, ls_str *notes);

LS_C_END
