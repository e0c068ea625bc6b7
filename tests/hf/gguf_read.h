/* gguf_read.h -- reading GGUF files in tests: settings and tensors by name. */
#pragma once
#include "base/file.h"
#include "hf/gguf_block.h"

typedef struct gguf_read {
    ls_file_map map;
    const unsigned char *settings; /* the first of them */
    uint64_t n_settings, n_tensors;
    const unsigned char *tensors; /* where they are described */
    const unsigned char *data;    /* bytes of the first tensor */
} gguf_read;

typedef struct gguf_found {
    uint32_t type; /* of a setting, or of a tensor's numbers */
    int ndim;
    int64_t sizes[4];
    const unsigned char *bytes; /* of an array: its first element */
    uint64_t count;             /* of an array */
} gguf_found;

/* Checks the head, and that nothing lies outside of the file. */
void gguf_read_open(gguf_read *file, const char *path);
void gguf_read_close(gguf_read *file);
bool gguf_read_setting(const gguf_read *file, const char *key, gguf_found *found_out);
bool gguf_read_tensor(const gguf_read *file, const char *name, gguf_found *found_out);
/* A setting of one number or text; checked to be there. */
uint32_t gguf_read_u32(const gguf_read *file, const char *key);
float gguf_read_f32(const gguf_read *file, const char *key);
void gguf_read_text(const gguf_read *file, const char *key, char *out, size_t cap);
/* Element i of an array of texts. */
void gguf_read_nth(const gguf_found *array, uint64_t i, char *out, size_t cap);
