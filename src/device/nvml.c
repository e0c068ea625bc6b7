/* nvml.c -- NVML by hand: the functions we call, with the types they have had since driver 450.
 *
 * One table says which symbol fills which pointer; all are optional but those that start the
 * library and find a card. The library is never closed: it may be the one that the CUDA driver has
 * opened too. */
#include "device/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include "base/err.h"
#include "base/mem.h"

#define LIBRARY "libnvidia-ml.so.1"
#define VARIABLE "LINESHAFT_NVML"

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0, SINCE_LOAD = 0, EVENT_XID = 8 };
enum { CORRECTED = 0, UNCORRECTED = 1, XIDS_AT_ONCE = 64 };

typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;

typedef struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_data;

/* All return 0 when they worked. */
struct ls_nvml {
    void *library, *card, *events;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_index)(unsigned index, void **card_out);
    int (*by_bus)(const char *bus_id, void **card_out);
    int (*power)(void *card, unsigned *milliwatts_out);
    int (*limit)(void *card, unsigned *milliwatts_out);
    int (*energy)(void *card, unsigned long long *millijoules_out);
    int (*clock)(void *card, int kind, unsigned *mhz_out);
    int (*most_clock)(void *card, int kind, unsigned *mhz_out);
    int (*temperature)(void *card, int sensor, unsigned *celsius_out);
    int (*memory)(void *card, memory_info *info_out);
    int (*ecc)(void *card, int kind, int counter, unsigned long long *count_out);
    int (*reasons)(void *card, unsigned long long *bits_out);
    int (*event_set)(void **set_out);
    int (*event_free)(void *set);
    int (*event_register)(void *card, unsigned long long types, void *set);
    int (*event_wait)(void *set, event_data *data_out, unsigned timeout_ms);
    int64_t xids, last_xid;
};

typedef struct symbol {
    const char *name;
    size_t at; /* of the pointer in ls_nvml */
    bool needed;
} symbol;

#define AT(member) offsetof(struct ls_nvml, member)
static const symbol symbols[] = {
    {"nvmlInit_v2", AT(init), true},
    {"nvmlShutdown", AT(shutdown), true},
    {"nvmlDeviceGetHandleByIndex_v2", AT(by_index), true},
    {"nvmlDeviceGetHandleByPciBusId_v2", AT(by_bus), true},
    {"nvmlDeviceGetPowerUsage", AT(power), false},
    {"nvmlDeviceGetEnforcedPowerLimit", AT(limit), false},
    {"nvmlDeviceGetTotalEnergyConsumption", AT(energy), false},
    {"nvmlDeviceGetClockInfo", AT(clock), false},
    {"nvmlDeviceGetMaxClockInfo", AT(most_clock), false},
    {"nvmlDeviceGetTemperature", AT(temperature), false},
    {"nvmlDeviceGetMemoryInfo", AT(memory), false},
    {"nvmlDeviceGetTotalEccErrors", AT(ecc), false},
    {"nvmlDeviceGetCurrentClocksThrottleReasons", AT(reasons), false},
    {"nvmlEventSetCreate", AT(event_set), false},
    {"nvmlEventSetFree", AT(event_free), false},
    {"nvmlDeviceRegisterEvents", AT(event_register), false},
    {"nvmlEventSetWait_v2", AT(event_wait), false},
};

/* The symbols; the name of the first needed one that is missing, or NULL. */
static const char *look_up(ls_nvml *n)
{
    for (size_t i = 0; i < LS_COUNT(symbols); i++) {
        void *p = dlsym(n->library, symbols[i].name);
        if (!p && symbols[i].needed)
            return symbols[i].name;
        memcpy((char *)n + symbols[i].at, &p, sizeof p);
    }
    return NULL;
}

/* Errors of the GPU come as events; a card or driver without them has none. */
static void watch_errors(ls_nvml *n)
{
    if (!n->event_set || !n->event_free || !n->event_register || !n->event_wait ||
        n->event_set(&n->events) != 0)
        return;
    if (n->event_register(n->card, EVENT_XID, n->events) != 0) {
        n->event_free(n->events);
        n->events = NULL;
    }
}

static bool start(ls_nvml *n, const char *bus_id, char why_out[160])
{
    const char *given = getenv(VARIABLE), *name = given && *given ? given : LIBRARY;
    const char *missing;

    n->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        snprintf(why_out, 160, "there is no \"%.120s\"", name);
        return false;
    }
    missing = look_up(n);
    if (missing) {
        snprintf(why_out, 160, "\"%.80s\" lacks %s", name, missing);
        return false;
    }
    int code = n->init();
    if (code != 0) {
        snprintf(why_out, 160, "\"%.80s\" does not start (NVML's code %d)", name, code);
        return false;
    }
    code = *bus_id ? n->by_bus(bus_id, &n->card) : n->by_index(0, &n->card);
    if (code == 0)
        return true;
    snprintf(why_out, 160, "it does not know the card %.40s (NVML's code %d)",
             *bus_id ? bus_id : "0", code);
    n->shutdown();
    return false;
}

const char *ls_nvml_open(ls_nvml **nvml_out, const char *bus_id, char why_out[160])
{
    ls_nvml found = {.library = NULL}, *n;

    if (!start(&found, bus_id, why_out))
        return why_out;
    n = ls_mem_alloc(sizeof *n);
    if (!n) {
        ls_err_clear();
        found.shutdown();
        snprintf(why_out, 160, "there is no memory for it");
        return why_out;
    }
    *n = found;
    watch_errors(n);
    *nvml_out = n;
    return NULL;
}

void ls_nvml_close(ls_nvml *nvml)
{
    if (!nvml)
        return;
    if (nvml->events)
        nvml->event_free(nvml->events);
    nvml->shutdown();
    ls_mem_free(nvml);
}

/* --- reading -------------------------------------------------------------------------------- */

static double small_value(int (*get)(void *, unsigned *), void *card, double unit)
{
    unsigned value;

    return get && get(card, &value) == 0 ? value * unit : (double)NAN;
}

static double large_value(int (*get)(void *, unsigned long long *), void *card, double unit)
{
    unsigned long long value;

    return get && get(card, &value) == 0 ? (double)value * unit : (double)NAN;
}

/* Of functions that have an argument for which one. */
static double chosen_value(int (*get)(void *, int, unsigned *), void *card, int which)
{
    unsigned value;

    return get && get(card, which, &value) == 0 ? (double)value : (double)NAN;
}

static double errors(const ls_nvml *n, int kind)
{
    unsigned long long count;

    return n->ecc && n->ecc(n->card, kind, SINCE_LOAD, &count) == 0 ? (double)count : (double)NAN;
}

static void count_xids(ls_nvml *n)
{
    event_data data;

    for (int i = 0; n->events && i < XIDS_AT_ONCE; i++) {
        if (n->event_wait(n->events, &data, 0) != 0)
            return;
        n->xids++;
        n->last_xid = (int64_t)data.data;
    }
}

void ls_nvml_read(ls_nvml *nvml, ls_nvml_reading *reading_out)
{
    static const ls_nvml nothing = {.library = NULL};
    ls_nvml none = nothing, *n = nvml ? nvml : &none;
    memory_info memory;
    bool known = n->memory && n->memory(n->card, &memory) == 0;

    count_xids(n);
    *reading_out = (ls_nvml_reading){
        .power_w = small_value(n->power, n->card, 1e-3),
        .limit_w = small_value(n->limit, n->card, 1e-3),
        .energy_j = large_value(n->energy, n->card, 1e-3),
        .sm_mhz = chosen_value(n->clock, n->card, CLOCK_SM),
        .sm_most_mhz = chosen_value(n->most_clock, n->card, CLOCK_SM),
        .memory_mhz = chosen_value(n->clock, n->card, CLOCK_MEMORY),
        .temperature_c = chosen_value(n->temperature, n->card, SENSOR_GPU),
        .used_bytes = known ? (double)memory.used : (double)NAN,
        .total_bytes = known ? (double)memory.total : (double)NAN,
        .corrected = errors(n, CORRECTED),
        .uncorrected = errors(n, UNCORRECTED),
        .reasons = large_value(n->reasons, n->card, 1),
        .xids = n->xids,
        .last_xid = n->last_xid,
    };
}

void ls_nvml_look(ls_nvml *nvml, ls_nvml_state *state_out)
{
    count_xids(nvml);
    *state_out = (ls_nvml_state){.reasons = large_value(nvml->reasons, nvml->card, 1),
                                 .xids = nvml->xids,
                                 .last_xid = nvml->last_xid};
}

bool ls_nvml_slowed(double reasons)
{
    const unsigned long long bad =
        LS_NVML_HW_SLOWDOWN | LS_NVML_SW_THERMAL | LS_NVML_HW_THERMAL | LS_NVML_POWER_BRAKE;

    return !isnan(reasons) && ((unsigned long long)reasons & bad) != 0;
}

void ls_nvml_reasons(double reasons, char text_out[128])
{
    static const struct {
        unsigned bits;
        const char *text;
    } names[] = {{LS_NVML_POWER_CAP, "power limit"},
                 {LS_NVML_SW_THERMAL | LS_NVML_HW_THERMAL, "heat"},
                 {LS_NVML_POWER_BRAKE, "power brake"},
                 {LS_NVML_HW_SLOWDOWN, "hardware slowdown"}};
    unsigned long long bits = isnan(reasons) ? 0 : (unsigned long long)reasons;
    size_t used = 0;

    text_out[0] = '\0';
    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (bits & names[i].bits)
            used += (size_t)snprintf(text_out + used, 128 - used, "%s%s", used ? ", " : "",
                                     names[i].text);
}
