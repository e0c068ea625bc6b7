/* cmd_doctor_cpu.c -- the doctor on processor, cores, memory and speed. */
#include "cli/doctor/cmd_doctor.h"

#include <sys/resource.h>
#include "base/time.h"
#include "config/option.h"
#include "device/cpu/cgroup.h"
#include "kernel/cpu/dot/dot.h"
#include "kernel/kernel.h"
#include "kernel/peak.h"

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* The first line of a file, "" when it cannot be read. */
static void first_line(const char *path, char *line_out, int cap)
{
    FILE *f = fopen(path, "re");

    line_out[0] = '\0';
    if (f && fgets(line_out, cap, f))
        line_out[strcspn(line_out, "\n")] = '\0';
    if (f)
        fclose(f);
}

/* --- processor -------------------------------------------------------------------------------- */

/* What follows "name :" in /proc/cpuinfo for the first CPU that has it; "" when none does. */
static void cpuinfo(const char *name, ls_str *out)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    size_t cap = 0, len = strlen(name);
    char *line = NULL;

    while (f && getline(&line, &cap, f) > 0) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, name, len) != 0 ||
            strspn(line + len, " \t") + line + len != colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        ls_str_append(out, colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    free(line);
    if (f)
        fclose(f);
}

static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = list; (p = strstr(p, word)); p += len)
        if ((p == list || p[-1] == ' ') && (p[len] == ' ' || p[len] == '\0'))
            return true;
    return false;
}

static void say_instructions(ls_doctor *d)
{
    static const struct {
        const char *flag, *name;
    } sets[] = {{"avx2", "AVX2"},
                {"fma", "FMA"},
                {"avx512f", "AVX-512 F"},
                {"avx512bw", "BW"},
                {"avx512dq", "DQ"},
                {"avx512vl", "VL"},
                {"avx512_bf16", "AVX512_BF16"},
                {"amx_bf16", "AMX-BF16"}};
    ls_str flags, has, lacks;

    ls_str_init(&flags);
    ls_str_init(&has);
    ls_str_init(&lacks);
    cpuinfo("flags", &flags);
    for (size_t i = 0; i < LS_COUNT(sets); i++) {
        ls_str *to = has_word(flags.p, sets[i].flag) ? &has : &lacks;
        ls_str_printf(to, "%s%s", to->len ? ", " : "", sets[i].name);
    }
    if (flags.len == 0)
        ls_doctor_say(d, "cpu", "instructions", LS_DOCTOR_UNKNOWN,
                      "instruction sets: the system does not list them");
    else
        ls_doctor_say(d, "cpu", "instructions", LS_DOCTOR_OK, "instruction sets: %s%s%s",
                      has.len ? has.p : "none that lineshaft has kernels for",
                      lacks.len ? "; not here: " : "", lacks.p);
    ls_str_release(&flags);
    ls_str_release(&has);
    ls_str_release(&lacks);
}

/* Why not the next better kernels: the registry's own words. */
static void why_not_better(const char *picked, ls_str *out)
{
    const char *better = strcmp(picked, "avx2") == 0      ? "avx512"
                         : strcmp(picked, "generic") == 0 ? "avx2"
                                                          : NULL;
    const ls_kernels *kernels;

    if (!better) {
        ls_str_append(out, "the best that this program has");
        return;
    }
    if (ls_kernel_pick(better, &kernels) == LS_OK)
        ls_str_append(out, "as device.isa says; this CPU could run better ones");
    else
        ls_str_append(out, ls_err_last()->text);
    ls_err_clear();
}

/* Which way products of bf16 go, and why not a better one. */
static void say_bf16(ls_doctor *d, const char *kernels)
{
    static const char *const ways[LS_DOTS] = {
        [LS_DOT_OFF] = "widened to fp32",
        [LS_DOT_AVX512] = "pairs by AVX512_BF16",
        [LS_DOT_AMX] = "tiles by AMX",
        [LS_DOT_EMULATE_AVX512] = "AVX512_BF16 emulated, which is slow",
        [LS_DOT_EMULATE_AMX] = "AMX emulated, which is slow",
    };
    const char *asked = getenv(LS_DOT_VARIABLE), *amx = ls_dot_obstacle(LS_DOT_AMX);
    const char *pairs = ls_dot_obstacle(LS_DOT_AVX512);
    ls_dot dot = ls_dot_chosen();
    bool slow = dot == LS_DOT_EMULATE_AVX512 || dot == LS_DOT_EMULATE_AMX;

    if (strcmp(kernels, "avx512") != 0)
        ls_doctor_say(d, "cpu", "bf16", LS_DOCTOR_OK,
                      "bf16 products: widened to fp32, as the %s kernels always do; bf16 saves "
                      "memory, not time",
                      kernels);
    else if (asked && *asked && strcmp(asked, "auto") != 0)
        ls_doctor_say(d, "cpu", "bf16", slow ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                      "bf16 products: %s, as " LS_DOT_VARIABLE "=%s says", ways[dot], asked);
    else if (dot == LS_DOT_OFF)
        ls_doctor_say(d, "cpu", "bf16", LS_DOCTOR_OK,
                      "bf16 products: widened to fp32: %s, and %s; bf16 saves memory, not time",
                      pairs, amx);
    else
        ls_doctor_say(d, "cpu", "bf16", LS_DOCTOR_OK,
                      "bf16 products: %s%s%s. Their bits are not those of other CPUs; " //
                      LS_DOT_VARIABLE "=off gives bits that all have",
                      ways[dot], dot == LS_DOT_AVX512 ? ": " : "", dot == LS_DOT_AVX512 ? amx : "");
}

static void say_products(ls_doctor *d)
{
    const ls_option *isa = ls_option_find("device.isa");
    const char *asked = d->run ? isa->names[d->run->device.isa] : "auto";
    const ls_kernels *kernels;
    ls_str why;

    if (ls_kernel_pick(asked, &kernels) != LS_OK) {
        ls_doctor_say_error(d, "cpu", "kernels", LS_DOCTOR_PROBLEM);
        return;
    }
    ls_str_init(&why);
    why_not_better(kernels->name, &why);
    bool slow = strcmp(kernels->name, "reference") == 0 || strcmp(kernels->name, "generic") == 0;
    ls_doctor_say(d, "cpu", "kernels", slow ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                  "kernels: %s (device.isa: %s): %s", kernels->name, asked, why.p);
    ls_doctor_say(d, "cpu", "products", LS_DOCTOR_OK,
                  "matrix products: lineshaft's own, core type %s. OpenBLAS, oneDNN, BLIS and "
                  "libxsmm are not used: only with ours the bits are the same for any number of "
                  "threads, batch cut and instruction set; bench/products.sh measures "
                  "them beside ours",
                  kernels->name);
    say_bf16(d, kernels->name);
    ls_str_release(&why);
}

void ls_doctor_cpu(ls_doctor *d)
{
    ls_str model;

    ls_str_init(&model);
    cpuinfo("model name", &model);
    if (model.len)
        ls_doctor_say(d, "cpu", "model", LS_DOCTOR_OK, "%s", model.p);
    else
        ls_doctor_say(d, "cpu", "model", LS_DOCTOR_UNKNOWN, "the system does not name this CPU");
    ls_str_release(&model);
    say_instructions(d);
    say_products(d);
}

/* --- cores ------------------------------------------------------------------------------------ */

static void say_topology(ls_doctor *d)
{
    const ls_cpus *c = &d->cpus;
    double each = (double)c->cpus / c->cores;

    if (!c->known) {
        ls_doctor_say(d, "cores", "topology", LS_DOCTOR_UNKNOWN,
                      "%d CPU%s; which of them share a core cannot be read", c->cpus,
                      plural(c->cpus));
        return;
    }
    ls_doctor_say(d, "cores", "topology", LS_DOCTOR_OK,
                  "%d core%s, %.3g CPU%s (hyperthread%s) on each, %d package%s, %d NUMA node%s, "
                  "last-level caches: %d",
                  c->cores, plural(c->cores), each, each > 1 ? "s" : "", each > 1 ? "s" : "",
                  c->packages, plural(c->packages), c->nodes, plural(c->nodes), c->l3s);
    ls_doctor_value(d, c->cores);
    if (c->mask_nodes > 1 && c->ranks == 1)
        ls_doctor_say(d, "cores", "numa", LS_DOCTOR_NOTE,
                      "one process spans %d NUMA nodes, and its memory lies on one of them: "
                      "threads of the others read it more slowly",
                      c->mask_nodes);
}

static void say_limits(ls_doctor *d)
{
    const ls_cpus *c = &d->cpus;

    if (c->bound)
        ls_doctor_say(d, "cores", "affinity", LS_DOCTOR_NOTE,
                      "affinity: this process may use %d of %d CPUs", c->mask_cpus, c->cpus);
    else
        ls_doctor_say(d, "cores", "affinity", LS_DOCTOR_OK,
                      "affinity: this process may use every CPU");
    ls_doctor_value(d, c->mask_cpus);
    if (c->quota > 0) {
        ls_doctor_say(d, "cores", "quota", c->quota < c->mask_cores ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                      "CPU quota: time of %.2f CPUs, set by \"%s\"", c->quota, c->quota_folder);
        ls_doctor_value(d, c->quota);
    } else {
        ls_doctor_say(d, "cores", "quota", LS_DOCTOR_OK, "CPU quota: none");
    }
    if (c->ranks_from && c->rank >= 0)
        ls_doctor_say(d, "cores", "ranks", LS_DOCTOR_OK,
                      "launcher: this is number %d of %d rank%s on this node (%s)", c->rank,
                      c->ranks, plural(c->ranks), c->ranks_from);
    else if (c->ranks_from)
        ls_doctor_say(d, "cores", "ranks", LS_DOCTOR_NOTE,
                      "launcher: %d ranks on this node (%s), and which one this is, is not known",
                      c->ranks, c->ranks_from);
}

static void say_threads(ls_doctor *d)
{
    const ls_cpus *c = &d->cpus;
    bool given = d->run && d->run->device.threads != LS_RUN_AUTO;
    int threads = given ? (int)d->run->device.threads : c->threads;
    ls_pin pin = d->run ? d->run->device.pin : LS_PIN_AUTO;
    const char *why;
    ls_str text;

    ls_str_init(&text);
    ls_cpus_explain(c, &text);
    if (given)
        ls_doctor_say(
            d, "cores", "threads", ls_cpus_crowded(c, threads) ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
            "threads: %d, as device.threads says%s; auto would take %s", threads,
            ls_cpus_crowded(c, threads) ? " (more than there is CPU time for)" : "", text.p);
    else
        ls_doctor_say(d, "cores", "threads", LS_DOCTOR_OK, "threads: %s", text.p);
    ls_doctor_value(d, threads);
    ls_str_release(&text);
    bool pins = ls_cpus_pins(c, threads, pin == LS_PIN_ON, &why) != NULL && pin != LS_PIN_OFF;
    ls_doctor_say(d, "cores", "pinning", pin == LS_PIN_ON && !pins ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                  "threads are %spinned: %s", pins ? "" : "not ",
                  pin == LS_PIN_OFF          ? "device.pin is off"
                  : pin == LS_PIN_ON && pins ? "device.pin is on"
                                             : why);
}

/* Time of our CPUs in hundredths of seconds since the start: not idle, stolen by the hypervisor. */
static bool cpu_times(const ls_cpus *cpus, double *busy_out, double *stolen_out)
{
    FILE *f = fopen("/proc/stat", "re");
    double t[8], busy = 0, stolen = 0;
    char line[512];
    int cpu, found = 0;

    while (f && fgets(line, sizeof line, f)) {
        bool ours = false;
        if (sscanf(line, "cpu%d %lf %lf %lf %lf %lf %lf %lf %lf", &cpu, &t[0], &t[1], &t[2], &t[3],
                   &t[4], &t[5], &t[6], &t[7]) != 9)
            continue;
        for (int i = 0; i < cpus->mask_cores && !ours; i++)
            ours = ls_pool_mask_has(&cpus->core[i], cpu);
        if (!ours)
            continue;
        busy += t[0] + t[1] + t[2] + t[5] + t[6]; /* user, nice, system, interrupts */
        stolen += t[7];
        found++;
    }
    if (f)
        fclose(f);
    *busy_out = busy;
    *stolen_out = stolen;
    return found > 0;
}

/* How busy other processes are now. Our own process sleeps meanwhile. */
static void say_busy(ls_doctor *d)
{
    const struct timespec wait = {.tv_nsec = 300 * LS_NS_PER_MS};
    double busy[2], stolen[2];
    char load[64];

    if (!d->measure) {
        first_line("/proc/loadavg", load, sizeof load);
        load[strcspn(load, " ")] = '\0';
        bool high = strtod(load, NULL) > 0.5 * d->cpus.cpus;
        ls_doctor_say(d, "cores", "busy",
                      !*load ? LS_DOCTOR_UNKNOWN
                      : high ? LS_DOCTOR_NOTE
                             : LS_DOCTOR_OK,
                      "load average of the last minute: %s", *load ? load : "unknown");
        return;
    }
    int64_t start = ls_time_now_ns();
    bool known = cpu_times(&d->cpus, &busy[0], &stolen[0]);
    nanosleep(&wait, NULL);
    double seconds = (double)(ls_time_now_ns() - start) / (double)LS_NS_PER_S;
    if (!known || !cpu_times(&d->cpus, &busy[1], &stolen[1])) {
        ls_doctor_say(d, "cores", "busy", LS_DOCTOR_UNKNOWN, "whether others compute is unknown");
        return;
    }
    double others = (busy[1] - busy[0]) / 100 / seconds;
    double gone = (stolen[1] - stolen[0]) / 100 / seconds;
    bool quiet = others < 0.15 && gone < 0.05;
    ls_doctor_say(d, "cores", "busy", quiet ? LS_DOCTOR_OK : LS_DOCTOR_NOTE,
                  "other processes use %.1f of %d CPU%s now%s%s", others, d->cpus.mask_cpus,
                  plural(d->cpus.mask_cpus),
                  gone >= 0.05 ? ", and the hypervisor gives others a part of them" : "",
                  quiet ? "" : ": training and the speeds below are slower than they could be");
    ls_doctor_value(d, others);
    d->busy = !quiet;
}

void ls_doctor_cores(ls_doctor *d)
{
    say_topology(d);
    say_limits(d);
    say_threads(d);
    say_busy(d);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void say_huge_pages(ls_doctor *d)
{
    char line[128];

    first_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line);
    char *open = strchr(line, '['), *close = open ? strchr(open, ']') : NULL;
    if (!close) {
        ls_doctor_say(d, "memory", "huge_pages", LS_DOCTOR_UNKNOWN,
                      "transparent huge pages: unknown");
        return;
    }
    *close = '\0';
    bool never = strcmp(open + 1, "never") == 0;
    ls_doctor_say(d, "memory", "huge_pages", never ? LS_DOCTOR_NOTE : LS_DOCTOR_OK,
                  "transparent huge pages: %s%s", open + 1,
                  never ? "; products of large matrices gain from them" : "");
}

void ls_doctor_memory(ls_doctor *d)
{
    int64_t machine = ls_cgroup_number("/proc", "meminfo", "MemTotal") * LS_KIB;
    struct rlimit limit;

    if (!d->device) {
        ls_doctor_say(d, "memory", "free", LS_DOCTOR_UNKNOWN, "free memory: unknown");
    } else {
        ls_device_info info = ls_device_describe(d->device);
        ls_doctor_say(d, "memory", "free", LS_DOCTOR_OK, "%.1f of %.1f GiB are free",
                      (double)info.free_bytes / (double)LS_GIB,
                      (double)info.total_bytes / (double)LS_GIB);
        ls_doctor_value(d, (double)info.free_bytes);
        if (machine > 0 && info.total_bytes < machine)
            ls_doctor_say(d, "memory", "limit", LS_DOCTOR_NOTE,
                          "a control group allows %.1f of the %.1f GiB of the machine",
                          (double)info.total_bytes / (double)LS_GIB,
                          (double)machine / (double)LS_GIB);
    }
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        ls_doctor_say(d, "memory", "address_space", LS_DOCTOR_NOTE,
                      "the address space of a process is limited to %.1f GiB (ulimit -v)",
                      (double)limit.rlim_cur / (double)LS_GIB);
    say_huge_pages(d);
}

/* --- speed ------------------------------------------------------------------------------------ */

/* Cycles a second of this core now: a chain of additions takes one cycle each (of registers: newer
 * cores add constants for nothing). 0: not known here. */
static double clock_rate(void)
{
#if defined(__x86_64__)
    enum { CHAINS = 200000, CHAIN = 10, TRIES = 5 };
    double best = 0;

    for (int k = 0; k < TRIES; k++) {
        uint64_t x = 0, one = 1;
        int64_t start = ls_time_now_ns();
        for (int i = 0; i < CHAINS; i++)
            __asm__ volatile("add %1,%0\n add %1,%0\n add %1,%0\n add %1,%0\n add %1,%0\n"
                             "add %1,%0\n add %1,%0\n add %1,%0\n add %1,%0\n add %1,%0"
                             : "+r"(x)
                             : "r"(one)
                             : "cc");
        double rate = (double)CHAINS * CHAIN / (double)(ls_time_now_ns() - start) * 1e9;
        best = rate > best ? rate : best;
    }
    return best;
#else
    return 0;
#endif
}

static void say_units(ls_doctor *d, const char *kernels, double flops, int threads)
{
    int lanes = strcmp(kernels, "avx512") == 0 ? 16 : strcmp(kernels, "avx2") == 0 ? 8 : 0;
    double hz = clock_rate();

    if (lanes == 0 || hz <= 0 || d->busy || threads > d->cpus.share)
        return; /* two rates that were not measured under equal conditions do not divide */
    ls_doctor_say(d, "speed", "fma_units", LS_DOCTOR_OK,
                  "each core does %.1f fused multiply-adds of %d lanes a cycle, at %.2f GHz",
                  flops / threads / hz / 2 / lanes, lanes, hz / 1e9);
    ls_doctor_value(d, flops / threads / hz / 2 / lanes);
}

void ls_doctor_speed(ls_doctor *d)
{
    const ls_kernels *kernels;

    if (!d->measure || !d->device || ls_kernel_pick("auto", &kernels) != LS_OK)
        return;
    int threads = ls_device_describe(d->device).threads;
    double flops = ls_peak_flops(d->device, "auto"), bytes = ls_peak_bandwidth(d->device);
    ls_doctor_say(d, "speed", "fma_peak", flops > 0 ? LS_DOCTOR_OK : LS_DOCTOR_UNKNOWN,
                  "multiply-add peak: %.0f GFLOP/s, %d thread%s, %s", flops / 1e9, threads,
                  plural(threads), kernels->name);
    ls_doctor_value(d, flops);
    if (flops > 0)
        say_units(d, kernels->name, flops, threads);
    if (bytes > 0) {
        ls_doctor_say(d, "speed", "bandwidth", LS_DOCTOR_OK, "main memory: %.1f GB/s, %d thread%s",
                      bytes / 1e9, threads, plural(threads));
        ls_doctor_value(d, bytes);
    } else {
        ls_doctor_say(d, "speed", "bandwidth", LS_DOCTOR_UNKNOWN,
                      "main memory: not measured, 192 MiB are not free");
    }
}
