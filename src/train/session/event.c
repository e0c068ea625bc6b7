/* event.c -- events as JSON lines: one function for each kind, in the order of event.h. */
#include "train/session/event.h"

#include "base/json.h"
#include "config/explain.h"

#include <math.h>

ls_event_preference ls_event_preference_of(ls_preference_kind kind, const double *sums, double n)
{
    bool kto = kind == LS_PREFERENCE_KTO;
    double all = n > 0 ? n : 1, chosen = kto ? sums[LS_PREFERENCE_IS_CHOSEN] : all;
    double rejected = kto ? all - chosen : all;

    chosen = chosen > 0 ? chosen : 1; /* of none the sums are 0 */
    rejected = rejected > 0 ? rejected : 1;
    return (ls_event_preference){.kind = kind,
                                 .chosen = sums[LS_PREFERENCE_CHOSEN] / chosen,
                                 .rejected = sums[LS_PREFERENCE_REJECTED] / rejected,
                                 .accuracy = sums[LS_PREFERENCE_RIGHT] / all,
                                 .logp_chosen = sums[LS_PREFERENCE_LOGP_CHOSEN] / chosen,
                                 .logp_rejected = sums[LS_PREFERENCE_LOGP_REJECTED] / rejected,
                                 .kl = fmax(0, sums[LS_PREFERENCE_KL] / all)};
}

static void put_start(ls_json *j, const ls_event_start *e)
{
    ls_json_put_str(j, "name", e->name);
    ls_json_put_str(j, "out", e->out);
    ls_json_put_str(j, "family", e->family);
    ls_json_put_str(j, "device", e->device);
    ls_json_put_str(j, "kernels", e->kernels);
    ls_json_put_str(j, "reduce", e->reduce);
    ls_json_put_int(j, "parameters", e->parameters);
    ls_json_put_int(j, "trained", e->trained);
    ls_json_put_int(j, "vocab", e->vocab);
    ls_json_put_int(j, "train_tokens", e->train_tokens);
    ls_json_put_int(j, "validation_tokens", e->validation_tokens);
    ls_json_put_int(j, "sequences", e->sequences);
    ls_json_put_int(j, "leaf", e->leaf);
    ls_json_put_int(j, "group", e->group);
    ls_json_put_int(j, "context", e->context);
    ls_json_put_num(j, "flops_per_token", e->flops_per_token);
    ls_json_put_str(j, "recompute", e->recompute.level);
    if (strcmp(e->recompute.level, "none") != 0)
        ls_json_put_int(j, "recompute_blocks", e->recompute.blocks);
    ls_json_put_str(j, "optimizer", e->optimizer);
    ls_json_put_num(j, "lr", e->lr);
    ls_json_put_num(j, "lr_factor", e->lr_factor);
    ls_json_put_int(j, "warmup", e->warmup);
    if (e->warmup_written > 0)
        ls_json_put_int(j, "warmup_written", e->warmup_written);
    ls_json_put_int(j, "ranks", e->ranks);
    ls_json_put_int(j, "zero", e->zero);
    ls_json_put_int(j, "shard", e->shard);
    ls_json_put_int(j, "pp", e->pp);
    ls_json_put_int(j, "tp", e->tp);
    if (e->pp > 1) {
        ls_json_put_str(j, "schedule", e->schedule);
        ls_json_put_int(j, "chunks", e->chunks);
    }
    if (e->cp > 1)
        ls_json_put_int(j, "cp", e->cp);
    ls_json_put_int(j, "nodes", e->nodes);
    if (e->cards > 0)
        ls_json_put_int(j, "cards", e->cards);
    ls_json_put_str(j, "compress", e->compress);
    if (e->collectives) {
        ls_json_put_str(j, "collectives", e->collectives);
        ls_json_put_str(j, "collectives_why", e->collectives_why);
        ls_json_put_str(j, "collectives_axes", e->collectives_axes);
    }
    ls_json_put_str(j, "sync", e->sync);
    ls_json_put_int(j, "first_step", e->first_step);
    if (e->loaded_bytes > 0) {
        ls_json_put_int(j, "loaded_bytes", e->loaded_bytes);
        ls_json_put_num(j, "loaded_s", e->loaded_s);
        ls_json_put_int(j, "loaded_most_bytes", e->loaded_most);
    }
    if (*e->overridden)
        ls_json_put_str(j, "overridden", e->overridden);
    ls_json_put_int(j, "total_steps", e->total_steps);
    ls_json_put_int(j, "epoch_sequences", e->windows);
    if (e->epochs > 0)
        ls_json_put_num(j, "epochs", e->epochs);
    ls_json_key(j, "ledger");
    ls_json_open(j, '{');
    for (int i = 0; i < e->ledger->count; i++)
        if (!e->ledger->items[i].host)
            ls_json_put_int(j, e->ledger->items[i].name, e->ledger->items[i].bytes);
    ls_json_close(j);
    ls_json_put_int(j, "ledger_bytes", ls_ledger_total(e->ledger));
    ls_json_key(j, "settings");
    ls_explain_settings(e->run, j);
}

static void put_rank(ls_json *j, const ls_event_rank *e)
{
    ls_json_put_int(j, "rank", e->rank);
    ls_json_put_int(j, "pid", e->pid);
    ls_json_put_str(j, "host", e->host);
    if (e->card < 0)
        return;
    ls_json_put_int(j, "card", e->card);
    ls_json_put_str(j, "bus_id", e->bus_id);
}

/* By the names that trl gives them. */
static void put_preference(ls_json *j, const ls_event_preference *e)
{
    if (e->kind == LS_PREFERENCE_NONE)
        return;
    ls_json_put_num(j, "rewards/chosen", e->chosen);
    ls_json_put_num(j, "rewards/rejected", e->rejected);
    ls_json_put_num(j, "rewards/margins", e->chosen - e->rejected);
    if (e->kind == LS_PREFERENCE_KTO)
        ls_json_put_num(j, "kl", e->kl);
    else
        ls_json_put_num(j, "rewards/accuracies", e->accuracy);
    ls_json_put_num(j, "logps/chosen", e->logp_chosen);
    ls_json_put_num(j, "logps/rejected", e->logp_rejected);
}

static void put_step(ls_json *j, const ls_event_step *e)
{
    ls_json_put_int(j, "step", e->step);
    ls_json_put_num(j, "loss", e->loss);
    ls_json_put_num(j, "lr", e->lr);
    ls_json_put_num(j, "grad_norm", e->grad_norm);
    ls_json_put_int(j, "tokens", e->tokens);
    ls_json_put_int(j, "sequences", e->sequences);
    ls_json_put_num(j, "epoch", e->epoch);
    ls_json_put_num(j, "tokens_per_s", e->tokens_per_s);
    if (e->loss_scale > 0) {
        ls_json_put_num(j, "loss_scale", e->loss_scale);
        ls_json_put_int(j, "overflows", e->overflows);
    }
    if (e->skipped)
        ls_json_put_bool(j, "skipped", true);
    put_preference(j, &e->preference);
    ls_json_put_num(j, "ms", (double)ls_step_clock_wall_ns(e->clock) / 1e6);
    ls_json_key(j, "split");
    ls_json_open(j, '{');
    for (int i = 0; i < LS_STEP_TIMES; i++)
        ls_json_put_num(j, ls_step_time_names[i], (double)e->clock->parts_ns[i] / 1e6);
    ls_json_close(j);
}

static void put_slices(ls_json *j, const ls_event_balance *e)
{
    ls_json_key(j, "rank_sequences");
    ls_json_open(j, '[');
    for (int r = 0; r < e->ranks; r++)
        ls_json_int(j, e->slices[r].sequences);
    ls_json_close(j);
    ls_json_key(j, "rank_ms_per_leaf");
    ls_json_open(j, '[');
    for (int r = 0; r < e->ranks; r++)
        ls_json_num(j, e->slices[r].ms_per_leaf);
    ls_json_close(j);
}

static void put_summary(ls_json *j, const ls_event_summary *e)
{
    ls_json_put_int(j, "steps", e->steps);
    ls_json_put_int(j, "steps_here", e->steps_here);
    ls_json_put_int(j, "tokens", e->tokens);
    ls_json_put_num(j, "seconds", e->seconds);
    ls_json_put_num(j, "tokens_per_s", e->tokens_per_s);
    ls_json_put_num(j, "loss", e->loss);
    ls_json_put_num(j, "val_loss", e->val_loss);
    ls_json_put_num(j, "mfu", e->mfu);
    ls_json_put_str(j, "mfu_convention",
                    "6 N + 6 L C T per token, 4 for a frozen parameter, of the measured FMA peak");
    ls_json_put_num(j, "peak_flops", e->peak_flops);
    ls_json_put_int(j, "peak_bytes", e->peak_bytes);
    ls_json_put_int(j, "ledger_bytes", e->ledger_bytes);
    ls_json_put_num(j, "start_to_first_step_s", e->start_to_first_step_s);
    if (e->energy_j > 0) { /* else not known */
        ls_json_put_num(j, "energy_j", e->energy_j);
        ls_json_put_num(j, "power_w", e->power_w);
        ls_json_put_num(j, "joules_per_token", e->joules_per_token);
    }
    if (e->balance)
        put_slices(j, e->balance);
    ls_json_put_int(j, "sent_bytes", e->sent_bytes);
    ls_json_put_int(j, "received_bytes", e->received_bytes);
    if (e->exchanges > 0) {
        ls_json_put_int(j, "exchanges", e->exchanges);
        ls_json_put_int(j, "exchange_bytes", e->exchange_bytes);
    }
    if (e->pushes > 0) {
        ls_json_put_int(j, "pushes", e->pushes);
        ls_json_put_int(j, "push_bytes", e->push_bytes);
        ls_json_put_int(j, "ahead", e->ahead);
    }
    if (e->buddy_bytes > 0)
        ls_json_put_int(j, "buddy_bytes", e->buddy_bytes);
    ls_json_put_str(j, "weights_hash", e->weights_hash);
    if (e->best) {
        ls_json_put_str(j, "best", e->best);
        ls_json_put_int(j, "best_step", e->best_step);
        ls_json_put_num(j, "best_val_loss", e->best_loss);
    }
    ls_json_put_str(j, "stopped_by", e->stopped_by);
}

static void put_incident(ls_json *j, const ls_event_incident *e)
{
    const ls_event_recovery *r = e->recovery;

    ls_json_put_int(j, "step", e->step);
    ls_json_put_str(j, "kind", e->kind);
    ls_json_put_str(j, "action", e->action);
    ls_json_put_str(j, "text", e->text);
    if (!r)
        return;
    ls_json_put_int(j, "generation", (int64_t)r->generation);
    ls_json_put_int(j, "ranks", r->ranks);
    ls_json_put_int(j, "restarted", r->restarted);
    ls_json_put_int(j, "lost", r->lost);
    ls_json_put_int(j, "joined", r->joined);
    ls_json_put_str(j, "source", r->source);
    ls_json_put_str(j, "from", r->from);
    ls_json_put_int(j, "redone", r->redone);
    ls_json_put_num(j, "detection_ms", r->detection_ms);
    ls_json_put_num(j, "seconds", r->seconds);
}

static const char *const names[] = {
    [LS_EVENT_MESH] = "mesh",
    [LS_EVENT_START] = "start",
    [LS_EVENT_RANK] = "rank",
    [LS_EVENT_STEP] = "step",
    [LS_EVENT_EVAL] = "eval",
    [LS_EVENT_SAMPLE] = "sample",
    [LS_EVENT_CHECKPOINT] = "checkpoint",
    [LS_EVENT_INCIDENT] = "incident",
    [LS_EVENT_PROFILE] = "profile",
    [LS_EVENT_BALANCE] = "balance",
    [LS_EVENT_SUMMARY] = "summary",
};

void ls_event_json(const ls_event *event, ls_str *line_out)
{
    ls_json j;

    ls_json_begin(&j, line_out);
    ls_json_open(&j, '{');
    ls_json_put_str(&j, "event", names[event->kind]);
    switch (event->kind) {
    case LS_EVENT_MESH:
        ls_mesh_choice_json(event->mesh.choice, &j);
        break;
    case LS_EVENT_START:
        put_start(&j, &event->start);
        break;
    case LS_EVENT_RANK:
        put_rank(&j, &event->rank);
        break;
    case LS_EVENT_STEP:
        put_step(&j, &event->step);
        break;
    case LS_EVENT_EVAL:
        ls_json_put_int(&j, "step", event->eval.step);
        ls_json_put_num(&j, "val_loss", event->eval.val_loss);
        ls_json_put_int(&j, "sequences", event->eval.sequences);
        if (event->eval.best_step >= 0) {
            ls_json_put_int(&j, "best_step", event->eval.best_step);
            ls_json_put_int(&j, "since_best", event->eval.since_best);
        }
        put_preference(&j, &event->eval.preference);
        break;
    case LS_EVENT_SAMPLE:
        ls_json_put_int(&j, "step", event->sample.step);
        ls_json_put_str(&j, "prompt", event->sample.prompt);
        ls_json_key(&j, "text");
        ls_json_text(&j, event->sample.text, event->sample.text_len);
        break;
    case LS_EVENT_CHECKPOINT:
        ls_json_put_int(&j, "step", event->checkpoint.step);
        ls_json_put_str(&j, "path", event->checkpoint.path);
        ls_json_put_int(&j, "bytes_written", event->checkpoint.bytes_written);
        ls_json_put_int(&j, "bytes_reused", event->checkpoint.bytes_reused);
        ls_json_put_num(&j, "seconds", event->checkpoint.seconds);
        ls_json_put_num(&j, "gb_per_s", ls_event_rate(&event->checkpoint));
        ls_json_put_num(&j, "waited_ms", event->checkpoint.waited_ms);
        if (event->checkpoint.writers > 1) {
            ls_json_put_int(&j, "writers", event->checkpoint.writers);
            ls_json_put_int(&j, "most_bytes", event->checkpoint.most_bytes);
        }
        break;
    case LS_EVENT_INCIDENT:
        put_incident(&j, &event->incident);
        break;
    case LS_EVENT_BALANCE:
        ls_json_put_int(&j, "step", event->balance.step);
        ls_json_put_int(&j, "from_step", event->balance.from_step);
        put_slices(&j, &event->balance);
        break;
    case LS_EVENT_PROFILE:
        ls_json_put_int(&j, "step", event->profile.step);
        ls_json_put_int(&j, "steps", event->profile.steps);
        ls_json_put_num(&j, "ms", event->profile.step_ms);
        ls_json_put_int(&j, "dropped", event->profile.dropped);
        ls_json_put_str(&j, "path", event->profile.path);
        break;
    case LS_EVENT_SUMMARY:
        put_summary(&j, &event->summary);
        break;
    }
    if (event->time_ms > 0)
        ls_json_put_num(&j, "time", (double)event->time_ms / 1e3);
    ls_json_close(&j);
}
