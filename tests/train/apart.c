/* apart.c -- the entries of the CPU's device and all rows, each between unlock and lock.
 *
 * The rows do their work at once, so results could be seen too early; copies to the host are
 * therefore kept and handed over by sync. */
#include "train/apart.h"

#include <sys/mman.h>
#include "base/mem.h"
#include "device/device_impl.h"
#include "harness.h"

enum { MOST_COPIES = 1024 };

/* A copy that the next sync ends. */
typedef struct pending {
    void *to;         /* host memory, or NULL */
    const void *from; /* host memory, or NULL */
    void *bytes;      /* owned: as they were when it was queued */
    size_t n;
} pending;

static const ls_kernels *real;
static ls_device_ops ops;
static ls_kernels table;
static pending copies[MOST_COPIES];
static int n_copies;

static void protect(const ls_device *d, int how)
{
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++)
        if (d->buffers[i].memory)
            LS_CHECK_EQ(mprotect(d->buffers[i].memory, (size_t)d->buffers[i].bytes, how), 0);
}

static void unlock(const ls_device *d)
{
    protect(d, PROT_READ | PROT_WRITE);
}

static void lock(const ls_device *d)
{
    protect(d, PROT_NONE);
}

static bool on_device(const ls_device *d, const void *p)
{
    for (int i = 0; i < LS_DEVICE_BUFFERS; i++) {
        const char *first = d->buffers[i].memory;
        if (first && (const char *)p >= first && (const char *)p < first + d->buffers[i].bytes)
            return true;
    }
    return false;
}

static void *apart_alloc(ls_device *device, int64_t bytes)
{
    void *p = ls_device_cpu.alloc(device, bytes);

    if (p)
        LS_CHECK_EQ(mprotect(p, (size_t)bytes, PROT_NONE), 0);
    return p;
}

static void apart_describe(const ls_device *device, ls_device_info *info_out)
{
    ls_device_cpu.describe(device, info_out);
    info_out->host_memory = false;
}

static void apart_copy(ls_stream *stream, void *dst, const void *src, int64_t bytes)
{
    ls_device *d = ls_stream_device(stream);
    bool to_host = !on_device(d, dst), from_host = !on_device(d, src);
    pending *p = &copies[n_copies];

    LS_CHECK(!(to_host && from_host));
    unlock(d);
    if (to_host || from_host) {
        LS_CHECK(n_copies < MOST_COPIES);
        *p = (pending){.to = to_host ? dst : NULL,
                       .from = from_host ? src : NULL,
                       .bytes = malloc((size_t)bytes),
                       .n = (size_t)bytes};
        LS_CHECK(p->bytes);
        memcpy(p->bytes, src, p->n);
        n_copies++;
    }
    if (!to_host)
        memcpy(dst, src, (size_t)bytes);
    lock(d);
}

static ls_status apart_sync(ls_stream *stream, int64_t deadline_ns)
{
    for (int i = 0; i < n_copies; i++) {
        const pending *p = &copies[i];
        if (p->from)
            LS_CHECK(memcmp(p->from, p->bytes, p->n) == 0); /* host memory changed before sync */
        if (p->to)
            memcpy(p->to, p->bytes, p->n);
        free(p->bytes);
    }
    n_copies = 0;
    return ls_device_cpu.sync(stream, deadline_ns);
}

#define ROW(name, args)                                      \
    static void name##_row(ls_stream *stream, const args *a) \
    {                                                        \
        const ls_device *d = ls_stream_device(stream);       \
        unlock(d);                                           \
        real->name(stream, a);                               \
        lock(d);                                             \
    }
ROW(linear_fwd, ls_linear_fwd)
ROW(linear_bwd_x, ls_linear_bwd_x)
ROW(linear_bwd_w, ls_linear_bwd_w)
ROW(qkv_fwd, ls_qkv)
ROW(qkv_bwd, ls_qkv)
ROW(attention_fwd, ls_attention_fwd)
ROW(attention_bwd, ls_attention_bwd)
ROW(norm_fwd, ls_norm_fwd)
ROW(norm_bwd, ls_norm_bwd)
ROW(act_fwd, ls_act_args)
ROW(act_bwd, ls_act_args)
ROW(embed_fwd, ls_embed_fwd)
ROW(embed_bwd, ls_embed_bwd)
ROW(head, ls_head)
ROW(sum, ls_sum)
ROW(add, ls_add)
ROW(scale, ls_scale)
ROW(cast, ls_cast)
ROW(fill, ls_fill)
ROW(norm2, ls_norm2)
ROW(adamw, ls_adamw)
ROW(lamb, ls_lamb)
ROW(momentum, ls_momentum)
ROW(muon, ls_muon)

ls_device *ls_apart_open(const char *isa, int threads, const ls_kernels **kernels_out)
{
    ls_device *device = NULL;

    LS_CHECK_OK(ls_kernel_pick(isa, &real));
    LS_CHECK_OK(ls_device_open(&device, "cpu", threads));
    ops = ls_device_cpu;
    ops.kind = "apart";
    ops.describe = apart_describe;
    ops.alloc = apart_alloc;
    ops.copy = apart_copy;
    ops.sync = apart_sync;
    device->ops = &ops;
    table = (ls_kernels){.name = real->name,
                         .f16 = real->f16,
                         .linear_fwd = linear_fwd_row,
                         .linear_bwd_x = linear_bwd_x_row,
                         .linear_bwd_w = linear_bwd_w_row,
                         .qkv_fwd = qkv_fwd_row,
                         .qkv_bwd = qkv_bwd_row,
                         .attention_fwd = attention_fwd_row,
                         .attention_bwd = attention_bwd_row,
                         .norm_fwd = norm_fwd_row,
                         .norm_bwd = norm_bwd_row,
                         .act_fwd = act_fwd_row,
                         .act_bwd = act_bwd_row,
                         .embed_fwd = embed_fwd_row,
                         .embed_bwd = embed_bwd_row,
                         .head = head_row,
                         .sum = sum_row,
                         .add = add_row,
                         .scale = scale_row,
                         .cast = cast_row,
                         .fill = fill_row,
                         .norm2 = norm2_row,
                         .adamw = adamw_row,
                         .lamb = lamb_row,
                         .momentum = momentum_row,
                         .muon = muon_row,
                         .scratch = real->scratch};
    *kernels_out = &table;
    return device;
}

void ls_apart_close(ls_device *device)
{
    /* What was queued and never waited for: nobody will look at it any more. */
    for (int i = 0; i < n_copies; i++)
        free(copies[i].bytes);
    n_copies = 0;
    ls_device_close(device);
}
