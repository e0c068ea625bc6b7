/* agent.h -- starts the processes of a job on this node and sees them to their end.
 *
 * One call: start N workers, print what they say, wait until all have ended, leave nothing behind.
 * The first worker that fails ends the others: SIGTERM, after the grace time SIGKILL. SIGINT,
 * SIGTERM and SIGHUP to this process are passed on once, a second one kills; SIGUSR1 and SIGUSR2
 * are passed on always. What workers had started themselves ends with the job, even when this
 * process is killed (supervisor.h).
 *
 * A worker gets an empty standard input, its own session, its slice of the cores, and:
 *
 *   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT
 *   LINESHAFT_RANK, _WORLD, _LOCAL_RANK, _LOCAL_WORLD, _NODE, _NODES, _GENERATION
 *   LINESHAFT_JOB        a name of this launch, equal in all of its workers on this node
 *   LINESHAFT_THREADS    cores of its slice; OMP_NUM_THREADS too, unless it is set
 *   LINESHAFT_CAUSE_FD   where its error record goes (error_channel.h)
 *   LINESHAFT_FD_<NAME>  each descriptor that it inherits
 *
 * Called by the main thread before others are started: signals are blocked and read here, and a
 * worker dies when the thread that started it does. */
#pragma once
#include <sys/types.h>
#include "base/err.h"
#include "cluster/node/error_channel.h"
#include "cluster/member/worker_channel.h"
#include "cluster/node/worker_logs.h"

LS_C_BEGIN

enum { LS_AGENT_GRACE_S = 10 };

/* Instead of a command's name: this program itself, whatever became of its file. */
#define LS_AGENT_SELF "/proc/self/exe"

/* A descriptor that workers inherit under its own number; LINESHAFT_FD_<name> holds it. */
typedef struct ls_agent_fd {
    const char *name; /* capitals: "ARENA" */
    int fd;           /* above 2; the same for all workers */
    const int *each;  /* instead: one for each worker; NULL: fd */
} ls_agent_fd;

/* A worker that stands for a host (lab.h): it gets none of the rank variables. */
typedef struct ls_agent_host {
    const char *name;            /* host name and label */
    int net_fd;                  /* its network namespace */
    const char *const *settings; /* NAME=VALUE for it, NULL-terminated; NULL: none */
} ls_agent_host;

/* Something happened; the hook is called by the agent's thread at once. */
typedef enum ls_agent_kind {
    LS_AGENT_STARTED, /* a worker runs */
    LS_AGENT_ENDED,   /* a worker has ended, well or not */
    LS_AGENT_ASKED    /* this process got SIGINT, SIGTERM or SIGHUP, and has passed it on */
} ls_agent_kind;

typedef struct ls_agent_event {
    ls_agent_kind kind;
    int worker, rank; /* number on this node, and in the job */
    pid_t pid;
    int code;                 /* when ended: exit code, or 128 + signal */
    const ls_err_record *why; /* when ended with a code: the sentence for it */
} ls_agent_event;
typedef void (*ls_agent_hook)(void *context, const ls_agent_event *event);

typedef struct ls_agent_args {
    const char *const *command; /* words, NULL-terminated; the first is looked for in PATH */
    int workers;                /* to start here, at least 1 */
    /* This node's place in the job; all zero: it is alone. */
    int node, nodes;
    int first_rank, world;
    uint64_t generation;
    const char *master_addr;     /* NULL: 127.0.0.1 */
    int master_port;             /* 0: one that is free here now */
    const ls_agent_host *hosts;  /* one per worker; NULL: they are ranks */
    const char *const *settings; /* NAME=VALUE for all workers, NULL-terminated; NULL: none */
    const ls_agent_fd *fds;
    int n_fds;
    int out_fd, err_fd;  /* where their lines go; 0, 0: standard output and error */
    const char *log_dir; /* a file for each worker in addition; NULL: none */
    int64_t grace_ns;    /* from SIGTERM to SIGKILL; 0: LS_AGENT_GRACE_S */
    bool go_on;          /* a worker that fails does not end the others */
    bool anywhere;       /* cores are not divided among the workers */
    bool saves;          /* workers save when they are asked to stop, by SIGUSR1 too, and end with
                          * the exit code of LS_EUNSAVED when they could not */
    ls_agent_hook hook;  /* NULL: none */
    void *context;
    /* Another node has a say (rendezvous.h): attend() is called when watch_fd is readable, and
     * returns LS_OK or the reason to end the job; with LS_EINTR it is ended as by a signal. */
    int watch_fd;
    ls_status (*attend)(void *context); /* NULL: none */
    ls_worker_channel *channel; /* borrowed; a worker that dies may be replaced (worker_channel.h);
                                 * NULL: its death ends the job */
} ls_agent_args;

typedef struct ls_agent_result {
    int exit_code;       /* 0, or that of the first failure; 130 when stopped on request, 11 when
                          * that was without saving */
    ls_err_record cause; /* the first failure as a sentence; when stopped on request, what the
                          * first worker said of it; code LS_OK: all went well */
    int worker;          /* that failed; -1: none here */
    char label[32];      /* of that worker */
    int others;          /* workers that failed after it or had to be stopped */
    bool stopped;        /* they were told to end; otherwise they failed by themselves */
    int killed;          /* of these, those that did not end within the grace time */
    int left;            /* processes that could not be killed */
    bool unread;         /* set by the caller: a worker ended because nobody reads its results */
    char note[512];      /* one more line to show, set by a caller that knows more */
    char last_lines[LS_WORKER_LOGS_TAIL + 1]; /* of that worker's standard error, or output */
} ls_agent_result;

/* Whether the job could be started here: the number of workers and the command. */
ls_status ls_agent_check(const ls_agent_args *args);

/* Run the job. LS_OK when all workers were started and all have ended, well or not: then the
 * result is set. Otherwise nothing runs any more, and the error says what could not be started or
 * written. */
ls_status ls_agent_run(const ls_agent_args *args, ls_agent_result *result_out);

LS_C_END
