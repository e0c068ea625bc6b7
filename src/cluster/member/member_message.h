/* member_message.h -- messages between the agents of a job that heals, about its workers.
 *
 *   node -> coordinator   REPORT    a worker waits for a view; what it has, and why it asks
 *                         READY     it is ready to train
 *                         LEFT      it has ended well
 *                         ENDED     it has ended otherwise: how
 *                         RESUME    to a new coordinator: what the worker was under the one before
 *   coordinator -> node   VIEW      generation, its members, and which rank each worker has
 *                         REVOKE    the view is given up: every call in it must fail
 *                         REGROUP   the ranks are to meet anew at the end of a step
 *                         VERDICT   what becomes of a worker that has ended
 *
 * Between machines messages travel in frames (net/frame.h), one in each.
 *
 * A view goes to all nodes at once, and there may be ten thousand: so it names its nodes by their
 * numbers in the roster (roster.h), with the end of the roster that the node does not have yet, and
 * all but the first bytes are the same for everybody. */
#pragma once
#include "cluster/member/config_digest.h"
#include "cluster/member/roster.h"
#include "cluster/member/view.h"

LS_C_BEGIN

enum { LS_MEMBER_MESSAGE_TEXT = 400, LS_MEMBER_MESSAGE_WORKERS = 256 };

typedef enum ls_member_message_kind {
    LS_MEMBER_MESSAGE_REPORT = 1,
    LS_MEMBER_MESSAGE_READY,
    LS_MEMBER_MESSAGE_LEFT,
    LS_MEMBER_MESSAGE_ENDED,
    LS_MEMBER_MESSAGE_VIEW,
    LS_MEMBER_MESSAGE_REVOKE,
    LS_MEMBER_MESSAGE_REGROUP,
    LS_MEMBER_MESSAGE_VERDICT,
    LS_MEMBER_MESSAGE_RESUME
} ls_member_message_kind;

/* What a VIEW holds besides its members. */
typedef struct ls_member_message_view {
    ls_view_plan plan;
    bool begun;         /* some view has trained: this is no start of the job */
    int64_t lost_ns;    /* how long ago the view before was given up; -1: it was not */
    int64_t noticed_ns; /* how long it took to notice the loss */
    char cause[LS_MEMBER_MESSAGE_TEXT];
} ls_member_message_view;

typedef struct ls_member_message {
    ls_member_message_kind kind;
    int worker; /* on its node; of REPORT, READY, LEFT, ENDED, VERDICT, RESUME */
    char why[LS_MEMBER_MESSAGE_TEXT]; /* REPORT, ENDED, REVOKE */
    ls_view_report report;            /* REPORT */
    ls_config_digest config_digest;   /* REPORT */
    int signal, code;                 /* ENDED */
    bool asked, error;                /* ENDED: as in ls_view_end; whether there is a record */
    ls_err_record record;             /* ENDED */
    ls_view_verdict verdict;          /* VERDICT */
    ls_member_message_view view;      /* VIEW */
    ls_members members;               /* VIEW; owned */
    const ls_roster *roster;          /* VIEW, as it is sent: of the members; borrowed */
    size_t known;                     /* and its bytes that the node has */
    ls_wire_codec names, list; /* VIEW, as it came: until unpacked; borrowed from the bytes */
    ls_view_past past;         /* RESUME: what its node knows of the last view, */
    int stood;                 /* the rank that it had there; -1: none */
    bool out;                  /* and whether it was given up */
    int workers;               /* VIEW: of the node that hears it */
    int32_t rank[LS_MEMBER_MESSAGE_WORKERS];    /* of each; -1: it is not in the view */
    uint32_t serial[LS_MEMBER_MESSAGE_WORKERS]; /* and the report that this answers */
} ls_member_message;

void ls_member_message_release(ls_member_message *message);

/* As bytes and back; message need not be initialised. LS_EDATA: damaged. */
void ls_member_message_encode(const ls_member_message *message, ls_str *out);
ls_status ls_member_message_decode(ls_member_message *message, const void *bytes, size_t len);

/* The same in two parts, of which the second is the same for all nodes that get a view. */
void ls_member_message_encode_own(const ls_member_message *message, ls_str *out);
void ls_member_message_encode_shared(const ls_member_message *message, ls_str *out);

/* Of a VIEW that has come: learn the names, and make the list of members. LS_EDATA: it is of nodes
 * that have not been named. Other messages are left as they are. */
ls_status ls_member_message_unpack(ls_member_message *message, ls_roster *roster);

LS_C_END
