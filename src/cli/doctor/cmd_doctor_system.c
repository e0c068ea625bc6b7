/* cmd_doctor_system.c -- the doctor on GPU, build, disk and a run. */
#include "cli/doctor/cmd_doctor.h"

#include <hwloc.h>
#include <isa-l.h>
#include <jansson.h>
#include <math.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>
#include "base/disk.h"
#include "base/file.h"
#include "cli/load_run.h"
#include "config/check.h"
#include "config/option.h"
#include "data/tokenizer/tokenizer.h"
#include "device/nvml.h"
#include "kernel/kernel.h"
#include "plan/memory.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* --- GPU -------------------------------------------------------------------------------------- */

static void say_driver(ls_doctor *d)
{
    char line[256];

    ls_device_driver(line);
    if (*line)
        ls_doctor_say(d, "gpu", "driver", LS_DOCTOR_OK, "%s", line);
}

static void say_power(ls_doctor *d, const ls_nvml_reading *r)
{
    char why[128];

    ls_nvml_reasons(r->reasons, why);
    ls_doctor_say(d, "gpu", "power", ls_nvml_slowed(r->reasons) ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                  "power: %.0f of %.0f W, %.0f of %.0f MHz, memory at %.0f MHz, %.0f degrees%s%s",
                  r->power_w, r->limit_w, r->sm_mhz, r->sm_most_mhz, r->memory_mhz,
                  r->temperature_c, *why ? "; clocks are held back by " : "", why);
    ls_doctor_value(d, r->power_w);
}

static void say_errors(ls_doctor *d, const ls_nvml_reading *r)
{
    if (isnan(r->uncorrected)) {
        ls_doctor_say(d, "gpu", "errors", LS_DOCTOR_UNKNOWN,
                      "memory errors: the card does not say");
        return;
    }
    ls_doctor_say(d, "gpu", "errors", r->uncorrected > 0 ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                  "memory errors since the driver was loaded: %.0f corrected, %.0f not",
                  r->corrected, r->uncorrected);
    ls_doctor_value(d, r->uncorrected);
}

/* What the driver's management library says of the card: that it says nothing is no problem, but
 * then a run cannot report its energy. */
void ls_doctor_sensors(ls_doctor *d, const char *bus_id)
{
    ls_nvml *nvml = NULL;
    ls_nvml_reading r;
    char text[160];
    const char *why = ls_nvml_open(&nvml, bus_id, text);

    if (why) {
        ls_doctor_say(d, "gpu", "sensors", LS_DOCTOR_NOTE,
                      "power, energy and memory errors are not known: %s", why);
        return;
    }
    ls_nvml_read(nvml, &r);
    if (isnan(r.power_w))
        ls_doctor_say(d, "gpu", "power", LS_DOCTOR_UNKNOWN, "power: the card does not say");
    else
        say_power(d, &r);
    if (isnan(r.energy_j))
        ls_doctor_say(d, "gpu", "energy", LS_DOCTOR_UNKNOWN,
                      "energy: the card does not count it, so runs cannot report theirs");
    say_errors(d, &r);
    ls_nvml_close(nvml);
}

/* A GPU that is there but cannot be used is a problem; no GPU is none. */
void ls_doctor_gpu(ls_doctor *d)
{
    const char *why = ls_device_unusable("cuda");
    ls_device *gpu = NULL;

    say_driver(d);
    if (why) {
        bool none = strcmp(why, "no NVIDIA driver") == 0;
        ls_doctor_say(d, "gpu", "device", none ? LS_DOCTOR_OK : LS_DOCTOR_NOTE, "none is used: %s",
                      why);
        return;
    }
    if (ls_device_open(&gpu, "cuda", 0) != LS_OK) {
        ls_doctor_say_error(d, "gpu", "device", LS_DOCTOR_PROBLEM);
        return;
    }
    ls_device_info info = ls_device_describe(gpu);
    const ls_kernels *kernels;
    if (ls_kernel_for(gpu, "auto", &kernels) != LS_OK)
        ls_doctor_say_error(d, "gpu", "plugin", LS_DOCTOR_PROBLEM);
    ls_doctor_say(d, "gpu", "device", LS_DOCTOR_OK,
                  "%s, %.1f of %.1f GiB free; device.kind: cuda trains on it", info.name,
                  (double)info.free_bytes / (double)LS_GIB,
                  (double)info.total_bytes / (double)LS_GIB);
    ls_doctor_say(d, "gpu", "cards", LS_DOCTOR_OK,
                  "%d card%s; rank r of this machine uses card %s, and ranks of one card share its "
                  "memory",
                  info.cards, info.cards == 1 ? "" : "s",
                  info.cards == 1 ? "0" : "r modulo their number");
    ls_doctor_sensors(d, info.bus_id);
    ls_device_close(gpu);
}

/* --- build ------------------------------------------------------------------------------------ */

/* As the loaded libraries say themselves; ISA-L and hwloc cannot be asked, so these are the ones we
 * built with. */
void ls_doctor_build(ls_doctor *d)
{
    char pcre2[64] = "unknown";
    unsigned xxh = XXH_versionNumber();
    ls_str text;

    ls_str_init(&text);
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    pcre2[strcspn(pcre2, " ")] = '\0';
    ls_str_printf(&text,
                  "libraries: libyaml %s, jansson %s, zlib %s, zstd %s, xxHash %u.%u.%u, ISA-L "
                  "%d.%d.%d, PCRE2 %s, utf8proc %s, hwloc %s",
                  yaml_get_version_string(), jansson_version_str(), zlibVersion(),
                  ZSTD_versionString(), xxh / 10000, xxh / 100 % 100, xxh % 100, ISAL_MAJOR_VERSION,
                  ISAL_MINOR_VERSION, ISAL_PATCH_VERSION, pcre2, utf8proc_version(), HWLOC_VERSION);
    ls_doctor_say(d, "build", "version", LS_DOCTOR_OK, "lineshaft %s, built by %s", LS_VERSION,
                  COMPILER);
    ls_doctor_say(d, "build", "libraries", LS_DOCTOR_OK, "%s", text.p);
    if (hwloc_get_api_version() >> 16 != HWLOC_API_VERSION >> 16)
        ls_doctor_say(d, "build", "hwloc", LS_DOCTOR_PROBLEM,
                      "hwloc is of another major version than the one this program was built with");
    ls_str_release(&text);
}

/* --- disk ------------------------------------------------------------------------------------- */

void ls_doctor_disk(ls_doctor *d)
{
    const char *folder = d->run ? d->run->out : ".";
    char means[96];
    int64_t bytes;

    ls_disk_means(means, sizeof means);
    ls_doctor_say(d, "disk", "io", LS_DOCTOR_OK, "checkpoints are written and read by %s", means);
    if (ls_file_free_bytes(folder, &bytes) != LS_OK) {
        ls_doctor_say_error(d, "disk", "free", LS_DOCTOR_PROBLEM);
        return;
    }
    bool little = bytes < LS_GIB;
    ls_doctor_say(d, "disk", "free", little ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                  "%.1f GiB are free for \"%s\"%s", (double)bytes / (double)LS_GIB, folder,
                  little ? ": little for checkpoints" : "");
    ls_doctor_value(d, (double)bytes);
}

/* --- the run ---------------------------------------------------------------------------------- */

static void say_valid(ls_doctor *d, const ls_model *model)
{
    const ls_option *family = ls_option_find("model.family");
    const ls_run *run = d->run;

    ls_doctor_say(
        d, "run", "valid", LS_DOCTOR_OK,
        "\"%s\" is valid: %s with %.2f million parameters, %lld x %lld tokens a step, into "
        "\"%s\"",
        run->path, family->names[run->model.family], (double)model->elements / 1e6,
        (long long)run->batch.sequences, (long long)run->model.context, run->out);
}

/* What the ledger of a start would say, but for the mapped text, which need not be encoded yet. */
static void say_memory(ls_doctor *d, const ls_model *model, const ls_kernels *kernels)
{
    ls_device_info info = ls_device_describe(d->device);
    ls_memory_args args = {.run = d->run,
                           .model = model,
                           .kernels = kernels,
                           .threads = info.threads,
                           .program_bytes = ls_ledger_resident_bytes()};
    ls_ledger ledger;

    args.program_bytes -= (int64_t)info.threads * LS_STREAM_THREAD_BYTES;
    ls_status st = ls_memory_choose_packs(&args, info.free_bytes);
    ls_memory_predict(&args, &ledger);
    if (st != LS_OK || ls_memory_check(&args, &ledger, info.free_bytes) != LS_OK) {
        ls_doctor_say_error(d, "run", "memory", LS_DOCTOR_PROBLEM);
    } else {
        ls_str parts;
        ls_str_init(&parts);
        for (int i = 0; i < ledger.count; i++)
            ls_str_printf(&parts, "%s%s %.1f", i ? ", " : "", ledger.items[i].name,
                          (double)ledger.items[i].bytes / (double)LS_MIB);
        ls_doctor_say(d, "run", "memory", LS_DOCTOR_OK,
                      "it needs %.1f MiB of memory beside the token shards, %.1f MiB are free "
                      "(in MiB: %s)",
                      ls_size_up(ls_ledger_total(&ledger), LS_MIB),
                      ls_size_down(info.free_bytes, LS_MIB), parts.p);
        ls_str_release(&parts);
    }
    ls_doctor_value(d, (double)ls_ledger_total(&ledger));
}

/* A checkpoint is weights and moments; while one is written, those to keep are still there. */
static void say_disk(ls_doctor *d, const ls_model *model)
{
    int64_t each = (model->elements + 2 * model->trained) * (int64_t)sizeof(float), bytes;
    int64_t kept = ls_max_i64(d->run->checkpoint.keep, 2), need = each * (kept + 1);

    if (ls_file_free_bytes(d->run->out, &bytes) != LS_OK) {
        ls_err_clear();
        return; /* said under "disk" */
    }
    ls_doctor_say(d, "run", "disk", need > bytes ? LS_DOCTOR_PROBLEM : LS_DOCTOR_OK,
                  "its checkpoints need up to %.1f GiB (%lld of %.1f MiB, and one being written), "
                  "%.1f GiB are free",
                  ls_size_up(need, LS_GIB), (long long)kept, ls_size_up(each, LS_MIB),
                  ls_size_down(bytes, LS_GIB));
    ls_doctor_value(d, (double)need);
}

void ls_doctor_run(ls_doctor *d)
{
    const ls_option *isa = ls_option_find("device.isa");
    const ls_kernels *kernels;
    ls_tokenizer *tok = NULL;
    ls_model model = {.params = NULL};
    ls_status st;

    LS_TRY(st, ls_load_run_prove(d->run), out);
    LS_TRY(st, ls_tokenizer_open(&tok, d->run->data.tokenizer), out);
    LS_TRY(st, ls_model_init(&model, d->run, ls_tokenizer_vocab(tok)), out);
    say_valid(d, &model);
    if (d->device && ls_kernel_pick(isa->names[d->run->device.isa], &kernels) == LS_OK)
        say_memory(d, &model, kernels);
    ls_err_clear();
    say_disk(d, &model);
out:
    if (st != LS_OK)
        ls_doctor_say_error(d, "run", "valid", LS_DOCTOR_PROBLEM);
    ls_model_release(&model);
    ls_tokenizer_free(tok);
}
