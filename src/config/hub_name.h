/* hub_name.h -- a name of the Hugging Face Hub where a path belongs.
 *
 * Other programs download "org/name" by themselves. This one reads folders, so the message for such
 * a name has the command that makes one. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef enum ls_hub_kind { LS_HUB_MODEL, LS_HUB_DATASET } ls_hub_kind;

/* Where path is nothing that exists here, and looks like a name of the Hub (or its address): give the
 * record that ls_fail() just made the hint to download it. False, and nothing done: it does not. */
bool ls_hub_name_hint(const char *path, ls_hub_kind kind);

LS_C_END
