/* pass_pack.c -- weights in the order that the kernels want, packed when a call needs them.
 *
 * A weight serves one product forward and one backward in each call. A step of one call gains
 * nothing by keeping packed weights, so then they are packed one after the other into the same
 * place, just before their product. With several calls in a step, keep_packed gives each weight a
 * place of its own in both orders, and it is packed once a step. */
#include "model/pass_impl.h"

static ls_pack about(const ls_pass_args *args, int64_t M, const ls_pass_layer *at, bool backward)
{
    return (ls_pack){.type = args->type,
                     .M = M,
                     .N = at->N,
                     .K = at->K,
                     .layout = args->model->shape.layout,
                     .backward = backward};
}

static void bytes_of(const ls_pass_args *args, int threads, int64_t bytes[2 * LS_PASS_LAYERS])
{
    ls_pass_layers all;
    const ls_pass_layer *layers[LS_PASS_LAYERS];

    ls_pass_layers_of(args->model, 0, &all);
    layers[0] = &all.qkv;
    layers[1] = &all.proj;
    layers[2] = &all.fc;
    layers[3] = &all.out;
    for (int i = 0; i < 2 * LS_PASS_LAYERS; i++) {
        ls_pack a = about(args, args->B * args->T, layers[i / 2], i % 2);
        bool used = i % 2 == 0 || args->training;
        bytes[i] = used ? ls_round_up(args->kernels->scratch(LS_ROW_PACK, &a, threads), 256) : 0;
    }
}

int64_t ls_pass_packed_bytes(const ls_pass_args *args, int threads)
{
    int64_t bytes[2 * LS_PASS_LAYERS], sum = 0, most = 0;

    if (args->model->shape.L < 1)
        return 0;
    bytes_of(args, threads, bytes);
    for (int i = 0; i < 2 * LS_PASS_LAYERS; i++) {
        sum += bytes[i];
        most = ls_max_i64(most, bytes[i]);
    }
    return args->keep_packed ? sum * args->model->shape.L : most;
}

/* Where the packed weight of a layer lies in the room for all. */
static int64_t place_of(const ls_pass *pass, int threads, int64_t l, int which)
{
    int64_t bytes[2 * LS_PASS_LAYERS], block = 0, before = 0;

    bytes_of(&pass->args, threads, bytes);
    for (int i = 0; i < 2 * LS_PASS_LAYERS; i++) {
        before += i < which ? bytes[i] : 0;
        block += bytes[i];
    }
    return l * block + before;
}

const void *ls_pass_packed(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                           const ls_pass_layer *at, bool backward)
{
    const ls_kernels *k = pass->args.kernels;
    int threads = 1, which = 2 * at->number + backward;
    ls_pack a = about(&pass->args, call->B * call->T, at, backward);
    bool *there = pass->is_packed ? &pass->is_packed[2 * LS_PASS_LAYERS * l + which] : NULL;

    if (!k->pack || k->scratch(LS_ROW_PACK, &a, threads) == 0)
        return NULL;
    a.w = ls_pass_weight(pass, call, at->w[0]);
    a.to = (char *)pass->packed + (there ? place_of(pass, threads, l, which) : 0);
    if (!there || !*there)
        k->pack(pass->args.stream, &a);
    if (there)
        *there = true;
    return a.to;
}

void ls_pass_weights_changed(ls_pass *pass)
{
    if (pass->is_packed)
        memset(pass->is_packed, 0,
               (size_t)(2 * LS_PASS_LAYERS * pass->args.model->shape.L) * sizeof *pass->is_packed);
}
