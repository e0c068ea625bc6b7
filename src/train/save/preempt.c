/* preempt.c -- is there time for one more save?
 *
 * The estimate is the slowest save of this process, with a margin for a busy disk; a save that is under
 * way comes first, so it counts as one more. Worked example: the slowest save took 4.0 s, 6 s are left.
 *
 *     no save under way     4.0 x 1.2 + 0.1 = 4.9 s: save
 *     one under way         8.0 x 1.2 + 0.1 = 9.7 s: leave the checkpoint that is there, and say so
 *     no save so far        nothing is known: try; a half-written save is no checkpoint
 *
 * The first rank decides and all ranks follow, because a save needs all of them. */
#include "train/save/preempt.h"

#include <limits.h>
#include <unistd.h>
#include <jansson.h>
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/time.h"
#include "config/explain.h"
#include "train/save/sharded_save.h"
#include "train/save/save.h"
#include "train/save/signing.h"

/* A disk that is busier than before, and what comes around a save. */
static const double MARGIN = 1.2, EXTRA_S = 0.1;
enum { RECORD_BYTES = 1 << 20 };

/* By the first rank: how long a save takes, and whether it fits. */
static bool fits(const ls_session *s, double *needs_out, double *left_out)
{
    int64_t by_ns = s->args.stop_by ? s->args.stop_by() : 0;
    bool busy = s->save.sharded ? ls_sharded_save_busy(s) : s->save.writing_step >= 0;
    int saves = busy ? 2 : 1; /* one that is under way comes first */

    *left_out = (double)(by_ns - ls_time_now_ns()) / 1e9;
    *needs_out = s->save.slowest_s > 0 ? saves * s->save.slowest_s * MARGIN + EXTRA_S : 0;
    return by_ns == 0 || *needs_out <= *left_out;
}

ls_status ls_preempt_save(ls_session *s, char why_out[LS_PREEMPT_WHY])
{
    double needs = 0, left = 0, skip = 0;
    ls_status st = LS_OK;

    why_out[0] = '\0';
    if (s->mesh.rank == 0)
        skip = s->save.saved_step != s->step_number && !fits(s, &needs, &left);
    if (s->dp)
        LS_TRY(st, ls_dp_sum_numbers(s->dp, LS_F64, &skip, 1), out);
    if (skip == 0) {
        LS_TRY(st, ls_save_final(s), out);
        if (s->args.stop_saved)
            s->args.stop_saved();
        goto out;
    }
    size_t n =
        (size_t)snprintf(why_out, LS_PREEMPT_WHY,
                         "step %lld is not saved: that takes about %.1f s, and %.1f s were left; ",
                         (long long)s->step_number, needs, left > 0 ? left : 0);
    if (s->save.saved_step >= 0)
        snprintf(why_out + n, LS_PREEMPT_WHY - n, "the checkpoint of step %lld is whole",
                 (long long)s->save.saved_step);
    else
        snprintf(why_out + n, LS_PREEMPT_WHY - n, "there is no checkpoint yet");
out:
    return st;
}

/* --- a run that is done ------------------------------------------------------------------------
 */

static void record_path(const ls_run *run, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/DONE", run->out);
}

static ls_status settings_hash(const ls_run *run, char hex[LS_HASH_HEX])
{
    ls_str text;

    ls_str_init(&text);
    ls_explain_yaml(run, &text);
    ls_status st = ls_str_status(&text);
    if (st == LS_OK)
        ls_hash_hex(ls_hash_bytes(text.p, text.len), hex);
    ls_str_release(&text);
    return st;
}

ls_status ls_preempt_done(const ls_session *s)
{
    char path[PATH_MAX], hex[LS_HASH_HEX];
    ls_str line, event;
    ls_json j;
    ls_status st;

    ls_str_init(&line);
    ls_str_init(&event);
    ls_str_append_bytes(&event, s->folder.line.p, strcspn(s->folder.line.p, "\n"));
    LS_TRY(st, ls_str_status(&event), out);
    LS_TRY(st, settings_hash(s->args.run, hex), out);
    ls_json_begin(&j, &line);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "settings", hex);
    ls_json_put_int(&j, "step", s->step_number);
    ls_json_put_str(&j, "summary", event.p);
    ls_json_close(&j);
    ls_str_append_char(&line, '\n');
    LS_TRY(st, ls_str_status(&line), out);
    record_path(s->run, path);
    st = ls_file_write_atomic(path, line.p, line.len);
out:
    ls_str_release(&line);
    ls_str_release(&event);
    return st;
}

void ls_preempt_undone(const ls_session *session)
{
    char path[PATH_MAX];

    record_path(session->run, path);
    unlink(path);
}

/* Whether the checkpoint of this step can be read, all of it. */
static bool is_whole(const ls_run *run, int64_t step)
{
    char dir[PATH_MAX];
    ls_ckpt_store *store = NULL;
    ls_ckpt *ckpt = NULL;
    int damaged = -1;
    ls_status st;

    snprintf(dir, sizeof dir, "%s/checkpoints", run->out);
    LS_TRY(st, ls_ckpt_open(&store, dir, false), out);
    LS_TRY(st, ls_signing_store(run, store), out);
    LS_TRY(st, ls_ckpt_find(store, step, &ckpt, NULL), out);
    if (ckpt)
        st = ls_ckpt_verify(ckpt, NULL, NULL, &damaged);
out:
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    ls_err_clear(); /* training looks again, and says what is wrong */
    return st == LS_OK && damaged == 0;
}

ls_status ls_preempt_finished(const ls_run *run, bool *finished_out, ls_str *summary_out)
{
    char path[PATH_MAX], hex[LS_HASH_HEX];
    const char *settings = NULL, *summary = NULL;
    json_int_t step = -1;
    json_t *record = NULL;
    ls_str text;
    ls_status st = LS_OK;

    *finished_out = false;
    ls_str_init(&text);
    record_path(run, path);
    if (!ls_file_exists(path) || ls_file_read(path, RECORD_BYTES, &text) != LS_OK)
        goto out;
    LS_TRY(st, settings_hash(run, hex), out);
    record = json_loadb(text.p, text.len, 0, NULL);
    if (!record || json_unpack(record, "{s:s, s:I, s:s}", "settings", &settings, "step", &step,
                               "summary", &summary) != 0)
        goto out; /* not ours, or damaged: the run itself will report that */
    if (strcmp(settings, hex) != 0 || !is_whole(run, step))
        goto out;
    ls_str_append(summary_out, summary);
    st = ls_str_status(summary_out);
    *finished_out = st == LS_OK;
out:
    json_decref(record);
    ls_str_release(&text);
    return st;
}
