/* hf_copy.h -- the small files that go along with a model. */
#pragma once
#include "base/err.h"
#include "config/run.h"

LS_C_BEGIN

/* Copy what there is of the tokenizer's files from folder to folder. *count_out: how many. */
ls_status ls_hf_copy_tokenizer(const char *from, const char *to, int *count_out);

/* Keep the files of a run's tokenizer (a folder, or the file tokenizer.json in one; "bytes" needs
 * none), and config.json and generation_config.json of the model it imports ("": none), in
 * the folder LS_HF_CONFIG_COPIES in home. Then the run can be used wherever it goes. What is there already
 * stays, unless renew; the folder appears whole or not at all. */
ls_status ls_hf_copy_keep(const char *home, const char *tokenizer, const char *import, bool renew);
/* data.tokenizer of a run, or, when that is gone, the copy in its run folder: in kept (PATH_MAX). */
const char *ls_hf_copy_tokenizer_of(const ls_run *run, char *kept);
/* One file by name; nothing when it is not there. */
ls_status ls_hf_copy_file(const char *from, const char *to, const char *name, bool *done_out);

LS_C_END
