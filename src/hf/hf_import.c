/* hf_import.c -- a Hugging Face folder becomes one of ours.
 *
 * Everything is read and proved before the first byte is written; then the new folder is made
 * beside its final place and renamed. Its checkpoint is that of a run with zero steps, whose
 * settings describe the model, so every command that takes a checkpoint takes it. */
#include "hf/hf_import.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/new_folder.h"
#include "base/time.h"
#include "config/explain.h"
#include "hf/hf_base.h"
#include "hf/hf_copy.h"
#include "hf/special_ids.h"

/* The last part of a path as the name of a run. */
static const char *run_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;

    return *base && base[0] != '.' && strlen(base) <= 200 ? base : "imported";
}

/* The run that the checkpoint says made it. */
static void describe(const ls_loaded_model *r, const ls_new_folder *stage, ls_str *config_out)
{
    ls_run run = r->run;

    run.name = run_name(stage->final);
    run.out = stage->final;
    run.model.import = "";
    run.data.tokenizer = stage->final;
    ls_explain_yaml(&run, config_out);
}

static ls_status save(const ls_loaded_model *r, const ls_new_folder *stage,
                      ls_hf_import_report *report)
{
    char dir[sizeof stage->path + 16];
    ls_ckpt_store *store = NULL;
    ls_ckpt_tensor *rows = NULL;
    ls_str config;
    int n;
    ls_status st;

    ls_str_init(&config);
    snprintf(dir, sizeof dir, "%s/checkpoints", stage->path);
    describe(r, stage, &config);
    LS_TRY(st, ls_str_status(&config), out);
    LS_TRY(st, ls_loaded_model_rows(r, &rows, &n), out);
    LS_TRY(st, ls_ckpt_weights_hash(rows, n, report->weights_hash), out);
    LS_TRY(st, ls_ckpt_open(&store, dir, true), out);
    ls_ckpt_info info = {.loss = (double)NAN,
                         .val_loss = (double)NAN,
                         .run_name = run_name(stage->final),
                         .mesh = "dp=1",
                         .config = config.p,
                         .extra = ""};
    memcpy(info.weights_hash, report->weights_hash, sizeof info.weights_hash);
    LS_TRY(st, ls_ckpt_save(store, &info, rows, n, NULL), out);
out:
    ls_ckpt_close(store);
    ls_mem_free(rows);
    ls_str_release(&config);
    return st;
}

/* Compare with the fingerprint that came along, or make the first one. */
static ls_status prove(const ls_hf_folder *f, const ls_loaded_model *r, ls_fingerprint *print,
                       ls_hf_import_report *report)
{
    bool found;
    ls_status st;

    LS_TRY(st, ls_fingerprint_read(print, ls_hf_folder_home(f), &found), out);
    if (!found)
        return ls_fingerprint_make(r, print);
    report->proof = LS_HF_IMPORT_PROVED;
    LS_TRY(
        st,
        ls_fingerprint_verify(r, print, LS_FINGERPRINT_F32, ls_hf_folder_path(f), &report->worst),
        out);
out:
    return st;
}

/* Is it a model of language at all? Only where its tokenizer can be read. */
static ls_status measure(const ls_hf_folder *f, const ls_loaded_model *r,
                         ls_hf_import_report *report)
{
    ls_tokenizer *tok = NULL;
    ls_status st = ls_hf_folder_tokenizer(f, &tok);

    report->loss = (double)NAN;
    if (st != LS_OK) {
        if (st == LS_ENOMEM)
            return st;
        snprintf(report->problem, sizeof report->problem, "%s", ls_err_last()->text);
        ls_err_clear();
        return LS_OK;
    }
    report->tokens = ls_tokenizer_vocab(tok);
    if (report->tokens <= report->vocab)
        st = ls_fingerprint_loss(r, tok, &report->loss, &report->loss_tokens);
    ls_tokenizer_free(tok);
    return st;
}

static void fill_report(const ls_hf_folder *f, const ls_loaded_model *r,
                        ls_hf_import_report *report)
{
    const ls_model_shape *s = &r->model.shape;

    *report = (ls_hf_import_report){.family = s->family,
                                    .parameters = r->model.elements,
                                    .layers = s->L,
                                    .width = s->C,
                                    .context = s->T,
                                    .vocab = s->V,
                                    .files = ls_hf_folder_files(f),
                                    .loss = (double)NAN};
    snprintf(report->dtype, sizeof report->dtype, "%s", ls_hf_folder_dtype(f));
}

static ls_status write_all(const ls_hf_folder *f, const ls_loaded_model *r,
                           const ls_new_folder *stage, const ls_fingerprint *print,
                           ls_hf_import_report *report)
{
    const char *from = ls_hf_folder_home(f);
    bool done;
    int files;
    ls_status st;

    LS_TRY(st, ls_hf_copy_file(from, stage->path, "config.json", &done), out);
    LS_TRY(st, ls_hf_base_note(from, stage->path), out);
    LS_TRY(st, ls_hf_copy_file(from, stage->path, "generation_config.json", &done), out);
    LS_TRY(st, ls_hf_copy_tokenizer(from, stage->path, &files), out);
    report->tokenizer = files > 0;
    LS_TRY(st, ls_fingerprint_write(print, stage->path), out);
    LS_TRY(st, save(r, stage, report), out);
out:
    return st;
}

ls_status ls_hf_import(const char *from, const char *to, ls_hf_import_report *report_out)
{
    int64_t start_ns = ls_time_now_ns();
    ls_hf_folder *f = NULL;
    ls_loaded_model r = {.w = NULL};
    ls_new_folder stage = {.path = ""};
    ls_fingerprint print;
    ls_hf_import_report report;
    ls_special_ids ids;
    ls_status st;

    ls_err_doing("importing \"%s\"", from);
    LS_TRY(st, ls_hf_folder_open(&f, from, -1), out);
    if (!ls_hf_folder_is_hf(f)) {
        st = ls_fail(LS_EUSAGE, "\"%s\" is a model of lineshaft already", from);
        ls_err_hint("Use it as it is: every command that takes a checkpoint takes it.");
        goto out;
    }
    LS_TRY(st, ls_new_folder_begin(&stage, to), out);
    LS_TRY(st, ls_loaded_model_open(&r, f), out);
    fill_report(f, &r, &report);
    LS_TRY(st, prove(f, &r, &print, &report), out);
    LS_TRY(st, measure(f, &r, &report), out);
    LS_TRY(st, ls_special_ids_find(f, NULL, false, &ids),
           out); /* generation_config.json is sound */
    LS_TRY(st, write_all(f, &r, &stage, &print, &report), out);
    LS_TRY(st, ls_new_folder_commit(&stage), out);
    report.seconds = (double)(ls_time_now_ns() - start_ns) / 1e9;
    *report_out = report;
out:
    ls_new_folder_drop(&stage);
    ls_loaded_model_close(&r);
    ls_hf_folder_close(f);
    ls_err_done();
    return st;
}
