/* device_cuda.cu -- memory, streams, events and graphs of one NVIDIA GPU.
 *
 * Waiting: an event is recorded and polled, at first without a pause, then with short sleeps, so
 * that every wait ends at its deadline; the runtime's own waits have none. An error of queued work
 * shows up in such a poll, long after the row that caused it was queued; the message names the last
 * rows, and LINESHAFT_CUDA_SYNC=1 waits after each one to find which it was. After such an error
 * the card's context is lost: every later call fails with the same error, nothing is retried. */
#include "device/cuda/native.cuh"
#include "device/device_impl.h"

#include <time.h>
#include "base/time.h"
#include "device/cuda/shim.cuh"

/* Old enough to lack what the kernels need: bf16 matrix units came with 8.0. */
enum { LEAST_MAJOR = 8, EVENT_SPINS = 2000, SLEEP_NS = 20000 };

ls_status ls_cuda_failed(cudaError_t error, const char *what)
{
    ls_status code = error == cudaErrorMemoryAllocation ? LS_ENOMEM : LS_EFAIL;

    return ls_fail(code, "cannot %s on the GPU: %s (%s)", what, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

static ls_status plugin_load(const ls_plugin_host *host)
{
    int driver = 0, runtime = 0;

    ls_shim_load(host);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver / 1000 >= runtime / 1000)
        return LS_OK;
    ls_fail(LS_EUSAGE, "the NVIDIA driver knows CUDA %d.%d, but the plugin is built with %d.%d",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    ls_err_hint("Update the driver, or build with an older CUDA toolkit.");
    return LS_EUSAGE;
}

/* --- the device ----------------------------------------------------------------------------- */

static ls_status check_card(const cudaDeviceProp *p)
{
    if (p->major >= LEAST_MAJOR)
        return LS_OK;
    return ls_fail(LS_EUSAGE,
                   "cannot use the GPU \"%s\": its compute capability is %d.%d, and 8.0 is the "
                   "first with bf16",
                   p->name, p->major, p->minor);
}

static ls_status device_init(ls_cuda_device *d, int card)
{
    ls_status st = LS_OK;
    cudaDeviceProp p;
    const char *each = getenv("LINESHAFT_CUDA_SYNC");

    LS_TRY(st, ls_cuda_ok(cudaGetDeviceCount(&d->cards), "count the cards"), out);
    d->ordinal = card % d->cards; /* the driver was asked before: there is one */
    LS_TRY(st, ls_cuda_ok(cudaSetDevice(d->ordinal), "choose a card"), out);
    LS_TRY(st, ls_cuda_ok(cudaGetDeviceProperties(&p, d->ordinal), "read the card's properties"),
           out);
    LS_TRY(st, check_card(&p), out);
    snprintf(d->name, sizeof d->name, "%.79s", p.name);
    d->multiprocessors = p.multiProcessorCount;
    d->shared_bytes = (int)p.sharedMemPerBlockOptin;
    d->fp8 = p.major > 8 || (p.major == 8 && p.minor >= 9);
    d->sync_each = each && *each && *each != '0';
    LS_TRY(st, ls_cuda_ok(cudaFree(NULL), "start"), out);
out:
    return st;
}

static ls_status device_open(ls_device *device, int)
{
    ls_cuda_device *d = (ls_cuda_device *)ls_mem_alloc(sizeof *d);

    if (!d)
        return LS_ENOMEM;
    ls_status st = device_init(d, device->card);
    if (st != LS_OK) {
        ls_mem_free(d);
        return st;
    }
    device->native = d;
    return LS_OK;
}

static void device_close(ls_device *device)
{
    ls_cuda_device *d = (ls_cuda_device *)device->native;

    if (!d)
        return;
    if (d->products)
        d->drop_products(d->products);
    if (d->attention)
        d->drop_attention(d->attention);
    ls_mem_free(d);
}

static ls_status device_enter(ls_device *device)
{
    const ls_cuda_device *d = (const ls_cuda_device *)device->native;

    return ls_cuda_ok(cudaSetDevice(d->ordinal), "choose a card");
}

static void device_describe(const ls_device *device, ls_device_info *info_out)
{
    const ls_cuda_device *d = (const ls_cuda_device *)device->native;
    size_t free_bytes = 0, total_bytes = 0;

    cudaMemGetInfo(&free_bytes, &total_bytes);
    snprintf(info_out->name, sizeof info_out->name, "cuda: %s", d->name);
    info_out->host_memory = false;
    info_out->free_bytes = (int64_t)free_bytes;
    info_out->total_bytes = (int64_t)total_bytes;
    info_out->fixed_bytes = d->fixed_bytes;
    info_out->graphs = !d->sync_each; /* which waits after every row */
    info_out->fp8 = d->fp8;
    info_out->card = d->ordinal;
    info_out->cards = d->cards;
    if (cudaDeviceGetPCIBusId(info_out->bus_id, (int)sizeof info_out->bus_id, d->ordinal) !=
        cudaSuccess) {
        cudaGetLastError();
        info_out->bus_id[0] = '\0';
    }
}

/* Memory is cleared at once and waited for: a stream of its own may use it next. */
static void *device_alloc(ls_device *, int64_t bytes)
{
    void *p = NULL;

    if (cudaMalloc(&p, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError(); /* not sticky: forget it, the caller says what was asked for */
        return NULL;
    }
    if (cudaMemset(p, 0, (size_t)bytes) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess)
        return p;
    cudaFree(p);
    return NULL;
}

static void device_free(ls_device *, void *memory, int64_t)
{
    cudaFree(memory);
}

static void *host_alloc(ls_device *, int64_t bytes)
{
    void *p = NULL;

    if (cudaMallocHost(&p, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    memset(p, 0, (size_t)bytes);
    return p;
}

static void host_free(ls_device *, void *memory, int64_t)
{
    cudaFreeHost(memory);
}

static bool host_lock(ls_device *, void *memory, int64_t bytes)
{
    if (cudaHostRegister(memory, (size_t)bytes, cudaHostRegisterDefault) == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

static void host_unlock(ls_device *, void *memory)
{
    if (cudaHostUnregister(memory) != cudaSuccess)
        cudaGetLastError();
}

/* --- streams -------------------------------------------------------------------------------- */

static ls_cuda_stream *of(const ls_stream *stream)
{
    return (ls_cuda_stream *)stream->native;
}

static void stream_release(ls_cuda_stream *s)
{
    if (s->stream)
        cudaStreamSynchronize(s->stream);
    if (s->workspace)
        s->device->fixed_bytes -= LS_CUDA_WORKSPACE;
    s->device->fixed_bytes -= s->arena_bytes + s->kept_bytes;
    cudaFree(s->workspace);
    cudaFree(s->arena);
    for (int i = 0; i < s->n_kept; i++)
        cudaFree(s->kept[i]);
    cudaFree(s->faults);
    cudaFreeHost(s->faults_seen);
    if (s->reached)
        cudaEventDestroy(s->reached);
    if (s->stream)
        cudaStreamDestroy(s->stream);
    ls_mem_free(s);
}

static ls_status stream_init(ls_cuda_stream *s)
{
    ls_status st = LS_OK;
    size_t faults = LS_CUDA_FAULTS * sizeof *s->faults;

    LS_TRY(
        st,
        ls_cuda_ok(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "create a stream"),
        out);
    LS_TRY(st,
           ls_cuda_ok(cudaEventCreateWithFlags(&s->reached, cudaEventDisableTiming),
                      "create an event"),
           out);
    LS_TRY(st, ls_cuda_ok(cudaMalloc(&s->workspace, LS_CUDA_WORKSPACE), "allocate a workspace"),
           out);
    s->device->fixed_bytes += LS_CUDA_WORKSPACE;
    LS_TRY(st, ls_cuda_ok(cudaMalloc((void **)&s->faults, faults), "allocate fault cells"), out);
    LS_TRY(st, ls_cuda_ok(cudaMallocHost((void **)&s->faults_seen, faults), "allocate fault cells"),
           out);
    LS_TRY(st, ls_cuda_ok(cudaMemset(s->faults, 0xff, faults), "clear fault cells"), out);
    LS_TRY(st, ls_cuda_ok(cudaDeviceSynchronize(), "clear fault cells"), out);
out:
    return st;
}

static ls_status stream_open(ls_stream *stream)
{
    ls_cuda_stream *s = (ls_cuda_stream *)ls_mem_alloc(sizeof *s);

    if (!s)
        return LS_ENOMEM;
    s->device = (ls_cuda_device *)stream->device->native;
    ls_status st = stream_init(s);
    if (st != LS_OK) {
        stream_release(s);
        return st;
    }
    stream->native = s;
    return LS_OK;
}

static void stream_close(ls_stream *stream)
{
    stream_release(of(stream));
}

static void *stream_handle(const ls_stream *stream)
{
    return of(stream)->stream;
}

/* The old arena may be in use, now or by what was recorded. Returns how large the new one is to be.
 */
static int64_t put_arena_away(ls_cuda_stream *s, int64_t bytes)
{
    bool keep = s->recorded && s->arena;

    cudaStreamSynchronize(s->stream);
    if (keep) {
        LS_BUG_IF(s->n_kept == LS_CUDA_KEPT, "an arena has grown %d times", LS_CUDA_KEPT);
        s->kept[s->n_kept++] = s->arena;
        s->kept_bytes += s->arena_bytes;
        bytes = ls_max_i64(bytes, 2 * s->arena_bytes);
    } else {
        cudaFree(s->arena);
        s->device->fixed_bytes -= s->arena_bytes;
    }
    s->arena = NULL;
    s->arena_bytes = 0;
    return bytes;
}

void *ls_cuda_arena(ls_cuda_stream *s, int64_t bytes)
{
    bytes = ls_round_up(ls_max_i64(bytes, 1), LS_MIB);
    if (bytes <= s->arena_bytes)
        return s->arena;
    if (s->recording) {
        ls_fail(LS_EFAIL, "a recorded row needs %lld MiB of memory for itself that were not there",
                (long long)(bytes / LS_MIB));
        ls_err_hint("Run the same work once before recording it.");
        return NULL;
    }
    bytes = put_arena_away(s, bytes);
    cudaError_t error = cudaMalloc(&s->arena, (size_t)bytes);
    if (error != cudaSuccess) {
        cudaGetLastError();
        ls_fail(LS_ENOMEM, "cannot allocate %lld MiB on the GPU for the sums of a row",
                (long long)(bytes / LS_MIB));
        return NULL;
    }
    s->arena_bytes = bytes;
    s->device->fixed_bytes += bytes;
    return s->arena;
}

/* Queueing has no result; a failure goes where all failures of queued work go. */
static void queued(ls_stream *stream, cudaError_t error, const char *what)
{
    if (ls_cuda_ok(error, what) != LS_OK)
        ls_stream_fail(stream);
}

static void stream_copy(ls_stream *stream, void *dst, const void *src, int64_t bytes)
{
    queued(stream, cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, of(stream)->stream),
           "queue a copy");
}

/* "norm_fwd, linear_fwd": the last rows queued, oldest first. */
static void recent_rows(const ls_cuda_stream *s, char *text_out, size_t cap)
{
    int64_t n = ls_min_i64(s->queued, LS_CUDA_RECENT);
    size_t used = 0;

    snprintf(text_out, cap, "none");
    for (int64_t i = s->queued - n; i < s->queued && used < cap; i++)
        used += (size_t)snprintf(text_out + used, cap - used, "%s%s",
                                 i == s->queued - n ? "" : ", ", s->recent[i % LS_CUDA_RECENT]);
}

static ls_status work_failed(const ls_cuda_stream *s, cudaError_t error)
{
    char rows[160];

    recent_rows(s, rows, sizeof rows);
    ls_fail(LS_EFAIL, "the GPU stopped in queued work: %s (%s); the last rows queued: %s",
            cudaGetErrorString(error), cudaGetErrorName(error), rows);
    ls_err_hint(s->device->sync_each
                    ? "The last row named is the one that failed."
                    : "Set LINESHAFT_CUDA_SYNC=1 to wait after every row and see which one fails.");
    return LS_EFAIL;
}

/* Poll an event until it is reached or the deadline has passed. */
static cudaError_t poll_event(cudaEvent_t event, int64_t deadline_ns)
{
    cudaError_t error = cudaEventQuery(event);

    for (int64_t i = 0; error == cudaErrorNotReady; i++) {
        if (i >= EVENT_SPINS) {
            struct timespec pause = {0, SLEEP_NS};
            nanosleep(&pause, NULL);
        }
        if (ls_time_now_ns() > deadline_ns)
            break;
        error = cudaEventQuery(event);
    }
    return error;
}

static ls_status read_faults(const ls_cuda_stream *s)
{
    for (int i = 0; i < LS_CUDA_FAULTS; i++) {
        ls_cuda_fault f = s->faults_seen[i];
        if (f == LS_CUDA_NO_FAULT)
            continue;
        return s->fault_text(i, (uint32_t)(f >> 32), (int32_t)(uint32_t)f);
    }
    return LS_OK;
}

/* Wait for what the stream has queued; the fault cells are read. */
static ls_status wait_queued(ls_cuda_stream *s, int64_t deadline_ns)
{
    char rows[160];
    cudaError_t error =
        cudaMemcpyAsync(s->faults_seen, s->faults, LS_CUDA_FAULTS * sizeof *s->faults,
                        cudaMemcpyDeviceToHost, s->stream);

    if (error == cudaSuccess)
        error = cudaEventRecord(s->reached, s->stream);
    if (error == cudaSuccess)
        error = poll_event(s->reached, deadline_ns);
    if (error == cudaErrorNotReady) {
        recent_rows(s, rows, sizeof rows);
        return ls_fail(LS_EDEADLINE, "the GPU did not finish in time; the last rows queued: %s",
                       rows);
    }
    return error == cudaSuccess ? read_faults(s) : work_failed(s, error);
}

static ls_status stream_sync(ls_stream *stream, int64_t deadline_ns)
{
    if (ls_stream_failed(stream))
        return LS_OK; /* the caller reports that failure; waiting could take for ever */
    ls_status st = wait_queued(of(stream), deadline_ns);
    if (st != LS_OK && st != LS_EDEADLINE)
        ls_stream_fail(stream);
    return st;
}

bool ls_cuda_row_begin(ls_cuda_stream *s, ls_stream *stream, const char *name)
{
    if (ls_stream_failed(stream))
        return false;
    s->recent[s->queued++ % LS_CUDA_RECENT] = name;
    return true;
}

void ls_cuda_row_end(ls_cuda_stream *s, ls_stream *stream)
{
    cudaError_t error = cudaPeekAtLastError();
    const char *name = s->recent[(s->queued - 1) % LS_CUDA_RECENT];
    char what[80];

    if (ls_stream_failed(stream))
        return;
    if (error != cudaSuccess) {
        snprintf(what, sizeof what, "queue %s", name);
        ls_cuda_failed(cudaGetLastError(), what);
        ls_stream_fail(stream);
    } else if (s->device->sync_each && !s->recording && wait_queued(s, LS_NO_DEADLINE) != LS_OK)
        ls_stream_fail(stream);
}

/* --- events --------------------------------------------------------------------------------- */

static ls_status event_open(ls_event *event)
{
    cudaEvent_t made = NULL;
    ls_status st = ls_cuda_ok(cudaEventCreate(&made), "create an event");

    event->native = made;
    return st;
}

static void event_close(ls_event *event)
{
    cudaEventDestroy((cudaEvent_t)event->native);
}

static void event_record(ls_event *event, ls_stream *stream)
{
    queued(stream, cudaEventRecord((cudaEvent_t)event->native, of(stream)->stream),
           "record an event");
}

static void stream_wait(ls_stream *stream, ls_event *event)
{
    queued(stream, cudaStreamWaitEvent(of(stream)->stream, (cudaEvent_t)event->native, 0),
           "wait for an event");
}

static ls_status event_sync(ls_event *event, int64_t deadline_ns)
{
    cudaError_t error = poll_event((cudaEvent_t)event->native, deadline_ns);

    if (error == cudaErrorNotReady)
        return ls_fail(LS_EDEADLINE, "the GPU did not reach a point of its work in time");
    return ls_cuda_ok(error, "wait for an event");
}

static ls_status event_between(ls_event *begin, ls_event *end, double *ms_out)
{
    float ms = 0;
    ls_status st =
        ls_cuda_ok(cudaEventElapsedTime(&ms, (cudaEvent_t)begin->native, (cudaEvent_t)end->native),
                   "measure between events");

    if (st == LS_OK)
        *ms_out = (double)ms;
    return st;
}

/* --- graphs --------------------------------------------------------------------------------- */

static ls_status graph_begin(ls_stream *stream)
{
    ls_cuda_stream *s = of(stream);
    ls_status st = ls_cuda_ok(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal),
                              "begin a recording");

    s->recording = st == LS_OK;
    s->recorded = s->recorded || s->recording;
    if (st != LS_OK)
        cudaGetLastError(); /* reported: the next row must not find it */
    return st;
}

static ls_status graph_end(ls_stream *stream, void **graph_out)
{
    ls_cuda_stream *s = of(stream);
    ls_status st = LS_OK;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;

    s->recording = false;
    LS_TRY(st, ls_cuda_ok(cudaStreamEndCapture(s->stream, &graph), "end a recording"), out);
    LS_TRY(st, ls_cuda_ok(cudaGraphInstantiate(&exec, graph, 0), "prepare a recording"), out);
    *graph_out = exec;
out:
    if (graph)
        cudaGraphDestroy(graph);
    if (st != LS_OK)
        cudaGetLastError(); /* reported: the next row must not find it */
    return st;
}

static void graph_launch(void *graph, ls_stream *stream)
{
    ls_cuda_stream *s = of(stream);

    s->recent[s->queued++ % LS_CUDA_RECENT] = "a recorded graph";
    queued(stream, cudaGraphLaunch((cudaGraphExec_t)graph, s->stream), "launch a recording");
}

static void graph_free(ls_device *, void *graph)
{
    cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

/* Members in the order of device_impl.h. */
static const ls_device_ops ops = {
    .kind = "cuda",
    .automatic = false,
    .graphs = true,
    .unusable = NULL, /* open_cuda.c has asked before */
    .open = device_open,
    .close = device_close,
    .enter = device_enter,
    .describe = device_describe,
    .alloc = device_alloc,
    .free = device_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_lock = host_lock,
    .host_unlock = host_unlock,
    .window_page = ls_cuda_window_page,
    .window_open = ls_cuda_window_open,
    .window_back = ls_cuda_window_back,
    .window_turn = ls_cuda_window_turn,
    .window_drop = ls_cuda_window_drop,
    .window_close = ls_cuda_window_close,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .stream_handle = stream_handle,
    .copy = stream_copy,
    .sync = stream_sync,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .stream_wait = stream_wait,
    .event_sync = event_sync,
    .event_between = event_between,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
};

/* The kernel room's part is filled in by kernel/cuda/table.cu. */
const ls_plugin ls_cuda_device_entries = {
    .abi = LS_PLUGIN_ABI,
    .ops_bytes = sizeof ops,
    .version = LS_VERSION,
    .kind = "cuda",
    .load = plugin_load,
    .ops = &ops,
    .kernels = NULL,
    .kernels_stamp = 0,
};
