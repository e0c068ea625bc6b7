/* session_device.c -- the device of a training process: what it cannot do is refused by name.
 *
 * Ranks that share a card divide it. Each reports its card and what is free there before any rank
 * takes of it; 3 ranks, cards a a b with 20, 20 and 12 GB free: shares of 10, 10 and 12, and all plan
 * with the least, 10, so that their calls are equal. */
#include "train/session/session_impl.h"

#include <stdlib.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "config/option.h"
#include "parallel/blocking.h"
#include "plan/memory.h"

static const char *isa_name(ls_isa isa)
{
    static const char *const names[] = {[LS_ISA_AUTO] = "auto",
                                        [LS_ISA_REFERENCE] = "reference",
                                        [LS_ISA_GENERIC] = "generic",
                                        [LS_ISA_AVX2] = "avx2",
                                        [LS_ISA_AVX512] = "avx512"};

    return names[isa];
}

/* What a GPU brings along is known only when it is opened; that there is none, now. */
ls_status ls_session_check_device(ls_session *s)
{
    const char *why;

    if (s->run->device.kind != LS_DEVICE_CUDA)
        return ls_kernel_pick(isa_name(s->run->device.isa), &s->kernels);
    why = ls_device_unusable("cuda");
    if (!why)
        return LS_OK;
    ls_status st = ls_fail(LS_EUSAGE, "cannot train on device \"cuda\": %s", why);
    ls_err_hint("device.kind: cpu trains on the CPU.");
    return st;
}

/* A GPU's products race their algorithms in each process. A run that promises equal bits after a
 * restart takes what does not depend on a race, unless the user has chosen. */
static ls_status fix_algorithms(const ls_run *run)
{
    if (run->device.kind != LS_DEVICE_CUDA || run->train.reduce != LS_REDUCE_ORDERED)
        return LS_OK;
    return setenv("LINESHAFT_CUDA_ALGORITHMS", "first", 0) == 0
               ? LS_OK
               : ls_fail_sys(LS_ENOMEM, "cannot set an environment variable");
}

static ls_status refuse_fp8(const ls_device_info *info)
{
    ls_fail(LS_EUSAGE, "precision cannot be fp8: \"%s\" does not multiply in it", info->name);
    ls_err_hint("precision: bf16 works on every card that lineshaft uses; fp8 begins with compute "
                "capability 8.9.");
    return LS_EUSAGE;
}

static ls_status refuse_disk(const ls_device_info *info)
{
    ls_fail(LS_EUSAGE,
            "device.offload cannot be disk: what leaves \"%s\" goes to the host's memory",
            info->name);
    ls_err_hint("Set device.offload: host.");
    return LS_EUSAGE;
}

/* What lies in windows. */
static ls_status check_windows(const ls_mesh *mesh, const ls_device_info *info)
{
    bool pipeline = mesh->pp > 1;

    if (info->window_page > 0 || (!pipeline && mesh->zero < 2))
        return LS_OK;
    ls_fail(LS_EUSAGE, "%s cannot be %d on \"%s\": its driver cannot map memory page by page",
            pipeline ? "mesh.pp" : "mesh.zero", pipeline ? mesh->pp : mesh->zero, info->name);
    ls_err_hint("Update the NVIDIA driver, or set %s: 1.", pipeline ? "mesh.pp" : "mesh.zero");
    return LS_EUSAGE;
}

static ls_status refuse_fp16(const ls_kernels *kernels)
{
    ls_fail(LS_EUSAGE, "precision cannot be fp16: the \"%s\" kernels do not compute in it",
            kernels->name);
    ls_err_hint("device.kind: cuda does, and for checking device.isa: reference.");
    return LS_EUSAGE;
}

ls_status ls_session_open_device(ls_session *s)
{
    static const char *const kinds[] = {
        [LS_DEVICE_AUTO] = "auto", [LS_DEVICE_CPU] = "cpu", [LS_DEVICE_CUDA] = "cuda"};
    const ls_run *run = s->run;
    ls_device_args args = {.kind = kinds[run->device.kind],
                           .threads =
                               run->device.threads == LS_RUN_AUTO ? 0 : (int)run->device.threads,
                           .pinned = run->device.pin == LS_PIN_ON,
                           .unpinned = run->device.pin == LS_PIN_OFF,
                           .card = s->args.local_rank};
    ls_status st = LS_OK;

    s->device = s->args.device;
    s->kernels = s->args.kernels;
    if (!s->device) {
        LS_TRY(st, fix_algorithms(run), out);
        LS_TRY(st, ls_device_open_with(&s->device, &args), out);
        LS_TRY(st, ls_kernel_for(s->device, isa_name(run->device.isa), &s->kernels), out);
    }
    ls_device_info info = ls_device_describe(s->device);
    if (run->precision == LS_PRECISION_FP8 && !info.fp8)
        LS_TRY(st, refuse_fp8(&info), out);
    if (run->precision == LS_PRECISION_FP16 && !s->kernels->f16)
        LS_TRY(st, refuse_fp16(s->kernels), out);
    s->discrete = !info.host_memory;
    s->offload = ls_memory_offload(run, s->discrete);
    if (s->discrete && s->offload == LS_OFFLOAD_DISK)
        LS_TRY(st, refuse_disk(&info), out);
    if (s->discrete)
        LS_TRY(st, check_windows(&s->mesh, &info), out);
    LS_TRY(st, ls_stream_create(&s->stream, s->device), out);
    if (s->discrete && s->mesh.ranks > 1)
        LS_TRY(st, ls_stream_create(&s->gpu.side, s->device), out);
out:
    return st;
}

/* In ordered mode no bit may depend on which rank computes what, so ranks on unlike CPUs multiply bf16
 * matrices by the best way that all have. Of ways 0 (widened), 1 (AVX512_BF16), 2 (AMX):
 *
 *     rank 0   has 0 1 2, takes 2
 *     rank 1   has 0 1,   takes 1        all have 0 1: rank 0 takes 1 too */
ls_status ls_session_agree_on_bf16(ls_session *s)
{
    static const char *const names[LS_BF16_WAYS] = {[LS_BF16_WIDENED] = "widened to fp32",
                                                    [LS_BF16_AVX512] = "by AVX512_BF16",
                                                    [LS_BF16_AMX] = "by AMX"};
    ls_bf16_way own = ls_kernel_bf16(s->kernels), way = LS_BF16_WAYS - 1;
    double least[LS_BF16_WAYS + 2] = {[LS_BF16_WAYS] = own, [LS_BF16_WAYS + 1] = -(double)own};
    ls_status st;

    if (s->run->train.reduce != LS_REDUCE_ORDERED || s->run->precision != LS_PRECISION_BF16)
        return LS_OK;
    for (ls_bf16_way w = 0; w < LS_BF16_WAYS; w++)
        least[w] = ls_kernel_bf16_has(s->kernels, w);
    st = ls_blocking_reduce(s->args.comm, LS_COLL_MIN, LS_F64, least, LS_COUNT(least),
                            ls_session_deadline());
    double worst = least[LS_BF16_WAYS], best = -least[LS_BF16_WAYS + 1];
    if (st != LS_OK || worst >= best)
        return st;
    while (least[way] < 1) /* all have the first */
        way--;
    if (ls_session_is_first(s))
        ls_log(LS_LOG_WARN,
               "ranks have unlike CPUs: all multiply bf16 matrices %s, which all can (the best of "
               "them "
               "%s), so that no bit depends on the rank",
               names[way], names[(int)best]);
    return ls_kernel_bf16_take(s->kernels, way);
}

/* Each rank reports which card it uses and how much of it is free, before any rank takes of it. */
ls_status ls_session_meet_cards(ls_session *s, const ls_device_info *info)
{
    int64_t deadline = ls_session_deadline();
    ls_session_card own = {
        .card = info->card, .cards = info->cards, .free_bytes = info->free_bytes};
    int n = s->mesh.ranks;
    ls_status st;

    s->gpu.cards = ls_mem_array((size_t)n, sizeof *s->gpu.cards);
    if (!s->gpu.cards)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    gethostname(own.host, sizeof own.host - 1);
    snprintf(own.bus_id, sizeof own.bus_id, "%s", info->bus_id);
    st = ls_blocking_gather(s->args.comm, &own, sizeof own, s->gpu.cards, deadline);
    if (st != LS_OK)
        return st;
    return ls_blocking_broadcast(s->args.comm, 0, s->gpu.cards, n * (int64_t)sizeof own, deadline);
}

/* What is free of a card for this rank, beside what it holds: an equal share of what those see that
 * use it. The least share of all, so that all ranks plan the same calls. */
int64_t ls_session_share_of_card(const ls_session *s)
{
    int64_t least = INT64_MAX;

    for (int r = 0; r < s->mesh.ranks; r++) {
        const ls_session_card *own = &s->gpu.cards[r];
        int64_t users = 0, bytes = own->free_bytes;
        for (int k = 0; k < s->mesh.ranks; k++) {
            if (!ls_session_same_card(&s->gpu.cards[k], own))
                continue;
            users++;
            bytes = ls_min_i64(bytes, s->gpu.cards[k].free_bytes);
        }
        least = ls_min_i64(least, bytes / users);
    }
    return least;
}

/* Why the exchanges of this run cannot go by collectives of device memory; NULL: they can. */
static const char *only_host(const ls_session *s)
{
    const ls_run *run = s->run;

    if (ls_mesh_pp(&s->mesh) > 1 && ls_mesh_pipelines(&s->mesh) > 1)
        return "several pipelines (mesh.pp with another axis) exchange through the host";
    if (s->mesh.zero > 1 && ls_mesh_mp(&s->mesh) > 1)
        return "with mesh.zero 2 and 3 ranks that divide a model (mesh.tp, mesh.ep) exchange "
               "through the host";
    if (ls_mesh_shard_groups(&s->mesh) > 1 && ls_mesh_mp(&s->mesh) > 1)
        return "shard groups (mesh.shard) of ranks that divide a model (mesh.tp, mesh.ep) exchange "
               "through the host";
    if (run->exchange.compress != LS_COMPRESS_NONE)
        return "exchange.compress packs gradients in the host";
    if (ls_optimizer_of(run->train.optimizer)->reach == LS_REACH_MATRIX)
        return "matrices that one rank updates for all (train.optimizer) go through the host";
    return NULL;
}

/* "dp, tp": the axes whose ranks exchange in a step. */
static void name_axes(const ls_session *s, char text_out[LS_SESSION_AXES])
{
    const struct {
        const char *name;
        int ranks;
    } axes[] = {
        {"dp", s->mesh.ranks / ls_mesh_mp(&s->mesh) / ls_mesh_cp(&s->mesh) / ls_mesh_pp(&s->mesh)},
        {"tp", ls_mesh_tp(&s->mesh)},
        {"cp", ls_mesh_cp(&s->mesh)},
        {"ep", ls_mesh_ep(&s->mesh)},
        {"pp", ls_mesh_pp(&s->mesh)}};

    text_out[0] = '\0';
    for (size_t i = 0; i < LS_COUNT(axes); i++)
        if (axes[i].ranks > 1) {
            size_t n = strlen(text_out);
            snprintf(text_out + n, LS_SESSION_AXES - n, "%s%s", n > 0 ? ", " : "", axes[i].name);
        }
}

ls_status ls_session_choose_collectives(ls_session *s)
{
    const ls_option *wish = ls_option_find("exchange.device");
    const char *why = only_host(s);
    int64_t deadline = ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S;
    ls_status st;

    s->gpu.collectives = (ls_device_comm_choice){.provider = NULL};
    if (!s->discrete || s->mesh.ranks < 2 || s->mesh.independent ||
        s->run->exchange.device == LS_EXCHANGE_HOST)
        return LS_OK;
    name_axes(s, s->gpu.axes);
    if (why && s->run->exchange.device == LS_EXCHANGE_NCCL) {
        ls_fail(LS_EUSAGE, "exchange.device cannot be nccl: %s", why);
        ls_err_hint("Set exchange.device: host, or auto.");
        return LS_EUSAGE;
    }
    if (why) {
        s->gpu.collectives.provider = "host";
        snprintf(s->gpu.collectives.why, sizeof s->gpu.collectives.why, "%s", why);
        return LS_OK;
    }
    st = ls_device_comm_choose(s->args.comm, s->device, wish->names[s->run->exchange.device],
                               deadline, &s->gpu.collectives);
    return st;
}

/* The other provider carries the same calls where there is no GPU, for tests
 * (LINESHAFT_FAULT=train.collectives@1+). */
const char *ls_session_collectives(const ls_session *s)
{
    const char *provider = s->gpu.collectives.provider;

    if (s->discrete && s->mesh.ranks > 1 && LS_FAULT("train.collectives"))
        return "host";
    return provider && strcmp(provider, "nccl") == 0 ? provider : NULL;
}
