/* hf_weights.c -- the safetensors files of a Hugging Face folder.
 *
 * One file, or several with an index that says which tensor lies in which. The index comes from
 * outside: a file name in it must be a plain name in the same folder, and index and files must say
 * the same, tensor by tensor; otherwise a tensor could be read from a stale shard without anybody
 * noticing. All files are mapped, so opening costs no memory in proportion to the weights. */
#include "hf/hf_folder_impl.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/mem.h"
#include "config/model_families.h"
#include "hf/hf_convert.h"
#include "hf/hf_fused.h"
#include "hf/hf_quant.h"

enum { INDEX_BYTES = 1 << 26, FILES_MOST = 4096 };

static const char single[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* --- the index -------------------------------------------------------------------------------- */

/* A name that cannot lead out of the folder. */
static bool is_plain(const char *name)
{
    size_t n = strlen(name);

    if (n < 13 || n > 255 || name[0] == '.' || strcmp(name + n - 12, ".safetensors") != 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different files of the map, sorted. *names_out is owned by the caller; its texts by map. */
static ls_status list_files(json_t *map, const char *path, const char ***names_out, int *n_out)
{
    const char **names = ls_mem_array(json_object_size(map) + 1, sizeof *names);
    const char *key;
    json_t *value;
    int n = 0, kept = 0;

    if (!names)
        return LS_ENOMEM;
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (!name || !is_plain(name)) {
            ls_mem_free(names);
            return ls_fail(LS_EDATA,
                           "%s: \"weight_map\" gives \"%.80s\" to something that is not the name "
                           "of a .safetensors file in the same folder",
                           path, key);
        }
        names[n++] = name;
    }
    qsort(names, (size_t)n, sizeof *names, by_text);
    for (int i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[kept - 1]) != 0)
            names[kept++] = names[i];
    *names_out = names;
    *n_out = kept;
    return LS_OK;
}

static ls_status open_file(ls_hf_folder *f, const char *name)
{
    char path[PATH_MAX];
    ls_status st;

    snprintf(path, sizeof path, "%s/%s", f->path, name);
    if (!ls_file_exists(path)) {
        st = ls_fail(LS_EDATA, "\"%s\" is missing: %s names it", path, index_name);
        ls_err_hint("Fetch all files of the model again.");
        return st;
    }
    st = ls_safetensors_open(&f->files[f->n_files], path);
    if (st == LS_OK)
        f->n_files++;
    return st;
}

/* Index and files must name the same tensors in the same places. */
static ls_status check_index(const ls_hf_folder *f, json_t *map, const char *const *names,
                             const char *path)
{
    size_t seen = 0;

    for (int k = 0; k < f->n_files; k++) {
        for (int i = 0; i < f->files[k].count; i++) {
            const char *tensor = f->files[k].entries[i].name;
            const char *file = json_string_value(json_object_get(map, tensor));
            if (!file || strcmp(file, names[k]) != 0)
                return ls_fail(
                    LS_EDATA, "\"%s/%s\" holds the tensor \"%s\", but %s puts it %s%.80s", f->path,
                    names[k], tensor, index_name, file ? "into " : "nowhere", file ? file : "");
            seen++;
        }
    }
    if (seen == json_object_size(map))
        return LS_OK;
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        for (int k = 0; k < f->n_files; k++)
            if (strcmp(names[k], json_string_value(value)) == 0 &&
                !ls_safetensors_find(&f->files[k], key))
                return ls_fail(LS_EDATA,
                               "%s puts the tensor \"%.100s\" into %s, but it is not there", path,
                               key, names[k]);
    }
    return LS_OK;
}

static ls_status open_sharded(ls_hf_folder *f, const char *path)
{
    const char **names = NULL;
    json_error_t error;
    json_t *root = NULL;
    int n = 0;
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    LS_TRY(st, ls_file_read(path, INDEX_BYTES, &text), out);
    root = json_loadb(text.p, text.len, JSON_REJECT_DUPLICATES, &error);
    json_t *map = json_object_get(root, "weight_map");
    if (!root && !error.text[0]) { /* jansson says nothing when it found no memory */
        st = ls_fail(LS_ENOMEM, "cannot read \"%s\"", path);
        goto out;
    }
    if (!json_is_object(map) || json_object_size(map) == 0) {
        st = ls_fail(LS_EDATA, "%s: %s", path,
                     root ? "there is no \"weight_map\" in it" : "not valid JSON");
        goto out;
    }
    LS_TRY(st, list_files(map, path, &names, &n), out);
    if (n > FILES_MOST) {
        st = ls_fail(LS_EDATA, "%s: more than %d files", path, FILES_MOST);
        goto out;
    }
    f->files = ls_mem_array((size_t)n, sizeof *f->files);
    st = f->files ? LS_OK : LS_ENOMEM;
    for (int i = 0; i < n && st == LS_OK; i++)
        st = open_file(f, names[i]);
    if (st == LS_OK)
        st = check_index(f, map, names, path);
out:
    ls_mem_free(names);
    json_decref(root);
    ls_str_release(&text);
    return st;
}

/* --- the list of tensors ---------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const ls_hf_folder_tensor *x = a, *y = b;

    return strcmp(x->entry->name, y->entry->name);
}

static const char *family_prefix(const ls_hf_folder *f)
{
    return ls_families_row(f->config.model.family)->names.prefix;
}

static void note_dtypes(ls_hf_folder *f)
{
    const ls_safetensors_dtype *kinds[3] = {NULL};
    int n = 0;

    for (int i = 0; i < f->n_tensors && n < 3; i++) {
        const ls_safetensors_dtype *d = f->tensors[i].entry->dtype;
        bool known = !f->tensors[i].quant && !ls_hf_convert_reads(d);
        for (int k = 0; k < n; k++)
            known |= kinds[k] == d;
        if (!known)
            kinds[n++] = d;
    }
    snprintf(f->dtype, sizeof f->dtype, "%s%s%s%s", n ? kinds[0]->name : "none",
             n == 2 ? " and " : "", n == 2 ? kinds[1]->name : "", n > 2 ? " and others" : "");
}

static ls_status list_tensors(ls_hf_folder *f)
{
    int n = 0;

    for (int k = 0; k < f->n_files; k++)
        n += f->files[k].count;
    f->tensors = ls_mem_array((size_t)n, sizeof *f->tensors);
    if (!f->tensors)
        return LS_ENOMEM;
    for (int k = 0; k < f->n_files; k++)
        for (int i = 0; i < f->files[k].count; i++)
            f->tensors[f->n_tensors++] =
                (ls_hf_folder_tensor){.entry = &f->files[k].entries[i], .file = k};
    ls_status st = ls_hf_quant_join(f);
    if (st == LS_OK)
        st = ls_hf_fused_split(f);
    if (st != LS_OK)
        return st;
    n = f->n_tensors;
    qsort(f->tensors, (size_t)n, sizeof *f->tensors, by_name);
    const char *prefix = family_prefix(f);
    f->bare = true;
    for (int i = 0; i < n; i++)
        if (strncmp(f->tensors[i].entry->name, prefix, strlen(prefix)) == 0)
            f->bare = false;
    note_dtypes(f);
    return LS_OK;
}

/* Weights in a form that could run code when read are not read. */
static ls_status no_weights(const ls_hf_folder *f)
{
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                         "consolidated.00.pth", "tf_model.h5",
                                         "flax_model.msgpack"};
    char path[PATH_MAX];
    ls_status st;

    for (size_t i = 0; i < LS_COUNT(others); i++) {
        snprintf(path, sizeof path, "%s/%s", f->path, others[i]);
        if (!ls_file_exists(path))
            continue;
        st = ls_fail(LS_EUSAGE, "\"%s\" has its weights as %s only, not as safetensors", f->path,
                     others[i]);
        ls_err_hint("Convert it to safetensors first: in Python, "
                    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER).");
        return st;
    }
    st = ls_fail(LS_EUSAGE, "there are no weights in \"%s\": neither %s nor %s", f->path, single,
                 index_name);
    ls_err_hint("Fetch all files of the model.");
    return st;
}

ls_status ls_hf_folder_open_files(ls_hf_folder *f)
{
    char path[PATH_MAX], index[PATH_MAX];
    ls_status st = LS_OK;

    snprintf(path, sizeof path, "%s/%s", f->path, single);
    snprintf(index, sizeof index, "%s/%s", f->path, index_name);
    if (ls_file_exists(path)) {
        f->files = ls_mem_array(1, sizeof *f->files);
        if (!f->files)
            return LS_ENOMEM;
        LS_TRY(st, open_file(f, single), out);
    } else if (ls_file_exists(index)) {
        LS_TRY(st, open_sharded(f, index), out);
    } else {
        return no_weights(f);
    }
    LS_TRY(st, list_tensors(f), out);
out:
    return st;
}

/* --- looking up and reading ------------------------------------------------------------------- */

static const ls_hf_folder_tensor *find_exact(const ls_hf_folder *f, const char *name)
{
    ls_safetensors_entry entry = {.name = name};
    ls_hf_folder_tensor key = {.entry = &entry};

    return f->n_tensors ? bsearch(&key, f->tensors, (size_t)f->n_tensors, sizeof key, by_name)
                        : NULL;
}

const ls_hf_folder_tensor *ls_hf_folder_find(const ls_hf_folder *f, const char *name)
{
    const char *prefix = family_prefix(f);
    size_t n = strlen(prefix);

    if (f->bare && strncmp(name, prefix, n) == 0)
        name += n;
    return find_exact(f, name);
}

void ls_hf_folder_model_name(const ls_hf_folder *f, int i, char name_out[LS_PARAM_NAME])
{
    const char *name = f->tensors[i].entry->name;
    bool outside = strncmp(name, "lm_head.", 8) == 0; /* the only one without the prefix */

    snprintf(name_out, LS_PARAM_NAME, "%s%s", f->bare && !outside ? family_prefix(f) : "", name);
}

/* Pages that were read whole are given back, so that reading a model needs no second copy of it in
 * memory. They stay in the file cache. */
static void forget(const ls_safetensors *file, int64_t begin, int64_t end)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t from = ls_round_up(begin, page), to = end / page * page;

    if (to > from)
        (void)madvise((void *)((uintptr_t)file->bytes + (uintptr_t)from), (size_t)(to - from),
                      MADV_DONTNEED);
}

void ls_hf_folder_widen(const ls_hf_folder *f, const ls_hf_folder_tensor *t, int64_t first,
                        int64_t count, float *values_out)
{
    const ls_safetensors *file = &f->files[t->file];

    if (t->quant) {
        ls_hf_quant_widen(t->quant, file->bytes, first, count, values_out);
        return;
    }
    int64_t width = t->entry->dtype->bits / 8;
    int64_t begin = t->entry->begin + first * width;

    ls_hf_convert_widen(t->entry->dtype, (const unsigned char *)file->bytes + begin, count,
                        values_out);
    forget(file, begin, begin + count * width);
}
