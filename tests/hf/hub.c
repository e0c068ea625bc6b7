/* hub.c -- small Hugging Face folders for tests, made from a model's own start values. */
#include "hf/hub.h"

#include <sys/stat.h>
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "config/hf_config.h"
#include "config/runfile.h"
#include "hf/hf_convert.h"
#include "hf/hf_fused.h"
#include "harness.h"

static void put_name(hub_tensor *t, const char *name)
{
    snprintf(t->name, sizeof t->name, "%s", name);
}

/* The tensor that begins with a parameter; returns how many parameters it holds. */
static int add_params(hub *s, const ls_param *p)
{
    char name[LS_PARAM_NAME];
    int part, n = ls_hf_fused_name(s->model.shape.family, p->name, name, &part);
    int64_t rows = 0, at = 0;

    for (int i = 0; i < n; i++)
        rows += p[i].shape[0];
    hub_tensor *t =
        hub_add(s, name, p->ndim > 1 ? rows : 0, p->ndim > 1 ? p->shape[1] : p->shape[0]);
    for (int i = 0; i < n; at += p[i].count, i++) {
        ls_model_start(&p[i], 7, 0, p[i].count, t->values + at);
        for (int64_t k = 0; k < p->count && p->start != LS_START_NORMAL; k++)
            t->values[k] += 0.01f * (float)(k % 13); /* norms and biases that matter */
    }
    return n;
}

void hub_init(hub *s, const char *model_yaml)
{
    ls_str text;
    ls_hf_config config;

    *s = (hub){.n = 0};
    ls_str_init(&text);
    ls_str_printf(&text, "model: {%s}\n", model_yaml);
    LS_CHECK_OK(ls_runfile_load(&s->run, &(ls_runfile_source){.text = text.p,
                                                              .len = text.len,
                                                              .no_environment = true,
                                                              .no_files = true,
                                                              .model_only = true}));
    LS_CHECK_OK(ls_model_init(&s->model, &s->run, 2));
    s->tensors = ls_mem_array((size_t)s->model.n_params + 8, sizeof *s->tensors);
    LS_CHECK(s->tensors);
    for (int i = 0; i < s->model.n_params; i += add_params(s, &s->model.params[i]))
        ;
    config = (ls_hf_config){.model = s->run.model, .bos = -1};
    config.model.vocab = s->model.shape.V;
    ls_str_clear(&text);
    ls_hf_config_write(&config, &text);
    LS_CHECK(text.len < sizeof s->config);
    memcpy(s->config, text.p, text.len + 1);
    ls_str_release(&text);
}

void hub_release(hub *s)
{
    for (int i = 0; i < s->n; i++)
        ls_mem_free(s->tensors[i].values);
    ls_mem_free(s->tensors);
    ls_model_release(&s->model);
    ls_runfile_release(&s->run);
}

hub_tensor *hub_find(hub *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->tensors[i].name, name) == 0)
            return &s->tensors[i];
    ls_test_fail(__FILE__, __LINE__, "no tensor \"%s\"", name);
}

hub_tensor *hub_add(hub *s, const char *name, int64_t rows, int64_t cols)
{
    hub_tensor *t = &s->tensors[s->n++];

    put_name(t, name);
    t->type = LS_F32;
    t->ndim = rows ? 2 : 1;
    t->shape[0] = rows ? rows : cols;
    t->shape[1] = rows ? cols : 0;
    t->count = (rows ? rows : 1) * cols;
    t->values = ls_mem_array((size_t)t->count, sizeof *t->values);
    LS_CHECK(t->values);
    return t;
}

void hub_drop(hub *s, const char *name)
{
    hub_tensor *t = hub_find(s, name);

    ls_mem_free(t->values);
    *t = s->tensors[--s->n];
}

void hub_write_file(const hub *s, const char *path, int first, int count)
{
    ls_safetensors_item *items = ls_mem_array((size_t)count, sizeof *items);
    ls_str file;

    LS_CHECK(items);
    ls_str_init(&file);
    for (int i = 0; i < count; i++) {
        const hub_tensor *t = &s->tensors[first + i];
        items[i] =
            (ls_safetensors_item){.name = t->name, .type = t->type, .ndim = t->ndim, .bytes = t};
        memcpy(items[i].shape, t->shape, sizeof t->shape);
    }
    LS_CHECK_OK(ls_safetensors_layout(items, count, &file));
    for (int i = 0; i < count; i++) {
        const hub_tensor *t = items[i].bytes;
        size_t bytes = (size_t)(t->count * ls_dtype_bytes(t->type));
        void *narrow = ls_mem_alloc(bytes);
        LS_CHECK(narrow);
        ls_hf_convert_narrow(t->type, t->values, t->count, narrow);
        ls_str_append_bytes(&file, narrow, bytes);
        ls_mem_free(narrow);
    }
    LS_CHECK_OK(ls_str_status(&file));
    LS_CHECK_OK(ls_file_write_atomic(path, file.p, file.len));
    ls_str_release(&file);
    ls_mem_free(items);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

void hub_write(hub *s, const char *folder, int n_files)
{
    char path[512];
    ls_str index;

    LS_CHECK_OK(ls_file_make_dirs(folder));
    write_text(folder, "config.json", s->config);
    if (n_files <= 1) {
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        hub_write_file(s, path, 0, s->n);
        return;
    }
    ls_str_init(&index);
    ls_str_append(&index, "{\"metadata\":{\"total_size\":0},\"weight_map\":{");
    for (int k = 0; k < n_files; k++) {
        int first = s->n * k / n_files, end = s->n * (k + 1) / n_files;
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", k + 1, n_files);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        hub_write_file(s, path, first, end - first);
        for (int i = first; i < end; i++)
            ls_str_printf(&index, "%s\"%s\":\"%s\"", i ? "," : "", s->tensors[i].name, name);
    }
    ls_str_append(&index, "}}");
    write_text(folder, "model.safetensors.index.json", index.p);
    ls_str_release(&index);
}
