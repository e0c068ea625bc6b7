/* node_memory.h -- the memory that the ranks of one node share, for the process that starts them.
 *
 * That process makes the memory before there are ranks, and hands each of them the descriptor; the
 * ranks open it with their communicator (comm.h). The starter itself is no rank. It can break the
 * memory, which fails every call that a rank is in, and it can write down what each rank was doing,
 * even when that rank is dead. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum {
    LS_NODE_MEMORY_RANKS = 256, /* most ranks of a node */
    LS_NODE_MEMORY_TEXT = 256
};

/* Memory for this many ranks, valid in this generation only. fd_out is owned by the caller, and
 * programs do not inherit it until it says so. */
ls_status ls_node_memory_create(uint64_t generation, int ranks, int *fd_out);

/* Fail every call of every rank in it, now and later, with LS_EPEER and this reason. */
ls_status ls_node_memory_break(int fd, uint64_t generation, const char *why);

/* What a failed job leaves to read. */
typedef struct ls_node_memory_post_mortem {
    int written;                    /* files, one for each rank that was in a collective */
    char call[LS_NODE_MEMORY_TEXT]; /* the last collective of that rank; "": none */
} ls_node_memory_post_mortem;

/* Write each rank's flight recorder to folder/rank-N.txt, with the cause as its first line. local:
 * the rank of this node whose last collective is reported; -1: nobody's. */
ls_status ls_node_memory_write(int fd, uint64_t generation, const char *folder, const char *cause,
                               int local, ls_node_memory_post_mortem *out);

LS_C_END
