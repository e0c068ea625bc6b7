/* rows_shared.c -- the parts of rows that all versions share, the reference included. */
#include "kernel/cpu/rows_shared.h"

bool ls_embed_check_tokens(ls_stream *stream, const int32_t *tokens, int64_t M, int64_t V)
{
    for (int64_t i = 0; i < M; i++) {
        if (tokens[i] >= 0 && tokens[i] < V)
            continue;
        ls_fail(LS_EDATA,
                "token %d at position %lld of the batch is outside the vocabulary of %lld",
                tokens[i], (long long)i, (long long)V);
        ls_err_hint("Build the data with the tokenizer that the model was made for.");
        ls_stream_fail(stream);
        return false;
    }
    return true;
}

bool ls_head_check_targets(ls_stream *stream, const ls_head *a)
{
    int64_t vocab = a->part == LS_HEAD_WHOLE ? a->V : a->vocab;

    LS_BUG_IF(a->part != LS_HEAD_WHOLE && a->leaves != 1, "parts of a head with %lld leaves",
              (long long)a->leaves);
    for (int64_t i = 0; i < a->M; i++) {
        if (a->targets[i] >= -1 && a->targets[i] < vocab)
            continue;
        ls_fail(LS_EDATA, "target %d of row %lld is not in the vocabulary of %lld",
                (int)a->targets[i], (long long)i, (long long)vocab);
        ls_err_hint("Build the data with the tokenizer that the model was made for.");
        ls_stream_fail(stream);
        return false;
    }
    return true;
}

void ls_muon_check(const ls_muon *a)
{
    LS_BUG_IF(a->part == LS_MUON_POLY && a->rows != a->cols, "muon: %lld x %lld is not square",
              (long long)a->rows, (long long)a->cols);
    LS_BUG_IF((a->part == LS_MUON_TAKE || a->part == LS_MUON_STEP) && a->ld < a->cols,
              "muon: rows of %lld lie %lld apart", (long long)a->cols, (long long)a->ld);
    LS_BUG_IF(a->copy && ls_dtype_bytes(a->copy_type) != 2, "muon with a copy of type %d",
              (int)a->copy_type);
}

void ls_qkv_check(const ls_qkv *a, bool forward)
{
    bool norms = a->q_norm != NULL;

    LS_BUG_IF((unsigned)a->type > LS_F16, "qkv rows of type %d", (int)a->type);
    LS_BUG_IF(a->rope && a->D % 2, "rope turns pairs, but D is %lld", (long long)a->D);
    LS_BUG_IF(a->Hkv > 0 && norms != (a->k_norm != NULL), "qkv with a norm of q or k alone");
    LS_BUG_IF(a->past < 0, "qkv with a past of %lld", (long long)a->past);
    LS_BUG_IF(a->part != LS_QKV_WHOLE && (!norms || !a->sums || a->rope),
              "qkv in parts without a norm or sums, or with a rotation");
    if (forward)
        return;
    LS_BUG_IF(a->part == LS_QKV_SUMS && a->dq_norm, "sums of a norm, and its gradient");
    LS_BUG_IF(norms && (!a->product || !a->rstd), "qkv_bwd with norms needs product and rstd");
    LS_BUG_IF((a->dq_norm != NULL) != (a->dk_norm != NULL || (a->dq_norm && a->Hkv == 0)) ||
                  (a->dq_norm && !norms),
              "qkv_bwd with a gradient of one norm alone, or of none");
    LS_BUG_IF(a->dq_norm && (a->leaves < 1 || a->B * a->T < 1 || a->B * a->T % a->leaves),
              "%lld rows in %lld leaves", (long long)(a->B * a->T), (long long)a->leaves);
}

void ls_linear_fwd_check(const ls_linear_fwd *a)
{
    LS_BUG_IF((unsigned)a->type > LS_F16, "linear_fwd of type %d", (int)a->type);
    LS_BUG_IF((a->z || a->add) && ls_linear_ld(a->ldy, a->N) != a->N,
              "linear_fwd with z or add and rows apart");
    LS_BUG_IF(a->add && (a->accumulate || a->z || a->act != LS_ACT_NONE),
              "linear_fwd cannot add with an activation, z or accumulate");
    LS_BUG_IF(a->accumulate && (a->b || a->z || a->act != LS_ACT_NONE),
              "linear_fwd cannot accumulate with a bias, an activation or z");
}

void ls_linear_bwd_x_check(const ls_linear_bwd_x *a)
{
    LS_BUG_IF((unsigned)a->type > LS_F16, "linear_bwd_x of type %d", (int)a->type);
    LS_BUG_IF(a->act != LS_ACT_NONE && (a->accumulate || !a->z),
              "linear_bwd_x with an activation needs z and cannot accumulate");
}
