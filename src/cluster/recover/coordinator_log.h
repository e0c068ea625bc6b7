/* coordinator_log.h -- a coordinator (coordinator.h) that is called by frames, and whose calls
 * back are frames.
 *
 * So the coordinator can be a process of its own (coordinator_process.h), and its log is the frames
 * that it was given: the same frames make the same coordinator again, and the same frames that go
 * out, because nothing else has a say in it. The time is in each frame. A question to the outside,
 * whether all accept a view, is a frame that goes out, and its answer one that comes in.
 *
 *   frame     length of the rest (4), kind (1), the time (8; of what goes out: none), body
 *
 * One thread. Both sides are the same program on the same machine. */
#pragma once
#include "cluster/member/wire_codec.h"
#include "cluster/member/coordinator.h"

LS_C_BEGIN

typedef enum ls_coordinator_log_kind {
    LS_COORDINATOR_LOG_JOINS =
        1, /* from here: counted in n_in; named as the calls of a coordinator */
    LS_COORDINATOR_LOG_NAMED,
    LS_COORDINATOR_LOG_TAKES,
    LS_COORDINATOR_LOG_LOSES,
    LS_COORDINATOR_LOG_RESTORES,
    LS_COORDINATOR_LOG_RETURNS,
    LS_COORDINATOR_LOG_RECALLS,
    LS_COORDINATOR_LOG_AGREED,    /* all accept the view that was asked for */
    LS_COORDINATOR_LOG_LOOK,      /* the clock: not counted */
    LS_COORDINATOR_LOG_EXCLUDES,  /* from here: questions, which change nothing */
    LS_COORDINATOR_LOG_BUSY,      /* the nodes that still work for a job that is over */
    LS_COORDINATOR_LOG_TELL = 32, /* from here: what goes out, counted in n_out */
    LS_COORDINATOR_LOG_SHARED,    /* the end of the TELLs behind it that have one */
    LS_COORDINATOR_LOG_CALL,
    LS_COORDINATOR_LOG_EXPEL,
    LS_COORDINATOR_LOG_STOP,
    LS_COORDINATOR_LOG_ASK, /* whether all accept a view of these nodes */
    LS_COORDINATOR_LOG_JOINED,
    LS_COORDINATOR_LOG_REMEMBER,
    LS_COORDINATOR_LOG_OVER, /* the job is */
    LS_COORDINATOR_LOG_HELLO =
        64, /* from here: between coordinator process and coordinator (coordinator_process.c) */
    LS_COORDINATOR_LOG_HAVE,
    LS_COORDINATOR_LOG_ACK,
    LS_COORDINATOR_LOG_ANSWER
} ls_coordinator_log_kind;

enum { LS_COORDINATOR_LOG_HEAD = 5, LS_COORDINATOR_LOG_FRAME = 64 << 20 };

/* Begin a frame; at: what end() must be given. */
size_t ls_coordinator_log_begin(ls_str *out, ls_coordinator_log_kind kind);
void ls_coordinator_log_end(ls_str *out, size_t at);

/* Bytes with their length in front, and back. The text is cut off at cap. */
void ls_coordinator_log_put_bytes(ls_str *out, const void *bytes, size_t len);
const void *ls_coordinator_log_get_bytes(ls_wire_codec *in, size_t *len_out);
void ls_coordinator_log_get_text(ls_wire_codec *in, char *text_out, size_t cap);
void ls_coordinator_log_get_record(ls_wire_codec *in, ls_err_record *record_out);

/* Length of the whole frame at p; 0: it is not all there. */
size_t ls_coordinator_log_frame(const void *p, size_t left);
ls_coordinator_log_kind ls_coordinator_log_kind_of(const void *frame);
ls_wire_codec ls_coordinator_log_body(const void *frame); /* behind its kind */

typedef struct ls_coordinator_log {
    ls_coordinator *coordinator; /* owned */
    ls_str out;                  /* frames that wait to be taken out by the caller */
    uint64_t n_in, n_out;
    uint64_t shared_of;        /* the view of which the part that all are told went out last */
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
/* A question: the body of its answer. */
ls_status ls_coordinator_log_answer(const ls_coordinator_log *coordinator_log, const void *frame,
                                    ls_str *out);

/* How long until it must look at the clock: 0: now; -1: not before something happens. */
int64_t ls_coordinator_log_due_in(const ls_coordinator_log *coordinator_log, int64_t now);

/* All that it knows, for another one with the same arguments; nothing waits to be taken out. */
void ls_coordinator_log_save(ls_coordinator_log *coordinator_log, ls_str *out);
ls_status ls_coordinator_log_load(ls_coordinator_log *coordinator_log, const void *bytes,
                                  size_t len);

LS_C_END
