/* unbuilt_families.h -- model families that are not built, and what lineshaft lacks for each.
 *
 * A user whose model is refused wants to know whether a key of config.json or the architecture is
 * the reason. A row names the parts of a family's forward pass for which there is no kernel or
 * no row of facts (model_families.h). A family that gets built leaves this table. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

/* "attention sinks, and ...": what the family needs and lineshaft lacks; NULL: it is not in the table. */
const char *ls_unbuilt_families_lacks(const char *model_type);

LS_C_END
