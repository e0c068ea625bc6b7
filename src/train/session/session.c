/* session.c -- building and taking down a training process.
 *
 * Order matters for what a user sees: settings that cannot work are refused before anything is
 * made; then the lock, so that a second run on the same folder is refused before it touches
 * anything; the ledger is checked before large memory is taken; resume comes last, because it fills
 * what was allocated. The device is opened in session_device.c, the first weights are made in
 * session_weights.c; what the run tells when all is there, in session_report.c. */
#include "train/session/session_impl.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <time.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/check.h"
#include "config/explain.h"
#include "config/option.h"
#include "config/runfile.h"
#include "config/hf_config.h"
#include "hf/hf_copy.h"
#include "layout/replica_peers.h"
#include "optim/optim.h"
#include "layout/stage_plan.h"
#include "train/replica/replica_copy.h"
#include "train/sdc/sdc_replay.h"
#include "train/session/param_server_session.h"
#include "train/session/mesh_agree.h"
#include "train/session/cp_group.h"
#include "train/save/error_feedback.h"
#include "train/replica/replica_parts.h"
#include "train/replica/replica_zero.h"
#include "train/sdc/sdc_compare.h"
#include "train/session/local_sgd_session.h"
#include "train/replica/recover.h"
#include "train/save/sharded_save.h"
#include "train/save/save.h"
#include "train/session/model_groups.h"
#include "train/replica/replica_pair.h"

/* How long ranks wait for the first one to encode text; and a new first one for the one before, at
 * least. */
enum { PREPARE_S = 24 * 3600, LOCK_S = 20, DIES_S = 5 };

static void lock_path(const ls_session *s, char path_out[PATH_MAX])
{
    snprintf(path_out, PATH_MAX, "%s/run.lock", s->run->out);
}

/* In a view that follows a loss who was the first rank may have to let go of it (leave_folder), or
 * be on a machine that was cut off and needs a while to see that it is over (cluster/elect/failover.c:
 * twice heal.dead). */
static int64_t lock_patience_ns(const ls_session *s)
{
    int64_t cut_ns = (int64_t)(4 * s->run->heal.dead * LS_NS_PER_S);

    return s->args.view.plan.generation > 1 ? ls_max_i64(LOCK_S * LS_NS_PER_S, cut_ns) : 0;
}

/* Who stands still with the run folder has the lock of its checkpoints, too; one that dies lets go
 * of one after the other. */
static ls_status free_checkpoints(const ls_session *s)
{
    char path[PATH_MAX];
    int fd = -1;

    snprintf(path, sizeof path, "%s/checkpoints/lock", s->run->out);
    if (s->args.view.plan.generation <= 1 || !ls_file_exists(path))
        return LS_OK;
    ls_status st = ls_run_folder_lock(path, s->folder.holder, DIES_S * LS_NS_PER_S, &fd);
    if (st == LS_OK)
        ls_file_unlock(fd);
    return st == LS_EBUSY ? LS_OK : st; /* not theirs: opening the store tells */
}

static ls_status open_folder(ls_session *s)
{
    const char *out = s->run->out;
    char path[PATH_MAX];
    ls_status st = LS_OK;

    s->folder.made = !ls_file_exists(out);
    LS_TRY(st, ls_file_make_dirs(out), out_label);
    lock_path(s, path);
    st = ls_run_folder_lock(path, s->folder.holder, lock_patience_ns(s), &s->folder.lock_fd);
    if (st == LS_OK)
        st = free_checkpoints(s);
    if (st == LS_EBUSY) {
        st = ls_fail(LS_EBUSY, "another run is using \"%s\" (see \"%s\")", out, path);
        ls_err_hint("Wait for it, stop it, or give this run a folder of its own with out: or "
                    "--set out=FOLDER.");
    }
    if (st != LS_OK)
        goto out_label;
    ls_str_clear(&s->folder.config);
    ls_explain_yaml(s->run, &s->folder.config);
    LS_TRY(st, ls_str_status(&s->folder.config), out_label);
out_label:
    return st;
}

/* This rank was the first, and is not any more: a spare with a lower place has come in. */
static ls_status leave_folder(ls_session *s)
{
    ls_status st = ls_save_leave(s);

    if (s->folder.events_fd >= 0)
        close(s->folder.events_fd);
    ls_file_unlock(s->folder.lock_fd);
    s->folder.events_fd = s->folder.lock_fd = -1;
    return st;
}

static ls_status open_events(ls_session *s)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/events.jsonl", s->run->out);
    s->folder.events_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return s->folder.events_fd < 0 ? ls_fail_sys(LS_EIO, "cannot write \"%s\"", path) : LS_OK;
}

/* A run that could not be opened takes its folder away again, unless something of value is in it:
 * rmdir leaves folders that are not empty, such as encoded text. */
static void remove_folder(const ls_session *s)
{
    static const char *const leftovers[] = {
        "data",        "checkpoints/lock", "checkpoints/generation", "checkpoints/objects",
        "checkpoints", "run.lock"};
    char path[PATH_MAX];

    for (size_t i = 0; i < LS_COUNT(leftovers); i++) {
        snprintf(path, sizeof path, "%s/%s", s->run->out, leftovers[i]);
        (void)remove(path);
    }
    (void)ls_hf_copy_keep(s->run->out, "bytes", "",
                          true); /* nothing to keep: what was is removed */
    (void)rmdir(s->run->out);
}

/* The tokenizer, or the copy that an earlier start kept when the original is gone. */
static ls_status open_tokenizer(ls_session *s)
{
    const char *name = s->run->data.tokenizer;
    char kept[PATH_MAX], file[PATH_MAX + 32];

    snprintf(kept, sizeof kept, "%s/" LS_HF_CONFIG_COPIES, s->run->out);
    snprintf(file, sizeof file, "%s/tokenizer.json", kept);
    if (strcmp(name, "bytes") != 0 && !ls_file_exists(name) && ls_file_exists(file)) {
        ls_log(LS_LOG_INFO, "\"%s\" is gone: the tokenizer in \"%s\" is used", name, kept);
        name = kept;
    }
    return ls_tokenizer_open(&s->data.tokenizer, name);
}

/* What needs neither files nor much memory, and can show that the settings cannot work. */
static ls_status open_settings(ls_session *s)
{
    ls_status st = LS_OK;

    if (!s->args.device)
        LS_TRY(st, ls_session_check_device(s), out);
    LS_TRY(st, open_tokenizer(s), out);
    LS_TRY(st, ls_model_groups_models(s), out);
    if (s->mesh.pp > 1) { /* can its layers be cut? */
        ls_stage_plan pipe;
        LS_TRY(st, ls_stage_plan_init(&pipe, s->run, &s->model, ls_model_groups_mesh(s), 1, false),
               out);
        ls_stage_plan_release(&pipe);
    }
out:
    return st;
}

static ls_status open_data(ls_session *s)
{
    char cache[PATH_MAX];

    snprintf(cache, sizeof cache, "%s/%s", s->run->out, LS_CORPUS_CACHE);
    ls_status st = ls_corpus_open(&s->data.corpus, s->run, s->data.tokenizer, cache);
    if (st == LS_OK)
        ls_hash_hex(ls_corpus_hash(s->data.corpus), s->data.hash);
    return st;
}

static ls_loader_args loader_args(ls_session *s)
{
    ls_calls calls;

    ls_calls_plan(s->run, ls_model_groups_mesh(s), &calls);
    return (ls_loader_args){.corpus = s->data.corpus,
                            .seed = (uint64_t)s->run->train.seed,
                            .T = s->run->model.context,
                            .sequences = ls_max_i64(1, calls.own * calls.leaf),
                            .first_step = s->step_number,
                            .isolate = s->run->data.isolate,
                            .depth = LS_BATCH_SLICE_AHEAD,
                            .slice = ls_batch_slice_slice,
                            .context = s};
}

/* Which ranks share a machine, and so their memory. */
static ls_status open_places(ls_session *s)
{
    int n = s->mesh.ranks;

    if (!s->args.comm || n < 2)
        return LS_OK;
    s->places = ls_mem_array(2 * (size_t)n, sizeof *s->places); /* then of equals (open_groups) */
    if (!s->places)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int r = 0; r < n; r++)
        s->places[r].node = ls_comm_node(s->args.comm, r);
    s->mesh.nodes = ls_mesh_places(s->places, n);
    s->mesh.places = s->places;
    return LS_OK;
}

/* The mesh that the run asks for was that of the first view; its width, and the weights of its
 * ranks, mean nothing when some of them are gone. */
static void free_mesh(ls_session *s)
{
    const ls_run *run = s->args.run;
    int ranks = s->args.comm ? ls_comm_ranks(s->args.comm) : 1;

    if (s->args.view.plan.generation < 2)
        return;
    s->fitted = *run;
    s->fitted.mesh.dp = LS_RUN_AUTO;
    if (run->mesh.weights.count != ranks)
        s->fitted.mesh.weights.count = 0;
    if (s->auto_mesh.choice.count > 0)
        ls_mesh_choice_apply(&s->auto_mesh.choice, 0, &s->fitted);
    s->run = &s->fitted;
}

/* Which machines those are on that have the same part of the model. The ranks that have it together
 * must be grouped alike. */
static ls_status place_replicas(ls_session *s)
{
    int mp_group = ls_mesh_mp(&s->mesh), first = s->mesh.rank % mp_group;

    if (strcmp(s->run->mesh.shard, "node") != 0 || !s->places)
        return LS_OK;
    for (int r = 0; r < s->mesh.ranks; r++)
        if (s->places[r].node != s->places[r / mp_group * mp_group].node) {
            ls_fail(LS_EUSAGE, "mesh.shard cannot be node: ranks that have a model together "
                               "(mesh.tp, mesh.ep) are on several nodes");
            ls_err_hint("Start them so that they share a machine, or set mesh.shard: world.");
            return LS_EUSAGE;
        }
    ls_mesh_place *places = s->places + s->mesh.ranks;
    for (int r = 0; r < s->groups.replicas.ranks; r++)
        places[r].node = s->places[r * mp_group + first].node;
    s->groups.replicas.nodes = ls_mesh_places(places, s->groups.replicas.ranks);
    s->groups.replicas.places = places;
    return LS_OK;
}

/* Those who are left when some are gone may not make the groups that the run asks for: then all
 * divide. */
static ls_status open_groups(ls_session *s)
{
    bool mp_groups = ls_mesh_mp(&s->mesh) > 1;
    ls_mesh *mesh = mp_groups ? &s->groups.replicas : &s->mesh;
    ls_status st = mp_groups ? place_replicas(s) : LS_OK;

    if (st == LS_OK)
        st = ls_mesh_set_shard(mesh, s->run);
    if (st == LS_OK || s->args.view.plan.generation < 2)
        return st;
    ls_log(LS_LOG_INFO, "%s: %d ranks divide among all of them", ls_err_last()->text, mesh->ranks);
    ls_err_clear();
    mesh->shard = 0;
    mesh->by_node = false;
    return LS_OK;
}

/* "pp=2 dp=2 tp=2 zero=1": what is not there is left out, but for dp. */
static void tell_mesh(ls_session *s)
{
    const struct {
        const char *name;
        int width;
    } axes[] = {{"pp", s->mesh.pp},
                {"dp", ls_mesh_pipelines(&s->groups.tp_slice) / ls_mesh_cp(&s->mesh)},
                {"cp", s->mesh.cp},
                {"tp", s->mesh.tp},
                {"ep", s->mesh.ep},
                {"zero", s->mesh.zero},
                {"shard", ls_model_groups_plane(s)->shard}};
    size_t used = 0;

    s->mesh_text[0] = '\0';
    for (size_t i = 0; i < LS_COUNT(axes) && used < sizeof s->mesh_text; i++)
        if (axes[i].width > 0)
            used += (size_t)snprintf(s->mesh_text + used, sizeof s->mesh_text - used, "%s%s=%d",
                                     used ? " " : "", axes[i].name, axes[i].width);
}

static ls_status open_mesh(ls_session *s)
{
    ls_comm *comm = s->args.comm;
    free_mesh(s);
    ls_status st = ls_mesh_init(&s->mesh, s->run, comm ? ls_comm_ranks(comm) : 1,
                                comm ? ls_comm_rank(comm) : 0);

    if (st == LS_OK && s->args.local_ranks > 0)
        s->mesh.local = s->args.local_ranks;
    if (st == LS_OK)
        st = open_places(s);
    if (st == LS_OK)
        s->groups.replicas = ls_mesh_of_replicas(&s->mesh);
    if (st == LS_OK && s->mesh.zero > 0)
        st = open_groups(s);
    if (st == LS_OK)
        st = ls_replica_peers_choose(&s->mesh, s->run, s->args.rejoin != NULL);
    s->groups.replicas.buddies = s->mesh.buddies;
    if (st == LS_OK)
        s->groups.tp_slice = ls_mesh_slice(&s->mesh);
    tell_mesh(s);
    if (st == LS_OK && s->mesh.rank > 0)
        s->args.profile_steps = 0; /* the first rank's profile is the one that is written */
    return st;
}

static void drop_kept(ls_session *s)
{
    for (int i = 0; i < 3; i++)
        ls_device_free(s->device, s->recovery.kept[i]);
    memset(s->recovery.kept, 0, sizeof s->recovery.kept);
    s->recovery.kept_step = -1;
}

/* Everything that is kept of a state between two views. */
static void drop_state(ls_session *s)
{
    drop_kept(s);
    ls_replica_zero_drop(s);
    ls_replica_parts_drop(s);
}

/* mesh: auto, in a view that follows a loss: the mesh of the one before, if somebody knows it. */
static ls_status recall_mesh(ls_session *s)
{
    bool other = false;
    ls_status st = LS_OK;

    if (s->run->mesh.automatic && s->args.view.plan.generation > 1)
        st = ls_mesh_agree_recall(s, &other);
    if (st == LS_OK && other)
        drop_state(s);
    return st;
}

/* mesh: auto, now that ranks, device and tokenizer are known; then as with a mesh that was asked
 * for. */
static ls_status choose_mesh(ls_session *s)
{
    ls_status st = LS_OK;

    if (!s->run->mesh.automatic)
        return LS_OK;
    LS_TRY(st, recall_mesh(s), out);
    if (s->auto_mesh.choice.count == 0)
        LS_TRY(st, ls_mesh_agree_mesh(s), out);
    ls_batch_slice_close(s);
    s->data.slice = (ls_batch_slice){.set = NULL};
    ls_mem_free(s->places);
    s->places = NULL;
    LS_TRY(st, open_mesh(s), out);
    LS_TRY(st, ls_batch_slice_open(s), out);
    LS_TRY(st, ls_model_groups_models(s), out);
out:
    return st;
}

/* What all ranks must have alike: told by the first. */
typedef struct same_part {
    char run[LS_HASH_HEX], data[LS_HASH_HEX];
} same_part;

static ls_status check_same_part(ls_session *s)
{
    same_part first = {.run = ""}, own;
    ls_hash hash;
    ls_status st;

    LS_TRY(st, ls_explain_hash(s->run, &hash), out);
    ls_hash_hex(hash, first.run);
    memcpy(first.data, s->data.hash, sizeof first.data);
    own = first;
    LS_TRY(st,
           ls_comm_run(s->args.comm,
                       &(ls_coll){.kind = LS_COLL_BROADCAST,
                                  .type = LS_U8,
                                  .count = sizeof first,
                                  .in = &first,
                                  .out = &first},
                       ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S),
           out);
    if (strcmp(first.run, own.run) != 0)
        st = ls_fail(LS_EUSAGE, "rank %d has other settings than rank 0", s->mesh.rank);
    else if (strcmp(first.data, own.data) != 0)
        st = ls_fail(LS_EDATA, "rank %d reads other text than rank 0", s->mesh.rank);
    if (st != LS_OK)
        ls_err_hint("Every machine must see the same run file, data and environment.");
out:
    return st;
}

/* The first rank prepares the data, then the others find it prepared. */
static ls_status open_data_together(ls_session *s)
{
    const ls_coll barrier = {.kind = LS_COLL_BARRIER};
    ls_status st = LS_OK;

    if (ls_session_is_first(s) && !s->data.corpus)
        LS_TRY(st, open_data(s), out);
    if (s->mesh.ranks == 1)
        goto out;
    LS_TRY(st, ls_comm_run(s->args.comm, &barrier, ls_time_now_ns() + PREPARE_S * LS_NS_PER_S),
           out);
    if (!s->data.corpus)
        LS_TRY(st, open_data(s), out);
    LS_TRY(st, check_same_part(s), out);
out:
    return st;
}

/* Whether all ranks write their parts of checkpoints: they must see the run folder, so they look
 * for a file that the first one has just made; and the parts must lie in the memory of the host. */
static ls_status look_for_folder(ls_session *s)
{
    const int64_t until_ns = ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S;
    bool first = ls_session_is_first(s);
    char name[64] = "", path[PATH_MAX];
    double blind = 0;
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1 && !s->mesh.independent) {
        snprintf(name, sizeof name, ".seen-%d-%lld", (int)getpid(), (long long)ls_time_now_ns());
        snprintf(path, sizeof path, "%s/%s", s->run->out, name);
        if (first)
            LS_TRY(st, ls_file_write_atomic(path, "", 0), out);
        ls_coll tell = {.kind = LS_COLL_BROADCAST,
                        .type = LS_U8,
                        .count = sizeof name,
                        .in = name,
                        .out = name};
        ls_coll count = {
            .kind = LS_COLL_ALL_REDUCE, .type = LS_F64, .count = 1, .in = &blind, .out = &blind};
        LS_TRY(st, ls_comm_run(s->args.comm, &tell, until_ns), out);
        snprintf(path, sizeof path, "%s/%.63s", s->run->out, name);
        blind = !ls_file_exists(path) || (!first && LS_FAULT("train.blind"));
        LS_TRY(st, ls_comm_run(s->args.comm, &count, until_ns), out);
        if (first)
            (void)remove(path);
    }
    if (blind > 0 && first)
        ls_log(LS_LOG_WARN,
               "%.0f of %d ranks do not see \"%s\": the first rank collects and writes checkpoints "
               "for all; on a file system that all hosts share each would write its part",
               blind, s->mesh.ranks, s->run->out);
    s->mesh.blind = blind > 0 || s->discrete || s->offload != LS_OFFLOAD_NONE;
    s->snapshot.staged = s->discrete || ls_mesh_parts_weights(&s->mesh) ||
                         (ls_mesh_divides(&s->mesh) && !ls_mesh_saves_parts(&s->mesh));
out:
    return st;
}

/* On a GPU, whose memory is for this run alone, calls that nobody has set are as large as fit, on
 * all ranks. */
static ls_status fit_group(ls_session *s, const ls_memory_args *memory, int64_t free_bytes)
{
    double group = (double)ls_memory_fit_group(memory, free_bytes);
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1)
        st = ls_comm_run(s->args.comm,
                         &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                    .op = LS_COLL_MIN,
                                    .type = LS_F64,
                                    .count = 1,
                                    .in = &group,
                                    .out = &group},
                         ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S);
    s->fitted.batch.group = (int64_t)group;
    return st;
}

/* Then as little is recomputed as fits, where that is left to us, rather than packed weights kept.
 * No bit depends on it, so ranks may choose differently, but for those of a team or a ring. */
static ls_status fit_run(ls_session *s, ls_memory_args *memory, int64_t free_bytes)
{
    int at = ls_option_index(ls_option_find("batch.group"));
    bool recompute = s->run->train.recompute == LS_RECOMPUTE_AUTO;
    ls_status st = LS_OK;

    if (s->run != &s->fitted)
        s->fitted = *s->run;
    s->run = memory->run = &s->fitted;
    memory->pack = s->run->device.pack == LS_PACKING_ON;
    if (recompute)
        s->fitted.train.recompute = LS_RECOMPUTE_NONE;
    if (s->discrete && s->run->origins[at].automatic)
        LS_TRY(st, fit_group(s, memory, free_bytes), out);
    if (recompute) {
        ls_run chosen;
        ls_memory_fit_recompute(memory, free_bytes, &chosen);
        LS_TRY(st, ls_cp_group_agree(s, &chosen), out);
        s->fitted = chosen;
        LS_TRY(st, ls_model_groups_agree(s), out);
    }
out:
    return st;
}

/* What writes the text samples. */
static ls_status open_decode(ls_session *s, const ls_memory_args *memory)
{
    ls_pass_args args;
    ls_status st = LS_OK;

    if (ls_memory_sample_pass(memory, &args)) {
        args.stream = s->stream;
        args.packs = ls_mesh_mp(&s->mesh) > 1 ? NULL : s->packs; /* those are of a part */
        LS_TRY(st, ls_pass_open(&s->samples.pass, &args), out);
    }
    LS_TRY(st,
           ls_decode_open(&s->samples.decode, ls_model_groups_whole(s),
                          s->samples.pass ? s->samples.pass : ls_step_pass(s->step), s->stream),
           out);
out:
    return st;
}

static ls_status open_packs(ls_session *s, const ls_memory_args *memory, ls_step_args *step)
{
    ls_packed_weights_args args;
    ls_status st = LS_OK;

    if (!ls_memory_packs(memory, &args))
        return LS_OK;
    args.stream = s->stream;
    st = ls_packed_weights_open(&s->packs, &args);
    step->packs = s->packs;
    return st;
}

/* What ranks exchange in a step. Those that have a model together sum gradients elsewhere
 * (train/session/model_groups.h), and say to all what they decide. */
static ls_status open_exchange(ls_session *s)
{
    ls_dp_args dp = ls_mesh_mp(&s->mesh) > 1
                        ? (ls_dp_args){.mesh = s->mesh, .leaves = 1, .trained = 1}
                        : ls_memory_dp(s->run, &s->model, &s->mesh);

    if (ls_mesh_mp(&s->mesh) > 1) /* nothing is summed there, and no sequences are shared */
        dp.mesh.zero = dp.mesh.cp = 0;
    dp.comm = s->args.comm;
    return ls_model_groups_open_dp(&s->dp, s->run, dp);
}

/* Memory of a state that is there already. */
static int64_t kept_bytes(const ls_session *s)
{
    int64_t n = s->model.flat + s->model.trained + ls_optim_seconds(s->run, &s->model);

    return s->recovery.kept[0] ? n * (int64_t)sizeof(float)
                               : ls_replica_zero_bytes(s) + ls_replica_parts_bytes(s);
}

/* The step has it now. */
static void take_kept(ls_session *s)
{
    if (!s->recovery.kept[0])
        return;
    memset(s->recovery.kept, 0, sizeof s->recovery.kept);
    s->step_number = s->recovery.kept_step;
    s->recovery.kept_step = -1;
    s->recovery.has_state = true;
}

/* What of the program is touched after memory was planned: code of steps and saves, stacks of
 * threads, small objects; and by who tells of the run and commits its checkpoints. Measured. */
enum { LATER_BYTES = 1408 << 10, FIRST_BYTES = 320 << 10 };

/* Ranks that share a machine or its cards meet; what is left for this one, with what it has kept.
 */
static ls_status open_mp_groups(ls_session *s, const ls_device_info *info, int64_t kept,
                                int64_t *free_out)
{
    int64_t free_bytes = info->free_bytes + kept;
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1) {
        if (s->discrete)
            LS_TRY(st, ls_session_meet_cards(s, info), out);
        free_bytes = s->discrete ? ls_session_share_of_card(s) + kept : free_bytes / s->mesh.local;
        LS_TRY(st, ls_model_groups_open(s), out);
        LS_TRY(st, ls_cp_group_open(s), out);
        if (!s->mesh.independent && ls_mesh_mp(&s->mesh) == 1)
            s->mesh.bucket =
                ls_dp_bucket_blocks(s->args.comm, &s->mesh, s->model.trained, s->run->mesh.bucket);
    }
    *free_out = free_bytes + info->fixed_bytes; /* what a GPU holds is taken already */
out:
    return st;
}

/* What the ledger is made of. */
static ls_memory_args memory_of(ls_session *s, const ls_device_info *info, int64_t kept)
{
    ls_loader_args loader = loader_args(s);
    int64_t program = ls_ledger_resident_bytes() - kept;

    if (!s->discrete) /* they have their own line */
        program -= (int64_t)info->threads * LS_STREAM_THREAD_BYTES;
    program -= ls_corpus_present_bytes(s->data.corpus); /* so have shards */
    program += LATER_BYTES + (ls_session_is_first(s) ? FIRST_BYTES : 0);
    return (ls_memory_args){.run = s->run,
                            .mesh = ls_model_groups_mesh(s),
                            .model = &s->model,
                            .world = &s->mesh,
                            .whole = ls_model_groups_whole(s),
                            .sums = ls_mesh_mp(&s->mesh) > 1 ? &s->groups.replicas : NULL,
                            .kernels = s->kernels,
                            .threads = info->threads,
                            .discrete = s->discrete,
                            .page = info->window_page,
                            .fixed_bytes = info->fixed_bytes,
                            .program_bytes = program,
                            .loader_bytes = ls_loader_bytes(&loader),
                            .mapped_bytes = ls_corpus_mapped_bytes(s->data.corpus)};
}

/* What the step exchanges with other ranks, and with whom. */
static ls_status open_sums(ls_session *s, ls_step_args *step)
{
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1)
        LS_TRY(st, open_exchange(s), out);
    LS_TRY(st, ls_model_groups_open_sums(s), out);
    step->dp = s->mesh.independent ? NULL : ls_mesh_mp(&s->mesh) > 1 ? s->groups.replica_dp : s->dp;
    step->batch_dp = s->mesh.ep < 2 ? NULL : s->groups.slice_dp ? s->groups.slice_dp : s->dp;
    step->tp_group = s->groups.tp;
    step->ep_group = s->groups.ep;
    step->mp_group = s->groups.model_comm;
    step->cp_group = s->groups.cp;
    step->rank = s->mesh.rank;
    step->heals = s->args.rejoin != NULL;
    step->pushes = s->mesh.servers > 0;
    if (s->mesh.buddies && ls_mesh_whole(&s->mesh)) /* else replica_pair.h */
        LS_TRY(
            st,
            ls_replica_copy_open(&s->recovery.copy, &(ls_replica_copy_args){.run = s->run,
                                                                            .kernels = s->kernels,
                                                                            .stream = s->stream,
                                                                            .model = &s->model,
                                                                            .device = s->device,
                                                                            .dp = s->dp}),
            out);
    step->buddy = s->recovery.copy;
out:
    return st;
}

/* Predict, refuse what does not fit, then take the large memory. */
static ls_status open_state(ls_session *s)
{
    ls_device_info info = ls_device_describe(s->device);
    ls_step_args step = {.model = &s->model,
                         .kernels = s->kernels,
                         .stream = s->stream,
                         .side = s->gpu.side,
                         .offload_to = ls_session_offload_to(s)};
    int64_t kept = kept_bytes(s), free_bytes;
    ls_status st;

    LS_TRY(st, open_mp_groups(s, &info, kept, &free_bytes), out);
    ls_memory_args memory = memory_of(s, &info, kept);
    LS_TRY(st, fit_run(s, &memory, free_bytes), out);
    step.run = s->run;
    LS_TRY(st, ls_memory_choose_packs(&memory, free_bytes), out);
    ls_memory_predict(&memory, &s->ledger);
    LS_TRY(st, ls_memory_check(&memory, &s->ledger, free_bytes), out);
    ls_calls_plan(s->run, ls_model_groups_mesh(s), &step.calls);
    LS_TRY(st, open_sums(s, &step), out);
    LS_TRY(st, open_packs(s, &memory, &step), out);
    step.pack = memory.pack;
    step.kept = s->recovery.kept[0] ? s->recovery.kept : ls_replica_parts_lend(s);
    LS_TRY(st, ls_step_open(&s->step, &step), out);
    take_kept(s);
    ls_replica_parts_lent(s);
    if (step.pushes)
        LS_TRY(st, ls_param_server_session_open(s), out);
    else if (s->mesh.independent)
        LS_TRY(st, ls_local_sgd_session_open(s), out);
    LS_TRY(st, open_decode(s, &memory), out);
out:
    return st;
}

/* What the run needs of other folders, so that it can be used when they are gone. A start from
 * nothing renews what an earlier one may have left. */
static ls_status keep_copies(const ls_session *s)
{
    const char *tokenizer = s->run->data.tokenizer, *import = s->run->model.import;
    bool gone = strcmp(tokenizer, "bytes") != 0 && !ls_file_exists(tokenizer);

    if (gone) /* then what is kept is all there is */
        return LS_OK;
    return ls_hf_copy_keep(s->run->out, tokenizer, ls_file_is_dir(import) ? import : "",
                           s->step_number == 0);
}

/* For -vv: where the time before the first step goes. */
static void note_time(const char *what)
{
    ls_log(LS_LOG_DEBUG, "%s: %.3f s after the start", what,
           (double)ls_time_since_start_ns() / 1e9);
}

/* A state of this run: the newest checkpoint, or the first weights. */
static ls_status begin_state(ls_session *s)
{
    ls_status st = LS_OK;

    if (ls_session_is_first(s))
        LS_TRY(st, ls_save_again(s), out);
    LS_TRY(st, ls_sharded_save_open(s), out);
    LS_TRY(st, ls_save_resume(s), out);
    if (s->dp)
        LS_TRY(st, ls_save_share(s), out);
    if (s->step_number > 0)
        LS_TRY(st, ls_error_feedback_share(s), out);
    if (s->step_number == 0)
        LS_TRY(st, ls_session_start_weights(s), out);
    if (s->sync.local_sgd)
        LS_TRY(st, ls_local_sgd_session_start(s), out);
    if (s->sync.param_server)
        LS_TRY(st, ls_param_server_session_start(s), out);
    s->recovery.has_state = true;
out:
    return st;
}

/* The state that a rank of this view has. */
static ls_status go_on_with_state(ls_session *s)
{
    ls_status st = LS_OK;

    if (ls_session_is_first(s))
        LS_TRY(st, ls_save_again(s), out);
    LS_TRY(st, ls_sharded_save_open(s), out);
    LS_TRY(st, ls_recover_spread(s), out);
out:
    return st;
}

/* What ranks build together, when a run begins and when its ranks are others. */
static ls_status assemble(ls_session *s)
{
    bool first = ls_session_is_first(s);
    char path[PATH_MAX];
    ls_status st;

    LS_TRY(st, open_data_together(s), out);
    LS_TRY(st, look_for_folder(s), out);
    note_time("data opened");
    LS_TRY(st, open_state(s), out);
    note_time("memory taken");
    LS_TRY(st, ls_recover_in_memory(s) ? go_on_with_state(s) : begin_state(s), out);
    LS_TRY(st, ls_step_weights_changed(s->step), out);
    if (s->recovery.copy)
        LS_TRY(st, ls_replica_copy_begin(s->recovery.copy, s->step, s->step_number), out);
    LS_TRY(st, ls_replica_pair_begin(s->step), out);
    ls_replica_zero_drop(s);
    ls_replica_parts_begin(s);
    LS_TRY(st, ls_sdc_compare_open(s), out);
    LS_TRY(st, ls_sdc_replay_open(s), out);
    note_time("weights there");
    ls_loader_args loader = loader_args(s);
    LS_TRY(st, ls_loader_open(&s->data.loader, &loader), out);
    if (first && s->folder.events_fd < 0) {
        LS_TRY(st, keep_copies(s), out);
        LS_TRY(st, open_events(s), out);
    }
    LS_TRY(st, ls_session_tell(s), out);
    lock_path(s, path);
    ls_run_folder_holder(path, s->folder.holder);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_READY), out);
    ls_heal_ready();
out:
    return st;
}

ls_status ls_session_open(ls_session *session, const ls_session_args *args)
{
    ls_session *s = session;
    ls_status st = LS_OK;

    *s = (ls_session){.args = *args,
                      .run = args->run,
                      .folder.lock_fd = -1,
                      .folder.events_fd = -1,
                      .save.newest_step = -1,
                      .save.saved_step = -1,
                      .save.writing_step = -1,
                      .recovery.kept_step = -1,
                      .progress.nonfinite_step = -1,
                      .recovery.source = "replica",
                      .progress.loss = (double)NAN,
                      .progress.val_loss = (double)NAN};
    if (!args->rejoin)
        s->args.view.plan.base = -1;
    s->args.fresh = args->fresh && !args->view.begun;
    ls_str_init(&s->folder.config);
    ls_str_init(&s->folder.line);
    ls_err_doing("preparing run \"%s\"", s->run->name);
    s->progress.total_steps = ls_check_horizon(s->run);
    ls_loss_scaler_init(&s->scaler, s->run);
    LS_TRY(st, open_mesh(s), out);
    LS_TRY(st, ls_batch_slice_open(s), out);
    LS_TRY(st, open_settings(s), out);
    if (ls_session_is_first(s))
        LS_TRY(st, open_folder(s), out);
    note_time("settings read");
    LS_TRY(st, ls_session_open_device(s), out);
    note_time("device opened");
    LS_TRY(st, choose_mesh(s), out);
    LS_TRY(st, ls_profiling_open(s), out);
    LS_TRY(st, ls_replica_zero_choose(s), out);
    LS_TRY(st, ls_replica_parts_choose(s), out);
    LS_TRY(st, assemble(s), out);
out:
    ls_err_done();
    if (st != LS_OK && s->folder.made && s->folder.lock_fd >= 0)
        remove_folder(s);
    if (st != LS_OK)
        ls_session_close(s);
    return st;
}

ls_status ls_session_regroup(ls_session *session)
{
    ls_session *s = session;
    ls_status st = LS_OK;

    s->args.fresh = false;
    s->args.local_ranks = s->args.view.local_ranks;
    ls_err_doing("going on with %d ranks", ls_comm_ranks(s->args.comm));
    LS_TRY(st, ls_save_await(s), out); /* it reads the settings, which change now */
    LS_TRY(st, recall_mesh(s), out);
    LS_TRY(st, open_mesh(s), out);
    if (!ls_session_is_first(s) && s->folder.lock_fd >= 0)
        LS_TRY(st, leave_folder(s), out);
    LS_TRY(st, ls_batch_slice_open(s), out);
    LS_TRY(st, ls_replica_parts_choose(s), out);
    if (ls_mesh_mp(&s->mesh) > 1 || s->groups.whole.params) /* its place may be another one */
        LS_TRY(st, ls_model_groups_models(s), out);
    if (ls_session_is_first(s) && s->folder.lock_fd < 0)
        LS_TRY(st, open_folder(s), out);
    LS_TRY(st, ls_replica_zero_choose(s), out);
    if (!ls_recover_in_memory(s)) {
        drop_state(s);
        s->step_number = 0;
        s->save.saved_step = s->save.newest_step = s->progress.nonfinite_step = -1;
        s->progress.loss = s->progress.val_loss = (double)NAN;
    }
    LS_TRY(st, assemble(s), out);
out:
    ls_err_done();
    return st;
}

void ls_session_close(ls_session *session)
{
    ls_session *s = session;

    ls_loader_close(s->data.loader);
    ls_batch_slice_close(s);
    ls_save_close(s);
    ls_decode_close(s->samples.decode);
    ls_pass_close(s->samples.pass);
    ls_local_sgd_session_close(s);
    ls_param_server_session_close(s);
    ls_sdc_compare_close(s);
    ls_sdc_replay_close(s);
    ls_step_close(s->step);
    ls_replica_copy_close(s->recovery.copy);
    drop_state(s);
    ls_packed_weights_close(s->packs);
    ls_dp_close(s->dp);
    ls_model_groups_close(s);
    ls_mesh_choice_release(&s->auto_mesh.choice);
    ls_cp_group_close(s);
    ls_mem_free(s->places);
    ls_mem_free(s->gpu.cards);
    ls_model_release(&s->model);
    ls_model_release(&s->groups.whole);
    ls_corpus_close(s->data.corpus);
    ls_tokenizer_free(s->data.tokenizer);
    ls_profiling_close(s);
    ls_stream_free(s->gpu.side);
    ls_stream_free(s->stream);
    if (!s->args.device)
        ls_device_close(s->device);
    if (s->folder.events_fd >= 0)
        close(s->folder.events_fd);
    ls_file_unlock(s->folder.lock_fd);
    ls_str_release(&s->folder.config);
    ls_str_release(&s->folder.line);
    *s = (ls_session){.folder.lock_fd = -1, .folder.events_fd = -1, .recovery.kept_step = -1};
}
