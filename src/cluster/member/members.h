/* members.h -- the nodes of a job in order, the ranks of each, and where they listen.
 *
 * Made by the coordinator, sent to every agent, and handed to every worker as a memory file. Ranks
 * are numbered through: node 0 has the first ones. A list is valid for one generation.
 *
 * A list may have more processes than comm joins (LS_COMM_RANKS, where the reason is), because
 * `launch` starts any program. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum {
    LS_MEMBERS_TEXT = 64,      /* longest host name or address, with its final '\0' */
    LS_MEMBERS_NODES = 16384,  /* most nodes of a job */
    LS_MEMBERS_RANKS = 131072, /* most processes of a job; ranks of lineshaft: LS_COMM_RANKS */
    LS_MEMBERS_BYTES = 4 << 20 /* most bytes of a list */
};

typedef struct ls_members_node {
    char host[LS_MEMBERS_TEXT]; /* for messages */
    char ip[LS_MEMBERS_TEXT];   /* "10.0.0.1", "fd00::1" */
    int first_rank, ranks;
    int entry; /* its number in the coordinator's roster (roster.h), where there is one */
} ls_members_node;

typedef struct ls_members {
    uint64_t generation;
    int nodes, ranks;
    int master_port;            /* free on node 0 when the job began, for programs that want one */
    ls_members_node *node;      /* owned */
    uint16_t *ports;            /* owned; one per rank: where it listens on its node; 0: nowhere */
    int nodes_room, ports_room; /* elements that the two have room for */
} ls_members;

void ls_members_init(ls_members *members);
void ls_members_release(ls_members *members);

/* Append a node. ports: one per rank, or NULL. LS_EUSAGE beyond the limits. */
ls_status ls_members_add(ls_members *members, const char *host, const char *ip, int ranks,
                         const uint16_t *ports);

/* The node of a rank, and where the rank listens. */
int ls_members_node_of(const ls_members *members, int rank);
void ls_members_address(const ls_members *members, int rank, char *text_out, size_t cap);

/* The text of an address: "10.0.0.1:40001", "[fd00::1]:40001". */
void ls_members_format(const char *ip, int port, char *text_out, size_t cap);

/* As bytes and back; members need not be initialised. LS_EDATA: damaged. */
void ls_members_encode(const ls_members *members, ls_str *out);
ls_status ls_members_decode(ls_members *members, const void *bytes, size_t len);

/* What such bytes hold, without the memory that a list takes. LS_EDATA: damaged. */
typedef struct ls_members_outline {
    int nodes, ranks;
    int here;             /* ranks of the node that was asked for; 0: there is no such node */
    const uint8_t *names; /* names and addresses (roster.h); borrowed from the bytes */
    size_t names_len;
} ls_members_outline;
ls_status ls_members_check(const void *bytes, size_t len, int node, ls_members_outline *out);

/* As a memory file for workers to inherit (the caller closes it), and back. */
ls_status ls_members_to_fd(const ls_members *members, int *fd_out);
ls_status ls_members_from_fd(ls_members *members, int fd);

LS_C_END
