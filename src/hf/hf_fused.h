/* hf_fused.h -- tensors that a folder holds as one and the model as several.
 *
 * Some families store projections that read the same input as one matrix (Phi-3):
 *
 *   folder   self_attn.qkv_proj [H D + 2 Hkv D, C]         mlp.gate_up_proj [2 F, C]
 *   model    q_proj [H D, C], k_proj, v_proj [Hkv D, C]    gate_proj [F, C], up_proj [F, C]
 *
 * Their rows follow each other in both, so reading cuts a tensor into parts and writing joins
 * parameters that are neighbours in memory; no number moves. Adapters of the parts become one
 * adapter of the whole: of rank r each, for n parts, one of rank n r,
 *
 *       | Aq |          | Bq       |
 *   A = | Ak |      B = |    Bk    |       B A x = Bq Aq x, Bk Ak x, Bv Av x, one below the other
 *       | Av |          |       Bv |
 *
 * with alpha n times as large, since PEFT divides it by the rank. */
#pragma once
#include "hf/hf_folder.h"
#include "hf/loaded_model.h"

LS_C_BEGIN

/* The name under which a folder of the family has a parameter, or a module without suffix: the
 * name itself, or that of the fused tensor. Returns how many parts that has (1: not fused);
 * *which_out is the number of this one among them. */
int ls_hf_fused_name(ls_family family, const char *name, char name_out[LS_PARAM_NAME],
                     int *which_out);

/* Cut the fused tensors of a folder that is being opened into the model's. LS_EDATA: one has another
 * shape than config.json says. */
ls_status ls_hf_fused_split(ls_hf_folder *folder);

/* One adapter of a fused tensor. */
typedef struct ls_hf_fused_adapter {
    char module[LS_PARAM_NAME]; /* "model.layers.3.self_attn.qkv_proj" */
    int64_t rank, K, N;
    float *a, *b; /* owned: [rank, K], [N, rank] */
    float *m;     /* owned: with DoRA the lengths of the outputs, [N]; else NULL */
} ls_hf_fused_adapter;

/* All of a model's, made of those of the parts. *adapters_out is owned by the
 * caller; none: NULL. */
ls_status ls_hf_fused_adapters(const ls_loaded_model *loaded, ls_hf_fused_adapter **adapters_out,
                               int *n_out);
void ls_hf_fused_adapters_free(ls_hf_fused_adapter *adapters, int n); /* NULL is allowed */

LS_C_END
