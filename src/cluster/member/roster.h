/* roster.h -- names and addresses of the nodes that a job ever had, in the order in which they were
 * called.
 *
 * It only grows: a node that is gone stays in it, one that comes back is a new one. So a view
 * names its nodes by their numbers in the roster, and comes with the end of the roster that the
 * receiving node does not have yet. That end is sent as it lies here.
 *
 * As bytes, for each node: host, then address; of each how many of its first bytes are those of the
 * node before (1), how many others follow (1), and those. */
#pragma once
#include "cluster/member/members.h"
#include "cluster/member/wire_codec.h"

LS_C_BEGIN

typedef struct ls_roster {
    ls_str bytes;
    int nodes;
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT]; /* of the last one */
} ls_roster;

void ls_roster_init(ls_roster *roster);
void ls_roster_release(ls_roster *roster); /* leaves it empty and usable */

/* One more; its number is roster->nodes before the call. */
ls_status ls_roster_add(ls_roster *roster, const char *host, const char *ip);

/* Bytes that stand at `at` in another roster: at the end of this one, or, where at is 0, instead of
 * all of it. LS_EDATA: damaged, or they do not belong here; the roster is as it was. */
ls_status ls_roster_learn(ls_roster *roster, size_t at, const void *bytes, size_t len);

/* All nodes in order. Begin with {.in = bytes of a roster}; next() says whether there is one more,
 * and sets in.bad where the bytes are damaged. */
typedef struct ls_roster_walk {
    ls_wire_codec in;
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    size_t host_len, ip_len;
} ls_roster_walk;
bool ls_roster_next(ls_roster_walk *walk);

LS_C_END
