/* hub_name.h -- the name of a model or a data set on the Hugging Face hub, written where a path is needed. */
#pragma once
#include <stdbool.h>
#include "base/base.h"

LS_C_BEGIN

/* If the path could be such a name ("org/name", and there is no folder "org"), the hint of the last error becomes how to
 * download it. kind: "model" or "dataset". */
bool ls_hub_name_hint(const char *path, const char *kind);

LS_C_END
