/* packed_weights.c -- weights packed once, read by many calls.
 *
 * All lie in one buffer, block by block, each direction of each matrix at a place that is known
 * from the shape; the head comes last. `fresh` says which of them hold what the weights hold. An
 * update takes it away from what is trained, so a frozen matrix (LoRA) is packed once in a run. */
#include "model/packed_weights.h"

#include "base/mem.h"
#include "model/pass_impl.h"

typedef struct pack {
    int64_t at; /* in the buffer, bytes; -1: products read it as it lies */
    bool fresh, trained;
} pack;

struct ls_packed_weights {
    ls_packed_weights_args args;
    char *memory;  /* owned */
    const void *w; /* that the packs were made from */
    pack *packs;   /* owned: [matrices][forward, back] */
    int64_t count;
};

static int64_t matrices(const ls_model *model)
{
    return model->shape.L * LS_LAYERS + 1;
}

/* Matrix number i: the row that packs it, without pointers, and its parts among the weights. */
typedef struct matrix {
    ls_pack row;
    const ls_place *w; /* n_parts of them, side by side */
    int n_parts;
} matrix;

static matrix matrix_of(const ls_packed_weights_args *args, int64_t i, bool back)
{
    const ls_model *model = args->model;
    ls_pack row = {.type = args->type, .M = args->M};
    ls_pass_layers at;

    if (i == matrices(model) - 1) {
        row.K = model->shape.C;
        row.N = model->shape.V;
        row.layout = LS_LAYOUT_NK;
        row.use = back ? LS_PACK_HEAD : LS_PACK_FORWARD;
        return (matrix){.row = row, .w = &model->head, .n_parts = 1};
    }
    ls_pass_layers_of(model, i / LS_LAYERS, &at);
    const ls_pass_layer *const layers[LS_LAYERS] = {&at.qkv, &at.proj, &at.fc, &at.out};
    const ls_pass_layer *layer = layers[i % LS_LAYERS];
    row.K = layer->K;
    row.N = layer->N;
    row.layout = model->shape.layout;
    row.use = back ? LS_PACK_BACK : LS_PACK_FORWARD;
    return (matrix){.row = row, .w = layer->w, .n_parts = layer->n_parts};
}

static bool is_trained(const matrix *m)
{
    for (int part = 0; part < m->n_parts; part++)
        if (m->w[part].g >= 0)
            return true;
    return false;
}

/* Whether matrix number i belongs to the part of the model that is packed. */
static bool is_in_part(const ls_packed_weights_args *args, int64_t i)
{
    bool head = i == matrices(args->model) - 1;
    int64_t unit = head ? args->model->shape.L + 1 : 1 + i / LS_LAYERS;

    return args->units == 0 || (unit >= args->unit && unit < args->unit + args->units);
}

/* The one description of the buffer, for counting and for cutting; packs may be NULL. */
static int64_t lay_out(const ls_packed_weights_args *args, pack *packs)
{
    int64_t used = 0;

    if (!args->kernels->pack_bytes)
        return 0;
    for (int64_t i = 0; i < matrices(args->model); i++)
        for (int back = 0; back < 2; back++) {
            matrix m = matrix_of(args, i, back);
            bool none = (back && !args->training) || !is_in_part(args, i) ||
                        m.w[0].w < 0; /* experts are read as they lie */
            int64_t bytes = none ? 0 : args->kernels->pack_bytes(&m.row);
            if (packs)
                packs[2 * i + back] =
                    (pack){.at = bytes > 0 ? used : -1, .trained = is_trained(&m)};
            used = ls_min_i64(used + ls_round_up(bytes, 256), INT64_MAX / 4);
        }
    return used;
}

int64_t ls_packed_weights_bytes(const ls_packed_weights_args *args)
{
    return ls_round_up(lay_out(args, NULL), 4096);
}

ls_status ls_packed_weights_open(ls_packed_weights **packs_out, const ls_packed_weights_args *args)
{
    ls_packed_weights *p = ls_mem_alloc(sizeof *p);
    void *memory = NULL;
    ls_status st = LS_OK;

    if (!p)
        return LS_ENOMEM;
    p->args = *args;
    p->packs = ls_mem_array((size_t)(2 * matrices(args->model)), sizeof *p->packs);
    if (!p->packs) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st,
           ls_device_alloc(ls_stream_device(args->stream), ls_packed_weights_bytes(args),
                           "packed weights", &memory),
           out);
    p->memory = memory;
    lay_out(args, p->packs);
    *packs_out = p;
out:
    if (st != LS_OK)
        ls_packed_weights_close(p);
    return st;
}

void ls_packed_weights_close(ls_packed_weights *packs)
{
    if (!packs)
        return;
    ls_device_free(ls_stream_device(packs->args.stream), packs->memory);
    ls_mem_free(packs->packs);
    ls_mem_free(packs);
}

void ls_packed_weights_updated(ls_packed_weights *packs)
{
    for (int64_t i = 0; packs && i < 2 * matrices(packs->args.model); i++)
        packs->packs[i].fresh = packs->packs[i].fresh && !packs->packs[i].trained;
}

void ls_packed_weights_changed(ls_packed_weights *packs)
{
    for (int64_t i = 0; packs && i < 2 * matrices(packs->args.model); i++)
        packs->packs[i].fresh = false;
}

const void *ls_packed_weights_find(ls_packed_weights *packs, const void *w, int64_t l, ls_layer of,
                                   bool back, int64_t M)
{
    if (!packs)
        return NULL;
    const ls_packed_weights_args *args = &packs->args;
    int64_t i = of == LS_LAYER_HEAD ? matrices(args->model) - 1 : l * LS_LAYERS + (int)of;
    pack *at = &packs->packs[2 * i + back];
    matrix m = matrix_of(args, i, back);
    ls_pack row = m.row;

    row.M = M;
    if (at->at < 0 || args->kernels->pack_bytes(&row) == 0)
        return NULL;
    if (packs->w != w)
        ls_packed_weights_changed(packs);
    packs->w = w;
    row.packed = packs->memory + at->at;
    if (at->fresh)
        return row.packed;
    row.w = (const char *)w + m.w[0].w * ls_dtype_bytes(args->type);
    args->kernels->pack(args->stream, &row);
    at->fresh = true;
    packs->count++;
    return row.packed;
}

int64_t ls_packed_weights_count(const ls_packed_weights *packs)
{
    return packs ? packs->count : 0;
}
