/* cugraph.cu -- see cugraph.cuh. Descriptors follow one pattern everywhere: create, set attributes
 * (each with a type tag and a count), finish; a finished one is read-only and may be referred to by
 * others. Nothing here is specific to attention but the mask. */
#include "kernel/cuda/cugraph.cuh"

enum { ANSWERS = 4 };

static bool fine(ls_cugraph *g, cudnnStatus_t status)
{
    g->failed = g->failed || status != CUDNN_STATUS_SUCCESS;
    return !g->failed;
}

/* --- descriptors ---------------------------------------------------------------------------- */

void ls_cugraph_init(ls_cugraph *g, cudnnHandle_t handle, cudnnDataType_t narrow)
{
    memset(g, 0, sizeof *g);
    g->handle = handle;
    g->narrow = narrow;
    g->next_virtual = LS_CUGRAPH_VIRTUAL;
}

void ls_cugraph_release(ls_cugraph *g)
{
    while (g->desc_count > 0)
        cudnnBackendDestroyDescriptor(g->descs[--g->desc_count]);
}

static ls_cudesc add(ls_cugraph *g, cudnnBackendDescriptorType_t type)
{
    ls_cudesc d = NULL;

    g->failed = g->failed || g->desc_count == LS_CUGRAPH_DESCS;
    if (g->failed || !fine(g, cudnnBackendCreateDescriptor(type, &d)))
        return NULL;
    g->descs[g->desc_count++] = d;
    return d;
}

static void set(ls_cugraph *g, ls_cudesc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (!g->failed)
        fine(g, cudnnBackendSetAttribute(d, name, type, count, values));
}

static void set_desc(ls_cugraph *g, ls_cudesc d, cudnnBackendAttributeName_t name, ls_cudesc value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(ls_cugraph *g, ls_cudesc d)
{
    if (!g->failed)
        fine(g, cudnnBackendFinalize(d));
}

ls_culayout ls_cugraph_dense(int64_t b, int64_t h, int64_t rows, int64_t cols)
{
    return {{b, h, rows, cols}, {h * rows * cols, rows * cols, cols, 1}};
}

ls_culayout ls_cugraph_transposed(ls_culayout l)
{
    return {{l.dim[0], l.dim[1], l.dim[3], l.dim[2]},
            {l.stride[0], l.stride[1], l.stride[3], l.stride[2]}};
}

static ls_cudesc add_tensor(ls_cugraph *g, int64_t id, cudnnDataType_t type, ls_culayout l,
                            bool in_host)
{
    ls_cudesc t = add(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool is_virtual = id >= LS_CUGRAPH_VIRTUAL;
    int64_t align = 16;

    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, l.dim);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, l.stride);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (is_virtual)
        set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (in_host)
        set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &in_host);
    finish(g, t);
    if (!is_virtual && g->id_count < LS_CUGRAPH_REAL)
        g->ids[g->id_count++] = id;
    return t;
}

ls_cudesc ls_cugraph_real(ls_cugraph *g, int64_t id, cudnnDataType_t type, ls_culayout l)
{
    return add_tensor(g, id, type, l, false);
}

ls_cudesc ls_cugraph_scalar(ls_cugraph *g, int64_t id)
{
    return add_tensor(g, id, CUDNN_DATA_FLOAT, ls_cugraph_dense(1, 1, 1, 1), true);
}

ls_cudesc ls_cugraph_virtual(ls_cugraph *g, cudnnDataType_t type, ls_culayout l)
{
    return add_tensor(g, g->next_virtual++, type, l, false);
}

/* --- operations ----------------------------------------------------------------------------- */

static void add_op(ls_cugraph *g, ls_cudesc op)
{
    finish(g, op);
    g->failed = g->failed || g->op_count == LS_CUGRAPH_OPS;
    if (!g->failed)
        g->ops[g->op_count++] = op;
}

void ls_cugraph_matmul(ls_cugraph *g, ls_cudesc a, ls_cudesc b, ls_cudesc c)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    ls_cudesc math = add(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);

    set(g, math, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(g, math);
    ls_cudesc op = add(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, math);
    add_op(g, op);
}

typedef struct pointwise_args {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    int64_t axis;         /* of an index generator */
    ls_cudesc x, b, t, y; /* t: condition of a select; b and t may be NULL */
} pointwise_args;

static void pointwise(ls_cugraph *g, pointwise_args a)
{
    ls_cudesc pw = add(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);

    set(g, pw, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &a.mode);
    set(g, pw, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &a.math);
    if (a.mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, pw, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &a.axis);
    finish(g, pw);
    ls_cudesc op = add(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pw);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a.x);
    if (a.b)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, a.b);
    if (a.t)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, a.t);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, a.y);
    add_op(g, op);
}

void ls_cugraph_apply(ls_cugraph *g, cudnnPointwiseMode_t mode, ls_cudesc x, ls_cudesc b,
                      ls_cudesc y)
{
    pointwise(g, pointwise_args{mode, CUDNN_DATA_FLOAT, 0, x, b, NULL, y});
}

ls_cudesc ls_cugraph_map(ls_cugraph *g, cudnnPointwiseMode_t mode, ls_cudesc x, ls_cudesc b,
                         ls_culayout l)
{
    ls_cudesc y = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, l);

    ls_cugraph_apply(g, mode, x, b, y);
    return y;
}

void ls_cugraph_reduce(ls_cugraph *g, cudnnReduceTensorOp_t mode, ls_cudesc x, ls_cudesc y)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    ls_cudesc red = add(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);

    set(g, red, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(g, red, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(g, red);
    ls_cudesc op = add(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, red);
    add_op(g, op);
}

ls_cudesc ls_cugraph_reshape(ls_cugraph *g, ls_cudesc x, ls_culayout l)
{
    ls_cudesc y = ls_cugraph_virtual(g, g->narrow, l);
    ls_cudesc op = add(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op);
    return y;
}

ls_cudesc ls_cugraph_mask(ls_cugraph *g, ls_cudesc s, ls_cudesc neg_inf, ls_culayout l)
{
    ls_cudesc row = ls_cugraph_virtual(g, CUDNN_DATA_INT32, l);
    ls_cudesc col = ls_cugraph_virtual(g, CUDNN_DATA_INT32, l);
    ls_cudesc keep = ls_cugraph_virtual(g, CUDNN_DATA_BOOLEAN, l);
    ls_cudesc out = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, l);

    pointwise(g,
              pointwise_args{CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, s, NULL, NULL, row});
    pointwise(g,
              pointwise_args{CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3, s, NULL, NULL, col});
    pointwise(g,
              pointwise_args{CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, row, col, NULL, keep});
    pointwise(g, pointwise_args{CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, s, neg_inf,
                                keep, out});
    return out;
}

/* --- plans ---------------------------------------------------------------------------------- */

static bool finish_plan(ls_cugraph *g, ls_cudesc config)
{
    int64_t n = 0;

    g->plan = add(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(g, g->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    set_desc(g, g->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    return !g->failed && cudnnBackendFinalize(g->plan) == CUDNN_STATUS_SUCCESS &&
           cudnnBackendGetAttribute(g->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &n,
                                    &g->workspace_bytes) == CUDNN_STATUS_SUCCESS;
}

bool ls_cugraph_finish(ls_cugraph *g)
{
    ls_cudesc configs[ANSWERS];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t found = 0;
    ls_cudesc whole = add(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->op_count,
        g->ops);
    finish(g, whole);
    ls_cudesc heur = add(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, heur);
    for (int i = 0; i < ANSWERS; i++)
        configs[i] = add(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed ||
        !fine(g, cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, ANSWERS, &found, configs)))
        return false;
    for (int64_t i = 0; i < found && i < ANSWERS; i++)
        if (finish_plan(g, configs[i]))
            return true;
    g->failed = true;
    return false;
}

/* The binding of memory is made anew for every run: it is a few stores, and the addresses of a
 * model's layers differ. */
cudnnStatus_t ls_cugraph_run(const ls_cugraph *g, void *const *pointers, void *workspace)
{
    void *at[LS_CUGRAPH_REAL];
    ls_cudesc pack = NULL;
    cudnnStatus_t st = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);

    for (int i = 0; i < g->id_count; i++)
        at[i] = pointers[g->ids[i]];
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                      g->id_count, g->ids);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                      CUDNN_TYPE_VOID_PTR, g->id_count, at);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                                      1, &workspace);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendFinalize(pack);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendExecute(g->handle, g->plan, pack);
    if (pack)
        cudnnBackendDestroyDescriptor(pack);
    return st;
}
