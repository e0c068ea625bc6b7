/* coordinator_impl.h -- what coordinator.c and coordinator_handover.c share. */
#pragma once
#include "cluster/member/coordinator.h"

LS_C_BEGIN

typedef enum node_state { SPARE, CALLED, GONE } node_state;

typedef struct node {
    int id;
    node_state state;
    int first, workers; /* its places in the view, when called */
    char host[LS_MEMBERS_TEXT], ip[LS_MEMBERS_TEXT];
    bool begins;
    bool lost;    /* gone, and kept for the places of workers that have done their work */
    int entry;    /* in the roster, when called */
    size_t known; /* bytes of the roster that it has */
    ls_config_digest config_digest;
} node;

/* What is remembered of a host, even when it is gone. */
typedef struct host {
    char name[LS_MEMBERS_TEXT];
    int crashes;         /* within a day of each other */
    int64_t crashed_ns;  /* the last */
    int times;           /* that it was excluded */
    int64_t excluded_ns; /* until then; 0: it is not */
    bool cut;            /* because it and another host did not reach each other */
} host;

struct ls_coordinator {
    ls_coordinator_args args;
    ls_view view;
    node *nodes; /* owned; in the order in which they were called, spares behind */
    int n_nodes, room, gone;
    int spares, spare_workers;
    ls_roster roster; /* of all that were ever called */
    host *hosts;      /* owned; those on which something crashed */
    int n_hosts;
    ls_config_digest config_digest; /* of the first view */
    int64_t lost_ns;                /* since when the view is given up; 0: it is whole */
    int64_t unhealed_ns;            /* since when no rank trains, over failed views; 0: one does */
    int64_t noticed_ns;             /* how long it took to know why */
    bool sure;                      /* the cause is known */
    char cause[LS_MEMBER_MESSAGE_TEXT];
    int64_t made_ns; /* when the last view was made */
    bool regroups;   /* the ranks were asked to meet anew, because of */
    char coming[LS_MEMBER_MESSAGE_TEXT];
    bool finished; /* the job must end */
    bool learned;  /* something that another coordinator should know, too */
};

/* A node that is here; NULL: there is none of this number. */
node *ls_coordinator_find(ls_coordinator *coordinator, int id);

LS_C_END
