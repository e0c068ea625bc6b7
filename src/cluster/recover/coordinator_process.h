/* coordinator_process.h -- the coordinator (coordinator.h) of a job of several nodes: a small
 * process of its own, which the agent of its node starts, and starts again.
 *
 *     agent: connections, workers                          process "ls-coordinator"
 *      |  -- HELLO: rules, log, frames I have got ------>  |   replays its log
 *      |  <- HAVE: frames of yours that are in it -------- |
 *      |  -- what happens, numbered -------------------->  |   into the log, synced; then taken
 *      |  <- ACK, and what follows, numbered ------------- |
 *
 * The agent holds everything that other nodes are connected to, so nobody else sees the
 * coordinator die. Frames that it has not acknowledged are sent again, frames that it had sent
 * are skipped: both sides count, and the same log makes the same coordinator (coordinator_log.h).
 * So its death, at any moment, costs a little time and changes nothing.
 *
 * A process that does not answer for too long is killed, and counts as dead. Where none can be
 * started, or its log has no place, the coordinator is a part of the agent, and dies with it. One
 * thread. */
#pragma once
#include "cluster/member/coordinator.h"

LS_C_BEGIN

/* Calls back are made by ls_coordinator_process_attend(), and by all others where the coordinator
 * is a part of this process. */
typedef struct ls_coordinator_process_args {
    ls_coordinator_args
        rules;           /* what it decides by; of its calls back only agree, in this process */
    const char *program; /* that can be a coordinator (ls_coordinator_process_serve); NULL: none */
    void (*tell)(void *context, int node, const void *bytes, size_t len); /* a message */
    void (*call)(void *context, int node);
    void (*expel)(void *context, int node, const char *why);
    void (*stop)(void *context, int node, int code, const ls_err_record *why);
    void (*remember)(void *context, const void *bytes, size_t len); /* for successors */
    /* It had died, and is there again after this time; NULL: not wanted. */
    void (*died)(void *context, const char *what, int64_t took_ns);
    void *context;
} ls_coordinator_process_args;

typedef struct ls_coordinator_process ls_coordinator_process;

ls_status ls_coordinator_process_open(ls_coordinator_process **coordinator_process_out,
                                      const ls_coordinator_process_args *args);
void ls_coordinator_process_close(
    ls_coordinator_process *coordinator_process); /* NULL is allowed */

/* Readable: attend. LS_ENORETRY: it dies again and again, and why. */
int ls_coordinator_process_fd(const ls_coordinator_process *coordinator_process);
ls_status ls_coordinator_process_attend(ls_coordinator_process *coordinator_process);

/* As those of a coordinator. */
ls_status ls_coordinator_process_joins(ls_coordinator_process *coordinator_process, int node,
                                       const char *host, const char *ip, int workers, bool begins,
                                       int64_t now);
void ls_coordinator_process_has_named(ls_coordinator_process *coordinator_process);
bool ls_coordinator_process_excludes(ls_coordinator_process *coordinator_process, const char *host,
                                     int64_t now, char *why, size_t cap);
/* bytes: a message as it is sent between nodes. A damaged one is dropped, with a warning. */
void ls_coordinator_process_takes(ls_coordinator_process *coordinator_process, int node,
                                  const void *bytes, size_t len, int64_t now);
void ls_coordinator_process_loses(ls_coordinator_process *coordinator_process, int node,
                                  const char *why, int64_t noticed_ns, int64_t now);
void ls_coordinator_process_restores(ls_coordinator_process *coordinator_process,
                                     const ls_view_past *past, const char *why, int64_t noticed_ns,
                                     int64_t now);
void ls_coordinator_process_recalls(ls_coordinator_process *coordinator_process, const void *bytes,
                                    size_t len, int64_t now);
void ls_coordinator_process_returns(ls_coordinator_process *coordinator_process, int node);
bool ls_coordinator_process_is_idle(ls_coordinator_process *coordinator_process, int node);

/* Whether this process was started as a coordinator; and then: be one until the agent is gone. The
 * process's exit code. */
bool ls_coordinator_process_is_wanted(void);
int ls_coordinator_process_serve(void);

LS_C_END
