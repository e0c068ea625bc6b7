/* clerk.h -- a parish (parish.h) behind a wall of bytes: what happens to it comes as frames, and
 * what follows from that goes out as frames.
 *
 * So the coordinator can be a process of its own (office.h), and its log is the frames that it was
 * given: the same frames make the same parish again, and the same frames that go out, because
 * nothing else has a say in it. The time is in each frame; what the outside is asked for (whether
 * all accept a view) comes back as a frame, too.
 *
 *   frame     length of the rest (4), kind (1), the time (8; of what goes out: none), body
 *
 * One thread. Both sides are the same program on the same machine. */
#pragma once
#include "cluster/parcel.h"
#include "cluster/parish.h"

LS_C_BEGIN

typedef enum ls_clerk_kind {
    LS_CLERK_JOINS = 1, /* from here: counted in n_in; named as the calls of a parish */
    LS_CLERK_NAMED,
    LS_CLERK_TAKES,
    LS_CLERK_LOSES,
    LS_CLERK_RESTORES,
    LS_CLERK_RETURNS,
    LS_CLERK_RECALLS,
    LS_CLERK_AGREED,    /* all accept the view that was asked for */
    LS_CLERK_LOOK,      /* the clock: not counted */
    LS_CLERK_EXCLUDES,  /* from here: questions, which change nothing */
    LS_CLERK_BUSY,      /* the nodes that have a part in a job that is over; nobody: it is not */
    LS_CLERK_TELL = 32, /* from here: what goes out, counted in n_out */
    LS_CLERK_SHARED,    /* the end of the TELLs behind it that have one */
    LS_CLERK_CALL,
    LS_CLERK_EXPEL,
    LS_CLERK_STOP,
    LS_CLERK_ASK, /* whether all accept a view of these nodes */
    LS_CLERK_JOINED,
    LS_CLERK_REMEMBER,
    LS_CLERK_OVER,       /* the job is */
    LS_CLERK_HELLO = 64, /* from here: between office and coordinator (office.c) */
    LS_CLERK_HAVE,
    LS_CLERK_ACK,
    LS_CLERK_ANSWER
} ls_clerk_kind;

enum { LS_CLERK_HEAD = 5, LS_CLERK_FRAME = 64 << 20 };

/* Begin a frame; at: what end() must be given. */
size_t ls_clerk_begin(ls_str *out, ls_clerk_kind kind);
void ls_clerk_end(ls_str *out, size_t at);

/* Bytes with their length in front, and back. The text is cut off at cap. */
void ls_clerk_put_bytes(ls_str *out, const void *bytes, size_t len);
const void *ls_clerk_get_bytes(ls_parcel *in, size_t *len_out);
void ls_clerk_get_text(ls_parcel *in, char *text_out, size_t cap);
void ls_clerk_put_record(ls_str *out, const ls_err_record *record);
void ls_clerk_get_record(ls_parcel *in, ls_err_record *record_out);

/* Length of the whole frame at p; 0: it is not all there. */
size_t ls_clerk_frame(const void *p, size_t left);
ls_clerk_kind ls_clerk_kind_of(const void *frame);
ls_parcel ls_clerk_body(const void *frame); /* behind its kind */

typedef struct ls_clerk {
    ls_parish *parish; /* owned */
    ls_str out;        /* frames that wait to be taken out by the caller */
    uint64_t n_in, n_out;
    uint64_t shared_of;        /* the view of which the part that all are told went out last */
    ls_str asked;              /* the view that was asked about last: nodes, as it went out, */
    uint64_t question, agreed; /* its number, and the generation that was answered; 0: none yet */
    int most;                  /* highest number of a node */
    bool over;                 /* it was said that the job is */
    int64_t now;               /* of the frame that is being taken */
} ls_clerk;

/* args: the calls back are not made; agree: NULL: nobody is asked. */
ls_status ls_clerk_open(ls_clerk **clerk_out, const ls_parish_args *args);
void ls_clerk_close(ls_clerk *clerk); /* NULL is allowed */

/* A frame that is not a question. LS_EDATA: damaged. */
ls_status ls_clerk_take(ls_clerk *clerk, const void *frame);
/* A question: the body of its answer. */
ls_status ls_clerk_answer(const ls_clerk *clerk, const void *frame, ls_str *out);

/* How long until it must look at the clock: 0: now; -1: not before something happens. */
int64_t ls_clerk_due_in(const ls_clerk *clerk, int64_t now);

/* All that it knows, for another one with the same arguments; nothing waits to be taken out. */
void ls_clerk_save(ls_clerk *clerk, ls_str *out);
ls_status ls_clerk_load(ls_clerk *clerk, const void *bytes, size_t len);

LS_C_END
