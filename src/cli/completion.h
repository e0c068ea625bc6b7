/* completion.h -- completion scripts for shells, made from the tables. */
#pragma once
#include "base/str.h"

/* The script for "bash", "zsh" or "fish". LS_EUSAGE for any other name. */
ls_status ls_completion_script(const char *shell, ls_str *out);
