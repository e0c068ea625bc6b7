/* gpu_health.c -- new errors and new slowdowns become incidents.
 *
 * The driver counts; a look compares with the counts of the look before. Clocks may be held back and
 * let go every few seconds for hours, so of these times the 1st, 2nd, 4th, 8th ... are reported.
 *
 *     look        1      2      3      4      5      6
 *     clocks      free   held   held   free   held   held
 *     slowdowns   0      1      1      1      2      2         reported at looks 2 and 5 */
#include "train/report/gpu_health.h"

#include "base/log.h"
#include "base/time.h"
#include "train/session/session.h"

static void report(ls_session *s, const char *text)
{
    ls_session_incident(s, s->step_number, "gpu", "training goes on", text);
    ls_log(LS_LOG_WARN, "%s", text);
}

static void look_at_errors(ls_gpu_health *a, const ls_nvml_state *now, ls_session *s)
{
    char text[160];

    if (now->xids <= a->xids)
        return;
    snprintf(text, sizeof text,
             "the GPU reported %lld errors before step %lld was done, the last is XID %lld: see "
             "the kernel's log",
             (long long)(now->xids - a->xids), (long long)s->step_number, (long long)now->last_xid);
    a->xids = now->xids;
    report(s, text);
}

static void look_at_clocks(ls_gpu_health *a, const ls_nvml_state *now, ls_session *s)
{
    char text[256], why[128];
    bool slow = ls_nvml_slowed(now->reasons);
    bool begins = slow && !a->slow;

    a->slow = slow;
    if (!begins)
        return;
    a->slowdowns++;
    if ((a->slowdowns & (a->slowdowns - 1)) != 0)
        return;
    ls_nvml_reasons(now->reasons, why);
    snprintf(text, sizeof text,
             "at step %lld the GPU's clocks are held back by %s (%lld time%s so far): training "
             "is slower than it could be",
             (long long)s->step_number, why, (long long)a->slowdowns, ls_str_plural(a->slowdowns));
    report(s, text);
}

void ls_gpu_health_look(ls_gpu_health *health, ls_nvml *nvml, ls_session *session)
{
    int64_t now_ns = ls_time_now_ns();
    ls_nvml_state now;

    if (!nvml || (health->looked_ns && now_ns - health->looked_ns < LS_NS_PER_S))
        return;
    health->looked_ns = now_ns;
    ls_nvml_look(nvml, &now);
    look_at_errors(health, &now, session);
    look_at_clocks(health, &now, session);
}
