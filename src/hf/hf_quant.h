/* hf_quant.h -- weights as small integers with a scale a group, in a folder of ours.
 *
 * A group is some neighbours in a row of a matrix, 64 unless another number is asked for. In
 * model.safetensors a matrix NAME.weight of [rows, cols] becomes two tensors:
 *
 *   8 bits   NAME.weight         I8 [rows, cols]        q between -127 and 127
 *   4 bits   NAME.weight_packed  U8 [rows, cols / 2]    q + 8 of columns 2 i (low half) and 2 i + 1
 *   both     NAME.weight_scale   F16 [rows, cols / group]
 *
 * and a number is q times the scale of its group. config.json says "quantization_config":
 * {"quant_method": "lineshaft", "bits": 4, "group_size": 64}, so that other programs refuse it
 * instead of reading it wrongly. Names and parts are those of the model here, even where the family's
 * own folders have fused tensors. Only matrices of the blocks become integers, routers excepted. */
#pragma once
#include "hf/hf_folder_impl.h"
#include "hf/loaded_model.h"

LS_C_BEGIN

enum { LS_HF_QUANT_GROUP = 8 }; /* the smallest group */

/* A matrix of a folder that is stored so. */
struct ls_hf_quant_tensor {
    ls_safetensors_entry entry; /* as a tensor of [rows, cols] with 8 or 4 bits a number */
    char name[LS_PARAM_NAME];
    int64_t group, scales; /* columns of a group; where the scales begin in the file */
};

/* Join integers and scales of a folder that is being opened. LS_EDATA: they do not fit together. */
ls_status ls_hf_quant_join(ls_hf_folder *folder);
/* Elements of a joined tensor as fp32; bytes: the file it lies in. */
void ls_hf_quant_widen(const struct ls_hf_quant_tensor *tensor, const void *bytes, int64_t first,
                       int64_t count, float *values_out);

typedef struct ls_hf_quant_args {
    const ls_loaded_model *model;
    const char *folder; /* gets model.safetensors, and its config.json a section more */
    int bits;           /* 8 or 4 */
    int64_t group;      /* even */
    ls_dtype type;      /* of everything else: LS_F32, LS_BF16 or LS_F16 */
} ls_hf_quant_args;

typedef struct ls_hf_quant_report {
    int64_t bytes; /* of the file */
    int matrices;  /* that became integers */
    int left;      /* that did not, because their rows cannot be divided into groups */
    int64_t fits;  /* a group that divides the rows of all; 0: none of 8 or more does */
} ls_hf_quant_report;

/* LS_EUSAGE: no row of the model can be divided into such groups. LS_EDATA: a number is too large. */
ls_status ls_hf_quant_write(const ls_hf_quant_args *args, ls_hf_quant_report *report_out);

LS_C_END
