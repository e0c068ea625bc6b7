/* gguf.h -- the GGUF file format, version 3: settings and tensors in one file, as llama.cpp reads it.
 *
 *   4 bytes   "GGUF", then version (u32), number of tensors (u64), number of settings (u64)
 *   settings  name, type (u32), value; a text is its length (u64) and its bytes, an array is the
 *             type of its elements (u32), their number (u64) and they
 *   tensors   name, number of dimensions (u32), sizes from the innermost on (u64 each), type (u32),
 *             where its bytes begin, counted from the first tensor's (u64)
 *   the rest  the tensors in this order, each on a multiple of LS_GGUF_ALIGN bytes
 *
 * All numbers are little endian. The settings are built in memory; tensors are put piece by piece.
 * Not thread-safe. */
#pragma once
#include "base/str.h"
#include "hf/gguf_block.h"

LS_C_BEGIN

enum { LS_GGUF_ALIGN = 32, LS_GGUF_RANK = 3, LS_GGUF_NAME = 64 };

/* Types of settings that are written here. */
typedef enum ls_gguf_kind {
    LS_GGUF_U32 = 4,
    LS_GGUF_I32 = 5,
    LS_GGUF_F32 = 6,
    LS_GGUF_BOOL = 7,
    LS_GGUF_TEXT = 8
} ls_gguf_kind;

typedef struct ls_gguf_settings {
    ls_str bytes;
    uint64_t count;
} ls_gguf_settings;

void ls_gguf_settings_init(ls_gguf_settings *settings);
void ls_gguf_settings_release(ls_gguf_settings *settings);
void ls_gguf_put_u32(ls_gguf_settings *settings, const char *key, uint32_t value);
void ls_gguf_put_f32(ls_gguf_settings *settings, const char *key, float value);
void ls_gguf_put_bool(ls_gguf_settings *settings, const char *key, bool value);
void ls_gguf_put_text(ls_gguf_settings *settings, const char *key, const char *value);
/* An array of count elements, which the caller then adds, each by the function of its kind. */
void ls_gguf_put_array(ls_gguf_settings *settings, const char *key, ls_gguf_kind kind,
                       uint64_t count);
void ls_gguf_add_i32(ls_gguf_settings *settings, int32_t value);
void ls_gguf_add_f32(ls_gguf_settings *settings, float value);
void ls_gguf_add_text(ls_gguf_settings *settings, const char *bytes, size_t len);

/* A tensor to be written. */
typedef struct ls_gguf_tensor {
    char name[LS_GGUF_NAME];
    ls_gguf_type type;
    int ndim;
    int64_t sizes[LS_GGUF_RANK]; /* innermost first; that one is a multiple of the type's block */
    int64_t begin, bytes;        /* from the start of the file; set by ls_gguf_create() */
} ls_gguf_tensor;

typedef struct ls_gguf_writer {
    int fd;           /* -1: closed */
    const char *path; /* borrowed until close */
    int64_t at, end;  /* bytes written, and in all */
} ls_gguf_writer;

/* Lay the tensors out, reserve the file's space and write everything before the first of them.
 * LS_EIO: no space, or the system refused. */
ls_status ls_gguf_create(ls_gguf_writer *writer, const char *path, const ls_gguf_settings *settings,
                         ls_gguf_tensor *tensors, int count);
/* The next bytes of a tensor; before the first one of each, ls_gguf_begin() fills the gap. */
ls_status ls_gguf_begin(ls_gguf_writer *writer, const ls_gguf_tensor *tensor);
ls_status ls_gguf_put(ls_gguf_writer *writer, const void *bytes, int64_t len);
/* Make it durable and close it; everything must have been put. */
ls_status ls_gguf_finish(ls_gguf_writer *writer);
/* Close without finishing. Safe on a finished writer. */
void ls_gguf_abandon(ls_gguf_writer *writer);

LS_C_END
