/* hf_config_write.c -- writing config.json of a Hugging Face folder.
 *
 * Both spellings of rotary settings are written, since readers of either age exist. Keys with the
 * value that a family always has are written too where another reader's default differs. The text
 * is indented as transformers does it. */
#include "config/hf_config.h"

#include "base/json.h"
#include "config/model_families.h"

static bool is_mixture(const ls_run_model *m)
{
    return m->experts > 0;
}

static ls_status cannot(const ls_run_model *m, const char *what)
{
    ls_status st = ls_fail(LS_EUSAGE, "transformers has no %s model with %s",
                           ls_families_row(m->family)->name, what);

    ls_err_hint("The checkpoint stays usable here; only a Hugging Face folder cannot hold it.");
    return st;
}

/* Whether config.json of the family can say it. */
static bool can_say_bias(const ls_family_row *row, ls_bias bias)
{
    return bias == row->bias || (row->attention_bias_key && bias == LS_BIAS_ATTENTION) ||
           (row->mlp_bias_key && (bias == LS_BIAS_MLP || bias == LS_BIAS_ALL));
}

ls_status ls_hf_config_writable(const ls_run_model *m)
{
    const ls_family_row *row = ls_families_row(m->family);

    if (m->window && row->window == LS_WINDOW_NONE)
        return cannot(m, "a sliding window");
    if (m->window && m->window_from && row->window != LS_WINDOW_LAYERS)
        return cannot(m, "a window in some layers only");
    if (!can_say_bias(row, m->bias))
        return cannot(m, row->other_bias);
    if (row->plain_rope && m->rope_scaling != LS_ROPE_PLAIN)
        return cannot(m, "such a scaling of positions");
    if (row->head_sizes == LS_HEADS_FILL && m->head_size * m->heads != m->width)
        return cannot(m, "heads that do not fill its width");
    if (row->head_sizes == LS_HEADS_DIVIDE && m->width % m->heads != 0)
        return cannot(m, "heads that do not divide its width");
    return LS_OK;
}

/* Readers in typed languages want a fraction where a number is one: 10000.0, not 10000. */
static void put_float(ls_json *json, const char *key, double value)
{
    ls_json_key(json, key);
    size_t start = json->out->len;
    ls_json_num(json, value);
    const char *text = json->out->p + start;
    if (ls_str_status(json->out) == LS_OK && text[strspn(text, "-0123456789")] == '\0')
        ls_str_append(json->out, ".0");
}

/* A number, unless the model came with another. */
static void put_kept(ls_json *json, const ls_hf_config *config, const char *key, double value)
{
    for (int i = 0; i < config->n_kept; i++)
        if (strcmp(config->kept[i].key, key) == 0 && config->kept[i].kind == LS_HF_CONFIG_KEPT_NUM)
            value = config->kept[i].value;
    put_float(json, key, value);
}

/* What came along and is written nowhere else. */
static void put_rest(ls_json *json, const ls_hf_config *config)
{
    for (int i = 0; i < config->n_kept; i++) {
        const ls_hf_config_kept *k = &config->kept[i];
        switch (k->kind) {
        case LS_HF_CONFIG_KEPT_NUM: /* put_kept() */
            break;
        case LS_HF_CONFIG_KEPT_INT:
            ls_json_put_int(json, k->key, (int64_t)k->value);
            break;
        case LS_HF_CONFIG_KEPT_BOOL:
            ls_json_put_bool(json, k->key, k->value != 0);
            break;
        case LS_HF_CONFIG_KEPT_NULL:
            ls_json_put_str(json, k->key, NULL);
            break;
        }
    }
}

static void put_ids(ls_json *json, const ls_hf_config *config)
{
    if (config->bos >= 0)
        ls_json_put_int(json, "bos_token_id", config->bos);
    else if (!config->bos_unsaid)
        ls_json_put_str(json, "bos_token_id", NULL);
    if (config->n_eos == 0 && config->eos_unsaid)
        return;
    ls_json_key(json, "eos_token_id");
    if (config->n_eos == 0)
        ls_json_str(json, NULL);
    else if (config->n_eos == 1)
        ls_json_int(json, config->eos[0]);
    else {
        ls_json_open(json, '[');
        for (int i = 0; i < config->n_eos; i++)
            ls_json_int(json, config->eos[i]);
        ls_json_close(json);
    }
}

static void put_gpt2(ls_json *json, const ls_hf_config *config)
{
    const ls_run_model *m = &config->model;

    ls_json_put_int(json, "n_embd", m->width);
    ls_json_put_int(json, "n_layer", m->layers);
    ls_json_put_int(json, "n_head", m->heads);
    ls_json_put_int(json, "n_positions", m->positions);
    ls_json_put_int(json, "n_ctx", m->positions);
    ls_json_put_int(json, "n_inner", m->mlp);
    ls_json_put_str(json, "activation_function", "gelu_new");
    put_float(json, "layer_norm_epsilon", m->norm_eps);
    put_float(json, "resid_pdrop", m->dropout);
    put_kept(json, config, "embd_pdrop", m->dropout);
    put_kept(json, config, "attn_pdrop", m->dropout);
    ls_json_put_bool(json, "scale_attn_weights", true);
    ls_json_put_bool(json, "scale_attn_by_inverse_layer_idx", false);
    ls_json_put_bool(json, "reorder_and_upcast_attn", false);
}

static void put_rope_numbers(ls_json *json, const ls_run_model *m)
{
    static const char *const names[] = {"default", "linear", "llama3"};

    ls_json_put_str(json, "rope_type", names[m->rope_scaling]);
    if (m->rope_scaling != LS_ROPE_PLAIN)
        put_float(json, "factor", m->rope_factor);
    if (m->rope_scaling == LS_ROPE_LLAMA3) {
        put_float(json, "low_freq_factor", m->rope_low);
        put_float(json, "high_freq_factor", m->rope_high);
        ls_json_put_int(json, "original_max_position_embeddings", m->rope_original);
    }
}

static void put_rope(ls_json *json, const ls_run_model *m)
{
    put_float(json, "rope_theta", m->rope_theta);
    ls_json_key(json, "rope_scaling");
    if (m->rope_scaling == LS_ROPE_PLAIN) {
        ls_json_str(json, NULL);
    } else {
        ls_json_open(json, '{');
        put_rope_numbers(json, m);
        ls_json_close(json);
    }
    ls_json_key(json, "rope_parameters");
    ls_json_open(json, '{');
    put_float(json, "rope_theta", m->rope_theta);
    put_rope_numbers(json, m);
    ls_json_close(json);
}

static void put_window(ls_json *json, const ls_run_model *m)
{
    ls_family_window kind = ls_families_row(m->family)->window;

    if (kind == LS_WINDOW_NONE)
        return;
    ls_json_key(json, "sliding_window");
    if (m->window)
        ls_json_int(json, m->window);
    else
        ls_json_str(json, NULL);
    if (kind == LS_WINDOW_PLAIN)
        return;
    ls_json_put_bool(json, "use_sliding_window", m->window > 0);
    if (kind == LS_WINDOW_SWITCH)
        return;
    ls_json_put_int(json, "max_window_layers", m->window ? m->window_from : m->layers);
    ls_json_key(json, "layer_types");
    ls_json_open(json, '[');
    for (int64_t l = 0; l < m->layers; l++)
        ls_json_str(json,
                    m->window && l >= m->window_from ? "sliding_attention" : "full_attention");
    ls_json_close(json);
}

static void put_experts(ls_json *json, const ls_hf_config *config)
{
    const ls_run_model *m = &config->model;
    const ls_family_row *row = ls_families_row(m->family);

    ls_json_put_int(json, row->experts.key, m->experts);
    ls_json_put_int(json, "num_experts_per_tok", m->experts_used);
    put_kept(json, config, "router_aux_loss_coef", 0.001);
    ls_json_put_bool(json, "output_router_logits", false);
    if (!row->experts.norm_key)
        return;
    if (strcmp(row->keys.mlp, "intermediate_size") != 0) /* which layers without experts have */
        ls_json_put_int(json, row->keys.mlp, m->mlp);
    ls_json_put_bool(json, "norm_topk_prob", m->experts_norm);
    if (!row->experts.step_key)
        return;
    ls_json_put_int(json, "decoder_sparse_step", 1);
    ls_json_key(json, "mlp_only_layers");
    ls_json_open(json, '[');
    ls_json_close(json);
}

static void put_llama(ls_json *json, const ls_hf_config *config)
{
    const ls_run_model *m = &config->model;
    const ls_family_row *row = ls_families_row(m->family);
    bool all = m->bias == LS_BIAS_ALL;

    ls_json_put_int(json, "hidden_size", m->width);
    ls_json_put_int(json, "intermediate_size", config->dense_mlp ? config->dense_mlp : m->mlp);
    ls_json_put_int(json, "num_hidden_layers", m->layers);
    ls_json_put_int(json, "num_attention_heads", m->heads);
    ls_json_put_int(json, "num_key_value_heads", m->kv_heads);
    if (row->head_sizes != LS_HEADS_FILL)
        ls_json_put_int(json, "head_dim", m->head_size);
    /* Tuned on shorter texts, a model with rotary positions still reads the longer ones. */
    ls_json_put_int(json, "max_position_embeddings", ls_max_i64(m->context, config->positions));
    ls_json_put_str(json, "hidden_act", "silu");
    put_float(json, "rms_norm_eps", m->norm_eps);
    if (is_mixture(m))
        put_experts(json, config);
    if (row->attention_bias_key)
        ls_json_put_bool(json, "attention_bias", all || m->bias == LS_BIAS_ATTENTION);
    if (row->mlp_bias_key)
        ls_json_put_bool(json, "mlp_bias", all || m->bias == LS_BIAS_MLP);
    put_kept(json, config, "attention_dropout", 0);
    if (row->keys.dropout) {
        put_float(json, row->keys.dropout, m->dropout);
        put_kept(json, config, "embd_pdrop", m->dropout);
    }
    put_rope(json, m);
    put_window(json, m);
}

void ls_hf_config_write(const ls_hf_config *config, ls_str *out)
{
    const ls_run_model *m = &config->model;
    const ls_family_row *row = ls_families_row(m->family);
    const char *dtype = *config->dtype ? config->dtype : "float32";
    ls_json json;

    ls_json_begin_lines(&json, out, 2);
    ls_json_open(&json, '{');
    ls_json_key(&json, "architectures");
    ls_json_open(&json, '[');
    ls_json_str(&json, row->causal);
    ls_json_close(&json);
    ls_json_put_str(&json, "model_type", row->name);
    ls_json_put_int(&json, "vocab_size", m->vocab);
    if (ls_families_learns_positions(row))
        put_gpt2(&json, config);
    else
        put_llama(&json, config);
    ls_json_put_bool(&json, "tie_word_embeddings", m->tied == LS_TIED_YES);
    put_float(&json, "initializer_range", m->init_std);
    put_ids(&json, config);
    put_rest(&json, config);
    ls_json_put_bool(&json, "use_cache", true);
    ls_json_put_str(&json, "dtype", dtype);
    ls_json_put_str(&json, "torch_dtype", dtype);
    ls_json_close(&json);
    ls_str_append_char(out, '\n');
}
