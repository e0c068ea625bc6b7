/* cugraph.c -- see cugraph.h. Descriptors follow one pattern everywhere: create, set attributes
 * (each with a type tag and a count), finish; a finished one is read-only and may be referred to
 * by others. Nothing here is specific to attention but the mask. */
#include "cugraph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double ls_cugraph_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

bool ls_cugraph_ok(cudnnStatus_t status, const char *what)
{
    char text[1024] = "";

    if (status == CUDNN_STATUS_SUCCESS)
        return true;
    cudnnGetLastErrorString(text, sizeof(text));
    printf("  cannot %s: %s: %s\n", what, cudnnGetErrorString(status), text);
    return false;
}

/* ---------------------------------------------------------------- descriptors */

void ls_cugraph_init(ls_cugraph *g, cudnnHandle_t handle)
{
    memset(g, 0, sizeof(*g));
    g->handle = handle;
    g->next_virtual = LS_CUGRAPH_VIRTUAL;
}

void ls_cugraph_release(ls_cugraph *g)
{
    while (g->desc_count > 0)
        cudnnBackendDestroyDescriptor(g->descs[--g->desc_count]);
}

ls_cudesc ls_cugraph_add(ls_cugraph *g, cudnnBackendDescriptorType_t type)
{
    ls_cudesc d = NULL;

    if (g->failed)
        return NULL;
    if (g->desc_count == LS_CUGRAPH_DESCS ||
        !ls_cugraph_ok(cudnnBackendCreateDescriptor(type, &d), "create descriptor")) {
        g->failed = true;
        return NULL;
    }
    g->descs[g->desc_count++] = d;
    return d;
}

static void set(ls_cugraph *g, ls_cudesc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    char what[64];

    if (g->failed)
        return;
    snprintf(what, sizeof(what), "set attribute %d", (int)name);
    if (!ls_cugraph_ok(cudnnBackendSetAttribute(d, name, type, count, values), what))
        g->failed = true;
}

void ls_cugraph_set(ls_cugraph *g, ls_cudesc d, cudnnBackendAttributeName_t name, ls_cudesc value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(ls_cugraph *g, ls_cudesc d, const char *what)
{
    if (!g->failed && !ls_cugraph_ok(cudnnBackendFinalize(d), what))
        g->failed = true;
}

ls_culayout ls_cugraph_dense(int64_t b, int64_t h, int64_t rows, int64_t cols)
{
    return (ls_culayout){{b, h, rows, cols}, {h * rows * cols, rows * cols, cols, 1}};
}

ls_culayout ls_cugraph_transposed(ls_culayout l)
{
    return (ls_culayout){{l.dim[0], l.dim[1], l.dim[3], l.dim[2]},
                         {l.stride[0], l.stride[1], l.stride[3], l.stride[2]}};
}

static ls_cudesc add_tensor(ls_cugraph *g, int64_t id, cudnnDataType_t type, ls_culayout l,
                            bool in_host)
{
    ls_cudesc t = ls_cugraph_add(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
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
    finish(g, t, "finish tensor");
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

/* ---------------------------------------------------------------- operations */

void ls_cugraph_add_op(ls_cugraph *g, ls_cudesc op, const char *what)
{
    finish(g, op, what);
    if (g->op_count == LS_CUGRAPH_OPS)
        g->failed = true;
    if (!g->failed)
        g->ops[g->op_count++] = op;
}

void ls_cugraph_matmul(ls_cugraph *g, ls_cudesc a, ls_cudesc b, ls_cudesc c)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    ls_cudesc math = ls_cugraph_add(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);

    set(g, math, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(g, math, "finish matmul description");
    ls_cudesc op = ls_cugraph_add(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, math);
    ls_cugraph_add_op(g, op, "finish matmul");
}

typedef struct pointwise_args {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    int64_t axis;         /* of an index generator */
    ls_cudesc x, b, t, y; /* t: condition of a select; b and t may be NULL */
} pointwise_args;

static void pointwise(ls_cugraph *g, pointwise_args a)
{
    ls_cudesc pw = ls_cugraph_add(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);

    set(g, pw, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &a.mode);
    set(g, pw, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &a.math);
    if (a.mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, pw, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &a.axis);
    finish(g, pw, "finish pointwise description");
    ls_cudesc op = ls_cugraph_add(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pw);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a.x);
    if (a.b)
        ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, a.b);
    if (a.t)
        ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, a.t);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, a.y);
    ls_cugraph_add_op(g, op, "finish pointwise");
}

void ls_cugraph_apply(ls_cugraph *g, cudnnPointwiseMode_t mode, ls_cudesc x, ls_cudesc b,
                      ls_cudesc y)
{
    pointwise(g, (pointwise_args){mode, CUDNN_DATA_FLOAT, 0, x, b, NULL, y});
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
    ls_cudesc red = ls_cugraph_add(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);

    set(g, red, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(g, red, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(g, red, "finish reduction description");
    ls_cudesc op = ls_cugraph_add(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, red);
    ls_cugraph_add_op(g, op, "finish reduction");
}

ls_cudesc ls_cugraph_reshape(ls_cugraph *g, ls_cudesc x, ls_culayout l)
{
    ls_cudesc y = ls_cugraph_virtual(g, CUDNN_DATA_BFLOAT16, l);
    ls_cudesc op = ls_cugraph_add(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    ls_cugraph_set(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    ls_cugraph_add_op(g, op, "finish reshape");
    return y;
}

ls_cudesc ls_cugraph_mask(ls_cugraph *g, ls_cudesc s, ls_cudesc neg_inf, ls_culayout l)
{
    ls_cudesc row = ls_cugraph_virtual(g, CUDNN_DATA_INT32, l);
    ls_cudesc col = ls_cugraph_virtual(g, CUDNN_DATA_INT32, l);
    ls_cudesc keep = ls_cugraph_virtual(g, CUDNN_DATA_BOOLEAN, l);
    ls_cudesc out = ls_cugraph_virtual(g, CUDNN_DATA_FLOAT, l);

    pointwise(g,
              (pointwise_args){CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, s, NULL, NULL, row});
    pointwise(g,
              (pointwise_args){CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3, s, NULL, NULL, col});
    pointwise(
        g, (pointwise_args){CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, row, col, NULL, keep});
    pointwise(g, (pointwise_args){CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, s, neg_inf,
                                  keep, out});
    return out;
}

/* ---------------------------------------------------------------- plans */

static void describe(ls_cugraph *g, ls_cudesc config, ls_cuplan *p)
{
    ls_cudesc engine = ls_cugraph_add(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendBehaviorNote_t ways[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t n = 0;

    cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                             &n, &engine);
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n,
                             &p->engine);
    n = 0;
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                             CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes);
    for (int64_t i = 0; i < n; i++)
        p->nondeterministic |= notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    n = 0;
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                             CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &n, ways);
    for (int64_t i = 0; i < n; i++)
        p->compiles |= ways[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
}

static void read_workspace(ls_cuplan *p)
{
    int64_t n = 0;

    cudnnBackendGetAttribute(p->desc, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                             &n, &p->workspace_bytes);
}

static bool finish_plan(ls_cugraph *g, ls_cudesc config, ls_cuplan *p)
{
    double t0 = ls_cugraph_now_ms();

    *p = (ls_cuplan){.engine = -1};
    p->desc = ls_cugraph_add(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(g, p->desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    ls_cugraph_set(g, p->desc, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (g->failed || !ls_cugraph_ok(cudnnBackendFinalize(p->desc), "finish plan"))
        return false;
    p->finish_ms = ls_cugraph_now_ms() - t0;
    read_workspace(p);
    describe(g, config, p);
    return true;
}

int ls_cugraph_plans(ls_cugraph *g, int most, ls_cuplan *plans_out)
{
    ls_cudesc configs[LS_CUGRAPH_PLANS];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t found = 0;
    int count = 0;
    double t0 = ls_cugraph_now_ms();
    ls_cudesc whole = ls_cugraph_add(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->op_count,
        g->ops);
    finish(g, whole, "finish operation graph");
    double t1 = ls_cugraph_now_ms();
    ls_cudesc heur = ls_cugraph_add(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    ls_cugraph_set(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, heur, "ask the heuristics");
    for (int i = 0; i < LS_CUGRAPH_PLANS; i++)
        configs[i] = ls_cugraph_add(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed || !ls_cugraph_ok(cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                             CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                             LS_CUGRAPH_PLANS, &found, configs),
                                    "read the heuristics' answer"))
        return 0;
    g->graph_ms = t1 - t0;
    g->heuristics_ms = ls_cugraph_now_ms() - t1;
    for (int64_t i = 0; i < found && i < LS_CUGRAPH_PLANS && count < most; i++)
        count += finish_plan(g, configs[i], &plans_out[count]);
    return count;
}

/* The whole file, or NULL; the caller frees it. */
static char *read_file(const char *path, size_t *len_out)
{
    enum { MOST = 16 << 20 };
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(MOST) : NULL;

    *len_out = text ? fread(text, 1, MOST, f) : 0;
    if (f)
        fclose(f);
    if (*len_out == 0) {
        free(text);
        return NULL;
    }
    return text;
}

bool ls_cugraph_load(ls_cugraph *g, const char *path, ls_cuplan *plan_out)
{
    double t0 = ls_cugraph_now_ms();
    size_t len;
    char *text = read_file(path, &len);
    ls_cuplan p = {.engine = -1};

    if (!text)
        return false;
    p.desc = ls_cugraph_add(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(g, p.desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    set(g, p.desc, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)len,
        text);
    finish(g, p.desc, "finish loaded plan");
    free(text);
    if (g->failed)
        return false;
    p.finish_ms = ls_cugraph_now_ms() - t0;
    read_workspace(&p);
    *plan_out = p;
    return true;
}

bool ls_cugraph_save(const ls_cuplan *plan, const char *path)
{
    int64_t len = 0, got = 0;
    cudnnStatus_t st = cudnnBackendGetAttribute(
        plan->desc, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &len, NULL);
    char *text = st == CUDNN_STATUS_SUCCESS ? malloc((size_t)len + 1) : NULL;
    FILE *f = NULL;
    bool ok = false;

    if (text)
        st = cudnnBackendGetAttribute(plan->desc, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, len, &got, text);
    if (ls_cugraph_ok(st, "read the plan's text") && text)
        f = fopen(path, "wb");
    if (f) {
        ok = fwrite(text, 1, (size_t)got, f) == (size_t)got;
        ok = fclose(f) == 0 && ok;
    }
    free(text);
    return ok;
}

ls_cudesc ls_cugraph_bind(ls_cugraph *g, void *const *pointers, void *workspace)
{
    void *ptrs[LS_CUGRAPH_REAL];
    ls_cudesc pack = ls_cugraph_add(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);

    for (int i = 0; i < g->id_count; i++)
        ptrs[i] = pointers[g->ids[i]];
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, g->id_count, g->ids);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, g->id_count, ptrs);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finish(g, pack, "finish variant pack");
    return pack;
}
