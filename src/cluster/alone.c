/* alone.c -- see alone.h. Nothing is decided here. */
#include "cluster/alone.h"

#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/office.h"

struct ls_alone {
    ls_office *office; /* owned */
    ls_heal *heal;     /* borrowed; NULL: not yet */
    ls_roster roster;
};

static void on_tell(void *context, int node, const void *bytes, size_t len)
{
    ls_alone *a = context;
    ls_word word;

    (void)node;
    if (ls_word_decode(&word, bytes, len) == LS_OK && ls_word_unpack(&word, &a->roster) == LS_OK) {
        if (a->heal)
            ls_heal_hear(a->heal, &word);
    } else {
        ls_log(LS_LOG_WARN, "%s", ls_err_last()->text);
    }
    ls_word_release(&word);
}

/* A verdict has told who is to blame. */
static void on_stop(void *context, int node, int code, const ls_err_record *why)
{
    ls_alone *a = context;

    (void)code;
    if (node < 0 && a->heal)
        ls_heal_stop(a->heal, why);
}

static void on_died(void *context, const char *what, int64_t took_ns)
{
    ls_alone *a = context;

    if (a->heal)
        ls_heal_tell(a->heal, what, took_ns);
}

ls_status ls_alone_open(ls_alone **alone_out, ls_view_rules rules, int workers, const char *program)
{
    char host[LS_MEMBERS_TEXT] = "localhost";
    ls_alone *a = ls_mem_alloc(sizeof *a);
    ls_status st;

    if (!a)
        return LS_ENOMEM;
    ls_roster_init(&a->roster);
    gethostname(host, sizeof host - 1);
    LS_TRY(st,
           ls_office_open(&a->office, &(ls_office_args){.rules = {.rules = rules},
                                                        .program = program,
                                                        .tell = on_tell,
                                                        .stop = on_stop,
                                                        .died = on_died,
                                                        .context = a}),
           out);
    LS_TRY(st, ls_office_joins(a->office, 0, host, "127.0.0.1", workers, true, ls_time_now_ns()),
           out);
    *alone_out = a;
out:
    if (st != LS_OK)
        ls_alone_close(a);
    return st;
}

void ls_alone_close(ls_alone *alone)
{
    if (!alone)
        return;
    ls_office_close(alone->office);
    ls_roster_release(&alone->roster);
    ls_mem_free(alone);
}

void ls_alone_say(void *alone, const ls_word *word)
{
    ls_office_takes(((ls_alone *)alone)->office, 0, word, ls_time_now_ns());
}

void ls_alone_bind(ls_alone *alone, ls_heal *heal)
{
    alone->heal = heal;
}

int ls_alone_fd(const ls_alone *alone)
{
    return ls_office_fd(alone->office);
}

ls_status ls_alone_attend(ls_alone *alone)
{
    return ls_office_attend(alone->office);
}
