/* hf_copy.h -- the small files that go along with a model, and folders that appear whole. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

/* Copy what there is of the tokenizer's files from folder to folder. *count_out: how many. */
ls_status ls_hf_copy_tokenizer(const char *from, const char *to, int *count_out);

/* Keep the files of a run's tokenizer (a folder, or the file tokenizer.json in one; "bytes" needs
 * none), and config.json and generation_config.json of the model it imports ("": none), in
 * the folder LS_HF_CONFIG_COPIES in home. Then the run can be used wherever it goes. What is there already
 * stays, unless renew; the folder appears whole or not at all. */
ls_status ls_hf_copy_keep(const char *home, const char *tokenizer, const char *import, bool renew);
/* One file by name; nothing when it is not there. */
ls_status ls_hf_copy_file(const char *from, const char *to, const char *name, bool *done_out);

/* A folder in the making beside its final place. */
typedef struct ls_hf_copy_stage {
    char path[4096];  /* where to write */
    char final[4096]; /* where it will be */
    int fd;           /* the folder, locked while we live; meaningless unless locked */
    bool locked;
} ls_hf_copy_stage;

/* What a process that was killed left behind for the same final place is removed first.
 * LS_EUSAGE: the final place exists and is not an empty folder. */
ls_status ls_hf_copy_stage_begin(ls_hf_copy_stage *stage, const char *final);
/* Give it its name. */
ls_status ls_hf_copy_stage_commit(ls_hf_copy_stage *stage);
/* Remove what was written. Safe after commit and on one that never began. */
void ls_hf_copy_stage_drop(ls_hf_copy_stage *stage);

LS_C_END
