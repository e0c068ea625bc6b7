/* session_impl.h -- the parts of opening a session (train/session_open.c), each with its file. */
#pragma once
#include "base/time.h"
#include "train/session/session.h"

LS_C_BEGIN

/* Ranks wait this long for one that is alive and does not come; a dead one is noticed at once. */
enum { LS_SESSION_MEET_S = 600 };
static inline int64_t ls_session_deadline(void)
{
    return ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S;
}

/* The folder for what does not lie in memory. */
static inline const char *ls_session_offload_to(const ls_session *s)
{
    return s->run->device.offload_to ? s->run->device.offload_to : s->run->out;
}

/* Whether this rank has the run folder. */
static inline bool ls_session_is_first(const ls_session *s)
{
    return s->mesh.rank == 0;
}

/* --- session_mesh.c --- */

/* The mesh of this view, the places of its ranks, and the meshes of groups. */
ls_status ls_session_open_mesh(ls_session *session);

/* --- session_data.c --- */

ls_status ls_session_open_tokenizer(ls_session *session);

/* The first rank prepares the data, then the others find it prepared. LS_EUSAGE, LS_EDATA: this rank
 * has other settings, or reads other text, than the first. */
ls_status ls_session_open_data(ls_session *session);

/* The loader of this rank's sequences from step_number on. */
ls_loader_args ls_session_loader_args(ls_session *session);

/* Copy what the run needs of other folders, so that it can be used when they are gone. */
ls_status ls_session_keep_copies(const ls_session *session);

/* --- session_memory.c --- */

/* What the ledger is made of; kept: bytes of a state that is in memory already. */
ls_memory_args ls_session_memory(ls_session *session, const ls_device_info *info, int64_t kept);

/* Choose what the run file leaves open, so that the run fits into free_bytes: into session->fitted. By
 * all ranks. */
ls_status ls_session_fit_run(ls_session *session, ls_memory_args *memory, int64_t free_bytes);

/* --- session_device.c --- */

/* Whether the device that is asked for is there; and open it, its kernels and streams. */
ls_status ls_session_check_device(ls_session *session);
ls_status ls_session_open_device(ls_session *session);

/* Ordered bf16: ranks on unlike CPUs take products that all have. By all ranks of a view. */
ls_status ls_session_agree_on_bf16(ls_session *session);

/* Each rank reports which card it uses and how much of it is free, before any rank takes of it; and
 * what that leaves for each. */
ls_status ls_session_meet_cards(ls_session *session, const ls_device_info *info);
int64_t ls_session_share_of_card(const ls_session *session);

/* The provider of collectives of device memory, and why, by all ranks: exchange.device. */
ls_status ls_session_choose_collectives(ls_session *session);

/* For a step: the provider, or NULL: what ranks exchange goes through the host's memory. */
const char *ls_session_collectives(const ls_session *session);

/* --- session_weights.c --- */

/* Of a run that has no checkpoints: whether the folder it imports holds this model. Sizes come from
 * its config.json, so this is to be asked before any memory is taken for them. */
ls_status ls_session_check_import(const ls_session *session);

/* The first weights: of the imported model, and fresh ones for what it lacks. No second copy of
 * them ever exists. */
ls_status ls_session_start_weights(ls_session *session);

/* --- session_report.c --- */

/* The events with which a run begins (ranks, device, model, data, memory), and warnings. All ranks. */
ls_status ls_session_report(ls_session *session);

LS_C_END
