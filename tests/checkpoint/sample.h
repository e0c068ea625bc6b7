/* sample.h -- a small made-up model for the tests of checkpoints, and ways to hurt files. */
#pragma once
#include "checkpoint/ckpt.h"

enum { SAMPLE_MOST = 32 };

typedef struct sample {
    ls_ckpt_tensor tensors[SAMPLE_MOST];
    int n;
    int64_t bytes; /* of all tensors */
} sample;

/* Tensors of all types, odd shapes, rank 0 to 4, some empty; kinds param, adam.m, adam.v. */
void sample_make(sample *s);
/* A few hundred bytes in 2 groups, for tests with many rounds. */
void sample_make_tiny(sample *s);
void sample_add(sample *s, const char *name, const char *kind, const char *group, ls_dtype type,
                int ndim, const int64_t *shape);
void sample_release(sample *s);

/* Every byte a function of salt, tensor and position. Tensors of group "frozen" ignore the salt. */
void sample_fill(sample *s, uint32_t salt);
void sample_wipe(sample *s);
/* Does it hold what sample_fill(salt) would put there? */
bool sample_is(const sample *s, uint32_t salt);

/* Save the sample, filled with salt = step, as that step. */
ls_status sample_save(const char *dir, sample *s, int64_t step);
ls_ckpt_info sample_info(int64_t step);

/* Files under a folder whose name ends so, sorted by path; returns how many. */
typedef struct file_list {
    char path[64][256];
    int n;
} file_list;
void file_list_make(file_list *list, const char *folder, const char *suffix);

int64_t file_size(const char *path);
void file_flip(const char *path, int64_t byte, int bit);
void file_cut(const char *path, int64_t bytes);

/* Keep log lines from standard error; the last one can be looked at. */
void log_catch(void);
const char *log_last(void);
