/* hf_base.h -- where a model came from, as transformers and PEFT would load it again.
 *
 * An adapter names its base model, which must be one that others can load: not our import of it. So an
 * import, and the copies that a run keeps, note the folder or the hub name in config.json, under a key
 * that no other program reads. */
#pragma once
#include "hf/hf_folder.h"

LS_C_BEGIN

/* config.json was copied from the folder `from` to `to`: note there where the model came from, unless
 * the file says it already. */
ls_status ls_hf_base_note(const char *from, const char *to);

/* Note it in the text of a config.json. */
ls_status ls_hf_base_set(ls_str *config, const char *base);

/* The base model of what the folder holds: the Hugging Face folder, as an absolute path, or the hub name
 * that its import came from; where nobody noted it, what model.import says. "": it has none. */
ls_status ls_hf_base_of(const ls_hf_folder *folder, ls_str *base_out);

/* Whether transformers finds a model there: a hub name, or a folder with config.json and weights that
 * quantize has not made. */
bool ls_hf_base_loads(const char *base);

LS_C_END
