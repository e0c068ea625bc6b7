/* table.cu -- the CUDA rows as a table, and the one symbol that the plugin shows. */
#include "kernel/cuda/cuda_experts.cuh"
#include "kernel/cuda/fp8.cuh"

/* The names of kernel/registry.c, which the plugin does not link. */
const char *ls_cuda_row_name(ls_row row)
{
#define ROW_NAME(upper, lower, args) #lower,
    static const char *const names[LS_ROWS] = {LS_KERNEL_ROWS(ROW_NAME) "pack"};

    return names[row];
}

/* What device code found wrong, in the words that the CPU uses. */
ls_status ls_cuda_fault_text(int row, uint32_t place, int32_t value)
{
    if (row == LS_ROW_HEAD)
        ls_fail(LS_EDATA, "target %d of row %u is not in the vocabulary", value, place);
    else
        ls_fail(LS_EDATA, "token %d at position %u of the batch is outside the vocabulary", value,
                place);
    ls_err_hint("Build the data with the tokenizer that the model was made for.");
    return LS_EDATA;
}

static int64_t scratch(ls_row row, const void *args, int threads)
{
    (void)threads;
    switch (row) {
    case LS_ROW_LINEAR_FWD: { /* the same for all three */
        const ls_linear_fwd *a = (const ls_linear_fwd *)args;
        return a->fp8.x_max ? ls_cuda_linear_scratch(a->M, a->N, a->K) : 0;
    }
    case LS_ROW_QKV_BWD:
        return ls_cuda_qkv_scratch((const ls_qkv *)args);
    case LS_ROW_ATTENTION_BWD:
        return ls_cuda_attention_scratch((const ls_attention_bwd *)args);
    case LS_ROW_NORM_BWD:
        return ls_cuda_norm_scratch((const ls_norm_bwd *)args);
    case LS_ROW_EMBED_BWD:
        return ls_cuda_embed_scratch((const ls_embed_bwd *)args);
    case LS_ROW_HEAD:
        return ls_cuda_head_scratch((const ls_head *)args);
    default:
        return 0;
    }
}

#define CUDA_ROW(upper, lower, args) .lower = ls_cuda_##lower,

/* Without pack: cuBLASLt reads weights as they are. */
static const ls_kernels kernels = {
    .name = "cuda",
    .norm_sums = true,
    .fp8 = true,
    .f16 = true,
    LS_KERNEL_ROWS(CUDA_ROW).pack = NULL, /* products read weights as they lie */
    .scratch = scratch,
    .pack_bytes = NULL,
    .experts = &ls_cuda_experts,
};

/* The device room's entries with ours; filled in when the library is loaded. */
static ls_plugin whole()
{
    ls_plugin p = ls_cuda_device_entries;

    p.kernels = &kernels;
    p.kernels_stamp = ls_kernel_stamp();
    return p;
}

extern "C" __attribute__((visibility("default"))) const ls_plugin ls_plugin_cuda = whole();
