/* drill_run.c -- one row of a drill: the run is started, watched and struck, and started again.
 *
 * Events come through a small pipe, so that a run is at most a few steps ahead of the drill. They
 * say where its processes are and what it did about the fault; losses are taken from events.jsonl
 * afterwards, where each step is written once, whichever rank was killed in the middle of a
 * line. */
#include "cli/drill/drill.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"

enum { WORDS = 2 * LS_DRILL_SETS + 40, LEAST_S = 60, LEFT_S = 3, PIPE_BYTES = 4096, VISITS = 24 };
enum { PAUSE_MS = 1000 };

/* One start of a run, while it is watched. */
typedef struct start {
    const ls_drill *d;
    const ls_drill_row *row; /* NULL: nothing happens to it */
    ls_drill_report *report;
    const char *out;
    pid_t pid;
    int fd;               /* what it reports */
    char mark[64];        /* in the environment of all of its processes */
    ls_str line;          /* what came of the next event */
    int64_t first_ns;     /* when its first step was reported; 0: not yet */
    int64_t strike_at_ns; /* LS_DRILL_RANDOM: the instant; 0: not known yet */
    int64_t resume_at_ns; /* LS_DRILL_PAUSE: when the rank goes on; 0: it is not stopped */
    pid_t stopped;
    int saves;
    bool struck;
} start;

/* A number by chance, below n. */
static uint32_t draw(const ls_drill *d, const ls_drill_row *row, int number, uint32_t what,
                     uint32_t n)
{
    uint32_t which = (uint32_t)(row - ls_drill_rows);

    return ls_rng_philox(d->key, which, (uint32_t)number, what, 0).v[0] % n;
}

bool ls_drill_on_hosts(const ls_drill_row *row)
{
    return row && (row->kind == LS_DRILL_UNPLUGGED || row->kind == LS_DRILL_BETWEEN ||
                   row->kind == LS_DRILL_HOST);
}

/* The step that the fault strikes: in the second half, with a checkpoint behind it. */
static int64_t middle(const ls_drill *d)
{
    return d->steps / 2 + 1;
}

static void fill_plan(const ls_drill *d, const ls_drill_row *row, int number, ls_str *plan)
{
    for (const char *p = row->plan; *p; p++)
        if (p[0] != '$') {
            ls_str_append_char(plan, *p);
        } else {
            p++;
            ls_str_printf(plan, "%lld",
                          *p == 'S'   ? (long long)middle(d)
                          : *p == 'R' ? (long long)d->ranks - 1
                                      : 1LL + draw(d, row, number, 'V', VISITS));
        }
}

/* --- starting --- */

static void add_set(const char **words, int *n, const char *set)
{
    words[(*n)++] = "--set";
    words[(*n)++] = set;
}

/* The words of its command line, which point into `text`, the drill and the row. */
static ls_status fill_words(const ls_drill *d, const ls_drill_row *row, const char *out,
                            ls_str *text, const char **words)
{
    int n = 0;

    ls_str_printf(text, "out=%s", out);
    ls_str_append_char(text, '\0');
    size_t ranks = text->len;
    ls_str_printf(text, "%d", ls_drill_on_hosts(row) ? 1 : d->ranks);
    ls_status st = ls_str_status(text);
    if (st != LS_OK)
        return st;
    if (ls_drill_on_hosts(row)) {
        const char *const lab[] = {"lineshaft", "lab", "--nodes",
                                   row->kind == LS_DRILL_HOST ? "3" : "2", "--"};
        for (size_t i = 0; i < LS_COUNT(lab); i++)
            words[n++] = lab[i];
        words[n++] = "/proc/self/exe";
    } else {
        words[n++] = "lineshaft";
    }
    words[n++] = "train";
    words[n++] = d->run_path;
    words[n++] = "--json";
    words[n++] = "-n";
    words[n++] = text->p + ranks;
    for (int i = 0; i < d->n_sets; i++)
        add_set(words, &n, d->sets[i]);
    for (int i = 0; row && i < (int)LS_COUNT(row->sets) && row->sets[i]; i++)
        add_set(words, &n, row->sets[i]);
    add_set(words, &n, text->p);
    words[n] = NULL;
    return LS_OK;
}

/* In the child. */
static _Noreturn void become(const start *s, const char *const *words, const char *plan, int out_fd,
                             int err_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("LINESHAFT_DRILL_MARK", s->mark, 1);
    setenv("LINESHAFT_BLACKBOX", "off", 1);
    setenv("LINESHAFT_DRILL", plan, 1);
    dup2(out_fd, STDOUT_FILENO);
    dup2(err_fd, STDERR_FILENO);
    execv("/proc/self/exe", (char *const *)(uintptr_t)words);
    _exit(127);
}

static ls_status begin(start *s, int number)
{
    const char *words[WORDS];
    char path[PATH_MAX];
    int ends[2] = {-1, -1}, err_fd = -1;
    ls_str text, plan;
    ls_status st;

    ls_str_init(&text);
    ls_str_init(&plan);
    LS_TRY(st, fill_words(s->d, s->row, s->out, &text, words), out);
    if (s->row && s->row->plan && s->report->starts == 1)
        fill_plan(s->d, s->row, number, &plan);
    LS_TRY(st, ls_str_status(&plan), out);
    snprintf(path, sizeof path, "%s.err", s->out);
    err_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (err_fd < 0 || pipe2(ends, O_CLOEXEC) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot watch a run in \"%s\"", s->d->dir);
        goto out;
    }
    fcntl(ends[0], F_SETPIPE_SZ, PIPE_BYTES);
    snprintf(s->mark, sizeof s->mark, "%d.%lld", (int)getpid(), (long long)ls_time_now_ns());
    fflush(stdout);
    fflush(stderr);
    s->pid = fork();
    if (s->pid == 0)
        become(s, words, plan.p ? plan.p : "", ends[1], err_fd);
    if (s->pid < 0)
        st = ls_fail_sys(LS_EIO, "cannot start a run");
    s->fd = ends[0];
    ends[0] = -1;
out:
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    if (err_fd >= 0)
        close(err_fd);
    ls_str_release(&text);
    ls_str_release(&plan);
    return st;
}

/* --- striking --- */

/* All interfaces of the network in which a process is. In a child: this process stays where it is.
 */
static _Noreturn void unplug(int64_t pid)
{
    char path[64];
    struct if_nameindex *list;
    int net, fd;

    snprintf(path, sizeof path, "/proc/%lld/ns/net", (long long)pid);
    net = open(path, O_RDONLY | O_CLOEXEC);
    if (net < 0 || setns(net, CLONE_NEWNET) != 0)
        _exit(1);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    list = if_nameindex();
    for (int i = 0; fd >= 0 && list && list[i].if_name; i++) {
        struct ifreq request = {.ifr_flags = 0};
        snprintf(request.ifr_name, sizeof request.ifr_name, "%s", list[i].if_name);
        if (strcmp(list[i].if_name, "lo") == 0 || ioctl(fd, SIOCGIFFLAGS, &request) != 0)
            continue;
        request.ifr_flags = (short)(request.ifr_flags & ~IFF_UP);
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
    _exit(0);
}

/* The agent of a rank: the grandparent, above the supervisor. 0: not known. */
static pid_t agent_of(int64_t rank_pid)
{
    long long pid = rank_pid;

    for (int i = 0; i < 2 && pid > 1; i++) {
        char path[64];
        ls_str text;
        ls_str_init(&text);
        snprintf(path, sizeof path, "/proc/%lld/stat", pid);
        const char *end =
            ls_file_read(path, LS_MIB, &text) == LS_OK && text.len ? strrchr(text.p, ')') : NULL;
        if (!end || sscanf(end + 1, " %*c %lld", &pid) != 1)
            pid = 0;
        ls_str_release(&text);
    }
    ls_err_clear();
    return (pid_t)(pid > 1 ? pid : 0);
}

static void strike(start *s, int number)
{
    ls_drill_report *t = s->report;
    uint32_t who = t->n_ranks ? draw(s->d, s->row, number, 'W', (uint32_t)t->n_ranks) : 0;
    pid_t child;

    s->struck = true;
    t->struck_ns = ls_time_now_ns();
    switch (s->row->kind) {
    case LS_DRILL_RANDOM:
        if (t->n_ranks && t->rank_pids[who] > 1)
            kill((pid_t)t->rank_pids[who], SIGKILL);
        break;
    case LS_DRILL_PAUSE:
        s->stopped = t->n_ranks && t->rank_pids[who] > 1 ? (pid_t)t->rank_pids[who] : s->pid;
        s->resume_at_ns = t->struck_ns + PAUSE_MS * LS_NS_PER_MS;
        kill(s->stopped, SIGSTOP);
        break;
    case LS_DRILL_UNPLUGGED:
        child = t->n_ranks > 1 && t->rank_pids[1] > 1 ? fork() : -1;
        if (child == 0)
            unplug(t->rank_pids[1]);
        if (child > 0)
            waitpid(child, NULL, 0);
        break;
    case LS_DRILL_HOST:
        child = t->n_ranks ? agent_of(t->rank_pids[0]) : 0;
        if (child > 0 && child != s->pid)
            kill(child, SIGKILL);
        break;
    default:
        kill(s->pid, s->row->kind == LS_DRILL_TERM ? SIGTERM : SIGKILL);
        break;
    }
}

/* Whether the moment has come: after this step, or when the second save has ended. */
static bool is_due(const start *s)
{
    if (!s->row || s->struck || s->report->starts > 1)
        return false;
    switch (s->row->kind) {
    case LS_DRILL_RANDOM:
        return s->strike_at_ns > 0 && ls_time_now_ns() >= s->strike_at_ns;
    case LS_DRILL_AGENT:
    case LS_DRILL_TERM:
    case LS_DRILL_PAUSE:
    case LS_DRILL_UNPLUGGED:
        return s->report->last_step >= middle(s->d);
    case LS_DRILL_HOST:
        return s->report->last_step >= middle(s->d) - 1;
    case LS_DRILL_OBJECT:
    case LS_DRILL_MANIFEST:
        return s->saves >= 2;
    default:
        return false;
    }
}

/* --- listening --- */

static double number_of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key)); /* 0: there is none */
}

static void copy_text(const json_t *row, const char *key, char *to, size_t size)
{
    const char *text = json_string_value(json_object_get(row, key));

    snprintf(to, size, "%s", text ? text : "");
}

static void take_incident(ls_drill_report *t, const json_t *row)
{
    const char *kind = json_string_value(json_object_get(row, "kind"));

    if (kind && strcmp(kind, "checkpoint") == 0)
        t->unsaved++;
    bool corrupt = kind && strcmp(kind, "corrupt") == 0;
    if (!corrupt && (!kind || strcmp(kind, "lost") != 0))
        return;
    t->lost++;
    t->corrupt += corrupt;
    t->recovered_ms = 1e3 * number_of(row, "seconds");
    t->incident_ns = ls_time_now_ns();
    t->redone += (int64_t)number_of(row, "redone");
    copy_text(row, "source", t->source, sizeof t->source);
}

static void take_first_step(start *s, int number)
{
    double share = s->row ? draw(s->d, s->row, number, 'T', 1u << 20) / (double)(1u << 20) : 0;

    s->first_ns = ls_time_now_ns();
    s->strike_at_ns = s->first_ns + (int64_t)(share * s->d->seconds * 1e9);
}

static void take_event(start *s, const json_t *row, int number)
{
    ls_drill_report *t = s->report;
    const char *event = json_string_value(json_object_get(row, "event"));

    if (!event)
        return;
    if (strcmp(event, "rank") == 0) {
        int rank = (int)number_of(row, "rank");
        if (rank >= 0 && rank < (int)LS_COUNT(t->rank_pids)) {
            t->rank_pids[rank] = (int64_t)number_of(row, "pid");
            t->n_ranks = rank + 1;
        }
    } else if (strcmp(event, "start") == 0 && t->starts > 1) {
        t->redone += ls_max_i64(0, t->last_step - (int64_t)number_of(row, "first_step"));
        snprintf(t->source, sizeof t->source, "restart");
    } else if (strcmp(event, "step") == 0) {
        t->last_step = (int64_t)number_of(row, "step");
        if (s->first_ns == 0)
            take_first_step(s, number);
    } else if (strcmp(event, "incident") == 0) {
        take_incident(t, row);
    } else if (strcmp(event, "checkpoint") == 0) {
        s->saves++;
    } else if (strcmp(event, "summary") == 0) {
        copy_text(row, "weights_hash", t->hash, sizeof t->hash);
        t->loss = number_of(row, "loss");
    }
}

/* Lines, as far as they are whole; a lab puts the host before each. */
static void take_lines(start *s, const char *bytes, ssize_t n, int number)
{
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] != '\n') {
            ls_str_append_char(&s->line, bytes[i]);
            continue;
        }
        const char *from = s->line.len ? memchr(s->line.p, '{', s->line.len) : NULL;
        json_t *row =
            from ? json_loadb(from, s->line.len - (size_t)(from - s->line.p), 0, NULL) : NULL;
        if (row)
            take_event(s, row, number);
        json_decref(row);
        ls_str_clear(&s->line);
    }
}

/* Until its end. */
static void watch(start *s, int number)
{
    int64_t begun_ns = ls_time_now_ns();
    int64_t most_ns = ls_max_i64(LEAST_S, (int64_t)(30 * s->d->seconds)) * LS_NS_PER_S;
    char bytes[4096];
    ssize_t n = 1;

    while (n != 0) {
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        bool random = s->row && s->row->kind == LS_DRILL_RANDOM && !s->struck;
        if (poll(&p, 1, random ? 1 : 200) > 0) {
            n = read(s->fd, bytes, sizeof bytes);
            take_lines(s, bytes, n, number);
        }
        if (is_due(s))
            strike(s, number);
        if (s->resume_at_ns > 0 && ls_time_now_ns() >= s->resume_at_ns) {
            s->resume_at_ns = 0;
            kill(s->stopped, SIGCONT);
        }
        if (ls_time_now_ns() - begun_ns > most_ns && !s->report->hung) {
            s->report->hung = true;
            kill(s->pid, SIGKILL);
        }
    }
    s->report->seconds = s->first_ns ? (double)(ls_time_now_ns() - s->first_ns) / 1e9 : 0;
}

/* --- afterwards --- */

/* A process that has this run's mark. */
static bool is_alive(const char *mark)
{
    char path[300], want[96];
    bool found = false;
    DIR *dir = opendir("/proc");
    ls_str text;

    int len = snprintf(want, sizeof want, "LINESHAFT_DRILL_MARK=%s", mark);
    ls_str_init(&text);
    for (const struct dirent *e; dir && !found && (e = readdir(dir));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/environ", e->d_name);
        ls_str_clear(&text);
        if (ls_file_read(path, LS_MIB, &text) == LS_OK && text.len > 0)
            found = memmem(text.p, text.len, want, (size_t)len) != NULL;
    }
    if (dir)
        closedir(dir);
    ls_str_release(&text);
    ls_err_clear();
    return found;
}

/* I6: no process is left, a moment later. */
static void await_nobody(const start *s)
{
    int64_t until_ns = ls_time_now_ns() + LEFT_S * LS_NS_PER_S;

    while (is_alive(s->mark)) {
        if (ls_time_now_ns() > until_ns) {
            s->report->left = true;
            return;
        }
        poll(NULL, 0, 20);
    }
}

/* When a plan struck, as it says itself. */
static int64_t find_strike(const char *out)
{
    char path[PATH_MAX];
    long long ns = 0;
    ls_str text;

    ls_str_init(&text);
    snprintf(path, sizeof path, "%s.err", out);
    if (ls_file_read(path, 64 * LS_MIB, &text) == LS_OK && text.len > 0) {
        const char *at = strstr(text.p, "drill: rank ");
        const char *clock = at ? strstr(at, "(clock ") : NULL;
        ns = clock ? strtoll(clock + strlen("(clock "), NULL, 10) : 0;
    }
    ls_err_clear();
    ls_str_release(&text);
    return ns;
}

/* Every step that was reported, from events.jsonl. */
static ls_status read_losses(const ls_drill *d, const char *out, ls_drill_report *t)
{
    char path[PATH_MAX], *next;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    snprintf(path, sizeof path, "%s/events.jsonl", out);
    LS_TRY(st, ls_file_read(path, LS_GIB, &text), out);
    for (char *line = text.p; line && *line; line = next) {
        size_t len = strcspn(line, "\n");
        next = line + len + (line[len] == '\n');
        json_t *row = json_loadb(line, len, 0, NULL);
        const char *event = json_string_value(json_object_get(row, "event"));
        int64_t step = (int64_t)number_of(row, "step");
        if (event && strcmp(event, "step") == 0 && step >= 1 && step <= d->steps) {
            double loss = number_of(row, "loss");
            t->differs |= d->exact && !isnan(t->losses[step - 1]) && t->losses[step - 1] != loss;
            t->losses[step - 1] = loss;
        }
        json_decref(row);
    }
out:
    ls_str_release(&text);
    return st;
}

/* One start of the run, to its end. */
static ls_status play_once(start *s, int number)
{
    int status = 0;
    ls_status st;

    s->report->starts++;
    s->report->n_ranks = 0;
    s->fd = -1;
    ls_str_init(&s->line);
    LS_TRY(st, begin(s, number), out);
    watch(s, number);
    while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
        ;
    s->report->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (s->report->starts == 1)
        s->report->ended_ns = ls_time_now_ns();
    await_nobody(s);
out:
    if (s->fd >= 0)
        close(s->fd);
    ls_str_release(&s->line);
    return st;
}

/* Whether a scheduler would start it once more. */
static bool again(const ls_drill_report *t)
{
    return t->code != 0 && !t->hung && t->starts < LS_DRILL_STARTS &&
           t->code != ls_err_exit_code(LS_EUSAGE) && t->code != ls_err_exit_code(LS_ENORETRY) &&
           t->code != ls_err_exit_code(LS_EDATA) && t->code != ls_err_exit_code(LS_ENUMERIC);
}

/* Between two starts. */
static ls_status damage(const char *out, bool manifest, ls_drill_report *t)
{
    if (t->struck_ns == 0) /* it was over before it could be stopped */
        t->struck_ns = t->ended_ns;
    return ls_drill_damage(out, manifest);
}

ls_status ls_drill_play(const ls_drill *drill, const ls_drill_row *row, int number, const char *out,
                        ls_drill_report *report_out)
{
    ls_drill_report *t = report_out;
    bool damages = row && (row->kind == LS_DRILL_OBJECT || row->kind == LS_DRILL_MANIFEST);
    ls_status st = LS_OK;

    *t = (ls_drill_report){.recovered_ms = (double)NAN};
    t->losses = ls_mem_array((size_t)drill->steps, sizeof *t->losses);
    if (!t->losses)
        return LS_ENOMEM;
    for (int64_t i = 0; i < drill->steps; i++)
        t->losses[i] = (double)NAN;
    do {
        start s = {.d = drill, .row = row, .report = t, .out = out};
        LS_TRY(st, play_once(&s, number), out);
        if (damages && t->starts == 1)
            LS_TRY(st, damage(out, row->kind == LS_DRILL_MANIFEST, t), out);
    } while (row && (again(t) || (damages && t->starts == 1)));
    if (t->struck_ns == 0)
        t->struck_ns = find_strike(out);
    if (read_losses(drill, out, t) != LS_OK)
        ls_err_clear(); /* it never got this far: its exit code says why */
out:
    return st;
}

void ls_drill_report_release(ls_drill_report *report)
{
    ls_mem_free(report->losses);
    report->losses = NULL;
}
