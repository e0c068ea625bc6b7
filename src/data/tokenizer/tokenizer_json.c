/* tokenizer_json.c -- the kind "a folder with a tokenizer.json": opening, encoding, pieces.
 *
 * A tokenizer is shared by threads and never changes; what a call needs (buffers, the memory of
 * pieces) is a work area. Free work areas wait in a pool under a lock that is held for two
 * assignments, so a thread that encodes line after line finds its warm one again. */
#include "data/tokenizer/tokenizer_json_impl.h"

#include "data/tokenizer/utf8.h"
#include "base/file.h"
#include "base/mem.h"
#include "config/hub_name.h"

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool claims(const char *name)
{
    return strchr(name, '/') || ends_in(name, ".json") || ls_file_exists(name);
}

/* The name of a tokenizer has a fixed size in a shard: a long path keeps its end. */
static void set_name(ls_tokenizer *tok, const char *path)
{
    size_t n = strlen(path), room = sizeof tok->name - 1;

    if (n <= room)
        snprintf(tok->name, sizeof tok->name, "%s", path);
    else
        snprintf(tok->name, sizeof tok->name, "...%s", path + n - (room - 3));
}

/* The folder that holds tokenizer.json, and that file. */
static ls_status find_files(const char *name, ls_str *folder, ls_str *file)
{
    const char *slash = strrchr(name, '/');
    ls_status st;

    if (ls_file_is_dir(name)) {
        ls_str_append(folder, name);
        ls_str_printf(file, "%s/tokenizer.json", name);
    } else {
        ls_str_append_bytes(folder, slash ? name : ".", slash ? (size_t)(slash - name) + 1 : 1);
        ls_str_append(file, name);
    }
    st = ls_str_status(folder) != LS_OK ? LS_ENOMEM : ls_str_status(file);
    if (st != LS_OK || (ls_file_exists(file->p) && !ls_file_is_dir(file->p)))
        return st;
    if (ls_file_is_dir(name)) {
        st = ls_fail(LS_EUSAGE, "the tokenizer \"%s\" has no tokenizer.json", name);
        ls_err_hint("A folder of a Hugging Face model has one; where there are other files, "
                    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) in transformers "
                    "writes it.");
    } else {
        st = ls_fail(LS_EUSAGE, "there is no tokenizer \"%s\": no such folder or file", name);
        if (!ls_hub_name_hint(name, LS_HUB_MODEL))
            ls_err_hint("Write \"bytes\", or the path of a folder that has a tokenizer.json.");
    }
    return st;
}

static ls_status open_json(ls_tokenizer *tok, const char *name)
{
    ls_status st = LS_OK;
    ls_str folder, file;
    ls_json_rules *rules = ls_mem_alloc(sizeof *rules);

    if (!rules)
        return LS_ENOMEM;
    ls_str_init(&folder);
    ls_str_init(&file);
    ls_arena_init(&rules->arena);
    ls_str_init(&rules->pieces.bytes);
    ls_str_init(&rules->first.bytes);
    ls_added_init(&rules->before, NULL);
    ls_added_init(&rules->after, NULL);
    pthread_mutex_init(&rules->lock, NULL);
    tok->state = rules;
    set_name(tok, name);
    ls_err_doing("opening the tokenizer \"%s\"", name);
    LS_TRY(st, find_files(name, &folder, &file), out);
    LS_TRY(st, ls_json_read(tok, rules, file.p), out);
    st = ls_json_read_side(tok, rules, folder.p);
out:
    ls_err_done();
    ls_str_release(&folder);
    ls_str_release(&file);
    return st;
}

static void free_work(ls_json_work *work)
{
    if (!work)
        return;
    ls_bpe_work_free(work->bpe);
    for (int i = 0; i < LS_JSON_STEPS; i++) {
        ls_pretokenizer_work_free(work->pretokenizer[i]);
        ls_str_release(&work->buffer[i]);
    }
    ls_norm_release(&work->norm);
    ls_mem_free(work);
}

static void close_json(ls_tokenizer *tok)
{
    ls_json_rules *rules = tok->state;

    if (!rules)
        return;
    for (ls_json_work *work = rules->pool, *next; work; work = next) {
        next = work->next;
        free_work(work);
    }
    for (int i = 0; i < rules->n_cut; i++)
        ls_pretokenizer_free(rules->cut[i].pretokenizer);
    ls_added_release(&rules->before);
    ls_added_release(&rules->after);
    ls_bpe_free(rules->bpe);
    ls_mem_free(rules->added);
    ls_mem_free(rules->special);
    ls_mem_free(rules->classes);
    ls_str_release(&rules->pieces.bytes);
    ls_str_release(&rules->first.bytes);
    ls_mem_free(rules->pieces.at);
    ls_mem_free(rules->first.at);
    ls_arena_release(&rules->arena);
    pthread_mutex_destroy(&rules->lock);
    ls_mem_free(rules);
    tok->state = NULL;
}

static ls_status new_work(const ls_json_rules *rules, ls_json_work **out)
{
    ls_status st = LS_OK;
    ls_json_work *work = ls_mem_alloc(sizeof *work);

    if (!work)
        return LS_ENOMEM;
    ls_norm_init(&work->norm);
    for (int i = 0; i < LS_JSON_STEPS; i++)
        ls_str_init(&work->buffer[i]);
    LS_TRY(st, ls_bpe_work_open(&work->bpe, rules->bpe), out);
    for (int i = 0; i < rules->n_cut; i++)
        if (rules->cut[i].pretokenizer)
            LS_TRY(st,
                   ls_pretokenizer_work_open(&work->pretokenizer[i], rules->cut[i].pretokenizer),
                   out);
    *out = work;
out:
    if (st != LS_OK)
        free_work(work);
    return st;
}

static ls_status take_work(ls_json_rules *rules, ls_json_work **out)
{
    pthread_mutex_lock(&rules->lock);
    ls_json_work *work = rules->pool;
    if (work)
        rules->pool = work->next;
    pthread_mutex_unlock(&rules->lock);
    if (!work)
        return new_work(rules, out);
    *out = work;
    return LS_OK;
}

static void give_work(ls_json_rules *rules, ls_json_work *work)
{
    pthread_mutex_lock(&rules->lock);
    work->next = rules->pool;
    rules->pool = work;
    pthread_mutex_unlock(&rules->lock);
}

static ls_status append(ls_tokens *out, const int32_t *ids, int n)
{
    ls_status st = ls_tokens_reserve(out, n);

    if (st != LS_OK)
        return st;
    for (int i = 0; i < n; i++)
        out->ids[out->count++] = ids[i];
    return LS_OK;
}

/* What an encoding is about, for all its parts. */
typedef struct job {
    const ls_json_rules *rules;
    ls_json_work *work;
    unsigned how;
    ls_tokens *out;
} job;

/* Text between tokens that are found before normalisation. */
static ls_status encode_text(const job *j, const unsigned char *text, size_t len, bool begins)
{
    ls_status st = LS_OK;
    const ls_json_rules *rules = j->rules;
    bool continues = begins && (j->how & LS_ENCODE_CONTINUE);
    bool first = begins && !continues;
    ls_added_walk walk;
    ls_added_part part;

    LS_TRY(st, ls_norm_run(&j->work->norm, rules->norm, rules->n_norm, continues, &text, &len),
           out);
    ls_added_begin(&walk, &rules->after, text, len, j->how & LS_ENCODE_SPECIAL);
    while (ls_added_next(&walk, &part))
        if (part.id >= 0)
            LS_TRY(st, append(j->out, &part.id, 1), out);
        else
            LS_TRY(st,
                   ls_json_pieces(rules, j->work, text + part.start, part.stop - part.start,
                                  first && part.start == 0, j->out),
                   out);
out:
    return st;
}

static ls_status encode_all(const job *j, const unsigned char *bytes, size_t len)
{
    ls_status st = LS_OK;
    ls_added_walk walk;
    ls_added_part part;

    ls_added_begin(&walk, &j->rules->before, bytes, len, j->how & LS_ENCODE_SPECIAL);
    while (ls_added_next(&walk, &part))
        if (part.id >= 0)
            LS_TRY(st, append(j->out, &part.id, 1), out);
        else
            LS_TRY(st, encode_text(j, bytes + part.start, part.stop - part.start, part.start == 0),
                   out);
out:
    return st;
}

static ls_status encode(const ls_tokenizer *tok, const unsigned char *bytes, size_t len,
                        unsigned how, ls_tokens *out)
{
    ls_json_rules *rules = tok->state;
    job j = {.rules = rules, .how = how, .out = out};
    size_t good = ls_utf8_valid(bytes, len);
    int64_t before = out->count;
    ls_status st = LS_OK;

    if (good != len) {
        st = ls_fail(LS_EDATA,
                     "the text is not UTF-8 at byte %zu, and the tokenizer \"%s\" reads "
                     "characters",
                     good, tok->name);
        ls_err_hint("Set data.utf8 to \"replace\", or repair the text.");
        return st;
    }
    LS_TRY(st, take_work(rules, &j.work), out);
    if (how & LS_ENCODE_TEMPLATE)
        LS_TRY(st, append(out, rules->front, rules->n_front), out);
    LS_TRY(st, encode_all(&j, bytes, len), out);
    if (how & LS_ENCODE_TEMPLATE)
        st = append(out, rules->back, rules->n_back);
out:
    if (j.work)
        give_work(rules, j.work);
    if (st != LS_OK)
        out->count = before;
    return st;
}

int32_t ls_json_find(const ls_tokenizer *tok, const char *token)
{
    const ls_json_rules *rules = tok->state;
    int32_t id = -1;
    ls_str raw;

    for (int32_t i = 0; i < rules->n_added; i++)
        if (strcmp(rules->added[i].content, token) == 0)
            return rules->added[i].id;
    if (!rules->by_byte)
        return ls_bpe_find(rules->bpe, token, strlen(token));
    ls_str_init(&raw);
    if (ls_byte_level_text(token, &raw) && ls_str_status(&raw) == LS_OK)
        id = ls_bpe_find(rules->bpe, raw.p, raw.len);
    ls_str_release(&raw);
    return id;
}

static bool is_special(const ls_tokenizer *tok, int32_t id)
{
    const ls_json_rules *rules = tok->state;

    return id >= 0 && id < tok->vocab && rules->special[id];
}

static const unsigned char *piece(const ls_tokenizer *tok, int32_t id, bool first, size_t *len_out)
{
    const ls_json_rules *rules = tok->state;
    const ls_piece_table *table = first && rules->first.at ? &rules->first : &rules->pieces;

    *len_out = (size_t)(table->at[id + 1] - table->at[id]);
    return (const unsigned char *)table->bytes.p + table->at[id];
}

const ls_tokenizer_kind ls_tokenizer_json = {.claims = claims,
                                             .open = open_json,
                                             .close = close_json,
                                             .encode = encode,
                                             .cut = ls_json_cut,
                                             .find = ls_json_find,
                                             .is_special = is_special,
                                             .piece = piece};
