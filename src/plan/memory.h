/* memory.h -- the memory of a training run, predicted: the ledger, and how a run is made to fit.
 *
 * The trainer sizes its allocations with these functions, and the ledger adds the same sizes up. */
#pragma once
#include "device/device.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "model/pass.h"
#include "parallel/dp.h"
#include "parallel/local_sgd.h"
#include "parallel/param_server.h"
#include "layout/calls.h"
#include "plan/ledger.h"

LS_C_BEGIN

typedef struct ls_memory_args {
    const ls_run *run;
    const ls_model *model;
    const ls_kernels *kernels;
    const ls_mesh *mesh; /* NULL: alone */
    /* Where ranks hold a model between them: model is this rank's part, mesh that of ranks that share
     * the batch; these are the whole one and the mesh of all ranks. NULL: as model and mesh. */
    const ls_model *whole;
    const ls_mesh *world;
    const ls_mesh *sums; /* and of those that have the same part of it; NULL: as mesh */
    int threads;
    bool discrete;         /* the device has a memory of its own, */
    int64_t page;          /* and its windows pages of this many bytes; 0: LS_WINDOW_PAGE */
    int64_t fixed_bytes;   /* of that, what the device holds for itself */
    int64_t program_bytes; /* resident before anything large is taken */
    int64_t loader_bytes;  /* batches prepared ahead */
    int64_t mapped_bytes;  /* token shards that training will touch */
    bool collectives;      /* of the device's memory: gradients and tensors go by them */
    bool pack;             /* weights are packed once for many calls: ls_memory_choose_packs() */
} ls_memory_args;

/* The ranks that sum gradients with this one. */
static inline const ls_mesh *ls_memory_sums(const ls_memory_args *args)
{
    return args->sums ? args->sums : args->mesh;
}

void ls_memory_predict(const ls_memory_args *args, ls_ledger *ledger_out);

/* LS_ENOMEM when the ledger exceeds free_bytes; the hint names the cheapest changes of the run file
 * that make it fit, each with what it saves, found by predicting again. */
ls_status ls_memory_check(const ls_memory_args *args, const ls_ledger *ledger, int64_t free_bytes);

/* The largest group of leaves with which the run fits into free_bytes, at most that of the run:
 * half as many each time. 1 even when nothing fits. */
int64_t ls_memory_fit_group(const ls_memory_args *args, int64_t free_bytes);

/* The least that must be recomputed for the run to fit into free_bytes, into run_out, which is a
 * copy of args->run otherwise: selective in as few blocks as do, then full in as few; full in all
 * even when nothing fits. */
void ls_memory_fit_recompute(const ls_memory_args *args, int64_t free_bytes, ls_run *run_out);

/* The pass of a step; stream and packs are left out. */
ls_pass_args ls_memory_step_pass(const ls_run *run, const ls_model *model,
                                 const ls_kernels *kernels, const ls_calls *calls);

/* The pass that text samples are read through: one sequence, with room for the prompt and the
 * answer in a cache. False where there is none and the step's own pass does it: no samples, or a
 * device with a memory of its own. stream is left out. */
bool ls_memory_sample_pass(const ls_memory_args *args, ls_pass_args *pass_out);

/* Whether the run packs its weights, into args->pack: as device.pack says; auto: when it pays and
 * enough of free_bytes is left. LS_EUSAGE: asked for, but the kernels read weights as they are. */
ls_status ls_memory_choose_packs(ls_memory_args *args, int64_t free_bytes);

/* The packed weights of a run that has them; false: none. stream is left out. */
bool ls_memory_packs(const ls_memory_args *args, ls_packed_weights_args *packs_out);

/* What ranks exchange in a step of the run; the communicator is left out. */
ls_dp_args ls_memory_dp(const ls_run *run, const ls_model *model, const ls_mesh *mesh);

/* Whether collectives of device memory, where they were chosen, carry this exchange of all ranks. */
bool ls_memory_by_device(const ls_run *run, const ls_mesh *world, const ls_dp_args *dp);

/* What workers exchange (sync: local); communicator and pool are left out. And how many arrays of all
 * parameters this worker saves beside the run's own checkpoint. */
ls_local_sgd_args ls_memory_local(const ls_run *run, const ls_model *model, const ls_mesh *mesh);
int ls_memory_replica_kinds(const ls_run *run, const ls_mesh *mesh);

/* What workers and servers exchange (sync: ps); communicator and update are left out. */
ls_param_server_args ls_memory_ps(const ls_run *run, const ls_model *model, const ls_mesh *mesh);

/* Elements of the fp32 weights and of a gradient buffer; dp is NULL alone. */
int64_t ls_memory_weight_elements(const ls_model *model, const ls_dp_args *dp);
int64_t ls_memory_grad_elements(const ls_model *model, const ls_calls *calls, const ls_dp_args *dp);

/* Pieces of parameters that an optimizer gets, at most: a border of a rank's part can cut
 * one, and that of a chunk which is updated at a time. */
int64_t ls_memory_spans(const ls_model *model);

/* Bytes of the small device buffers of a step: batch, losses, partial sums, spans, state. */
int64_t ls_memory_step_bytes(const ls_model *model, const ls_calls *calls);

/* Bytes of a page of windows. */
int64_t ls_memory_page(const ls_memory_args *args);

/* Zero 2 and 3 on a device with a memory of its own: elements of host memory for the sums of the
 * own parts, and for whatever else passes through it: squares of norm blocks. */
int64_t ls_memory_parted_elements(const ls_dp_args *dp);

/* Bytes of host memory that batches, numbers of a step and results travel through; page-locked
 * where the device has a memory of its own. */
int64_t ls_memory_staging_bytes(const ls_model *model, const ls_calls *calls);
/* Likewise of what pairs need beside it (train/step/step_preference.c); 0: no pairs. */
int64_t ls_memory_preference_bytes(const ls_run *run, const ls_model *model, const ls_calls *calls);
int64_t ls_memory_preference_host_bytes(const ls_run *run, const ls_calls *calls);

/* Where the moments lie: as the run says, but none where they are in the host's memory anyway. And
 * how many elements of a moment are in memory at a time where they lie elsewhere. */
ls_offload ls_memory_offload(const ls_run *run, bool discrete);
enum { LS_MEMORY_CHUNK = 1 << 20 };

/* Bytes of this rank's copy of a kind of the run's state as a whole (weights, first, second
 * moments); 0: it keeps none. Where one rank saves, it has one, to write checkpoints from while
 * training goes on; and always where the state does not lie in its own memory: in host memory where
 * the device has a memory of its own and where it must be collected. Where ranks save
 * parts, only the weights if no rank has all of them, for text samples, and as a pass reads them. */
int64_t ls_memory_snapshot_bytes(const ls_run *run, const ls_model *model, const ls_mesh *mesh,
                                 bool discrete, int kind);

/* Where ranks hold a model between them, and the first group brings it to the first rank: elements of
 * a parameter of the whole model that are on their way at a time; and of an array of a part of the
 * model that is collected first, where replicas divide it further (mp_groups: the mesh of groups);
 * 0: none does. */
enum { LS_MEMORY_PASSAGE = 1 << 18 };
int64_t ls_memory_passage(const ls_model *whole);
int64_t ls_memory_slice(const ls_model *part, const ls_mesh *mp_groups);

/* Bytes of the copy of another rank's weights, moments and gradient, where ranks keep such copies
 * (layout/replicas.h): four arrays. */
int64_t ls_memory_copy_bytes(const ls_run *run, const ls_model *model, const ls_mesh *mesh);
/* And what it needs where the last update may have to be made again (train/replica/replica_repeat.c). */
int64_t ls_memory_redo_bytes(const ls_run *run, const ls_model *model, const ls_mesh *mesh);

/* Bytes of the copy of what this rank writes of a checkpoint, where the ranks of a world save parts
 * (ckpt_ranges.h): of its part of the model, which the ranks of mesh_slice have. */
int64_t ls_memory_parts_bytes(const ls_run *run, const ls_model *model, const ls_mesh *world,
                              const ls_mesh *mesh_slice);

LS_C_END
