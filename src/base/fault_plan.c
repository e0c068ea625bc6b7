/* fault_plan.c -- a drill's plan: read once, asked at every point (fault.h).
 *
 * An entry strikes when its point is passed by its rank, in its step and generation, for the n-th
 * time; then it is spent. The strike is logged with the time of the monotonic clock, so that an
 * observer can compute how long it took to be noticed. */
#include "base/fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include "base/log.h"
#include "base/str.h"
#include "base/time.h"

enum { MOST = 16, ENTRY = 320, BIT = 22 };

#define DEED(name) (1u << LS_FAULT_##name)
/* What may happen to a process anywhere; what may happen to a write. */
#define PROCESS (DEED(KILL) | DEED(STOP) | DEED(STALL))
#define WRITE (PROCESS | DEED(ERROR) | DEED(TORN) | DEED(FULL))

static const struct {
    const char *name;
    unsigned deeds;
    int generation; /* unless the plan says another */
} points[LS_FAULT_POINTS] = {
    [LS_FAULT_AT_LOAD] = {"load", PROCESS | DEED(ERROR), 1},
    [LS_FAULT_AT_FORWARD] = {"forward", PROCESS | DEED(ERROR), 1},
    [LS_FAULT_AT_BACKWARD] = {"backward", PROCESS, 1},
    [LS_FAULT_AT_REDUCE] = {"reduce", PROCESS | DEED(ERROR), 1},
    [LS_FAULT_AT_LOSSES] = {"losses", PROCESS | DEED(ERROR) | DEED(FLIP), 1},
    [LS_FAULT_AT_UPDATE] = {"update", PROCESS | DEED(ERROR) | DEED(FLIP), 1},
    [LS_FAULT_AT_GATHER] = {"gather", PROCESS | DEED(ERROR), 1},
    [LS_FAULT_AT_IDLE] = {"idle", PROCESS | DEED(ERROR), 1},
    [LS_FAULT_AT_SAVE_COPY] = {"save.copy", PROCESS | DEED(ERROR), 1},
    [LS_FAULT_AT_SAVE_WRITE] = {"save.write", WRITE, 1},
    [LS_FAULT_AT_SAVE_SYNC] = {"save.sync", PROCESS | DEED(FSYNC), 1},
    [LS_FAULT_AT_SAVE_MANIFEST] = {"save.manifest", WRITE, 1},
    [LS_FAULT_AT_REPORT] = {"recover.report", PROCESS | DEED(ERROR), 1},
    [LS_FAULT_AT_MEET] = {"recover.meet", PROCESS | DEED(ERROR), 2},
    [LS_FAULT_AT_TRANSFER] = {"recover.transfer", PROCESS | DEED(ERROR), 2},
    [LS_FAULT_AT_READY] = {"recover.ready", PROCESS | DEED(ERROR), 2},
    [LS_FAULT_AT_LINK] = {"link", PROCESS | DEED(CUT) | DEED(SLOW), 1},
};
static const char *const deeds[LS_FAULT_DEEDS] = {
    [LS_FAULT_KILL] = "kill",   [LS_FAULT_STOP] = "stop", [LS_FAULT_STALL] = "stall",
    [LS_FAULT_ERROR] = "error", [LS_FAULT_FLIP] = "flip", [LS_FAULT_TORN] = "torn",
    [LS_FAULT_FULL] = "full",   [LS_FAULT_CUT] = "cut",   [LS_FAULT_FSYNC] = "fsync",
    [LS_FAULT_SLOW] = "slow"};

typedef struct entry {
    int point, deed; /* -1, 0: not given */
    int64_t rank;    /* -1: any */
    int64_t step;    /* 0: any */
    int64_t generation, visit, times;
    bool stays; /* it is not spent */
    bool told;
    ls_fault_about about;
} entry;

bool ls_fault_planned;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry plan[MOST];
static int entries, own_rank;
static struct {
    int64_t step;
    uint64_t generation;
} now;

/* --- reading ---------------------------------------------------------------------------------- */

static ls_status refuse(const char *what, const char *text)
{
    ls_status st = ls_fail(LS_EUSAGE, "the plan of faults has %s: \"%.80s\"", what, text);

    ls_err_hint("An entry looks like rank=2,step=7,at=backward,do=kill; entries are separated by "
                "semicolons.");
    return st;
}

/* Names of points, or of the deeds of one. */
static ls_status refuse_name(const char *what, const char *text, int point)
{
    ls_str list;
    bool first = true;

    ls_str_init(&list);
    for (int i = point < 0 ? 0 : 1; i < (point < 0 ? LS_FAULT_POINTS : LS_FAULT_DEEDS); i++)
        if (point < 0 || points[point].deeds & (1u << i)) {
            ls_str_printf(&list, "%s%s", first ? "" : ", ", point < 0 ? points[i].name : deeds[i]);
            first = false;
        }
    ls_status st = ls_str_status(&list);
    if (st == LS_OK)
        st = ls_fail(LS_EUSAGE, "\"%.80s\" is %s; there are: %s", text, what, list.p);
    ls_str_release(&list);
    return st;
}

static ls_status read_number(const char *field, const char *text, int64_t most, int64_t *number_out)
{
    char *end;
    long long n = strtoll(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || n > most)
        return refuse("a value that is no number, or too large a one", field);
    *number_out = n;
    return LS_OK;
}

static int find(const char *text, bool point)
{
    for (int i = 0; i < (point ? LS_FAULT_POINTS : LS_FAULT_DEEDS); i++)
        if (point ? strcmp(points[i].name, text) == 0 : deeds[i] && strcmp(deeds[i], text) == 0)
            return i;
    return -1;
}

static ls_status read_field(entry *e, const char *field)
{
    static const char *const names[] = {"rank", "step", "generation", "visit", "times", "ms"};
    int64_t *const numbers[] = {&e->rank,  &e->step,  &e->generation,
                                &e->visit, &e->times, &e->about.ms};
    const char *value = strchr(field, '=');
    size_t n = value ? (size_t)(value - field) : 0;
    int64_t bit = 0;

    if (!value)
        return refuse("a field that is not NAME=VALUE", field);
    value++;
    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (strlen(names[i]) == n && strncmp(field, names[i], n) == 0)
            return read_number(field, value, INT32_MAX, numbers[i]);
    if (n == 2 && strncmp(field, "at", 2) == 0) {
        e->point = find(value, true);
        return e->point < 0 ? refuse_name("no point of a plan", value, -1) : LS_OK;
    }
    if (n == 2 && strncmp(field, "do", 2) == 0) {
        e->deed = find(value, false);
        return e->deed < 0 ? refuse("a deed that does not exist", value) : LS_OK;
    }
    if (n == 3 && strncmp(field, "bit", 3) == 0) {
        ls_status st = read_number(field, value, 31, &bit);
        e->about.bit = st == LS_OK ? (int)bit : 0;
        return st;
    }
    if (n != 6 || strncmp(field, "tensor", 6) != 0 || strlen(value) >= sizeof e->about.tensor)
        return refuse("a field that does not exist", field);
    snprintf(e->about.tensor, sizeof e->about.tensor, "%s", value);
    return LS_OK;
}

static ls_status check_entry(entry *e, const char *text)
{
    bool link = e->deed == LS_FAULT_CUT || e->deed == LS_FAULT_SLOW;

    if (e->point < 0)
        return refuse("an entry without at=", text);
    if (e->deed <= 0 || !(points[e->point].deeds & (1u << e->deed)))
        return refuse_name("nothing that can be done there", e->deed > 0 ? deeds[e->deed] : text,
                           e->point);
    if (e->deed == LS_FAULT_FLIP && !*e->about.tensor)
        return refuse("a flip without tensor=", text);
    if (e->deed == LS_FAULT_SLOW && e->about.ms == 0)
        return refuse("a slow link without ms=", text);
    if (e->generation < 0)
        e->generation = link ? 0 : points[e->point].generation;
    e->stays = link && e->times < 0;
    if (e->times < 0)
        e->times = 1;
    e->visit = ls_max_i64(e->visit, 1);
    return LS_OK;
}

/* text is changed. */
static ls_status read_entry(char *text, entry *e)
{
    char whole[ENTRY];
    ls_status st = LS_OK;

    snprintf(whole, sizeof whole, "%s", text);
    *e = (entry){.point = -1, .rank = -1, .generation = -1, .times = -1, .about = {.bit = BIT}};
    for (char *field = text, *next; field; field = next) {
        next = strchr(field, ',');
        if (next)
            *next++ = '\0';
        field += strspn(field, " \t\n");
        field[strcspn(field, " \t\n")] = '\0';
        LS_TRY(st, read_field(e, field), out);
    }
    st = check_entry(e, whole);
out:
    return st;
}

static ls_status read_plan(const char *text)
{
    char item[ENTRY];
    ls_status st = LS_OK;

    entries = 0;
    while (*(text += strspn(text, "; \t\n"))) {
        size_t len = strcspn(text, ";");
        if (len >= sizeof item || entries == MOST)
            return refuse(entries == MOST ? "too many entries" : "an entry that is too long", text);
        memcpy(item, text, len);
        item[len] = '\0';
        LS_TRY(st, read_entry(item, &plan[entries]), out);
        entries++;
        text += len;
    }
out:
    return st;
}

ls_status ls_fault_plan(const char *text, int rank)
{
    ls_status st;

    pthread_mutex_lock(&lock);
    own_rank = rank;
    now.step = 0;
    now.generation = 1;
    st = read_plan(text ? text : "");
    if (st != LS_OK)
        entries = 0;
    ls_fault_planned = entries > 0;
    pthread_mutex_unlock(&lock);
    return st;
}

/* --- striking --------------------------------------------------------------------------------- */

bool ls_fault_expects(ls_fault_point point)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < entries; i++)
        found |= plan[i].point == (int)point && (plan[i].rank < 0 || plan[i].rank == own_rank);
    pthread_mutex_unlock(&lock);
    return found;
}

void ls_fault_reach(int64_t step, uint64_t generation)
{
    if (!ls_fault_planned)
        return;
    pthread_mutex_lock(&lock);
    now.step = step;
    now.generation = generation ? generation : 1;
    pthread_mutex_unlock(&lock);
}

static bool matches(const entry *e, ls_fault_point point)
{
    bool link = e->deed == LS_FAULT_CUT || e->deed == LS_FAULT_SLOW;

    return e->point == (int)point && e->times > 0 && (e->rank < 0 || e->rank == own_rank) &&
           (e->step == 0 || e->step == now.step || (link && now.step > e->step)) &&
           (e->generation == 0 || (uint64_t)e->generation == now.generation);
}

/* A stall without a length ends with the process. */
static void stall(int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * LS_NS_PER_MS};

    if (ms == 0)
        for (;;)
            pause();
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static ls_fault_deed strike(const entry *e, int64_t step)
{
    if (!e->stays || !e->told)
        ls_log(LS_LOG_WARN, "drill: rank %d, step %lld, at %s: %s (clock %lld ns)", own_rank,
               (long long)step, points[e->point].name, deeds[e->deed], (long long)ls_time_now_ns());
    switch (e->deed) {
    case LS_FAULT_KILL:
        kill(getpid(), SIGKILL);
        stall(0);
        break;
    case LS_FAULT_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case LS_FAULT_STALL:
        stall(e->about.ms);
        break;
    default:
        return (ls_fault_deed)e->deed;
    }
    return LS_FAULT_NONE;
}

ls_fault_deed ls_fault_visit(ls_fault_point point, ls_fault_about *about_out)
{
    entry chosen = {.deed = LS_FAULT_NONE};
    int64_t step;

    pthread_mutex_lock(&lock);
    step = now.step;
    for (int i = 0; i < entries && chosen.deed == LS_FAULT_NONE; i++) {
        entry *e = &plan[i];
        if (!matches(e, point) || --e->visit > 0)
            continue;
        chosen = *e;
        e->visit = 1;
        e->told = true;
        e->times -= !e->stays;
    }
    pthread_mutex_unlock(&lock);
    if (chosen.deed == LS_FAULT_NONE)
        return LS_FAULT_NONE;
    if (about_out)
        *about_out = chosen.about;
    return strike(&chosen, step);
}

ls_status ls_fault_fail(ls_fault_point point)
{
    return ls_fail(LS_EFAIL, "an error at %s, as the plan of faults wants it", points[point].name);
}

int ls_fault_errno(ls_fault_deed deed)
{
    return deed == LS_FAULT_NONE ? 0 : deed == LS_FAULT_FULL ? ENOSPC : EIO;
}
