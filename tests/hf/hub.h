/* hub.h -- small Hugging Face folders for tests. */
#pragma once
#include "base/str.h"
#include "model/model.h"

/* A tensor of a folder to be written; values are given as fp32 and stored as type. */
typedef struct hub_tensor {
    char name[128];
    ls_dtype type;
    int ndim;
    int64_t shape[2];
    float *values; /* owned */
    int64_t count;
} hub_tensor;

typedef struct hub {
    ls_run run;
    ls_model model;
    hub_tensor *tensors; /* one per parameter, and room for 8 more */
    int n;
    char config[4096];
} hub;

/* A model of the run file text, with start values for all parameters; LoRA left out. */
void hub_init(hub *s, const char *model_yaml);
void hub_release(hub *s);
hub_tensor *hub_find(hub *s, const char *name);
hub_tensor *hub_add(hub *s, const char *name, int64_t rows, int64_t cols);
void hub_drop(hub *s, const char *name);

/* Write FOLDER/config.json and the tensors, as one file or in n_files shards with an index. */
void hub_write(hub *s, const char *folder, int n_files);
/* One file of tensors first .. first+count-1. */
void hub_write_file(const hub *s, const char *path, int first, int count);
