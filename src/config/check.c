/* check.c -- values of auto, and contradictions between options.
 *
 * First every auto that follows from other options is computed, then the final values are checked
 * for contradictions, so that a default and a given value can contradict each other and the message
 * still names both. A check says which two keys disagree, their values, where each was written and
 * what would be right. Those between options of ranks stand in check_mesh.c, those between options
 * and files in check_files.c. */
#include "config/check.h"

#include "config/check_impl.h"
#include "config/model_families.h"
#include "config/ramp.h"
#include "config/value.h"
#include <math.h>

/* Rows of one matrix product beyond which a CPU gains nothing, while activations keep growing. */
enum {
    CALL_TOKENS = 4096,
    CALL_TOKENS_GPU = 65536,
    LEAF_MOST = 8,
    DEFAULT_STEPS = 1000,
    WARMUP_MOST = 100,
    WARMUP_PART = 10, /* of a run that was shortened */
    MINUTES = 10
};

/* Much less than for new models: the answers are already likely. */
static const double PREFERENCE_LR = 1e-6;

static const ls_option *row_of(const char *key)
{
    const ls_option *row = ls_option_find(key);

    LS_BUG_IF(!row, "no option \"%s\"", key);
    return row;
}

const ls_run_origin *ls_check_origin(const ls_run *run, const char *key)
{
    return ls_explain_origin(run, row_of(key));
}

/* --- autos ------------------------------------------------------------------------------------ */

int64_t ls_check_horizon(const ls_run *run)
{
    int64_t T = run->model.context;
    int64_t by_tokens = ls_ramp_steps(run, run->train.tokens / T + (run->train.tokens % T != 0));

    if (run->train.steps == 0)
        return by_tokens;
    return by_tokens ? ls_min_i64(by_tokens, run->train.steps) : run->train.steps;
}

/* Steps of this many epochs. The product is rounded down by less than a sample, so that 0.1 of 30 windows
 * are 3 samples, not 4. */
static int64_t epoch_steps(const ls_run *run, int64_t windows)
{
    double samples = ceil(run->train.epochs * (double)windows * (1 - 1e-12));

    return ls_ramp_steps(run, (int64_t)fmin(samples, LS_OPTION_BIG));
}

static bool take_auto(ls_run *run, const char *key)
{
    const ls_option *row = row_of(key);

    if (!ls_value_is_auto(row, run))
        return false;
    run->origins[ls_option_index(row)].automatic = true;
    return true;
}

ls_status ls_check_names(ls_run *run)
{
    if (take_auto(run, "name")) {
        const char *slash = strrchr(run->path, '/');
        const char *base = run->path[0] == '<' ? "run" : slash ? slash + 1 : run->path;
        char *name = ls_arena_strdup(&run->arena, base);
        if (!name)
            return LS_ENOMEM;
        char *dot = strrchr(name, '.');
        if (dot && dot != name && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
            *dot = '\0';
        run->name = name;
    }
    if (take_auto(run, "out")) {
        run->out = ls_arena_printf(&run->arena, "runs/%s", run->name);
        if (!run->out)
            return LS_ENOMEM;
    }
    return LS_OK;
}

static ls_status check_rate(const ls_run *run);

/* All leaves when they fit a call, otherwise the largest power of two that does. */
static int64_t pick_group(const ls_run *run)
{
    int64_t leaves = run->batch.sequences / run->batch.leaf;
    int64_t tokens = run->batch.leaf * run->model.context;
    int64_t most = run->device.kind == LS_DEVICE_CUDA ? CALL_TOKENS_GPU : CALL_TOKENS;
    int64_t group = 1;

    if (run->mesh.pp > 1) /* many small calls fill a pipeline */
        return 1;
    if (leaves * tokens <= most)
        return leaves;
    while (group * 2 < leaves && group * 2 * tokens <= most)
        group *= 2;
    return group;
}

static void resolve_batch(ls_run *run)
{
    int64_t all = run->batch.sequences, from = run->batch.ramp_from;

    if (take_auto(run, "batch.leaf")) {
        run->batch.leaf = ls_min_i64(LEAF_MOST, all);
        while (all % run->batch.leaf || (from != LS_RUN_AUTO && from % run->batch.leaf))
            run->batch.leaf--;
    }
    if (run->batch.ramp > 0 && take_auto(run, "batch.ramp_from"))
        run->batch.ramp_from = run->batch.leaf;
    if (take_auto(run, "batch.group"))
        run->batch.group = pick_group(run);
}

static int64_t pick_chunks(const ls_run *run)
{
    return run->mesh.schedule == LS_PP_INTERLEAVED ? 2 : 1;
}

static void resolve_mesh(ls_run *run)
{
    if (take_auto(run, "mesh.chunks"))
        run->mesh.chunks = pick_chunks(run);
}

void ls_check_follow(ls_run *run)
{
    if (ls_check_origin(run, "batch.group")->automatic)
        run->batch.group = pick_group(run);
    if (ls_check_origin(run, "mesh.chunks")->automatic)
        run->mesh.chunks = pick_chunks(run);
}

/* What the optimizer settles. */
static void resolve_optimizer(ls_run *run)
{
    const ls_optimizer_facts *facts = ls_optimizer_of(run->train.optimizer);

    if (take_auto(run, "train.lr"))
        run->train.lr = run->train.objective == LS_OBJECTIVE_LM ? facts->lr : PREFERENCE_LR;
    if (take_auto(run, "train.beta2"))
        run->train.beta2 = facts->beta2;
    if (take_auto(run, "train.weight_decay"))
        run->train.weight_decay = facts->weight_decay;
    if (take_auto(run, "train.momentum"))
        run->train.momentum = facts->momentum;
}

/* What the family settles. */
static void resolve_model(ls_run *run)
{
    ls_run_model *m = &run->model;
    const ls_family_row *row = ls_families_row(m->family);

    if (take_auto(run, "model.kv_heads"))
        m->kv_heads = m->heads;
    if (take_auto(run, "model.head_size"))
        m->head_size = m->width / m->heads;
    if (take_auto(run, "model.mlp"))
        m->mlp = ls_families_is_gated(row) ? ls_round_up((8 * m->width + 2) / 3, 64) : 4 * m->width;
    if (take_auto(run, "model.norm_eps"))
        m->norm_eps = row->layer_norm ? 1e-5 : 1e-6;
    if (take_auto(run, "model.positions"))
        m->positions = ls_families_learns_positions(row) ? m->context : 0;
    if (m->bias == LS_BIAS_AUTO) {
        m->bias = row->bias;
        run->origins[ls_option_index(row_of("model.bias"))].automatic = true;
    }
    if (m->tied == LS_TIED_AUTO) {
        m->tied = LS_TIED_YES;
        run->origins[ls_option_index(row_of("model.tied"))].automatic = true;
    }
}

/* A model brings its tokenizer along. */
static ls_status resolve_tokenizer(ls_run *run)
{
    run->data.tokenizer = "bytes";
    if (*run->model.import)
        run->data.tokenizer = ls_arena_strdup(&run->arena, run->model.import);
    return run->data.tokenizer ? LS_OK : LS_ENOMEM;
}

/* Whether something else than train.steps ends the run. */
static bool has_other_end(const ls_run *run)
{
    return run->train.tokens || run->train.epochs > 0 || run->train.seconds > 0 ||
           run->train.target_loss > 0;
}

/* The option that ends the run first. */
static const char *horizon_key(const ls_run *run)
{
    if (run->train.epochs > 0)
        return "train.epochs";
    return run->train.steps && ls_check_horizon(run) == run->train.steps ? "train.steps"
                                                                         : "train.tokens";
}

/* What the length of the run overrules: --set train.steps=30 makes a short run of any run file, whose
 * warm-up and decay were chosen for its own length. Where both stand in one place it is a mistake, which
 * check_rate() reports. */
static void shorten(ls_run *run)
{
    int64_t horizon = ls_check_horizon(run);
    ls_run_source end = horizon ? ls_check_origin(run, horizon_key(run))->source : LS_RUN_DEFAULT;

    if (run->train.warmup > horizon && end > ls_check_origin(run, "train.warmup")->source) {
        run->train.warmup_written = run->train.warmup;
        run->train.warmup = horizon / WARMUP_PART;
    }
    if (run->train.schedule == LS_LR_SCHEDULE_WSD &&
        run->train.warmup + run->train.decay > horizon &&
        end > ls_check_origin(run, "train.decay")->source) {
        run->train.decay_written = run->train.decay;
        run->train.decay = ls_min_i64(horizon / 5, horizon - run->train.warmup);
    }
}

/* "run.yaml:6:50, shortened from 100" */
static ls_status note_shorter(ls_run *run, const char *key, int64_t written)
{
    ls_run_origin *origin = &run->origins[ls_option_index(row_of(key))];

    if (written == 0)
        return LS_OK;
    origin->where =
        ls_arena_printf(&run->arena, "%s, shortened from %lld", origin->where, (long long)written);
    return origin->where ? LS_OK : LS_ENOMEM;
}

/* "run.yaml:6:50, overruled" */
static ls_status note_overruled(ls_run *run, const char *key)
{
    ls_run_origin *origin = &run->origins[ls_option_index(row_of(key))];

    origin->where = ls_arena_printf(&run->arena, "%s, overruled", origin->where);
    return origin->where ? LS_OK : LS_ENOMEM;
}

/* What follows from the number of steps, where that is known. */
static void resolve_length(ls_run *run)
{
    if (run->train.warmup == LS_RUN_AUTO)
        run->train.warmup = ls_min_i64(ls_check_horizon(run) / 20, WARMUP_MOST);
    if (run->train.decay == LS_RUN_AUTO)
        run->train.decay = ls_check_horizon(run) / 5;
    shorten(run);
}

ls_status ls_check_epochs(ls_run *run, int64_t windows)
{
    run->train.steps = epoch_steps(run, windows);
    if (ls_ramp_overflows(run, run->train.steps))
        return ls_fail(LS_EUSAGE,
                       "%s: train.epochs is %g, which are more steps than can be counted",
                       ls_check_origin(run, "train.epochs")->where, run->train.epochs);
    resolve_length(run);
    ls_status st = check_rate(run);
    if (st != LS_OK)
        ls_err_hint("%g epochs are %lld steps with this data.", run->train.epochs,
                    (long long)run->train.steps);
    return st;
}

/* Of train.epochs and another length the one that was written closer to the command counts:
 * --set train.steps=30 makes a short run of a file with epochs, too. Of one place both are a mistake, which
 * check_end() reports. */
static ls_status choose_length(ls_run *run)
{
    int64_t *const counts[] = {&run->train.steps, &run->train.tokens};
    static const char *const keys[] = {"train.steps", "train.tokens"};
    ls_status st = LS_OK;

    for (size_t i = 0; i < LS_COUNT(keys) && run->train.epochs > 0; i++) {
        ls_run_source count = ls_check_origin(run, keys[i])->source;
        ls_run_source epochs = ls_check_origin(run, "train.epochs")->source;
        if (*counts[i] <= 0 || count == epochs)
            continue;
        LS_TRY(st, note_overruled(run, count > epochs ? "train.epochs" : keys[i]), out);
        if (count > epochs)
            run->train.epochs = 0;
        else
            *counts[i] = 0;
    }
out:
    return st;
}

ls_status ls_check_resolve(ls_run *run)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_check_names(run), out);
    resolve_model(run);
    if (take_auto(run, "data.tokenizer"))
        LS_TRY(st, resolve_tokenizer(run), out);
    if (take_auto(run, "lora.alpha"))
        run->lora.alpha = 2 * (double)run->lora.rank;
    resolve_batch(run);
    resolve_mesh(run);
    resolve_optimizer(run);
    LS_TRY(st, choose_length(run), out);
    if (take_auto(run, "train.steps"))
        run->train.steps = has_other_end(run) ? 0 : DEFAULT_STEPS;
    if (take_auto(run, "train.min_lr"))
        run->train.min_lr = run->train.lr / 10;
    if (take_auto(run, "checkpoint.minutes"))
        run->checkpoint.minutes = run->checkpoint.every > 0 ? MINUTES : 0;
    take_auto(run, "train.warmup");
    take_auto(run, "train.decay");
    if (run->train.epochs > 0) /* how many steps that is, only the data says: ls_check_epochs() */
        goto out;
    resolve_length(run);
    LS_TRY(st, note_shorter(run, "train.warmup", run->train.warmup_written), out);
    LS_TRY(st, note_shorter(run, "train.decay", run->train.decay_written), out);
out:
    return st;
}

/* --- contradictions --------------------------------------------------------------------------- */

/* "key is value", with a long value shortened. */
static void say(const ls_run *run, const char *key, char *out, size_t cap)
{
    ls_str text;

    ls_str_init(&text);
    ls_value_print(row_of(key), run, &text);
    if (text.len > 40)
        snprintf(out, cap, "%s is %.36s...", key, text.p);
    else
        snprintf(out, cap, "%s is %s", key, text.p);
    ls_str_release(&text);
}

ls_status ls_check_clash(const ls_run *run, const char *a, const char *b, const char *why)
{
    char a_is[128], b_is[128];
    const ls_run_origin *first = ls_check_origin(run, a), *second = ls_check_origin(run, b);

    if (first->source == LS_RUN_DEFAULT && second->source != LS_RUN_DEFAULT) {
        const char *key = a;
        const ls_run_origin *origin = first;
        a = b, b = key;
        first = second, second = origin;
    }
    say(run, a, a_is, sizeof a_is);
    say(run, b, b_is, sizeof b_is);
    return ls_fail(LS_EUSAGE, "%s: %s but %s (%s): %s",
                   first->source == LS_RUN_DEFAULT ? run->path : first->where, a_is, b_is,
                   second->where, why);
}

ls_status ls_check_rows(const ls_run *run, const ls_check_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].clash)
            return ls_check_clash(run, rows[i].a, rows[i].b, rows[i].why);
    return LS_OK;
}

ls_status ls_check_missing(const ls_run *run, const char *key, const char *what)
{
    const char *where = NULL;

    for (int i = 0; i < ls_option_section_count; i++)
        if (ls_option_in(row_of(key), ls_option_sections[i].name))
            where = run->sections[i];
    if (where)
        return ls_fail(LS_EUSAGE, "%s: %s %s", where, key, what);
    return ls_fail(LS_EUSAGE, "%s:1:1: %s %s", run->path, key, what);
}

static ls_status check_name(const ls_run *run)
{
    const char *where = ls_check_origin(run, "name")->where;
    char quoted[64];
    bool bad = !*run->name || run->name[0] == '.' || strlen(run->name) > 200;

    for (const char *p = run->name; *p; p++)
        bad |= *p == '/' || (unsigned char)*p < 0x20 || *p == 0x7f;
    if (bad) {
        ls_value_quote(run->name, quoted, sizeof quoted);
        ls_fail(LS_EUSAGE, "%s: name %s cannot name a folder",
                ls_check_origin(run, "name")->automatic ? run->path : where, quoted);
        ls_err_hint("Use letters, digits, dashes and underscores, or set name in the run file.");
        return LS_EUSAGE;
    }
    if (!*run->out)
        return ls_fail(LS_EUSAGE, "%s: out is empty", ls_check_origin(run, "out")->where);
    return LS_OK;
}

/* The same with the name of a family in the reason. */
static ls_status LS_PRINTF(4, 5)
    clash(const ls_run *run, const char *key, const char *other, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return ls_check_clash(run, key, other, text);
}

/* Settings that a family cannot have. */
static ls_status check_family(const ls_run *run)
{
    const ls_run_model *m = &run->model;
    const ls_family_row *row = ls_families_row(m->family);
    bool learned = ls_families_learns_positions(row);

    if (row->kv_is_heads && m->kv_heads != m->heads)
        return clash(run, "model.kv_heads", "model.family",
                     "%s has one key/value head for each head", row->name);
    if (!learned && m->positions > 0)
        return clash(run, "model.positions", "model.family", "the positions of %s are rotary",
                     row->name);
    if (learned && m->positions < m->context)
        return ls_check_clash(run, "model.context", "model.positions",
                              "a sequence needs a learned position for each of its tokens");
    if (learned && m->rope_scaling != LS_ROPE_PLAIN)
        return clash(run, "model.rope_scaling", "model.family", "%s learns its positions",
                     row->name);
    if ((double)m->head_size > ls_option_find("model.head_size")->most) { /* worked out */
        ls_status st =
            ls_check_clash(run, "model.width", "model.heads", "a head has at most 1024 values");
        ls_err_hint("Use more heads.");
        return st;
    }
    if (!learned && m->head_size % 2) {
        ls_status st = ls_check_clash(run, "model.head_size", "model.family",
                                      "rotary positions rotate pairs of elements");
        ls_err_hint(
            "Choose model.width and model.heads so that each head has an even part of the width.");
        return st;
    }
    if (!learned && row->head_sizes == LS_HEADS_FILL && m->heads * m->head_size != m->width)
        return clash(run, "model.head_size", "model.width", "the heads of %s fill its width",
                     row->name);
    if (row->post_norm && m->dropout > 0)
        return clash(run, "model.dropout", "model.family",
                     "the norms of %s stand behind its layers, where nothing can be dropped",
                     row->name);
    if (m->heads % m->kv_heads)
        return ls_check_clash(run, "model.kv_heads", "model.heads", "they must divide the heads");
    if (m->rope_scaling == LS_ROPE_LLAMA3 && m->rope_low >= m->rope_high)
        return ls_check_clash(run, "model.rope_low", "model.rope_high", "low must be below high");
    if (m->rope_scaling == LS_ROPE_PLAIN && m->rope_factor != 1)
        return ls_check_clash(run, "model.rope_factor", "model.rope_scaling",
                              "there is nothing to scale");
    return LS_OK;
}

/* What means something only where there are experts must not be set for nothing. */
static ls_status check_no_experts(const ls_run *run)
{
    static const double balance_default = 0.001;
    const ls_run_model *m = &run->model;
    double balance = run->train.balance_loss; /* 0 is true of every model without experts */
    const char *key = m->experts != 0                                      ? "model.experts"
                      : m->experts_used != 2                               ? "model.experts_used"
                      : !m->experts_norm                                   ? "model.experts_norm"
                      : balance > 0 && fabs(balance - balance_default) > 0 ? "train.balance_loss"
                      : run->train.z_loss > 0                              ? "train.z_loss"
                                                                           : NULL;
    char names[128];

    if (!key)
        return LS_OK;
    ls_families_list(true, names, sizeof names);
    return clash(run, key, "model.family", "only %s have experts", names);
}

static ls_status check_experts(const ls_run *run)
{
    const ls_run_model *m = &run->model;
    const ls_family_row *row = ls_families_row(m->family);

    if (!ls_families_is_mixture(m->family))
        return check_no_experts(run);
    if (m->experts < 1)
        return ls_check_clash(run, "model.experts", "model.family", "it needs experts");
    if (m->experts_used > m->experts)
        return ls_check_clash(run, "model.experts_used", "model.experts",
                              "a token cannot go to more experts than there are");
    if (!row->experts.norm_key && !m->experts_norm)
        return clash(run, "model.experts_norm", "model.family",
                     "%s divides the weights of experts by their sum", row->name);
    if (m->bias == LS_BIAS_ALL || m->bias == LS_BIAS_MLP)
        return ls_check_clash(run, "model.bias", "model.experts", "experts have no biases");
    if (run->precision == LS_PRECISION_FP8)
        return ls_check_clash(run, "precision", "model.experts",
                              "the products of experts are made in bf16 or wider");
    return LS_OK;
}

static ls_status check_tuning(const ls_run *run)
{
    /* A rank of 0 that was written switches off what stays in the file; one that was forgotten
     * would train all weights instead. */
    bool forgotten =
        run->lora.rank == 0 && ls_check_origin(run, "lora.rank")->source == LS_RUN_DEFAULT;
    bool dora = run->lora.rank > 0 && run->lora.dora;

    const ls_check_row rows[] = {
        {forgotten && run->lora.alpha != 0, "lora.alpha", "lora.rank",
         "without a rank there is no LoRA"},
        {forgotten && run->lora.targets.count, "lora.targets", "lora.rank",
         "without a rank there is no LoRA"},
        {forgotten && run->lora.dora, "lora.dora", "lora.rank", "without a rank there is no LoRA"},
        {dora && run->device.kind == LS_DEVICE_CUDA, "lora.dora", "device.kind",
         "DoRA is built for CPUs only; LoRA trains on GPUs"},
        {dora && run->mesh.tp > 1, "lora.dora", "mesh.tp",
         "the length of an output needs its whole row, of which ranks would have parts"},
        {dora && (run->precision == LS_PRECISION_FP16 || run->precision == LS_PRECISION_FP8),
         "lora.dora", "precision", "DoRA computes in fp32 and bf16"},
        {run->lora.rank && !*run->model.import, "lora.rank", "model.import",
         "there must be a model to fine-tune"},
        {run->lora.rank && run->train.freeze.count, "lora.rank", "train.freeze",
         "with LoRA everything else is frozen"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

static ls_status check_preference(const ls_run *run)
{
    const ls_run_preference *p = &run->preference;
    ls_objective objective = run->train.objective;
    bool lm = objective == LS_OBJECTIVE_LM, kto = objective == LS_OBJECTIVE_KTO;
    const char *const only_kto = "only kto has desirable and undesirable answers";
    const ls_check_row unread[] = {
        {lm && fabs(p->beta - 0.1) > 0, "preference.beta", "train.objective",
         "only dpo, orpo and kto learn preferences"},
        {objective != LS_OBJECTIVE_DPO && p->label_smoothing > 0, "preference.label_smoothing",
         "train.objective", "only dpo can doubt its pairs"},
        {!kto && fabs(p->desirable_weight - 1) > 0, "preference.desirable_weight",
         "train.objective", only_kto},
        {!kto && fabs(p->undesirable_weight - 1) > 0, "preference.undesirable_weight",
         "train.objective", only_kto},
    };
    ls_status st = ls_check_rows(run, unread, LS_COUNT(unread));

    if (st != LS_OK || lm)
        return st;
    const ls_check_row rows[] = {
        {objective != LS_OBJECTIVE_ORPO && !*run->model.import, "train.objective", "model.import",
         "there must be a model to compare with"},
        {kto && (run->mesh.pp > 1 || run->mesh.ep > 1 || run->mesh.zero == 3), "train.objective",
         run->mesh.pp > 1   ? "mesh.pp"
         : run->mesh.ep > 1 ? "mesh.ep"
                            : "mesh.zero",
         "the forward pass that kto begins a step with is not built for it"},
        {run->data.shards.count > 0, "data.shards", "train.objective",
         "shards hold no pairs; name the .jsonl files in data.text"},
        {run->mesh.cp > 1, "mesh.cp", "train.objective",
         "the log-probability of an answer is a sum over its whole sequence"},
        {run->sync != LS_SYNC_ALLREDUCE, "sync", "train.objective",
         "workers that train by themselves are not built for preferences"},
        {run->model.experts && run->train.balance_loss > 0, "train.balance_loss", "train.objective",
         "losses of routers are weighed by tokens, not by pairs; set it to 0"},
        {run->model.experts && run->train.z_loss > 0, "train.z_loss", "train.objective",
         "losses of routers are weighed by tokens, not by pairs; set it to 0"},
    };
    return ls_check_rows(run, rows, LS_COUNT(rows));
}

static ls_status check_graphs(const ls_run *run)
{
    if (run->device.graphs == LS_GRAPHS_ON && run->device.kind != LS_DEVICE_CUDA)
        return ls_check_clash(run, "device.graphs", "device.kind",
                              "only GPUs replay recorded work");
    return LS_OK;
}

/* Loss scaling: code that keeps gradients from step to step would have to know the scale of
 * each. */
static ls_status check_fp16(const ls_run *run)
{
    int64_t scale = run->train.loss_scale;

    if (scale & (scale - 1)) {
        ls_status st = ls_fail(LS_EUSAGE, "%s: train.loss_scale is %lld, which is no power of two",
                               ls_check_origin(run, "train.loss_scale")->where, (long long)scale);
        ls_err_hint("Other factors would cause rounding; most runs begin with 65536.");
        return st;
    }
    if (run->precision != LS_PRECISION_FP16)
        return LS_OK;
    if (run->device.kind != LS_DEVICE_CUDA && run->device.isa != LS_ISA_REFERENCE)
        return ls_check_clash(run, "precision", "device.kind",
                              "the CPU computes in fp16 only with device.isa: reference, slowly");
    if (run->exchange.compress != LS_COMPRESS_NONE)
        return ls_check_clash(
            run, "precision", "exchange.compress",
            "the error that compression carries to the next step would have another loss scale");
    if (run->sync != LS_SYNC_ALLREDUCE)
        return ls_check_clash(run, "precision", "sync", "each rank would have its own loss scale");
    return LS_OK;
}

static ls_status check_precision(const ls_run *run)
{
    if (run->train.rounding == LS_ROUND_STOCHASTIC && run->precision != LS_PRECISION_BF16 &&
        run->precision != LS_PRECISION_FP8)
        return ls_check_clash(run, "train.rounding", "precision", "only bf16 weights are rounded");
    if (run->precision == LS_PRECISION_TF32 && run->device.kind != LS_DEVICE_CUDA)
        return ls_check_clash(
            run, "precision", "device.kind",
            "only GPUs multiply in tf32; a CPU does not get faster than fp32 by it");
    if (run->precision != LS_PRECISION_FP8)
        return check_fp16(run);
    if (run->device.kind != LS_DEVICE_CUDA)
        return ls_check_clash(run, "precision", "device.kind", "only GPUs multiply in fp8");
    if (run->train.reduce == LS_REDUCE_ORDERED)
        return ls_check_clash(run, "precision", "train.reduce",
                              "the scales of fp8 depend on how sequences are grouped into calls; "
                              "fast does not promise equal bits");
    return LS_OK;
}

static ls_status check_recompute(const ls_run *run)
{
    ls_recompute level = run->train.recompute;

    if (run->train.recompute_blocks == LS_RUN_AUTO)
        return LS_OK;
    if (level == LS_RECOMPUTE_NONE || level == LS_RECOMPUTE_AUTO)
        return ls_check_clash(run, "train.recompute_blocks", "train.recompute",
                              "it limits selective and full only");
    if (run->train.recompute_blocks > run->model.layers)
        return ls_check_clash(run, "train.recompute_blocks", "model.layers",
                              "the model has fewer blocks");
    return LS_OK;
}

/* What the optimizer does not read must not be set for nothing. */
static ls_status check_optimizer(const ls_run *run)
{
    const ls_optimizer_facts *facts = ls_optimizer_of(run->train.optimizer);
    unsigned reads = facts->reads;
    const ls_check_row rows[] = {
        {facts->reach == LS_REACH_MATRIX && run->lora.rank > 0, "train.optimizer", "lora.rank",
         "muon updates the matrices of blocks, which LoRA freezes"},
        {!(reads & LS_READS_BETAS) && fabs(run->train.beta1 - LS_OPTIMIZER_BETA1) > 0,
         "train.beta1", "train.optimizer", "this optimizer keeps no such mean"},
        {!(reads & LS_READS_BETAS) && fabs(run->train.beta2 - facts->beta2) > 0, "train.beta2",
         "train.optimizer", "this optimizer keeps no such mean"},
        {!(reads & LS_READS_EPS) && fabs(run->train.eps - LS_OPTIMIZER_EPS) > 0, "train.eps",
         "train.optimizer", "this optimizer has no divisor"},
        {!(reads & LS_READS_MOMENTUM) && fabs(run->train.momentum - facts->momentum) > 0,
         "train.momentum", "train.optimizer", "this optimizer has no momentum"},
        {!(reads & LS_READS_NESTEROV) && !run->train.nesterov, "train.nesterov", "train.optimizer",
         "only sgd can do without it"},
        {!(reads & LS_READS_ADAMW_LR) && run->train.adamw_lr > 0, "train.adamw_lr",
         "train.optimizer",
         "only muon leaves parameters to AdamW; train.lr is the rate of all others"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

static ls_status check_model(const ls_run *run)
{
    ls_status st;
    int64_t heads = run->model.heads;

    if (run->model.width % heads == 0 || !ls_check_origin(run, "model.head_size")->automatic) {
        st = check_experts(run);
        return st == LS_OK ? check_family(run) : st;
    }
    st = ls_check_clash(run, "model.width", "model.heads", "the heads must divide the width");
    if (run->model.width < heads)
        ls_err_hint("A width of %lld fits %lld heads.", (long long)heads, (long long)heads);
    else
        ls_err_hint("A width of %lld or %lld fits %lld heads.",
                    (long long)(run->model.width / heads * heads),
                    (long long)((run->model.width / heads + 1) * heads), (long long)heads);
    return st;
}

static void hint_divisors(int64_t n)
{
    ls_str list;
    int shown = 0;

    ls_str_init(&list);
    for (int64_t d = 1; d <= n && shown < 16; d++)
        if (n % d == 0)
            ls_str_printf(&list, "%s%lld", shown++ ? ", " : "", (long long)d);
    ls_err_hint("Leaves that divide %lld: %s%s.", (long long)n, list.p,
                shown == 16 ? " and more" : "");
    ls_str_release(&list);
}

static ls_status check_ramp(const ls_run *run)
{
    int64_t from = run->batch.ramp_from, leaf = run->batch.leaf;
    ls_status st;

    /* A ramp of 0 that was written switches off what stays in the file. */
    if (run->batch.ramp == 0)
        return ls_check_origin(run, "batch.ramp")->source == LS_RUN_DEFAULT && from != LS_RUN_AUTO
                   ? ls_check_clash(run, "batch.ramp_from", "batch.ramp", "a ramp must have steps")
                   : LS_OK;
    if (from > run->batch.sequences)
        return ls_check_clash(run, "batch.ramp_from", "batch.sequences", "the batch can only grow");
    if (from % leaf == 0)
        return LS_OK;
    st = ls_check_clash(run, "batch.ramp_from", "batch.leaf", "a ramp begins with whole leaves");
    ls_err_hint("Take batch.ramp_from: %lld, or another leaf.",
                (long long)ls_min_i64(run->batch.sequences, (from / leaf + 1) * leaf));
    return st;
}

static ls_status check_batch(const ls_run *run)
{
    int64_t leaves, group = run->batch.group;
    ls_status st;

    if (run->batch.sequences % run->batch.leaf) {
        st = ls_check_clash(run, "batch.sequences", "batch.leaf", "the leaf must divide the batch");
        hint_divisors(run->batch.sequences);
        return st;
    }
    leaves = run->batch.sequences / run->batch.leaf;
    if ((group & (group - 1)) == 0 || group >= leaves)
        return LS_OK;
    st = ls_fail(LS_EUSAGE,
                 "%s: batch.group is %lld, which is neither a power of two nor all %lld leaves",
                 ls_check_origin(run, "batch.group")->where, (long long)group, (long long)leaves);
    ls_err_hint("Gradients are summed along a binary tree over leaves, so a call must compute "
                "whole branches; auto always fits.");
    return st;
}

static ls_status check_sources(const ls_run *run)
{
    ls_status st = LS_OK;
    int texts = run->data.text.count, shards = run->data.shards.count;

    if (texts == 0 && shards == 0) {
        ls_check_missing(run, "data.text", "or data.shards must be given");
        ls_err_hint("Say what to train on, for instance data: {text: [corpus/*.txt]}.");
        return LS_EUSAGE;
    }
    if (texts && shards) {
        st = ls_check_clash(run, "data.text", "data.shards", "only one of them can be given");
        ls_err_hint("Keep one of them; --set data.text=[] removes the text for a single run.");
        return st;
    }
    if (run->data.weights.count && run->data.weights.count != texts + shards)
        return ls_check_clash(run, "data.weights", texts ? "data.text" : "data.shards",
                              "there must be one weight per entry");
    return LS_OK;
}

/* What the validation loss decides needs evaluations. */
static ls_status check_validation(const ls_run *run)
{
    static const char measured[] = "without validation text the loss cannot be measured";
    bool none = run->data.validation == 0, never = run->eval.every == 0;
    bool target = run->train.target_loss > 0, patience = run->train.patience > 0;
    bool best = run->checkpoint.best == LS_KEEP_BEST_ON;
    const ls_check_row rows[] = {
        {target && none, "train.target_loss", "data.validation", measured},
        {target && never, "train.target_loss", "eval.every",
         "validation during the run checks the target"},
        {patience && none, "train.patience", "data.validation", measured},
        {patience && never, "train.patience", "eval.every", "it counts validations during the run"},
        {best && none, "checkpoint.best", "data.validation", measured},
        {best && never, "checkpoint.best", "eval.every",
         "validation during the run finds the best checkpoint"},
    };

    return ls_check_rows(run, rows, LS_COUNT(rows));
}

static ls_status check_end(const ls_run *run)
{
    ls_status st = check_validation(run);

    if (st != LS_OK)
        return st;
    if (run->train.steps == 0 && !has_other_end(run)) {
        st = ls_fail(LS_EUSAGE, "%s: train.steps is 0 and no other end of the run is set",
                     ls_check_origin(run, "train.steps")->where);
        ls_err_hint("Set train.steps, train.tokens, train.epochs, train.seconds or "
                    "train.target_loss.");
        return st;
    }
    if (run->train.epochs > 0 && (run->train.steps || run->train.tokens)) {
        st = ls_check_clash(run, "train.epochs", run->train.steps ? "train.steps" : "train.tokens",
                            "each of them says how long the run is");
        ls_err_hint(
            "Keep one of them; --set train.epochs=0 leaves the epochs out of a single run.");
        return st;
    }
    if (ls_check_horizon(run) == 0 && run->train.epochs == 0 &&
        run->train.schedule != LS_LR_SCHEDULE_CONSTANT) {
        st = ls_check_clash(run, run->train.seconds > 0 ? "train.seconds" : "train.target_loss",
                            "train.schedule",
                            "this schedule must know how many steps there will be");
        ls_err_hint(
            "Set train.steps, train.tokens or train.epochs as well, or take schedule: constant.");
        return st;
    }
    return LS_OK;
}

/* The batch that a rule starts from: with a rule there must be one, without it means nothing. */
static ls_status check_lr_rule(const ls_run *run)
{
    ls_status st;

    if ((run->train.lr_rule != LS_LR_NONE) == (run->train.lr_base_batch > 0))
        return LS_OK;
    st = ls_check_clash(run, "train.lr_rule", "train.lr_base_batch",
                        run->train.lr_rule == LS_LR_NONE
                            ? "without a rule the learning rate does not follow the batch"
                            : "the rule must know for which batch train.lr was chosen");
    if (run->train.lr_rule == LS_LR_NONE)
        ls_err_hint("Set train.lr_rule to linear or sqrt, or leave train.lr_base_batch out.");
    else
        ls_err_hint("Set train.lr_base_batch, in sequences, as in lr_base_batch: 32.");
    return st;
}

static ls_status check_rate(const ls_run *run)
{
    int64_t horizon = ls_check_horizon(run);
    ls_status st = check_lr_rule(run);

    if (st != LS_OK)
        return st;
    if (run->train.min_lr > run->train.lr)
        return ls_check_clash(run, "train.min_lr", "train.lr",
                              "the schedule must not end above its peak");
    if (horizon && run->train.warmup > horizon)
        return ls_check_clash(run, "train.warmup", horizon_key(run),
                              "warm-up must end before the run does");
    if (horizon && run->train.schedule == LS_LR_SCHEDULE_WSD &&
        run->train.warmup + run->train.decay > horizon) {
        st = ls_check_clash(run, "train.decay", horizon_key(run),
                            "warm-up and decay together are longer than the run");
        ls_err_hint("There are %lld steps, and warm-up takes %lld of them.", (long long)horizon,
                    (long long)run->train.warmup);
        return st;
    }
    return LS_OK;
}

ls_status ls_check_run(const ls_run *run, bool with_files, bool with_sources)
{
    ls_status st = LS_OK;

    LS_TRY(st, check_name(run), out);
    LS_TRY(st, check_model(run), out);
    LS_TRY(st, check_optimizer(run), out);
    LS_TRY(st, check_tuning(run), out);
    LS_TRY(st, check_preference(run), out);
    LS_TRY(st, check_precision(run), out);
    LS_TRY(st, check_recompute(run), out);
    LS_TRY(st, check_graphs(run), out);
    LS_TRY(st, check_batch(run), out);
    LS_TRY(st, check_ramp(run), out);
    if (with_sources)
        LS_TRY(st, check_sources(run), out);
    LS_TRY(st, check_end(run), out);
    LS_TRY(st, check_rate(run), out);
    LS_TRY(st, ls_check_mesh(run), out);
    if (with_files)
        LS_TRY(st, ls_check_files(run), out);
out:
    return st;
}
