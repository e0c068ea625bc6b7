/* other_names.c -- a table from names of other programs to our keys.
 *
 * A row says which words it knows, which of our keys they mean, and what differs: "warmup_ratio" is a share, train.warmup
 * counts steps. Words are compared in lower case, with _ for -, without a section. The first key of a row that this
 * version has is the one that is named, so a row may prefer a key that comes later. */
#include "config/other_names.h"

#include <ctype.h>

static const struct {
    const char *words; /* between spaces */
    const char *
        keys; /* in order of preference, between spaces, one perhaps with its value; "": the sentence says all */
    const char *more; /* a sentence, or "" */
} rows[] = {
    /* training */
    {"lr learning_rate max_lr peak_lr lr_max", "train.lr", ""},
    {"min_learning_rate lr_min end_lr min_lr_rate final_lr", "train.min_lr", ""},
    {"max_steps max_iters num_steps iterations max_train_steps num_iterations total_steps iters "
     "train_iters n_steps training_steps",
     "train.steps", ""},
    {"epochs num_epochs num_train_epochs n_epochs max_epochs", "train.epochs train.steps", ""},
    {"max_tokens train_tokens num_tokens total_tokens", "train.tokens", ""},
    {"max_time max_seconds", "train.seconds", ""},
    {"warmup_steps warmup_iters num_warmup_steps lr_warmup_steps", "train.warmup", ""},
    {"warmup_ratio warmup_fraction warmup_frac", "train.warmup", "It counts steps."},
    {"lr_scheduler lr_scheduler_type scheduler lr_schedule lr_decay_style decay_lr",
     "train.schedule", "It may be constant, linear, cosine or wsd."},
    {"optim opt", "train.optimizer", "It may be adamw, lamb, muon, lion or sgd."},
    {"adam_beta1", "train.beta1", ""},
    {"adam_beta2", "train.beta2", ""},
    {"adam_epsilon adam_eps epsilon", "train.eps", ""},
    {"wd", "train.weight_decay", ""},
    {"max_grad_norm grad_clip gradient_clip gradient_clipping clip_grad gradient_clip_val "
     "clip_grad_norm max_norm",
     "train.clip", ""},
    {"random_seed data_seed", "train.seed", ""},
    {"gradient_checkpointing activation_checkpointing use_gradient_checkpointing "
     "activation_recompute",
     "train.recompute", "It may be none, selective, full or auto."},
    {"deterministic full_determinism", "train.reduce",
     "ordered, the default, gives the same bits each time."},
    {"neftune_noise_alpha neftune_alpha noise_alpha", "train.neftune", ""},
    {"early_stopping_threshold", "train.target_loss", ""},
    {"lr_decay_iters lr_decay_steps decay_steps", "", "The schedule ends with train.steps."},
    {"label_smoothing_factor", "", "Only train.objective: dpo has label smoothing."},
    {"logging_steps log_interval log_every log_steps logging_strategy logging_dir", "",
     "Leave it out: events.jsonl in the run folder has every step."},
    {"report_to wandb use_wandb wandb_log wandb_entity tensorboard mlflow", "",
     "Leave it out: `lineshaft plot RUN` draws the curves of a run, `lineshaft runs export RUN` "
     "writes "
     "them as CSV or JSON."},
    {"early_stopping_patience early_stopping", "train.patience",
     "It counts evaluations without a lower validation loss."},
    /* batch */
    {"batch_size global_batch_size train_batch_size total_batch_size", "batch.sequences",
     "It counts the sequences of one step on all ranks together."},
    {"per_device_train_batch_size micro_batch_size device_batch_size per_device_batch_size "
     "train_micro_batch_size_per_gpu micro_bs mbs",
     "batch.leaf",
     "It counts the sequences that are computed at once; batch.sequences is the whole batch of a "
     "step, and lineshaft accumulates what is between them."},
    {"gradient_accumulation_steps grad_accum_steps gradient_accumulation grad_accum accum_steps "
     "accumulate_grad_batches",
     "batch.sequences",
     "It is the whole batch of a step; lineshaft accumulates gradients by itself, batch.leaf "
     "sequences at a time."},
    /* model */
    {"n_layer n_layers num_layers num_hidden_layers depth num_blocks", "model.layers", ""},
    {"n_embd hidden_size d_model embed_dim n_embed dim hidden_dim embedding_dim", "model.width",
     ""},
    {"n_head n_heads num_heads num_attention_heads", "model.heads", ""},
    {"n_kv_head n_kv_heads num_kv_heads num_key_value_heads num_query_groups", "model.kv_heads",
     ""},
    {"block_size sequence_len sequence_length seq_len seq_length max_seq_length max_seq_len "
     "max_length n_positions n_ctx ctx_len context_length max_position_embeddings cutoff_len "
     "max_sequence_length",
     "model.context", ""},
    {"vocab_size", "model.vocab", ""},
    {"intermediate_size ffn_dim n_inner d_ff ffn_hidden_size mlp_dim", "model.mlp", ""},
    {"head_dim", "model.head_size", ""},
    {"rms_norm_eps layer_norm_epsilon layer_norm_eps norm_epsilon", "model.norm_eps", ""},
    {"tie_word_embeddings tie_embeddings tie_weights", "model.tied", ""},
    {"num_experts num_local_experts n_experts", "model.experts", ""},
    {"num_experts_per_tok top_k_experts", "model.experts_used", ""},
    {"sliding_window", "model.window", ""},
    {"initializer_range", "model.init_std", ""},
    {"resid_pdrop attn_pdrop embd_pdrop hidden_dropout attention_dropout", "model.dropout", ""},
    {"model_type architecture arch", "model.family", ""},
    {"model_name_or_path model_name base_model pretrained_model_name_or_path init_from "
     "pretrained_model model_path",
     "model.import", "`lineshaft import` makes the folder that it names."},
    /* data */
    {"dataset datasets train_file train_data data_path dataset_path train_files input input_file "
     "data_dir dataset_name",
     "data.text", "It names files; .txt and .jsonl."},
    {"tokenizer_path tokenizer_name tokenizer_name_or_path tokenizer_type", "data.tokenizer", ""},
    {"text_column text_field dataset_text_field content_field", "data.field", ""},
    {"val_split val_set_size validation_split test_size validation_split_percentage eval_ratio",
     "data.validation", ""},
    {"chat_template", "data.template", ""},
    {"packing sample_packing pack_sequences group_by_length pad_to_max_length pad_to_sequence_len",
     "",
     "Leave it out: windows are always packed; conversations see only themselves, other documents "
     "with "
     "data.isolate."},
    {"train_on_inputs train_on_prompt completion_only_loss assistant_only_loss "
     "train_on_responses_only",
     "", "Leave it out: with data.template only the answers have loss."},
    {"num_workers dataloader_num_workers dataloader_pin_memory pin_memory prefetch_factor "
     "preprocessing_num_workers dataset_num_proc",
     "", "Leave it out: reading tokens needs no workers."},
    {"remove_unused_columns dataset_kwargs", "",
     "Leave it out: other fields of a line do not matter."},
    /* the run */
    {"output_dir output out_dir save_dir output_path checkpoint_dir run_dir save", "out", ""},
    {"run_name experiment_name project wandb_project", "name", ""},
    {"device device_type accelerator", "device.kind", "It may be auto, cpu or cuda."},
    {"cuda use_cuda gpu use_gpu", "device.kind=cuda", ""},
    {"cpu use_cpu no_cuda", "device.kind=cpu", ""},
    {"bf16 bfloat16", "precision=bf16", ""},
    {"fp16 float16 half", "precision=fp16", ""},
    {"fp8", "precision=fp8", ""},
    {"tf32 allow_tf32", "precision=tf32", ""},
    {"dtype torch_dtype mixed_precision amp", "precision",
     "It may be fp32, tf32, bf16, fp16 or fp8."},
    {"num_threads nthreads omp_num_threads", "device.threads", ""},
    {"save_steps save_interval save_every checkpoint_interval checkpoint_every save_freq",
     "checkpoint.every", ""},
    {"save_strategy", "checkpoint.every",
     "It counts steps; checkpoint.minutes saves by the clock."},
    {"push_to_hub hub_model_id hub_token hub_strategy", "",
     "Leave it out: `lineshaft export RUN FOLDER` writes a folder, and `hf upload NAME FOLDER` "
     "sends it."},
    {"overwrite_output_dir", "", "Leave it out: --fresh begins a run anew."},
    {"load_best_model_at_end save_best_model save_best", "checkpoint.best",
     "true keeps the checkpoint of the lowest validation loss."},
    {"save_total_limit keep_last max_checkpoints", "checkpoint.keep", ""},
    {"eval_steps eval_interval eval_every val_interval evaluation_steps val_check_interval "
     "val_every",
     "eval.every", ""},
    {"eval_strategy evaluation_strategy do_eval", "eval.every",
     "It counts steps; 0: no validation."},
    {"eval_iters eval_batches", "eval.sequences", "It counts sequences."},
    /* adapters */
    {"lora_r lora_rank r", "lora.rank", ""},
    {"use_dora dora", "lora.dora", ""},
    {"lora_alpha", "lora.alpha", ""},
    {"lora_target_modules target_modules", "lora.targets", ""},
    {"lora_dropout", "", "Leave it out: the matrices of LoRA have no dropout of their own."},
    {"load_in_4bit load_in_8bit bnb_4bit_quant_type quantization_config qlora", "",
     "QLoRA is lora.rank beside a model.import that `lineshaft quantize MODEL OUT --bits 4` made."},
    /* preferences */
    {"loss_type rl_type", "train.objective", "It may be lm, dpo, orpo or kto."},
    {"dpo_beta kto_beta orpo_beta rl_beta", "preference.beta", ""},
    /* ranks */
    {"gpus ngpus num_gpus n_gpus nproc_per_node nproc num_processes world_size devices procs "
     "num_gpus_per_node",
     "", "The flag -n N of `lineshaft train` starts N ranks on this machine, one for each GPU."},
    {"nnodes num_nodes num_machines", "",
     "The flag --nodes N of `lineshaft train` starts a job on N machines."},
    {"tensor_parallel tensor_parallel_size tensor_model_parallel_size tp tp_size tp_degree",
     "mesh.tp", ""},
    {"pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pp pp_size", "mesh.pp",
     ""},
    {"context_parallel context_parallel_size sequence_parallel_size cp_size", "mesh.cp", ""},
    {"expert_parallel expert_parallel_size expert_model_parallel_size", "mesh.ep", ""},
    {"data_parallel data_parallel_size dp_size", "mesh.dp", ""},
    {"zero_stage zero_optimization fsdp fsdp_config deepspeed sharding_strategy", "mesh.zero",
     "3 divides weights, gradients and moments, as FSDP does."},
    {"resume resume_from_checkpoint auto_resume", "",
     "`lineshaft train` resumes by itself from the newest checkpoint in the run folder; --fresh "
     "begins anew."},
    {"training_args training_arguments training trainer hyperparameters train_config", "",
     "Settings of training stand in train: {lr: 3e-4, steps: 1000}."},
    {"model_args model_arguments model_config network", "",
     "Settings of the model stand in model: {layers: 6, width: 384, heads: 6, context: 256}."},
    {"data_args data_arguments data_config", "",
     "Settings of the data stand in data: {text: [corpus/*.txt]}."},
    {"compile torch_compile", "", "There is nothing to compile: leave it out."},
    {"flash_attention flash_attn use_flash_attention flash_attention_2 attn_implementation "
     "sdp_attention xformers_attention",
     "", "Leave it out: the device decides how attention is computed."},
};

/* A section that was given one value means this key; of two keys the first only if it takes the value. */
static const char *const of_section[][2] = {
    {"device", "device.kind"}, {"data", "data.text"},        {"model", "model.family"},
    {"model", "model.import"}, {"batch", "batch.sequences"}, {"train", "train.steps"},
    {"lora", "lora.rank"},     {"eval", "eval.every"},       {"checkpoint", "checkpoint.every"}};

/* The name without its section, in lower case and with _ for -. */
static void plain_word(const char *key, char *out, size_t cap)
{
    const char *dot = strrchr(key, '.');
    size_t n = 0;

    for (const char *p = dot ? dot + 1 : key; *p && n + 1 < cap; p++)
        out[n++] = *p == '-' ? '_' : (char)tolower((unsigned char)*p);
    out[n] = '\0';
}

bool ls_other_names_has(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = words; *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, word, n) == 0)
            return true;
        p += len;
    }
    return false;
}

/* The first of these keys that this version has, as an option and as it is written; NULL: none. */
static const ls_option *first_option(const char *keys, char *written_out, size_t cap)
{
    for (const char *p = keys; *p; p += strspn(p, " ")) {
        char key[96];
        size_t len = strcspn(p, " "), name = strcspn(p, " =");
        snprintf(key, sizeof key, "%.*s", (int)name, p);
        snprintf(written_out, cap, "%.*s", (int)len, p);
        if (ls_option_find(key))
            return ls_option_find(key);
        p += len;
    }
    return NULL;
}

/* The row that knows the word; -1: none. */
static int find_row(const char *key)
{
    char word[96];

    plain_word(key, word, sizeof word);
    for (size_t i = 0; *word && i < LS_COUNT(rows); i++)
        if (ls_other_names_has(rows[i].words, word))
            return (int)i;
    return -1;
}

/* A key with its value, as a run file has it at that place. */
static void show_in_file(const ls_option *row, const char *value, const char *section, ls_str *out)
{
    size_t n = strcspn(row->key, ".");
    bool inside = !row->key[n] || (section && ls_option_in(row, section));

    if (inside)
        ls_str_printf(out, "Write %s: %.60s.", ls_option_leaf(row), value);
    else
        ls_str_printf(out, "Write %.*s: {%s: %.60s}.", (int)n, row->key, ls_option_leaf(row),
                      value);
}

static bool is_no(const char *value)
{
    return value && ls_other_names_has("false no off 0 False null", value);
}

bool ls_other_names_suggest(const char *key, const ls_other_names_place *place, ls_str *out)
{
    int i = find_row(key);
    char written[96];

    if (i < 0)
        return false;
    const char *more = rows[i].more, *given = place->value && *place->value ? place->value : NULL;
    const ls_option *row = first_option(rows[i].keys, written, sizeof written);
    const char *value = row ? strchr(written, '=') : NULL;
    bool first = row && strncmp(rows[i].keys, written, strlen(written)) == 0;
    /* A value is repeated only where it means here what it meant there. */
    bool same = given && first && !*more;
    if (row && value && is_no(given))
        ls_str_append(out, "Leave it out.");
    else if (row && place->flag)
        ls_str_printf(out, "Write %s %s%s%.60s.", place->flag, written, value ? "" : "=",
                      value  ? ""
                      : same ? given
                             : "VALUE");
    else if (value || same)
        show_in_file(row, value ? value + 1 : given, place->section, out);
    else if (row)
        ls_str_printf(out, first ? "Here it is called \"%s\"." : "The nearest to it is \"%s\".",
                      row->key);
    if (*more)
        ls_str_printf(out, "%s%s", row ? " " : "", more);
    return true;
}

static bool takes(const ls_option *row, const char *value)
{
    for (int i = 0; row && row->names[i]; i++)
        if (strcmp(row->names[i], value) == 0)
            return true;
    return false;
}

const char *ls_other_names_of_section(const char *section, const char *value)
{
    const char *found = NULL;

    for (size_t i = 0; i < LS_COUNT(of_section); i++)
        if (strcmp(of_section[i][0], section) == 0) {
            found = of_section[i][1];
            if (takes(ls_option_find(found), value))
                break;
        }
    const ls_option *row = found ? ls_option_find(found) : NULL;
    bool number = value[0] >= '0' && value[0] <= '9';
    return row && number && row->type != LS_OPTION_INT ? NULL : found;
}
