/* unbuilt_families.h -- families that people bring and that are not built: what each of them lacks here.
 *
 * Somebody whose model is refused wants to know whether a key of config.json is in the way or the
 * architecture is. A row names the parts of a family's forward pass for which there is no kernel or
 * no row of facts (model_families.h). A family that gets built leaves this table. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

/* "attention sinks, and ...": what the family needs and lineshaft has not; NULL: no family of the table. */
const char *ls_unbuilt_families_lacks(const char *model_type);

LS_C_END
