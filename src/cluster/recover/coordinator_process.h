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
#include "cluster/recover/coordinator_log.h"

LS_C_BEGIN

typedef struct ls_coordinator_process_args {
    ls_coordinator_args
        rules;           /* what it decides by; of its calls back only agree, in this process */
    const char *program; /* that can be a coordinator (ls_coordinator_process_serve); NULL: none */
    /* A call back: TELL (bytes are the message), CALL, EXPEL, STOP, REMEMBER (bytes are for
     * successors), DIED. Made by ls_coordinator_process_attend(), and by all others where the
     * coordinator is a part of this process. */
    void (*act)(void *context, const ls_coordinator_log_event *event);
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

/* A call of a coordinator: NAMED, TAKES (bytes are a message as it is sent between nodes; a damaged
 * one is dropped, with a warning), LOSES, RESTORES, RECALLS, RETURNS. The time is that of now. */
void ls_coordinator_process_send(ls_coordinator_process *coordinator_process,
                                 const ls_coordinator_log_event *event);

/* JOINS. LS_EUSAGE: it cannot be taken, and why. */
ls_status ls_coordinator_process_joins(ls_coordinator_process *coordinator_process,
                                       const ls_coordinator_log_event *event);
bool ls_coordinator_process_excludes(ls_coordinator_process *coordinator_process, const char *host,
                                     char *why, size_t cap);
bool ls_coordinator_process_is_idle(ls_coordinator_process *coordinator_process, int node);

/* Whether this process was started as a coordinator; and then: be one until the agent is gone. The
 * process's exit code. */
bool ls_coordinator_process_is_wanted(void);
int ls_coordinator_process_serve(void);

LS_C_END
