/* config_digest.h -- what must be alike wherever a job runs: a hash for each thing, by name.
 *
 * A worker brings its own with its first report: the program, each section of the run file, the
 * tokenizer, the data. The coordinator compares it with that of the first worker, and refuses a
 * node whose workers differ, naming what does. */
#pragma once
#include "base/str.h"
#include "cluster/member/wire_codec.h"

LS_C_BEGIN

enum { LS_CONFIG_DIGEST_ROWS = 24, LS_CONFIG_DIGEST_NAME = 24 };

typedef struct ls_config_digest {
    int32_t rows; /* 0: nothing is compared */
    struct {
        char name[LS_CONFIG_DIGEST_NAME];
        uint64_t hash;
    } row[LS_CONFIG_DIGEST_ROWS];
} ls_config_digest;

/* Hash this, under a name; the same name twice is hashed together. Beyond the last row nothing is
 * added. */
void ls_config_digest_add(ls_config_digest *config_digest, const char *name, const void *bytes,
                          size_t len);

/* The contents of a file: its length, and all of it or, of large ones, the first and last
 * bytes. One that cannot be read counts as empty. */
void ls_config_digest_add_file(ls_config_digest *config_digest, const char *name, const char *path);

/* The program that runs. */
void ls_config_digest_add_program(ls_config_digest *config_digest);

/* Whether they are alike; otherwise what differs: "train (1f00c2 here, 88ab17 there), data (...)".
 */
bool ls_config_digest_same(const ls_config_digest *here, const ls_config_digest *there, char *why,
                           size_t cap);

void ls_config_digest_encode(const ls_config_digest *config_digest, ls_str *out);
void ls_config_digest_decode(ls_config_digest *config_digest, ls_wire_codec *in);

LS_C_END
