/* cmd_tokenizer.h -- the sub-commands of data that make, describe and use tokenizers. */
#pragma once
#include "cli/command.h"

extern const ls_command ls_cmd_tokenizer, ls_cmd_encode, ls_cmd_decode;

/* The row of --tokenizer, and its value. */
#define LS_CMD_TOKENIZER_FLAG                                             \
    {                                                                     \
        "tokenizer", 't', "FOLDER", false,                                \
            "Folder with a tokenizer.json, or bytes; bytes unless given." \
    }
const char *ls_cmd_tokenizer_name(const ls_args *args);
