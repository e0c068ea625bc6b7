/* json_edit.h -- one key of a JSON object changed in its text.
 *
 * All other bytes stay: numbers of 31 digits, the order of keys, the spacing of other programs. */
#pragma once
#include "base/str.h"

LS_C_BEGIN

/* Give the outermost object in text the value (JSON itself) under key: in the place of the one that is
 * there, else behind the last. The key needs no escapes. LS_EDATA: text is no object, or ends inside. */
ls_status ls_json_edit_set(ls_str *text, const char *key, const char *value);

LS_C_END
