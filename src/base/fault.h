/* fault.h -- injected faults: named points at which tests and drills make the program fail.
 *
 * Two kinds. LS_FAULT("room.point") is true when the point is armed and its turn has come; the
 * caller then fails as the outside world would. LINESHAFT_FAULT in the environment arms points in
 * builds made with -DLS_FAULTS (the test binary and build/faults); in others the macro is a
 * constant false.
 *
 *   LINESHAFT_FAULT="file.write@3"          the third time: the caller fails
 *   LINESHAFT_FAULT="train.slow.1@3+"       the third time and every time after it
 *   LINESHAFT_FAULT="ckpt.rename@1=kill"    the process kills itself with SIGKILL there
 *   several, separated by commas
 *
 * ls_fault_at() is in every build, for what a user may want to see happen to a run of theirs: the
 * points of a step, a save and a recovery. Without a plan it is one branch that is never taken. A
 * plan is a text; entries are separated by semicolons, their fields by commas:
 *
 *   rank=2,step=7,at=backward,do=kill; rank=0,at=save.write,visit=3,do=full
 *
 *   at=POINT      where (the names are in fault.c; a wrong one is answered with the list)
 *   do=DEED       kill     SIGKILL to this process
 *                 stop     SIGSTOP to it
 *                 stall    sleep for ms, for ever without
 *                 error    the caller fails, and says so
 *                 flip     one bit of `tensor` is changed: at vote of its summed gradient, at
 *                          update of its weights, which the update has just made
 *                 torn     a part is written, then the write fails
 *                 full     the write fails: no space left
 *                 fsync    the write is not made durable, and says so
 *                 cut      what is sent to other machines is lost from here on
 *                 slow     it leaves ms later from here on
 *   rank=N        only in this place of the job; default: in all of them
 *   step=N        only while step N is computed (as events count them); with cut and slow: from
 *                 then on; default: always
 *   generation=N  only in this generation; default 1, at recover.meet, .transfer and .ready 2: so
 *                 a process that was killed and is started again is not killed again. 0: in all
 *   visit=N       the n-th time that all of the above holds; default 1
 *   times=N       how often in a row; default 1, with cut and slow: always
 *   ms=N, tensor=NAME (*: the first that is trained), bit=N (0 to 31, default 22: half of a normal
 *                 number, or twice) */
#pragma once
#include "base/err.h"

LS_C_BEGIN

#ifdef LS_FAULTS
#define LS_FAULT(point) ls_fault_hit(point)
#else
#define LS_FAULT(point) false
#endif

bool ls_fault_hit(const char *point);

/* For tests in the same process: the text that LINESHAFT_FAULT would hold, or NULL for none. */
void ls_fault_arm(const char *plan);

/* --- in every build --------------------------------------------------------------------------- */

typedef enum ls_fault_point {
    LS_FAULT_AT_LOAD,     /* before a batch is fetched */
    LS_FAULT_AT_FORWARD,  /* before the first forward of a step */
    LS_FAULT_AT_BACKWARD, /* between forward and backward of each call */
    LS_FAULT_AT_REDUCE,   /* before a sum over ranks is waited for */
    LS_FAULT_AT_LOSSES,   /* before ranks exchange the losses of the step */
    LS_FAULT_AT_UPDATE,   /* in the update: the state is torn; flip: behind it */
    LS_FAULT_AT_GATHER,   /* before new weights of other ranks are waited for */
    LS_FAULT_AT_IDLE,     /* between two steps */
    LS_FAULT_AT_SAVE_COPY,
    LS_FAULT_AT_SAVE_WRITE, /* before each piece of an object */
    LS_FAULT_AT_SAVE_SYNC,  /* instead of an object's fdatasync */
    LS_FAULT_AT_SAVE_MANIFEST,
    LS_FAULT_AT_REPORT,   /* before a rank that has lost others asks for a view */
    LS_FAULT_AT_MEET,     /* before a rank connects to the others of a new view */
    LS_FAULT_AT_TRANSFER, /* before the state goes to a rank that lacks it */
    LS_FAULT_AT_READY,    /* before it says that it is ready to train */
    LS_FAULT_AT_LINK,     /* before each message to another machine */
    LS_FAULT_POINTS
} ls_fault_point;

typedef enum ls_fault_deed {
    LS_FAULT_NONE,
    LS_FAULT_KILL, /* this, stop and stall never come back to the caller as a deed */
    LS_FAULT_STOP,
    LS_FAULT_STALL,
    LS_FAULT_ERROR,
    LS_FAULT_FLIP,
    LS_FAULT_TORN,
    LS_FAULT_FULL,
    LS_FAULT_FSYNC,
    LS_FAULT_CUT,
    LS_FAULT_SLOW,
    LS_FAULT_DEEDS
} ls_fault_deed;

/* What belongs to a deed. */
typedef struct ls_fault_about {
    int64_t ms;
    char tensor[128];
    int bit;
} ls_fault_about;

extern bool ls_fault_planned; /* set by ls_fault_plan() before threads are started */

/* Take a plan for the process in this place of its job; NULL or "": none. LS_EUSAGE: it cannot be
 * read; the message names what there is. */
ls_status ls_fault_plan(const char *text, int rank);

/* Whether the plan has something for this point, in any step. */
bool ls_fault_expects(ls_fault_point point);

/* Where this process is: the step that it computes, in which generation. */
void ls_fault_reach(int64_t step, uint64_t generation);

/* By ls_fault_at(). about_out may be NULL. */
ls_fault_deed ls_fault_visit(ls_fault_point point, ls_fault_about *about_out);

/* This point is passed: what happens there? Kills, stops and stalls happen inside. */
static inline ls_fault_deed ls_fault_at(ls_fault_point point)
{
    return __builtin_expect(ls_fault_planned, 0) ? ls_fault_visit(point, NULL) : LS_FAULT_NONE;
}

/* For points where nothing but an error can come back. */
ls_status ls_fault_fail(ls_fault_point point);
static inline ls_status ls_fault_pass(ls_fault_point point)
{
    return __builtin_expect(ls_fault_at(point) == LS_FAULT_ERROR, 0) ? ls_fault_fail(point) : LS_OK;
}

/* The errno that a write or sync gets by this deed; 0: none. */
int ls_fault_errno(ls_fault_deed deed);

LS_C_END
