/* drill_check.c -- what must hold after a fault, as far as it can be seen from outside, and damage
 * that is done to files. The numbers are those of the invariants in docs/design/faults.md. */
#include "cli/drill/drill.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "checkpoint/ckpt.h"

static const double TOLERANCE = 1e-2; /* of a loss, where bits may differ */

/* --- files --- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

void ls_drill_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static char leftover[PATH_MAX]; /* nftw has no context */

static int look_for_leftovers(const char *path, const struct stat *st, int type, struct FTW *at)
{
    const char *name = path + at->base;

    (void)st;
    if (type == FTW_F && (strstr(name, ".tmp.") || strncmp(name, ".tmp-", 5) == 0))
        snprintf(leftover, sizeof leftover, "%s", path);
    return 0;
}

/* --- damage --- */

static ls_status flip_bit(const char *path)
{
    struct stat about;
    unsigned char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ls_status st = LS_OK;

    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size == 0 ||
        pread(fd, &byte, 1, about.st_size / 2) != 1) {
        st = ls_fail_sys(LS_EIO, "cannot damage \"%s\"", path);
        goto out;
    }
    byte ^= 4;
    if (pwrite(fd, &byte, 1, about.st_size / 2) != 1)
        st = ls_fail_sys(LS_EIO, "cannot damage \"%s\"", path);
out:
    if (fd >= 0)
        close(fd);
    return st;
}

static char newest[PATH_MAX];
static struct timespec newest_time;

static int look_for_newest(const char *path, const struct stat *st, int type, struct FTW *at)
{
    bool later =
        st->st_mtim.tv_sec > newest_time.tv_sec ||
        (st->st_mtim.tv_sec == newest_time.tv_sec && st->st_mtim.tv_nsec > newest_time.tv_nsec);

    (void)at;
    if (type == FTW_F && st->st_size > 0 && later) {
        newest_time = st->st_mtim;
        snprintf(newest, sizeof newest, "%s", path);
    }
    return 0;
}

ls_status ls_drill_damage(const char *out, bool manifest)
{
    char path[PATH_MAX];
    ls_ckpt_store *store = NULL;
    int64_t *steps = NULL;
    int n = 0;
    ls_status st;

    snprintf(path, sizeof path, "%s/checkpoints", out);
    LS_TRY(st, ls_ckpt_open(&store, path, false), out);
    LS_TRY(st, ls_ckpt_steps(store, &steps, &n), out);
    if (n == 0) {
        st = ls_fail(LS_EDATA, "there is no checkpoint in \"%s\" to damage", out);
        goto out;
    }
    snprintf(path, sizeof path, "%s/checkpoints/step-%010lld.json", out, (long long)steps[n - 1]);
    if (!manifest) { /* the one that was written last belongs to the newest checkpoint only */
        snprintf(path, sizeof path, "%s/checkpoints/objects", out);
        newest[0] = '\0';
        newest_time = (struct timespec){0, 0};
        nftw(path, look_for_newest, 16, FTW_PHYS);
        snprintf(path, sizeof path, "%s", newest);
    }
    st = flip_bit(path);
out:
    ls_mem_free(steps);
    ls_ckpt_close(store);
    return st;
}

/* --- what must hold --- */

/* I2, I3: every step once, with its loss. */
static void judge_losses(const ls_drill *d, const ls_drill_report *t, ls_str *why)
{
    if (t->differs) {
        ls_str_append(why, "a step was reported twice with different losses");
        return;
    }
    for (int64_t i = 0; i < d->steps; i++) {
        bool same = d->exact ? t->losses[i] == d->losses[i]
                             : fabs(t->losses[i] - d->losses[i]) <= TOLERANCE * fabs(d->losses[i]);
        if (!same) {
            ls_str_printf(why,
                          isnan(t->losses[i]) ? "step %lld was never reported"
                                              : "the loss of step %lld differs",
                          (long long)i + 1);
            return;
        }
    }
}

static void judge_weights(const ls_drill *d, const ls_drill_report *t, ls_str *why)
{
    if (d->exact ? strcmp(t->hash, d->hash) != 0
                 : !(fabs(t->loss - d->loss) <= TOLERANCE * fabs(d->loss)))
        ls_str_printf(why, "other weights: %s", t->hash);
}

/* I7: the newest two. */
static void judge_checkpoints(const char *out, ls_str *why)
{
    char path[PATH_MAX];
    ls_ckpt_store *store = NULL;
    ls_ckpt *ckpt = NULL;
    int64_t *steps = NULL;
    int n = 0, damaged = 0;
    ls_status st;

    snprintf(path, sizeof path, "%s/checkpoints", out);
    LS_TRY(st, ls_ckpt_open(&store, path, false), out);
    LS_TRY(st, ls_ckpt_steps(store, &steps, &n), out);
    for (int i = n > 2 ? n - 2 : 0; i < n && damaged == 0; i++) {
        LS_TRY(st, ls_ckpt_find(store, steps[i], &ckpt, NULL), out);
        LS_TRY(st, ls_ckpt_verify(ckpt, NULL, NULL, &damaged), out);
        if (damaged)
            ls_str_printf(why, "the checkpoint of step %lld is damaged", (long long)steps[i]);
        ls_ckpt_free(ckpt);
        ckpt = NULL;
    }
    if (n == 0)
        ls_str_append(why, "there is no checkpoint");
out:
    if (st != LS_OK)
        ls_str_printf(why, "its checkpoints cannot be read: %s", ls_err_last()->text);
    ls_mem_free(steps);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
}

/* I8: the incident was reported once; where nothing had to be done, none was. */
static void judge_incidents(const ls_drill *d, const ls_drill_row *row, const ls_drill_report *t,
                            ls_str *why)
{
    bool corrupt = row->incident && strcmp(row->incident, "corrupt") == 0;
    bool lost = corrupt || (row->incident && strcmp(row->incident, "lost") == 0);
    bool healed = lost && d->heals && t->starts == 1;

    if (row->spoils && t->unsaved != 1)
        ls_str_printf(why, "%d incidents report a save that failed", t->unsaved);
    else if (healed && t->lost == 0 && !row->repeats) /* a random one may come too late */
        ls_str_append(why, "no incident reports the loss");
    else if (corrupt && t->corrupt == 0)
        ls_str_append(why, "nobody found the bit that flipped");
    else if (row->kind == LS_DRILL_HOST && (t->lost == 0 || strcmp(t->source, "memory") != 0))
        ls_str_append(why, "nobody took over");
    else if (lost && d->heals && t->starts > 1 && row->kind == LS_DRILL_PLAN)
        ls_str_append(why, "it ended, and had to be started again");
    else if (!lost && t->lost > 0)
        ls_str_append(why, "an incident reports a loss that did not happen");
}

void ls_drill_judge(const ls_drill *drill, const ls_drill_row *row, const ls_drill_report *report,
                    const char *out, ls_str *why_out)
{
    const ls_drill *d = drill;

    ls_str_clear(why_out);
    if (report->hung)
        ls_str_append(why_out, "it hung, and was killed"); /* I1 */
    else if (report->left)
        ls_str_append(why_out, "a process of it was left"); /* I6 */
    else if (report->struck_ns == 0 && !row->repeats)       /* by chance it may come too late */
        ls_str_append(why_out, "the fault never struck");
    else if (report->code != 0)
        ls_str_printf(why_out, "exit code %d after %d start%s", report->code, report->starts,
                      report->starts == 1 ? "" : "s");
    if (why_out->len == 0)
        judge_weights(d, report, why_out);
    if (why_out->len == 0)
        judge_losses(d, report, why_out);
    if (why_out->len == 0)
        judge_incidents(d, row, report, why_out);
    /* One save may be under way when it strikes; a checkpoint that was damaged costs one more. */
    bool damaged = row->kind == LS_DRILL_OBJECT || row->kind == LS_DRILL_MANIFEST;
    if (why_out->len == 0 && report->redone > (damaged ? 3 : 2) * d->every + 1) /* I4 */
        ls_str_printf(why_out, "%lld step%s done again", (long long)report->redone,
                      report->redone == 1 ? " was" : "s were");
    if (why_out->len == 0)
        judge_checkpoints(out, why_out);
    leftover[0] = '\0';
    nftw(out, look_for_leftovers, 16, FTW_PHYS);
    if (why_out->len == 0 && *leftover)
        ls_str_printf(why_out, "\"%s\" was left", leftover);
}
