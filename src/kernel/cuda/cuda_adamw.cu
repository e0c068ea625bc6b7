/* cuda_adamw.cu -- AdamW: a rule of optimizer_update.cuh. */
#include "kernel/cuda/cuda_adamw.cuh"

void ls_cuda_adamw(ls_stream *stream, const ls_optimizer_update *a)
{
    ls_cuda_elements<ls_adamw_rule>(stream, LS_ROW_ADAMW, a);
}
