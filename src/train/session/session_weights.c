/* session_weights.c -- the weights that a run begins with.
 *
 * They are made and sent to the device a piece at a time: a model that fits the device may be too
 * large for a second copy of it in the host's memory. A matrix of 1000 x 600 from a folder, on the second
 * of two tp ranks, which has columns 300 to 599:
 *
 *     piece 0   262144 elements: rows 0 .. 872 of this rank and a part of row 873
 *     read      row by row what lies side by side in the folder: columns 300 .. 599 of row 0, of row 1 ...
 *     put       to the device; then piece 1
 *
 * A fresh value is a function of the seed, the parameter's name and the element's number in the whole
 * tensor, so ranks and threads make the same model however they divide it. */
#include "train/session/session_impl.h"

#include <limits.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "hf/base_run.h"
#include "hf/hf_folder.h"
#include "train/session/model_groups.h"

/* How the first weights are made: a piece at a time, each piece by all threads. */
typedef struct starter {
    const ls_hf_folder *from; /* NULL: every value is fresh */
    ls_pool *pool;
    uint64_t seed;
    const ls_param *p;
    const ls_param *whole; /* as the folder has it: p itself, or what p is a part of */
    int64_t first, count;  /* of the piece */
    float *piece;
} starter;

enum { START_PIECE = 262144, START_PART = 8192 };

static void start_part(void *context, int64_t index, int worker)
{
    const starter *t = context;
    int64_t at = index * START_PART;

    (void)worker;
    ls_model_start(t->p, t->seed, t->first + at, ls_min_i64(START_PART, t->count - at),
                   t->piece + at);
}

/* The piece from the folder, as much at a time as lies side by side there. */
static ls_status read_piece(const starter *t)
{
    ls_status st = LS_OK;

    for (int64_t done = 0, run; done < t->count && st == LS_OK; done += run) {
        int64_t at = ls_param_box_whole(&t->p->box, t->p->shape, t->first + done, &run);
        run = ls_min_i64(run, t->count - done);
        st = ls_hf_folder_read(t->from, t->whole, at, run, t->piece + done);
    }
    return st;
}

/* One parameter from the folder that has it, or fresh. */
static ls_status start_param(ls_session *s, starter *t)
{
    bool has = t->from && ls_hf_folder_has(t->from, t->whole);
    ls_status st = LS_OK;

    for (int64_t k = 0; k < t->p->count && st == LS_OK; k += START_PIECE) {
        t->first = k;
        t->count = ls_min_i64(START_PIECE, t->p->count - k);
        if (has)
            LS_TRY(st, read_piece(t), out);
        else
            ls_pool_run(t->pool, start_part, t, (t->count + START_PART - 1) / START_PART);
        ls_step_put(s->step, t->p->first + k, t->count, t->piece);
        st = ls_stream_sync(s->stream, ls_time_now_ns() + 60 * LS_NS_PER_S);
    }
out:
    return st;
}

/* The threads behind the stream; for a GPU some that are made for this. */
static ls_status start_pool(const ls_session *s, ls_pool **own_out, ls_pool **pool_out)
{
    ls_pool_mask mask;
    ls_status st = LS_OK;

    if (s->discrete) {
        ls_pool_mask_get(&mask);
        st = ls_pool_create(own_out, ls_pool_mask_count(&mask));
    }
    *pool_out = s->discrete ? *own_out : ls_stream_pool(s->stream);
    return st;
}

static ls_status open_import(const ls_session *s, ls_hf_folder **folder_out)
{
    ls_status st = ls_hf_folder_open(folder_out, s->run->model.import, -1);

    return st == LS_OK ? ls_hf_folder_check(*folder_out, ls_model_groups_whole(s)) : st;
}

ls_status ls_session_check_import(const ls_session *s)
{
    char store[PATH_MAX];
    ls_hf_folder *from = NULL;

    if (!*s->run->model.import ||
        (size_t)snprintf(store, sizeof store, "%s/checkpoints", s->run->out) >= sizeof store ||
        ls_file_exists(store))
        return LS_OK;
    ls_err_doing("importing \"%s\"", s->run->model.import);
    ls_status st = open_import(s, &from);
    ls_err_done();
    ls_hf_folder_close(from);
    return st;
}

/* A run of ours as the base is the beginning of the lineage. */
static ls_status note_base(ls_session *s)
{
    ls_str_clear(&s->save.lineage);
    return s->mesh.rank == 0 ? ls_base_run_lineage(s->run->model.import, &s->save.lineage) : LS_OK;
}

ls_status ls_session_start_weights(ls_session *s)
{
    starter t = {.seed = (uint64_t)s->run->train.seed};
    ls_hf_folder *from = NULL;
    ls_pool *own = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, start_pool(s, &own, &t.pool), out);
    t.piece = ls_mem_array(START_PIECE, sizeof *t.piece);
    LS_TRY(st, t.piece ? LS_OK : LS_ENOMEM, out);
    if (*s->run->model.import) {
        ls_err_doing("importing \"%s\"", s->run->model.import);
        st = open_import(s, &from);
        if (st == LS_OK)
            st = note_base(s);
    }
    t.from = from;
    for (int i = 0; i < s->model.n_params && st == LS_OK; i++) {
        t.p = &s->model.params[i];
        t.whole = ls_model_same(ls_model_groups_whole(s), t.p);
        st = start_param(s, &t);
    }
    if (*s->run->model.import)
        ls_err_done();
out:
    ls_hf_folder_close(from);
    ls_mem_free(t.piece);
    ls_pool_free(own);
    return st;
}
