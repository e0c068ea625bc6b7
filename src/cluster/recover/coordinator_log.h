/* coordinator_log.h -- a coordinator (coordinator.h) that is called by frames, and whose calls
 * back are frames.
 *
 * So the coordinator can be a process of its own (coordinator_process.h), and its log is the frames
 * that it was given: the same frames make the same coordinator again, and the same frames that go
 * out, because nothing else changes it. The time is in each frame. A question to the outside,
 * whether all accept a view, is a frame that goes out, and its answer one that comes in.
 *
 *   frame     length of the rest (4), kind (1), the numbers of an event, its texts, its bytes
 *
 * Example, node 3 is lost, and the coordinator revokes the view on nodes 0 and 1:
 *
 *   in    LOSES  node 3, noticed 1.2 s, "no sign of life"
 *   out   TELL   node 0, REVOKE          TELL   node 1, REVOKE
 *
 * One thread. Both sides are the same program on the same machine. */
#pragma once
#include "cluster/member/wire_codec.h"
#include "cluster/member/coordinator.h"

LS_C_BEGIN

typedef enum ls_coordinator_log_kind {
    /* From here: what comes in, counted in n_in; named as the calls of a coordinator. */
    LS_COORDINATOR_LOG_JOINS = 1,
    LS_COORDINATOR_LOG_NAMED,
    LS_COORDINATOR_LOG_TAKES,
    LS_COORDINATOR_LOG_LOSES,
    LS_COORDINATOR_LOG_RESTORES,
    LS_COORDINATOR_LOG_RETURNS,
    LS_COORDINATOR_LOG_RECALLS,
    LS_COORDINATOR_LOG_AGREED, /* all accept the view that was asked for */
    LS_COORDINATOR_LOG_LOOK,   /* the clock: not counted */
    /* From here: questions, which change nothing. */
    LS_COORDINATOR_LOG_EXCLUDES,
    LS_COORDINATOR_LOG_BUSY, /* the nodes that still work for a job that is over */
    /* From here: what goes out, counted in n_out. */
    LS_COORDINATOR_LOG_TELL = 32,
    LS_COORDINATOR_LOG_SHARED, /* the end of the TELLs behind it that have one */
    LS_COORDINATOR_LOG_CALL,
    LS_COORDINATOR_LOG_EXPEL,
    LS_COORDINATOR_LOG_STOP,
    LS_COORDINATOR_LOG_ASK, /* whether all accept a view of these nodes */
    LS_COORDINATOR_LOG_JOINED,
    LS_COORDINATOR_LOG_REMEMBER,
    LS_COORDINATOR_LOG_OVER, /* the job is */
    /* From here: between the agent and the process (coordinator_process.h). */
    LS_COORDINATOR_LOG_HELLO = 64,
    LS_COORDINATOR_LOG_HAVE,
    LS_COORDINATOR_LOG_ACK,
    LS_COORDINATOR_LOG_ANSWER,
    LS_COORDINATOR_LOG_DIED /* to the agent's own caller: the process was started again */
} ls_coordinator_log_kind;

/* One frame: its kind, and what the kind needs of the rest. Texts and bytes are borrowed; those of
 * a frame that was read lie in the frame. */
typedef struct ls_coordinator_log_event {
    ls_coordinator_log_kind kind;
    int64_t now;            /* of what comes in */
    int node;               /* that it is about; STOP: -1: none */
    int workers;            /* JOINS */
    bool begins;            /* JOINS: the job begins with this node */
    bool shared;            /* TELL: the last SHARED belongs behind its bytes */
    bool yes;               /* ANSWER */
    int64_t noticed_ns;     /* LOSES, RESTORES; DIED: how long it was gone */
    ls_view_past past;      /* RESTORES */
    uint64_t number;        /* ASK, AGREED: of the question; HELLO, HAVE, ACK: of frames */
    uint64_t second;        /* AGREED: the generation; ACK: frames that were taken */
    int code;               /* STOP: exit code */
    ls_status status;       /* STOP, JOINED: a record, with why and hint */
    const char *host, *ip;  /* JOINS, EXCLUDES */
    const char *why, *hint; /* LOSES, EXPEL ...; HELLO: the path of the log */
    const void *bytes;      /* TAKES, TELL, SHARED: a message; RECALLS, REMEMBER; ASK: the view */
    size_t len;
} ls_coordinator_log_event;

/* Append a frame. */
void ls_coordinator_log_put(ls_str *out, const ls_coordinator_log_event *event);

/* Length of the whole frame at p; 0: it is not all there. And what a whole frame says; false: it is
 * damaged. */
size_t ls_coordinator_log_frame(const void *p, size_t left);
ls_coordinator_log_kind ls_coordinator_log_kind_of(const void *frame);
bool ls_coordinator_log_get(const void *frame, ls_coordinator_log_event *event_out);

/* Remove n bytes of frames in front. */
void ls_coordinator_log_drop(ls_str *frames, size_t n);

typedef struct ls_coordinator_log {
    ls_coordinator *coordinator; /* owned */
    ls_str out;                  /* frames that wait to be taken out by the caller */
    uint64_t n_in, n_out;
    uint64_t shared_of;        /* the view whose part for all nodes went out last */
    ls_str asked;              /* the view that was asked about last: nodes, as it went out, */
    uint64_t question, agreed; /* its number, and the generation that was answered; 0: none yet */
    int most;                  /* highest number of a node */
    bool over;                 /* it was said that the job is */
    int64_t now;               /* of the frame that is being taken */
} ls_coordinator_log;

/* args: the calls back are not made; agree: NULL: no node is asked. */
ls_status ls_coordinator_log_open(ls_coordinator_log **coordinator_log_out,
                                  const ls_coordinator_args *args);
void ls_coordinator_log_close(ls_coordinator_log *coordinator_log); /* NULL is allowed */

/* A frame that is not a question. LS_EDATA: damaged. */
ls_status ls_coordinator_log_take(ls_coordinator_log *coordinator_log, const void *frame);
/* A question: append the frame of its answer. */
void ls_coordinator_log_answer(const ls_coordinator_log *coordinator_log, const void *frame,
                               ls_str *out);

/* How long until it must look at the clock: 0: now; -1: not before something happens. */
int64_t ls_coordinator_log_due_in(const ls_coordinator_log *coordinator_log, int64_t now);

/* All that it knows, for another one with the same arguments; nothing waits to be taken out. */
void ls_coordinator_log_save(ls_coordinator_log *coordinator_log, ls_str *out);
ls_status ls_coordinator_log_load(ls_coordinator_log *coordinator_log, const void *bytes,
                                  size_t len);

LS_C_END
