/* test_page_reuse.c -- memory that pages of a window share: a model is walked through, and nothing that
 * is still wanted is overwritten; few bytes are enough. */
#include "harness.h"
#include "config/runfile.h"
#include "plan/memory.h"
#include "layout/page_reuse.h"

enum { VOCAB = 300, MOST_PAGES = 4096 };

typedef struct world {
    const char *family;
    bool tied, ordered;
    int layers, width, ranks;
    int64_t page;
} world;

/* Which page of the window each page of memory holds; -1: nothing that is wanted. */
static int64_t holds[MOST_PAGES];

static int64_t memory_of(const ls_page_reuse *t, int64_t page, int64_t at)
{
    int64_t turn = at < t->fixed ? at : t->fixed + (at - t->fixed) % t->period;

    return (at >= t->end ? t->fixed + t->period + at - t->end : turn) / page;
}

/* Elements are written, or read, or wanted no more. */
static void touch(const ls_page_reuse *t, const world *w, int64_t first, int64_t count,
                  int64_t size, char what)
{
    for (int64_t at = first * size / w->page * w->page; at < (first + count) * size;
         at += w->page) {
        int64_t *here = &holds[memory_of(t, w->page, at)];
        LS_CHECK(at < t->bytes);
        if (what == 'w') {
            LS_CHECK(*here == -1 || *here == at);
            *here = at;
        } else {
            LS_CHECK_EQ(*here, at);
        }
    }
    for (int64_t at = ls_round_up(first * size, w->page);
         what == 'd' && at + w->page <= ls_round_up((first + count) * size, w->page); at += w->page)
        holds[memory_of(t, w->page, at)] = -1;
}

static void write_unit(const ls_model *m, const ls_page_reuse *t, const world *w, int64_t unit)
{
    for (int i = 0; i < m->n_params; i++)
        if (m->params[i].unit == unit)
            touch(t, w, m->params[i].trained, m->params[i].count, sizeof(float), 'w');
    if (unit > 1 && m->blocks[unit - 2].out_b.g >= 0)
        touch(t, w, m->blocks[unit - 2].out_b.g, m->shape.C, sizeof(float), 'w');
}

static void walk_gradient(const ls_model *m, const ls_dp_args *dp, const world *w)
{
    ls_page_reuse t = ls_page_reuse_gradient(m, &dp->mesh, dp->ordered, w->page);
    int64_t top = m->shape.L + 1, tied = m->shape.V * m->shape.C;
    int next = ls_mesh_buckets(&dp->mesh, dp->trained) - 1;

    LS_CHECK(ls_page_reuse_held(&t) <= t.bytes && ls_page_reuse_held(&t) / w->page < MOST_PAGES);
    memset(holds, 0xff, sizeof holds);
    if (w->tied) {
        touch(&t, w, w->ordered ? m->trained : m->wte.g, tied, sizeof(float), 'w');
        if (w->ordered)
            touch(&t, w, m->trained, tied, sizeof(float), 'd');
    }
    for (int64_t unit = top; unit >= 0; unit--) {
        write_unit(m, &t, w, unit);
        for (; unit != 1 && next >= 0; next--) { /* the first block leaves with the embedding */
            ls_mesh_part b = ls_mesh_bucket(&dp->mesh, dp->trained, next);
            if (b.first < ls_model_complete(m, unit))
                break;
            for (int i = 0; i < m->n_params; i++) {
                const ls_param *p = &m->params[i];
                int64_t from = ls_max_i64(p->trained, b.first);
                int64_t end = ls_min_i64(p->trained + p->count, b.first + b.count);
                if (from < end)
                    touch(&t, w, from, end - from, sizeof(float), 'r');
            }
            touch(&t, w, b.first, 0, sizeof(float), 'r');
            for (int64_t at = ls_round_up(b.first * 4, w->page);
                 at < ls_round_up((b.first + b.count) * 4, w->page); at += w->page)
                if (holds[memory_of(&t, w->page, at)] == at)
                    holds[memory_of(&t, w->page, at)] = -1;
        }
    }
    LS_CHECK_EQ(next, -1);
}

static void check(const world *w)
{
    char text[700];
    int n = snprintf(text, sizeof text,
                     "model: {family: %s, layers: %d, width: %d, heads: 4, context: 32, tied: %s}\n"
                     "data: {text: builtin:stories}\n"
                     "batch: {sequences: 8, leaf: 1}\n"
                     "train: {steps: 10, reduce: %s}\n"
                     "mesh: {zero: 3}\n",
                     w->family, w->layers, w->width, w->tied ? "true" : "false",
                     w->ordered ? "ordered" : "fast");
    ls_run run;
    ls_model model;
    ls_mesh mesh;

    LS_CHECK_OK(ls_runfile_load(
        &run, &(ls_runfile_source){
                  .text = text, .len = (size_t)n, .no_environment = true, .no_files = true}));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    LS_CHECK_OK(ls_mesh_init(&mesh, &run, w->ranks, 0));
    mesh.bucket = ls_mesh_bucket_blocks(&mesh, 1);
    ls_dp_args dp = ls_memory_dp(&run, &model, &mesh);
    walk_gradient(&model, &dp, w);

    /* Weights: of two units that follow each other no two pages are the same memory. */
    ls_page_reuse t = ls_page_reuse_weights(&model, &dp.mesh, 2, w->page);
    for (int64_t unit = 0; unit <= model.shape.L; unit++) {
        ls_zero_units_set two = ls_zero_units_buckets(&model, &mesh, unit) |
                                ls_zero_units_buckets(&model, &mesh, unit + 1);
        memset(holds, 0xff, sizeof holds);
        for (int b = 0; b < ls_mesh_buckets(&mesh, dp.trained); b++) {
            ls_mesh_part part = ls_mesh_bucket(&mesh, dp.trained, b);
            if (two >> b & 1) /* padding is gathered, too */
                touch(&t, w, part.first, part.each * w->ranks, 2, 'w');
        }
        LS_CHECK(__builtin_popcountll(two) <= ls_page_reuse_places(&model, &dp.mesh));
    }
    if (w->layers > 8) /* what it is for */
        LS_CHECK(ls_page_reuse_held(&t) < t.bytes * 2 / 3);
    ls_model_release(&model);
    ls_runfile_release(&run);
}

LS_TEST(page_reuse_overwrite_nothing_that_is_wanted)
{
    static const world worlds[] = {
        {"gpt2", true, true, 12, 64, 2, 4096},   {"gpt2", true, false, 12, 64, 2, 8192},
        {"llama", false, true, 16, 64, 3, 8192}, {"llama", false, false, 9, 128, 2, 4096},
        {"qwen3", true, false, 10, 96, 4, 4096}, {"gpt2", true, false, 2, 32, 2, 65536},
        {"gpt2", true, true, 1, 32, 5, 4096},    {"gpt2", false, true, 10, 128, 2, 16384},
    };

    for (size_t i = 0; i < LS_COUNT(worlds); i++)
        check(&worlds[i]);
}
