/* mesh_choice.c -- which meshes there are, which of them work, and which is best.
 *
 * All values of all axes are gone through, like the digits of a number. A new axis needs a row in
 * the table below and its share of the time (mesh_choice_time.c); whether a mesh is allowed is asked of
 * the functions that refuse it in a run.
 *
 * Two meshes whose times differ by less than LS_MESH_CHOICE_NEARLY count as equal; then the plainer
 * one is taken (smaller widths, less that is divided), and of equally plain ones the one that needs
 * less memory. */
#include "plan/mesh_choice_impl.h"

#include "base/mem.h"
#include "config/check.h"
#include "config/explain.h"
#include "config/option.h"
#include "layout/replicas.h"
#include "layout/stage_plan.h"

enum { BUCKET_BYTES = 4 << 20 }; /* about what ranks exchange at a time */

typedef struct axis {
    const char *key;
    bool widens; /* its width multiplies the ranks of a model */
    bool groups; /* it groups ranks that share the batch */
    bool inside; /* they must be of one node */
    bool bits;   /* the bits of ordered mode depend on it */
    bool piped;  /* it means something only in a pipeline */
    bool
        shares; /* ranks that have the same divide it: it means something where there are several */
} axis;

static const axis axes[LS_MESH_CHOICE_AXES] = {
    {.key = "mesh.zero", .shares = true},
    {.key = "mesh.tp", .widens = true, .inside = true, .bits = true},
    {.key = "mesh.pp", .widens = true},
    {.key = "mesh.schedule", .piped = true},
    {.key = "mesh.cp", .widens = true, .bits = true},
    {.key = "mesh.ep", .groups = true, .inside = true, .bits = true}};

/* The value of an axis of which a mesh has nothing. */
static int64_t none_of(int a)
{
    return axes[a].widens || axes[a].groups ? 1 : 0;
}

static int64_t get(const ls_run *run, const ls_option *row)
{
    const void *field = (const char *)run + row->offset;

    return row->type == LS_OPTION_ENUM ? *(const int *)field : *(const int64_t *)field;
}

static void put(ls_run *run, const ls_option *row, int64_t value)
{
    void *field = (char *)run + row->offset;

    if (row->type == LS_OPTION_ENUM)
        *(int *)field = (int)value;
    else
        *(int64_t *)field = value;
}

static bool is_free(const ls_run *run, const ls_option *row)
{
    return ls_explain_origin(run, row)->source == LS_RUN_DEFAULT;
}

static int64_t last_of(const ls_option *row)
{
    int64_t n = 0;

    if (row->type != LS_OPTION_ENUM)
        return (int64_t)row->most;
    while (n < LS_OPTION_NAMES && row->names[n])
        n++;
    return n - 1;
}

/* --- rows ------------------------------------------------------------------------------------- */

typedef struct maker {
    const ls_run *run;
    const ls_mesh_choice_facts *facts;
    ls_model whole;
    ls_mesh_choice *choice;
    int room;
} maker;

static const ls_option *option_of(int a)
{
    return ls_option_find(axes[a].key);
}

void ls_mesh_choice_apply(const ls_mesh_choice *choice, int i, ls_run *run)
{
    const ls_mesh_choice_row *row = &choice->rows[i];
    const ls_option *recompute = ls_option_find("train.recompute");

    for (int a = 0; a < LS_MESH_CHOICE_AXES; a++)
        put(run, option_of(a), row->value[a]);
    if (is_free(run, recompute)) /* the rank takes the least that fits */
        run->train.recompute = LS_RECOMPUTE_AUTO;
    ls_check_follow(run);
}

static bool is_pipe(int a)
{
    return strcmp(axes[a].key, "mesh.pp") == 0;
}

void ls_mesh_choice_name(ls_mesh_choice_row *row, int ranks)
{
    int64_t dp = ranks;
    bool pipe = false;

    for (int a = 0; a < LS_MESH_CHOICE_AXES; a++) {
        dp /= axes[a].widens ? row->value[a] : 1;
        pipe |= is_pipe(a) && row->value[a] > 1;
    }
    size_t used = (size_t)snprintf(row->mesh, sizeof row->mesh, "dp=%lld", (long long)dp);
    for (int a = 0; a < LS_MESH_CHOICE_AXES && used < sizeof row->mesh; a++) {
        const ls_option *option = option_of(a);
        size_t left = sizeof row->mesh - used;
        if (option->type == LS_OPTION_ENUM) {
            if (!axes[a].piped || pipe)
                used +=
                    (size_t)snprintf(row->mesh + used, left, " %s", option->names[row->value[a]]);
        } else if (row->value[a] > none_of(a)) {
            used += (size_t)snprintf(row->mesh + used, left, " %s=%lld", ls_option_leaf(option),
                                     (long long)row->value[a]);
        }
    }
}

/* The reason that was given, without the place in the run file: the user did not write this mesh. */
static void keep_why(ls_mesh_choice_row *row)
{
    static const char place[] = "default: ";
    const char *text = ls_err_last()->text, *end = strstr(text, "): ");

    if (strncmp(text, place, sizeof place - 1) == 0)
        text += sizeof place - 1;
    snprintf(row->why, sizeof row->why, "%.*s", LS_MESH_CHOICE_WHY - 1, end ? end + 3 : text);
    ls_err_clear();
}

/* --- what refuses ------------------------------------------------------------------------------
 */

/* Ranks that must be of one node are not: they lie side by side, from a multiple of their number
 * on. */
static bool is_torn(const ls_mesh_choice_facts *facts, int64_t width)
{
    return width > 1 && facts->ranks > facts->per_node && facts->per_node % width != 0;
}

/* The mesh as rank `rank` has it. */
static ls_status mesh_of(const maker *m, const ls_run *run, int rank, ls_mesh_choice_case *one)
{
    int64_t bytes = run->mesh.bucket == LS_RUN_AUTO ? BUCKET_BYTES : run->mesh.bucket;
    ls_status st;

    *one = (ls_mesh_choice_case){.facts = m->facts, .run = run, .whole = &m->whole};
    LS_TRY(st, ls_mesh_init(&one->mesh, run, m->facts->ranks, rank), out);
    LS_TRY(st, ls_replicas_choose(&one->mesh, run, m->facts->heals), out);
    one->mesh.local = m->facts->per_node;
    one->mp_groups = ls_mesh_tp(&one->mesh) > 1 ? ls_mesh_slice(&one->mesh) : one->mesh;
    one->mesh.bucket = ls_mesh_bucket_blocks(&one->mesh, bytes);
    one->mp_groups.bucket = ls_mesh_bucket_blocks(&one->mp_groups, bytes);
    if (one->mesh.ep > 1) {
        one->replicas = ls_mesh_of_replicas(&one->mesh);
        one->replicas.bucket = ls_mesh_bucket_blocks(&one->replicas, bytes);
    }
out:
    return st;
}

/* The part of the model that a rank has. */
static ls_status part_of(const ls_mesh_choice_case *one, int rank, ls_model *part_out)
{
    int tp = ls_mesh_tp(&one->mesh), ep = ls_mesh_ep(&one->mesh);
    const ls_model_split split = {.rank = rank % tp,
                                  .ranks = tp,
                                  .ep_rank = rank / tp % ep,
                                  .ep_ranks = ep,
                                  .sequence = tp > 1 && one->run->mesh.sp};

    return ls_model_init_split(part_out, one->run, one->facts->vocab, split);
}

/* What a rank of the mesh needs. */
static ls_status bytes_of(const maker *m, const ls_run *run, int rank, int64_t *bytes_out)
{
    const ls_mesh_choice_facts *facts = m->facts;
    ls_model part = {.params = NULL};
    ls_mesh_choice_case one;
    ls_ledger ledger;
    ls_status st;

    LS_TRY(st, mesh_of(m, run, rank, &one), out);
    LS_TRY(st, part_of(&one, rank, &part), out);
    if (ls_mesh_pp(&one.mp_groups) > 1) { /* can its layers be cut? */
        ls_stage_plan pipe;
        LS_TRY(st, ls_stage_plan_init(&pipe, run, &part, &one.mp_groups, 1, false), out);
        ls_stage_plan_release(&pipe);
    }
    ls_memory_predict(&(ls_memory_args){.run = run,
                                        .model = &part,
                                        .whole = &m->whole,
                                        .kernels = facts->kernels,
                                        .mesh = &one.mp_groups,
                                        .world = &one.mesh,
                                        .sums = one.mesh.ep > 1 ? &one.replicas : NULL,
                                        .threads = facts->threads,
                                        .discrete = facts->discrete,
                                        .page = facts->page,
                                        .fixed_bytes = facts->fixed_bytes,
                                        .program_bytes = facts->program_bytes,
                                        .pack = run->device.pack == LS_PACKING_ON},
                      &ledger);
    *bytes_out = ls_ledger_total(&ledger);
out:
    ls_model_release(&part);
    return st;
}

/* The ranks that can need most: the first one, which writes samples, and of a pipeline the first of
 * the second stage and of the last, which has the head. */
static ls_status most_bytes(const maker *m, const ls_run *run, int64_t *bytes_out)
{
    int pp_ranks = run->mesh.pp > 1 ? (int)run->mesh.pp : 1, each = m->facts->ranks / pp_ranks;
    int64_t most = 0, bytes;
    ls_status st = LS_OK;

    for (int pp_rank = 0; pp_rank < pp_ranks;
         pp_rank = pp_rank == 1 && pp_ranks > 2 ? pp_ranks - 1 : pp_rank + 1) {
        LS_TRY(st, bytes_of(m, run, pp_rank * each, &bytes), out);
        most = ls_max_i64(most, bytes);
    }
    *bytes_out = most;
out:
    return st;
}

/* What must be recomputed at least, where that is free, and what is needed then. */
static ls_status fit(const maker *m, const ls_run *run, ls_mesh_choice_row *row)
{
    ls_run tried = *run;
    ls_status st = LS_OK;

    for (int level = LS_RECOMPUTE_NONE; level <= LS_RECOMPUTE_FULL; level++) {
        if (run->train.recompute == LS_RECOMPUTE_AUTO) {
            tried.train.recompute = (ls_recompute)level;
            tried.train.recompute_blocks = LS_RUN_AUTO;
        }
        LS_TRY(st, most_bytes(m, &tried, &row->bytes), out);
        row->recompute = tried.train.recompute;
        if (row->bytes <= m->facts->free_bytes || run->train.recompute != LS_RECOMPUTE_AUTO)
            break;
    }
    if (row->bytes > m->facts->free_bytes)
        st = ls_fail(LS_ENOMEM, "a rank needs %.1f MiB, %.1f are free",
                     ls_size_up(row->bytes, LS_MIB), ls_size_down(m->facts->free_bytes, LS_MIB));
out:
    return st;
}

/* What an axis must not do unless the user asked for it. */
static ls_status check_axis(const maker *m, int a, int64_t value)
{
    if (axes[a].bits && value > 1 && m->run->train.reduce == LS_REDUCE_ORDERED &&
        is_free(m->run, option_of(a)))
        return ls_fail(LS_EUSAGE,
                       "with train.reduce: ordered no bit may depend on the mesh; fast, or setting "
                       "%s, allows it",
                       axes[a].key);
    if (axes[a].inside && is_torn(m->facts, value))
        return ls_fail(LS_EUSAGE, "ranks that meet in every layer would be on several nodes");
    return LS_OK;
}

static ls_status look_at(const maker *m, ls_mesh_choice_row *row)
{
    ls_mesh_choice_case one;
    ls_run run = *m->run;
    ls_status st = LS_OK;
    const ls_mesh_choice only = {.rows = row};

    ls_mesh_choice_apply(&only, 0, &run);
    ls_mesh_choice_name(row, m->facts->ranks);
    LS_TRY(st, mesh_of(m, &run, 0, &one), out);
    LS_TRY(st, ls_check_run(&run, false, false), out);
    for (int a = 0; a < LS_MESH_CHOICE_AXES; a++)
        LS_TRY(st, check_axis(m, a, row->value[a]), out);
    LS_TRY(st, fit(m, &run, row), out);
    st = ls_mesh_choice_time(&one, row);
out:
    return st;
}

/* --- all of them -------------------------------------------------------------------------------
 */

static ls_status add_row(maker *m, const int64_t *value)
{
    ls_mesh_choice *c = m->choice;

    if (c->count == m->room) {
        int room = m->room ? 2 * m->room : 64;
        ls_mesh_choice_row *rows = ls_mem_array((size_t)room, sizeof *rows);
        if (!rows)
            return ls_fail(LS_ENOMEM, "no memory for a table of %d meshes", room);
        if (c->rows)
            memcpy(rows, c->rows, (size_t)c->count * sizeof *rows);
        ls_mem_free(c->rows);
        c->rows = rows;
        m->room = room;
    }
    ls_mesh_choice_row *row = &c->rows[c->count];
    *row = (ls_mesh_choice_row){.bytes = 0};
    memcpy(row->value, value, sizeof row->value);
    ls_status st = look_at(m, row);
    if (st == LS_OK) {
        c->can++;
    } else if (st == LS_EUSAGE || st == LS_ENOMEM) {
        keep_why(row);
    } else {
        return st;
    }
    c->count++;
    return LS_OK;
}

/* Whether a mesh divides what no rank has a second time, without having been asked to: it would be
 * another one with fewer words. dp: the ranks that the axes leave.
 *
 *     dp=1 zero=1            is dp=1
 *     dp=2 ep=2 zero=3       is dp=2 ep=2 zero=1: every expert is there once */
static bool is_idle(const maker *m, const int64_t *value, int64_t dp)
{
    int64_t pipelines = dp, groups = 1;
    int shares = 0;

    for (int a = 0; a < LS_MESH_CHOICE_AXES; a++) {
        pipelines *= strcmp(axes[a].key, "mesh.cp") == 0 ? value[a] : 1;
        groups *= axes[a].groups ? value[a] : 1;
        shares = axes[a].shares ? a : shares;
    }
    if (!is_free(m->run, option_of(shares)))
        return false;
    return (pipelines == 1 && value[shares] > 0) || (pipelines == groups && value[shares] > 1);
}

/* The values of one axis after the other; ranks: those that the axes so far leave. */
static ls_status go_through(maker *m, int a, int64_t ranks, bool pipe, int64_t *value)
{
    if (a == LS_MESH_CHOICE_AXES)
        return is_idle(m, value, ranks) ? LS_OK : add_row(m, value);
    const ls_option *row = option_of(a);
    bool wide = none_of(a) == 1;
    bool idle = (axes[a].piped && !pipe) || (axes[a].groups && m->whole.shape.E == 0);
    bool free = is_free(m->run, row) && !idle; /* else it stays as it is */
    int64_t now = get(m->run, row), first = free ? none_of(a) : now;
    int64_t end = !free ? now : wide ? ls_min_i64(ranks, last_of(row)) : last_of(row);
    ls_status st = LS_OK;

    for (int64_t v = first; v <= end && st == LS_OK; v++) {
        if (wide && (v < 1 || ranks % v != 0))
            continue;
        value[a] = v;
        st = go_through(m, a + 1, axes[a].widens ? ranks / v : ranks, pipe || (is_pipe(a) && v > 1),
                        value);
    }
    return st;
}

/* By time, in an order that does not depend on the order before; refused ones stay behind. */
static void sort_rows(ls_mesh_choice *c)
{
    for (int i = 1; i < c->count; i++) {
        ls_mesh_choice_row row = c->rows[i];
        int k = i;
        for (; k > 0 && !row.why[0] &&
               (c->rows[k - 1].why[0] || c->rows[k - 1].step_ns > row.step_ns);
             k--)
            c->rows[k] = c->rows[k - 1];
        c->rows[k] = row;
    }
}

/* Whether a mesh is plainer than another, by the sum of its numbers, of which those that ranks
 * depend on each other by in every call count twice; or as plain, and smaller. */
static bool is_plainer(const ls_mesh_choice_row *a, const ls_mesh_choice_row *b)
{
    int64_t more = 0;

    for (int i = 0; i < LS_MESH_CHOICE_AXES; i++)
        if (option_of(i)->type != LS_OPTION_ENUM)
            more += (a->value[i] - b->value[i]) * (none_of(i) == 1 ? 2 : 1);
    return more < 0 || (more == 0 && a->bytes < b->bytes);
}

/* The plainest of those that are as good as the quickest comes first. */
static void put_plainest_first(ls_mesh_choice *c)
{
    int best = 0;

    for (int i = 1;
         i < c->can && c->rows[i].step_ns <= c->rows[0].step_ns * (1 + LS_MESH_CHOICE_NEARLY); i++)
        if (is_plainer(&c->rows[i], &c->rows[best]))
            best = i;
    ls_mesh_choice_row row = c->can > 0 ? c->rows[best] : (ls_mesh_choice_row){.bytes = 0};
    for (int i = best; i > 0; i--)
        c->rows[i] = c->rows[i - 1];
    if (c->can > 0)
        c->rows[0] = row;
}

/* No mesh works: the one that needs least memory speaks for all, or else the plainest. */
static ls_status say_none(const ls_mesh_choice *c)
{
    const ls_mesh_choice_row *near = NULL;

    for (int i = 0; i < c->count; i++)
        if (c->rows[i].bytes > 0 && (!near || c->rows[i].bytes < near->bytes))
            near = &c->rows[i];
    if (!near && c->count == 0) {
        ls_fail(LS_EUSAGE, "mesh: auto finds no mesh of %d ranks: what is set does not divide them",
                c->facts.ranks);
        ls_err_hint("Give another -n, or leave mesh.tp, pp, cp and ep out.");
        return LS_EUSAGE;
    }
    if (!near) {
        ls_fail(LS_EUSAGE, "mesh: auto finds no mesh of %d ranks: %s: %s", c->facts.ranks,
                c->rows[0].mesh, c->rows[0].why);
        ls_err_hint("`lineshaft plan mesh` shows all of them, and what refuses each.");
        return LS_EUSAGE;
    }
    ls_fail(LS_ENOMEM,
            "mesh: auto finds no mesh of %d ranks that fits: %s needs least, %.1f MiB a rank, and "
            "%.1f are free",
            c->facts.ranks, near->mesh, ls_size_up(near->bytes, LS_MIB),
            ls_size_down(c->facts.free_bytes, LS_MIB));
    ls_err_hint("More ranks on more machines, a smaller batch.leaf, model or context would do; "
                "`lineshaft plan mesh` shows the table.");
    return LS_ENOMEM;
}

ls_status ls_mesh_choice_make(const ls_run *run, const ls_mesh_choice_facts *facts,
                              ls_mesh_choice *choice_out)
{
    int64_t value[LS_MESH_CHOICE_AXES];
    maker m = {.run = run, .facts = facts, .choice = choice_out};
    ls_status st;

    *choice_out = (ls_mesh_choice){.facts = *facts};
    LS_TRY(st, ls_model_init(&m.whole, run, facts->vocab), out);
    LS_TRY(st, go_through(&m, 0, facts->ranks, false, value), out);
    sort_rows(choice_out);
    put_plainest_first(choice_out);
    if (choice_out->can == 0)
        st = say_none(choice_out);
out:
    ls_model_release(&m.whole);
    return st;
}

ls_status ls_mesh_choice_adopt(const int64_t value[LS_MESH_CHOICE_AXES], int ranks,
                               ls_mesh_choice *choice_out)
{
    ls_mesh_choice_row *row = ls_mem_array(1, sizeof *row);

    if (!row)
        return LS_ENOMEM;
    memcpy(row->value, value, sizeof row->value);
    ls_mesh_choice_name(row, ranks);
    *choice_out = (ls_mesh_choice){.facts = {.ranks = ranks}, .rows = row, .count = 1, .can = 1};
    return LS_OK;
}

void ls_mesh_choice_release(ls_mesh_choice *choice)
{
    ls_mem_free(choice->rows);
    *choice = (ls_mesh_choice){.count = 0};
}
