/* hub_name.c -- "Qwen/Qwen2.5-0.5B" is a name of the Hub; "runs/demo", where runs/ exists, is a mistyped path.
 *
 * A name has two parts of letters, digits, ".", "_" and "-". One word may be anything, so of these only
 * the old names of GPT-2 count, which every tutorial has. */
#include "config/hub_name.h"

#include <ctype.h>
#include <string.h>
#include "base/file.h"

enum { LONGEST = 96 };

static const char *const old_names[] = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"};

/* Bytes of the part at p; 0: it does not begin as a name does. */
static size_t part(const char *p)
{
    size_t n = 0;

    while (isalnum((unsigned char)p[n]) || (n > 0 && p[n] && strchr("._-", p[n])))
        n++;
    return n;
}

static bool has_file_suffix(const char *name)
{
    static const char *const suffixes[] = {".yaml", ".yml",  ".json",        ".jsonl", ".txt",
                                           ".lst",  ".gguf", ".safetensors", ".bin"};
    size_t n = strlen(name);

    for (size_t i = 0; i < LS_COUNT(suffixes); i++) {
        size_t k = strlen(suffixes[i]);
        if (n > k && strcmp(name + n - k, suffixes[i]) == 0)
            return true;
    }
    return false;
}

/* The name in a path or address, as org/name. */
static bool find_name(const char *path, char out[LONGEST])
{
    const char *address = strstr(path, "://");
    const char *name = address ? strchr(address + 3, '/') : path;
    char folder[LONGEST];

    name = address && name ? name + 1 : name;
    size_t org = name ? part(name) : 0, rest = org && name[org] == '/' ? part(name + org + 1) : 0;
    bool ends = rest && (name[org + 1 + rest] == '\0' || address);

    if (!ends || org + 1 + rest >= LONGEST)
        return false;
    snprintf(out, LONGEST, "%.*s", (int)(org + 1 + rest), name);
    snprintf(folder, sizeof folder, "%.*s", (int)org, name);
    return address || (!has_file_suffix(out) && !ls_file_exists(folder));
}

bool ls_hub_name_hint(const char *path, ls_hub_kind kind)
{
    bool known = false;
    char name[LONGEST];

    if (ls_file_exists(path))
        return false;
    for (size_t i = 0; i < LS_COUNT(old_names) && kind == LS_HUB_MODEL && !known; i++)
        known = strcmp(path, old_names[i]) == 0;
    if (known)
        snprintf(name, sizeof name, "openai-community/%s", path);
    else if (!find_name(path, name))
        return false;
    ls_err_hint("If it is a %s of the Hugging Face Hub, download it first: `hf download %s%s "
                "--local-dir %s`, then name that folder%s.",
                kind == LS_HUB_MODEL ? "model" : "dataset",
                kind == LS_HUB_MODEL ? "" : "--repo-type dataset ", name, strchr(name, '/') + 1,
                kind == LS_HUB_MODEL ? "" : "'s files");
    return true;
}
