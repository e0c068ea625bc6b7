/* cugraph.cuh -- cuDNN operation graphs and their plans through the plain C backend API.
 *
 * Just what attention needs: bf16 and fp32 tensors of four dimensions, matrix products, pointwise
 * operations, reductions, a causal mask. A graph owns every descriptor it made. Its first failure
 * is remembered; later calls do nothing, so builders need no checks of their own: look at `failed`
 * once, at the end. Not thread-safe: one graph per thread. */
#pragma once
#include <cudnn.h>
#include "base/base.h"

enum {
    LS_CUGRAPH_DESCS = 192,
    LS_CUGRAPH_OPS = 32,
    LS_CUGRAPH_REAL = 16,     /* tensors in memory are numbered below this */
    LS_CUGRAPH_VIRTUAL = 100, /* intermediate ones from here */
};

typedef cudnnBackendDescriptor_t ls_cudesc;

typedef struct ls_culayout {
    int64_t dim[4], stride[4]; /* strides in elements */
} ls_culayout;

typedef struct ls_cugraph {
    cudnnHandle_t handle;   /* borrowed */
    cudnnDataType_t narrow; /* of tensors that are not fp32 */
    ls_cudesc descs[LS_CUGRAPH_DESCS];
    int desc_count;
    ls_cudesc ops[LS_CUGRAPH_OPS];
    int op_count;
    int64_t ids[LS_CUGRAPH_REAL]; /* tensors in memory */
    int id_count;
    int64_t next_virtual;
    ls_cudesc plan;
    int64_t workspace_bytes;
    bool failed;
} ls_cugraph;

void ls_cugraph_init(ls_cugraph *g, cudnnHandle_t handle, cudnnDataType_t narrow);
void ls_cugraph_release(ls_cugraph *g);

/* Layouts: contiguous, and the same memory with the last two dimensions swapped. */
ls_culayout ls_cugraph_dense(int64_t b, int64_t h, int64_t rows, int64_t cols);
ls_culayout ls_cugraph_transposed(ls_culayout l);

/* Tensors: in device memory, one fp32 number in host memory, or only inside the graph. */
ls_cudesc ls_cugraph_real(ls_cugraph *g, int64_t id, cudnnDataType_t type, ls_culayout l);
ls_cudesc ls_cugraph_scalar(ls_cugraph *g, int64_t id);
ls_cudesc ls_cugraph_virtual(ls_cugraph *g, cudnnDataType_t type, ls_culayout l);

/* c = a b, summed in fp32 */
void ls_cugraph_matmul(ls_cugraph *g, ls_cudesc a, ls_cudesc b, ls_cudesc c);

/* y = mode(x, b) in fp32; b may be NULL. The second form makes y: virtual, fp32. */
void ls_cugraph_apply(ls_cugraph *g, cudnnPointwiseMode_t mode, ls_cudesc x, ls_cudesc b,
                      ls_cudesc y);
ls_cudesc ls_cugraph_map(ls_cugraph *g, cudnnPointwiseMode_t mode, ls_cudesc x, ls_cudesc b,
                         ls_culayout l);

/* y = x reduced over the dimensions where y has size one */
void ls_cugraph_reduce(ls_cugraph *g, cudnnReduceTensorOp_t mode, ls_cudesc x, ls_cudesc y);

/* The same elements in another layout, as virtual `narrow`: how a transpose is spelled. */
ls_cudesc ls_cugraph_reshape(ls_cugraph *g, ls_cudesc x, ls_culayout l);

/* s where row >= column, else the scalar neg_inf */
ls_cudesc ls_cugraph_mask(ls_cugraph *g, ls_cudesc s, ls_cudesc neg_inf, ls_culayout l);

/* Finish the graph and the heuristics' first plan that works. False: cuDNN refuses. */
bool ls_cugraph_finish(ls_cugraph *g);

/* Run it on memory: pointers are indexed by tensor number (scalars: host memory). */
cudnnStatus_t ls_cugraph_run(const ls_cugraph *g, void *const *pointers, void *workspace);
