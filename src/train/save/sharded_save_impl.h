/* sharded_save_impl.h -- what sharded_save.c and sharded_load.c share. */
#pragma once
#include "train/save/save_impl.h"
#include "train/save/sharded_save.h"

LS_C_BEGIN

enum { LS_SHARDED_SAVE_SEEN_S = 70 }; /* longer than NFS remembers a folder: 60 s */

typedef enum ls_sharded_save_phase {
    LS_SHARDED_SAVE_IDLE,
    LS_SHARDED_SAVE_WRITING,
    LS_SHARDED_SAVE_COMMITTING
} ls_sharded_save_phase;

struct ls_sharded_save {
    ls_ckpt_store *store; /* owned by ranks but the first, which has the session's */
    ls_ckpt_writer *writer;
    ls_ckpt_part *live, *copies; /* owned: what it writes, in the state and in the memory */
    int n;
    ls_ckpt_part *wants; /* owned: what it reads, in the state */
    int n_wants;
    ls_ckpt_part *shard_replicas; /* owned: in the own state, what another rank writes */
    int n_shard_replicas;
    void *memory; /* owned: copies of what it writes */
    ls_sharded_save_phase phase;
    ls_ckpt_info info;
    int64_t saves; /* begun so far */
    int64_t begun_ns;
    bool running; /* the own part, on the writer's thread */
    bool failed;  /* it came to nothing, for this reason: */
    ls_err_record why;
    ls_str report, seen; /* of the own part; of the other's */
    char *texts;         /* owned, first rank: reports of all */
    ls_ckpt_report *reports;
    int n_reports;
};

/* The first rank whose number is this one; -1: none. */
int ls_sharded_save_find(const double *numbers, int ranks, double number);

/* The sentence of one rank becomes the record of all of them; returns code. By all ranks. */
ls_status ls_sharded_save_share_reason(ls_session *session, int rank, ls_status code);

LS_C_END
