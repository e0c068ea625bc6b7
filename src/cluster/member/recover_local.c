/* recover_local.c -- see recover_local.h. Nothing is decided here. */
#include "cluster/member/recover_local.h"

#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/coordinator_process.h"

struct ls_recover_local {
    ls_coordinator_process *coordinator_process; /* owned */
    ls_heal *heal;                               /* borrowed; NULL: not yet */
    ls_roster roster;
};

static void on_tell(void *context, int node, const void *bytes, size_t len)
{
    ls_recover_local *a = context;
    ls_messages word;

    (void)node;
    if (ls_messages_decode(&word, bytes, len) == LS_OK &&
        ls_messages_unpack(&word, &a->roster) == LS_OK) {
        if (a->heal)
            ls_heal_hear(a->heal, &word);
    } else {
        ls_log(LS_LOG_WARN, "%s", ls_err_last()->text);
    }
    ls_messages_release(&word);
}

/* A verdict has told who is to blame. */
static void on_stop(void *context, int node, int code, const ls_err_record *why)
{
    ls_recover_local *a = context;

    (void)code;
    if (node < 0 && a->heal)
        ls_heal_stop(a->heal, why);
}

static void on_died(void *context, const char *what, int64_t took_ns)
{
    ls_recover_local *a = context;

    if (a->heal)
        ls_heal_tell(a->heal, what, took_ns);
}

ls_status ls_recover_local_open(ls_recover_local **alone_out, ls_view_rules rules, int workers,
                                const char *program)
{
    char host[LS_MEMBERS_TEXT] = "localhost";
    ls_recover_local *a = ls_mem_alloc(sizeof *a);
    ls_status st;

    if (!a)
        return LS_ENOMEM;
    ls_roster_init(&a->roster);
    gethostname(host, sizeof host - 1);
    LS_TRY(st,
           ls_coordinator_process_open(&a->coordinator_process,
                                       &(ls_coordinator_process_args){.rules = {.rules = rules},
                                                                      .program = program,
                                                                      .tell = on_tell,
                                                                      .stop = on_stop,
                                                                      .died = on_died,
                                                                      .context = a}),
           out);
    LS_TRY(st,
           ls_coordinator_process_joins(a->coordinator_process, 0, host, "127.0.0.1", workers, true,
                                        ls_time_now_ns()),
           out);
    *alone_out = a;
out:
    if (st != LS_OK)
        ls_recover_local_close(a);
    return st;
}

void ls_recover_local_close(ls_recover_local *alone)
{
    if (!alone)
        return;
    ls_coordinator_process_close(alone->coordinator_process);
    ls_roster_release(&alone->roster);
    ls_mem_free(alone);
}

void ls_recover_local_say(void *alone, const ls_messages *word)
{
    ls_coordinator_process_takes(((ls_recover_local *)alone)->coordinator_process, 0, word,
                                 ls_time_now_ns());
}

void ls_recover_local_bind(ls_recover_local *alone, ls_heal *heal)
{
    alone->heal = heal;
}

int ls_recover_local_fd(const ls_recover_local *alone)
{
    return ls_coordinator_process_fd(alone->coordinator_process);
}

ls_status ls_recover_local_attend(ls_recover_local *alone)
{
    return ls_coordinator_process_attend(alone->coordinator_process);
}
