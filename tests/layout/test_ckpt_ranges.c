/* test_ckpt_ranges.c -- what ranks write of a checkpoint: every element of every tensor once, about as
 * much each, for products of axes; and what they read. */
#include "base/mem.h"
#include "harness.h"
#include "model/tiny.h"
#include "layout/ckpt_ranges.h"
#include "plan/memory.h"

enum { VOCAB = 67, MOST_RANKS = 16 };

typedef struct mesh {
    const char *name;
    ls_family family;
    int ranks, pp, tp, ep, zero, shard;
    int chunks;
} mesh;

static const mesh meshes[] = {
    {"dp 3", LS_FAMILY_GPT2, 3, 1, 1, 1, 0, 0, 1},
    {"zero 1", LS_FAMILY_GPT2, 3, 1, 1, 1, 1, 0, 1},
    {"zero 3", LS_FAMILY_LLAMA, 4, 1, 1, 1, 3, 0, 1},
    {"zero 2 in groups of 2", LS_FAMILY_GPT2, 4, 1, 1, 1, 2, 2, 1},
    {"zero 3 in groups of 3", LS_FAMILY_GPT2, 6, 1, 1, 1, 3, 3, 1},
    {"tp 2", LS_FAMILY_GPT2, 2, 1, 2, 1, 0, 0, 1},
    {"tp 4, more than key/value heads", LS_FAMILY_LLAMA, 4, 1, 4, 1, 0, 0, 1},
    {"tp 2, dp 2", LS_FAMILY_GPT2, 4, 1, 2, 1, 0, 0, 1},
    {"tp 2, dp 3, zero 1", LS_FAMILY_GPT2, 6, 1, 2, 1, 1, 0, 1},
    {"pp 2", LS_FAMILY_GPT2, 2, 2, 1, 1, 0, 0, 1},
    {"pp 2, dp 2, zero 1", LS_FAMILY_GPT2, 4, 2, 1, 1, 1, 0, 1},
    {"pp 2, dp 2, zero 2", LS_FAMILY_GPT2, 4, 2, 1, 1, 2, 0, 1},
    {"pp 2, dp 3, zero 3", LS_FAMILY_LLAMA, 6, 2, 1, 1, 3, 0, 1},
    {"interleaved pp 2, dp 2, tp 2, zero 3", LS_FAMILY_LLAMA, 8, 2, 2, 1, 3, 0, 2},
    {"pp 2, tp 2", LS_FAMILY_GPT2, 4, 2, 2, 1, 0, 0, 1},
    {"pp 2, dp 2, tp 4, zero 1", LS_FAMILY_LLAMA, 16, 2, 4, 1, 1, 0, 1},
    {"interleaved pp 2, tp 2", LS_FAMILY_LLAMA, 4, 2, 2, 1, 0, 0, 2},
    {"tp 2 of experts", LS_FAMILY_MIXTRAL, 4, 1, 2, 1, 0, 0, 1},
    {"ep 2", LS_FAMILY_MIXTRAL, 2, 1, 1, 2, 0, 0, 1},
    {"ep 2, dp 2", LS_FAMILY_MIXTRAL, 4, 1, 1, 2, 0, 0, 1},
    {"ep 4, dp 2", LS_FAMILY_MIXTRAL, 8, 1, 1, 4, 0, 0, 1},
    {"ep 2, zero 1", LS_FAMILY_MIXTRAL, 2, 1, 1, 2, 1, 0, 1},
    {"ep 2, dp 3, zero 1", LS_FAMILY_MIXTRAL, 6, 1, 1, 2, 1, 0, 1},
    {"ep 2, tp 2", LS_FAMILY_MIXTRAL, 4, 1, 2, 2, 0, 0, 1},
    {"ep 2, tp 4, zero 1", LS_FAMILY_MIXTRAL, 16, 1, 4, 2, 1, 0, 1},
    {"pp 2, ep 2", LS_FAMILY_MIXTRAL, 4, 2, 1, 2, 0, 0, 1},
    {"tp 2, dp 3, zero 3", LS_FAMILY_GPT2, 6, 1, 2, 1, 3, 0, 1},
    {"tp 4, dp 2, zero 2", LS_FAMILY_LLAMA, 8, 1, 4, 1, 2, 0, 1},
    {"ep 2, dp 3, zero 3", LS_FAMILY_MIXTRAL, 6, 1, 1, 2, 3, 0, 1},
    {"ep 2, tp 2, dp 4, zero 3", LS_FAMILY_MIXTRAL, 8, 1, 2, 2, 3, 0, 1},
    {"tp 2, dp 4, zero 3 in groups of 2", LS_FAMILY_GPT2, 8, 1, 2, 1, 3, 2, 1},
    {"ep 2, dp 8, zero 2 in groups of 2", LS_FAMILY_MIXTRAL, 8, 1, 1, 2, 2, 2, 1},
    {"ep 2, dp 8, zero 3 in groups of 2", LS_FAMILY_MIXTRAL, 8, 1, 1, 2, 3, 2, 1},
    {"pp 2, dp 2, ep 2, tp 2, zero 1", LS_FAMILY_MIXTRAL, 16, 2, 2, 2, 1, 0, 1},
};

/* Tokens and columns that no number of ranks divides; matrices large enough to be shared. */
static ls_run run_of(const mesh *m)
{
    ls_run run = ls_tiny_run();

    run.model.family = m->family;
    run.model.layers = 4;
    run.model.width = 64;
    run.model.heads = run.model.kv_heads = 4;
    run.model.head_size = 16;
    run.model.mlp = 91;
    run.model.tied = LS_TIED_NO;
    if (m->family != LS_FAMILY_GPT2) {
        run.model.bias = LS_BIAS_NONE;
        run.model.kv_heads = 2;
    }
    if (m->family == LS_FAMILY_MIXTRAL) {
        run.model.experts = 4;
        run.model.experts_used = 2;
        run.model.experts_norm = true;
    }
    run.checkpoint.every = 1;
    run.mesh.pp = m->pp;
    run.mesh.tp = m->tp;
    run.mesh.cp = 1;
    run.mesh.ep = m->ep;
    run.mesh.dp = LS_RUN_AUTO;
    run.mesh.zero = m->zero;
    run.mesh.shard = "world";
    run.mesh.bucket = 1;
    run.mesh.chunks = m->chunks;
    run.mesh.schedule = m->chunks > 1 ? LS_PP_INTERLEAVED : LS_PP_1F1B;
    return run;
}

/* A rank of the mesh, and what it asks. */
typedef struct rank {
    ls_mesh world, mesh_slice;
    ls_model model;
    ls_stage_plan plan;
    ls_ckpt_ranges ranges;
} rank;

static void open_rank(rank *r, const mesh *m, const ls_run *run, int number)
{
    LS_CHECK_OK(ls_mesh_init(&r->world, run, m->ranks, number));
    r->world.shard = m->shard;
    r->mesh_slice = ls_mesh_mp(&r->world) > 1 ? ls_mesh_of_replicas(&r->world) : r->world;
    r->mesh_slice.bucket = 1;
    LS_CHECK_OK(ls_model_init_split(&r->model, run, VOCAB,
                                    (ls_model_split){.rank = number % m->tp,
                                                     .ranks = m->tp,
                                                     .ep_rank = number / m->tp % m->ep,
                                                     .ep_ranks = m->ep}));
    bool pipeline = ls_mesh_pp(&r->mesh_slice) > 1;
    if (pipeline)
        LS_CHECK_OK(ls_stage_plan_init(&r->plan, run, &r->model, &r->mesh_slice, 4, false));
    r->ranges = (ls_ckpt_ranges){.run = run,
                                 .model = &r->model,
                                 .mesh_slice = &r->mesh_slice,
                                 .plan = pipeline ? &r->plan : NULL};
}

static void close_rank(rank *r)
{
    if (r->ranges.plan)
        ls_stage_plan_release(&r->plan);
    ls_model_release(&r->model);
}

static ls_ckpt_ranges_piece *pieces_of(const rank *r, int kind, bool saves, int *n_out)
{
    ls_ckpt_ranges x = r->ranges;
    x.saves = saves;
    *n_out = ls_ckpt_ranges_pieces(&x, kind, r->mesh_slice.rank, NULL);
    ls_ckpt_ranges_piece *pieces = ls_mem_array((size_t)*n_out, sizeof *pieces);

    LS_CHECK(pieces);
    LS_CHECK_EQ(ls_ckpt_ranges_pieces(&x, kind, r->mesh_slice.rank, pieces), *n_out);
    return pieces;
}

/* Count the elements of the whole tensors that a rank has in its pieces. */
static int64_t count_elements(const rank *r, const ls_model *whole, int kind, bool saves,
                              unsigned char *seen)
{
    int64_t all = 0;
    int n;
    ls_ckpt_ranges_piece *pieces = pieces_of(r, kind, saves, &n);

    for (int i = 0; i < n; i++) {
        const ls_param *p = &r->model.params[pieces[i].param];
        const ls_param *same = ls_model_same(whole, p);
        LS_CHECK(same && pieces[i].first >= 0 && pieces[i].count > 0 &&
                 pieces[i].first + pieces[i].count <= p->count);
        for (int64_t e = 0, run; e < pieces[i].count; e += run) {
            int64_t at = ls_param_box_whole(&p->box, p->shape, pieces[i].first + e, &run);
            run = ls_min_i64(run, pieces[i].count - e);
            for (int64_t k = 0; k < run; k++)
                seen[same->first + at + k]++;
        }
        all += pieces[i].count;
    }
    ls_mem_free(pieces);
    return all;
}

/* Each element of each tensor so often, and gaps never. */
static void check_seen(const mesh *m, const ls_model *whole, const unsigned char *seen, int times)
{
    for (int i = 0; i < whole->n_params; i++)
        for (int64_t e = 0; e < whole->params[i].count; e++)
            if (seen[whole->params[i].first + e] != times)
                ls_test_fail(__FILE__, __LINE__, "%s: element %lld of %s is there %d times, not %d",
                             m->name, (long long)e, whole->params[i].name,
                             seen[whole->params[i].first + e], times);
}

LS_TEST(ckpt_ranges_writes_every_element_once)
{
    for (size_t c = 0; c < LS_COUNT(meshes); c++) {
        const mesh *m = &meshes[c];
        ls_run run = run_of(m);
        ls_model whole;
        int64_t sums[MOST_RANKS] = {0}, all = 0;
        LS_CHECK_OK(ls_model_init(&whole, &run, VOCAB));
        unsigned char *seen = ls_mem_alloc((size_t)whole.flat);
        LS_CHECK(seen);
        for (int kind = 0; kind < LS_CKPT_RANGES_KINDS; kind++) {
            memset(seen, 0, (size_t)whole.flat);
            for (int r = 0; r < m->ranks; r++) {
                rank one;
                open_rank(&one, m, &run, r);
                sums[r] += count_elements(&one, &whole, kind, true, seen);
                if (kind == LS_CKPT_RANGES_KINDS - 1)
                    LS_CHECK_EQ(
                        ls_memory_parts_bytes(&run, &one.model, &one.world, &one.mesh_slice),
                        sums[r] * (int64_t)sizeof(float));
                close_rank(&one);
            }
            check_seen(m, &whole, seen, 1);
        }
        for (int r = 0; r < m->ranks; r++)
            all += sums[r];
        LS_CHECK_EQ(all, 3 * whole.elements);
        /* Stages are cut at layers, and what is divided at norm blocks. */
        double most = 1.15 * (double)all / m->ranks + (m->zero ? 3.0 * LS_NORM_BLOCK : 0);
        for (int r = 0; r < m->ranks && m->pp == 1; r++)
            if ((double)sums[r] > most)
                ls_test_fail(__FILE__, __LINE__, "%s: rank %d of %d writes %lld of %lld elements",
                             m->name, r, m->ranks, (long long)sums[r], (long long)all);
        ls_mem_free(seen);
        ls_model_release(&whole);
    }
}

/* What is read in a mesh slice is what its ranks have, copies included: each element once, or by
 * each replica. */
LS_TEST(ckpt_ranges_reads_what_a_slice_has)
{
    for (size_t c = 0; c < LS_COUNT(meshes); c++) {
        const mesh *m = &meshes[c];
        ls_run run = run_of(m);
        ls_model whole;
        LS_CHECK_OK(ls_model_init(&whole, &run, VOCAB));
        unsigned char *seen = ls_mem_alloc((size_t)whole.flat);
        LS_CHECK(seen);
        for (int kind = 0; kind < LS_CKPT_RANGES_KINDS; kind++) {
            bool parted = m->ep > 1 && m->zero && m->pp == 1 && kind > 0; /* by all of place 0 */
            int mp_group = parted ? m->tp : m->tp * m->ep;
            int64_t all = 0, part = 0;
            memset(seen, 0, (size_t)whole.flat);
            for (int r = 0; r < m->ranks; r += mp_group) { /* the slice of place 0 */
                rank one;
                open_rank(&one, m, &run, r);
                all += count_elements(&one, &whole, kind, false, seen);
                part = one.model.elements;
                for (int i = 0; i < one.model.n_params && parted; i++)
                    part +=
                        one.model.params[i].expert ? (m->ep - 1) * one.model.params[i].count : 0;
                close_rank(&one);
            }
            int replicas = m->ranks / (m->tp * m->ep);
            int shard_replicas = m->shard && (kind > 0 || m->zero == 3) ? replicas / m->shard : 1;
            LS_CHECK_EQ(all, shard_replicas * part);
            if (mp_group == 1)
                check_seen(m, &whole, seen, shard_replicas);
        }
        ls_mem_free(seen);
        ls_model_release(&whole);
    }
}

/* Small objects go to the disk from where they lie, large ones through buffers. */
LS_TEST(ckpt_ranges_flow_is_that_of_large_objects)
{
    const mesh one = {"alone", LS_FAMILY_GPT2, 1, 1, 1, 1, 0, 0, 1};
    ls_run run = run_of(&one);
    ls_model model;

    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    LS_CHECK_EQ(ls_ckpt_ranges_flow(&run, &model, NULL), 0);
    ls_model_release(&model);

    run.model.width = 256;
    run.model.head_size = 64;
    run.model.mlp = 600;
    run.model.layers = 1;
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    int64_t block = 0;
    for (int i = 0; i < model.n_params; i++)
        block += model.params[i].unit == 1 ? model.params[i].count : 0;
    LS_CHECK(4 * block > LS_CKPT_RANGES_LARGE);
    LS_CHECK_EQ(ls_ckpt_ranges_flow(&run, &model, NULL), 3 * 4 * block);
    ls_model_release(&model);

    run.model.layers = 4;
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    LS_CHECK_EQ(ls_ckpt_ranges_flow(&run, &model, NULL), LS_CKPT_RANGES_BUFFERS);
    /* Half of a block each is large enough, a tenth is not. */
    ls_mesh mesh_slice = {.ranks = 2};
    LS_CHECK_EQ(ls_ckpt_ranges_flow(&run, &model, &mesh_slice), LS_CKPT_RANGES_BUFFERS);
    mesh_slice.ranks = 40;
    LS_CHECK_EQ(ls_ckpt_ranges_flow(&run, &model, &mesh_slice), 0);
    ls_model_release(&model);
}
