/* hf_base.c -- where a model came from.
 *
 * A folder of the hub's cache has the name of the model in its path, and that name loads everywhere:
 *
 *     ~/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de/      Qwen/Qwen3-0.6B
 *     hf/qwen3                                                                  /home/me/hf/qwen3
 */
#include "hf/hf_base.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include "base/file.h"
#include "base/json.h"
#include "base/json_edit.h"

#define KEY "lineshaft_base" /* in config.json */

static bool holds(const char *folder, const char *name)
{
    char path[PATH_MAX];

    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path &&
           ls_file_exists(path);
}

static bool has_weights(const char *folder)
{
    return holds(folder, "model.safetensors") || holds(folder, "model.safetensors.index.json") ||
           holds(folder, "pytorch_model.bin") || holds(folder, "pytorch_model.bin.index.json");
}

/* "ORG/NAME" of ".../models--ORG--NAME/snapshots/..."; false: it is no such path. */
static bool hub_name(const char *path, ls_str *out)
{
    static const char mark[] = "/models--";
    const char *at = strstr(path, mark), *name = at ? at + sizeof mark - 1 : NULL;
    const char *end = name ? strchr(name, '/') : NULL, *between = name ? strstr(name, "--") : NULL;

    if (!end || strncmp(end, "/snapshots/", 11) != 0)
        return false;
    if (!between || between > end) { /* models without an organisation: "gpt2" */
        ls_str_append_bytes(out, name, (size_t)(end - name));
        return true;
    }
    ls_str_append_bytes(out, name, (size_t)(between - name));
    ls_str_append_char(out, '/');
    ls_str_append_bytes(out, between + 2, (size_t)(end - between) - 2);
    return true;
}

static ls_status name_of(const char *folder, ls_str *out)
{
    char whole[PATH_MAX];
    const char *path = realpath(folder, whole) ? whole : folder;

    if (!hub_name(path, out))
        ls_str_append(out, path);
    return ls_str_status(out);
}

/* What config.json of a folder notes; nothing is appended where it notes nothing. */
static ls_status read_note(const char *folder, ls_str *out)
{
    char path[PATH_MAX];

    if (!*folder || (size_t)snprintf(path, sizeof path, "%s/config.json", folder) >= sizeof path ||
        !ls_file_exists(path))
        return LS_OK;
    json_t *root = json_load_file(path, 0, NULL);
    const char *base = json_string_value(json_object_get(root, KEY));
    ls_str_append(out, base ? base : "");
    json_decref(root);
    return ls_str_status(out);
}

ls_status ls_hf_base_set(ls_str *config, const char *base)
{
    ls_json json;
    ls_str value;
    ls_status st;

    ls_str_init(&value);
    ls_json_begin(&json, &value);
    ls_json_str(&json, base);
    LS_TRY(st, ls_str_status(&value), out);
    st = ls_json_edit_set(config, KEY, value.p);
out:
    ls_str_release(&value);
    return st;
}

ls_status ls_hf_base_note(const char *from, const char *to)
{
    char path[PATH_MAX];
    ls_str text, base;
    ls_status st = LS_OK;

    if (!holds(to, "config.json") || !has_weights(from))
        return LS_OK;
    ls_str_init(&text);
    ls_str_init(&base);
    LS_TRY(st, read_note(to, &base), out);
    if (base.len > 0)
        goto out;
    snprintf(path, sizeof path, "%s/config.json", to);
    LS_TRY(st, name_of(from, &base), out);
    LS_TRY(st, ls_file_read(path, LS_MIB, &text), out);
    LS_TRY(st, ls_hf_base_set(&text, base.p), out);
    st = ls_file_write_atomic(path, text.p, text.len);
out:
    ls_str_release(&text);
    ls_str_release(&base);
    return st;
}

ls_status ls_hf_base_of(const ls_hf_folder *folder, ls_str *base_out)
{
    const char *import = ls_hf_folder_run(folder)->model.import;
    ls_status st;

    LS_TRY(st, read_note(ls_hf_folder_origin(folder), base_out), out);
    if (base_out->len == 0 && *import)
        LS_TRY(st, read_note(import, base_out), out);
    if (base_out->len == 0 && *import && has_weights(import))
        st = name_of(import, base_out);
    else if (base_out->len == 0)
        ls_str_append(base_out, import);
    if (st == LS_OK)
        st = ls_str_status(base_out);
out:
    return st;
}

/* A folder that quantize wrote: only we read its weights. */
static bool is_quantized(const char *folder)
{
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/config.json", folder) >= sizeof path)
        return false;
    json_t *root = json_load_file(path, 0, NULL);
    const char *method = json_string_value(
        json_object_get(json_object_get(root, "quantization_config"), "quant_method"));
    bool ours = method && strcmp(method, "lineshaft") == 0;
    json_decref(root);
    return ours;
}

bool ls_hf_base_loads(const char *base)
{
    bool path = base[0] == '/' || base[0] == '.' || ls_file_exists(base);

    if (!path)
        return *base != '\0';
    return has_weights(base) && holds(base, "config.json") && !is_quantized(base);
}
